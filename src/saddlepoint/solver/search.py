"""Random search: what can be found without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.losses import Loss, cw_margin
from saddlepoint.problems import AbstractProblem, Ensemble, Model
from saddlepoint.projections import LpBall
from saddlepoint.solver.asking import ask
from saddlepoint.solver.proposals import Squares, begin, exchange, squares

__all__ = ["Objective", "Patience", "Search", "objective", "random_search"]


_DRAWN = 32  # proposals whose squares are drawn at once

Objective = Literal["soft", "worst", "clipped"]
"""What random search lowers, see `objective`."""

Patience = tuple[tuple[int, float], ...]
"""When rows are given up, see `Search`."""


def objective(losses: Tensor, kind: Objective = "soft") -> Tensor:
    """What the search lowers, (n,), of losses (n, K).

    "soft" is the largest loss made smooth, log sum exp: the inner maximum over weights with the entropy in
    place of the squares, max_w sum_k w_k F_k + H(w). "worst" is the largest loss itself, and "clipped" the sum
    of the losses that are above zero. "soft" fooled the most where they were measured
    (docs/scores.md).

    Example:
        >>> losses = torch.tensor([[3.0, 1.0], [0.5, -1.0]])
        >>> objective(losses), objective(losses, "worst"), objective(losses, "clipped")
        (tensor([3.1269, 0.7014]), tensor([3.0000, 0.5000]), tensor([4.0000, 0.5000]))
    """
    if kind == "worst":
        return losses.amax(dim=1)
    return losses.logsumexp(dim=1) if kind == "soft" else losses.clamp_min(0).sum(dim=1)


@final
@dataclass
class _Open:
    """Rows that are still looked at, n of B.

    Attributes:
        rows: Which they are, (n,).
        problem, ball: Of these rows.
        delta: The best of each so far, (n, ...).
        value: The objective there, (n,).
        first: What it was at the first proposal, (n,).
        block: Numbers of the proposals whose squares are drawn.
        squares: Those.
    """

    rows: Tensor
    problem: AbstractProblem
    ball: LpBall
    delta: Tensor
    value: Tensor
    first: Tensor
    block: range = range(0)
    squares: Squares | None = None

    def keep(self, stay: Tensor) -> None:
        """Go on with some rows only; `stay` is boolean, (n,)."""
        few = stay.nonzero().flatten()
        self.problem, self.ball = self.problem.take(few), self.ball.take(few)
        tables = (self.rows, self.delta, self.value, self.first)
        self.rows, self.delta, self.value, self.first = (table[few] for table in tables)
        self.squares = self.squares and self.squares.take(few)


@final
@dataclass(frozen=True)
class Search:
    """How to look.

    Attributes:
        loss: Small = fooled.
        total: Proposals in all: squares shrink on the way to the last.
        seed: Of the rows' streams.
        stream: Which search of the rows.
        targeted: Whether labels are classes to reach.
        patience: Pairs of a number of proposals and a share: a row whose value has not fallen to this share of
            what it was at the first is given up after so many.
        kind: What falls, see `objective`.
        shown: What is made of a proposal before anybody sees it.
    """

    loss: Loss
    total: int
    seed: int = 0
    stream: int = 0
    targeted: bool = False
    patience: Patience = ()
    kind: Objective = "soft"
    shown: Callable[[Tensor, LpBall, AbstractProblem], Tensor] | None = None

    def go(
        self,
        problem: AbstractProblem,
        ball: LpBall,
        delta: Tensor,
        losses: Tensor,
        numbers: range,
        finite: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Try proposals by number and keep what lowers `objective`; a row that fools all domains is done.

        Proposal 0 is a point to begin at and is kept whatever it is like.

        Args:
            problem: n rows, K domains.
            ball: Where delta may be.
            delta: Where to go on, (n, ...).
            losses: F(delta), (n, K).
            numbers: Of the proposals, below `total`.
            finite: Where answers that are not finite are noted, (n, K), boolean.

        Returns:
            Where each row has come, (n, ...), which fools every domain if any proposal did; and how many
            proposals the domains were shown, (n,).
        """
        found, spent = delta.clone(), torch.zeros_like(problem.rows)
        value, domains = objective(losses, self.kind), range(problem.num_domains)
        rows = torch.arange(len(problem), device=delta.device)
        here, patience = _Open(rows, problem, ball, delta, value, value), dict(self.patience)

        def leave(gone: Tensor, shown: int) -> None:
            found[here.rows], spent[here.rows] = here.delta, shown
            here.keep(~gone)

        for shown, number in enumerate(numbers):
            if number in patience:
                leave(~(here.value <= here.first * patience[number]), shown)
            if not len(here.rows):
                return found, spent
            trial = self._trial(here, number, numbers.stop)
            answers = ask(
                here.problem, trial.unsqueeze(1), self.loss, domains, targeted=self.targeted
            )
            new = objective(answers.losses.squeeze(1), self.kind)
            hit = answers.fooled.all(dim=2).squeeze(1)
            # What fools everybody is better than all that does not, also where losses say otherwise.
            taken = (new < here.value) | hit | (number == 0)
            where = taken.reshape(-1, *(1 for _ in trial.shape[1:]))
            here.delta = torch.where(where, trial, here.delta)
            here.value = torch.where(taken, new, here.value)
            if number == 0:
                here.first = here.value
            if finite is not None:
                finite[here.rows] &= answers.finite.squeeze(1)
            if bool(hit.any()):
                leave(hit, shown + 1)
        found[here.rows], spent[here.rows] = here.delta, len(numbers)
        return found, spent

    def _trial(self, here: _Open, number: int, stop: int) -> Tensor:
        """The next proposal, (n, ...), of those before `stop`."""
        problem, ball, delta, seed = here.problem, here.ball, here.delta, self.seed
        if number == 0:
            trial = begin(problem, ball, delta, seed, self._stream(number))
        elif ball.p == 0:
            share = self._share(number)
            trial = exchange(problem, ball, delta, share, seed, self._stream(number))
        else:
            if here.squares is None or number not in here.block:
                here.block = range(number, min(number + _DRAWN, stop))
                numbers, shares = map(self._stream, here.block), map(self._share, here.block)
                here.squares = squares(problem, ball, list(shares), seed, list(numbers))
            trial = here.squares.propose(number - here.block.start, problem, ball, delta)
        return trial if self.shown is None else self.shown(trial, ball, problem)

    def _share(self, number: int) -> float:
        """Of the area that the square of a proposal takes, or of the changed entries that are exchanged."""
        return float(0.4 * 200 ** -math.sqrt(number / max(self.total, 1)))

    def _stream(self, number: int) -> int:
        return streams.SEARCH + (self.stream << 32) + number


