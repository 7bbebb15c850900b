"""What an evaluation of several domains found: each alone, and all of them at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint.display import counted, percent
from saddlepoint.evaluation.failures import Failure
from saddlepoint.evaluation.html_tables import domains_table, write_page
from saddlepoint.evaluation.rates import share
from saddlepoint.evaluation.results import (
    SEARCH,
    RobustAccuracy,
    because_of,
    cut_short,
    interval_of,
    radii_of,
)
from saddlepoint.plots import plot_survival
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall

__all__ = ["DomainAccuracy"]


@final
@dataclass(frozen=True)
class DomainAccuracy:
    """What K domains withstand, each on its own and all at once.

    Attributes:
        balls: The threats, by name.
        per_domain: The suite against each domain alone, by the name of the domain.
        fooled: For every threat the images for which one perturbation was found that fools all domains at
            once, (N,), boolean; images that every domain has wrong from the start are among them.
        broken: For every threat the domains that a perturbation meant for all of them, or for another one,
            fools inside ball and box, (N, K), boolean.
        weights: For every threat the domain weights of the min-max attack, (N, K): which domain was hard;
            1/K for images that were not attacked.
        eps_min: For every threat the smallest radius at which an attack fooled all domains at once, (N,),
            float64: 0 if all have the image wrong from the start, inf if no radius was enough. It is at most
            the threat's radius where `fooled`, and above it elsewhere.
        nearest: For every threat the smallest perturbation in the ball that fools all domains at once,
            (N, ...), of those found at the threat's radius; zero where there is none.
        missed: For every threat the images that a domain has right and the min-max attack was never run on,
            (N,), boolean.
        unsearched: The same for the search of the smallest radius.
        remarks: What cut the attacks on all domains short; `notes` has it all.
        failed: Attacks on all domains that raised; `failures` has them all.
        precision: What each model computed in while our own attacks searched.
        problem: What was evaluated, for the page; None from several problems, and after pickling.

    Example:
        >>> correct = torch.tensor([True, True, True, False])
        >>> balls = {"linf": LpBall(float("inf"), 0.3)}
        >>> result = DomainAccuracy(
        ...     balls,
        ...     {name: RobustAccuracy(balls, correct, ()) for name in ("A", "B")},
        ...     fooled={"linf": torch.tensor([True, False, False, True])},
        ...     broken={"linf": torch.tensor([[1, 1], [0, 1], [0, 0], [1, 1]]).bool()},
        ...     weights={},
        ...     eps_min={},
        ... )
        >>> result
        DomainAccuracy(4 images, 2 domains: clean 75.0 %, linf fools all at once 50.0 %, union 25.0 %)
        >>> result.clean, result.union, result.joint
        (0.75, 0.25, {'linf': 0.5})
    """

    balls: Mapping[str, LpBall]
    per_domain: Mapping[str, RobustAccuracy]
    fooled: Mapping[str, Tensor]
    broken: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    eps_min: Mapping[str, Tensor]
    nearest: Mapping[str, Tensor] = field(default_factory=dict)
    missed: Mapping[str, Tensor] = field(default_factory=dict)
    unsearched: Mapping[str, Tensor] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()
    precision: tuple[str, ...] = ()
    problem: AbstractProblem | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "problem": None}  # as in `AttackResult`

    def __repr__(self) -> str:
        """What matters, in one line instead of all tensors."""
        shares = [f"clean {percent(self.clean)}"]
        for name, value in self.joint.items():
            least = "at least " if f"joint.{name}" in self.at_most else ""
            shares.append(f"{name} fools all at once {least}{percent(1 - value)}")
        shares.append(f"union {percent(self.union, at_most='union' in self.at_most)}")
        return (
            f"DomainAccuracy({self.count} images, {counted(len(self.per_domain), 'domain')}: "
            f"{', '.join(shares)}{because_of(self)})"
        )

    def _repr_html_(self) -> str:
        return domains_table(self)

    def report(
        self, path: str | os.PathLike[str], problem: AbstractProblem | None = None, **options: Any
    ) -> Path:
        """Write the page that the command line leaves; see `saddlepoint.report.write_result`."""
        return write_page(self, path, problem, options)

    def plot(self, axes: Sequence[Any] | None = None) -> Any:
        """Draw the accuracy over the radius, one panel per threat (needs matplotlib); returns the figure."""
        lines = {
            name: {domain: each.distance(name) for domain, each in self.per_domain.items()}
            for name in self.balls
        }
        return plot_survival(lines, radii_of(self.balls), axes)

    @property
    def count(self) -> int:
        """N, the number of images."""
        return len(self.correct)

    @property
    def correct(self) -> Tensor:
        """Images that every domain has right without attack, (N,), boolean."""
        return torch.stack([each.correct for each in self.per_domain.values()]).all(dim=0)

    @property
    def clean(self) -> float:
        """Share of images that every domain has right without attack."""
        return share(self.correct)

    @property
    def union(self) -> float:
        """Share of images that every domain has right under every attack and threat."""
        return share(self.still_right())

    @property
    def joint(self) -> dict[str, float]:
        """For each threat the share of images for which not all domains could be fooled at once."""
        return {name: share(~table) for name, table in self.fooled.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        single = (
            f"{name}: {note}" if len(self.per_domain) > 1 else note
            for name, each in self.per_domain.items()
            for note in each.notes
        )
        failed = (f"{each}: {each.error}" for each in self.failed)
        return (*single, *failed, *self.remarks)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Attacks that raised, on one domain or on all; empty unless they were to be noted."""
        single = (
            failure.of(name) if len(self.per_domain) > 1 else failure
            for name, each in self.per_domain.items()
            for failure in each.failures
        )
        return (*single, *self.failed)

    @property
    def at_most(self) -> frozenset[str]:
        """Numbers that are upper bounds, since attacks failed or did not reach every image.

        They are "union", "robust.THREAT", "joint.THREAT" and "eps_min.THREAT"; `because` says why. A search for
        the smallest radius concerns the radii alone; an attack on one domain alone does not concern what all
        domains withstand at once.
        """
        attacks = [each for each in self.failures if each.attack != SEARCH]
        found = {f"robust.{each.threat}" for each in attacks}
        found |= {f"robust.{name}" for name in self.balls if bool(self.unreached(name).any())}
        found |= {"union"} if attacks or bool(self.unreached().any()) else set()
        found |= {f"joint.{each.threat}" for each in self.failed if each.attack != SEARCH}
        found |= {f"joint.{name}" for name in self.missed if self._not_at_once(name)}
        found |= {f"eps_min.{each.threat}" for each in self.failed}
        return frozenset(
            found | {f"eps_min.{n}" for n, t in self.unsearched.items() if bool(t.any())}
        )

    @property
    def because(self) -> tuple[str, ...]:
        """Why the numbers of `at_most` are upper bounds, one line each."""
        single = (
            f"{name} {why}" if len(self.per_domain) > 1 else why
            for name, each in self.per_domain.items()
            for why in each.because
        )
        counts = {f"{name} min-max": self._not_at_once(name) for name in self.missed}
        counts |= {f"{name} {SEARCH}": int(table.sum()) for name, table in self.unsearched.items()}
        failed = {f"{each.threat} {each.attack}" for each in self.failed}
        cut = (
            cut_short(who, count) for who, count in counts.items() if count and who not in failed
        )
        return (*single, *map(str, self.failed), *cut)

    def unreached(self, threat: str | None = None) -> Tensor:
        """Images still right that not every attack of a threat, or of all, was run on, (N,)."""
        table = torch.zeros_like(self.correct)
        for each in self.per_domain.values():
            table |= each.unreached(threat)
        for name, missed in self.missed.items():
            if threat in (None, name):
                table |= missed
        return table & self.still_right(threat)

    def _not_at_once(self, threat: str) -> int:
        """How many images were not fooled, and never attacked, at once."""
        return int((self.missed[threat] & ~self.fooled[threat]).sum())

    def still_right(self, threat: str | None = None) -> Tensor:
        """Images that every domain has right without attack and under a threat, or under all, (N,)."""
        table = self.correct
        for each in self.per_domain.values():
            table &= each.still_right(threat)
        for name, broken in self.broken.items():
            if threat in (None, name):
                table &= ~broken.any(dim=1)
        return table

    def interval(self, threat: str | None = None, level: float = 0.95) -> tuple[float, float]:
        """Wilson score interval of the share of images still right under a threat, or under all.

        Of an upper bound it begins at zero.
        """
        bound = ("union" if threat is None else f"robust.{threat}") in self.at_most
        return interval_of(self.still_right(threat), level, at_most=bound)

    def joint_interval(self, threat: str, level: float = 0.95) -> tuple[float, float]:
        """Wilson score interval of `joint` under a threat; of an upper bound it begins at zero."""
        return interval_of(~self.fooled[threat], level, at_most=f"joint.{threat}" in self.at_most)
