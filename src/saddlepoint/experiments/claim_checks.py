"""What stored runs say of the claims of the paper: one function per claim, one rule per verdict.

Here is what all checks share, and those on lifts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple, final

from saddlepoint.experiments.block_parts import missing
from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.finished import Attacked, Results, Source
from saddlepoint.experiments.pairs import mean_gain, verdict_pairs
from saddlepoint.experiments.stored import read_summary
from saddlepoint.report.tables import Cell
from saddlepoint.runs.settings import UniversalSettings

__all__ = [
    "APGDA",
    "ENOUGH",
    "NEAR",
    "PREDICTED",
    "Finding",
    "Pair",
    "Summaries",
    "Verdict",
    "capped",
    "comparable",
    "counted",
    "every_group_size",
    "few_images",
    "judged",
    "mean_lift",
    "nothing",
    "unstored",
]

Verdict = Literal["holds", "holds in part", "does not hold", "not stored", "not measured"]

APGDA = Source("apgda")
"""The paper's algorithm with the paper's labels, by which verdicts go."""

PREDICTED = Source("apgda", "predicted")
"""The same with the labels of the authors' code."""

_SHOWN = (APGDA, PREDICTED, Source("attack"))
NEAR = 2.0
"""Points by which one success rate may be below another one and still be called level."""

ENOUGH = 100
"""Images that a verdict has to rest on to be more than "in part"."""


class Finding(NamedTuple):
    """Our numbers for a claim, what they say of it, and why, or on what they rest."""

    ours: str
    verdict: Verdict
    why: str


@final
@dataclass(frozen=True)
class Summaries:
    """The stored summaries of a folder, each read once."""

    store: Path
    _read: dict[str, Results | None] = field(default_factory=dict)

    def attacks(self, name: str) -> Results | None:
        """The stored rows of an experiment; None where there is no summary."""
        if name not in self._read:
            there = (self.store / f"{name}.json").is_file()
            self._read[name] = read_summary(find(name), self.store) if there else None
        return self._read[name]

    def lines(self, name: str) -> tuple[tuple[Cell, ...], ...]:
        """The stored lines of a measurement; empty where there are none."""
        there = (self.store / f"{name}.json").is_file()
        return read_summary(find(name), self.store).lines if there else ()


def nothing(why: str) -> Finding:
    """No stored run is about the claim."""
    return Finding("-", "not measured", why)


def judged(whole: bool, part: bool) -> Verdict:
    """The verdict on a claim that holds as a whole, or in part, or not.

    Example:
        >>> judged(False, True)
        'holds in part'
    """
    return "holds" if whole else "holds in part" if part else "does not hold"


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
        return self.item.asr_all - self.base.asr_all


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
    groups = any(isinstance(item.block.settings, UniversalSettings) for item in every)
    rows = "groups" if groups else "images"
    counts = sorted({_rows(item) for item in every})
    if len(counts) == 1:
        return f"{counts[0]} {rows}"
    return f"{counts[0]} to {counts[-1]} {rows} per setting"


def _rows(item: Attacked) -> int:
    settings = item.block.settings
    return item.images // (settings.group_size if isinstance(settings, UniversalSettings) else 1)


def capped(verdict: Verdict, little: bool) -> Verdict:
    """At most in part, where there is too little to say more.

    Example:
        >>> capped("holds", True), capped("does not hold", True), capped("holds", False)
        ('holds in part', 'does not hold', 'holds')
    """
    return "holds in part" if verdict == "holds" and little else verdict


def few_images(items: Iterable[Attacked]) -> bool:
    """Fewer than a hundred, which say little."""
    return min(item.images for item in items) < ENOUGH


# ------------------------------------------------------------------------------- lifts


