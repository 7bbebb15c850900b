"""What stored trainings say of the claims on defences: AMPGD beside others, and the weights of its threats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from saddlepoint.experiments.claim_checks import Finding, Summaries, capped, judged, nothing
from saddlepoint.experiments.defences import PUBLISHED, Suite, Trained
from saddlepoint.experiments.pairs import mean_of

__all__ = [
    "ahead_of",
    "ahead_of_one_threat",
    "emphasis_on_linf",
    "gap_of_threats",
    "stable_training",
    "weight_of_l2",
]

_METHODS = ("AMPGD", "MSD")
_ALONE = ("linf", "l2", "l1")
"""Rows that are trained against one threat."""

_RADII = (1, 2, 3, 4)
_BY_HAND = ("race", "weights")
"""Tables whose claims docs/RESULTS.md has numbers on, of runs that were made before runs were stored."""


class _Ahead(NamedTuple):
    """Points that a method is ahead of another one, mean over seeds, with the interval over images.

    The interval knows nothing of other seeds; in how many of them the method is ahead says a little.
    """

    mean: float
    low: float
    high: float
    seeds_ahead: int
    seeds: int

    @classmethod
    def of(cls, theirs: Sequence[Sequence[bool]], ours: Sequence[Sequence[bool]]) -> _Ahead:
        """From who stays right, seed by seed."""
        mean, (low, high) = mean_of(list(zip(theirs, ours, strict=True)), same_rows=True)
        gains = [sum(one) - sum(other) for other, one in zip(theirs, ours, strict=True)]
        return cls(mean, low, high, sum(gain > 0 for gain in gains), len(gains))

    def __str__(self) -> str:
        said = f"{self.mean:+.1f} points [{self.low:+.1f}, {self.high:+.1f}]"
        return said + f", ahead with {self.seeds_ahead} of {self.seeds} seeds" * (self.seeds > 1)


class _Judged(NamedTuple):
    """What a suite found of both methods, ours first: per seed, who stays right, by threat."""

    suite: str
    images: int
    seeds: tuple[int, ...]
    right: Mapping[str, Sequence[Mapping[str, Sequence[bool]]]]

    def union(self, method: str) -> list[tuple[bool, ...]]:
        """Per seed, on which images the network stays right without attack and under every threat."""
        return [tuple(map(all, zip(*each.values(), strict=True))) for each in self.right[method]]

    def ahead(self) -> _Ahead:
        """What ours is ahead of the other one under all threats."""
        ours, theirs = map(self.union, self.right)
        return _Ahead.of(theirs, ours)

    def ahead_on_linf(self) -> _Ahead:
        """The same under linf."""
        ours, theirs = ([each["linf"] for each in seeds] for seeds in self.right.values())
        return _Ahead.of(theirs, ours)

    def gap(self, method: str) -> float:
        """Points between the threats with most and least accuracy, mean over seeds."""
        shares = [
            [100 * fmean(right) for threat, right in each.items() if threat != "clean"]
            for each in self.right[method]
        ]
        return fmean(max(each) - min(each) for each in shares)

    def gaps(self) -> str:
        """Those of both methods, as they are told."""
        return f"{', '.join(f'{method} {self.gap(method):.1f}' for method in self.right)} points"


def _trained(summaries: Summaries, table: str, row: str) -> dict[int, Trained]:
    """The trainings of a row by seed."""
    every = summaries.trainings
    return {each.seed: each for each in every if (each.table, each.row) == (table, row)}


def _compared(
    summaries: Summaries, table: str, methods: tuple[str, str] = _METHODS
) -> list[_Judged]:
    """Every suite that has judged both methods, with the seeds that both have.

    But for the method their commands have to be the same. Images are the first of a data set, so that those
    that both have are compared.
    """
    ours, theirs = (_trained(summaries, table, method) for method in methods)
    by_suite: dict[tuple[str, int], list[int]] = {}
    for seed in sorted(ours.keys() & theirs.keys()):
        one, other = ours[seed], theirs[seed]
        if _without_method(one.command) != _without_method(other.command):
            continue
        for suite in (name for name in one.suites if name in other.suites):
            images = min(each.suites[suite].images for each in (one, other))
            by_suite.setdefault((suite, images), []).append(seed)
    return [
        _Judged(
            suite,
            images,
            tuple(seeds),
            {
                method: [_first(rows[seed].suites[suite], images) for seed in seeds]
                for method, rows in zip(methods, (ours, theirs), strict=True)
            },
        )
        for (suite, images), seeds in by_suite.items()
    ]


def _first(suite: Suite, images: int) -> dict[str, tuple[bool, ...]]:
    return {threat: right[:images] for threat, right in suite.right.items()}


def _without_method(command: str) -> list[str]:
    before, _, after = command.partition("--method ")
    return [*before.split(), *after.split()[1:]]


def _said(seeds: int) -> str:
    return "one seed, which says little about a method" if seeds == 1 else f"{seeds} seeds"


def _missing(table: str, trainings: str = "AMPGD and MSD") -> Finding:
    needed = (
        f"needs trainings of {trainings} with the same seeds: python -m benchmarks.defence {table}"
    )
    if table not in _BY_HAND:
        return nothing(needed)
    return Finding("-", "not stored", f"one seed by hand, see RESULTS; {needed}")


def _basis(one: _Judged) -> str:
    return f"{one.suite}, {one.images} images, {_said(len(one.seeds))}"


def _rests_on(found: Sequence[_Judged], table: str) -> str:
    return f"table {table} of RESULTS: {'; '.join(map(_basis, found))}"


def _few_seeds(found: Sequence[_Judged]) -> bool:
    return min(len(each.seeds) for each in found) < 2


def ahead_of(
    summaries: Summaries, *, table: str, other: str = "MSD", reported: float = 0.0
) -> Finding:
    """Holds if under every suite the union is half of the paper's points ahead and the interval excludes zero.

    In part if it is ahead under every suite. With one seed at most in part. Other tables of the same data
    are named and do not decide.
    """
    methods = ("AMPGD", other)
    found = _compared(summaries, table, methods)
    if not found:
        return _missing(table, " and ".join(methods))
    each = [one.ahead() for one in found]
    ours = "; ".join(f"{one.suite}: {ahead}" for one, ahead in zip(found, each, strict=True))
    clear = all(ahead.mean >= reported / 2 and ahead.low > 0 for ahead in each)
    verdict = judged(clear, all(ahead.mean > 0 for ahead in each))
    why = f"accuracy under all three threats, AMPGD minus {other}; {_rests_on(found, table)}"
    why += _elsewhere(summaries, table, _Judged.ahead, methods)
    points = (
        f"{suite} {rows['AMPGD'][-1] - rows[other][-1]:+.1f}"
        for (data, suite), rows in PUBLISHED.items()
        if data in _data(summaries, table)
    )
    why += f"; the paper's own networks by suite: {', '.join(points)} points"
    return Finding(ours, capped(verdict, _few_seeds(found)), why)


def _elsewhere(
    summaries: Summaries,
    table: str,
    asked: Callable[[_Judged], _Ahead | str],
    methods: tuple[str, str] = _METHODS,
) -> str:
    """What other tables of the same data say of both methods."""
    tables = dict.fromkeys(each.table for each in summaries.trainings)
    data = _data(summaries, table)
    texts = [
        f"{other}, {_basis(one)}: {asked(one)}"
        for other in sorted(tables)
        if other != table and _data(summaries, other) & data
        for one in _compared(summaries, other, methods)
    ]
    return f"; in other tables: {'; '.join(texts)}" if texts else ""


def _data(summaries: Summaries, table: str) -> set[str]:
    """What the networks of a table are trained on."""
    commands = (each.command for each in summaries.trainings if each.table == table)
    return {command.partition("--data ")[2].partition(" ")[0] for command in commands}


def emphasis_on_linf(summaries: Summaries, *, table: str) -> Finding:
    """Holds if under every suite AMPGD has more accuracy under linf than MSD and the interval excludes zero.

    In part if it has more under every suite. With one seed at most in part. Mean weights of linf are told and
    do not decide: those of MSD are how often linf is the steepest, which is not a weight of the loss.
    """
    found = _compared(summaries, table)
    if not found:
        return _missing(table)
    each = [one.ahead_on_linf() for one in found]
    ours = "; ".join(f"{one.suite}: {ahead}" for one, ahead in zip(found, each, strict=True))
    verdict = judged(all(a.low > 0 for a in each), all(a.mean > 0 for a in each))
    weights = []
    for method in _METHODS:
        rows = _trained(summaries, table, method)
        seeds = sorted(
            {seed for one in found for seed in one.seeds if "linf" in rows[seed].weights}
        )
        if seeds:
            weights.append(f"{method} {fmean(rows[seed].weights['linf'] for seed in seeds):.2f}")
    why = f"accuracy under linf, AMPGD minus MSD; {_rests_on(found, table)}"
    why += f"; weight of linf in the last epoch {', '.join(weights)}" if weights else ""
    why += _elsewhere(summaries, table, _Judged.ahead_on_linf)
    printed = PUBLISHED["mnist", "paper"]
    why += f"; the paper's networks: {printed['AMPGD'][0] - printed['MSD'][0]:+.1f} points"
    return Finding(ours, capped(verdict, _few_seeds(found)), why)


def ahead_of_one_threat(summaries: Summaries, *, table: str) -> Finding:
    """Holds if under every suite the union is ahead of that of the best network trained against one threat.

    The interval has to exclude zero; in part if it is ahead. With one seed at most in part.
    """
    by_row = {row: _compared(summaries, table, ("AMPGD", row)) for row in _ALONE}
    shared = set.intersection(*({one.suite for one in found} for found in by_row.values()))
    if not shared:
        needed = _missing(table, f"AMPGD and {', '.join(_ALONE)}").why
        return Finding("-", "not stored", f"MNIST: one seed by hand, see RESULTS; {needed}")
    texts, worst, used = [], [], []
    for suite in sorted(shared):
        pairs = [(row, one) for row in _ALONE for one in by_row[row] if one.suite == suite]
        row, one = min(pairs, key=lambda pair: pair[1].ahead().mean)
        worst.append(one.ahead())
        used.append(one)
        texts.append(f"{suite}: {worst[-1]} over {row}")
    verdict = judged(all(a.low > 0 for a in worst), all(a.mean > 0 for a in worst))
    why = (
        "accuracy under all threats, AMPGD minus the best of the networks trained against one; "
        f"{_rests_on(used, table)}"
    )
    return Finding("; ".join(texts), capped(verdict, _few_seeds(used)), why)


def gap_of_threats(summaries: Summaries, *, table: str) -> Finding:
    """Holds if under every suite the gap of AMPGD is at most half of that of MSD; in part if it is smaller.

    With one seed at most in part.
    """
    found = _compared(summaries, table)
    if not found:
        return _missing(table)
    gaps = [tuple(each.gap(method) for method in _METHODS) for each in found]
    ours = "; ".join(f"{each.suite}: {each.gaps()}" for each in found)
    half = all(mine <= theirs / 2 for mine, theirs in gaps)
    smaller = all(mine < theirs for mine, theirs in gaps)
    printed = PUBLISHED["mnist", "paper"]
    paper = {m: max(printed[m][:-1]) - min(printed[m][:-1]) for m in _METHODS}  # without the union
    why = (
        "between the threats with most and least accuracy, mean over seeds of the gap of each; "
        f"{_rests_on(found, table)}{_elsewhere(summaries, table, _Judged.gaps)}; in the paper's own table of "
        f"MNIST the gap is {paper['AMPGD']:.1f} for AMPGD and {paper['MSD']:.1f} for MSD"
    )
    return Finding(ours, capped(judged(half, smaller), _few_seeds(found)), why)


def weight_of_l2(summaries: Summaries) -> Finding:
    """Holds if the mean weight of l2 rises from each radius to the next; in part if from the first to the last.

    With one seed at most in part.
    """
    rows = {radius: _trained(summaries, "weights", f"l2 {radius}") for radius in _RADII}
    known = ({seed for seed in row if "l2" in row[seed].weights} for row in rows.values())
    seeds = sorted(set.intersection(*known))
    if not seeds:
        return _missing("weights", "all four radii")
    means = [fmean(rows[radius][seed].weights["l2"] for seed in seeds) for radius in _RADII]
    shown = (f"{radius} {mean:.2f}" for radius, mean in zip(_RADII, means, strict=True))
    rises = all(a < b for a, b in pairwise(means))
    why = f"mean weight of l2 in the last epoch by its radius, linf 0.2 beside it; {_said(len(seeds))}"
    verdict = capped(judged(rises, means[0] < means[-1]), len(seeds) < 2)
    return Finding(", ".join(shown), verdict, why)


def stable_training(_: Summaries) -> Finding:
    """Not measured: it would take a measure of how stable a training is."""
    return nothing(
        "the paper does not say by what a training is to be called stable, and shows no number on it; RESULTS "
        "has the smallest and largest union over the seeds of every method"
    )
