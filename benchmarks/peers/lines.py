"""The lines of a table from its cells, and what can be said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from saddlepoint.evaluation.rates import wilson

from .measure import Cell

SMALL = 50
"""Images below which a page says that it compares nothing yet, and a case is not in its summaries."""

FASTER, WEAKER = 5.0, 1.0
"""Of `quick` beside AutoAttack: times as fast at least, and points weaker at most."""


@dataclass(frozen=True)
class Line:
    """What a method did on all parts of a case."""

    method: str
    images: int
    fooled: int
    lost: int
    evaluations: float
    seconds: float
    time_ratio: float  # over the first method
    time_ratios: tuple[float, ...] = ()  # of the parts, of which it is the median

    @property
    def share(self) -> float:
        return self.fooled / self.images

    @property
    def percent(self) -> str:
        return f"{100 * self.share:.1f}"

    def beside(self, other: Line) -> str:
        """Whether the 95 % intervals of both shares, each alone, overlap."""
        (low, high), (other_low, other_high) = (
            wilson(line.fooled, line.images) for line in (self, other)
        )
        return "overlap" if low <= other_high and other_low <= high else "apart"

    @property
    def time(self) -> str:
        """The ratio of times, with the lowest and the highest of the parts."""
        if not self.time_ratios:
            return number(self.time_ratio)
        low, high = min(self.time_ratios), max(self.time_ratios)
        return f"{number(self.time_ratio)} ({number(low)} to {number(high)})"


def lines(cells: Mapping[str, Cell], first: str) -> list[Line]:
    """One line per method, in the order of the cells; times relative to those of `first`."""
    by_method: dict[str, dict[str, Cell]] = {}
    for name, cell in cells.items():
        method, _, part = name.rpartition("/")
        by_method.setdefault(method, {})[part] = cell
    ours = by_method.get(first, {})
    found = []
    for method, parts in by_method.items():
        images = sum(cell["images"] for cell in parts.values())
        shared = [parts[part]["seconds"] / ours[part]["seconds"] for part in parts if part in ours]
        found.append(
            Line(
                method,
                images,
                sum(cell["fooled"] for cell in parts.values()),
                sum(cell["outside"] + cell["unusable"] for cell in parts.values()),
                sum(cell["evaluations"] * cell["images"] for cell in parts.values()) / images,
                sum(cell["seconds"] for cell in parts.values()),
                median(shared) if shared else float("nan"),
                tuple(shared),
            )
        )
    return found


def ours_and_best(case: Mapping[str, Any]) -> tuple[Line, Line] | None:
    """Our line, and the method of another library that breaks most, of equal ones the one in less time."""
    found = lines(case["cells"], case["methods"][0])
    ours = [line for line in found if line.method == case["methods"][0]]
    others = [line for line in found if line.method in case["peers"]]
    if not ours or not others:
        return None
    return ours[0], max(others, key=lambda line: (line.share, -line.seconds))


def large(cases: Mapping[str, Any], room: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Finished tables of attacks, of one room or of all, with images enough to be in a summary."""
    for key, case in finished(cases):
        if key.startswith(room) and case["settings"]["images"] >= SMALL:
            yield key, case


def finished(cases: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Tables of attacks of which every cell is measured: others compare methods on other images."""
    for key, case in cases.items():
        if not key.startswith("c: ") and case["cells"] and len(case["cells"]) >= case["wanted"]:
            yield key, case


def missed(case: Mapping[str, Any]) -> list[str]:
    """In which way `quick` misses what it is wanted to be beside AutoAttack; nothing if it does not."""
    found = lines(case["cells"], case["methods"][0])
    share = sum(line.share for line in found if line.method == case["methods"][0])
    said = []
    for line in found:
        misses = []
        if line.method in case["peers"] and line.time_ratio < FASTER:
            misses.append(f"takes {1 / line.time_ratio:.2g} of the time")
        if line.method in case["peers"] and 100 * (line.share - share) > WEAKER + 1e-9:
            misses.append(f"breaks {100 * (line.share - share):.1f} points less")
        if misses:
            said.append(f"beside {line.method}, `quick` {' and '.join(misses)}")
    return said


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but that of the method are numbers."""
    words = ("Method", "Case", "Ours", "Theirs", "Best of the others", "Code", "Intervals")
    marks = ["---" if name in words else "---:" for name in head]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, marks, *rows))


def number(value: float) -> str:
    """Three digits of a ratio; a dash if there is none."""
    if value != value:
        return "-"
    return "inf" if value == float("inf") else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
