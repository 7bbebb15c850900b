"""The best iterate of every row, kept on the way: for `attack`, and for `apgda` if so wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem
from saddlepoint.solver.evaluate import Evaluation
from saddlepoint.solver.result import AttackResult, History

__all__ = ["Best", "improves", "may_be_kept"]


def improves(
    fooled: Tensor, losses: Tensor, fooled_before: Tensor, losses_before: Tensor
) -> Tensor:
    """Whether an iterate is better than another: more domains fooled, or as many at a lower worst loss.

    Args:
        fooled: Of the iterate, (n, K), boolean.
        losses: Of the iterate, (n, K).
        fooled_before: Of the best one so far, (n, K), boolean.
        losses_before: Of the best one so far, (n, K).

    Returns:
        (n,), boolean. An iterate visited again differs by rounding alone and is not better.

    Example:
        >>> one, two = torch.tensor([[True, False]]), torch.tensor([[True, True]])
        >>> improves(two, torch.zeros(1, 2), one, torch.zeros(1, 2)).item()
        True
    """
    hits, hits_before = fooled.sum(dim=1), fooled_before.sum(dim=1)
    worst, worst_before = losses.amax(dim=1), losses_before.amax(dim=1)
    rounding = 32 * torch.finfo(worst.dtype).eps * (1 + worst_before.abs().clamp_max(1e30))
    return (hits > hits_before) | ((hits == hits_before) & (worst < worst_before - rounding))


def may_be_kept(problem: AbstractProblem, step: int, steps: int) -> bool:
    """Whether iterate `step` of `steps` may be offered to `Best`.

    One lucky draw would decide which iterate of a random problem is best: only its last is taken, and its first
    in case that the last is no better or the attack is stopped.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> problem = Ensemble([torch.nn.Linear(4, 3).eval()], torch.rand(1, 4), torch.tensor([0]))
        >>> may_be_kept(problem, step=3, steps=5)
        True
    """
    return not problem.random or step in (0, steps)


@final
@dataclass(frozen=True)
class _Kept:
    """The best iterates; they are never written into, see `Best.offer`."""

    delta: Tensor
    weights: Tensor
    losses: Tensor
    fooled: Tensor


@final
@dataclass
class Best:
    """The best iterate of every row of a batch so far; what it holds is called as in `AttackResult`.

    For `apgda` it may be the last one instead, see `take`.
    """

    kept: _Kept
    history: History
    num_forwards: Tensor
    completed: Tensor

    @staticmethod
    def none(problem: AbstractProblem, steps: int) -> Best:
        """Nothing found yet: every loss is infinite."""
        shape = problem.labels.shape
        losses = torch.full_like(problem.labels, math.inf, dtype=problem.lower.dtype)
        return Best(
            kept=_Kept(
                delta=problem.zeros(),
                weights=torch.full_like(losses, 1.0 / shape[1]),
                losses=losses,
                fooled=torch.zeros_like(losses, dtype=torch.bool),
            ),
            history=History(*(losses.new_zeros(steps + 1, *shape) for _ in range(2))),
            num_forwards=torch.zeros_like(problem.rows),
            completed=torch.ones_like(problem.rows, dtype=torch.bool),
        )

    @property
    def delta(self) -> Tensor:
        """The best iterates, (B, ...)."""
        return self.kept.delta

    @property
    def fooled(self) -> Tensor:
        """Their verdicts, (B, K), boolean."""
        return self.kept.fooled

    @property
    def begun(self) -> bool:
        """Whether every row has an iterate: until then nothing is known, not even of delta = 0."""
        return bool(self.kept.losses.isfinite().all())

    def left(self, most: float = math.inf) -> Tensor:
        """Positions of the rows that do not fool every domain yet and took no more than `most`, (n,)."""
        return (~self.fooled.all(dim=1) & (self.num_forwards <= most)).nonzero().flatten()

    def spend(self, rows: Tensor, number: int | Tensor) -> None:
        """Count evaluations of rows, (n,), in ascending order: one number, or (n,)."""
        if len(rows) == len(self.num_forwards):
            self.num_forwards += number
        elif not isinstance(number, int) or number:
            self.num_forwards[rows] += number

    def offer(self, rows: Tensor, delta: Tensor, weights: Tensor, point: Evaluation) -> Tensor:
        """Take over an iterate where it is better, see `improves`.

        Args:
            rows: Positions of the n rows in the batch, (n,), in ascending order.
            delta: The iterate, (n, ...).
            weights: Its weights, (n, K).
            point: Its evaluation.

        Returns:
            Where it was taken, (n,), boolean.
        """
        kept, every = self.kept, len(rows) == len(self.kept.losses)  # rows are in order

        def here(mine: Tensor) -> Tensor:
            return mine if every else mine[rows]

        better = improves(point.fooled, point.losses, here(kept.fooled), here(kept.losses))

        def taken(mine: Tensor, new: Tensor) -> Tensor:
            # Everywhere instead of at the chosen rows: to know them, an accelerator would have to stop.
            wide = better.reshape(-1, *(1 for _ in new.shape[1:]))
            chosen = torch.where(wide, new.to(mine), here(mine))
            return chosen if every else mine.index_copy(0, rows, chosen)

        # In one assignment: Ctrl-C comes between any two lines, and must not leave the delta of one iterate
        # with the verdict of another.
        self.kept = _Kept(
            delta=taken(kept.delta, delta),
            weights=taken(kept.weights, weights),
            losses=taken(kept.losses, point.losses),
            fooled=taken(kept.fooled, point.fooled),
        )
        return better

    def take(self, delta: Tensor, weights: Tensor, point: Evaluation) -> None:
        """Take over an iterate of all rows, better or not; in one assignment, as in `offer`."""
        self.kept = _Kept(delta, weights.clone(), point.losses, point.fooled)

    def result(self, problem: AbstractProblem) -> AttackResult:
        """The frozen form, with the images of the problem."""
        return AttackResult(
            adversarial=problem.images(self.delta).clamp(0, 1),
            history=self.history,
            num_forwards=self.num_forwards,
            completed=self.completed,
            **vars(self.kept),
        )
