"""Exact Euclidean projections: the simplex, and lp ball ∩ box for p = 0, 1, 2, inf (Proposition 1).

Every function works on rows: ``v`` is (B, D), each row is projected on its own, in a fixed number of
whole-tensor operations per pass and without a Python loop over rows. Boxes satisfy lower <= 0 <= upper,
so shrinking a point towards zero never leaves them; the last line of every projection relies on it.

Multipliers. With c_i the bound that entry i runs into (upper_i if v_i > 0, else -lower_i) the solutions are

    p = 1    |z_i| = min(max(|v_i| - lam, 0), c_i)     lam >= 0 the root of  sum_i |z_i| = eps
    p = 2    |z_i| = min(scale * |v_i|, c_i)           scale <= 1 the root of  sum_i z_i^2 = eps^2
    p = 0    z_i = clip(v_i) on the eps entries where clipping gains most, 0 elsewhere

and for p = inf the set is itself a box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

__all__ = ["LpBall", "project_lp_box", "project_simplex"]

_NORMS = (0, 1, 2, math.inf)
_HALF = (torch.bfloat16, torch.float16)


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
        >>> project_simplex(torch.tensor([[0.5, 0.9, -1.0]]))
        tensor([[0.3000, 0.7000, 0.0000]])
    """
    if v.dim() == 0 or v.shape[-1] == 0:
        raise ValueError(f"`v` must have a last axis of length >= 1, got shape {tuple(v.shape)}.")
    _check_finite("v", v)
    return _project_simplex(v)


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
        >>> project_lp_box(torch.tensor([[3.0, 1.0]]), 1, 1.0, -1.0, 1.0)
        tensor([[1., 0.]])
        >>> project_lp_box(torch.tensor([[3.0, 4.0]]), 2, 1.0, -1.0, torch.tensor([0.6, 1.0]))
        tensor([[0.6000, 0.8000]])

    Reference: Wang et al., NeurIPS 2021, Proposition 1. The paper finds the multipliers by bisection; here
    they are roots of piecewise linear functions, found exactly in a few passes.
    """
    if v.dim() != 2 or v.shape[1] == 0:
        raise ValueError(f"`v` must have shape (B, D) with D >= 1, got {tuple(v.shape)}.")
    _check_norm(p)
    _check_radius(eps, v.shape[0])
    lower, upper = _as_bound("lower", lower, v), _as_bound("upper", upper, v)
    _check_values(v, lower, upper)
    return _project_rows(v, p, _radius_column(eps, v), lower, upper)


@final
@dataclass(frozen=True)
class LpBall:
    """The perturbations with ||delta||_p <= eps.

    Args:
        p: 0, 1, 2 or ``math.inf``.
        eps: Radius >= 0: a number, or a tensor (B,) with one radius per row.
        unit: What p = 0 counts: "entry" counts every number, "pixel" counts a colour pixel once
            (axis 1 is the channel axis). Other norms know entries only.

    Example:
        >>> ball = LpBall(p=math.inf, eps=0.1)
        >>> ball.project(torch.tensor([[0.5, -0.05]]), torch.tensor(0.0), torch.tensor(1.0))
        tensor([[0.1000, 0.0000]])
    """

    p: float
    eps: float | Tensor
    unit: Literal["entry", "pixel"] = "entry"

    def __post_init__(self) -> None:
        _check_norm(self.p)
        rows = self.eps.shape[0] if isinstance(self.eps, Tensor) and self.eps.dim() == 1 else None
        _check_radius(self.eps, rows)
        if self.unit not in ("entry", "pixel"):
            raise ValueError(f'`unit` must be "entry" or "pixel", got {self.unit!r}.')
        if self.unit == "pixel" and self.p != 0:
            raise ValueError(f'`unit="pixel"` counts pixels and needs p = 0, got p = {self.p}.')

    def project(self, delta: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Nearest point of the ball ∩ box, row by row.

        Args:
            delta: Points, (B, ...), finite.
            lower: Box, broadcastable to delta, <= 0.
            upper: Box, broadcastable to delta, >= 0.

        Returns:
            Projected points, same shape; see `project_lp_box` for the guarantees.
        """
        if delta.dim() < 2 or 0 in delta.shape[1:]:
            raise ValueError(
                f"`delta` must have shape (B, ...) with entries in every row, got {tuple(delta.shape)}."
            )
        _check_radius(self.eps, delta.shape[0])
        lower, upper = _as_bound("lower", lower, delta), _as_bound("upper", upper, delta)
        _check_values(delta, lower, upper)
        return self._project(delta, lower, upper)

    def take(self, rows: Tensor) -> LpBall:
        """The ball of the given rows, (n,): itself unless every row has its own radius."""
        if not isinstance(self.eps, Tensor) or self.eps.dim() == 0:
            return self
        return LpBall(self.p, self.eps[rows.to(self.eps.device)], self.unit)

    def norm(self, delta: Tensor) -> Tensor:
        """||delta||_p per row, (B,), in float64 so that it can be compared with `eps`."""
        if self.p == 0:
            changed = delta != 0
            changed = changed.any(dim=1) if self.unit == "pixel" else changed
            return changed.flatten(1).sum(dim=1).double()
        norm: Tensor = torch.linalg.vector_norm(delta.flatten(1).double(), ord=self.p, dim=1)
        return norm

    def _project(self, delta: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """`project` without looking at the values: no host round trip, for use inside a loop."""
        eps = _radius_column(self.eps, delta)
        if self.unit == "pixel":
            z = _project_l0(delta.flatten(2), eps, _rows(lower, delta, 2), _rows(upper, delta, 2))
        else:
            v = delta.flatten(1)
            z = _project_rows(v, self.p, eps, _rows(lower, delta, 1), _rows(upper, delta, 1))
        return z.reshape(delta.shape)


# ---------------------------------------------------------------------------------------------- solvers


def _project_simplex(v: Tensor) -> Tensor:
    # Shifting by the largest entry changes nothing (mu moves along) and keeps the differences exact
    # where they matter, so that entries of size 1e9 still give weights that sum to one.
    wide = v.to(_wide(v.dtype))
    shifted = wide - wide.amax(dim=-1, keepdim=True)
    ordered = shifted.sort(dim=-1, descending=True).values
    count = torch.arange(1, v.shape[-1] + 1, dtype=wide.dtype, device=v.device)
    excess = ordered.cumsum(dim=-1) - 1.0
    support = (ordered * count > excess).sum(dim=-1, keepdim=True).clamp_min(1)  # 0 if NaN
    mu = excess.gather(-1, support - 1) / support
    w = (shifted - mu).clamp_min(0.0)
    on_simplex = (v.amin(dim=-1, keepdim=True) >= 0) & (
        (wide.sum(dim=-1, keepdim=True) - 1.0).abs() <= 4 * torch.finfo(v.dtype).eps
    )
    return torch.where(on_simplex, v, (w / w.sum(dim=-1, keepdim=True)).to(v.dtype))


@torch.no_grad()
def _project_rows(v: Tensor, p: float, eps: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Project (B, D) rows; `eps` is (B, 1)."""
    if v.dtype in _HALF:
        wide = _project_rows(v.float(), p, eps, lower.float(), upper.float())
        return _round_towards_zero(wide, v.dtype)
    if p == math.inf:
        return torch.clamp(v, torch.maximum(lower, -eps), torch.minimum(upper, eps))
    if p == 0:
        return _project_l0(v.unsqueeze(1), eps, lower.unsqueeze(1), upper.unsqueeze(1)).squeeze(1)
    magnitude = v.abs()
    # |clip(v)| serves as the bound: where the box is active it is c_i, elsewhere it exceeds |z_i| anyway.
    bound = torch.clamp(v, lower, upper).abs_()
    # Four units in the last place: a point on the boundary, or one that was projected before, is inside.
    radius = eps * (1 + 4 * torch.finfo(v.dtype).eps)
    norm = bound.sum(dim=1, keepdim=True) if p == 1 else _l2_norm(bound)
    inside = norm <= radius
    solve = _l1_magnitudes if p == 1 else _l2_magnitudes
    size = solve(magnitude, bound, eps, inside)
    norm = size.sum(dim=1, keepdim=True) if p == 1 else _l2_norm(size)
    # What rounding left outside is pulled in along the ray to zero, which stays inside the box.
    size.mul_(torch.where(~inside & (norm > eps), eps / norm, 1.0))
    return torch.copysign(size, v, out=size)


def _l1_magnitudes(magnitude: Tensor, bound: Tensor, eps: Tensor, inside: Tensor) -> Tensor:
    """|z| = min(max(|v| - lam, 0), bound) with sum |z| = eps: bracketed Newton on lam, (B, 1).

    f(lam) = sum min(max(|v| - lam, 0), bound) - eps decreases and is piecewise linear; its slope is minus the
    number of free entries, those between 0 and their bound. [low, high] always brackets the root. A Newton
    step on the root's own piece hits the root exactly, and a step that would leave the bracket is replaced by
    the midpoint; four to eight passes are usual. Should `newton_passes` not suffice, the bracket is halved
    until its ends are neighbouring floats, so that the iteration ends whatever the input.
    """
    newton_passes, bits = 24, 2 - math.frexp(torch.finfo(magnitude.dtype).eps)[1]
    zero, tolerance = eps.new_zeros(()), 2 * torch.finfo(magnitude.dtype).eps * eps
    rest, part, free = (torch.empty_like(magnitude) for _ in range(3))
    most = magnitude.new_tensor(torch.finfo(magnitude.dtype).max)
    # One float above the largest entry, so that lam may become that entry itself.
    high = torch.nextafter(magnitude.amax(dim=1, keepdim=True), most)
    low, lam, anchor, offset = (torch.zeros_like(high) for _ in range(4))
    done, error = inside, torch.full_like(high, math.inf)
    for index in range(newton_passes + bits):
        torch.sub(magnitude, lam, out=rest)
        torch.clamp(rest, zero, bound, out=part)
        torch.eq(part, rest, out=free)  # 1.0 where 0 <= |v| - lam <= bound
        f = part.sum(dim=1, keepdim=True) - eps
        newton = f / free.sum(dim=1, keepdim=True).clamp_min_(1.0)
        nearer = ~done & (f.abs() < error)
        anchor, offset = torch.where(nearer, lam, anchor), torch.where(nearer, newton, offset)
        error = torch.where(nearer, f.abs(), error)
        low = torch.where(f >= 0, torch.maximum(low, lam), low)
        high = torch.where(f < 0, torch.minimum(high, lam), high)
        target, middle = lam + newton, low + (high - low) / 2
        done = done | (f.abs() <= tolerance) | (middle <= low) | (middle >= high)
        if _all_on_host(done, index):
            break
        # A step too short for the floats around lam still moves on by one: where many entries are tied at
        # lam the slope differs from one side of it to the other, and so does the step.
        target = torch.where(
            target == lam, torch.nextafter(lam, torch.where(f > 0, high, low)), target
        )
        accept = (target > low) & (target < high) & (index < newton_passes)
        lam = torch.where(done, lam, torch.where(accept, target, middle))
    # The root is anchor + offset, kept as two numbers: |v| - anchor is exact where it cancels, so the result
    # is right even where neighbouring floats near the root are further apart than eps.
    offset = torch.where(inside, 0.0, torch.clamp(offset, low - anchor, high - anchor))
    torch.sub(magnitude, anchor, out=rest).sub_(offset)
    return torch.clamp(rest, zero, bound, out=part)


def _l2_magnitudes(magnitude: Tensor, bound: Tensor, eps: Tensor, inside: Tensor) -> Tensor:
    """|z| = min(scale * |v|, bound) with ||z||_2 = eps: Newton on scale^2, (B, 1), from below.

    g(t) = sum min(t v^2, bound^2) - eps^2 is concave, increasing and piecewise linear in t = scale^2. Newton
    from the left of the root never passes it, so the entries at their bound only become more, and it ends at
    the latest when they stop. It ends fast: every step at least quarters the product of |g| and its slope.
    """
    # v in units of its largest entry, z in units of eps: no square that matters over- or underflows. Should
    # the entries still free be so small that theirs do, a pass multiplies scale by 1e19 at most, in float32.
    tiny, most = torch.finfo(magnitude.dtype).tiny, torch.finfo(magnitude.dtype).max
    top, unit = magnitude.amax(dim=1, keepdim=True).clamp_min(tiny), eps.clamp(tiny, most)
    v, cap = magnitude / top, bound / unit
    moved, part, free = (torch.empty_like(magnitude) for _ in range(3))
    scale = torch.linalg.vecdot(v, v).rsqrt_().unsqueeze(1)
    for index in range(magnitude.shape[1] + 4):
        torch.mul(v, scale, out=moved)
        torch.minimum(moved, cap, out=part)
        torch.eq(part, moved, out=free).mul_(part)
        total = torch.linalg.vecdot(part, part).unsqueeze(1)
        movable = torch.linalg.vecdot(free, free).unsqueeze(1)  # what still grows with scale
        gap = ((1.0 - total) / movable.clamp_min(tiny)).clamp_min(0.0)
        scale = (scale * torch.where(inside, 1.0, (1.0 + gap).sqrt())).clamp_max(most)
        if _all_on_host(inside | (gap <= 2 * torch.finfo(v.dtype).eps), index):
            break
    factor = torch.where(inside, 1.0, scale * unit / top)
    return torch.minimum(torch.mul(magnitude, factor, out=moved), bound)


@torch.no_grad()
def _project_l0(v: Tensor, eps: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Keep the `eps` groups where keeping gains most. v is (B, G, N): N groups of G entries each.

    Keeping entry i instead of setting it to zero lowers the squared distance by
    v_i^2 - (v_i - clip v_i)^2 = clip(v_i) * (2 v_i - clip(v_i)) >= 0, the square of the paper's eta_i.
    """
    if v.dtype in _HALF:
        return _round_towards_zero(
            _project_l0(v.float(), eps, lower.float(), upper.float()), v.dtype
        )
    clipped = torch.clamp(v, lower, upper)
    count = v.shape[-1]
    keep = eps.reshape(-1, 1).floor().clamp(0, count).long()  # (B, 1)
    # In units of the largest entry, so that no square overflows.
    top = v.abs().amax(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    part = clipped / top
    gain = (part * (2 * (v / top) - part)).sum(dim=1)  # (B, N)
    order = gain.argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(count, device=v.device).expand_as(order)
    kept = torch.zeros_like(order, dtype=torch.bool).scatter(1, order, rank < keep)
    inside = (clipped != 0).any(dim=1).sum(dim=1, keepdim=True) <= keep
    return torch.where((kept | inside).unsqueeze(1), clipped, 0.0)


def _l2_norm(z: Tensor) -> Tensor:
    """||z||_2 per row, (B, 1), by pairwise summation and safe from overflow."""
    top = z.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
    return top * (z / top).square().sum(dim=1, keepdim=True).sqrt()


def _round_towards_zero(z: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast so that no magnitude grows: the result stays in every ball and box that z is in."""
    cast = z.to(dtype)
    smaller = torch.nextafter(cast, torch.zeros_like(cast))
    return torch.where(cast.abs().to(z.dtype) > z.abs(), smaller, cast)


def _all_on_host(done: Tensor, index: int) -> bool:
    """True when every row is finished; an accelerator is asked only every eighth pass, to spare round trips."""
    return (done.device.type == "cpu" or index % 8 == 7) and bool(done.all())


# --------------------------------------------------------------------------------------------- arguments


def _check_norm(p: float) -> None:
    if p not in _NORMS:
        raise ValueError(f"`p` must be 0, 1, 2 or math.inf, got {p!r}.")


def _check_radius(eps: float | Tensor, rows: int | None) -> None:
    if isinstance(eps, Tensor):
        if eps.dim() != 0 and tuple(eps.shape) != (rows,):
            raise ValueError(
                f"`eps` must be a number or have shape (B,) = ({rows},), got {tuple(eps.shape)}."
            )
        if bool((eps.isnan() | (eps < 0)).any()):
            raise ValueError(
                f"`eps` must be >= 0 in every row, got a minimum of {eps.min().item()}."
            )
    elif not eps >= 0:  # also catches nan
        raise ValueError(f"`eps` must be >= 0, got {eps}.")


def _check_finite(name: str, v: Tensor) -> None:
    if not v.is_floating_point():
        raise TypeError(f"`{name}` must be a floating-point tensor, got {v.dtype}.")
    if not bool(v.isfinite().all()):
        raise ValueError(
            f"`{name}` must be finite, got {int((~v.isfinite()).sum())} NaN or inf entries."
        )


def _check_values(v: Tensor, lower: Tensor, upper: Tensor) -> None:
    _check_finite("v", v)
    for name, wrong in (("lower", ~(lower <= 0)), ("upper", ~(upper >= 0))):
        if bool(wrong.any()):
            raise ValueError(
                f"the box must satisfy lower <= 0 <= upper, but `{name}` does not in {int(wrong.sum())} "
                f"places (lower from {lower.min().item()}, upper to {upper.max().item()})."
            )


def _as_bound(name: str, bound: float | Tensor, v: Tensor) -> Tensor:
    bound = torch.as_tensor(bound, dtype=_wide(v.dtype), device=v.device)
    try:
        fits = torch.broadcast_shapes(bound.shape, v.shape) == v.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"`{name}` must be broadcastable to {tuple(v.shape)}, got {tuple(bound.shape)}."
        )
    return bound if bound.dim() == v.dim() else bound.expand_as(v)


def _rows(bound: Tensor, delta: Tensor, start: int) -> Tensor:
    """A bound flattened from axis `start` on, like delta; it may keep a leading axis of length one."""
    bound = bound.to(_wide(delta.dtype))
    if bound.shape[1:] != delta.shape[1:]:
        bound = bound.expand_as(delta)
    return bound.flatten(start)


def _radius_column(eps: float | Tensor, v: Tensor) -> Tensor:
    return torch.as_tensor(eps, dtype=_wide(v.dtype), device=v.device).reshape(-1, 1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precisions, in which a radius of 259 would become 260."""
    return torch.float32 if dtype in _HALF else dtype
