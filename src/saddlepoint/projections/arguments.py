"""What projections are given: norms, radii, bounds and points, checked and brought into shape."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "HALF",
    "NORMS",
    "as_bound",
    "bound_rows",
    "check_finite",
    "check_norm",
    "check_radius",
    "check_values",
    "column",
    "norm_name",
    "wide_dtype",
]

NORMS = {"linf": math.inf, "l2": 2.0, "l1": 1.0, "l0": 0.0}
HALF = (torch.bfloat16, torch.float16)


def check_norm(p: float) -> None:
    """Refuse what is none of the four norms."""
    if p not in NORMS.values():
        raise ValueError(f"`p` must be 0, 1, 2 or math.inf, got {p!r}.")


def norm_name(p: float) -> str:
    """The name of a norm in settings, files and tables.

    Example:
        >>> norm_name(math.inf), norm_name(2)
        ('linf', 'l2')
    """
    check_norm(p)
    return next(name for name, value in NORMS.items() if value == p)


def check_radius(eps: float | Tensor, rows: int | None) -> None:
    """Refuse what is no radius, or not one for each of `rows` rows."""
    if isinstance(eps, Tensor):
        if eps.dim() != 0 and tuple(eps.shape) != (rows,):
            raise ValueError(
                f"`eps` must be a number or have shape (B,) = ({rows},), got {tuple(eps.shape)}."
            )
        if bool((eps.isnan() | (eps < 0)).any()):
            raise ValueError(
                f"`eps` must be >= 0 in every row, got a minimum of {eps.min().item()}."
            )
        return
    if not hasattr(eps, "__float__"):
        raise TypeError(f"`eps` must be a number or a tensor, got {type(eps).__name__} {eps!r}.")
    if not eps >= 0:  # also catches nan
        raise ValueError(f"`eps` must be >= 0, got {eps}.")


def check_finite(name: str, v: Tensor) -> None:
    """Refuse integers, NaN and infinity."""
    if not v.is_floating_point():
        raise TypeError(f"`{name}` must be a floating-point tensor, got {v.dtype}.")
    if not bool(v.isfinite().all()):
        raise ValueError(
            f"`{name}` must be finite, got {int((~v.isfinite()).sum())} NaN or inf entries."
        )


def check_values(v: Tensor, lower: Tensor, upper: Tensor) -> None:
    """Refuse points that are not finite and boxes that do not contain zero."""
    check_finite("v", v)
    for name, wrong in (("lower", ~(lower <= 0)), ("upper", ~(upper >= 0))):
        if bool(wrong.any()):
            raise ValueError(
                f"the box must satisfy lower <= 0 <= upper, but `{name}` does not in {int(wrong.sum())} "
                f"places (lower from {lower.min().item()}, upper to {upper.max().item()})."
            )


def as_bound(name: str, bound: float | Tensor, v: Tensor) -> Tensor:
    """A bound as a tensor with the axes of v, or an error."""
    bound = torch.as_tensor(bound, dtype=wide_dtype(v.dtype), device=v.device)
    try:
        whole = bound.expand_as(v)
    except RuntimeError:
        raise ValueError(
            f"`{name}` must be broadcastable to {tuple(v.shape)}, got {tuple(bound.shape)}."
        ) from None
    return bound if bound.dim() == v.dim() else whole


def bound_rows(bound: Tensor, delta: Tensor, start: int) -> Tensor:
    """A bound flattened from axis `start` on, like delta; it may keep a leading axis of length one."""
    bound = bound.to(wide_dtype(delta.dtype))
    if bound.shape[1:] != delta.shape[1:]:
        bound = bound.expand_as(delta)
    return bound.flatten(start)


def column(value: float | Tensor, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A number, (1, 1, ...), or one for every row, (B, 1, ...), to go with `like`, (B, ...).

    The device itself writes a number: one that is copied to it would make the host wait.

    Example:
        >>> column(0.5, torch.zeros(3, 2)), column(torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3, 2)).shape
        (tensor([[0.5000]]), torch.Size([3, 1]))
    """
    dtype, ones = dtype or like.dtype, (1,) * (like.dim() - 1)
    if isinstance(value, Tensor):
        return value.to(like.device, dtype).reshape(-1, *ones)
    return torch.full((1, *ones), float(value), dtype=dtype, device=like.device)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precisions, in which a radius of 259 would become 260."""
    return torch.float32 if dtype in HALF else dtype
