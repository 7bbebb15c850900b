"""Charts of weights: how they moved, where they ended, and how they are spread over the images of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from markupsafe import Markup
from torch import Tensor

from saddlepoint.report.svg import (
    Frame,
    ceiling,
    coloured,
    group,
    shortened,
    svg,
    tag,
    text,
    whole_ticks,
)

__all__ = ["boxplot", "histogram", "weights_chart", "weights_moved", "weights_panels"]

_TOGETHER = 2  # domains that share one chart; the bands of more cover each other
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 20
# Ends of an axis of counts, of which a quarter is a whole number.
_COUNTS = (4, 8, *(k * 10**power for power in range(1, 10) for k in (2, 4, 6, 8)))


def weights_moved(weights: Tensor, names: Sequence[str]) -> list[Markup]:
    """How the weights moved: one chart for a few domains, or one for every domain.

    Args:
        weights: (T, B, K).
        names: K names.
    """
    if len(names) > _TOGETHER:
        return weights_panels(weights, names)
    return [weights_chart(weights, names)]


def weights_chart(weights: Tensor, names: Sequence[str]) -> Markup:
    """How the weights moved: the mean over rows per domain, and a band from the 10th to the 90th percentile.

    Args:
        weights: (T, B, K).
        names: K names.

    Example:
        >>> str(weights_chart(torch.full((3, 4, 2), 0.5), ["A", "B"]))[:4]
        '<svg'
    """
    mean, low, high, top = _moved(weights)
    frame = Frame(last=len(mean) - 1)
    bands = [_band(frame, k, low[:, k], high[:, k], top) for k in range(len(names))]
    lines = [_line(frame, name, k, mean[:, k], top) for k, name in enumerate(names)]
    spoken = "; ".join(_spoken(name, mean[:, k]) for k, name in enumerate(names))
    axes = [frame.levels(top), frame.steps(whole_ticks(0, len(mean) - 1), "step of the attack")]
    label = f"Mean weight of each domain over the steps. {spoken}."
    return svg(label, [*axes, *bands, *lines], frame.width, frame.height)


def weights_panels(weights: Tensor, names: Sequence[str]) -> list[Markup]:
    """The same with a small chart for every domain, all on one scale; the means of the others are behind it.

    Args:
        weights: (T, B, K).
        names: K names.

    Example:
        >>> charts = weights_panels(torch.full((3, 4, 5), 0.2), "ABCDE")
        >>> len(charts), str(charts[0]).count('class="band'), str(charts[0]).count('class="behind"')
        (5, 1, 4)
    """
    mean, low, high, top = _moved(weights)
    frame = Frame(width=240, height=160, left=34, bottom=34, last=len(mean) - 1)
    axes = [frame.levels(top, count=2), frame.steps(whole_ticks(0, len(mean) - 1, 4), "step")]
    xs = [frame.x(step) for step in range(len(mean))]
    behind = [
        tag("polyline", "behind", points=frame.points(xs, mean[:, k], top))
        for k in range(len(names))
    ]
    panels = []
    for k, name in enumerate(names):
        parts = [*axes, *behind[:k], *behind[k + 1 :]]
        parts.append(_band(frame, k, low[:, k], high[:, k], top))
        parts.append(_line(frame, name, k, mean[:, k], top))
        label = f"Mean weight over the steps. {_spoken(name, mean[:, k])}."
        panels.append(svg(label, parts, frame.width, frame.height))
    return panels


def boxplot(weights: Tensor, names: Sequence[str], *, alike: bool = False) -> Markup:
    """The distribution of the final weights over rows: quartiles, median, 5th and 95th percentile.

    Args:
        weights: (B, K).
        names: K names.
        alike: Whether the boxes are no domains, and so have no colours of their own.

    Example:
        >>> str(boxplot(torch.full((4, 2), 0.5), ["A", "B"])).count('class="box')
        2
    """
    weights = weights.double()
    domains, frame = weights.shape[1], Frame()
    marks = weights.quantile(torch.tensor(_LEVELS, dtype=torch.float64), dim=0)
    top = ceiling(marks.max().item())
    parts = [frame.levels(top)]
    slot = (frame.end - frame.left) / domains
    width = min(46.0, slot * 0.56)
    spoken = []
    for k in range(domains):
        centre = frame.left + slot * (k + 0.5)
        ys = [frame.y(value, top) for value in marks[:, k].tolist()]
        parts.append(_box(None if alike else k, centre, width, ys))
        spoken.append(f"{names[k]}: median {marks[2, k]:.2f}")
        if domains <= 24:
            # Where names do not fit, numbers do: the order is that of the table.
            name = shortened(names[k], int(slot / 6.5)) if slot > 50 else str(k + 1)
            parts.append(text(centre, frame.base + 18, name, "middle"))
    label = "Final weights. " + "; ".join(spoken) + "."
    return svg(label, parts, frame.width, frame.height)


def histogram(values: Mapping[str, Tensor], names: Mapping[str, str], mark: float) -> Markup:
    """How many weights there are of every size, piled up by what became of the image.

    Args:
        values: Weights by a style of the page, (N,) each.
        names: What each style means.
        mark: A weight that is marked: that of equal shares.

    Example:
        >>> values = {"hit": torch.tensor([0.0, 0.1]), "miss": torch.tensor([0.9])}
        >>> chart = histogram(values, {"hit": "fooled"}, 0.5)
        >>> chart.count("<rect"), "1 from 0.00 to 0.05: fooled" in chart
        (3, True)
    """
    top = ceiling(max([mark, *(float(v.max()) for v in values.values() if len(v))]))
    counts = {s: torch.histc(v.float(), bins=_BINS, min=0.0, max=top) for s, v in values.items()}
    most = max(float(sum(counts.values(), torch.zeros(_BINS)).max()), 1.0)
    frame = Frame(last=top)
    highest = next(k for k in _COUNTS if k >= most)
    parts = [frame.levels(highest)]
    for bin_ in range(_BINS):
        low, high = top * bin_ / _BINS, top * (bin_ + 1) / _BINS
        height = 0.0
        for style, found in counts.items():
            if count := int(found[bin_]):
                y, below = frame.y(height + count, highest), frame.y(height, highest)
                width = frame.x(high) - frame.x(low) - 1.5
                box = tag("rect", style, x=frame.x(low), y=y, width=width, height=below - y)
                title = f"{count} from {low:.2f} to {high:.2f}: {names.get(style, style)}"
                parts.append(group(title, box))
                height += count
    ticks = [top * k / 4 for k in range(5)]
    parts += [text(frame.x(t), frame.base + 18, f"{t:.2g}", "middle") for t in ticks]
    parts.append(
        text((frame.left + frame.end) / 2, frame.height - 5, "weight at the end", "middle")
    )
    parts.append(tag("path", "zero", d=f"M{frame.x(mark):.1f} {frame.top}V{frame.base}"))
    told = "; ".join(f"{len(v)} {names.get(s, s)}" for s, v in values.items())
    return svg(f"Images by their weight at the end. {told}.", parts, frame.width, frame.height)


def _moved(weights: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """Mean, 10th and 90th percentile over rows, (T, K) each, and where the axis ends."""
    weights = weights.double()
    mean = weights.mean(dim=1)
    low, high = weights.quantile(0.1, dim=1), weights.quantile(0.9, dim=1)
    return mean, low, high, ceiling(max(high.max().item(), mean.max().item()))


def _band(frame: Frame, k: int, low: Tensor, high: Tensor, top: float) -> Markup:
    xs = [frame.x(step) for step in range(len(low))]
    back = " ".join(reversed(frame.points(xs, low, top).split()))
    return tag("polygon", coloured(k, "band"), points=f"{frame.points(xs, high, top)} {back}")


def _line(frame: Frame, name: str, k: int, mean: Tensor, top: float) -> Markup:
    xs = [frame.x(step) for step in range(len(mean))]
    line = tag("polyline", coloured(k, "line"), points=frame.points(xs, mean, top))
    return group(_spoken(name, mean), line)


def _box(k: int | None, centre: float, width: float, ys: Sequence[float]) -> Markup:
    def style(kind: str) -> str:
        return kind if k is None else coloured(k, kind)

    low, first, median, third, high = ys
    left, right = centre - width / 2, centre + width / 2
    stems = f"M{centre:.1f} {low:.1f}V{first:.1f}M{centre:.1f} {third:.1f}V{high:.1f}"
    caps = "".join(f"M{centre - width / 4:.1f} {y:.1f}h{width / 2:.1f}" for y in (low, high))
    size = {"x": left, "y": third, "width": width, "height": max(first - third, 1.0), "rx": 2}
    return Markup("").join(
        [
            tag("path", style("stem"), d=stems + caps),
            tag("rect", style("box"), **size),
            tag("path", style("median"), d=f"M{left:.1f} {median:.1f}H{right:.1f}"),
        ]
    )


def _spoken(name: str, mean: Tensor) -> str:
    return f"{name}: from {mean[0]:.2f} to {mean[-1]:.2f}"
