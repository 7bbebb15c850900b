"""The best iterate of every row, kept on the way: for `attack`, and for `apgda` if so wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem
from saddlepoint.problems.inputs import picked
from saddlepoint.solver.domain_losses import Evaluation
from saddlepoint.solver.result import AttackResult, History

__all__ = ["Best", "Mark", "improves", "may_be_kept"]


# Where a question costs nothing: an accelerator would have to stop for it.
_ASKED = ("cpu",)


@final
class Mark(NamedTuple):
    """What an iterate has to beat.

    Attributes:
        hits: Domains that the best one so far fools, (n,).
        worst: What the worst loss must be below at as many of them, (n,): that of the best one so far, less
            what rounding explains. An iterate visited again differs by rounding alone and is not better.
    """

    hits: Tensor
    worst: Tensor

    @staticmethod
    def of(fooled: Tensor, losses: Tensor) -> Mark:
        """That of an iterate, of which fooled, boolean, and losses are (n, K)."""
        worst = losses.amax(dim=1)
        rounding = 32 * torch.finfo(worst.dtype).eps * (1 + worst.abs().clamp_max(1e30))
        return Mark(fooled.sum(dim=1), worst - rounding)


def improves(fooled: Tensor, losses: Tensor, before: Mark) -> Tensor:
    """Whether an iterate is better than another: more domains fooled, or as many at a lower worst loss.

    Args:
        fooled: Of the iterate, (n, K), boolean.
        losses: Of the iterate, (n, K).
        before: Of the best one so far.

    Returns:
        (n,), boolean.

    Example:
        >>> one, two = torch.tensor([[True, False]]), torch.tensor([[True, True]])
        >>> improves(two, torch.zeros(1, 2), Mark.of(one, torch.zeros(1, 2))).item()
        True
    """
    hits, worst = fooled.sum(dim=1), losses.amax(dim=1)
    return (hits > before.hits) | ((hits == before.hits) & (worst < before.worst))


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
    """The best iterates; they are never written into, see `Best.offer`. `confirmed` is that of `Evaluation`."""

    delta: Tensor
    weights: Tensor
    losses: Tensor
    fooled: Tensor
    confirmed: Tensor | None

    @cached_property
    def mark(self) -> Mark:
        """What the next iterate has to beat; as often as nothing is better it stays what it is."""
        return Mark.of(self.fooled, self.losses)


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
                confirmed=torch.zeros_like(problem.rows, dtype=torch.bool),
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
        if isinstance(number, int) and not number:
            return
        if rows.shape == self.num_forwards.shape:
            self.num_forwards += number
        else:
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
        kept, every = self.kept, rows.shape[0] == self.kept.losses.shape[0]  # rows are in order

        def here(mine: Tensor) -> Tensor:
            return mine if every else mine[rows]

        mark = Mark(*map(here, kept.mark))
        better = improves(point.fooled, point.losses, mark)
        few: Tensor | None = None
        if better.device.type in _ASKED:
            few = better.nonzero().flatten()
            if few.shape[0] == 0:
                return better
            if few.shape[0] == kept.losses.shape[0]:
                # Iterates are nobody else's; rules may write into their weights.
                self.take(delta, weights.to(kept.weights), point)
                return better

        def taken(mine: Tensor, new: Tensor) -> Tensor:
            if few is not None:
                where = few if every else rows[few]
                return mine.index_copy(0, where, picked(new, few).to(mine))
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
            confirmed=None
            if kept.confirmed is None or point.confirmed is None
            else taken(kept.confirmed, point.confirmed),
        )
        return better

    def take(self, delta: Tensor, weights: Tensor, point: Evaluation) -> None:
        """Take over an iterate of all rows, better or not; in one assignment, as in `offer`."""
        self.kept = _Kept(delta, weights.clone(), point.losses, point.fooled, point.confirmed)

    def result(self, problem: AbstractProblem) -> AttackResult:
        """The frozen form, with the images of the problem."""
        return AttackResult(
            adversarial=problem.images(self.delta).clamp(0, 1),
            history=self.history,
            num_forwards=self.num_forwards,
            completed=self.completed,
            delta=self.kept.delta,
            weights=self.kept.weights,
            losses=self.kept.losses,
            fooled=self.kept.fooled,
        )
