"""What an attack of a suite is, and what it is given."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from saddlepoint.problems import Model
from saddlepoint.problems.inputs import call
from saddlepoint.projections import LpBall

__all__ = ["AbstractAttack", "OutOfTimeError", "Target", "Watched"]


class OutOfTimeError(Exception):
    """The time an attack was given is over."""


@final
class Watched(nn.Module):
    """A model that counts how often images are shown to it, and stops the attack when its time is over.

    It has no parameters of its own, so that libraries which look for some find none to change.

    Args:
        model: From images in [0, 1] to logits.

    Example:
        >>> import torch
        >>> model = Watched(nn.Linear(2, 3).eval())
        >>> _ = model(torch.rand(4, 2))
        >>> model.queries
        4
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, out of the sight of nn.Module
        self.queries = 0
        self.deadline: float | None = None
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (n, C)."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError
        self.queries += len(images)
        return call(self._model[0], images)


@final
@dataclass(frozen=True)
class Target:
    """What an attack is asked to break: some images under one threat.

    Attributes:
        model: From images in [0, 1] to logits (n, C), in evaluation mode.
        x: Images, (n, ...), in [0, 1], all of them classified correctly.
        y: Labels, (n,).
        rows: Numbers of the images in the whole evaluation, (n,).
        ball: Where perturbations may be; one radius for all.
        seed: Of everything random; differs from batch to batch and from restart to restart. The global random
            state is seeded with it already, for libraries that draw from there.
        restart: Which restart, from 0.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    rows: Tensor
    ball: LpBall
    seed: int
    restart: int = 0

    @property
    def eps(self) -> float:
        """The radius."""
        return float(self.ball.eps)


class AbstractAttack(ABC):
    """A way to look for adversarial images. What it returns is judged by `verdicts.judge`.

    Attributes:
        name: In tables, such as "pgd".
        restarts: How often it is run, each time on the images that still stand.
        minimal: Whether it looks for the nearest adversarial image, whatever the radius.
    """

    name: str
    restarts: int = 1
    minimal: bool = False

    @abstractmethod
    def run(self, target: Target) -> Tensor:
        """Candidates, (n, ...), one per image; the image itself where nothing was found."""
