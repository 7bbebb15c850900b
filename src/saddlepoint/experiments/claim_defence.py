"""What stored trainings say of the claims on defences: AMPGD beside MSD, and the weights of its threats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from saddlepoint.experiments.claim_checks import Finding, Summaries, capped, judged, nothing
from saddlepoint.experiments.defences import PUBLISHED, Trained, read_defences
from saddlepoint.experiments.pairs import mean_of

__all__ = ["ahead_of_msd", "gap_of_threats", "weight_of_l2"]

_METHODS = ("AMPGD", "MSD")
_RADII = (1, 2, 3, 4)
_BY_HAND = ("race", "weights")
"""Tables whose claims docs/RESULTS.md has numbers on, of runs that were made before runs were stored."""


class _Judged(NamedTuple):
    """What a suite found of both methods: per seed, who stays right, by threat."""

    suite: str
    images: int
    seeds: tuple[int, ...]
    right: Mapping[str, Sequence[Mapping[str, Sequence[bool]]]]

    def union(self, method: str) -> list[tuple[bool, ...]]:
        """Per seed, on which images the network stays right without attack and under every threat."""
        return [tuple(map(all, zip(*each.values(), strict=True))) for each in self.right[method]]

    def gap(self, method: str) -> float:
        """Points between the threats with most and least accuracy, mean over seeds."""
        shares = [
            [100 * fmean(right) for threat, right in each.items() if threat != "clean"]
            for each in self.right[method]
        ]
        return fmean(max(each) - min(each) for each in shares)


def _trained(summaries: Summaries, table: str, row: str) -> dict[int, Trained]:
    """The trainings of a row by seed."""
    every = read_defences(summaries.store / "defence.json")
    return {each.seed: each for each in every if (each.table, each.row) == (table, row)}


def _compared(summaries: Summaries, table: str) -> list[_Judged]:
    """Every suite that has judged both methods on as many images, with the seeds that both have.

    But for the method their commands have to be the same.
    """
    ours, theirs = (_trained(summaries, table, method) for method in _METHODS)
    by_suite: dict[tuple[str, int], list[int]] = {}
    for seed in sorted(ours.keys() & theirs.keys()):
        one, other = ours[seed], theirs[seed]
        if _without_method(one.command) != _without_method(other.command):
            continue
        for suite, (images, _) in one.suites.items():
            if suite in other.suites and other.suites[suite].images == images:
                by_suite.setdefault((suite, images), []).append(seed)
    return [
        _Judged(
            suite,
            images,
            tuple(seeds),
            {
                method: [rows[seed].suites[suite].right for seed in seeds]
                for method, rows in zip(_METHODS, (ours, theirs), strict=True)
            },
        )
        for (suite, images), seeds in by_suite.items()
    ]


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


def _rests_on(found: Sequence[_Judged], table: str) -> str:
    each = [f"{one.suite}, {one.images} images, {_said(len(one.seeds))}" for one in found]
    return f"table {table} of RESULTS: {'; '.join(each)}"


def ahead_of_msd(summaries: Summaries, *, table: str, reported: float) -> Finding:
    """Holds if under every suite the union is half of the paper's points ahead and the interval excludes zero.

    In part if it is ahead under every suite. With one seed at most in part.
    """
    found = _compared(summaries, table)
    if not found:
        return _missing(table)
    texts, ahead, clear = [], [], []
    for each in found:
        pairs = list(zip(each.union("MSD"), each.union("AMPGD"), strict=True))
        mean, (low, high) = mean_of(pairs, same_rows=True)
        texts.append(f"{each.suite}: {mean:+.1f} points [{low:+.1f}, {high:+.1f}]")
        ahead.append(mean > 0)
        clear.append(mean >= reported / 2 and low > 0)
    verdict = capped(judged(all(clear), all(ahead)), min(len(each.seeds) for each in found) < 2)
    why = f"accuracy under all three threats, AMPGD minus MSD; {_rests_on(found, table)}"
    return Finding("; ".join(texts), verdict, why)


def gap_of_threats(summaries: Summaries, *, table: str) -> Finding:
    """Holds if under every suite the gap of AMPGD is at most half of that of MSD; in part if it is smaller.

    With one seed at most in part.
    """
    found = _compared(summaries, table)
    if not found:
        return _missing(table)
    gaps = [tuple(each.gap(method) for method in _METHODS) for each in found]
    ours = "; ".join(
        f"{each.suite}: AMPGD {mine:.1f}, MSD {theirs:.1f} points"
        for each, (mine, theirs) in zip(found, gaps, strict=True)
    )
    half = all(mine <= theirs / 2 for mine, theirs in gaps)
    smaller = all(mine < theirs for mine, theirs in gaps)
    seeds = min(len(each.seeds) for each in found)
    printed = PUBLISHED["mnist", "paper"]
    paper = {m: max(printed[m][:-1]) - min(printed[m][:-1]) for m in _METHODS}  # without the union
    why = (
        f"between the threats with most and least accuracy; {_rests_on(found, table)}; in the paper's own "
        f"table of MNIST the gap is {paper['AMPGD']:.1f} for AMPGD and {paper['MSD']:.1f} for MSD"
    )
    return Finding(ours, capped(judged(half, smaller), seeds < 2), why)


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
