"""The projections by themselves, with checked arguments."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.projections.arguments import (
    as_bound,
    check_finite,
    check_norm,
    check_radius,
    check_values,
    column,
    wide_dtype,
)
from saddlepoint.projections.solvers import onto_ball, onto_simplex

__all__ = ["project_lp_box", "project_simplex"]


def project_simplex(v: Tensor) -> Tensor:
    """Euclidean projection onto the probability simplex, along the last axis.

        argmin_w ||w - v||_2   subject to   w >= 0,  sum_i w_i = 1

    The solution is w = max(v - mu, 0), where mu is the root of sum_i max(v_i - mu, 0) = 1 (eq. 9). It is
    found exactly from the sorted entries: mu depends only on how many of the largest stay positive.

    Args:
        v: Points to project, (..., K), finite.

    Returns:
        Projected points, same shape and dtype. Rows already on the simplex are returned bit for bit.

    Example:
        >>> import torch
        >>> project_simplex(torch.tensor([[0.5, 0.9, -1.0]]))
        tensor([[0.3000, 0.7000, 0.0000]])
    """
    if v.dim() == 0 or v.shape[-1] == 0:
        raise ValueError(f"`v` must have a last axis of length >= 1, got shape {tuple(v.shape)}.")
    check_finite("v", v)
    return onto_simplex(v)


def project_lp_box(
    v: Tensor, p: float, eps: float | Tensor, lower: float | Tensor, upper: float | Tensor
) -> Tensor:
    """Euclidean projection onto an lp ball intersected with a box.

        argmin_z ||z - v||_2   subject to   ||z||_p <= eps,  lower <= z <= upper

    Args:
        v: Points to project, (B, D), finite.
        p: 0, 1, 2 or ``math.inf``. For p = 0, `eps` counts non-zero entries (a fraction is rounded down).
        eps: Radius >= 0, a number or one value per row, (B,). Infinity leaves only the box.
        lower: Box, broadcastable to v, <= 0; -inf is allowed.
        upper: Box, broadcastable to v, >= 0; inf is allowed.

    Returns:
        Projected points, (B, D), in the dtype of v, detached from any graph. The box holds exactly, the
        norm up to 1e-6 (float32) or 1e-12 (float64) relative; half precisions are rounded towards zero.
        Rows inside the set are returned bit for bit. Rows do not influence each other.

    Example:
        >>> import torch
        >>> project_lp_box(torch.tensor([[3.0, 1.0]]), 1, 1.0, -1.0, 1.0)
        tensor([[1., 0.]])
        >>> project_lp_box(torch.tensor([[3.0, 4.0]]), 2, 1.0, -1.0, torch.tensor([0.6, 1.0]))
        tensor([[0.6000, 0.8000]])

    Reference: Wang et al., NeurIPS 2021, Proposition 1. The paper finds the multipliers by bisection; here
    they are roots of piecewise linear functions, found exactly in a few passes.
    """
    if v.dim() != 2 or v.shape[1] == 0:
        raise ValueError(f"`v` must have shape (B, D) with D >= 1, got {tuple(v.shape)}.")
    check_norm(p)
    check_radius(eps, v.shape[0])
    lower, upper = as_bound("lower", lower, v), as_bound("upper", upper, v)
    check_values(v, lower, upper)
    return onto_ball(v, p, column(eps, v, wide_dtype(v.dtype)), lower, upper)
