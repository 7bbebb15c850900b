"""Steps in the ball's own norm, among the entries that the box lets move; training takes them too."""

from __future__ import annotations

import math
from copy import copy

import torch
from torch import Tensor

from saddlepoint import directions, streams
from saddlepoint.entries import sparse
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall
from saddlepoint.projections.arguments import column

__all__ = [
    "linf_move",
    "movable",
    "random_point",
    "steepest",
    "step",
    "tightened",
]

# The direction of each ball; p = 1 has its own, which depends on the radius.
_STEEPEST: dict[float, directions.Direction] = {
    math.inf: directions.sign,
    2: directions.unit_l2,
    0: directions.unit_linf,
}
_ENTRIES = 20  # that move at a time for p = 1: the measured optimum for large radii


def step(
    ball: LpBall,
    lower: Tensor,
    upper: Tensor,
    delta: Tensor,
    gradient: Tensor,
    length: float,
    entries: int | Tensor | None = None,
    most: int | None = None,
) -> Tensor:
    """The next iterate, (B, ...): a step along the steepest direction of the ball's norm, then the projection.

    Args:
        ball: Gives norm and radius.
        lower: Least delta, (B, ...).
        upper: Largest delta, (B, ...).
        delta: This iterate, (B, ...).
        gradient: At delta, (B, ...); the step goes against it.
        length: Of the step, in radii.
        entries: How many of a row move for p = 1, one number or (B,); None is as `steepest` chooses.
        most: No row has more `entries`, see `steepest`.
    """
    if ball.p == math.inf:
        return ball._project(linf_move(ball, delta, gradient, length), lower, upper)
    # Entries that the box stops would waste the length of the step.
    motion = movable(-gradient, delta, lower, upper)
    moved = delta + length * _radius(ball, delta) * steepest(ball, motion, entries, most)
    return ball._project(moved, lower, upper, brief=True)  # a few radii away at most


def linf_move(ball: LpBall, delta: Tensor, gradient: Tensor, length: float) -> Tensor:
    """`step` for p = inf before the projection: every entry moves alone, also where the box will stop it.

    Nobody else has the tensor that is returned, laid out as delta.
    """
    moved = torch.sign(gradient, out=torch.empty_like(delta))
    # Into the same memory, which is still in the cache.
    return torch.addcmul(delta, moved, length * _radius(ball, delta), value=-1, out=moved)


def movable(motion: Tensor, delta: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The motion, (B, ...), without the entries that would leave the box at once.

    Rounding may have left an entry a little short of its bound, more in one batch and less in another: that
    must not decide, so that a few units in the last place count as being there. The motion is finite.
    """
    near = torch.full((), 16 * torch.finfo(delta.dtype).eps, dtype=delta.dtype, device=delta.device)
    room = torch.sub(delta, lower)
    down = motion.clamp_max(0.0).mul_(torch.gt(room, near, out=room))
    room = torch.sub(upper, delta, out=room)
    return motion.clamp_min(0.0).mul_(torch.gt(room, near, out=room)).add_(down)


def steepest(
    ball: LpBall, gradient: Tensor, entries: int | Tensor | None = None, most: int | None = None
) -> Tensor:
    """The steepest ascent direction of the ball's norm, (B, ...), of unit length.

    For p = 1 it moves the largest entries by the same amount: `entries` of every row, one number or (B,), or as
    many as the radius can take from one end of the box to the other, twenty at most. A single one, the steepest
    in the narrow sense, converges slowly. `most` is a bound of `entries` that the caller knows: without it the
    device is asked.
    """
    if ball.p != 1:
        return _STEEPEST[ball.p](gradient)
    rows = gradient.flatten(1)
    if entries is None:
        most = min(_ENTRIES, rows.shape[1])
        entries = _radius(ball, rows).ceil().clamp(1, most)
    elif most is None:
        most = int(entries) if isinstance(entries, int) else int(entries.max())
    counts = column(entries, rows, torch.int64)
    return sparse(rows, counts, most).reshape(gradient.shape)


def random_point(
    ball: LpBall, lower: Tensor, upper: Tensor, seed: int, rows: Tensor, stream: int
) -> Tensor:
    """A random point of ball ∩ box, (B, ...), from each row's own stream.

    For p = inf it is uniform in the ball, for p = 1 and 2 it has a random direction and full length, and for
    p = 0 it moves random entries by random amounts; then it is projected.

    Args:
        ball: Norm and radius.
        lower: Box, (B, ...).
        upper: Box, (B, ...).
        seed: Of the streams.
        rows: Row numbers, (B,).
        stream: Which draw.
    """
    size = lower[0].numel()
    if ball.p == math.inf:
        noise = 2 * streams.uniform(seed, rows, stream, size) - 1
    else:
        noise = streams.normal(seed, rows, stream, size)
        if ball.p != 0:
            noise = noise / torch.linalg.vector_norm(noise, ord=ball.p, dim=1, keepdim=True)
    noise = noise.to(lower.dtype).reshape(lower.shape)
    return ball._project(noise * _radius(ball, noise), lower, upper)


def tightened(ball: LpBall, problem: AbstractProblem) -> tuple[LpBall, AbstractProblem]:
    """The same set by a ball and a box that are no larger than each other allows.

    The radius is cut where the ball contains the whole box: the step length follows it. For p = inf the box is
    cut to the ball, so that it is all that bounds delta. Radii of rows come to the device of the problem.
    """
    if isinstance(ball.eps, Tensor):  # radii that were made elsewhere would be copied at every step
        ball = ball._with_radius(ball.eps.to(problem.lower.device))
    if ball.p == 0:
        return ball, problem
    reach = ball.norm(torch.maximum(-problem.lower, problem.upper))
    eps = torch.as_tensor(ball.eps, dtype=reach.dtype, device=reach.device)
    if not bool((eps <= reach).all()):
        ball = LpBall(ball.p, torch.minimum(eps, reach))
    if ball.p != math.inf:
        return ball, problem
    part, radius = copy(problem), _radius(ball, problem.lower)
    part.lower = torch.maximum(problem.lower, -radius)
    part.upper = torch.minimum(problem.upper, radius)
    return ball, part


def _radius(ball: LpBall, delta: Tensor) -> Tensor:
    """The length of one radius, (B or 1, 1, ...). For p = 0 eps is a count, and an entry moves by up to one."""
    return column(1.0 if ball.p == 0 else ball.eps, delta)
