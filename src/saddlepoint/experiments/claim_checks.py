"""What stored runs say of the claims of the paper: one function per claim, one rule per verdict.

Here is what all checks share, and those on lifts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from string import ascii_lowercase
from typing import NamedTuple, final

from saddlepoint.experiments.block_parts import missing
from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.claim_verdicts import (
    Finding,
    Verdict,
    apart,
    capped,
    incomplete,
    judged,
    nothing,
)
from saddlepoint.experiments.defences import Trained, read_defences
from saddlepoint.experiments.finished import Attacked, Results, Source
from saddlepoint.experiments.pairs import mean_gain, paired_rows, verdict_pairs
from saddlepoint.experiments.plan import Block
from saddlepoint.experiments.stored import read_summary
from saddlepoint.report.tables import Cell
from saddlepoint.runs.settings import UniversalSettings

__all__ = [
    "APGDA",
    "ATTACK",
    "ENOUGH",
    "NEAR",
    "Finding",
    "Pair",
    "Summaries",
    "Verdict",
    "apart",
    "based",
    "capped",
    "comparable",
    "counted",
    "incomplete",
    "judged",
    "limited",
    "losing",
    "mean_lift",
    "nothing",
    "unstored",
]

APGDA = Source("apgda")
"""The paper's algorithm with the paper's labels, by which verdicts go."""

ATTACK = Source("attack")
"""The library's own attack, of which a row tells if it would say otherwise."""

NEAR = 2.0
"""Points by which one success rate may be below another one and still be called level."""

ENOUGH = 100
"""Rows, images or groups of them, that each setting of a verdict needs for more than "in part"."""

FEW = 10
"""Rows that the average has to fool in a setting for a lift over it to be more than a few rows."""


@final
@dataclass(frozen=True)
class Summaries:
    """The stored summaries of a folder, each read once, and the source by which verdicts go."""

    store: Path
    source: Source = APGDA
    _read: dict[str, Results | None] = field(default_factory=dict)

    def attacks(self, name: str) -> Results | None:
        """The stored rows of an experiment; None where there is no summary."""
        if name not in self._read:
            there = (self.store / f"{name}.json").is_file()
            self._read[name] = read_summary(find(name), self.store) if there else None
        return self._read[name]

    @cached_property
    def trainings(self) -> list[Trained]:
        """The stored trainings of defences; empty where there are none."""
        return read_defences(self.store / "defence.json")

    @property
    def predicted(self) -> Source:
        """The same method with the labels of the authors' code."""
        return Source(self.source.method, "predicted")

    @property
    def shown(self) -> tuple[Source, ...]:
        """What lifts are told of: by the paper's algorithm of all there are."""
        return (APGDA, self.predicted, ATTACK) if self.source == APGDA else (self.source,)

    def lines(self, name: str) -> tuple[tuple[Cell, ...], ...]:
        """The stored lines of a measurement; empty where there are none."""
        there = (self.store / f"{name}.json").is_file()
        return read_summary(find(name), self.store).lines if there else ()


def unstored(name: str) -> Finding:
    """No summary of an experiment is stored."""
    gone = missing([network for block in find(name).blocks for network in block.networks])
    why = f"no summary of {name} is stored"
    return nothing(why + (f"; no parameters are shipped of {', '.join(gone)}" if gone else ""))


class Pair(NamedTuple):
    """Average and min-max of a block, on the same images."""

    base: Attacked
    item: Attacked

    @property
    def gain(self) -> float:
        """Points that min-max is above the average."""
        return apart(self.item.asr_all, self.base.asr_all)


def comparable(results: Results, source: Source, only: str = "") -> list[Pair]:
    """Of every block whose key ends so, average and min-max, if both were run on the same images."""
    found = []
    for block in results.experiment.blocks:
        item = results.one(block, "minmax", source)
        base = None if item is None else results.average(item)
        if base is not None and item is not None and block.key.endswith(only):
            found.append(Pair(base, item))
    return found


