"""One restart of `attack`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from saddlepoint.losses import Loss
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.solver.batching import Plan, Report
from saddlepoint.solver.best import Best, may_be_kept
from saddlepoint.solver.estimates import Estimator, Probes
from saddlepoint.solver.evaluate import Evaluation, evaluate
from saddlepoint.solver.gradients import Estimated, Gradient, Phase, Searched
from saddlepoint.solver.grid import Grid
from saddlepoint.solver.result import History
from saddlepoint.solver.schedule import Schedule
from saddlepoint.solver.search import Search
from saddlepoint.solver.walks import AbstractWalk, Descent, Here, Wandering
from saddlepoint.solver.watch import Watch

__all__ = ["Restart"]


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
        log = History(*(delta.new_zeros(size, *problem.labels.shape) for _ in range(2)))
        here = torch.arange(len(problem), device=delta.device)  # rows that are not fooled yet
        gained = torch.zeros_like(here, dtype=torch.bool)
        weights = None
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
                # Filled to the end: a row that leaves keeps its last values, others are overwritten.
                log.weights[step_number:, here] = weights
                log.losses[step_number:, here] = point.losses
                best.num_forwards[rows[here]] += point.spent
                if offered:
                    gained[here] |= best.offer(rows[here], shown, weights, point)
                self.report(self.phase.number, step_number, best.fooled)
                # What a random transform did once it may not do again: such rows go on to the end.
                left = ~point.fooled.all(dim=1) | problem.random | (not inside) | self.keep_going
                left &= best.num_forwards[rows[here]] <= most
                remaining = self.watch.count(left) if step_number < steps else 0
                if remaining == 0:
                    break
                gradient = point.gradient(weights) if differentiate else None
                losses = point.losses
                if remaining < len(left):
                    keep = left.nonzero().flatten()
                    problem, ball, here = problem.take(keep), ball.take(keep), here[keep]
                    delta, shown, losses = delta[keep], shown[keep], losses[keep]
                    weights, gradient = weights[keep], None if gradient is None else gradient[keep]
                    walk.take(keep)
                told = (losses, weights, gradient, step_number, self._stream(step_number))
                there = Here(problem, ball, delta, shown, *told)
                delta, spent = walk.next(there)
                best.num_forwards[rows[here]] += spent
        finally:
            gain = gained.nonzero().flatten()
            best.history.weights[:, rows[gain]] = log.weights[:, gain]
            best.history.losses[:, rows[gain]] = log.losses[:, gain]

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
