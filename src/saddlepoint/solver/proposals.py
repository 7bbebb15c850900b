"""What random search tries next: squares at the edge of the ball, for every norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall

__all__ = ["Frame", "frame", "propose"]

Frame = tuple[Tensor, Tensor, Tensor, Tensor]
"""What `frame` says."""


def propose(
    problem: AbstractProblem,
    ball: LpBall,
    delta: Tensor,
    share: float,
    seed: int,
    stream: int,
    *,
    first: bool = False,
    where: Frame | None = None,
) -> Tensor:
    """A random change of delta, (n, ...), in ball and box.

    For p = inf a square goes to one end of the ball, plus or minus the radius in every channel, the other one
    if that is where it is. For p = 1 and 2 a square is pushed up or down, by up to the radius, and the
    projection takes from the rest what that costs. For p = 0 some of the changed entries (pixels) are
    restored and others set to an end of the box (as in Sparse-RS, Croce et al., 2022).

    Args:
        problem: n rows.
        ball: Norm and radius.
        delta: Where to go on from, (n, ...).
        share: Of the area that the square takes, or of the changed entries that are exchanged.
        seed: Of the rows' streams.
        stream: Which draw.
        first: Whether this is where the search begins: stripes for p = inf, and random signs, of full
            length, or at as many entries as there may be, for the others.
        where: What `frame` says of the problem, where it was asked before.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> problem = Ensemble([torch.nn.Identity()], torch.full((1, 4, 4), 0.5), torch.tensor([0]))
        >>> moved = propose(problem, LpBall(torch.inf, 0.1), problem.zeros(), 0.25, 0, 0)
        >>> moved.count_nonzero().item(), round(moved.abs().max().item(), 4)
        (4, 0.1)
    """
    lower, upper = problem.lower, problem.upper
    if ball.p == 0:
        return _exchanged(problem, ball, delta, 1.0 if first else share, seed, stream)
    if first:
        return ball._project(_start(ball, delta, seed, problem.rows, stream), lower, upper)
    draws = streams.uniform(seed, problem.rows, stream, 3 + _channels(delta)).to(delta)
    square = _squares(frame(problem) if where is None else where, delta, draws[:, :2], share)
    signs = torch.where(_per_channel(draws[:, 3:], delta) > 0.5, 1.0, -1.0).to(delta)
    radius = torch.as_tensor(ball.eps, dtype=delta.dtype, device=delta.device)
    radius = radius.reshape(-1, *(1 for _ in delta.shape[1:]))
    if ball.p == math.inf:
        trial = torch.where(square, _within(signs * radius, lower, upper), delta)
        # Half of all signs would change nothing where every channel is at an end already.
        same = (trial == delta).flatten(1).all(dim=1).reshape(-1, *(1 for _ in delta.shape[1:]))
        return torch.where(same & square, _within(-signs * radius, lower, upper), trial)
    push = (square * signs).to(delta)
    length = torch.linalg.vector_norm(push.flatten(1), ord=ball.p, dim=1)
    amount = draws[:, 2] ** 2 / length.clamp_min(1e-30)
    push = push * amount.reshape(-1, *(1 for _ in delta.shape[1:])) * radius
    return ball._project(delta + push, lower, upper)


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


def _exchanged(
    problem: AbstractProblem, ball: LpBall, delta: Tensor, share: float, seed: int, stream: int
) -> Tensor:
    """Another choice of the changed entries, or pixels: a share of them, at least one."""
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


def _per_channel(numbers: Tensor, x: Tensor) -> Tensor:
    """Numbers (n, channels) to go with images (n, ..., height, width) or (n, size)."""
    return numbers.reshape(len(numbers), *x.shape[1:-2], 1, 1) if x.dim() > 2 else numbers


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


def _squares(where: Frame, x: Tensor, draws: Tensor, share: float) -> Tensor:
    """Where a square of this share of what can move is, (n, 1, ..., height, width); of a vector, a stretch."""
    top, left, height, width = where
    area = share * height.double() * width
    side = torch.where(height > 1, area.sqrt(), area).round().long().clamp_min(1)
    tall, wide = torch.minimum(side, height), torch.minimum(side, width)
    top = top + (draws[:, :1] * (height - tall + 1)).long()
    left = left + (draws[:, 1:] * (width - wide + 1)).long()
    size = x.shape[-2:] if x.dim() > 2 else (1, x.shape[-1])
    line, column = (torch.arange(length, device=x.device) for length in size)
    lines = (line >= top) & (line < top + tall)
    columns = (column >= left) & (column < left + wide)
    if x.dim() <= 2:
        return columns
    ones = (1 for _ in x.shape[1:-2])
    return (lines[:, :, None] & columns[:, None, :]).reshape(len(x), *ones, *size)
