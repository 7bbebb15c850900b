"""What counts in the end: verdicts on the candidates themselves, in full precision."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.losses import Loss
from saddlepoint.problems import AbstractProblem
from saddlepoint.solver.batching import Plan
from saddlepoint.solver.best import Best
from saddlepoint.solver.domain_losses import verdict_on
from saddlepoint.solver.result import AttackResult
from saddlepoint.solver.watch import Watch, check_again
from saddlepoint.streams import JUDGE

__all__ = ["judged"]


def judged(problem: AbstractProblem, best: Best, loss: Loss, setup: Plan) -> AttackResult:
    """The result of a batch: every row is asked again, without gradient and in full precision.

    A row that was searched in fewer bits and confirmed in all of them was asked again on the way: that was its
    verdict. Random transforms are judged on a draw that the attack has not seen.

    Raises:
        ValueError: An answer is not finite, or another one than on the way by more than rounding.
    """
    result, targeted = best.result(problem), setup.targeted
    rows = _not_asked_again(problem, best)
    if len(rows) == 0:
        assert best.kept.exact is not None
        return replace(result, losses=best.kept.exact)
    every = len(rows) == len(problem)
    few, delta = (problem, result.delta) if every else (problem.take(rows), result.delta[rows])
    stream = JUDGE if problem.random else 0
    found = verdict_on(few, delta, loss, stream=stream, targeted=targeted)
    watch = Watch(loss, targeted=targeted)
    watch.values(few, delta, found.finite, step=len(result.history.losses) - 1)
    watch.check()
    if not every:
        assert best.kept.exact is not None
        losses = best.kept.exact.index_copy(0, rows, found.losses)
        return replace(
            result, losses=losses, fooled=result.fooled.index_copy(0, rows, found.fooled)
        )
    if problem.random or setup.precisions.low:  # other answers than on the way are to be expected
        return replace(result, losses=found.losses, fooled=found.fooled)
    check_again(problem, found.logits, result.fooled, found.fooled)
    return replace(result, fooled=found.fooled)


def _not_asked_again(problem: AbstractProblem, best: Best) -> Tensor:
    """Positions of the rows that have no verdict yet, (n,)."""
    exact = best.kept.exact
    if exact is None or problem.random:
        return torch.arange(len(problem), device=problem.lower.device)
    return exact.isnan().any(dim=1).nonzero().flatten()
