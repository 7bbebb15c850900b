"""Rows in which `attack` fools less than `apgda` with as many steps on the same images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saddlepoint.experiments.finished import Attacked, Results, Source
from saddlepoint.experiments.pairs import paired
from saddlepoint.report.tables import Cell, Column, Table

__all__ = ["Beside", "behind_table", "methods_beside"]

_COLUMNS = (
    Column("In the paper"),
    Column("Setting"),
    Column("Strategy"),
    Column("Labels"),
    Column("Images"),
    Column("apgda", 1),
    Column("attack", 1),
    Column("95 % of the difference", 1),
)


class Beside(NamedTuple):
    """A row of an experiment by both methods, on the same images and computed alike."""

    results: Results
    paper: Attacked
    ours: Attacked


def methods_beside(several: Sequence[Results]) -> Iterator[Beside]:
    """Every row that was run with `apgda` and with `attack`, one restart each."""
    for results in several:
        for item in results.attacks:
            if item.source.method != "attack":
                continue
            source = Source("apgda", item.source.labels)
            other = results.one(item.block, item.row.strategy.key, source)
            if other is not None and item.same_images(other):
                yield Beside(results, other, item)


def behind_table(several: Sequence[Results]) -> tuple[Table, int]:
    """The rows in which `attack` is below `apgda`, and how many rows there are in all.

    Where the verdicts of both are stored, the interval of the paired difference stands beside them.

    Args:
        several: Of experiments that attack.
    """
    both = list(methods_beside(several))
    lines = tuple(_line(row) for row in both if row.ours.asr_all < row.paper.asr_all)
    return Table("`attack` below `apgda`", _COLUMNS, lines), len(both)


def _line(row: Beside) -> tuple[Cell, ...]:
    results, paper, ours = row
    one, other = paper.verdicts(), ours.verdicts()
    interval = (
        None
        if one is None or other is None or len(one) != len(other)
        else paired(one, other).interval
    )
    where = (results.experiment.source, ours.block.label, ours.row.strategy.label)
    return (*where, ours.source.labels, ours.images, paper.asr_all, ours.asr_all, interval)
