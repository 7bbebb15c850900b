"""Slow and obvious: what the library must agree with. Nothing here imports it."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence

import cvxpy
import numpy as np
import torch
from torch import Tensor

# ------------------------------------------------------------------------------------- projections


def project_by_cvxpy(
    v: np.ndarray, p: float, eps: float, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """argmin ||z - v||^2 over {||z||_p <= eps, lower <= z <= upper}, p in {1, 2, inf}; vectors."""
    z = cvxpy.Variable(len(v))
    below, above = np.isfinite(lower), np.isfinite(upper)
    ball = cvxpy.sum_squares(z) <= eps**2 if p == 2 else cvxpy.norm(z, _ORDERS[p]) <= eps
    constraints = [ball, z[below] >= lower[below], z[above] <= upper[above]]
    return _nearest(z, v, constraints)


def project_simplex_by_cvxpy(v: np.ndarray) -> np.ndarray:
    w = cvxpy.Variable(len(v))
    return _nearest(w, v, [w >= 0, cvxpy.sum(w) == 1])


_ORDERS = {1: 1, math.inf: "inf"}


def _nearest(z: cvxpy.Variable, v: np.ndarray, constraints: list) -> np.ndarray:
    # The squared distance up to a constant: its optimum is known to more digits.
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(z) - 2 * v @ z), constraints)
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it stops short of 1e-12, at about 1e-10
        problem.solve(solver=cvxpy.CLARABEL, **tight)
    return np.asarray(z.value)


def project_by_bisection(
    v: np.ndarray, p: float, eps: float, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Proposition 1 as the paper writes it, for one vector, bisected to the end in 80-bit floats."""
    v, lower, upper = (np.asarray(a, dtype=np.longdouble) for a in (v, lower, upper))
    if p == math.inf:
        return np.clip(v, np.maximum(lower, -eps), np.minimum(upper, eps))
    if p == 0:
        clipped = np.clip(v, lower, upper)
        gain = v**2 - (v - clipped) ** 2
        z = np.zeros_like(v)
        for i in np.argsort(-gain, kind="stable")[: int(min(eps, len(v)))]:
            z[i] = clipped[i]
        return z

    def shrink(t: np.longdouble) -> np.ndarray:
        moved = np.sign(v) * np.maximum(np.abs(v) - t, 0) if p == 1 else v * t
        return np.clip(moved, lower, upper)

    def norm(z: np.ndarray) -> np.longdouble:
        return np.abs(z).sum() if p == 1 else np.sqrt((z**2).sum())

    if norm(np.clip(v, lower, upper)) <= eps:
        return np.clip(v, lower, upper)
    low, high = np.longdouble(0), np.longdouble(np.abs(v).max() if p == 1 else 1)
    for _ in range(400):
        middle = (low + high) / 2
        too_far = norm(shrink(middle)) > eps
        if too_far == (p == 1):
            low = middle
        else:
            high = middle
    return shrink(high if p == 1 else low)


def smallest_l0_distance(v: np.ndarray, count: int, lower: np.ndarray, upper: np.ndarray) -> float:
    """min ||z - v||^2 over z in the box with at most `count` non-zero columns; v is (G, N)."""
    clipped = np.clip(v, lower, upper)
    best = math.inf
    for size in range(min(count, v.shape[1]) + 1):
        for support in itertools.combinations(range(v.shape[1]), size):
            z = np.zeros_like(v)
            z[:, support] = clipped[:, support]
            best = min(best, float(((z - v) ** 2).sum()))
    return best


def project_simplex_by_bisection(v: Tensor) -> Tensor:
    """max(v - mu, 0) with mu bisected; one vector."""
    low, high = v.min().item() - 1.0, v.max().item()
    for _ in range(200):
        mu = (low + high) / 2
        if (v - mu).clamp_min(0).sum() > 1:
            low = mu
        else:
            high = mu
    return (v - high).clamp_min(0)


# -------------------------------------------------------------------------------------- the weights


def minmax_update(w: Tensor, losses: Tensor, *, step_size: float, gamma: float) -> Tensor:
    k = len(w)
    step = min(step_size, 1 / gamma) if gamma > 0 else step_size
    ascent = [w[i] + step * (losses[i] - gamma * (w[i] - 1 / k)) for i in range(k)]
    return project_simplex_by_bisection(torch.stack(ascent))


def entropic_update(w: Tensor, losses: Tensor, *, step_size: float) -> Tensor:
    grown = w * (step_size * losses).exp()
    return grown / grown.sum()


def one_hot_of_largest(w: Tensor, losses: Tensor) -> Tensor:
    del w
    return torch.tensor([1.0 if f == losses.max() else 0.0 for f in losses], dtype=losses.dtype)


def constant(w: Tensor, losses: Tensor) -> Tensor:
    del losses
    return w


# --------------------------------------------------------------------------------------- Algorithm 1


def cw_margin(logits: Tensor, label: int, kappa: float = 50.0) -> Tensor:
    others = [logits[j] for j in range(len(logits)) if j != label]
    return torch.maximum(logits[label] - torch.stack(others).max(), torch.tensor(-kappa).to(logits))


