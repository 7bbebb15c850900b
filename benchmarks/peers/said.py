"""What tables of attacks say that their summaries do not: where ours is no stronger, or would be as another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from textwrap import fill
from typing import Any

from .lines import Line, finished, lines, ours_and_best

AVERAGE, MARGIN = "`attack`, average", "`attack`, margin"
Cases = Mapping[str, Any]


def equal_weights(cases: Cases) -> str:
    """How ours with equal weights is beside the best of the others; nothing if it is not measured."""
    gains, apart = [], False
    for title, average, case in _of(AVERAGE, cases):
        if pair := ours_and_best(case):
            best = pair[1]
            points = f"{100 * (average.share - best.share):+.1f}"
            gains.append(f"{points} on {title} ({best.method})")
            apart |= average.beside(best) == "apart"
    if not gains:
        return ""
    lead = (
        "" if apart else "**With equal weights ours is not stronger**, as far as intervals tell. "
    )
    return _paragraph(
        f"{lead}Points that {AVERAGE}, fools more than the method of another library that fools most: "
        f"{'; '.join(gains)}."
    )


def margins(cases: Cases) -> list[str]:
    """Tables where the C&W margin breaks more images than the soft margin, which ours takes with one model."""
    return [
        f"{title} ({margin.fooled} and not {ours[0].fooled} of {margin.images} images, intervals "
        f"{margin.beside(ours[0])})"
        for title, margin, case in _of(MARGIN, cases)
        if (ours := ours_and_best(case)) and margin.fooled > ours[0].fooled
    ]


def _margins(cases: Cases) -> str:
    if not (found := margins(cases)):
        return ""
    return _paragraph(
        f"**The C&W margin breaks more** ({MARGIN}) than the soft margin, which `attack` takes by default, in "
        f"{len(found)} of {len(list(_of(MARGIN, cases)))} tables: {'; '.join(found)}. Verdicts of single "
        "images are not stored here, so that pairs cannot be tested; docs/CEILING.md does so, on other images."
    )


def _of(method: str, cases: Cases) -> Iterator[tuple[str, Line, Mapping[str, Any]]]:
    """Title, line of a method and case, of finished tables that have it."""
    for key, case in finished(cases):
        for line in lines(case["cells"], case["methods"][0]):
            if line.method == method:
                yield key[3:], line, case


def _paragraph(text: str) -> str:
    return fill(text, 112, break_long_words=False, break_on_hyphens=False) + "\n"


OF: Mapping[str, Callable[[Cases], str]] = {"a": equal_weights, "b": _margins}
"""By room of the page."""
