"""Gradients estimated from scores: differences along single squares of pixels, or along random directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.losses import Loss
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall
from saddlepoint.projections.arguments import column
from saddlepoint.solver.asking import ask

__all__ = ["Directions", "Estimator", "Probes", "blocks", "signs"]

Directions = Literal["squares", "signs"]
"""Along what differences are taken: one square of pixels at a time, or all of them up or down at random."""

_AT_ONCE = 512  # images
_ROUNDING = 32  # units in the last place by which losses may differ from batch to batch
_FRESH = 0.05  # how much a square that does not matter counts beside the one that matters most


@final
@dataclass(frozen=True)
class Probes:
    """How an estimate is made.

    Attributes:
        domains: Those whose gradient is estimated, among K.
        loss: Small = fooled.
        directions: See `Directions`.
        queries: Per estimate; two for each of the "signs".
        distance: How far an entry moves, where the box and, for p = inf, the ball let it; None is the radius
            for p = inf and a quarter for other norms.
        side: Of the squares that move together, in pixels; of vectors, stretches of that length.
        momentum: What is kept of the estimate before, for "signs".
        seed: Of the rows' streams.
        stream: Which attack of the rows.
        targeted: Whether labels are classes to reach.
    """

    domains: tuple[int, ...]
    loss: Loss
    directions: Directions
    queries: int
    distance: float | None = None
    side: int = 1
    momentum: float = 0.0
    seed: int = 0
    stream: int = 0
    targeted: bool = False


class _Room(NamedTuple):
    """How far the entries can move up and down from where they are, (n, D) each, >= 0."""

    up: Tensor
    down: Tensor

    @staticmethod
    def of(problem: AbstractProblem, ball: LpBall, delta: Tensor, distance: float | None) -> _Room:
        """In the box and, for p = inf, in the ball: there every probe could be the answer itself."""
        lower, upper = problem.lower, problem.upper
        far: float | Tensor = 0.25 if distance is None else distance
        if ball.p == torch.inf:
            eps = column(ball.eps, delta)
            lower, upper = torch.maximum(lower, -eps), torch.minimum(upper, eps)
            far = eps if distance is None else distance
        up, down = (
            torch.minimum(upper, delta + far) - delta,
            delta - torch.maximum(lower, delta - far),
        )
        return _Room(up.flatten(1).clamp_min(0), down.flatten(1).clamp_min(0))


class Estimator:
    """Estimates gradients of the same rows again and again, and remembers what it found.

    "squares": every estimate asks about some of the squares of pixels, one at a time. What is known of each is
    kept for every domain by itself, so that the gradient of the weighted sum follows new weights without a
    question. Squares that were never asked about come first, in random order; then those whose derivative is
    large or was found long ago. Once all were asked about, the gradient of a linear function is exact.

    "signs": all squares move up or down at random, and the same with all signs changed. The mean over such
    pairs is the gradient in expectation, and for a linear function it is that whatever the box cuts off.
    Directions are orthogonal, see `signs`: with as many as squares, a power of two, it is exact.

    With squares of more than one pixel the mean gradient of the square is found.

    Args:
        probes: How.
        problem: n rows, from which `take` can leave some out.

    Example:
        >>> from saddlepoint.losses import cw_margin
        >>> from saddlepoint.problems import Ensemble
        >>> linear = torch.nn.Linear(4, 2, bias=False).eval()
        >>> problem = Ensemble([linear], torch.full((1, 4), 0.5), torch.tensor([0]))
        >>> estimator = Estimator(Probes((0,), cw_margin, "squares", queries=4), problem)
        >>> margins = cw_margin(problem.logits(problem.zeros()), problem.labels).detach()
        >>> ball, one = LpBall(torch.inf, 0.1), torch.ones(1, 1)
        >>> found, finite = estimator.gradient(problem, ball, problem.zeros(), margins, one)
        >>> torch.allclose(found, linear.weight[0] - linear.weight[1], atol=1e-5)
        True
    """

    def __init__(self, probes: Probes, problem: AbstractProblem) -> None:
        self.probes, self._number, self._draw = probes, 0, 0
        rows, shape = problem.rows, problem.lower.shape[1:]
        self._place, count = blocks(probes.seed, rows, probes.stream, shape, probes.side)
        kinds = 1 if probes.directions == "signs" else len(probes.domains)
        self._known = problem.lower.new_zeros(len(rows), kinds, count)
        self._when = problem.lower.new_full((len(rows), count), -1.0)

    @property
    def cost(self) -> int:
        """Queries that an estimate takes."""
        if self.probes.directions == "signs":
            return self.probes.queries // 2 * 2
        return min(self.probes.queries, int(self._when.shape[1]))

    def take(self, rows: Tensor) -> None:
        """Go on with some of the rows, (m,), positions."""
        self._place, self._known = self._place[rows], self._known[rows]
        self._when = self._when[rows]

    def gradient(
        self,
        problem: AbstractProblem,
        ball: LpBall,
        delta: Tensor,
        losses: Tensor,
        weights: Tensor,
        stream: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """The gradient of sum_k w_k F_k over the domains of the probes, and whether all answers were finite.

        Args:
            problem: The rows that are left.
            ball: Where delta may be.
            delta: (n, ...).
            losses: F(delta), (n, K), at draw `stream`.
            weights: (n, K).
            stream: The draw of random transforms that the losses are of; probes see the same.

        Returns:
            (n, ...) and (n, K), boolean.
        """
        room, self._draw = _Room.of(problem, ball, delta, self.probes.distance), stream
        finite = torch.ones(problem.labels.shape, dtype=torch.bool, device=delta.device)
        chosen = weights[:, list(self.probes.domains)]
        if self.probes.directions == "signs":
            self._by_signs(problem, delta, room, chosen, finite)
            whole = self._known.squeeze(1)
        else:
            self._by_squares(problem, delta, room, losses, chosen, finite)
            whole = (chosen.unsqueeze(2) * self._known).sum(dim=1)
        self._number += 1
        gradient = whole.gather(1, self._place).masked_fill(room.up + room.down == 0, 0.0)
        return gradient.reshape(delta.shape), finite

    def _by_squares(
        self,
        problem: AbstractProblem,
        delta: Tensor,
        room: _Room,
        losses: Tensor,
        weights: Tensor,
        finite: Tensor,
    ) -> None:
        domains = list(self.probes.domains)
        up, down = (self._summed(each) for each in room)
        stream = self._stream(1)
        u = streams.uniform(self.probes.seed, problem.rows, stream, 2 * up.shape[1]).to(delta)
        wants_up, noise = u[:, : up.shape[1]] < 0.5, 0.5 + u[:, up.shape[1] :]
        # Either side will do, unless there is much less room on it.
        upwards = torch.where(wants_up, up >= down / 2, up > 2 * down)
        asked = self._next(weights, noise, up + down)
        moved = torch.where(upwards, up, -down).gather(1, asked)
        shift = torch.where(upwards.gather(1, self._place), room.up, -room.down)
        few = max(1, _AT_ONCE // len(delta))
        found = []
        for some in asked.split(few, dim=1):
            mine = self._place.unsqueeze(1) == some.unsqueeze(2)  # (n, c, D)
            points = torch.where(
                mine, (delta.flatten(1) + shift).unsqueeze(1), delta.flatten(1).unsqueeze(1)
            )
            answers = self._ask(problem, points.unflatten(2, delta.shape[1:]), finite)
            found.append(_change(answers, losses[:, None, domains]))
        slopes = torch.cat(found, dim=1) / torch.where(moved == 0, 1.0, moved).unsqueeze(2)
        slopes = slopes.masked_fill((moved == 0).unsqueeze(2), 0.0)
        self._known.scatter_(2, asked.unsqueeze(1).expand(-1, len(domains), -1), slopes.mT)
        self._when.scatter_(1, asked, float(self._number))

    def _next(self, weights: Tensor, noise: Tensor, room: Tensor) -> Tensor:
        """The squares to ask about, (n, queries)."""
        size = (weights.unsqueeze(2) * self._known).sum(dim=1).abs()
        size = size / size.amax(dim=1, keepdim=True).clamp_min(1e-30)
        order = (size + _FRESH) * (self._number - self._when) * noise
        order = torch.where(self._when < 0, 1e9 * noise, order).masked_fill(room == 0, -1.0)
        return order.topk(self.cost, dim=1).indices

    def _by_signs(
        self, problem: AbstractProblem, delta: Tensor, room: _Room, weights: Tensor, finite: Tensor
    ) -> None:
        pairs, count = self.probes.queries // 2, self._known.shape[2]
        total = torch.zeros_like(self._when)
        stream = self._stream(1 + pairs // max(1, count))
        centre = delta.flatten(1).unsqueeze(1)
        up, down = room.up.unsqueeze(1), room.down.unsqueeze(1)
        for u in _signs(self.probes.seed, problem.rows, stream, count, pairs):
            places = self._place.unsqueeze(1).expand(-1, u.shape[1], -1)
            ups = u.gather(2, places) > 0  # (n, c, D)
            ends = torch.cat([torch.where(ups, up, -down), torch.where(ups, -down, up)], dim=1)
            points = (centre + ends).unflatten(2, delta.shape[1:])
            values = (self._ask(problem, points, finite) * weights.unsqueeze(1)).sum(dim=2)
            change = _change(values[:, : u.shape[1]], values[:, u.shape[1] :])
            total += (change.unsqueeze(2) * u.to(delta)).sum(dim=1)
        width = self._summed(room.up + room.down)
        fresh = torch.where(width > 0, total / pairs / width.clamp_min(1e-30), 0.0)
        self._known = self.probes.momentum * self._known + fresh.unsqueeze(1)

    def _summed(self, entries: Tensor) -> Tensor:
        """Sums over the squares, (n, count), of numbers of the entries, (n, D)."""
        return torch.zeros_like(self._when).scatter_add(1, self._place, entries)

    def _stream(self, draws: int) -> int:
        """Of this estimate, which draws so often."""
        return streams.PROBE + (self.probes.stream << 32) + self._number * draws

    def _ask(self, problem: AbstractProblem, points: Tensor, finite: Tensor) -> Tensor:
        """Losses of the domains at points, (n, c, k); notes in `finite`, (n, K), where answers are not."""
        domains = list(self.probes.domains)
        answers = ask(
            problem,
            points,
            self.probes.loss,
            domains,
            stream=self._draw,
            targeted=self.probes.targeted,
        )
        finite[:, domains] &= answers.finite.all(dim=1)
        return answers.losses


def _change(value: Tensor, before: Tensor) -> Tensor:
    """The difference value - before, and zero where rounding alone may have made the difference.

    A model answers a little differently in another batch. Where pixels do not matter to it that would decide
    the sign of their slope, and rows would no longer be independent of each other.
    """
    rounding = _ROUNDING * torch.finfo(value.dtype).eps
    size = torch.maximum(value.abs(), before.abs())
    return torch.where((value - before).abs() <= rounding * size, 0.0, value - before)


def blocks(
    seed: int, rows: Tensor, stream: int, shape: torch.Size, side: int
) -> tuple[Tensor, int]:
    """Which square an entry belongs to, (n, D), int64, and how many squares there can be.

    Squares tile height and width, the last two axes, in every channel by itself, from a corner that is drawn
    for every row; of a vector they are stretches of that length.

    Example:
        >>> place, count = blocks(0, torch.arange(1), 0, torch.Size([1, 1, 4]), 1)
        >>> place, count
        (tensor([[0, 1, 2, 3]]), 4)
    """
    height, width = shape[-2:] if len(shape) > 1 else (1, shape[-1])
    channels = shape[:-2].numel() if len(shape) > 1 else 1
    tall, wide = min(side, height), min(side, width)
    corner = streams.uniform(seed, rows, streams.CORNER + stream, 2)
    top, left = (corner[:, :1] * tall).long(), (corner[:, 1:] * wide).long()
    # A corner outside of the image adds a line and a column of squares that are cut.
    lines, columns = (height + tall - 2) // tall + 1, (width + wide - 2) // wide + 1
    line = (torch.arange(height, device=rows.device) + top) // tall
    column = (torch.arange(width, device=rows.device) + left) // wide
    squares = (line.unsqueeze(2) * columns + column.unsqueeze(1)).flatten(1)
    offset = torch.arange(channels, device=rows.device) * lines * columns
    place = (squares.unsqueeze(1) + offset.unsqueeze(1)).flatten(1)
    return place, channels * lines * columns


def signs(seed: int, rows: Tensor, stream: int, size: int, count: int) -> Tensor:
    """Directions of +1 and -1, (n, count, size), int8, those of one row orthogonal to each other.

    Rows of a Hadamard matrix of the next power of two, drawn without replacement, times signs drawn for every
    column. Of more directions than it has rows, the next ones are drawn from a new matrix.

    Example:
        >>> u = signs(0, torch.arange(3), 0, 8, 8).int()
        >>> bool((u @ u.mT == 8 * torch.eye(8)).all())
        True
    """
    return torch.cat(list(_signs(seed, rows, stream, size, count)), dim=1)


def _signs(seed: int, rows: Tensor, stream: int, size: int, count: int) -> Iterator[Tensor]:
    """`signs` a few at a time, (n, few, size)."""
    order = 1 << max(0, size - 1).bit_length()
    few = max(1, _AT_ONCE // (2 * max(1, len(rows))))
    column = torch.arange(size, device=rows.device, dtype=torch.int32)
    for first in range(0, count, order):
        numbers = streams.uniform(seed, rows, stream + first // order, order + size)
        chosen = numbers[:, :order].argsort(dim=1)[:, : count - first].to(torch.int32)
        flips = torch.where(numbers[:, order:] < 0.5, -1, 1).to(torch.int8)
        for part in chosen.split(few, dim=1):
            bits = part.unsqueeze(2) & column
            for shift in (16, 8, 4, 2, 1):
                bits = bits ^ (bits >> shift)  # the parity of the ones in it, in the last bit
            yield (1 - 2 * (bits & 1)).to(torch.int8) * flips.unsqueeze(1)