def _reported(pairs: Sequence[Pair]) -> list[Pair]:
    """The settings that the paper has, too; all where it has none of them."""
    kept = [pair for pair in pairs if pair.item.row.paper.asr_all is not None]
    return kept or list(pairs)


def counted(items: Iterable[Attacked]) -> str:
    """How many images, or groups of them, rows rest on."""
    every = list(items)
    counts = sorted({_rows(item) for item in every})
    if len(counts) == 1:
        return f"{counts[0]} {_called(every)}"
    return f"{counts[0]} to {counts[-1]} {_called(every)} per setting"


def based(items: Iterable[Attacked]) -> str:
    """The same, and the networks that were attacked."""
    every = list(items)
    return f"{counted(every)}, networks {_named(n for i in every for n in i.block.networks)}"


def _named(networks: Iterable[str]) -> str:
    """Names of networks, in short where they differ in their letter alone.

    Example:
        >>> _named(["mnist-paper-b", "mnist-paper-a", "mnist-paper-c", "cifar10-a", "cifar10-d"])
        'mnist-paper-a to -c, cifar10-a, -d'
    """
    families: dict[str, set[str]] = {}
    for family, _, letter in (name.rpartition("-") for name in networks):
        families.setdefault(family, set()).add(letter)
    texts = []
    for family, found in families.items():
        first, *others = letters = sorted(found)
        if len(letters) > 2 and "".join(letters) in ascii_lowercase:
            others = [f" to -{letters[-1]}"]
        else:
            others = [f", -{letter}" for letter in others]
        texts.append(f"{family}-{first}{''.join(others)}")
    return ", ".join(texts)


def _called(items: Iterable[Attacked]) -> str:
    groups = any(isinstance(item.block.settings, UniversalSettings) for item in items)
    return "groups" if groups else "images"


def _rows(item: Attacked) -> int:
    settings = item.block.settings
    return item.images // (settings.group_size if isinstance(settings, UniversalSettings) else 1)


def limited(found: Finding, items: Iterable[Attacked]) -> Finding:
    """What is found, at most in part if one of the rows it rests on has fewer than a hundred images, or groups.

    A group counts once, however many images are in it, because it has one verdict: 1,000 images in groups of 10
    are 100.
    """
    every = list(items)
    verdict = capped(found.verdict, min(map(_rows, every)) < ENOUGH)
    if verdict == found.verdict:
        return found
    few = f"fewer than {ENOUGH} {_called(every)} in a setting, so in part at most"
    return found._replace(verdict=verdict, why=f"{found.why}; {few}", less=True)


# ------------------------------------------------------------------------------- lifts


def mean_lift(summaries: Summaries, *, name: str, reported: float, only: str) -> Finding:
    """Holds if no setting loses and the mean lift is half of the paper's or more; in part if it is positive.

    The paper's is that of the same settings, where it has a number for each; else the `reported` one. True
    labels decide; what loses in another way is named. With fewer than a hundred images or groups, without one
    of the paper's settings, or where the average fools fewer than ten rows of one, at most in part.
    """
    results = summaries.attacks(name)
    if results is None:
        return unstored(name)
    texts: list[str] = []
    verdict: Verdict = "not measured"
    reasons: list[str] = []
    items: list[Attacked] = []
    gone: list[str] = []
    less = False
    for source in summaries.shown:
        pairs = _reported(comparable(results, source, only))
        lifts = [r for pair in pairs if (r := results.lift(pair.item)) is not None]
        if not lifts:
            continue
        of = f", {len(lifts)} of {len(pairs)} settings" if len(lifts) < len(pairs) else ""
        texts.append(f"{fmean(lifts):+.1f} % ({source.name}{of}{_gain(results, source, only)})")
        behind, thin = losing(pairs), _over_few(pairs)
        if source == summaries.source:
            papers = [p.item.row.paper.lift for p in pairs if results.lift(p.item) is not None]
            known = [lift for lift in papers if lift is not None]
            expected = fmean(known) if len(known) == len(papers) else reported
            enough = apart(fmean(lifts), expected / 2) >= 0 and not behind
            verdict, less = judged(enough and not thin, fmean(lifts) > 0), bool(thin)
            reasons.append(_lift_reason(results, pairs, only))
            if abs(expected - reported) > 0.01:
                reasons.append(f"the paper's rows have {expected:.2f} % there")
            items, stored = [pair.item for pair in pairs], {pair.item.block.key for pair in pairs}
            gone = [b.label for b in _expected(results, only) if b.key not in stored]
        if thin:
            capping = ", so in part at most" if source == summaries.source else ""
            reasons.append(f"{_with(source)}{thin}{capping}")
        if behind:
            reasons.append(f"{_with(source)}min-max is below in {', '.join(behind)}")
    if not texts:
        return nothing("no such row is stored")
    found = Finding("; ".join(texts), verdict, "; ".join(reasons), less)
    return limited(incomplete(found, gone), items) if items else found


