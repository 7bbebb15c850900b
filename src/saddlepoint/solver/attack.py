"""The attack users should call: Algorithm 1 made strong and cheap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.calls import full_precision
from saddlepoint.losses import Loss, cw_margin
from saddlepoint.precision import Precision, Precisions
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import AbstractSet, LpBall
from saddlepoint.rules import AbstractWeightRule, MinMax
from saddlepoint.solver.batching import Plan, Report, in_batches
from saddlepoint.solver.best import Best, may_be_kept
from saddlepoint.solver.checks import check_arguments, check_budget, check_count
from saddlepoint.solver.evaluate import Evaluation, evaluate, gradients_enabled
from saddlepoint.solver.grid import Grid
from saddlepoint.solver.inspection import inspect
from saddlepoint.solver.lowering import choose_precisions
from saddlepoint.solver.result import AttackResult, Callback, History, keep_partial
from saddlepoint.solver.schedule import Schedule, divided
from saddlepoint.solver.steps import random_point, step, within_box
from saddlepoint.solver.telling import telling
from saddlepoint.solver.watch import Watch

__all__ = ["attack", "attack_unchecked"]


def attack(
    problem: AbstractProblem,
    ball: AbstractSet,
    *,
    rule: AbstractWeightRule | None = None,
    loss: Loss = cw_margin,
    steps: int | None = None,
    restarts: int | None = None,
    evaluations: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    targeted: bool = False,
    quantize: int | None = None,
    start: Tensor | None = None,
    keep_going: bool = False,
    accumulate: bool | None = None,
    precision: Precision | Sequence[Precision] = "float32",
    progress: bool = False,
    callback: Callback | None = None,
) -> AttackResult:
    """Fool every domain of every row with one perturbation, with as few evaluations as possible.

    The min-max iteration of `apgda` with what makes attacks strong: steepest steps in the ball's own norm
    among the entries that can still move, a step length that falls from one and a half radii to zero along a
    cosine, the best iterate kept (most domains fooled, then lowest worst loss), and restarts, which
    for p = 1 and 2 begin in larger balls, of three sizes in turn, that shrink (as in l1-APGD, Croce & Hein,
    2021). And with what makes it cheap: a row leaves the batch as soon as it fools every domain, and only rows
    that are not fooled yet are restarted. There is no step size to tune.

    Costs at most restarts * (steps + 1) forward and restarts * steps backward passes per row and draw, or
    `evaluations` if that is given; `result.num_forwards` says what each row took. The verdict asks once more at
    the end, without gradient and not counted there: a model that then answers differently is refused.

    Args:
        problem: B independent rows, K domains.
        ball: Where delta may be: an `LpBall`, or a `Patch`.
        rule: How the weights move; `MinMax()` by default, `Average()` for comparison.
        loss: Small = fooled.
        steps: Updates per restart; 50 by default.
        restarts: How often to begin: the first time from `start`, then, with the rows that are not fooled yet,
            from random points; once by default.
        evaluations: The most evaluations of the K domains that a row may take, in place of `steps` and
            `restarts`, which follow from it: one restart for each 50 of them.
        batch_size: Rows at a time; chosen from the memory a row needs by default. It changes no result.
        seed: Of the random starts. Each row has its own stream: its result does not depend on the others.
        targeted: Whether the labels are classes to reach.
        quantize: Number of grey levels, 256 for 8-bit images: delta moves whole levels, and the models see what
            is read back after saving as PNG, `result.adversarial`. Images must be on the grid. x + delta is in
            [0, 1] and, for p = inf and 0, delta in the ball in exact arithmetic; for p = 1 and 2 the norm
            holds as in `LpBall.project`.
        start: delta_0, (B, ...), projected first; zero by default.
        keep_going: Whether a row that fools every domain goes on to the last step of its restart, for the
            iterate of lowest worst loss, which may fool models that were not asked too. Every row then takes
            all steps; a fooled one is not restarted.
        accumulate: Differentiate domain by domain (memory of one graph); decided from memory by default.
        precision: What models compute in during the search: "float32" (as they are), "bfloat16", "float16", or
            "auto", which is what a short measurement shows to be faster for each model, filters and images with
            channels last ("bfloat16+channels_last") among it; one word for all models, or one for each. All
            else is in full precision, and every verdict is that of the model as it is: a row that looks fooled
            is asked again before it counts. `result.precision` says what was taken.
        progress: Whether to show a bar with rows done and fooled, on stderr (needs rich).
        callback: Called with a `Progress` after every iterate.

    Returns:
        The best iterate of every row.

    Raises:
        TypeError, ValueError: An argument is unusable, or the models cannot be attacked; the message says why.
        KeyboardInterrupt: After Ctrl-C; its `result` is what was found so far, with `success` False for rows
            that were still at work: `result.completed` says which rows are done.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> models = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
        >>> problem = Ensemble(models, torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
        >>> result = attack(problem, LpBall(p=torch.inf, eps=0.3), steps=10)
        >>> bool((result.delta.abs() <= 0.3).all())
        True
        >>> bool((attack(problem, LpBall(p=2, eps=0.3), evaluations=20).num_forwards <= 20).all())
        True
    """
    rule = MinMax() if rule is None else rule
    check_budget(steps, restarts, evaluations)
    steps, restarts = 50 if steps is None else steps, 1 if restarts is None else restarts
    check_count("restarts", restarts, 1)
    check_arguments(problem, ball, rule, loss, steps, start, targeted, batch_size)
    if quantize is not None:
        Grid(quantize).check(problem.unperturbed())
        Grid(quantize).check_ball(ball.ball)
    batch_size, accumulate = inspect(problem, loss, targeted, batch_size, accumulate)
    precisions = choose_precisions(problem, precision)
    if evaluations is not None:
        steps, restarts = divided(evaluations, problem.samples, confirmed=precisions.low)
    with telling(progress, callback) as told:
        return attack_unchecked(
            problem,
            ball,
            rule=rule,
            loss=loss,
            steps=steps,
            restarts=restarts,
            evaluations=evaluations,
            batch_size=batch_size,
            seed=seed,
            targeted=targeted,
            quantize=quantize,
            start=start,
            keep_going=keep_going,
            accumulate=accumulate,
            precisions=precisions,
            callback=told,
        )


def attack_unchecked(
    problem: AbstractProblem,
    ball: AbstractSet,
    *,
    batch_size: int,
    rule: AbstractWeightRule | None = None,
    loss: Loss = cw_margin,
    steps: int = 50,
    restarts: int = 1,
    evaluations: int | None = None,
    seed: int = 0,
    targeted: bool = False,
    quantize: int | None = None,
    start: Tensor | None = None,
    keep_going: bool = False,
    accumulate: bool = False,
    precisions: Precisions | None = None,
    callback: Callback | None = None,
) -> AttackResult:
    """`attack` for callers who have checked the arguments and looked at the problem, see `inspection.look`.

    It warns of nothing. `batch_size` and `accumulate` are the caller's to choose, as with `Look.rows`, and so
    are steps and restarts: `evaluations` is a mere limit here, at which a row ends. What is not finite on the
    way, and verdicts that change when the models are asked again, are refused here too.
    """
    rule = MinMax() if rule is None else rule
    grid = None if quantize is None else Grid(quantize)
    precisions = precisions or Precisions.full(problem.models)
    budget = (restarts, evaluations)
    setup = Plan(len(problem), steps, targeted, batch_size, accumulate, rule, precisions, *budget)

    def solve(part: AbstractProblem, ball: LpBall, delta: Tensor, report: Report) -> AttackResult:
        ball, best = within_box(ball, part), Best.none(part, setup.steps)
        rows = torch.arange(len(part), device=delta.device)
        watch = Watch(loss, targeted=targeted)
        try:
            for restart in range(restarts):
                few, few_ball = part.take(rows), ball.take(rows)
                this = _Restart(rule, loss, setup, grid, restart, keep_going, report, watch)
                begin = delta
                if restart:
                    stream, wide = streams.START + restart, this.schedule.ball(few_ball, 0)
                    begin = random_point(wide, few.lower, few.upper, seed, few.rows, stream)
                this.go(few, few_ball, begin, rows, best)
                watch.check()
                rows = best.left(setup.most(part))
                if len(rows) == 0:
                    break
        except KeyboardInterrupt as stop:
            if best.begun:
                watch.check()
                best.completed[best.left(setup.most(part))] = False
                keep_partial(stop, best.result(part))
            raise
        return best.result(part)

    with full_precision(), gradients_enabled():
        if grid is not None:
            problem = problem.on_grid(grid.levels)
        return in_batches(problem, ball, start, loss, setup, solve, callback)


@final
@dataclass(frozen=True)
class _Restart:
    """One restart of some rows of a batch."""

    rule: AbstractWeightRule
    loss: Loss
    setup: Plan
    grid: Grid | None
    restart: int
    keep_going: bool
    report: Report
    watch: Watch

    @property
    def schedule(self) -> Schedule:
        """Restarts begin in larger balls."""
        return Schedule(self.setup.steps, restart=self.restart)

    def go(
        self, problem: AbstractProblem, ball: LpBall, delta: Tensor, rows: Tensor, best: Best
    ) -> None:
        """Restart from delta, (n, ...), updating `best` at `rows`, (n,), the positions of these n rows."""
        steps, schedule, most = self.setup.steps, self.schedule, self.setup.most(problem)
        log = History(*(delta.new_zeros(steps + 1, *problem.labels.shape) for _ in range(2)))
        here = torch.arange(len(problem), device=delta.device)  # rows that are not fooled yet
        gained = torch.zeros_like(here, dtype=torch.bool)
        weights = None
        try:
            for step_number in range(steps + 1):
                here_ball = schedule.ball(ball, step_number)
                shown = self._shown(delta, here_ball, problem)
                inside = here_ball is ball
                offered = inside and may_be_kept(problem, step_number, steps)
                point = self._evaluate(problem, shown, step_number, confirm=offered)
                self.watch.point(problem, shown, point, step=step_number)
                weights = self._weights(weights, point.losses)
                # Filled to the end: a row that leaves keeps its last values, others are overwritten.
                log.weights[step_number:, here] = weights
                log.losses[step_number:, here] = point.losses
                best.num_forwards[rows[here]] += point.spent
                if offered:
                    gained[here] |= best.offer(rows[here], shown, weights, point)
                self.report(self.restart, step_number, best.fooled)
                # What a random transform did once it may not do again: such rows go on to the end.
                left = ~point.fooled.all(dim=1) | problem.random | (not inside) | self.keep_going
                left &= best.num_forwards[rows[here]] <= most
                remaining = self.watch.count(left) if step_number < steps else 0
                if remaining == 0:
                    break
                gradient = point.gradient(weights)
                if remaining < len(left):
                    keep = left.nonzero().flatten()
                    problem, ball, here = problem.take(keep), ball.take(keep), here[keep]
                    delta, shown = delta[keep], shown[keep]
                    weights, gradient = weights[keep], gradient[keep]
                stream = self._stream(step_number)
                self.watch.gradient(problem, shown, gradient, stream=stream, step=step_number)
                length = schedule.length(step_number)
                entries = schedule.entries(ball, delta[0].numel(), step_number)
                next_ball = schedule.ball(ball, step_number + 1)
                delta = step(
                    next_ball, problem.lower, problem.upper, delta, gradient, length, entries
                )
        finally:
            gain = gained.nonzero().flatten()
            best.history.weights[:, rows[gain]] = log.weights[:, gain]
            best.history.losses[:, rows[gain]] = log.losses[:, gain]

    def _shown(self, delta: Tensor, ball: LpBall, problem: AbstractProblem) -> Tensor:
        """What is evaluated and returned: the iterate, in whole levels if so wanted."""
        if self.grid is None:
            return delta
        return self.grid.within(delta, ball, problem.lower, problem.upper)

    def _stream(self, step_number: int) -> int:
        return self.restart * (self.setup.steps + 1) + step_number

    def _evaluate(
        self, problem: AbstractProblem, delta: Tensor, step_number: int, *, confirm: bool
    ) -> Evaluation:
        return evaluate(
            problem,
            delta,
            self.loss,
            stream=self._stream(step_number),
            targeted=self.setup.targeted,
            accumulate=self.setup.accumulate,
            differentiate=step_number < self.setup.steps,
            precisions=self.setup.precisions,
            confirm=confirm,
        )

    def _weights(self, weights: Tensor | None, losses: Tensor) -> Tensor:
        return self.rule.init(losses) if weights is None else self.rule.update(weights, losses)
