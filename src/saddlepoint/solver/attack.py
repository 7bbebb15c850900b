"""The attack users should call: Algorithm 1 made strong and cheap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.bars import telling
from saddlepoint.behind import keeping_buffers
from saddlepoint.counts import check_count, check_seed
from saddlepoint.losses import Loss, cw_margin
from saddlepoint.precision import Precision, Precisions
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import AbstractSet, LpBall
from saddlepoint.rounding import full_precision
from saddlepoint.rules import AbstractWeightRule, MinMax
from saddlepoint.solver.attack_bar import attack_bar
from saddlepoint.solver.batching import Plan, Report, in_batches
from saddlepoint.solver.best import Best
from saddlepoint.solver.checks import check_arguments, check_budget
from saddlepoint.solver.domain_losses import gradients_enabled
from saddlepoint.solver.gradients import Gradient, check_gradient, exact_phases, phases_of
from saddlepoint.solver.grid import Grid
from saddlepoint.solver.inspection import inspect
from saddlepoint.solver.judging import judged
from saddlepoint.solver.lowering import choose_precisions
from saddlepoint.solver.restart import Restart
from saddlepoint.solver.result import AttackResult, Callback, keep_partial
from saddlepoint.solver.schedule import ALONE, SEVERAL, divided, restart_length
from saddlepoint.solver.steps import random_point, tightened
from saddlepoint.solver.watch import Watch

__all__ = ["attack", "attack_unchecked"]


def attack(
    problem: AbstractProblem,
    ball: AbstractSet,
    *,
    rule: AbstractWeightRule | None = None,
    loss: Loss | None = None,
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
    gradient: Gradient | None = None,
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
    the end, without gradient and not counted there: a model that then answers differently is refused. With
    any precision but float32 a row that looks fooled is asked in full precision at once, too, which is counted.

    Args:
        problem: B independent rows, K domains.
        ball: Where delta may be: an `LpBall`, or a `Patch`.
        rule: How the weights move; `MinMax()` by default, `Average()` for comparison.
        loss: Small = fooled; by default `cw_margin`, and with one domain `soft_margin`, except for random
            transforms and models without gradients.
        steps: Updates per restart; 50 by default.
        restarts: How often to begin: the first time from `start`, then, with the rows that are not fooled yet,
            from random points; once by default. With one domain, if neither is given, there are two restarts of
            25 steps; not for random transforms, and not with `keep_going`.
        evaluations: The most evaluations of the K domains that the search may spend on a row, in place of
            `steps` and `restarts`, which follow from it: one restart for each 50 of them, with one domain for
            each 25. The look at a few rows before it and the verdict at the end are not among them; with any
            precision but float32 some are left for asking again in full precision.
        batch_size: Rows at a time; chosen from the memory a row needs by default. It changes no result, beyond
            rounding.
        seed: Decides the random starts. Each row has its own stream: its result does not depend on the others.
        targeted: Whether the labels are classes to reach.
        quantize: Number of grey levels, 256 for 8-bit images: delta moves whole levels, and the models see what
            is read back after saving as PNG, `result.adversarial`. Images must be on the grid. x + delta is in
            [0, 1] and, for p = inf and 0, delta in the ball in exact arithmetic; for p = 1 and 2 the norm
            holds as in `LpBall.project`.
        start: delta_0, (B, ...), projected first; zero by default.
        keep_going: Whether a row that fools every domain goes on to the last step of its restart, for the
            iterate of lowest worst loss, which may fool models that were not asked too. Every row then takes
            all steps; a fooled one is not restarted.
        accumulate: Differentiate domain by domain: the memory of one graph, and of four gradients of all rows,
            as with more domains fewer rows than `batch_size` are taken at a time. Decided from memory by
            default.
        precision: What models compute in during the search: "float32" (as they are), "bfloat16", "float16", or
            "auto", which is what a short measurement shows to be faster for each model, filters and images with
            channels last ("bfloat16+channels_last") among it; one word for all models, or one for each. All
            else is in full precision, and every verdict is that of the model as it is: a row that looks fooled
            is asked again before it counts. `result.precision` says what was taken.
        gradient: How to do without gradients, for models that answer scores only, see `saddlepoint.scores`:
            `estimated(queries=5000)`, or `searched(queries=5000)` for random search alone; `steps`, `restarts`
            and `evaluations` are then left out. By default every domain is differentiated.
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
    check_budget(steps, restarts, evaluations)
    given = {"steps": steps, "restarts": restarts, "evaluations": evaluations}
    given["keep_going"] = keep_going or None
    check_gradient(gradient, problem, given, precision, rule)
    rule, seed = MinMax() if rule is None else rule, check_seed(seed)
    check_count("restarts", 1 if restarts is None else restarts, 1)
    asked = (SEVERAL.steps if steps is None else steps, start, targeted, batch_size)
    check_arguments(problem, ball, rule, cw_margin if loss is None else loss, *asked)
    single = gradient is None and problem.num_domains == 1 and not problem.random
    loss = (ALONE if single else SEVERAL).loss if loss is None else loss
    steps, restarts = _defaults(steps, restarts, short=single and not keep_going)
    if quantize is not None:
        Grid(quantize).check(problem.unperturbed())
        Grid(quantize).check_ball(ball.ball)
    with keeping_buffers(problem.models), telling(progress, callback, attack_bar) as told:
        batch_size, accumulate = inspect(problem, loss, targeted, batch_size, accumulate)
        precisions = choose_precisions(problem, precision)
        if evaluations is not None:
            length, draws = restart_length(problem), problem.samples
            steps, restarts = divided(evaluations, draws, length=length, precisions=precisions)
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
            gradient=gradient,
            callback=told,
        )


def _defaults(steps: int | None, restarts: int | None, *, short: bool) -> tuple[int, int]:
    """Fifty steps once, or, where restarts are short and nothing else is asked for, half as many twice."""
    if short and steps is None and restarts is None:
        return ALONE.steps, ALONE.restarts
    own = SEVERAL.steps if steps is None else steps
    return own, SEVERAL.restarts if restarts is None else restarts


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
    gradient: Gradient | None = None,
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
    queried = phases_of(gradient, problem, ball) if gradient else []
    longest = max((phase.steps for phase in queried), default=steps)
    budget = (len(queried) or restarts, evaluations, gradient is None and not keep_going)
    setup = Plan(len(problem), longest, targeted, batch_size, accumulate, rule, precisions, *budget)

    def solve(part: AbstractProblem, ball: LpBall, delta: Tensor, report: Report) -> AttackResult:
        (ball, part), best = tightened(ball, part), Best.none(part, setup.steps)
        rows = torch.arange(len(part), device=delta.device)
        watch = Watch(loss, targeted=targeted, precisions=precisions)
        try:
            for phase in queried or exact_phases(steps, restarts):
                some = len(rows) < len(part)
                few, few_ball = (part.take(rows), ball.take(rows)) if some else (part, ball)
                this = Restart(
                    rule, loss, setup, grid, phase, gradient, seed, keep_going, report, watch
                )
                begin = delta if phase.begin == "start" else best.delta[rows]
                if phase.begin == "random":
                    stream, wide = streams.START + phase.number, this.schedule.ball(few_ball, 0)
                    begin = random_point(wide, few.lower, few.upper, seed, few.rows, stream)
                this.go(few, few_ball, begin, rows, best)
                watch.check()
                rows = best.left(setup.most(part))
                if len(rows) == 0:
                    break
            return judged(part, best, loss, setup)
        except KeyboardInterrupt as stop:
            if best.begun:
                watch.check()
                # Of random transforms rows that are fooled go on too: another draw may not fool them.
                best.completed[rows if part.random else best.left(setup.most(part))] = False
                keep_partial(stop, judged(part, best, loss, setup))
            raise

    with full_precision(), gradients_enabled():
        problem = problem if grid is None else problem.on_grid(grid.levels)
        return in_batches(problem, ball, start, setup, solve, callback)
