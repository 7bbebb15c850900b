"""The part of docs/CEILING.md about rows that the default leaves: how near other ways come to fooling them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

_TEXT = """## What was tried on rows that the default leaves

{problem}: on {rows} groups of images {first} to {last}, which are in no table of groups above, the default
fools {fooled} ({evaluations} evaluations). These are the {left} that it leaves. The worst margin of a row
is the largest over its domains, at the iterate where that is lowest: below zero every domain is fooled. The
default ends at {lowest} to {highest}, median {median}. Lower and higher are the rows whose worst margin is
lower and higher than that of the default, fooled or not, and the difference is the mean over rows. Rows
were chosen because the default fails on them, which favours whatever else is tried, and what the others
would lose of the {fooled} was not measured: **a gain cannot be read from this, only its absence**. The search
computed in {precision}. Measured on {day} with code {code}, variants of the loop that are not in the
library among them; rows are in `{store}`.
"""


def section(stored: Mapping[str, Any], store: str) -> list[str]:
    """Lines of the page.

    Args:
        stored: The entry "left" of the file of ideas: the rows and, by way, their worst margins.
        store: The name of that file.
    """
    usual: Sequence[float] = stored["worst"]
    words = {key: stored[key] for key in ("problem", "rows", "first", "last", "fooled")}
    words |= {key: stored[key] for key in ("evaluations", "day", "code", "precision")}
    span = {"lowest": min(usual), "highest": max(usual), "median": median(usual)}
    words |= {key: f"{value:.2f}" for key, value in span.items()}
    lines = [_TEXT.format(left=len(usual), store=store, **words)]
    lines += ["| Instead of the default | evaluations | fooled | lower | higher | difference |"]
    lines += ["|:---|---:|---:|---:|---:|---:|"]
    return [*lines, *(_line(way, usual) for way in stored["ways"]), ""]


def _line(way: Mapping[str, Any], usual: Sequence[float]) -> str:
    changes = [new - old for new, old in zip(way["worst"], usual, strict=True)]
    lower, higher = (sum(sign * change > 0 for change in changes) for sign in (-1, 1))
    cells = [way["way"], way["evaluations"], way["fooled"].count("1"), lower, higher]
    return f"| {' | '.join(map(str, cells))} | {mean(changes):+.2f} |"
