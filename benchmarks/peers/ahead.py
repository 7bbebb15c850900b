"""Where a method of another library does better than ours, of every finished table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .lines import Line, finished, lines, missed, table

_TEXT = """## Where others are ahead

Every method of another library that breaks more images than ours, and then every other one that takes less
time, of all finished tables of attacks, those with few images too. Intervals are those of the tables, of 95 %
for each method alone: where they overlap, the difference in images broken may be chance. Differences of a few
per cent in time may be, too. The code and the day of a case are those of its table, and need not be the present
ones.

"""
_HEAD = ["Broken by theirs - by ours, points", "Time, theirs / ours", "Case", "Images", "Ours"]
_HEAD += ["Theirs", "Intervals"]


def section(cases: Mapping[str, Any]) -> str:
    """The section of the page; nothing if no table is finished."""
    stronger: list[list[str]] = []
    faster: list[list[str]] = []
    notes, any_finished = misses(cases), False
    for key, case in finished(cases):
        any_finished = True
        found = lines(case["cells"], case["methods"][0])
        ours = next(line for line in found if line.method == case["methods"][0])
        better = [line for line in found if line.method in case["peers"] and _ahead(line, ours)]
        for line in sorted(better, key=lambda line: (-line.share, line.time_ratio)):
            gain = f"{100 * (line.share - ours.share):+.1f}"
            names = [key[3:], str(line.images), ours.method, line.method, line.beside(ours)]
            rows = stronger if line.share > ours.share else faster
            rows.append([gain, line.time, *names])
    if not any_finished:
        return ""
    if not stronger and not faster:
        text = (
            _TEXT.partition("\n\n")[0]
            + "\n\nIn no finished table of attacks does a method of another "
        )
        text += "library break more images than ours or take less time.\n"
    else:
        text = _TEXT + "\n".join(
            f"{title}\n\n{table([*_HEAD], rows)}"
            for title, rows in (("They break more:", stronger), ("They take less time:", faster))
            if rows
        )
    if notes:
        text += "\nWhat `quick` is wanted to be beside AutoAttack (a fifth of the time at most, one point "
        text += f"weaker at most) it misses here: {'. '.join(notes)}.\n"
    return text


def misses(cases: Mapping[str, Any]) -> list[str]:
    """Where `quick` is not what it is wanted to be beside AutoAttack, of finished tables."""
    return [
        f"{key[3:]}: {said}"
        for key, case in finished(cases)
        if key.startswith("d: ")
        for said in missed(case)
    ]


def _ahead(theirs: Line, ours: Line) -> bool:
    return theirs.share > ours.share or theirs.time_ratio < 1
