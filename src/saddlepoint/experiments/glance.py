"""Whole tables of the paper in a line each: what min-max wins over the average, in the mean over settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    Column("Rows"),
    Column("The paper's"),
    Column("it gains"),
    Column("`apgda`"),
    Column("it gains"),
    Column("furthest line"),
    Column("`attack`"),
    Column("it gains"),
)


def glance_table(several: Sequence[Results]) -> Table:
    """ASR_all of average and min-max for every experiment and kind of labels, means over its settings.

    All numbers of a line are over the same settings and images: those that both methods have run, and that the
    paper has both numbers of, where it has any. Methods without a setting in common have a line each. A gain is
    that on the same rows, with its 95 % interval. The furthest line is the largest distance of a rate of
    `apgda`, of average or min-max, from the paper's: distances of both signs cancel in means.

    Args:
        several: Of experiments that attack.
    """
    return Table("At a glance", _COLUMNS, tuple(line for r in several for line in _lines(r)))


def _lines(results: Results) -> Iterator[tuple[Cell, ...]]:
    pairs = [pair for pair in verdict_pairs(results) if pair.item.row.strategy.key == "minmax"]
    for labels in LABELS:
        for seed in sorted({pair.item.seed for pair in pairs if pair.item.source.labels == labels}):
            of_seed = [p for p in pairs if (p.item.source.labels, p.item.seed) == (labels, seed)]
            for by_method in _compared(of_seed):
                yield _line(results, by_method, len({p.item.block.key for p in of_seed}))


def _line(
    results: Results, by_method: Mapping[str, Sequence[VerdictPair]], every: int
) -> tuple[Cell, ...]:
    first = next(iter(by_method.values()))
    of = f" of {every}" if len(first) < every else ""
    sizes = sorted({len(pair.verdicts[0]) for pair in first})
    rows = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    cells: list[Cell] = [results.experiment.source, f"`{results.experiment.name}`"]
    cells += [first[0].item.source.labels, f"{len(first)}{of}", rows, *_papers(first)]
    for method in _METHODS:
        several = by_method.get(method, [])
        cells += [_rates(several), _gain(several)] if several else [None, None]
        cells += [_furthest(several)] if method == "apgda" else []
    return tuple(cells)


def _compared(pairs: Sequence[VerdictPair]) -> list[dict[str, list[VerdictPair]]]:
    """What is in a line, by method: settings that both have on the same images; without any, each its own."""
    found = {m: {p.item.block.key: p for p in pairs if p.item.source.method == m} for m in _METHODS}
    paper, ours = found.values()
    both = [k for k, pair in paper.items() if k in ours and pair.item.same_images(ours[k].item)]
    if both:
        return [{m: _published([of[key] for key in both]) for m, of in found.items()}]
    return [{m: _published([*of.values()])} for m, of in found.items() if of]


def _published(pairs: list[VerdictPair]) -> list[VerdictPair]:
    """Those that the paper has both numbers of, if there is any."""
    return [pair for pair in pairs if _both(pair)] or pairs


def _both(pair: VerdictPair) -> tuple[float, float] | None:
    """The paper's rates of the average and of min-max."""
    base, item = pair.base.row.paper.asr_all, pair.item.row.paper.asr_all
    return None if base is None or item is None else (base, item)


def _papers(pairs: Sequence[VerdictPair]) -> tuple[Cell, Cell]:
    known = [both for pair in pairs if (both := _both(pair))]
    if not known:
        return None, None
    base, item = (fmean(rates) for rates in zip(*known, strict=True))
    return f"{base:.1f} -> {item:.1f}", f"{item - base:+.1f}"


def _furthest(pairs: Sequence[VerdictPair]) -> str | None:
    gaps = [
        ours - theirs
        for pair in pairs
        for ours, theirs in zip(
            (pair.base.asr_all, pair.item.asr_all), _both(pair) or (), strict=False
        )
    ]
    return f"{max(gaps, key=abs):+.1f}" if gaps else None


def _rates(pairs: Sequence[VerdictPair]) -> str:
    base, item = (
        fmean(r) for r in zip(*((p.base.asr_all, p.item.asr_all) for p in pairs), strict=True)
    )
    return f"{base:.1f} -> {item:.1f}"


def _gain(pairs: Sequence[VerdictPair]) -> str:
    gain, (low, high) = mean_gain(pairs)
    return f"{gain:+.1f} [{low:+.1f}, {high:+.1f}]"
