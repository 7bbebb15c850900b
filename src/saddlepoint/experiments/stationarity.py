"""How far the iterates of Algorithm 1 are from a stationary point, and how fast that shrinks (Theorem 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from saddlepoint.losses import Loss, cw_margin
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall
from saddlepoint.rules import MinMax
from saddlepoint.solver import apgda

__all__ = ["log_log_slope", "residuals"]


def residuals(
    problem: AbstractProblem,
    ball: LpBall,
    rule: MinMax,
    *,
    steps: int,
    step_size: float,
    loss: Loss = cw_margin,
) -> Tensor:
    """Squared lengths of the projected gradients at every iterate of `apgda`.

        G_delta(t) = ( delta_t - proj_X( delta_t - alpha * grad_delta L(delta_t, w_t) ) ) / alpha
        G_w(t)     = ( proj_P( w_t + beta * grad_w L(delta_t, w_t) ) - w_t ) / beta

    with L the regularised objective, alpha = `step_size`, beta = `rule.step_size`. Both vanish exactly at a
    first-order stationary point; without constraints they are the gradients themselves. Theorem 1 bounds the
    smallest ||G_delta||^2 + ||G_w||^2 among the first T iterates by a constant over T.

    Costs what `apgda` costs, and a second projection per step.

    Args:
        problem: B rows, K domains, no random ones; all rows are held in memory.
        ball: Where perturbations may be; convex, so p is not 0.
        rule: Gives beta and gamma.
        steps: T, at least 1.
        step_size: alpha.
        loss: Small = fooled.

    Returns:
        (T, B, 2), float64: ||G_delta(t)||^2 and ||G_w(t)||^2 of every row for t = 0, ..., T - 1.

    Example:
        >>> from saddlepoint import Ensemble
        >>> models = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
        >>> problem = Ensemble(models, torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
        >>> residuals(problem, LpBall(2, 0.5), MinMax(), steps=7, step_size=0.1).shape
        torch.Size([7, 5, 2])
    """
    if ball.p == 0:
        raise ValueError("`ball` must be convex (p = 1, 2 or inf), got p = 0.")
    watch = _Watch(problem, ball, step_size)
    result = apgda(
        problem,
        ball,
        rule=rule,
        loss=loss,
        steps=steps,
        step_size=step_size,
        direction=watch,
        batch_size=len(problem),
    )
    weights, losses = result.history.weights[:-1], result.history.losses[:-1]
    moved = torch.stack([rule.update(w, f) for w, f in zip(weights, losses, strict=True)])
    # A step longer than 1 / gamma is cut to it by the rule.
    beta = min(rule.beta(weights.shape[-1]), 1 / rule.gamma if rule.gamma else math.inf)
    ascent = ((moved - weights).double() / beta).square().sum(dim=-1)
    return torch.stack([torch.stack(watch.squares), ascent], dim=-1)


class _Watch:
    """A direction that changes nothing: it sees every gradient, and repeats the step to measure it."""

    def __init__(self, problem: AbstractProblem, ball: LpBall, step_size: float) -> None:
        self._problem, self._ball, self._step_size = problem, ball, step_size
        self._delta = problem.zeros()
        self.squares: list[Tensor] = []

    def __call__(self, gradient: Tensor) -> Tensor:
        target = self._delta - self._step_size * gradient
        moved = self._ball.project(target, self._problem.lower, self._problem.upper)
        residual = (self._delta - moved).flatten(1).double() / self._step_size
        self.squares.append(residual.square().sum(dim=1))
        self._delta = moved
        return gradient


def log_log_slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of the least-squares line through (log x, log y); nan where fewer than two points are positive.

    Example:
        >>> round(log_log_slope([1, 2, 4, 8], [8, 4, 2, 1]), 6)
        -1.0
    """
    points = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True) if x > 0 and y > 0]
    if len({x for x, _ in points}) < 2:
        return math.nan
    centre_x = sum(x for x, _ in points) / len(points)
    centre_y = sum(y for _, y in points) / len(points)
    above = sum((x - centre_x) * (y - centre_y) for x, y in points)
    return above / sum((x - centre_x) ** 2 for x, _ in points)
