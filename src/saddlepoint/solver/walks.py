"""From an iterate to the next: along gradients, along estimates of them, or by random search."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall
from saddlepoint.solver.estimates import Estimator
from saddlepoint.solver.schedule import Schedule
from saddlepoint.solver.search import Search
from saddlepoint.solver.steps import linf_move, step
from saddlepoint.solver.watch import Watch

__all__ = ["AbstractWalk", "Descent", "Here", "Next", "Wandering"]


@final
class Here(NamedTuple):
    """An iterate of the rows that go on.

    Attributes:
        problem: n rows.
        ball: Where delta may be in the end.
        delta: (n, ...).
        shown: The same as the domains have seen it, (n, ...).
        losses: F(shown), (n, K).
        weights: (n, K).
        gradient: Of the weighted sum of the domains that were differentiated, (n, ...); None if none was.
        number: Of the step.
        stream: The random draw that the gradient was taken at.
    """

    problem: AbstractProblem
    ball: LpBall
    delta: Tensor
    shown: Tensor
    losses: Tensor
    weights: Tensor
    gradient: Tensor | None
    number: int
    stream: int


@final
class Next(NamedTuple):
    """The next iterate, (n, ...), and the queries it took, one number or (n,)."""

    delta: Tensor
    spent: int | Tensor


class AbstractWalk(ABC):
    """Leads some rows from iterate to iterate."""

    differentiates: bool
    """Whether iterates are to be differentiated."""

    @abstractmethod
    def next(self, here: Here) -> Next:
        """The next iterate."""

    @abstractmethod
    def take(self, rows: Tensor) -> None:
        """Go on with some of the rows, (m,), positions."""


@final
@dataclass
class Descent(AbstractWalk):
    """Steps against the gradient, of which the estimator adds what nobody can differentiate.

    Attributes:
        schedule: Of step lengths and balls.
        watch: Looks at the gradients.
        differentiates: Whether any domain is.
        estimator: Of the others; None if there are none.
        largest: Radius of all rows, once it was asked.
    """

    schedule: Schedule
    watch: Watch
    differentiates: bool = True
    estimator: Estimator | None = None
    largest: float | None = None

    def next(self, here: Here) -> Next:
        """One step."""
        problem, number, spent = here.problem, here.number, 0
        gradient = torch.zeros_like(here.delta) if here.gradient is None else here.gradient
        if self.estimator is not None:
            found, finite = self.estimator.gradient(
                problem, here.ball, here.shown, here.losses, here.weights, here.stream
            )
            self.watch.values(problem, here.shown, finite, step=number)
            gradient, spent = gradient + found, self.estimator.cost * problem.samples
        self.watch.gradient(problem, here.shown, gradient, stream=here.stream, step=number)
        length = self.schedule.length(number)
        if here.ball.p == math.inf:  # the box lies in the ball, see `tightened`
            moved = linf_move(here.ball, here.delta, gradient, length)
            return Next(moved.clamp_(problem.lower, problem.upper), spent)
        entries = None
        if self.estimator is None:  # estimates were measured with the few of `steepest`
            entries = self.schedule.entries(here.ball, here.delta, number)
        ahead = self.schedule.ball(here.ball, number + 1)
        bounds = problem.lower, problem.upper
        most = self._most(here) if isinstance(entries, Tensor) else None
        return Next(
            step(ahead, *bounds, here.delta, gradient, length, entries, most),
            spent,
        )

    def _most(self, here: Here) -> int:
        """What no `entries` exceed; the largest of several radii is asked for once: rows only leave."""
        if self.largest is None:
            eps = here.ball.eps
            self.largest = float(eps.max()) if isinstance(eps, Tensor) else float(eps)
        size = here.delta[0].numel()
        found = self.schedule.most_entries(self.largest, size, here.number)
        return min(found + 1, size)  # one more: powers are rounded otherwise there

    def take(self, rows: Tensor) -> None:
        """The estimator remembers rows."""
        if self.estimator is not None:
            self.estimator.take(rows)


@final
@dataclass
class Wandering(AbstractWalk):
    """Random search, some proposals between two iterates.

    Attributes:
        search: How.
        watch: Looks at the answers.
        proposals: Between two iterates.
    """

    search: Search
    watch: Watch
    proposals: int
    differentiates = False

    def next(self, here: Here) -> Next:
        """Where the proposals lead."""
        finite = torch.ones_like(here.losses, dtype=torch.bool)
        first = here.number * self.proposals
        numbers = range(first, first + self.proposals)
        delta, spent = self.search.go(
            here.problem, here.ball, here.delta, here.losses, numbers, finite
        )
        self.watch.values(here.problem, here.shown, finite, step=here.number)
        return Next(delta, spent)

    def take(self, rows: Tensor) -> None:
        """Nothing is remembered."""
