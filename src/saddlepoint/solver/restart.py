"""One restart of `attack`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from saddlepoint.losses import Loss
from saddlepoint.problems import AbstractProblem
from saddlepoint.problems.inputs import picked
from saddlepoint.projections import LpBall
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.solver.batching import Plan, Report
from saddlepoint.solver.best import Best, may_be_kept
from saddlepoint.solver.domain_losses import Evaluation, evaluate
from saddlepoint.solver.estimates import Estimator, Probes
from saddlepoint.solver.gradients import Estimated, Gradient, Phase, Searched
from saddlepoint.solver.grid import Grid
from saddlepoint.solver.schedule import Schedule
from saddlepoint.solver.search import Search
from saddlepoint.solver.walks import AbstractWalk, Descent, Here, Wandering
from saddlepoint.solver.watch import Watch

__all__ = ["Restart"]


@final
class _Log:
    """Weights and losses of every iterate, (2, steps + 1, n, K), written in the end: steps only note them."""

    def __init__(self, series: Tensor) -> None:
        self._series = series
        self._told: list[tuple[Tensor, Tensor, Tensor]] = []
        self._better: list[tuple[Tensor, Tensor]] = []

    def add(self, here: Tensor, weights: Tensor, losses: Tensor) -> None:
        """Note an iterate of the rows at `here`, (m,)."""
        self._told.append((here, weights.clone(), losses))  # rules may write into their weights

    def gain(self, here: Tensor, better: Tensor) -> None:
        """Note which of these rows, (m,), it was the best iterate of, (m,), boolean."""
        self._better.append((here, better))

    def gained(self) -> Tensor:
        """Rows that any iterate was better for, (n,), boolean."""
        found = torch.zeros_like(self._series[0, 0, :, 0], dtype=torch.bool)
        for here, better in self._better:
            if len(here) == len(found):  # rows are in order
                found |= better
            else:
                found[here] |= better
        return found

    def filled(self) -> Tensor:
        """All of it: a row that has left keeps its last values."""
        rows = self._series.shape[2]
        whole = [values for here, *values in self._told if len(here) == rows]  # rows only leave
        if whole:
            for series, known in zip(self._series, zip(*whole, strict=True), strict=True):
                torch.stack(known, out=series[: len(whole)])
        for number, (here, *values) in enumerate(self._told[len(whole) :], start=len(whole)):
            for series, value in zip(self._series, values, strict=True):
                series[number] = series[number - 1]
                series[number, here] = value
        if self._told:
            last = len(self._told) - 1
            self._series[:, last + 1 :] = self._series[:, last : last + 1]
        return self._series


@final
@dataclass(frozen=True)
class Restart:
    """One restart of some rows of a batch.

    Attributes:
        rule: How the weights move.
        loss: Small = fooled.
        setup: What all restarts have in common.
        grid: Of grey levels, or None.
        phase: How many steps, and what they follow.
        gradient: How to do without gradients, or None.
        seed: Of the rows' streams.
        keep_going: Whether rows that fool every domain go on to the last step.
        report: Told after every iterate.
        watch: Looks at every iterate.
    """

    rule: AbstractWeightRule
    loss: Loss
    setup: Plan
    grid: Grid | None
    phase: Phase
    gradient: Gradient | None
    seed: int
    keep_going: bool
    report: Report
    watch: Watch

    @property
    def schedule(self) -> Schedule:
        """Restarts begin in larger balls; phases that estimate are no restarts."""
        again = self.phase.number if self.phase.kind == "exact" else 0
        return Schedule(self.phase.steps, restart=again)

    def go(
        self, problem: AbstractProblem, ball: LpBall, delta: Tensor, rows: Tensor, best: Best
    ) -> None:
        """Restart from delta, (n, ...), updating `best` at `rows`, (n,), the positions of these n rows."""
        steps, schedule, most = self.phase.steps, self.schedule, self.setup.most(problem)
        walk, size = self._walk(problem, schedule), self.setup.steps + 1
        log = _Log(delta.new_zeros(2, size, *problem.labels.shape))
        here = torch.arange(len(problem), device=delta.device)  # rows that are not fooled yet
        at, weights = rows, None
        try:
            for step_number in range(steps + 1):
                here_ball = schedule.ball(ball, step_number)
                shown = self._shown(delta, here_ball, problem)
                inside = here_ball is ball
                offered = inside and may_be_kept(problem, step_number, steps)
                differentiate = walk.differentiates and step_number < steps
                point = self._evaluate(problem, shown, step_number, differentiate, confirm=offered)
                self.watch.point(problem, shown, point, step=step_number)
                weights = self._weights(weights, point.losses)
                log.add(here, weights, point.losses)
                best.spend(at, point.spent)
                if offered:
                    log.gain(here, best.offer(at, shown, weights, point))
                self.report(self.phase.number, step_number, best.fooled)
                # What a random transform did once it may not do again: such rows go on to the end.
                whole = problem.random or not inside or self.keep_going
                left = torch.ones_like(at, dtype=torch.bool) if whole else ~point.fooled.all(dim=1)
                if most < math.inf:
                    left &= best.num_forwards[at] <= most
                remaining = self.watch.left(left) if step_number < steps else 0
                if not remaining:
                    break
                gradient = point.gradient(weights) if differentiate else None
                losses = point.losses
                if remaining < left.shape[0]:
                    # The device knows where: a list that is copied to it would make the host wait.
                    keep = left.byte().argsort(descending=True, stable=True)[:remaining]
                    problem, ball = problem.take(keep), ball.take(keep)
                    same, delta = shown is delta, picked(delta, keep)
                    shown = delta if same else picked(shown, keep)
                    here, at, losses = here[keep], at[keep], losses[keep]
                    weights = weights[keep]
                    gradient = None if gradient is None else picked(gradient, keep)
                    walk.take(keep)
                more = (losses, weights, gradient, step_number, self._stream(step_number))
                delta, spent = walk.next(Here(problem, ball, delta, shown, *more))
                best.spend(at, spent)
        finally:
            gained = log.gained().nonzero().flatten()
            told, losses_told = log.filled()[:, :, gained]
            best.history.weights[:, rows[gained]] = told
            best.history.losses[:, rows[gained]] = losses_told

    def _walk(self, problem: AbstractProblem, schedule: Schedule) -> AbstractWalk:
        """What leads these rows from an iterate to the next."""
        phase, stream = self.phase, self.phase.number
        if phase.kind == "searched":
            total = phase.steps * phase.per_step
            targeted = self.setup.targeted
            search = Search(self.loss, total, self.seed, stream, targeted)
            shown = self._shown if self.grid is not None else None
            kind = self.gradient.objective if isinstance(self.gradient, Searched) else "soft"
            search = replace(search, shown=shown, kind=kind)
            return Wandering(search, self.watch, phase.per_step)
        if not isinstance(self.gradient, Estimated):
            return Descent(schedule, self.watch)
        domains = range(problem.num_domains)
        declared = problem.without_gradient
        probes = Probes(
            domains=declared or tuple(domains),
            loss=self.loss,
            directions=self.gradient.directions,
            queries=phase.per_step,
            distance=self.gradient.distance,
            side=phase.side,
            momentum=self.gradient.momentum,
            seed=self.seed,
            stream=stream,
            targeted=self.setup.targeted,
        )
        mixed = 0 < len(declared) < len(domains)
        return Descent(schedule, self.watch, mixed, Estimator(probes, problem))

    def _shown(self, delta: Tensor, ball: LpBall, problem: AbstractProblem) -> Tensor:
        """What is evaluated and returned: the iterate, in whole levels if so wanted."""
        if self.grid is None:
            return delta
        return self.grid.within(delta, ball, problem.lower, problem.upper)

    def _stream(self, step_number: int) -> int:
        return self.phase.number * (self.setup.steps + 1) + step_number

    def _evaluate(
        self,
        problem: AbstractProblem,
        delta: Tensor,
        step_number: int,
        differentiate: bool,
        *,
        confirm: bool,
    ) -> Evaluation:
        return evaluate(
            problem,
            delta,
            self.loss,
            stream=self._stream(step_number),
            targeted=self.setup.targeted,
            accumulate=self.setup.accumulate,
            differentiate=differentiate,
            precisions=self.setup.precisions,
            confirm=confirm,
        )

    def _weights(self, weights: Tensor | None, losses: Tensor) -> Tensor:
        return self.rule.init(losses) if weights is None else self.rule.update(weights, losses)
