"""Measurements in stored summaries: every line of their table is of one named there, and the reverse."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, isfinite
from typing import Any

from saddlepoint.experiments.finished import Measured, Results
from saddlepoint.experiments.measurements import (
    MeasuredMetrics,
    NetworkAccuracy,
    Residuals,
    Times,
)
from saddlepoint.experiments.plan import METHODS, Experiment
from saddlepoint.experiments.summary import tables_of
from saddlepoint.report.tables import Cell, Table
from saddlepoint.runs.plain import quoted

__all__ = ["in_order", "lines_without", "wrong_lines", "wrong_measured"]

Entry = Mapping[str, str | int]

# Any results will do to have a line written; only its first cells are looked at.
_ANY: Mapping[str, MeasuredMetrics] = {
    "accuracy": NetworkAccuracy(clean=0, fgsm=0, fgsm_predicted=0),
    "times": Times(microseconds={"a": 0, "b": 0}, evaluations={}, ratio=0, low=0, high=0),
    "residuals": Residuals(steps=(1,), best=(0,), delta=(0,), weights=(0,), slope=None),
}
_WITHIN = {"accuracy": (0, 100), "times": (0, inf), "residuals": (0, inf), "distances": (-1, 1)}
_WHATEVER = "Slope"  # the column of any numbers
_INTERVALS = ("95 % of it", "95 % of that", "smallest and largest")  # around the number before
_WHOLE = ("accuracy", "times")  # without empty cells
_ROUNDED = 1e-9


def in_order(experiment: Experiment, lines: Sequence[Sequence[Any]]) -> list[tuple[Cell, ...]]:
    """Lines of a measurement in order, later ones in place of earlier ones, and the paper's.

    Args:
        experiment: Which one.
        lines: As JSON has them.
    """
    table = tables_of(Results(experiment, ()))[0]
    source = _source(table)
    ours = (tuple(tuple(c) if isinstance(c, list) else c for c in line) for line in lines)
    every = [*table.lines, *(line for line in ours if line[source] != "paper")]
    found = {line[: source + 1]: line for line in every}
    settings = list(dict.fromkeys(key[:-1] for key in found))
    labels = [measurement.label for measurement in experiment.measurements]
    sources = ["paper", *METHODS]

    def place(key: tuple[Cell, ...]) -> tuple[int, int, int, str]:
        *setting, said = key
        number = labels.index(setting[0]) if setting[0] in labels else -1
        rank = sources.index(said) if said in sources else len(sources)
        return number, settings.index(tuple(setting)), rank, str(said)

    return [found[key] for key in sorted(found, key=place)]


def lines_without(
    experiment: Experiment, lines: Sequence[Sequence[Any]], methods: Collection[str]
) -> list[Sequence[Any]]:
    """The lines that are of none of these methods."""
    source = _source(tables_of(Results(experiment, ()))[0])
    return [line for line in lines if line[source] not in methods]


def _source(table: Table) -> int:
    """The position of the column that says whose a line is."""
    return [column.name for column in table.columns].index("Source")


def wrong_measured(experiment: Experiment, measured: Sequence[Entry]) -> str | None:
    """The first measurement that cannot be.

    Args:
        experiment: Which one.
        measured: As a summary has them.
    """
    there = set[tuple[str | int, ...]]()
    known = [measurement.key for measurement in experiment.measurements]
    for entry in measured:
        if {"key", "method"} - set(entry) or entry["method"] not in experiment.methods:
            return f"{quoted(entry.get('method'))} as `method` of {quoted(entry.get('key'))}"
        if entry["key"] not in known:
            return f"{quoted(entry['key'])} as `key` of a measurement"
        for name, least in (("images", 1), ("seed", 0)):
            if not isinstance(value := entry.get(name), int) or value < least:
                return f"{quoted(value)} as `{name}` of {quoted(entry['key'])}"
        place = (entry["key"], entry["method"])
        if place in there:
            return f"a second measurement of {quoted(entry['key'])}, {entry['method']}"
        there.add(place)
    return None


def wrong_lines(
    experiment: Experiment,
    lines: Sequence[Sequence[Cell]],
    measured: Sequence[Entry],
    rows: Mapping[tuple[str, str], int],
) -> str | None:
    """The first line that no measurement of a summary has come to, or the first that is not there.

    Args:
        experiment: Which one.
        lines: As the summary has them; those of the paper are not looked at, because they are not shown.
        measured: Its measurements, which `wrong_measured` has found right.
        rows: How many rows were attacked, by block and method.
    """
    if not experiment.measurements:
        return f"{quoted(lines[0])} among its lines" if lines else None
    table = tables_of(Results(experiment, ()))[0]
    columns = [column.name for column in table.columns]
    source, kind = _source(table), experiment.measurements[0].what
    expected = _expected(experiment, measured, rows, source)
    there = set[tuple[Cell, ...]]()
    for line in lines:
        if len(line) == len(columns) and line[source] == "paper":
            continue
        *head, count = line[: source + 2]
        place = tuple(head)
        known = place in expected and expected[place] == count and place not in there
        if len(line) != len(columns) or not known:
            return f"{quoted(line)} among its lines"
        before = count
        for name, cell in zip(columns[source + 2 :], line[source + 2 :], strict=True):
            if not _can_be(cell, before, name, kind):
                return f"{quoted(cell)} as {quoted(name)} of {', '.join(map(str, place))}"
            before = cell
        there.add(place)
    # Weights of groups that are not those of the measured distances have no line.
    missing = [] if kind == "distances" else [place for place in expected if place not in there]
    return f"no line of {', '.join(map(str, missing[0]))}" if missing else None


def _expected(
    experiment: Experiment,
    measured: Sequence[Entry],
    rows: Mapping[tuple[str, str], int],
    source: int,
) -> dict[tuple[Cell, ...], Cell]:
    """The first cells of every line, up to its source, and of how many images or groups it is."""
    by_key = {measurement.key: measurement for measurement in experiment.measurements}
    if experiment.measurements[0].what == "distances":
        methods = {entry["method"] for entry in measured}
        return {place: count for place, count in rows.items() if place[1] in methods}
    found = []
    for entry in measured:
        one = by_key[str(entry["key"])]
        found.append(Measured(one, str(entry["method"]), int(entry["images"]), 0, _ANY[one.what]))
    table = tables_of(Results(experiment, (), tuple(found)))[0]
    ours = (line for line in table.lines if line[source] != "paper")
    return {line[: source + 1]: line[source + 1] for line in ours}


def _can_be(cell: Cell, before: Cell, name: str, kind: str) -> bool:
    """Whether a cell can be in its column; `before` is the one to its left."""
    if cell is None:
        return kind not in _WHOLE
    if name in _INTERVALS:
        if not isinstance(cell, tuple) or not isinstance(before, int | float):
            return False
        return cell[0] - _ROUNDED <= before <= cell[1] + _ROUNDED
    if not isinstance(cell, int | float) or not isfinite(cell):
        return False
    least, most = (-inf, inf) if name == _WHATEVER else _WITHIN[kind]
    return least - _ROUNDED <= cell <= most + _ROUNDED
