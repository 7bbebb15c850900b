"""The two ways every experiment can be run: the paper's algorithm, and our attack on the same budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from saddlepoint.experiments.plan import METHODS, Method
from saddlepoint.losses import Loss
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall
from saddlepoint.solver import AttackResult, History, Progress, apgda, attack
from saddlepoint.solver.best import improves
from saddlepoint.weights import AbstractWeightRule

__all__ = ["Solve", "frugal_attack", "solver"]

Solve = Callable[[AbstractProblem, AbstractWeightRule, Callable[[Progress], None]], AttackResult]

_MAX_RESTARTS = 20


def solver(
    method: Method, ball: LpBall, loss: Loss, steps: int, step_size: float, seed: int = 0
) -> Solve:
    """A function that attacks a problem with a weight rule.

    Args:
        method: "apgda" or "attack".
        ball: Where perturbations may be; one radius for all rows.
        loss: Small = fooled.
        steps: T.
        step_size: alpha; used by "apgda" only.
        seed: Of random starts; used by "attack" only.
    """
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")

    def paper(
        problem: AbstractProblem, rule: AbstractWeightRule, callback: Callable[[Progress], None]
    ) -> AttackResult:
        return apgda(
            problem,
            ball,
            rule=rule,
            loss=loss,
            steps=steps,
            step_size=step_size,
            callback=callback,
        )

    def ours(
        problem: AbstractProblem, rule: AbstractWeightRule, callback: Callable[[Progress], None]
    ) -> AttackResult:
        return frugal_attack(
            problem, ball, rule=rule, loss=loss, steps=steps, seed=seed, callback=callback
        )

    return paper if method == "apgda" else ours


def frugal_attack(
    problem: AbstractProblem,
    ball: LpBall,
    *,
    rule: AbstractWeightRule,
    loss: Loss,
    steps: int,
    seed: int = 0,
    callback: Callable[[Progress], None] | None = None,
) -> AttackResult:
    """`attack`, with the evaluations that finished rows leave over spent on those that still stand.

    One descent for every row first. Rows that fall early leave evaluations unused; the rest of the
    (steps + 1) per row that Algorithm 1 takes goes into more descents of the rows that stand, the first from
    their best iterate, the others from random points; where it does not suffice for all of them, into one
    descent of those nearest to falling. All rows together never take more than Algorithm 1; what a row gets
    depends on the other rows of the call for that reason alone. Random problems use up their evaluations in
    the first descent.

    Args:
        problem: B rows, K domains.
        ball: Where perturbations may be; one radius for all rows.
        rule: How the weights move.
        loss: Small = fooled.
        steps: Updates per descent.
        seed: Of the random starts.
        callback: Called with a `Progress` after every iterate of the first descent.

    Returns:
        The best iterate of every row, and in `num_forwards` what each row took.

    Example:
        >>> import torch
        >>> from saddlepoint import Ensemble, MinMax, cw_margin
        >>> models = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
        >>> problem = Ensemble(models, torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
        >>> ball = LpBall(p=2, eps=0.1)
        >>> result = frugal_attack(problem, ball, rule=MinMax(), loss=cw_margin, steps=9)
        >>> int(result.num_forwards.sum()) <= 5 * 10
        True
    """
    first = attack(problem, ball, rule=rule, loss=loss, steps=steps, seed=seed, callback=callback)
    standing = (~first.fooled.all(dim=1)).nonzero().flatten()
    if problem.random or len(standing) == 0 or first.interrupted:
        return first
    descents = len(problem) - -(-int(first.num_forwards.sum()) // (steps + 1))
    if descents == 0:
        return first
    if descents < len(standing):
        nearest = first.losses[standing].amax(dim=1).argsort(stable=True)
        standing = standing[nearest[:descents]]
    restarts = min(_MAX_RESTARTS, descents // len(standing))
    again = attack(
        problem.take(standing),
        ball,
        rule=rule,
        loss=loss,
        steps=steps,
        restarts=restarts,
        seed=seed,
        start=first.delta[standing],
    )
    return _better(first, standing, again)


def _better(first: AttackResult, rows: Tensor, again: AttackResult) -> AttackResult:
    """`first` with the rows that `again` improves."""
    better = improves(again.fooled, again.losses, first.fooled[rows], first.losses[rows])
    gain = better.nonzero().flatten()
    target = rows[gain]
    counts, completed = first.num_forwards.clone(), first.completed.clone()
    counts[rows] += again.num_forwards
    completed[rows] &= again.completed
    return replace(
        first,
        delta=first.delta.index_copy(0, target, again.delta[gain]),
        weights=first.weights.index_copy(0, target, again.weights[gain]),
        losses=first.losses.index_copy(0, target, again.losses[gain]),
        fooled=_put(first.fooled, target, again.fooled[gain]),
        history=History(
            first.history.weights.index_copy(1, target, again.history.weights[:, gain]),
            first.history.losses.index_copy(1, target, again.history.losses[:, gain]),
        ),
        num_forwards=counts,
        completed=completed,
    )


def _put(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    table = table.clone()
    table[rows] = values
    return table
