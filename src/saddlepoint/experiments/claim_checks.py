"""What stored runs say of the claims of the paper: one function per claim, one rule per verdict.

Here is what all checks share, and those on lifts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
from saddlepoint.experiments.finished import Attacked, Results, Source
from saddlepoint.experiments.pairs import mean_gain, paired, verdict_pairs
from saddlepoint.experiments.plan import Block
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
    "apart",
    "based",
    "capped",
    "comparable",
    "counted",
    "every_group_size",
    "incomplete",
    "judged",
    "limited",
    "mean_lift",
    "nothing",
    "unstored",
]

APGDA = Source("apgda")
"""The paper's algorithm with the paper's labels, by which verdicts go."""

PREDICTED = Source("apgda", "predicted")
"""The same with the labels of the authors' code."""

_SHOWN = (APGDA, PREDICTED, Source("attack"))
NEAR = 2.0
"""Points by which one success rate may be below another one and still be called level."""

ENOUGH = 100
"""Rows, images or groups of them, that each setting of a verdict needs for more than "in part"."""


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
    return found._replace(verdict=verdict, why=f"{found.why}; {few}")


# ------------------------------------------------------------------------------- lifts


def mean_lift(summaries: Summaries, *, name: str, reported: float, only: str) -> Finding:
    """Holds if no setting loses and the mean lift is half of the paper's or more; in part if it is positive.

    The paper's is that of the same settings, where it has a number for each; else the `reported` one. True
    labels decide; what loses in another way is named. With fewer than a hundred images or groups, or without
    one of the paper's settings, at most in part.
    """
    results = summaries.attacks(name)
    if results is None:
        return unstored(name)
    texts: list[str] = []
    verdict: Verdict = "not measured"
    reasons: list[str] = []
    items: list[Attacked] = []
    gone: list[str] = []
    for source in _SHOWN:
        pairs = _reported(comparable(results, source, only))
        lifts = [r for pair in pairs if (r := results.lift(pair.item)) is not None]
        if not lifts:
            continue
        texts.append(f"{fmean(lifts):+.1f} % ({source.name}{_gain(results, source, only)})")
        losing = _losing(pairs)
        if source == APGDA:
            papers = [p.item.row.paper.lift for p in pairs if results.lift(p.item) is not None]
            known = [lift for lift in papers if lift is not None]
            expected = fmean(known) if len(known) == len(papers) else reported
            enough = apart(fmean(lifts), expected / 2) >= 0 and not losing
            verdict = judged(enough, fmean(lifts) > 0)
            reasons.append(_lift_reason(results, pairs, only))
            if abs(expected - reported) > 0.01:
                reasons.append(f"the paper's rows have {expected:.2f} % there")
            items, stored = [pair.item for pair in pairs], {pair.item.block.key for pair in pairs}
            gone = [b.label for b in _expected(results, only) if b.key not in stored]
        if losing:
            reasons.append(f"{_WITH[source]}min-max is below in {', '.join(losing)}")
    if not texts:
        return nothing("no such row is stored")
    found = Finding("; ".join(texts), verdict, "; ".join(reasons))
    return limited(incomplete(found, gone), items) if items else found


_WITH = {APGDA: "", PREDICTED: "with predicted labels ", _SHOWN[-1]: "with attack "}


def _losing(pairs: Iterable[Pair]) -> list[str]:
    """The settings in which min-max is below the average, by how much, with the interval where it is known."""
    texts = []
    for base, item in (pair for pair in pairs if pair.gain < 0):
        one, other = base.verdicts(), item.verdicts()
        interval = ""
        if one is not None and other is not None and len(one) == len(other):
            low, high = paired(one, other).interval
            interval = f" [{low:+.1f}, {high:+.1f}]"
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
    undefined = [p.item.block.label for p in pairs if p.base.asr_all == 0]
    text += f"; at 0 % there is no lift: {', '.join(undefined)}" if undefined else ""
    return text + (f" (K = {only.removeprefix('k')} only)" if only else "")


def every_group_size(summaries: Summaries) -> Finding:
    """Holds if min-max is above in every setting, with true labels and, where they are stored, predicted ones.

    In part if it is above in more than half with each. A setting is not counted where the average is at 100 %,
    or both are at 0 %. With fewer than a hundred groups, or a setting without true labels, at most in part.
    """
    results = summaries.attacks("universal-cifar10")
    if results is None:
        return unstored("universal-cifar10")
    texts, behind, every, shares = [], [], [], []
    total = 0
    for source in (APGDA, PREDICTED):
        pairs = comparable(results, source)
        free = [
            p for p in pairs if p.base.asr_all < 100 and max(p.base.asr_all, p.item.asr_all) > 0
        ]
        if not free:
            continue
        above, below = sum(p.gain > 0 for p in free), _losing(free)
        texts.append(
            f"{source.labels} labels: above in {above}, level in {len(free) - above - len(below)}, "
            f"below in {len(below)} of {len(free)} settings"
        )
        behind += [f"with {source.labels} labels below in {', '.join(below)}"] if below else []
        shares.append(above / len(free))
        every += [pair.item for pair in free]
        total += len(pairs)
    if not texts:
        return nothing("every stored setting is at 0 or 100 %")
    networks = sorted({letter for item in every for letter in item.block.letters})
    why = f"networks {', '.join(networks)}, {counted(every)}"
    why += f"; not counted, because at 0 or 100 %: {total - len(every)}"
    why += "".join(f"; {each}" for each in behind)
    found = Finding(f"{'; '.join(texts)} (apgda)", judged(min(shares) == 1, min(shares) > 0.5), why)
    asked = len(results.experiment.blocks)
    lacking = asked - len(comparable(results, APGDA))
    gone = [f"{lacking} of {asked} settings with true labels"] if lacking else []
    return limited(incomplete(found, gone), every)
