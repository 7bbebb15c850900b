"""The solutions themselves, row by row and without looking at the values: no host round trip."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saddlepoint.projections.arguments import HALF, wide_dtype

__all__ = ["onto_ball", "onto_l0", "onto_simplex"]

# After how many passes it is asked whether all rows are finished: on an accelerator, each question stops it.
# With `brief` it is not asked at all, see `onto_ball`.
_PASSES = {"cpu": 1}
_MOST_PASSES = 12  # nearly always enough: eight are usual
# Where nobody asks; steps of attacks and training on MNIST took eleven at most, in float32.
_BRIEF = 16


def _passes(most: int, v: Tensor, brief: bool) -> tuple[int, bool]:
    """How many passes there are at most, and whether to ask on the way if they were enough."""
    asking = not brief or v.device.type in _PASSES
    return (most if asking else min(most, _BRIEF)), asking


def onto_simplex(v: Tensor) -> Tensor:
    """`project_simplex` of (..., K) points that are known to be finite."""
    # Shifting by the largest entry changes nothing (mu moves along) and keeps the differences exact
    # where they matter, so that entries of size 1e9 still give weights that sum to one.
    wide = v.to(wide_dtype(v.dtype))
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
def onto_ball(
    v: Tensor, p: float, eps: Tensor, lower: Tensor, upper: Tensor, *, brief: bool = False
) -> Tensor:
    """Project (B, D) rows; `eps` is (B, 1).

    With `brief` an accelerator is not asked whether all rows are finished: sixteen passes have to do for p = 1
    and 2, as they do for points a step of a few radii away. A row that would need more, such as one with
    entries of very different sizes far outside the ball, is in ball and box all the same, but may be far from
    the nearest point.
    """
    if v.dtype in HALF:
        wide = onto_ball(v.float(), p, eps, lower.float(), upper.float(), brief=brief)
        return _round_towards_zero(wide, v.dtype)
    if p == math.inf:
        return torch.clamp(v, -eps, eps).clamp_(lower, upper)  # both intervals contain zero
    if p == 0:
        return onto_l0(v.unsqueeze(1), eps, lower.unsqueeze(1), upper.unsqueeze(1)).squeeze(1)
    magnitude = v.abs()
    # |clip(v)| serves as the bound: where the box is active it is c_i, elsewhere it exceeds |z_i| anyway.
    bound = torch.clamp(v, lower, upper).abs_()
    # Four units in the last place: a point on the boundary, or one that was projected before, is inside.
    radius = eps * (1 + 4 * torch.finfo(v.dtype).eps)
    norm = bound.sum(dim=1, keepdim=True) if p == 1 else _l2_norm(bound)
    inside = norm <= radius
    # Below the smallest normal number no point but zero can be told to be in the ball.
    eps = torch.where(eps < torch.finfo(v.dtype).tiny, 0.0, eps)
    solve = _l1_magnitudes if p == 1 else _l2_magnitudes
    size = solve(magnitude, bound, eps, inside, brief)
    norm = size.sum(dim=1, keepdim=True) if p == 1 else _l2_norm(size)
    # What rounding left outside is pulled in along the ray to zero, which stays inside the box.
    size.mul_(torch.where(~inside & (norm > eps), eps / norm, 1.0))
    return torch.copysign(size, v, out=size)


def _l1_magnitudes(
    magnitude: Tensor, bound: Tensor, eps: Tensor, inside: Tensor, brief: bool
) -> Tensor:
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
    most = magnitude.new_full((), torch.finfo(magnitude.dtype).max)
    # One float above the largest entry, so that lam may become that entry itself.
    high = torch.nextafter(magnitude.amax(dim=1, keepdim=True), most)
    low, lam, anchor, offset = (torch.zeros_like(high) for _ in range(4))
    done, error = inside, torch.full_like(high, math.inf)
    passes, asking = _passes(newton_passes + bits, magnitude, brief)
    for index in range(passes):
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
        if asking and _all_on_host(done, index):
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


def _l2_magnitudes(
    magnitude: Tensor, bound: Tensor, eps: Tensor, inside: Tensor, brief: bool
) -> Tensor:
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
    passes, asking = _passes(magnitude.shape[1] + 4, magnitude, brief)
    for index in range(passes):
        torch.mul(v, scale, out=moved)
        torch.minimum(moved, cap, out=part)
        torch.eq(part, moved, out=free).mul_(part)
        total = torch.linalg.vecdot(part, part).unsqueeze(1)
        movable = torch.linalg.vecdot(free, free).unsqueeze(1)  # what still grows with scale
        gap = ((1.0 - total) / movable.clamp_min(tiny)).clamp_min(0.0)
        scale = (scale * torch.where(inside, 1.0, (1.0 + gap).sqrt())).clamp_max(most)
        # NaN ends it too: nobody looks at what is not finite before the step is over.
        done = inside | ~(gap > 2 * torch.finfo(v.dtype).eps)
        if asking and _all_on_host(done, index):
            break
    factor = torch.where(inside, 1.0, scale * unit / top)
    return torch.minimum(torch.mul(magnitude, factor, out=moved), bound)


@torch.no_grad()
def onto_l0(v: Tensor, eps: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Keep the `eps` groups where keeping gains most. v is (B, G, N): N groups of G entries each.

    Keeping entry i instead of setting it to zero lowers the squared distance by
    v_i^2 - (v_i - clip v_i)^2 = clip(v_i) * (2 v_i - clip(v_i)) >= 0, the square of the paper's eta_i.
    """
    if v.dtype in HALF:
        return _round_towards_zero(onto_l0(v.float(), eps, lower.float(), upper.float()), v.dtype)
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
    """True when every row is finished; an accelerator is asked only after many passes, to spare round trips."""
    every = _PASSES.get(done.device.type, _MOST_PASSES)
    return index % every == every - 1 and bool(done.all())