def _with(source: Source) -> str:
    """What is not of the paper's algorithm with true labels is said to be so."""
    if source == APGDA:
        return ""
    return "with predicted labels " if source.labels != "true" else f"with {source.name} "


def _over_few(pairs: Sequence[Pair]) -> str:
    """A clause on the settings in which the average fools next to nothing, and of how many rows; or nothing."""
    counts = [(p.base, round(p.base.asr_all * _rows(p.base) / 100)) for p in pairs]
    few = [f"{b.block.label} ({count} of {_rows(b)})" for b, count in counts if count < FEW]
    called = _called(pair.base for pair in pairs)
    return f"the average fools fewer than {FEW} {called} in {', '.join(few)}" if few else ""


def losing(pairs: Iterable[Pair]) -> list[str]:
    """The settings in which min-max is below the average, by how much, with the interval where it is known."""
    texts = []
    for base, item in (pair for pair in pairs if pair.gain < 0):
        found = paired_rows(base, item)
        interval = "" if found is None else " [{:+.1f}, {:+.1f}]".format(*found.interval)
        lost = item.asr_all - base.asr_all
        texts.append(f"{item.block.label} ({lost:+.1f} points{interval})")
    return texts


def _gain(results: Results, source: Source, only: str) -> str:
    """The paired gain in points with its interval, where verdicts are known of all settings, of one seed."""
    pairs = [
        pair
        for pair in verdict_pairs(results)
        if pair.item.source == source
        and pair.item.row.strategy.key == "minmax"
        and pair.item.block.key.endswith(only)
    ]
    settings = {p.item.block.key for p in _reported(comparable(results, source, only))}
    pairs = [pair for pair in pairs if pair.item.block.key in settings]
    if len(pairs) < len(settings) or len({pair.item.seed for pair in pairs}) > 1:
        return ""
    gain, (low, high) = mean_gain(pairs)
    return f"; {gain:+.1f} points [{low:+.1f}, {high:+.1f}]"


def _expected(results: Results, only: str) -> list[Block]:
    """The settings that the paper has; all where it has none of them."""
    blocks = [b for b in results.experiment.blocks if b.key.endswith(only)]
    return [b for b in blocks if any(r.paper.asr_all is not None for r in b.rows)] or blocks


def _lift_reason(results: Results, pairs: Sequence[Pair], only: str) -> str:
    level = fmean(pair.base.asr_all for pair in pairs)
    every = len(_expected(results, only))
    of = f" of {every}" if every > len(pairs) else ""
    text = f"{len(pairs)}{of} settings, {based(pair.item for pair in pairs)}"
    rates = (pair.base.row.paper.asr_all for pair in pairs)
    known = [rate for rate in rates if rate is not None]
    text += f"; our average fools {level:.1f} %"
    text += f", the paper's {fmean(known):.1f} % in the same settings" if known else ""
    return text + (f" (K = {only.removeprefix('k')} only)" if only else "")
