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

    A row that was searched in fewer bits and confirmed in all of them has to answer the same now: of a model
    that answers by chance the search would find the best of many answers. Random transforms are judged on a
    draw that the attack has not seen.

    Raises:
        ValueError: An answer is not finite, or another one than on the way by more than rounding.
    """
    result, targeted = best.result(problem), setup.targeted
    stream = JUDGE if problem.random else 0
    found = verdict_on(problem, result.delta, loss, stream=stream, targeted=targeted)
    watch = Watch(loss, targeted=targeted)
    watch.values(problem, result.delta, found.finite, step=len(result.history.losses) - 1)
    watch.check()
    if problem.random:  # other answers than on the way are to be expected
        return replace(result, losses=found.losses, fooled=found.fooled)
    if setup.precisions.low:
        known = _confirmed_in(best, found.fooled)
        check_again(problem, found.logits, result.fooled.where(known, found.fooled), found.fooled)
        return replace(result, losses=found.losses, fooled=found.fooled)
    check_again(problem, found.logits, result.fooled, found.fooled)
    return replace(result, fooled=found.fooled)


def _confirmed_in(best: Best, like: Tensor) -> Tensor:
    """Rows that were asked again in full precision on the way, (B, 1), boolean."""
    if best.kept.confirmed is None:
        return torch.zeros_like(like[:, :1])
    return best.kept.confirmed.unsqueeze(1)
