"""What every problem has; the contract is in the docstring of `saddlepoint.problems`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from saddlepoint.calls import Model
from saddlepoint.display import names_text
from saddlepoint.score_models import has_gradient

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
        aimed: Whether `labels` are classes to reach and `truth` is something else, see `aim_at`.
        lenient: Whether, of a problem that is `aimed`, every class but `truth` fools, and `labels` only lead
            the loss.
        levels: Grey levels to which perturbed images are rounded before any model sees them; none by default.

    Example:
        >>> import saddlepoint as sp
        >>> class Halves(AbstractProblem):  # domains: the model sees the left or the right half of a row
        ...     names = ("left", "right")
        ...     def __init__(self, model, x, y):
        ...         self.model, self.x, self.labels = model, x, y[:, None].expand(-1, 2)
        ...         self.lower, self.upper, self.rows = -x, 1 - x, torch.arange(len(x))
        ...     def domain_logits(self, delta, domain, stream=0):
        ...         return self.model((self.x + delta).chunk(2, dim=1)[domain])
        ...     def take(self, rows):
        ...         return Halves(self.model, self.x[rows], self.labels[rows, 0])
        ...     def images(self, delta):
        ...         return self.x + delta
        ...     @property
        ...     def models(self):
        ...         return [self.model]
        >>> x, y = torch.tensor([[0.4, 0.5, 0.0, 0.9]]), torch.tensor([1])
        >>> problem = Halves(torch.nn.Identity().eval(), x, y)
        >>> sp.attack(problem, sp.linf(0.2), steps=5).fooled
        tensor([[ True, False]])
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
    aimed: bool = False
    lenient: bool = False
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
    def without_gradient(self) -> tuple[int, ...]:
        """The domains whose models are declared by `saddlepoint.scores`."""
        known = [has_gradient(model) for model in self.models]
        if all(known):  # also where a problem has functions instead of models
            return ()
        return tuple(k for k in range(self.num_domains) if not known[self.model_of(k)])

    @property
    def num_domains(self) -> int:
        """K."""
        return self.labels.shape[1]

    @property
    def truth(self) -> Tensor:
        """True classes, (B, K): `labels`, unless those are predicted, or aimed at."""
        return self.labels if self._truth is None else self._truth

    def goal(self, targeted: bool) -> tuple[Tensor, bool]:
        """What verdicts compare answers with, (B, K), and whether it is to be reached or to be left."""
        return (self.truth, False) if self.lenient else (self.labels, targeted)

    def __len__(self) -> int:
        return self.labels.shape[0]

    def __repr__(self) -> str:
        """Rows and domains in one line."""
        size = "x".join(map(str, self.lower.shape[1:]))
        domains = f"{self.num_domains} domain{'s' if self.num_domains > 1 else ''}"
        told = f"{len(self)} rows of {size}, {domains}: {names_text(self.names)}"
        return f"{type(self).__name__}({told})"

    def logits(self, delta: Tensor, stream: int = 0) -> Tensor:
        """Logits of every domain, (B, K, C)."""
        outputs = [self.domain_logits(delta, k, stream) for k in range(self.num_domains)]
        if len(outputs) == 1:
            return outputs[0].unsqueeze(1)
        if len({output.shape for output in outputs}) > 1:
            first: dict[int, str] = {}
            for output, name in zip(outputs, self.names, strict=True):
                first.setdefault(output.shape[-1], name)
            got = " and ".join(f"{count} for {name}" for count, name in first.items())
            raise ValueError(
                f"all domains must return logits (B, C) for the same classes, got {got}."
            )
        return torch.stack(outputs, dim=1)

    def on_grid(self, levels: int) -> Self:
        """The same problem about images as a file with so many grey levels holds them, 256 for 8 bits."""
        part = copy(self)
        part.levels = levels
        return part

    def unperturbed(self) -> Tensor:
        """Everything that delta is added to or shown with, (B, ...): what has to be 8-bit for results to be."""
        return self.images(self.zeros())

    def aim_at(self, targets: Tensor) -> Self:
        """The same problem for targeted attacks that know the true classes too.

        Args:
            targets: Classes to reach, (B, K); `truth` stays what it is.
        """
        if targets.shape != self.labels.shape:
            raise ValueError(
                f"`targets` must have shape {tuple(self.labels.shape)}, got {tuple(targets.shape)}."
            )
        part = copy(self)
        part._truth, part.labels, part.aimed = self.truth, targets.to(self.labels), True
        return part

    def zeros(self) -> Tensor:
        """The zero perturbation, (B, ...)."""
        return torch.zeros_like(self.lower)
