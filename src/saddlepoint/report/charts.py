"""Charts as inline SVG. Colours come from the style sheet (classes d0 to d7), so that dark mode works."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from markupsafe import Markup
from torch import Tensor

from saddlepoint.display import distance_text, radius_text

__all__ = [
    "PALETTE",
    "Bar",
    "boxplot",
    "epoch_chart",
    "interval_bars",
    "share_bars",
    "survival_chart",
    "weights_chart",
]

PALETTE = 8
"""Number of colours; domain k has colour k modulo this, and a dash pattern from the ninth on."""

Bar = tuple[str, float, float, float]
"""Name, value and the ends of its interval, percent."""

_W, _H = 440, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 12, 12, 40


def weights_chart(weights: Tensor, names: Sequence[str]) -> Markup:
    """How the weights moved: the mean over rows per domain, and a band from the 10th to the 90th percentile.

    Args:
        weights: (T, B, K).
        names: K names.

    Example:
        >>> str(weights_chart(torch.full((3, 4, 2), 0.5), ["A", "B"]))[:4]
        '<svg'
    """
    weights = weights.double()
    count, _, domains = weights.shape
    mean = weights.mean(dim=1)
    low, high = weights.quantile(0.1, dim=1), weights.quantile(0.9, dim=1)
    top = _ceiling(max(high.max().item(), mean.max().item()))
    bands, lines = [], []
    xs = [_x(step, count - 1) for step in range(count)]
    for k in range(domains):
        edge = (
            _points(xs, high[:, k], top)
            + " "
            + " ".join(reversed(_points(xs, low[:, k], top).split()))
        )
        bands.append(_tag("polygon", _class(k, "band"), points=edge))
        line = _tag("polyline", _class(k, "line"), points=_points(xs, mean[:, k], top))
        lines.append(
            Markup("<g><title>{}</title>{}</g>").format(_spoken(names[k], mean[:, k]), line)
        )
    spoken = "; ".join(_spoken(name, mean[:, k]) for k, name in enumerate(names))
    group = Markup('<g class="many">{}</g>' if domains > 5 else "<g>{}</g>")
    shown = [
        _axes(top, 0, count - 1, "step of the attack"),
        group.format(Markup("").join(bands)),
        *lines,
    ]
    return _svg(f"Mean weight of each domain over the steps. {spoken}.", shown)


def boxplot(weights: Tensor, names: Sequence[str]) -> Markup:
    """The distribution of the final weights over rows: quartiles, median, 5th and 95th percentile.

    Args:
        weights: (B, K).
        names: K names.

    Example:
        >>> str(boxplot(torch.full((4, 2), 0.5), ["A", "B"])).count('class="box')
        2
    """
    weights = weights.double()
    domains = weights.shape[1]
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    marks = weights.quantile(levels, dim=0)
    top = _ceiling(marks.max().item())
    parts = [_axes(top, None, None, "")]
    slot = (_W - _LEFT - _RIGHT) / domains
    width = min(46.0, slot * 0.56)
    spoken = []
    for k in range(domains):
        centre = _LEFT + slot * (k + 0.5)
        ys = [_y(value, top) for value in marks[:, k].tolist()]
        parts.append(_box(k, centre, width, ys))
        spoken.append(f"{names[k]}: median {marks[2, k]:.2f}")
        if domains <= 24:
            # Where names do not fit, numbers do: the order is that of the table.
            name = _short(names[k], int(slot / 6.5)) if slot > 50 else str(k + 1)
            parts.append(_text(centre, _H - _BOTTOM + 18, name, "middle"))
    return _svg("Final weights per domain. " + "; ".join(spoken) + ".", parts)


def interval_bars(rows: Sequence[Bar]) -> Markup:
    """Percentages with intervals, one horizontal bar each: (name, value, low, high).

    Example:
        >>> "90.0" in interval_bars([("minmax", 90.0, 85.0, 94.0)])
        True
    """
    step, left, right = 44, 12, 60
    height = step * len(rows) + 10
    scale = (_W - left - right) / 100
    parts = []
    for index, (name, value, low, high) in enumerate(rows):
        y = index * step + 8
        middle = y + 25
        parts.append(_text(left, y + 10, _short(name, 52), "start"))
        parts.append(_tag("rect", "track", x=left, y=y + 16, width=100 * scale, height=18, rx=3))
        parts.append(
            _tag(
                "rect", _class(index, "bar"), x=left, y=y + 16, width=value * scale, height=18, rx=3
            )
        )
        x1, x2 = left + low * scale, left + high * scale
        whisker = f"M{x1:.1f} {middle}H{x2:.1f}M{x1:.1f} {middle - 5}v10M{x2:.1f} {middle - 5}v10"
        parts.append(_tag("path", "whisker", d=whisker))
        parts.append(_text(_W - right + 8, middle + 4, f"{value:.1f} %", "start"))
    spoken = "; ".join(f"{n}: {v:.1f} percent, {lo:.1f} to {hi:.1f}" for n, v, lo, hi in rows)
    return _svg(f"{spoken}.", parts, height)


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
    until = until or 1.0
    grid = torch.linspace(0, until, 301, dtype=torch.float64)
    lines, spoken = [], []
    for k, (values, name) in enumerate(zip(distances, names, strict=True)):
        share = (values.double()[None] > grid[:, None]).double().mean(dim=1)
        at = (values.double() > radius * (1 + 1e-6)).double().mean().item()
        path = f"M{_LEFT} {_y(share[0].item(), 1):.1f}"
        for index in (share[1:] != share[:-1]).nonzero().flatten().tolist():
            x = _LEFT + (_W - _LEFT - _RIGHT) * (index + 1) / 300
            path += f"H{x:.1f}V{_y(share[index + 1].item(), 1):.1f}"
        style = f"line d{k % PALETTE}" + (" dashed" if dashed else "")
        where = radius_text(radius)
        spoken.append(f"{name}: {share[0]:.2f} without attack, {at:.2f} at {where}")
        line = _tag("path", style, d=f"{path}H{_W - _RIGHT}")
        lines.append(Markup("<g><title>{}</title>{}</g>").format(spoken[-1], line))
    scale = (_W - _LEFT - _RIGHT) / until
    parts = [_axes(1.0, None, None, "")]
    parts += [
        _text(_LEFT + mark * scale, _H - _BOTTOM + 18, distance_text(mark, radius), "middle")
        for mark in _radius_ticks(radius, until)
    ]
    x = _LEFT + radius * scale
    parts.append(_tag("path", "zero", d=f"M{x:.1f} {_TOP}V{_H - _BOTTOM}"))
    parts.append(_text((_LEFT + _W - _RIGHT) / 2, _H - 5, "radius", "middle"))
    return _svg(f"Share of images still right over the radius. {'; '.join(spoken)}.", parts + lines)


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


def epoch_chart(
    series: Sequence[Tensor], names: Sequence[str], label: str, dashed: Sequence[str] = ()
) -> Markup:
    """Numbers over epochs, one line per name.

    Args:
        series: K tensors, (T,) for epochs 1 to T; each may have a T of its own.
        names: K names.
        label: What the chart shows, for readers who do not see it.
        dashed: Lines that others may lie under, drawn with gaps.

    Example:
        >>> series = [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.4])]
        >>> str(epoch_chart(series, ["linf", "l2"], "Accuracy")).count("<polyline")
        2
    """
    count = max(len(values) for values in series)
    top = _ceiling(max(values.max().item() for values in series))
    parts = [_axes(top, 1, count, "epoch")]
    spoken = []
    for k, (values, name) in enumerate(zip(series, names, strict=True)):
        xs = [_x(epoch, count) for epoch in range(1, len(values) + 1)]
        spoken.append(f"{name}: {values[0]:.2f} to {values[-1]:.2f}")
        style = _class(k, "line") + (" dashed" if name in dashed else "")
        line = _tag("polyline", style, points=_points(xs, values.double(), top))
        parts.append(Markup("<g><title>{}</title>{}</g>").format(spoken[-1], line))
    return _svg(f"{label}. {'; '.join(spoken)}.", parts)


def share_bars(
    rows: Sequence[tuple[str, Sequence[tuple[str, str, int]]]], last: Sequence[str]
) -> Markup:
    """What became of all images, one horizontal bar per row: (name, parts), a part (style, name, count).

    Args:
        rows: Bars; the parts of each add up to all images.
        last: What is written at the end of each bar.

    Example:
        >>> bar = share_bars([("linf", [("bar d0", "pgd", 3), ("right", "still right", 7)])], ["70 %"])
        >>> "linf: 3 pgd, 7 still right" in bar
        True
    """
    step, left, right = 44, 12, 60
    scale = _W - left - right
    parts, spoken = [], []
    for index, ((name, pieces), end) in enumerate(zip(rows, last, strict=True)):
        total = max(sum(count for _, _, count in pieces), 1)
        y, x = index * step + 8, float(left)
        parts.append(_text(left, y + 10, _short(name, 52), "start"))
        for style, what, count in pieces:
            width = scale * count / total
            if count:
                box = _tag("rect", style, x=x, y=y + 16, width=width, height=18)
                parts.append(Markup("<g><title>{}: {}</title>{}</g>").format(what, count, box))
            x += width
        parts.append(_text(_W - right + 8, y + 29, end, "start"))
        said = ", ".join(f"{count} {what}" for _, what, count in pieces if count)
        spoken.append(f"{name}: {said}")
    return _svg("; ".join(spoken) + ".", parts, step * len(rows) + 10)


def _box(k: int, centre: float, width: float, ys: Sequence[float]) -> Markup:
    low, first, median, third, high = ys
    left, right = centre - width / 2, centre + width / 2
    stems = f"M{centre:.1f} {low:.1f}V{first:.1f}M{centre:.1f} {third:.1f}V{high:.1f}"
    caps = "".join(f"M{centre - width / 4:.1f} {y:.1f}h{width / 2:.1f}" for y in (low, high))
    return Markup("").join(
        [
            _tag("path", _class(k, "stem"), d=stems + caps),
            _tag(
                "rect",
                _class(k, "box"),
                x=left,
                y=third,
                width=width,
                height=max(first - third, 1.0),
                rx=2,
            ),
            _tag("path", _class(k, "median"), d=f"M{left:.1f} {median:.1f}H{right:.1f}"),
        ]
    )


def _axes(top: float, first: int | None, last: int | None, caption: str) -> Markup:
    parts = []
    for tick in range(5):
        value = top * tick / 4
        y = _y(value, top)
        parts.append(_tag("path", "grid", d=f"M{_LEFT} {y:.1f}H{_W - _RIGHT}"))
        parts.append(_text(_LEFT - 8, y + 4, f"{value:.2f}".rstrip("0").rstrip("."), "end"))
    if first is not None and last is not None:
        few = last - first < 10
        for tick in range(first, last + 1) if few else sorted({first, (first + last) // 2, last}):
            parts.append(_text(_x(tick, last), _H - _BOTTOM + 18, str(tick), "middle"))
        parts.append(_text((_LEFT + _W - _RIGHT) / 2, _H - 5, caption, "middle"))
    return Markup("").join(parts)


def _svg(label: str, parts: Sequence[Markup], height: int = _H) -> Markup:
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return head.format(_W, height, label) + Markup("").join(parts) + Markup("</svg>")


def _tag(name: str, style: str, **attributes: object) -> Markup:
    pairs = Markup("").join(
        Markup(' {}="{}"').format(key, f"{value:.1f}" if isinstance(value, float) else value)
        for key, value in attributes.items()
    )
    return Markup("<{} class='{}'{}/>".replace("'", '"')).format(Markup(name), style, pairs)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
        f"{x:.1f}", f"{y:.1f}", anchor, text
    )


def _class(k: int, kind: str) -> str:
    return f"{kind} d{k % PALETTE}" + (" dashed" if (k // PALETTE) % 2 else "")


def _points(xs: Sequence[float], values: Tensor, top: float) -> str:
    return " ".join(f"{x:.1f},{_y(v, top):.1f}" for x, v in zip(xs, values.tolist(), strict=True))


def _x(step: float, last: int) -> float:
    return _LEFT + (_W - _LEFT - _RIGHT) * step / max(last, 1)


def _y(value: float, top: float) -> float:
    return _H - _BOTTOM - (_H - _BOTTOM - _TOP) * value / top


def _ceiling(value: float) -> float:
    marks = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    return next((c for c in marks if value <= c + 1e-6), float(math.ceil(value)))


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else name[: max(1, length - 1)] + "…"


def _spoken(name: str, mean: Tensor) -> str:
    return f"{name}: from {mean[0]:.2f} to {mean[-1]:.2f}"
