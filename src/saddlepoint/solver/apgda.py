"""Algorithm 1 of the paper, to the letter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from saddlepoint.bars import telling
from saddlepoint.behind import keeping_buffers
from saddlepoint.directions import Direction, raw
from saddlepoint.losses import Loss, cw_margin
from saddlepoint.precision import Precision, Precisions
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import AbstractSet, LpBall
from saddlepoint.rounding import full_precision
from saddlepoint.rules import AbstractWeightRule, MinMax
from saddlepoint.solver.attack_bar import attack_bar
from saddlepoint.solver.batching import Plan, Report, in_batches
from saddlepoint.solver.best import Best, may_be_kept
from saddlepoint.solver.checks import check_arguments, check_differentiable
from saddlepoint.solver.domain_losses import Evaluation, evaluate, gradients_enabled
from saddlepoint.solver.inspection import inspect
from saddlepoint.solver.judging import judged
from saddlepoint.solver.lowering import choose_precisions
from saddlepoint.solver.result import AttackResult, Callback, History, keep_partial
from saddlepoint.solver.watch import Watch

__all__ = ["Keep", "apgda", "apgda_unchecked"]

Keep = Literal["last", "best"]
"""Which iterate is the result."""


def apgda(
    problem: AbstractProblem,
    ball: AbstractSet,
    *,
    rule: AbstractWeightRule | None = None,
    loss: Loss = cw_margin,
    steps: int = 50,
    step_size: float = 0.25,
    direction: Direction = raw,
    momentum: float = 0.0,
    keep: Keep = "last",
    start: Tensor | None = None,
    targeted: bool = False,
    batch_size: int | None = None,
    accumulate: bool | None = None,
    precision: Precision | Sequence[Precision] = "float32",
    progress: bool = False,
    callback: Callback | None = None,
) -> AttackResult:
    """Alternating projected gradient descent-ascent: the paper's attack.

        delta_t = proj( delta_{t-1} - step_size * direction( grad_delta sum_i w_{t-1,i} F_i(delta_{t-1}) ) )
        w_t     = rule.update( w_{t-1}, F(delta_t) )

    delta_t is found with w_{t-1}, and w_t with the losses at delta_t, which are also what the next step
    differentiates: steps + 1 forward and `steps` backward passes over the K domains, not twice as many. The
    verdict at the end asks once more, without gradient, which `num_forwards` does not count.

    Args:
        problem: B independent rows, K domains.
        ball: Where delta may be, an `LpBall` or a `Patch`; projections onto ball ∩ box are exact.
        rule: How the weights move. `MinMax()` by default; `Average()` gives plain PGD on the mean loss.
        loss: Small = fooled.
        steps: T, the number of updates.
        step_size: alpha in the paper.
        direction: What the gradient becomes: `raw` in the paper; `sign`, `unit_l2`, `SparseL1(n)`.
        momentum: How much of the gradients before is kept: with m > 0 the direction is that of
            v_t = m v_{t-1} + g_t / mean |g_t|, with `sign` that of MI-FGSM (Dong et al., 2018). 0 in the
            paper.
        keep: Which iterate of a row is its result: the "last" in the paper; the "best" as in `attack`, the one
            that fools most domains, then of lowest worst loss. Of random problems the best is the last one, or
            the start where that is better.
        start: delta_0, (B, ...), projected first; zero by default.
        targeted: Whether the labels are classes to reach.
        batch_size: Rows at a time; chosen from the memory a row needs by default. It changes no result,
            beyond rounding.
        accumulate: Differentiate domain by domain: the memory of one graph, and of four gradients of all rows,
            as with more domains fewer rows than `batch_size` are taken at a time. Decided from memory by
            default.
        precision: What models compute in during the search: "float32" (as they are), "bfloat16", "float16", or
            "auto", which is what a short measurement shows to be faster for each model, filters and images with
            channels last ("bfloat16+channels_last") among it; one word for all models, or one for each. All
            else is in full precision, and every verdict is that of the model as it is: a row that looks fooled
            is asked again before it counts. `result.precision` says what was taken.
        progress: Whether to show a bar with rows done and fooled, on stderr (needs rich).
        callback: Called with a `Progress` after every iterate.

    Returns:
        The last iterate delta_T, or the best, with its weights, losses and verdicts, and the history of all.

    Raises:
        TypeError, ValueError: An argument is unusable, or the models cannot be attacked; the message says why.
        KeyboardInterrupt: After Ctrl-C; its `result` is what was found so far: of the batch under way the
            iterate of that moment, or the best one, with its verdict. `result.completed` says which rows are
            done: of that batch those whose best iterate fools every domain.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> models = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
        >>> problem = Ensemble(models, torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
        >>> result = apgda(problem, LpBall(p=2, eps=0.5), steps=10)
        >>> result.delta.shape, result.weights.shape, result.num_forwards[0].item()
        (torch.Size([5, 4]), torch.Size([5, 2]), 11)

    Reference: Wang et al., NeurIPS 2021, Algorithm 1.
    """
    rule = MinMax() if rule is None else rule
    check_differentiable(problem)
    if not step_size > 0:
        raise ValueError(f"`step_size` must be positive, got {step_size}.")
    if not 0 <= momentum < math.inf:
        raise ValueError(f"`momentum` must be >= 0 and finite, got {momentum}.")
    if keep not in ("last", "best"):
        raise ValueError(f"`keep` must be 'last' or 'best', got {keep!r}.")
    check_arguments(problem, ball, rule, loss, steps, start, targeted, batch_size)
    with keeping_buffers(problem.models), telling(progress, callback, attack_bar) as told:
        batch_size, accumulate = inspect(problem, loss, targeted, batch_size, accumulate)
        precisions = choose_precisions(problem, precision)
        return apgda_unchecked(
            problem,
            ball,
            rule=rule,
            loss=loss,
            steps=steps,
            step_size=step_size,
            direction=direction,
            momentum=momentum,
            keep=keep,
            start=start,
            targeted=targeted,
            batch_size=batch_size,
            accumulate=accumulate,
            precisions=precisions,
            callback=told,
        )


def apgda_unchecked(
    problem: AbstractProblem,
    ball: AbstractSet,
    *,
    batch_size: int,
    rule: AbstractWeightRule | None = None,
    loss: Loss = cw_margin,
    steps: int = 50,
    step_size: float = 0.25,
    direction: Direction = raw,
    momentum: float = 0.0,
    keep: Keep = "last",
    start: Tensor | None = None,
    targeted: bool = False,
    accumulate: bool = False,
    precisions: Precisions | None = None,
    callback: Callback | None = None,
) -> AttackResult:
    """`apgda` for callers who have checked the arguments and looked at the problem, see `attack_unchecked`."""
    rule = MinMax() if rule is None else rule
    precisions = precisions or Precisions.full(problem.models)
    setup = Plan(len(problem), steps, targeted, batch_size, accumulate, rule, precisions)

    def solve(part: AbstractProblem, ball: LpBall, delta: Tensor, report: Report) -> AttackResult:
        towards = _Momentum(direction, momentum) if momentum else direction
        return _apgda(part, ball, rule, loss, step_size, towards, keep, delta, setup, report)

    with full_precision(), gradients_enabled():
        return in_batches(problem, ball, start, setup, solve, callback)


class _Momentum:
    """The direction of gradients that are remembered, in one pass over the steps of a batch."""

    def __init__(self, direction: Direction, momentum: float) -> None:
        self._direction, self._momentum = direction, momentum
        self._velocity: Tensor | float = 0.0

    def __call__(self, gradient: Tensor) -> Tensor:
        size = gradient.abs().flatten(1).mean(dim=1).reshape(-1, *(1 for _ in gradient.shape[1:]))
        # A row whose gradient is zero goes on as before.
        unit = gradient / size.clamp_min(torch.finfo(gradient.dtype).tiny)
        self._velocity = self._momentum * self._velocity + unit
        return self._direction(self._velocity)


def _apgda(
    problem: AbstractProblem,
    ball: LpBall,
    rule: AbstractWeightRule,
    loss: Loss,
    step_size: float,
    direction: Direction,
    keep: Keep,
    delta: Tensor,
    setup: Plan,
    report: Report,
) -> AttackResult:
    options: Any = {"targeted": setup.targeted, "accumulate": setup.accumulate}
    options |= {"precisions": setup.precisions, "confirm": keep == "best"}
    watch = Watch(loss, targeted=setup.targeted, precisions=setup.precisions)
    best, history = Best.none(problem, setup.steps), list[tuple[Tensor, Tensor]]()
    everywhere = torch.arange(len(problem), device=delta.device)

    def note(step: int, weights: Tensor, point: Evaluation) -> None:
        best.spend(everywhere, point.spent)
        if keep == "last":
            best.take(delta, weights, point)
        elif may_be_kept(problem, step, setup.steps):
            best.offer(everywhere, delta, weights, point)
        history.append((weights.clone(), point.losses))  # rules may write into their weights

    def found() -> AttackResult:
        told = history + history[-1:] * (setup.steps + 1 - len(history))
        best.history = History(*(torch.stack(series) for series in zip(*told, strict=True)))
        return judged(problem, best, loss, setup)

    try:
        point = evaluate(problem, delta, loss, differentiate=setup.steps > 0, **options)
        watch.point(problem, delta, point)
        weights = rule.init(point.losses)
        note(0, weights, point)
        for step in range(1, setup.steps + 1):
            gradient = point.gradient(weights)
            watch.gradient(problem, delta, gradient, stream=step - 1, step=step - 1)
            move = step_size * direction(gradient)
            delta = ball._project(delta - move, problem.lower, problem.upper)
            more = step < setup.steps
            point = evaluate(problem, delta, loss, stream=step, differentiate=more, **options)
            watch.point(problem, delta, point, step=step)
            weights = rule.update(weights, point.losses)
            note(step, weights, point)
            report(0, step, best.fooled)
        watch.check()
        return found()
    except KeyboardInterrupt as stop:
        if history and best.begun:
            watch.check()
            # The best iterate of a row that is fooled stays so; the last one and another draw are to come.
            best.completed &= best.fooled.all(dim=1) & (keep == "best" and not problem.random)
            keep_partial(stop, found())
        raise