def random_search(
    model: Model,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    queries: int,
    seed: int,
    rows: Tensor,
    patience: Patience = (),
) -> Tensor:
    """Look for misclassified images in a linf ball by setting squares to +-eps at random.

    A form of Square Attack (Andriushchenko et al., ECCV 2020). It starts from stripes; what lowers the margin
    is kept; squares shrink from four tenths of the image to a few hundredths of that, and none is proposed that
    changes nothing. It needs no gradient, so that flat or jagged losses do not stop it. A row's result does not
    depend on the others.

    Args:
        model: From images to logits, (n, C); called without gradients.
        x: Images in [0, 1], (B, ...): the last two axes are height and width, of (B, size) the last is width.
        y: Labels, (B,).
        eps: Radius.
        queries: Images of a row that may be shown to the model; a row that is fooled stops.
        seed: Of the rows' streams.
        rows: Row numbers, (B,).
        patience: Pairs of a number of queries and a share: a row whose margin has not fallen to this share of
            what it was at the start is given up after so many.

    Returns:
        The image of lowest margin of every row, (B, ...), the first misclassified one if there is any.

    Example:
        >>> model, x = torch.nn.Linear(4, 2).eval(), torch.rand(3, 4)
        >>> y = model(x).argmax(dim=1)
        >>> found = random_search(model, x, y, 0.3, queries=20, seed=0, rows=torch.arange(3))
        >>> bool(((found - x).abs() <= 0.3 + 1e-6).all())
        True
    """
    problem = Ensemble([model], x, y)
    problem.rows = rows.to(x.device)
    search = Search(cw_margin, queries, seed, patience=patience)
    unknown = torch.zeros((len(x), 1), dtype=x.dtype, device=x.device)
    found, _ = search.go(problem, LpBall(math.inf, eps), problem.zeros(), unknown, range(queries))
    return problem.images(found).clamp(0, 1)
