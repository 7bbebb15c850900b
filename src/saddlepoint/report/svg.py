"""What charts are made of: inline SVG whose colours come from the style sheet, every value escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from markupsafe import Markup
from torch import Tensor

__all__ = [
    "PALETTE",
    "Frame",
    "ceiling",
    "coloured",
    "group",
    "shortened",
    "svg",
    "tag",
    "text",
    "whole_ticks",
]

PALETTE = 8
"""Number of colours; domain k has colour k modulo this, and a dash pattern from the ninth on."""


@final
@dataclass(frozen=True)
class Frame:
    """The size of a chart and where its axes are; `first` and `last` are the ends of the horizontal one."""

    width: int = 440
    height: int = 260
    left: int = 40
    right: int = 12
    top: int = 12
    bottom: int = 40
    first: float = 0.0
    last: float = 1.0

    @property
    def end(self) -> int:
        """Where the horizontal axis ends."""
        return self.width - self.right

    @property
    def base(self) -> int:
        """Where the vertical axis begins."""
        return self.height - self.bottom

    def x(self, value: float) -> float:
        """The place of a value between `first` and `last`."""
        # A range of one value has it in the middle.
        part = (value - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return self.left + (self.end - self.left) * part

    def y(self, value: float, highest: float) -> float:
        """The place of a value between 0 and `highest`."""
        return self.base - (self.base - self.top) * value / highest

    def points(self, xs: Sequence[float], values: Tensor, highest: float) -> str:
        """The points of a line at these places."""
        pairs = zip(xs, values.tolist(), strict=True)
        return " ".join(f"{x:.1f},{self.y(value, highest):.1f}" for x, value in pairs)

    def levels(self, highest: float, *, unit: str = "", count: int = 4) -> Markup:
        """Lines from left to right at equal distances, and their values."""
        parts = []
        for tick in range(count + 1):
            value = highest * tick / count
            y = self.y(value, highest)
            shown = f"{value:.2f}".rstrip("0").rstrip(".") + unit
            parts.append(tag("path", "grid", d=f"M{self.left} {y:.1f}H{self.end}"))
            parts.append(text(self.left - 8, y + 4, shown, "end"))
        return Markup("").join(parts)

    def steps(self, ticks: Sequence[int], caption: str) -> Markup:
        """Whole numbers below the chart, and what they count."""
        parts = [text(self.x(tick), self.base + 18, str(tick), "middle") for tick in ticks]
        parts.append(text((self.left + self.end) / 2, self.height - 5, caption, "middle"))
        return Markup("").join(parts)


def svg(label: str, parts: Sequence[Markup], width: int, height: int) -> Markup:
    """A chart; the label is for readers who do not see it."""
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return head.format(width, height, label) + Markup("").join(parts) + Markup("</svg>")


def tag(name: str, kind: str, **attributes: object) -> Markup:
    """An element of a class of the style sheet.

    Example:
        >>> str(tag("rect", "bar", x=1.25, rx=2))
        '<rect class="bar" x="1.2" rx="2"/>'
    """
    pairs = Markup("").join(
        Markup(' {}="{}"').format(key, f"{value:.1f}" if isinstance(value, float) else value)
        for key, value in attributes.items()
    )
    return Markup("<{} class='{}'{}/>".replace("'", '"')).format(Markup(name), kind, pairs)


def text(x: float, y: float, words: str, anchor: str) -> Markup:
    """Words at a place, which is their "start", "middle" or "end"."""
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
        f"{x:.1f}", f"{y:.1f}", anchor, words
    )


def group(title: str, *parts: Markup) -> Markup:
    """Elements with a name that the pointer shows."""
    return Markup("<g><title>{}</title>{}</g>").format(title, Markup("").join(parts))


def coloured(k: int, kind: str) -> str:
    """The classes of an element about domain k."""
    return f"{kind} d{k % PALETTE}" + (" dashed" if (k // PALETTE) % 2 else "")


def ceiling(value: float) -> float:
    """Where an axis ends that shows a value: 0.1, 0.2, 0.4 to 1 by 0.2, then whole numbers."""
    marks = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    return next((c for c in marks if value <= c + 1e-6), float(math.ceil(value)))


def shortened(name: str, length: int) -> str:
    """A name that fits."""
    return name if len(name) <= length else name[: max(1, length - 1)] + "…"


def whole_ticks(first: int, last: int, most: int = 8) -> list[int]:
    """Whole numbers at equal distances, as many as fit; from the first where all fit.

    Example:
        >>> whole_ticks(1, 4), whole_ticks(1, 50), whole_ticks(0, 20)
        ([1, 2, 3, 4], [10, 20, 30, 40, 50], [0, 5, 10, 15, 20])
    """
    for power in range(12):
        for step in (10**power, 2 * 10**power, 5 * 10**power):
            ticks = (
                [first] if last == first else list(range(-(-first // step) * step, last + 1, step))
            )
            if len(ticks) <= most:
                return ticks
    return [first, last]
