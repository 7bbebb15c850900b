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
from saddlepoint.solver.proposals import Frame, frame, propose

__all__ = ["Objective", "Search", "objective", "random_search"]


Objective = Literal["soft", "worst", "clipped"]
"""What random search lowers, see `objective`."""


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
@dataclass(frozen=True)
class Search:
    """How to look.

    Attributes:
        loss: Small = fooled.
        total: Proposals in all: squares shrink on the way to the last.
        seed: Of the rows' streams.
        stream: Which search of the rows.
        targeted: Whether labels are classes to reach.
        patience: After so many proposals a row whose worst loss has not fallen to half of what it was at the
            first is given up, and after twice as many if not to a quarter; None gives up none.
        kind: What falls, see `objective`.
        shown: What is made of a proposal before anybody sees it.
    """

    loss: Loss
    total: int
    seed: int = 0
    stream: int = 0
    targeted: bool = False
    patience: int | None = None
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
        delta, value, spent = (
            delta.clone(),
            objective(losses, self.kind),
            torch.zeros_like(problem.rows),
        )
        first = value.clone()
        open_, domains = torch.ones_like(spent, dtype=torch.bool), range(problem.num_domains)
        few, few_ball, where = problem, ball, frame(problem)
        for number in numbers:
            if self.patience is not None and number in (self.patience, 2 * self.patience):
                open_ &= value <= first / (2 if number == self.patience else 4)
            left = open_.nonzero().flatten()
            if len(left) == 0:
                break
            if len(left) < len(few):  # rows only leave
                few, few_ball = problem.take(left), ball.take(left)
                where = frame(few)
            trial = self._trial(few, few_ball, delta[left], number, where)
            answers = ask(few, trial.unsqueeze(1), self.loss, domains, targeted=self.targeted)
            new, hit = (
                objective(answers.losses.squeeze(1), self.kind),
                answers.fooled.all(dim=2).squeeze(1),
            )
            # What fools everybody is better than all that does not, also where losses say otherwise.
            taken = (new < value[left]) | hit | (number == 0)
            delta[left[taken]], value[left[taken]] = trial[taken], new[taken]
            if number == 0:
                first = value.clone()
            open_[left] = ~hit
            spent[left] += 1
            if finite is not None:
                finite[left] &= answers.finite.squeeze(1)
        return delta, spent

    def _trial(
        self, problem: AbstractProblem, ball: LpBall, delta: Tensor, number: int, where: Frame
    ) -> Tensor:
        share = 0.4 * 200 ** -math.sqrt(number / max(self.total, 1))
        stream = streams.SEARCH + (self.stream << 32) + number
        first = number == 0
        trial = propose(problem, ball, delta, share, self.seed, stream, first=first, where=where)
        return trial if self.shown is None else self.shown(trial, ball, problem)


def random_search(
    model: Model,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    queries: int,
    seed: int,
    rows: Tensor,
    patience: int | None = None,
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
        patience: After so many queries a row whose margin has not fallen to half of what it was at the start is
            given up, and after twice as many if not to a quarter; None gives up none.

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
