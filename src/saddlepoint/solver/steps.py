"""Steps of the strong attack: steepest in the ball's own norm, among the entries that can move."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saddlepoint import directions, streams
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall

__all__ = ["random_start", "step", "within_box"]

# The direction of each ball; p = 1 has its own, which depends on the radius.
_STEEPEST: dict[float, directions.Direction] = {
    math.inf: directions.sign,
    2: directions.unit_l2,
    0: directions.unit_linf,
}
_ENTRIES = 20  # that move at a time for p = 1: the measured optimum for large radii


def step(
    problem: AbstractProblem,
    ball: LpBall,
    delta: Tensor,
    before: Tensor,
    gradient: Tensor,
    length: float,
    momentum: float,
) -> Tensor:
    """The next iterate, (B, ...): a projected step, then a mixture with the last displacement.

    Args:
        problem: Gives the box.
        ball: Gives norm and radius.
        delta: This iterate, (B, ...).
        before: The one before it, (B, ...).
        gradient: At delta, (B, ...); the step goes against it.
        length: Of the step, in radii.
        momentum: Share of the last displacement, as in Auto-PGD (Croce & Hein, 2020); 0 is none.
    """
    lower, upper = problem.lower, problem.upper
    # Entries that the box stops would waste the length of the step. Rounding may have left them a little
    # short of their bound, more in one batch and less in another: that must not decide.
    near = 16 * torch.finfo(delta.dtype).eps
    down, up = (delta - lower <= near) & (gradient > 0), (upper - delta <= near) & (gradient < 0)
    stopped = down | up
    gradient, radius = gradient.masked_fill(stopped, 0.0), _radius(ball, delta)
    direction = _sparse(gradient, radius) if ball.p == 1 else _STEEPEST[ball.p](gradient)
    target = ball._project(delta - length * radius * direction, lower, upper)
    if momentum == 0:
        return target
    mixed = delta + (1 - momentum) * (target - delta) + momentum * (delta - before)
    return ball._project(mixed, lower, upper)


def _sparse(gradient: Tensor, radius: Tensor) -> Tensor:
    """`SparseL1` with as many entries as the radius can move from one end of the box to the other."""
    rows = gradient.flatten(1)
    top = rows.abs().topk(min(_ENTRIES, rows.shape[1]), dim=1).indices  # largest first
    count = radius.reshape(-1, 1).ceil().clamp(1, top.shape[1])
    moving = torch.arange(top.shape[1], device=rows.device) < count
    signs = rows.gather(1, top).sign() * moving / count
    return torch.zeros_like(rows).scatter(1, top, signs).reshape(gradient.shape)


def random_start(problem: AbstractProblem, ball: LpBall, seed: int, restart: int) -> Tensor:
    """A random point of ball ∩ box, (B, ...), from each row's own stream."""
    size = problem.lower[0].numel()
    if ball.p == math.inf:
        noise = 2 * streams.uniform(seed, problem.rows, streams.START + restart, size) - 1
    else:
        noise = streams.normal(seed, problem.rows, streams.START + restart, size)
        if ball.p != 0:
            noise = noise / torch.linalg.vector_norm(noise, ord=ball.p, dim=1, keepdim=True)
    noise = noise.to(problem.lower.dtype).reshape(problem.lower.shape)
    return ball._project(noise * _radius(ball, noise), problem.lower, problem.upper)


def within_box(ball: LpBall, problem: AbstractProblem) -> LpBall:
    """The ball with its radius cut where it contains the whole box: the step length follows the radius."""
    if ball.p == 0:
        return ball
    reach = ball.norm(torch.maximum(-problem.lower, problem.upper))
    eps = torch.as_tensor(ball.eps, dtype=reach.dtype, device=reach.device)
    return ball if bool((eps <= reach).all()) else LpBall(ball.p, torch.minimum(eps, reach))


def _radius(ball: LpBall, delta: Tensor) -> Tensor:
    """The length of one radius, (B or 1, 1, ...). For p = 0 eps is a count, and an entry moves by up to one."""
    eps = 1.0 if ball.p == 0 else ball.eps
    radius = torch.as_tensor(eps, dtype=delta.dtype, device=delta.device)
    return radius.reshape(-1, *(1 for _ in delta.shape[1:]))
