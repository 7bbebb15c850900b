"""Charts of rates and of distances, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from markupsafe import Markup
from torch import Tensor

from saddlepoint.display import distance_text, radius_text
from saddlepoint.report.svg import PALETTE, Frame, group, shortened, svg, tag, text

__all__ = ["Bar", "interval_bars", "share_bars", "survival_chart"]

Bar = tuple[str, float, float, float]
"""Name, value and the ends of its interval, percent."""

_FRAME = Frame()


def interval_bars(rows: Sequence[Bar], styles: Sequence[str] = ()) -> Markup:
    """Percentages with intervals, one horizontal bar each: (name, value, low, high).

    Args:
        rows: The bars.
        styles: The class of each, such as "other" for what the first is compared with, or "d2" for what has a
            colour of its own on the page; all alike if there are none.

    Example:
        >>> "90.0" in interval_bars([("minmax", 90.0, 85.0, 94.0)])
        True
    """
    step, left, right = 44, 12, 60
    height, width = step * len(rows) + 10, _FRAME.width
    scale = (width - left - right) / 100
    parts = []
    kinds = [f"bar {style}".strip() for style in styles or [""] * len(rows)]
    for index, ((name, value, low, high), kind) in enumerate(zip(rows, kinds, strict=True)):
        y = index * step + 8
        middle, box = y + 25, {"x": left, "y": y + 16, "height": 18, "rx": 3}
        parts.append(text(left, y + 10, shortened(name, 52), "start"))
        parts.append(tag("rect", "track", width=100 * scale, **box))
        parts.append(tag("rect", kind, width=value * scale, **box))
        x1, x2 = left + low * scale, left + high * scale
        whisker = f"M{x1:.1f} {middle}H{x2:.1f}M{x1:.1f} {middle - 5}v10M{x2:.1f} {middle - 5}v10"
        parts.append(tag("path", "whisker", d=whisker))
        parts.append(text(width - right + 8, middle + 4, f"{value:.1f} %", "start"))
    spoken = "; ".join(f"{n}: {v:.1f} percent, {lo:.1f} to {hi:.1f}" for n, v, lo, hi in rows)
    return svg(f"{spoken}.", parts, width, height)


def survival_chart(
    distances: Sequence[Tensor], names: Sequence[str], radius: float, until: float, dashed: bool
) -> Markup:
    """The share of images whose distance is above eps, over eps from 0 to `until`, one line per name.

    Args:
        distances: One tensor per name, (N,); inf where there is none.
        names: Of the lines.
        radius: Marked on the axis.
        until: Where the axis ends.
        dashed: Whether lines are bounds only.

    Example:
        >>> chart = survival_chart([torch.tensor([0.0, 0.1, torch.inf])], ["A"], 0.3, 0.4, False)
        >>> "A: 0.67 without attack, 0.33 at 0.3" in chart
        True
    """
    frame = Frame(last=until or 1.0)
    grid = torch.linspace(0, frame.last, 301, dtype=torch.float64)
    lines, spoken = [], []
    for k, (values, name) in enumerate(zip(distances, names, strict=True)):
        share = (values.double()[None] > grid[:, None]).double().mean(dim=1)
        at = (values.double() > radius * (1 + 1e-6)).double().mean().item()
        path = f"M{frame.left} {frame.y(share[0].item(), 1):.1f}"
        for index in (share[1:] != share[:-1]).nonzero().flatten().tolist():
            x = frame.x(grid[index + 1].item())
            path += f"H{x:.1f}V{frame.y(share[index + 1].item(), 1):.1f}"
        style = f"line d{k % PALETTE}" + (" dashed" if dashed else "")
        where = radius_text(radius)
        spoken.append(f"{name}: {share[0]:.2f} without attack, {at:.2f} at {where}")
        lines.append(group(spoken[-1], tag("path", style, d=f"{path}H{frame.end}")))
    parts = [frame.levels(1.0)]
    parts += [
        text(frame.x(mark), frame.base + 18, distance_text(mark, radius), "middle")
        for mark in _radius_ticks(radius, frame.last)
    ]
    parts.append(tag("path", "zero", d=f"M{frame.x(radius):.1f} {frame.top}V{frame.base}"))
    parts.append(text((frame.left + frame.end) / 2, frame.height - 5, "radius", "middle"))
    label = f"Share of images still right over the radius. {'; '.join(spoken)}."
    return svg(label, parts + lines, frame.width, frame.height)


def share_bars(
    rows: Sequence[tuple[str, Sequence[tuple[str, str, int]]]], last: Sequence[str]
) -> Markup:
    """What became of all images, one horizontal bar per row: (name, parts), a part (style, name, count).

    Args:
        rows: Bars; the parts of each add up to all images.
        last: What is written at the end of each bar.

    Example:
        >>> bar = share_bars([("linf", [("broke s0", "pgd", 3), ("right", "still right", 7)])], ["70 %"])
        >>> "linf: 3 pgd, 7 still right" in bar
        True
    """
    step, left, right = 44, 12, 60
    scale = _FRAME.width - left - right
    parts, spoken = [], []
    for index, ((name, pieces), end) in enumerate(zip(rows, last, strict=True)):
        total = max(sum(count for _, _, count in pieces), 1)
        y, x = index * step + 8, float(left)
        parts.append(text(left, y + 10, shortened(name, 52), "start"))
        for style, what, count in pieces:
            width = scale * count / total
            if count:
                box = tag("rect", style, x=x, y=y + 16, width=width, height=18)
                parts.append(group(f"{what}: {count}", box))
            x += width
        parts.append(text(_FRAME.width - right + 8, y + 29, end, "start"))
        said = ", ".join(f"{count} {what}" for _, what, count in pieces if count)
        spoken.append(f"{name}: {said}")
    return svg("; ".join(spoken) + ".", parts, _FRAME.width, step * len(rows) + 10)


def _radius_ticks(radius: float, until: float) -> list[float]:
    """Where an axis of radii is labelled: whole steps of pixels where the radius is written in them.

    Example:
        >>> [round(255 * tick) for tick in _radius_ticks(8 / 255, 17 / 255)]
        [0, 4, 8, 12, 16]
        >>> _radius_ticks(0.3, 0.6)
        [0.0, 0.15, 0.3, 0.45, 0.6]
    """
    step = radius / 2
    if radius_text(radius).endswith("/255"):
        whole = round(255 * radius)
        step = (
            next((n for n in range(whole // 2, 1, -1) if whole % n == 0), 1 if whole > 1 else 0)
            / 255
        )
        step = step or radius
        while until / step > 8:
            step *= 2
    return [round(step * k, 10) for k in range(math.floor(until / step + 1e-6) + 1)]
