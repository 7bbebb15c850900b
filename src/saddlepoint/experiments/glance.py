"""Whole tables of the paper in a line each: what min-max wins over the average, in the mean over settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from saddlepoint.experiments.finished import Results
from saddlepoint.experiments.pairs import VerdictPair, mean_gain, verdict_pairs
from saddlepoint.experiments.plan import LABELS
from saddlepoint.report.tables import Cell, Column, Table

__all__ = ["glance_table"]

_METHODS = ("apgda", "attack")
_COLUMNS = (
    Column("In the paper"),
    Column("Experiment"),
    Column("Labels"),
    Column("Settings"),
    Column("The paper's"),
    *(
        column
        for method in _METHODS
        for column in (Column(f"`{method}`"), Column("gain in points"))
    ),
)


def glance_table(several: Sequence[Results]) -> Table:
    """ASR_all of average and min-max for every experiment and kind of labels, means over its settings.

    A gain is that on the same images, with 95 % of it; the paper's numbers are means over those of the settings
    that it has both of. Only settings that both methods have run in are counted, where there are two methods.

    Args:
        several: Of experiments that attack.
    """
    return Table("At a glance", _COLUMNS, tuple(line for r in several for line in _lines(r)))


def _lines(results: Results) -> Iterator[tuple[Cell, ...]]:
    pairs = [pair for pair in verdict_pairs(results) if pair.item.row.strategy.key == "minmax"]
    for labels in LABELS:
        for seed in sorted({pair.item.seed for pair in pairs if pair.item.source.labels == labels}):
            of_seed = [p for p in pairs if (p.item.source.labels, p.item.seed) == (labels, seed)]
            yield _line(results, of_seed)


def _line(results: Results, pairs: Sequence[VerdictPair]) -> tuple[Cell, ...]:
    found = {m: {p.item.block.key: p for p in pairs if p.item.source.method == m} for m in _METHODS}
    common = set.intersection(*(set(each) for each in found.values() if each))
    by_method = {m: [each[key] for key in each if key in common] for m, each in found.items()}
    first = next(several for several in by_method.values() if several)
    cells: list[Cell] = [results.experiment.source, f"`{results.experiment.name}`"]
    cells += [first[0].item.source.labels, str(len(first)), _papers(results, first)]
    for several in by_method.values():
        cells += [_rates(several), _gain(several)] if several else [None, None]
    return tuple(cells)


def _papers(results: Results, pairs: Sequence[VerdictPair]) -> str | None:
    """Means of the paper over the settings that it has both numbers of."""
    both = [(p.base.row.paper.asr_all, p.item.row.paper.asr_all) for p in pairs]
    known = [(a, b) for a, b in both if a is not None and b is not None]
    if not known:
        return None
    of = f" (of {len(known)})" if len(known) < len(pairs) else ""
    return f"{fmean(a for a, _ in known):.1f} -> {fmean(b for _, b in known):.1f}{of}"


def _rates(pairs: Sequence[VerdictPair]) -> str:
    base, item = (
        fmean(rates)
        for rates in zip(*((p.base.asr_all, p.item.asr_all) for p in pairs), strict=True)
    )
    return f"{base:.1f} -> {item:.1f}"


def _gain(pairs: Sequence[VerdictPair]) -> str:
    gain, (low, high) = mean_gain(pairs)
    return f"{gain:+.1f} [{low:+.1f}, {high:+.1f}]"
