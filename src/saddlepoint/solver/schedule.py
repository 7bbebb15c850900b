"""How the radius, the length of a step and the number of moving entries change over a restart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.losses import Loss, cw_margin, soft_margin
from saddlepoint.precision import FULL, Precisions
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall

__all__ = ["ALONE", "SEVERAL", "SIZES", "Schedule", "Usual", "divided", "restart_length"]

# For p = 1 and 2 every restart but the first begins in a ball that is larger than the true one by this factor.
# It shrinks to the true one over two thirds of the steps: an attack that begins where the loss is flat does not
# move, and one that comes from outside the true ball need not begin there. The next restart begins in a ball
# twice as large, the one after it in one four times as large, then the three sizes are repeated. Measured on
# networks trained against several threats: they learn to mask their gradients for the one size they were
# trained with, and no size is the best for all of them.
_GROWTH: dict[float, float] = {1: 5.0, 2: 3.0}
SIZES = 3
_SHRINKING = 2 / 3
# Evaluations of a restart (docs/CEILING.md). For budgets of 25 to 100 on two or three problems, of 250 on one,
# restarts of ten steps lost clearly, and no other length won on more than one. Larger budgets are not measured.
_RESTART = 50
# With one domain two restarts of half the length, on the soft margin, fooled no fewer than one of 50 on the
# margin on any network and norm that was measured, and won most for l1 and l2, where the second begins in a
# larger ball. Two on the margin fool a few more on three of twelve (docs/CEILING.md).
_ALONE = 25


@final
@dataclass(frozen=True)
class Usual:
    """What `attack`, in Python and on the command line, takes where nothing is said.

    Steps and restarts are those of an attack that is told neither; told one, it takes the other from `SEVERAL`.
    """

    loss: Loss
    steps: int
    restarts: int


SEVERAL = Usual(cw_margin, _RESTART, 1)
"""With several domains, and with random transforms and models without gradients."""
ALONE = Usual(soft_margin, _ALONE, 2)
"""With one domain; with `keep_going` the steps and restarts are those of several."""


def restart_length(problem: AbstractProblem) -> int:
    """Evaluations of a restart: 50, and for one domain, which needs no weights to settle, 25.

    Random transforms keep 50: their rows do not stop early.

    Example:
        >>> import torch
        >>> from saddlepoint.problems import Ensemble
        >>> model, x, y = torch.nn.Linear(4, 3).eval(), torch.rand(5, 4), torch.zeros(5, dtype=torch.long)
        >>> [restart_length(Ensemble([model] * number, x, y)) for number in (1, 2)]
        [25, 50]
    """
    return _ALONE if problem.num_domains == 1 and not problem.random else _RESTART


def divided(
    evaluations: int, draws: int = 1, *, length: int = _RESTART, precisions: Precisions = FULL
) -> tuple[int, int]:
    """Steps and restarts that take at most so many evaluations: restarts of one length.

    Args:
        evaluations: Of all domains, that a row may take.
        draws: Evaluations that an iterate takes: `samples` of the problem.
        length: Evaluations of a restart, at least, see `restart_length`.
        precisions: What models compute in. Unless they compute as they are, two evaluations of a restart are
            left, with which successes are confirmed in full precision; one, if there is no more.

    Returns:
        Steps of a restart, and the number of restarts.

    Raises:
        ValueError: They are too few for one iterate.

    Example:
        >>> [divided(number) for number in (25, 50, 100, 1000)]
        [(24, 1), (49, 1), (49, 2), (49, 20)]
        >>> [divided(number, length=25) for number in (25, 50, 100, 1000)]
        [(24, 1), (24, 2), (24, 4), (24, 40)]
    """
    confirmed = precisions.low
    restarts = max(1, evaluations // (length * draws))
    there = evaluations // (restarts * draws)
    iterates = max(1, there - 2) if confirmed else there
    if there < 1 + confirmed:
        least, why = draws, ""
        if confirmed:
            least, taken = 2 * draws, " and ".join(dict.fromkeys(precisions.names))
            why = f" in {taken} with a second look in full precision"
        raise ValueError(
            f"`evaluations` must be >= {least}, what one iterate takes here{why}, got {evaluations}."
        )
    return iterates - 1, restarts


@final
@dataclass(frozen=True)
class Schedule:
    """The plan of one restart of `steps` steps; iterate 0 is its start, iterate `steps` its end.

    Args:
        steps: How many steps there are.
        restart: Its number. Number 0 stays in the ball; for p = 1 and 2 the others begin in a larger one (as in
            l1-APGD, Croce & Hein, 2021), of three sizes in turn.

    Example:
        >>> plan = Schedule(steps=30, restart=1)
        >>> [plan.ball(LpBall(1, 2.0), number).eps for number in (0, 10, 20, 30)]
        [10.0, 6.0, 2.0, 2.0]
        >>> [round(plan.length(number), 2) for number in (0, 15, 30)]
        [2.0, 1.0, 0.0]
        >>> [Schedule(30, number).ball(LpBall(1, 2.0), 0).eps for number in range(5)]
        [2.0, 10.0, 20.0, 40.0, 10.0]
    """

    steps: int
    restart: int

    def ball(self, ball: LpBall, number: int) -> LpBall:
        """The ball that iterate `number` is in; the true one in the end."""
        most = 1.0
        if self.restart and self.steps and ball.p in _GROWTH:
            most = _GROWTH[ball.p] * 2 ** ((self.restart - 1) % SIZES)
        passed = min(1.0, number / max(_SHRINKING * self.steps, 1.0))
        growth = 1.0 + (most - 1.0) * (1.0 - passed)
        return ball if growth == 1.0 else ball._with_radius(ball.eps * growth)

    def length(self, number: int) -> float:
        """Length of the step from iterate `number`, in radii, which falls to almost none along a cosine.

        The first restart begins with one and a half: half as many evaluations as with two where domains are
        easy. The others begin with two, to get further away from where the first one ended.
        """
        longest = 2.0 if self.restart else 1.5
        return longest * (1 + math.cos(math.pi * number / self.steps)) / 2

    def entries(self, ball: LpBall, delta: Tensor, number: int) -> int | Tensor | None:
        """How many entries of a row move for p = 1 from delta, (B, ...): one number or (B,); None for other p.

        Small changes of many entries at first, and large ones of few in the end, which is what an l1 ball has
        room for. How few depends on the network, so that the first restart asks delta: it begins with a
        twentieth of all entries, and goes on with two thirds of those that the projection has left (as in
        l1-APGD, Croce & Hein, 2021). The others, in balls that shrink, have a plan, see `most_entries`.
        """
        if ball.p != 1:
            return None
        size, left = delta[0].numel(), None
        if number and not self.restart:
            left = (_moved(delta) / 1.5).long()
        if not isinstance(ball.eps, Tensor):
            planned = self.most_entries(ball.eps, size, number)
            return planned if left is None else left.clamp(_fewest(ball.eps, size), planned)
        few = (ball.eps.double() / 2).ceil().clamp(1, size)
        most = few.clamp(min=size // self._share)
        counts: Tensor = (most * (few / most) ** self._passed(number)).round().long()
        return counts if left is None else left.clamp(few.long(), counts)

    def most_entries(self, eps: float, size: int, number: int) -> int:
        """What no row with `size` entries exceeds in a ball of this radius.

        Restarts that begin in a larger ball have a plan, and this is it: a tenth of all entries at first, half
        as many as the radius in the end, on a logarithmic scale.
        """
        few = _fewest(eps, size)
        most = max(few, size // self._share)
        return round(most * math.pow(few / most, self._passed(number)))

    @property
    def _share(self) -> int:
        return 10 if self.restart else 20

    def _passed(self, number: int) -> float:
        return number / max(self.steps - 1, 1) if self.restart else 0.0


def _moved(delta: Tensor) -> Tensor:
    """How many entries of a row are not zero, (B,)."""
    rows = delta.flatten(1)  # compared into numbers, which takes a fifth of comparing into truths
    return torch.ne(rows, 0, out=torch.empty_like(rows)).sum(dim=1, dtype=torch.float32)


def _fewest(eps: float, size: int) -> int:
    """Entries that an l1 ball has room for: half as many as the radius, at least one."""
    return min(max(math.ceil(eps / 2), 1), size)