def mean_lift(summaries: Summaries, *, name: str, reported: float, only: str) -> Finding:
    """Holds if no setting loses and the mean lift is half of the paper's or more; in part if it is positive.

    The paper's is that of the same settings, where it has a number for each; else the `reported` one.
    """
    results = summaries.attacks(name)
    if results is None:
        return unstored(name)
    texts, why = [], ""
    verdict: Verdict = "not measured"
    for source in _SHOWN:
        pairs = _reported(comparable(results, source, only))
        lifts = [r for pair in pairs if (r := results.lift(pair.item)) is not None]
        if not lifts:
            continue
        texts.append(f"{fmean(lifts):+.1f} % ({source.name}{_gain(results, source, only)})")
        if source == APGDA:
            papers = [p.item.row.paper.lift for p in pairs if results.lift(p.item) is not None]
            known = [lift for lift in papers if lift is not None]
            expected = fmean(known) if len(known) == len(papers) else reported
            losing = [p.item.block.label for p in pairs if p.gain < 0]
            enough = fmean(lifts) >= expected / 2 and not losing
            verdict = judged(enough, fmean(lifts) > 0)
            why = _lift_reason(results, pairs, losing, only)
            if abs(expected - reported) > 0.01:
                why += f"; the paper's rows have {expected:.2f} % there"
    return Finding("; ".join(texts), verdict, why) if texts else nothing("no such row is stored")


def _gain(results: Results, source: Source, only: str) -> str:
    """The paired gain in points with its interval, where verdicts are known of every setting."""
    pairs = [
        pair
        for pair in verdict_pairs(results)
        if pair.item.source == source
        and pair.item.row.strategy.key == "minmax"
        and pair.item.block.key.endswith(only)
    ]
    settings = {p.item.block.key for p in _reported(comparable(results, source, only))}
    pairs = [pair for pair in pairs if pair.item.block.key in settings]
    if len(pairs) < len(settings):
        return ""
    gain, (low, high) = mean_gain(pairs)
    return f"; {gain:+.1f} points [{low:+.1f}, {high:+.1f}]"


def _lift_reason(results: Results, pairs: Sequence[Pair], losing: Sequence[str], only: str) -> str:
    level = fmean(pair.base.asr_all for pair in pairs)
    blocks = [b for b in results.experiment.blocks if b.key.endswith(only)]
    papers = [b for b in blocks if any(row.paper.asr_all is not None for row in b.rows)]
    of = f" of {len(papers or blocks)}" if len(papers or blocks) > len(pairs) else ""
    text = f"{len(pairs)}{of} settings, {counted(pair.item for pair in pairs)}"
    rates = (pair.base.row.paper.asr_all for pair in pairs)
    known = [rate for rate in rates if rate is not None]
    text += f"; our average fools {level:.1f} %"
    text += f", the paper's {fmean(known):.1f} % in the same settings" if known else ""
    undefined = [p.item.block.label for p in pairs if p.base.asr_all == 0]
    text += f"; at 0 % there is no lift: {', '.join(undefined)}" if undefined else ""
    text += f"; min-max is below in {', '.join(losing)}" if losing else ""
    return text + (f" (K = {only.removeprefix('k')} only)" if only else "")


def every_group_size(summaries: Summaries) -> Finding:
    """Holds if min-max is above wherever the average is neither at 0 with min-max nor at 100 %."""
    results = summaries.attacks("universal-cifar10")
    if results is None:
        return unstored("universal-cifar10")
    pairs = comparable(results, APGDA)
    free = [p for p in pairs if p.base.asr_all < 100 and max(p.base.asr_all, p.item.asr_all) > 0]
    if not free:
        return nothing("every stored setting is at 0 or 100 %")
    above = [p for p in free if p.gain > 0]
    below = [p.item.block.label for p in free if p.gain < 0]
    ours = f"above in {len(above)}, below in {len(below)} of {len(free)} settings (apgda)"
    networks = sorted({letter for p in pairs for letter in p.item.block.letters})
    why = f"networks {', '.join(networks)}, {counted(p.item for p in pairs)}"
    why += f"; not counted, because at 0 or 100 %: {len(pairs) - len(free)}"
    why += f"; below in {', '.join(below)}" if below else ""
    return Finding(ours, judged(len(above) == len(free), len(above) > len(free) / 2), why)
