"""Numbers over the epochs of trainings, drawn so that lines at the same place are all seen."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from torch import Tensor

from saddlepoint.report.svg import Frame, coloured, group, svg, tag, text, whole_ticks

__all__ = ["epoch_chart"]

_NEAR = 2.0  # closer lines than that, in units of the chart, would cover each other
_DASH = 7.0
_MARKED = 40  # more epochs have no points

Point = tuple[float, float]


def epoch_chart(
    series: Sequence[Tensor],
    names: Sequence[str],
    label: str,
    *,
    styles: Sequence[str] = (),
    kept: int | None = None,
    band: tuple[Tensor, Tensor] | None = None,
    highest: float | None = None,
) -> Markup:
    """Numbers over epochs, one line per name; fractions on an axis from 0 to 100 %, unless told otherwise.

    Where lines run together, each is drawn in dashes that leave room for those of the others.

    Args:
        series: K tensors, (T,) for epochs 1 to T; each may have a T of its own.
        names: K names.
        label: What the chart shows, for readers who do not see it.
        styles: The class of each line; colours of their own in order if there are none.
        kept: The epoch whose parameters were kept, which is marked.
        band: The ends of the intervals of the last line, (T,) each.
        highest: Where the axis ends, for numbers that are no fractions.

    Example:
        >>> import torch
        >>> same = [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.2, 0.4])]
        >>> chart = epoch_chart(same, ["linf", "union"], "Accuracy", kept=2)
        >>> chart.count("stroke-dasharray"), "linf: 10.0 % to 30.0 %" in chart, ">kept<" in chart
        (2, True, True)
    """
    count = max(len(values) for values in series)
    frame = Frame(left=48, top=22, first=1.0, last=float(count))
    kinds = list(styles) or [coloured(k, "") for k in range(len(series))]
    lines = [
        [(frame.x(t + 1), frame.y(v, highest or 1.0)) for t, v in enumerate(values.tolist())]
        for values in series
    ]
    levels = frame.levels(highest) if highest else frame.levels(100.0, unit=" %")
    parts = [levels, frame.steps(whole_ticks(1, count), "epoch")]
    if kept is not None:
        x = frame.x(kept)
        parts.append(tag("path", "zero", d=f"M{x:.1f} {frame.top}V{frame.base}"))
        # At the left end it would touch the highest number of the axis.
        parts.append(text(x, frame.top - 6, "kept", "start" if kept == 1 else "middle"))
    if band is not None:
        xs = [frame.x(t + 1) for t in range(len(band[0]))]
        back = " ".join(reversed(frame.points(xs, band[0], 1.0).split()))
        edge = f"{frame.points(xs, band[1], 1.0)} {back}"
        parts.append(tag("polygon", f"band {kinds[-1]}", points=edge))
    spoken = []
    for k, (values, name) in enumerate(zip(series, names, strict=True)):
        ends = values[0].item(), values[-1].item()
        said = [f"{end:.3g}" if highest else f"{100 * end:.1f} %" for end in ends]
        spoken.append(f"{name}: {said[0]} to {said[1]}")
        drawn = [
            *_segments(lines, k, kinds[k]),
            *(_dots(lines, k, kinds[k]) if count <= _MARKED else ()),
        ]
        parts.append(group(spoken[-1], *drawn))
    return svg(f"{label}. {'; '.join(spoken)}.", parts, frame.width, frame.height)


def _segments(lines: Sequence[Sequence[Point]], k: int, kind: str) -> list[Markup]:
    """Line k: what runs alone in one piece, what runs with others in dashes of its turn."""
    alone, parts = "", []
    for t in range(len(lines[k]) - 1):
        ends = [(line[t], line[t + 1]) if t + 1 < len(line) else None for line in lines]
        mine = ends[k]
        assert mine is not None
        near = [j for j, other in enumerate(ends) if other is not None and _together(mine, other)]
        path = f"M{mine[0][0]:.1f} {mine[0][1]:.1f}L{mine[1][0]:.1f} {mine[1][1]:.1f}"
        if len(near) == 1:
            alone += path
        else:
            # From the left edge of the chart, so that the turns go on from epoch to epoch.
            begin = mine[0][0] - _DASH * near.index(k)
            turns = (
                f"stroke-dasharray:{_DASH} {_DASH * (len(near) - 1)};stroke-dashoffset:{begin:.1f}"
            )
            parts.append(tag("path", f"line {kind}".strip(), d=path, style=turns))
    return [tag("path", f"line {kind}".strip(), d=alone), *parts] if alone else parts


def _dots(lines: Sequence[Sequence[Point]], k: int, kind: str) -> list[Markup]:
    """The points of line k; of several at one place the first is the largest, and a rim of each is seen."""
    found = []
    for t, (x, y) in enumerate(lines[k]):
        later = [
            j for j, line in enumerate(lines) if j > k and t < len(line) and _close(line[t], (x, y))
        ]
        found.append(tag("circle", f"point {kind}".strip(), cx=x, cy=y, r=2.6 + 1.3 * len(later)))
    return found


def _together(one: tuple[Point, Point], two: tuple[Point, Point]) -> bool:
    return all(_close(a, b) for a, b in zip(one, two, strict=True))


def _close(one: Point, two: Point) -> bool:
    return abs(one[1] - two[1]) < _NEAR
