"""What every problem has; the contract is in the docstring of `saddlepoint.problems`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from saddlepoint.calls import Model

__all__ = ["AbstractProblem"]


class AbstractProblem(ABC):
    """B rows, K domains. A new kind of domain sets the attributes and implements the four abstract members.

    Attributes:
        labels: What is attacked, (B, K), int64.
        lower, upper: The box of delta, (B, ...).
        rows: Row numbers, (B,): they follow a row through batching and name its random stream.
        samples: Random draws per evaluation; losses are averaged over them (expectation over
            transformations).
        random: Whether two draws can differ. Rows of random problems are never finished early.
        names: One short name per domain, for reports.
        seed: Of the random draws.
        levels: Grey levels to which perturbed images are rounded before any model sees them; none by default.
    """

    labels: Tensor
    _truth: Tensor | None = None  # where labels are something else
    lower: Tensor
    upper: Tensor
    rows: Tensor
    samples: int = 1
    random: bool = False
    names: tuple[str, ...]
    seed: int = 0
    levels: int | None = None

    @abstractmethod
    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        """Logits of one domain, (B, C), at delta, (B, ...); `stream` selects the random draw."""

    @abstractmethod
    def take(self, rows: Tensor) -> Self:
        """The problem of some rows only; `rows` are positions, (n,), int64."""

    @abstractmethod
    def images(self, delta: Tensor) -> Tensor:
        """The perturbed images before any transformation: (B, ...), or (B, K, ...) if they differ by domain."""

    @property
    @abstractmethod
    def models(self) -> Sequence[Model]:
        """The distinct models behind the domains."""

    def model_of(self, domain: int) -> int:
        """Which of `models` answers for a domain: the first, unless a problem says otherwise."""
        del domain
        return 0

    @property
    def num_domains(self) -> int:
        """K."""
        return self.labels.shape[1]

    @property
    def truth(self) -> Tensor:
        """What success is counted against, (B, K): `labels`, or true classes where labels are predicted."""
        return self.labels if self._truth is None else self._truth

    def __len__(self) -> int:
        return self.labels.shape[0]

    def logits(self, delta: Tensor, stream: int = 0) -> Tensor:
        """Logits of every domain, (B, K, C)."""
        outputs = [self.domain_logits(delta, k, stream) for k in range(self.num_domains)]
        shapes = {tuple(output.shape) for output in outputs}
        if len(shapes) > 1:
            raise ValueError(
                f"all domains must return logits (B, C) for the same classes, got {sorted(shapes)}."
            )
        return torch.stack(outputs, dim=1)

    def on_grid(self, levels: int) -> Self:
        """The same problem about images as a file with so many grey levels holds them, 256 for 8 bits."""
        part = copy(self)
        part.levels = levels
        return part

    def zeros(self) -> Tensor:
        """The zero perturbation, (B, ...)."""
        return torch.zeros_like(self.lower)
