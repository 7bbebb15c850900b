"""Rows in which `attack` fools less than `apgda` on the same images, or min-max no more than the average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saddlepoint.experiments.finished import Attacked, Results, Source
from saddlepoint.experiments.pairs import paired_rows
from saddlepoint.report.tables import Cell, Column, Table

__all__ = ["behind_table", "level_table"]

_WHERE = (Column("In the paper"), Column("Experiment"), Column("Setting"))
_RATES = (Column("Labels"), Column("Images"))
_DIFFERENCE = Column("95 % of the difference", 1)


class _Beside(NamedTuple):
    """Two rows of an experiment, on the same images and computed alike."""

    results: Results
    base: Attacked
    item: Attacked


def _methods_beside(several: Sequence[Results]) -> Iterator[_Beside]:
    """Every row that was run with `apgda` and with `attack`, one restart each."""
    for results in several:
        for item in results.attacks:
            if item.source.method != "attack":
                continue
            source = Source("apgda", item.source.labels)
            other = results.one(item.block, item.row.strategy.key, source)
            if other is not None and item.same_images(other):
                yield _Beside(results, other, item)


def behind_table(several: Sequence[Results]) -> tuple[Table, str]:
    """The rows in which `attack` is below `apgda`, and a clause on how many there are.

    Where the verdicts of both are stored, the interval of the paired difference stands beside them.

    Args:
        several: Of experiments that attack.
    """
    both = list(_methods_beside(several))
    below = [row for row in both if row.item.asr_all < row.base.asr_all]
    columns = (*_WHERE, Column("Strategy"), *_RATES, Column("apgda", 1), Column("attack", 1))
    lines = [_line(row, row.item.row.strategy.label) for row in below]
    said = f"`attack` is at or above `apgda` in {len(both) - len(below)} of {len(both)} cases, "
    return _table("`attack` below `apgda`", columns, lines), said + f"and below it in {len(below)}"


def level_table(several: Sequence[Results]) -> tuple[Table, str]:
    """The rows in which min-max is not above the average, and a clause on how many there are.

    Args:
        several: Of experiments that attack.
    """
    both = [
        _Beside(results, base, item)
        for results in several
        for item in results.attacks
        if item.row.strategy.key == "minmax" and (base := results.average(item)) is not None
    ]
    level = [row for row in both if row.item.asr_all == row.base.asr_all]
    whole, none = (sum(row.item.asr_all == rate for row in level) for rate in (100, 0))
    found = [row for row in both if row.item.asr_all <= row.base.asr_all]
    columns = (*_WHERE, Column("Method"), *_RATES, Column("avg.", 1), Column("min-max", 1))
    lines = [_line(row, row.item.source.method_name) for row in found]
    said = (
        f"Min-max is above the average in {len(both) - len(found)} of {len(both)} cases, level with it in "
        f"{len(level)} (in {whole} both fool all, in {none} nothing), and below it in {len(found) - len(level)}"
    )
    return _table("Min-max not above the average", columns, lines), said


def _line(row: _Beside, called: str) -> tuple[Cell, ...]:
    results, base, item = row
    found = paired_rows(base, item)
    experiment = results.experiment
    where = (experiment.source, f"`{experiment.name}`", item.block.label, called)
    return (
        *where,
        item.source.labels,
        item.images,
        base.asr_all,
        item.asr_all,
        found and found.interval,
    )


def _table(title: str, columns: tuple[Column, ...], lines: Sequence[tuple[Cell, ...]]) -> Table:
    known = [(line, line[-1]) for line in lines if isinstance(line[-1], tuple)]
    below = [line for line, (_, high) in known if high < 0]
    said = f"The interval holds zero in {len(known) - len(below)} of {len(lines)} lines"
    said += f"; it is not stored of {len(lines) - len(known)}" if len(known) < len(lines) else ""
    said += f", and lies below zero in {len(below)}: " if below else ""
    said += "; ".join(
        f"{name}, {setting}, {called}, {labels} labels"
        for _, name, setting, called, labels, *_ in below
    )
    return Table(title, (*columns, _DIFFERENCE), tuple(lines), (f"{said}.",) if lines else ())
