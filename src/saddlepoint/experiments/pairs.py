"""Two strategies on the same images: the difference of their success rates, with an interval made for pairs.

Intervals of the two rates say little about their difference, because most images fall to both strategies or to
neither. What counts are the images on which they differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from saddlepoint.evaluation.rates import Z95
from saddlepoint.experiments.finished import Attacked, Results, lowered
from saddlepoint.experiments.plan import Row
from saddlepoint.report.tables import Cell, Column, Table
from saddlepoint.runs.settings import UniversalSettings

__all__ = ["Paired", "mean_gain", "mean_of", "pair_table", "paired", "paired_rows", "verdict_pairs"]


class Paired(NamedTuple):
    """What a strategy wins over another one, in points of percent.

    Attributes:
        difference: Of the success rates.
        interval: 95 % of it.
        gained: Rows that only this strategy fools.
        lost: Rows that only the other one fools.
    """

    difference: float
    interval: tuple[float, float]
    gained: int
    lost: int


def paired(base: Sequence[bool], other: Sequence[bool]) -> Paired:
    """What `other` wins over `base`, row by row.

    The interval is the adjusted Wald interval of Bonett and Price (2012): one row more on either side, then the
    normal interval of a mean.

    Args:
        base: Whether the strategy compared with fools a row.
        other: The same for the strategy in question, on the same rows.

    Example:
        >>> found = paired([True, False, False, False], [True, True, True, False])
        >>> found.difference, found.gained, found.lost
        (50.0, 2, 0)
    """
    differences = [int(b) - int(a) for a, b in zip(base, other, strict=True)]
    if not differences:
        raise ValueError("`base` must have rows, got none.")
    gained, lost = differences.count(1), differences.count(-1)
    return Paired(100 * fmean(differences), _interval(differences), gained, lost)


def paired_rows(base: Attacked, other: Attacked) -> Paired | None:
    """The same of two attacked rows; None where the verdicts of both are not stored."""
    both = _verdicts(base, other)
    return None if both is None else paired(*both)


def _verdicts(base: Attacked, other: Attacked) -> tuple[tuple[bool, ...], tuple[bool, ...]] | None:
    one, two = base.verdicts(), other.verdicts()
    return None if one is None or two is None or len(one) != len(two) else (one, two)


def mean_of(
    pairs: Sequence[tuple[Sequence[bool], Sequence[bool]]], *, same_rows: bool
) -> tuple[float, tuple[float, float]]:
    """The mean of the differences of several settings, and 95 % of it.

    Args:
        pairs: Of every setting what `paired` takes.
        same_rows: Whether row i is the same image in all settings. Then each image counts once, with its mean
            difference. Without it nothing is assumed: the interval is the mean of the intervals, which is at
            least as wide as it has to be however the settings depend on each other.

    Example:
        >>> one = ([False, True], [True, True])
        >>> mean_of([one, one], same_rows=True) == mean_of([one], same_rows=True)
        True
    """
    if not pairs:
        raise ValueError("`pairs` must not be empty.")
    each = [paired(base, other) for base, other in pairs]
    mean = fmean(item.difference for item in each)
    if same_rows:
        columns = ([int(b) - int(a) for a, b in zip(*pair, strict=True)] for pair in pairs)
        return mean, _interval([fmean(row) for row in zip(*columns, strict=True)])
    low, high = zip(*(item.interval for item in each), strict=True)
    return mean, (fmean(low), fmean(high))


def _interval(differences: Sequence[float]) -> tuple[float, float]:
    """95 % of a mean of numbers in [-1, 1], in percent."""
    values = [*differences, 1.0, -1.0]
    middle = fmean(values)
    variance = fmean((value - middle) ** 2 for value in values)
    half = Z95 * math.sqrt(variance / len(values))
    return 100 * max(-1.0, middle - half), 100 * min(1.0, middle + half)


# ------------------------------------------------------------------------------- in tables

_COLUMNS = (
    Column("Setting"),
    Column("Strategy"),
    Column("Source"),
    Column("Labels"),
    Column("Rows"),
    Column("avg.", 1),
    Column("ASR_all", 1),
    Column("Gain in points", 1, sign=True),
    Column("95 % of it", 1),
    Column("Only this"),
    Column("Only avg."),
)


class VerdictPair(NamedTuple):
    """A finished row and the average of the same block and source, with the verdicts of both."""

    base: Attacked
    item: Attacked
    verdicts: tuple[tuple[bool, ...], tuple[bool, ...]]


def verdict_pairs(results: Results) -> list[VerdictPair]:
    """Every row that can be compared with the average of the same images; others are left out."""
    found = []
    for item in results.attacks:
        base = results.average(item)
        both = None if base is None else _verdicts(base, item)
        if base is not None and both is not None:
            found.append(VerdictPair(base, item, both))
    return found


def mean_gain(pairs: Sequence[VerdictPair]) -> tuple[float, tuple[float, float]]:
    """Mean gain of several settings, with its interval.

    Images of an experiment are the first of a data set, so that row i is the same image wherever there are as
    many rows; groups are made of them in another way for every K.

    Args:
        pairs: Of one seed.

    Raises:
        ValueError: They are of several.
    """
    if len(seeds := sorted({pair.item.seed for pair in pairs})) > 1:
        raise ValueError(f"`pairs` must be of one seed, got {', '.join(map(str, seeds))}.")
    sizes = {len(pair.verdicts[0]) for pair in pairs}
    groups = any(isinstance(pair.item.block.settings, UniversalSettings) for pair in pairs)
    return mean_of([pair.verdicts for pair in pairs], same_rows=len(sizes) == 1 and not groups)


def pair_table(results: Results) -> list[Table]:
    """What every strategy wins over the average on the same images, and the mean over settings.

    Args:
        results: Of an experiment that attacks.

    Returns:
        One table; none where no verdicts of pairs are known.
    """
    pairs = verdict_pairs(results)
    lines = [_pair_line(pair) for pair in pairs]
    by_kind: dict[tuple[str, str, str], dict[int, list[VerdictPair]]] = {}
    for pair in pairs:
        row: Row = pair.item.row
        by_seed = by_kind.setdefault((row.strategy.label, *pair.item.source), {})
        by_seed.setdefault(pair.item.seed, []).append(pair)
    alone: list[str] = []
    for (label, _, _), by_seed in by_kind.items():
        means = [several for several in by_seed.values() if len(several) > 1]
        lines += [_mean_line(label, several, of_many=len(by_seed) > 1) for several in means]
        if len(by_seed) > 1:
            alone += _without_mean(label, [p for (p, *more) in by_seed.values() if not more])
    title = f"{results.experiment.title}: what is gained over the average on the same images"
    notes = (*alone, *lowered(results))
    return [Table(title, _COLUMNS, tuple(lines), notes)] if lines else []


def _without_mean(label: str, pairs: Sequence[VerdictPair]) -> list[str]:
    """A sentence on settings that have a seed of their own."""
    if not pairs:
        return []
    said = ", ".join(f"{pair.item.block.label} (seed {pair.item.seed})" for pair in pairs)
    return [
        f"A mean is over settings of one seed; of {label}, {pairs[0].item.source.name}, in none: {said}."
    ]


def _pair_line(pair: VerdictPair) -> tuple[Cell, ...]:
    item, found = pair.item, paired(*pair.verdicts)
    source = (item.source.method_name, item.source.labels, len(pair.verdicts[0]))
    rates = (pair.base.asr_all, item.asr_all)
    return (item.block.label, item.row.strategy.label, *source, *rates, *found)


def _mean_line(label: str, pairs: Sequence[VerdictPair], *, of_many: bool) -> tuple[Cell, ...]:
    """The mean of settings of one seed, which is named where there are others."""
    source = pairs[0].item.source
    rates = (fmean(p.base.asr_all for p in pairs), fmean(p.item.asr_all for p in pairs))
    each = [paired(*pair.verdicts) for pair in pairs]
    sizes = sorted({len(pair.verdicts[0]) for pair in pairs})
    rows = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    counts = (sum(e.gained for e in each), sum(e.lost for e in each))
    seed = f", seed {pairs[0].item.seed}" if of_many else ""
    where = (f"mean of {len(pairs)} settings{seed}", label, source.method_name, source.labels, rows)
    return (*where, *rates, *mean_gain(pairs), *counts)