def algorithm_1(
    losses: Callable[[Tensor], Tensor],
    project: Callable[[Tensor], Tensor],
    update: Callable[[Tensor, Tensor], Tensor],
    delta: Tensor,
    w: Tensor,
    *,
    steps: int,
    step_size: float,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """APGDA for one row with two evaluations of F per step, as printed.

    Args:
        losses: F, from delta (D,) to (K,).
        project: Onto ball and box, (D,) to (D,).
        update: From w_{t-1} and F(delta_t) to w_t.
        delta, w: Start.
        steps: T.
        step_size: alpha.

    Returns:
        delta_T, w_T, and w_0 ... w_T.
    """
    seen = [w]
    for _ in range(steps):
        point = delta.clone().requires_grad_()
        value = sum(w[i] * losses(point)[i] for i in range(len(w)))
        (gradient,) = torch.autograd.grad(value, point)
        delta = project(delta - step_size * gradient)
        with torch.no_grad():
            w = update(w, losses(delta))
        seen.append(w)
    return delta, w, seen


def ensemble_losses(
    models: Sequence[Callable[[Tensor], Tensor]], x: Tensor, y: int
) -> Callable[[Tensor], Tensor]:
    """F of one image (D,) for K models: the margins, model by model."""

    def losses(delta: Tensor) -> Tensor:
        return torch.stack([cw_margin(model((x + delta)[None])[0], y) for model in models])

    return losses


# --------------------------------------------------------------------------------------- Algorithm 2


def algorithm_2(
    f: Callable[[list[Tensor], Tensor, int], Tensor],
    theta: list[Tensor],
    images: Tensor,
    labels: Sequence[int],
    projections: Sequence[Callable[[Tensor, Tensor], Tensor]],
    batches: Sequence[Sequence[int]],
    *,
    steps: int,
    beta: float,
    gamma: float,
    rate: float,
) -> list[list[Tensor]]:
    """AMPGD line by line with plain SGD: w and delta belong to an image and wait for its return.

    Line 4 of iteration t - 1 and line 3 of iteration t take the same images, batches[t - 1]. The input w^(0),
    delta^(0) of the first batch is what line 4 makes of w = 1/K, delta = 0 at theta^(0).

    Args:
        f: Training loss of parameters, one image (D,) and its label; large = hard.
        theta: theta^(0).
        images: (N, D).
        labels: N of them.
        projections: K functions of a point and its image, onto X_i.
        batches: Numbers of the images of T iterations.
        steps: R.
        beta: Step size of w and of delta.
        gamma: Of the regulariser.
        rate: Step size of theta.

    Returns:
        theta^(1) ... theta^(T).
    """
    k = len(projections)
    w = {n: torch.full((k,), 1 / k, dtype=images.dtype) for n in range(len(images))}
    delta = {n: [torch.zeros_like(images[n]) for _ in range(k)] for n in range(len(images))}

    def line_4(n: int) -> None:
        for _ in range(steps):
            losses, slopes = [], []
            for i in range(k):
                point = delta[n][i].clone().requires_grad_()
                value = f(theta, images[n] + point, labels[n])
                (slope,) = torch.autograd.grad(w[n][i] * value, point)
                losses.append(value.detach())
                slopes.append(slope)
            ascent = torch.stack(losses) - gamma * (w[n] - 1 / k)
            w_next = project_simplex_by_bisection(w[n] + beta * ascent)
            delta[n] = [projections[i](delta[n][i] + beta * slopes[i], images[n]) for i in range(k)]
            w[n] = w_next

    def line_3(batch: Sequence[int]) -> list[Tensor]:
        leaves = [p.clone().requires_grad_() for p in theta]
        psi = torch.zeros((), dtype=images.dtype)
        for n in batch:
            for i in range(k):
                psi = psi + w[n][i] * f(leaves, images[n] + delta[n][i], labels[n]) / len(batch)
        slopes = torch.autograd.grad(psi, leaves)
        return [(p - rate * g).detach() for p, g in zip(theta, slopes, strict=True)]

    seen = []
    for batch in batches:
        for n in batch:
            line_4(
                n
            )  # of the iteration before: given theta^(t-1), it makes w^(t-1) and delta^(t-1)
        theta = line_3(batch)
        seen.append(theta)
    return seen


# ---------------------------------------------------------------------------------- distance to a plane


def distance_to_plane(w: np.ndarray, margin: float, x: np.ndarray, p: float) -> float:
    """Smallest ||d||_p with margin + w @ d <= 0 and x + d in [0, 1]; inf if there is no such d; p = 0 counts.

    Every entry moves against w, at most to its end of the box; what differs is how the way is shared.
    """
    if margin <= 0:
        return 0.0
    room, slope = np.where(w > 0, x, 1 - x), np.abs(w)
    gain = room * slope  # what an entry takes off the margin at its end of the box
    if gain.sum() < margin:
        return math.inf
    if p == 0:
        return float(np.argmax(np.sort(gain)[::-1].cumsum() >= margin) + 1)
    if p == 1:  # steepest entries first
        left, length = margin, 0.0
        for i in np.argsort(-slope):
            part = min(gain[i], left)
            length += part / slope[i] if part else 0.0
            left -= part
        return length
    step = np.ones_like(slope) if p == math.inf else slope
    low, high = 0.0, 1.0 / slope[slope > 0].min() + 1.0
    for _ in range(200):
        middle = (low + high) / 2
        moved = np.minimum(middle * step, room)
        low, high = (middle, high) if slope @ moved < margin else (low, middle)
    moved = np.where(slope > 0, np.minimum(high * step, room), 0.0)
    return float(moved.max() if p == math.inf else np.sqrt((moved**2).sum()))
