"""What random search tries next: squares at the edge of the ball, for every norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall

__all__ = ["Frame", "Squares", "begin", "exchange", "frame", "squares"]

Frame = tuple[Tensor, Tensor, Tensor, Tensor]
"""What `frame` says."""


@final
@dataclass(frozen=True)
class Squares:
    """Random squares of several proposals, for p = inf, 1 and 2.

    Attributes:
        lines, columns: Those they take, (S, n, most) each for S proposals of n rows, as numbers, the last one
            repeated in rows that take fewer; of vectors, the one line and entries.
        sizes: The most lines and columns that a row takes, for each proposal.
        up: Which way each channel goes, (S, n, channels), boolean.
        amount: How far, for p = 1 and 2, as a share of the radius, (S, n).
        radius: Of each row, or of all, (n or 1, 1, ...).
        ends: Where the ball and the box end below and above, (n, channels, entries) each, for p = inf.
    """

    lines: Tensor
    columns: Tensor
    sizes: list[list[int]]
    up: Tensor
    amount: Tensor
    radius: Tensor
    ends: tuple[Tensor, Tensor] | None

    def take(self, rows: Tensor) -> Squares:
        """Those of some rows only; `rows` are positions, (m,), int64."""
        tables = (self.lines, self.columns, self.up, self.amount)
        lines, columns, up, amount = (table[:, rows] for table in tables)
        radius = self.radius[rows] if len(self.radius) > 1 else self.radius
        ends = self.ends and (self.ends[0][rows], self.ends[1][rows])
        return Squares(lines, columns, self.sizes, up, amount, radius, ends)

    def propose(self, number: int, problem: AbstractProblem, ball: LpBall, delta: Tensor) -> Tensor:
        """A random change of delta, (n, ...), in ball and box.

        For p = inf a square goes to one end of the ball, plus or minus the radius in every channel, the other
        one if that is where it is. For p = 1 and 2 a square is pushed up or down, by up to the radius, and the
        projection takes from the rest what that costs.

        Args:
            number: Of the proposal, from 0.
            problem: n rows.
            ball: Norm and radius.
            delta: Where to go on from, (n, ...).

        Example:
            >>> from saddlepoint.problems import Ensemble
            >>> problem = Ensemble([torch.nn.Identity()], torch.full((1, 4, 4), 0.5), torch.tensor([0]))
            >>> ball = LpBall(torch.inf, 0.1)
            >>> moved = squares(problem, ball, [0.25], 0, [0]).propose(0, problem, ball, problem.zeros())
            >>> moved.count_nonzero().item(), round(moved.abs().max().item(), 4)
            (4, 0.1)
        """
        flat, up = _flat(delta), self.up[number].unsqueeze(2)
        tall, wide = self.sizes[number]
        lines, columns = self.lines[number, :, :tall], self.columns[number, :, :wide]
        square = (lines.unsqueeze(2) * delta.shape[-1] + columns.unsqueeze(1)).flatten(1)
        square = square.unsqueeze(1).expand(-1, flat.shape[1], -1)
        if self.ends is not None:
            low, high = (end.gather(2, square) for end in self.ends)
            # Half of all signs would change nothing where every channel is at an end already.
            same = flat.gather(2, square) == torch.where(up, high, low)
            up = up ^ same.flatten(1).all(dim=1).reshape(-1, 1, 1)
            return flat.scatter(2, square, torch.where(up, high, low)).reshape(delta.shape)
        signs = torch.where(up, 1.0, -1.0).to(delta)
        push = torch.zeros_like(flat).scatter(2, square, signs.expand(square.shape))
        length = torch.linalg.vector_norm(push.flatten(1), ord=ball.p, dim=1)
        amount = self.amount[number] / length.clamp_min(1e-30)
        push = push.reshape(delta.shape) * _column(amount, delta) * self.radius
        return ball._project(delta + push, problem.lower, problem.upper)


def squares(
    problem: AbstractProblem,
    ball: LpBall,
    shares: Sequence[float],
    seed: int,
    numbers: Sequence[int],
) -> Squares:
    """Draw the squares of several proposals at once.

    Args:
        problem: n rows.
        ball: Norm and radius.
        shares: Of the area that can move, for each proposal.
        seed: Of the rows' streams.
        numbers: Of the streams, one for each proposal.
    """
    like, ends = problem.lower, None
    draws = streams.uniforms(seed, problem.rows, numbers, 3 + _channels(like)).to(like)
    radius = _column(torch.as_tensor(ball.eps, dtype=like.dtype, device=like.device), like)
    if ball.p == math.inf:
        low, high = (_within(side, like, problem.upper) for side in (-radius, radius))
        ends = (_flat(low), _flat(high))
    lines, columns, sizes = _places(frame(problem), draws, shares)
    up, amount = draws[..., 3:] > 0.5, draws[..., 2] ** 2
    return Squares(lines, columns, sizes, up, amount, radius, ends)


def begin(problem: AbstractProblem, ball: LpBall, delta: Tensor, seed: int, stream: int) -> Tensor:
    """Where the search begins, (n, ...): stripes for p = inf, and random signs, of full length, for p = 1, 2.

    For p = 0 they are at as many entries as there may be.
    """
    if ball.p == 0:
        return exchange(problem, ball, delta, 1.0, seed, stream)
    start = _start(ball, delta, seed, problem.rows, stream)
    return ball._project(start, problem.lower, problem.upper)


def _start(ball: LpBall, delta: Tensor, seed: int, rows: Tensor, stream: int) -> Tensor:
    """Stripes of the radius for p = inf; squares of random signs and full length for p = 1 and 2."""
    width, eps = delta.shape[-1], torch.as_tensor(ball.eps, dtype=delta.dtype, device=delta.device)
    eps = eps.reshape(-1, *(1 for _ in delta.shape[1:]))
    if ball.p == math.inf:
        stripes = streams.uniform(seed, rows, stream, width * _channels(delta)).to(delta)
        shape = (len(delta), *delta.shape[1:-2], 1, width) if delta.dim() > 2 else delta.shape
        signs = torch.where(stripes.reshape(shape) > 0.5, 1.0, -1.0).to(delta)
        return (signs * eps).expand_as(delta)
    cells = streams.uniform(seed, rows, stream, delta[0].numel()).to(delta).reshape(delta.shape)
    if delta.dim() > 2:
        side = max(1, round(delta.shape[-1] / 5))
        coarse = cells[..., ::side, ::side]
        cells = coarse.repeat_interleave(side, -1).repeat_interleave(side, -2)
        cells = cells[..., : delta.shape[-2], : delta.shape[-1]]
    signs = torch.where(cells > 0.5, 1.0, -1.0).to(delta)
    length = torch.linalg.vector_norm(signs.flatten(1), ord=ball.p, dim=1)
    full: Tensor = signs * eps / length.reshape(-1, *(1 for _ in delta.shape[1:]))
    return full


def exchange(
    problem: AbstractProblem, ball: LpBall, delta: Tensor, share: float, seed: int, stream: int
) -> Tensor:
    """For p = 0, another choice of the changed entries, or pixels: a share of them, at least one.

    Some are restored and others set to an end of the box (as in Sparse-RS, Croce et al., 2022).

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> problem = Ensemble([torch.nn.Identity()], torch.full((1, 4, 4), 0.5), torch.tensor([0]))
        >>> exchange(problem, LpBall(0, 3), problem.zeros(), 1.0, 0, 0).count_nonzero().item()
        3
    """
    flat = delta.flatten(2) if ball.unit == "pixel" else delta.flatten(1).unsqueeze(1)
    lower, upper = (
        bound.expand_as(delta).reshape(flat.shape) for bound in (problem.lower, problem.upper)
    )
    rows, channels, units = flat.shape
    draws = streams.uniform(seed, problem.rows, stream, units * (1 + channels)).to(delta)
    keys, ends = draws[:, :units], draws[:, units:].reshape(flat.shape)
    most = torch.as_tensor(ball.eps, device=delta.device).floor().long().clamp_max(units)
    most = most.reshape(-1, 1).expand(rows, 1)
    changed, movable = (flat != 0).any(dim=1), (upper > lower).any(dim=1)
    gone = (share * most).round().long().clamp(min=1)
    # Ranks among the changed and among the others, lowest key first.
    restored = changed & (_ranks(keys.masked_fill(~changed, 2.0)) < gone)
    free = most - (changed & ~restored).sum(dim=1, keepdim=True)
    open_ = ~changed & movable
    added = open_ & (_ranks(keys.masked_fill(~open_, 2.0)) < free)
    # To the end that is drawn, or to the other one where that is no change.
    end = torch.where(ends < 0.5, lower, upper)
    end = torch.where(end == 0, lower + upper - end, end)
    trial = torch.where(added.unsqueeze(1), end, flat)
    trial = trial.masked_fill(restored.unsqueeze(1), 0.0)
    return ball._project(trial.reshape(delta.shape), problem.lower, problem.upper)


def _ranks(keys: Tensor) -> Tensor:
    """The place of every number of a row in its order, (n, U)."""
    return keys.argsort(dim=1, stable=True).argsort(dim=1)


def _within(value: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(value, lower), upper)


def _channels(x: Tensor) -> int:
    return x.shape[1:-2].numel() if x.dim() > 2 else 1


def frame(problem: AbstractProblem) -> Frame:
    """The rectangle around all that can move: its first line and column, its height and width, (n, 1) each.

    The whole image, unless a set keeps a part of it as it is; of a vector, a stretch of height 1.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> problem = Ensemble([torch.nn.Identity()], torch.rand(1, 3, 4, 5), torch.tensor([0]))
        >>> problem.lower[..., :2] = problem.upper[..., :2] = 0.0
        >>> [number.item() for number in frame(problem)]
        [0, 2, 4, 3]
    """
    movable = problem.upper > problem.lower
    lines = movable if movable.dim() > 2 else movable.unsqueeze(1)  # a vector is one line
    plane = lines.reshape(len(lines), -1, *lines.shape[-2:]).any(dim=1)
    found = []
    for line in (plane.any(dim=2), plane.any(dim=1)):
        first = line.int().argmax(dim=1, keepdim=True)
        last = line.shape[1] - 1 - line.flip(1).int().argmax(dim=1, keepdim=True)
        found.append((first, last - first + 1))
    (top, tall), (left, wide) = found
    return top, left, tall, wide


def _places(
    where: Frame, draws: Tensor, shares: Sequence[float]
) -> tuple[Tensor, Tensor, list[list[int]]]:
    """The lines and columns of squares of these shares of what can move, and their sizes, see `Squares`."""
    top, left, height, width = where
    share = torch.tensor(shares, dtype=torch.float64, device=draws.device).reshape(-1, 1, 1)
    area = share * height.double() * width
    side = torch.where(height > 1, area.sqrt(), area).round().long().clamp_min(1)
    sizes = torch.stack([torch.minimum(side, height), torch.minimum(side, width)])
    most = sizes.amax(dim=(2, 3)).T.tolist()
    places = []
    for axis, (first, length) in enumerate(((top, height), (left, width))):
        begins = first + (draws[..., axis, None] * (length - sizes[axis] + 1)).long()
        steps = torch.arange(max(size[axis] for size in most), device=draws.device)
        places.append(begins + torch.minimum(steps, sizes[axis] - 1))
    return places[0], places[1], most


def _flat(x: Tensor) -> Tensor:
    """Images or vectors as (n, channels, entries)."""
    return x.reshape(len(x), _channels(x), -1)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1 for _ in like.shape[1:]))
