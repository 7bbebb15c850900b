"""What an evaluation of one domain found: per attack, per threat, and as a union."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, final

import torch
from torch import Tensor

from saddlepoint.display import percent
from saddlepoint.evaluation.failures import Failure
from saddlepoint.evaluation.html_tables import threats_table, write_page
from saddlepoint.evaluation.ledger import Status
from saddlepoint.evaluation.rates import share, wilson
from saddlepoint.plots import plot_survival
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall

__all__ = [
    "SEARCH",
    "Outcome",
    "RobustAccuracy",
    "because_of",
    "cut_short",
    "interval_of",
    "radii_of",
]

SEARCH = "eps_min"
"""The search for the smallest radius at which all domains fall, which breaks no image inside the ball."""


@final
@dataclass(frozen=True)
class Outcome:
    """What one attack did under one threat.

    Attributes:
        threat: Name of the threat.
        attack: Name of the attack.
        attacked: Images it was run on, at least once, (N,), boolean.
        broken: Images it broke, (N,), boolean.
        distance: Of the nearest misclassified image it found, also outside the ball, and on the way from there
            back to the image; inf where none; (N,).
        seconds: Time it took.
        queries: Images shown to the model.
        status: "cut short" by the time budget, "failed" with an error, "not needed" if no image was left.
        notes: What a reader of the numbers has to know.
        minimal: Whether the attack looks for the nearest adversarial image, whatever the radius.
        failure: What it did not get to, if it failed.

    Example:
        >>> attacked, broken = torch.tensor([True, True, False]), torch.tensor([True, False, False])
        >>> Outcome("linf", "pgd", attacked, broken, distance=torch.full((3,), torch.inf))
        Outcome(linf pgd: broke 1 of 2 in 0.0 s, complete)
    """

    threat: str
    attack: str
    attacked: Tensor
    broken: Tensor
    distance: Tensor
    seconds: float = 0.0
    queries: int = 0
    status: Status = "complete"
    notes: tuple[str, ...] = ()
    minimal: bool = False
    failure: Failure | None = None

    def __repr__(self) -> str:
        """What matters, in one line instead of all tensors."""
        return (
            f"Outcome({self.threat} {self.attack}: broke {int(self.broken.sum())} of "
            f"{int(self.attacked.sum())} in {self.seconds:.1f} s, {self.status})"
        )


@final
@dataclass(frozen=True)
class RobustAccuracy:
    """Accuracy without attack, under each threat, and under all of them, as fractions.

    Attributes:
        balls: The threats, by name.
        correct: Classified correctly without attack, (N,), boolean.
        outcomes: One per threat and attack, in the order they were run.
        nearest: For every threat the perturbation of the nearest misclassified image found, (N, ...); zero
            where there is none.
        precision: What the model computed in while our own attacks searched, such as ("bfloat16",), or
            ("bfloat16 and float32",) for a loader that goes on in float64.
        problem: The model and the images, for the page; None from a loader, and after pickling.

    Example:
        >>> correct = torch.tensor([True, True, True, False])
        >>> broken = torch.tensor([True, False, False, False])
        >>> outcome = Outcome("linf", "pgd", correct, broken, torch.full((4,), 0.1))
        >>> result = RobustAccuracy({"linf": LpBall(math.inf, 0.3)}, correct, (outcome,))
        >>> result
        RobustAccuracy(4 images: clean 75.0 %, linf 50.0 %, union 50.0 %)
        >>> result.clean, result.per_threat, result.union
        (0.75, {'linf': 0.5}, 0.5)
    """

    balls: Mapping[str, LpBall]
    correct: Tensor
    outcomes: tuple[Outcome, ...]
    nearest: Mapping[str, Tensor] = field(default_factory=dict)
    precision: tuple[str, ...] = ()
    problem: AbstractProblem | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "problem": None}  # as in `AttackResult`

    def __repr__(self) -> str:
        """What matters, in one line instead of all tensors."""
        shares = [f"clean {percent(self.clean)}"]
        shares += [
            f"{name} {percent(value, at_most=f'robust.{name}' in self.at_most)}"
            for name, value in self.per_threat.items()
        ]
        shares.append(f"union {percent(self.union, at_most='union' in self.at_most)}")
        return f"RobustAccuracy({self.count} images: {', '.join(shares)}{because_of(self)})"

    def _repr_html_(self) -> str:
        return threats_table(self)

    def report(
        self, path: str | os.PathLike[str], problem: AbstractProblem | None = None, **options: Any
    ) -> Path:
        """Write the page that the command line leaves; see `saddlepoint.report.write_result`."""
        return write_page(self, path, problem, options)

    def plot(self, axes: Sequence[Any] | None = None) -> Any:
        """Draw the accuracy over the radius, one panel per threat (needs matplotlib); returns the figure."""
        lines = {name: {"model": self.distance(name)} for name in self.balls}
        return plot_survival(lines, radii_of(self.balls), axes)

    @property
    def count(self) -> int:
        """N, the number of images."""
        return len(self.correct)

    @property
    def clean(self) -> float:
        """Accuracy without attack."""
        return share(self.correct)

    @property
    def per_threat(self) -> dict[str, float]:
        """Accuracy under all attacks of each threat."""
        return {name: share(self.still_right(name)) for name in self.balls}

    @property
    def union(self) -> float:
        """Accuracy under all attacks of all threats."""
        return share(self.still_right())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know, failures first."""
        failed = (f"{each}: {each.error}" for each in self.failures)
        others = (
            f"{each.threat} {each.attack}: {note}" for each in self.outcomes for note in each.notes
        )
        return (*failed, *others)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Attacks that raised; empty unless they were to be noted."""
        return tuple(each.failure for each in self.outcomes if each.failure is not None)

    @property
    def at_most(self) -> frozenset[str]:
        """Numbers that are upper bounds, since attacks failed or did not reach every image.

        They are "union" and "robust.THREAT"; `because` says why.
        """
        found = {f"robust.{failure.threat}" for failure in self.failures}
        found |= {f"robust.{name}" for name in self.balls if bool(self.unreached(name).any())}
        return frozenset(
            found | {"union"} if self.failures or bool(self.unreached().any()) else found
        )

    @property
    def because(self) -> tuple[str, ...]:
        """Why the numbers of `at_most` are upper bounds, one line each."""
        missed = [(each, int(self._missed(each).sum())) for each in self.outcomes]
        cut = (
            cut_short(f"{each.threat} {each.attack}", count)
            for each, count in missed
            if count and each.status == "cut short"
        )
        return (*map(str, self.failures), *cut)

    def unreached(self, threat: str | None = None) -> Tensor:
        """Images still right that not every attack of a threat, or of all, was run on, (N,).

        Nobody knows whether they withstand what they were never shown to.
        """
        table = torch.zeros_like(self.correct)
        for each in self.outcomes:
            if threat in (None, each.threat):
                table |= self._missed(each)
        return table & self.still_right(threat)

    def _missed(self, outcome: Outcome) -> Tensor:
        """Images that no attack of its threat has broken, and that this one was not run on, (N,)."""
        return self.still_right(outcome.threat) & ~outcome.attacked

    def still_right(self, threat: str | None = None) -> Tensor:
        """Images classified correctly without attack and under all attacks of a threat, or of all, (N,)."""
        table = self.correct.clone()
        for each in self.outcomes:
            if threat in (None, each.threat):
                table &= ~each.broken
        return table

    def distance(self, threat: str) -> Tensor:
        """Distance to the nearest misclassified image found: 0 if it is the image itself, inf if none; (N,)."""
        nearest = torch.where(self.correct, math.inf, 0.0).double()
        for each in self.outcomes:
            if each.threat == threat:
                nearest = torch.minimum(nearest, each.distance.double())
        return nearest

    def interval(self, threat: str | None = None, level: float = 0.95) -> tuple[float, float]:
        """Wilson score interval of the accuracy under a threat, or under all; of an upper bound, from zero."""
        bound = ("union" if threat is None else f"robust.{threat}") in self.at_most
        return interval_of(self.still_right(threat), level, at_most=bound)


def radii_of(balls: Mapping[str, LpBall]) -> dict[str, float]:
    """The radius of every threat."""
    return {name: float(ball.eps) for name, ball in balls.items()}


class _Bounded(Protocol):
    """A result some of whose numbers may be upper bounds."""

    @property
    def at_most(self) -> frozenset[str]: ...
    @property
    def because(self) -> tuple[str, ...]: ...


def interval_of(
    table: Tensor, level: float = 0.95, *, at_most: bool = False
) -> tuple[float, float]:
    """Wilson score interval; how much lower than an upper bound the truth is, nobody knows.

    Example:
        >>> low, high = interval_of(torch.tensor([True]), at_most=True)
        >>> low, high
        (0.0, 1.0)
    """
    low, high = wilson(int(table.sum()), len(table), level)
    return (0.0 if at_most else low), high


def cut_short(attack: str, images: int) -> str:
    """That an attack did not get to some images.

    Example:
        >>> cut_short("linf pgd", 1)
        'linf pgd was cut short by the budget before 1 image'
    """
    return f"{attack} was cut short by the budget before {images} image{'' if images == 1 else 's'}"


def because_of(result: _Bounded) -> str:
    """Why numbers are upper bounds, for the end of a line; nothing where none is."""
    return ": " + ", ".join(result.because) if result.at_most else ""
