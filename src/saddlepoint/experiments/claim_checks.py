"""What stored runs say of the claims of the paper: one function per claim, one rule per verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple, final

from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.finished import Attacked, Results, Source
from saddlepoint.experiments.pairs import mean_gain, verdict_pairs
from saddlepoint.experiments.plan import AVERAGE
from saddlepoint.experiments.ranks import spearman
from saddlepoint.experiments.stored import read_lines, read_summary
from saddlepoint.report.tables import Cell

__all__ = [
    "APGDA",
    "NEAR",
    "Finding",
    "Summaries",
    "Verdict",
    "above_heuristics",
    "counted",
    "every_group_size",
    "hard_against_easy",
    "judged",
    "mean_lift",
    "nothing",
    "order_of_weights",
    "radii",
    "settling",
    "static_weights",
]

Verdict = Literal["holds", "holds in part", "does not hold", "not measured"]

APGDA = Source("apgda")
"""The paper's algorithm with the paper's labels, by which verdicts go."""

_SHOWN = (APGDA, Source("apgda", "predicted"), Source("attack"))
NEAR = 2.0
"""Points by which one success rate may be below another one and still be called level."""


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
        return read_lines(find(name), self.store) if there else ()


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


class _Pair(NamedTuple):
    """Average and min-max of a block."""

    base: Attacked
    item: Attacked


def _pairs(results: Results, source: Source, only: str = "") -> list[_Pair]:
    found = []
    for block in results.experiment.blocks:
        base = results.one(block, AVERAGE.key, source)
        item = results.one(block, "minmax", source)
        if base is not None and item is not None and block.key.endswith(only):
            found.append(_Pair(base, item))
    return found


def _reported(pairs: Sequence[_Pair]) -> list[_Pair]:
    """The settings that the paper has, too; all where it has none of them."""
    kept = [pair for pair in pairs if pair.item.row.paper.asr_all is not None]
    return kept or list(pairs)


def counted(items: Iterable[Attacked]) -> str:
    """How many images rows rest on."""
    counts = sorted({item.images for item in items})
    if len(counts) == 1:
        return f"{counts[0]} images"
    return f"{counts[0]} to {counts[-1]} images per setting"


# ------------------------------------------------------------------------------- lifts


def mean_lift(summaries: Summaries, *, name: str, reported: float, only: str) -> Finding:
    """Holds if no setting loses and the mean lift is half of the paper's or more; in part if it is positive."""
    results = summaries.attacks(name)
    if results is None:
        return nothing("networks without shipped parameters are among them")
    texts, why = [], ""
    verdict: Verdict = "not measured"
    for source in _SHOWN:
        pairs = _reported(_pairs(results, source, only))
        lifts = [r for pair in pairs if (r := results.lift(pair.item)) is not None]
        if not lifts:
            continue
        texts.append(f"{fmean(lifts):+.1f} % ({source.name}{_gain(results, source, only)})")
        if source == APGDA:
            losing = [p.item.block.label for p in pairs if p.item.asr_all < p.base.asr_all]
            enough = fmean(lifts) >= reported / 2 and not losing
            verdict = judged(enough, fmean(lifts) > 0)
            why = _lift_reason(pairs, losing, only)
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
    settings = {p.item.block.key for p in _reported(_pairs(results, source, only))}
    pairs = [pair for pair in pairs if pair.item.block.key in settings]
    if len(pairs) < len(settings):
        return ""
    gain, (low, high) = mean_gain(pairs)
    return f"; {gain:+.1f} points [{low:+.1f}, {high:+.1f}]"


def _lift_reason(pairs: Sequence[_Pair], losing: Sequence[str], only: str) -> str:
    level = fmean(pair.base.asr_all for pair in pairs)
    text = f"{len(pairs)} settings, {counted(pair.item for pair in pairs)}"
    rates = (pair.base.row.paper.asr_all for pair in pairs)
    papers = [rate for rate in rates if rate is not None]
    text += f"; our average fools {level:.1f} %"
    text += f", the paper's {fmean(papers):.1f} % in the same settings" if papers else ""
    undefined = [p.item.block.label for p in pairs if p.base.asr_all == 0]
    text += f"; at 0 % there is no lift: {', '.join(undefined)}" if undefined else ""
    text += f"; min-max is below in {', '.join(losing)}" if losing else ""
    return text + (f" (K = {only.removeprefix('k')} only)" if only else "")


def every_group_size(summaries: Summaries) -> Finding:
    """Holds if min-max is above wherever the average is neither at 0 with min-max nor at 100 %."""
    results = summaries.attacks("universal-cifar10")
    if results is None:
        return nothing("no summary of Table 5 is stored")
    pairs = _pairs(results, APGDA)
    free = [p for p in pairs if p.base.asr_all < 100 and max(p.base.asr_all, p.item.asr_all) > 0]
    above = [p for p in free if p.item.asr_all > p.base.asr_all]
    below = [p.item.block.label for p in free if p.item.asr_all < p.base.asr_all]
    ours = f"above in {len(above)}, below in {len(below)} of {len(free)} settings (apgda)"
    why = f"networks A, B, C, D, {counted(p.item for p in pairs)}"
    why += f"; not counted, because at 0 or 100 %: {len(pairs) - len(free)}"
    why += f"; below in {', '.join(below)}" if below else ""
    return Finding(ours, judged(len(above) == len(free), len(above) > len(free) / 2), why)


# ------------------------------------------------------------------------------- ensembles


def hard_against_easy(summaries: Summaries) -> Finding:
    """Holds if the hard half gains at least ten points and the easy half loses at most a third of that."""
    results = summaries.attacks("ensemble-mnist")
    pairs = [] if results is None else _pairs(results, APGDA, "linf-0.2")
    if not pairs:
        return nothing("no summary of Table 1 is stored")
    ((base, item),) = pairs
    order = sorted(base.domains, key=lambda name: -base.accuracy[name])
    hard, easy = sorted(order[:2]), sorted(order[2:])
    gains = [fmean(base.accuracy[n] - item.accuracy[n] for n in names) for names in (hard, easy)]
    ours = f"{', '.join(hard)} {gains[0]:+.1f} points; {', '.join(easy)} {gains[1]:+.1f} (apgda)"
    small = gains[1] >= -gains[0] / 3
    why = (
        f"{counted([item])}; our hard networks under the average are {' and '.join(hard)}; ASR_all goes "
        f"from {base.asr_all:.1f} to {item.asr_all:.1f} %, ASR_avg from {base.asr_mean:.1f} to "
        f"{item.asr_mean:.1f} %"
    )
    return Finding(ours, judged(gains[0] >= 10 and small, gains[0] > 0), why)


def order_of_weights(summaries: Summaries) -> Finding:
    """Holds if no two networks are the other way round in weight and accuracy; in part if ranks correlate."""
    results = summaries.attacks("ensemble-mnist")
    pairs = [] if results is None else _pairs(results, APGDA, "linf-0.2")
    if not pairs:
        return nothing("no summary of Table 1 is stored")
    ((base, item),) = pairs
    weights = [item.weights[name] for name in item.domains]
    order = sorted(item.domains, key=lambda name: -item.weights[name])
    under = [spearman(weights, [each.accuracy[n] for n in item.domains]) for each in (item, base)]
    ours = ", ".join(f"w_{name} {item.weights[name]:.2f}" for name in order)
    left = ", ".join(f"{name} {item.accuracy[name]:.1f} %" for name in order)
    why = (
        f"accuracy under min-max, in that order: {left}; rank correlation {under[0]:.2f}, with the accuracies "
        f"under the average {under[1]:.2f}; {counted([item])}"
    )
    left_over = [item.accuracy[name] for name in order]
    return Finding(ours, judged(left_over == sorted(left_over, reverse=True), under[0] > 0), why)


def settling(summaries: Summaries) -> Finding:
    """Holds if weights stay within 0.1 (l1, mean over images) of the final ones from half of the steps on."""
    results = summaries.attacks("steps-mnist")
    item = None
    if results is not None:
        item = results.one(results.experiment.blocks[0], "minmax", APGDA)
    if item is None or (settled := item.settles()) is None:
        return nothing(
            "the stored run of Figure 1 was made before the steps of the weights were kept"
        )
    steps = item.block.settings.steps
    ours = f"from step {settled} of {steps} on (apgda)"
    why = (
        "the step from which on the mean l1 distance of the weights of an image to its final ones stays below "
        f"0.1; {counted([item])}"
    )
    return Finding(ours, judged(settled <= steps / 2, settled <= 0.8 * steps), why)


def radii(summaries: Summaries) -> Finding:
    """Holds if min-max is nowhere more than two points below the average; in part if so in most settings."""
    pairs = []
    for name in ("eps-mnist", "eps-cifar10", "eps-mnist-abc", "eps-cifar10-abc"):
        results = summaries.attacks(name)
        pairs += [] if results is None else _pairs(results, APGDA)
    if not pairs:
        return nothing("no summary of Figure 2 is stored")
    above = sum(p.item.asr_all > p.base.asr_all for p in pairs)
    below = [p for p in pairs if p.item.asr_all < p.base.asr_all - NEAR]
    level = len(pairs) - above - len(below)
    ours = (
        f"above in {above}, level in {level}, below in {len(below)} of {len(pairs)} radii (apgda)"
    )
    where = [
        f"{p.item.block.settings.data} {''.join(p.item.domains)} {p.item.block.label} "
        f"by {p.base.asr_all - p.item.asr_all:.1f}"
        for p in below
    ]
    why = f"MNIST and CIFAR-10, four and three networks, {counted(p.item for p in pairs)}"
    why += f"; below in {', '.join(where)} points" if where else ""
    return Finding(ours, judged(not below, len(below) < len(pairs) / 4), why)


def _heuristics(summaries: Summaries) -> list[tuple[str, Results]]:
    names = {"MNIST": "ensemble-mnist-heuristics", "CIFAR-10": "ensemble-cifar10-heuristics"}
    found = [(data, summaries.attacks(name)) for data, name in names.items()]
    return [(data, results) for data, results in found if results is not None]


def above_heuristics(summaries: Summaries) -> Finding:
    """Holds if min-max is above all others; in part if none is ahead of it by more than two points."""
    texts, level, far, items = [], [], False, []
    for data, results in _heuristics(summaries):
        (block,) = results.experiment.blocks
        worst = results.one(block, "minmax", APGDA)
        rows = [results.one(block, row.strategy.key, APGDA) for row in block.rows]
        others = [r for r in rows if r is not None and r.row.strategy.key != "minmax"]
        if worst is None or not others:
            continue
        best = max(others, key=lambda other: other.asr_all)
        name = best.row.strategy.label
        texts.append(
            f"{data}: min-max {worst.asr_all:.1f} %, best other {best.asr_all:.1f} % ({name})"
        )
        level += [f"{o.row.strategy.label} ({data})" for o in others if o.asr_all >= worst.asr_all]
        far = far or best.asr_all > worst.asr_all + NEAR
        items.append(worst)
    if not texts:
        return nothing("no summary of Tables 2 and 4 is stored")
    why = f"{counted(items)}, true labels"
    why += f"; level with min-max or above: {', '.join(level)}" if level else ""
    return Finding("; ".join(texts) + " (apgda)", judged(not level, not far), why)


def static_weights(summaries: Summaries) -> Finding:
    """Holds if fixed weights lose at least two points on both data sets; in part if on one."""
    texts, falls, items, papers = [], [], [], []
    for data, results in _heuristics(summaries):
        (block,) = results.experiment.blocks
        worst, static = (results.one(block, key, APGDA) for key in ("minmax", "static"))
        if worst is None or static is None:
            continue
        texts.append(f"{data}: {worst.asr_all:.1f} to {static.asr_all:.1f} %")
        falls.append(worst.asr_all - static.asr_all >= NEAR)
        items.append(static)
        both = (worst.row.paper.asr_all, static.row.paper.asr_all)
        papers.append(" to ".join(f"{rate:.1f}" for rate in both if rate is not None))
    if not texts:
        return nothing("no summary of Tables 2 and 4 is stored")
    why = f"{counted(items)}; the paper's fall is {' and '.join(papers)} %"
    return Finding("; ".join(texts) + " (apgda)", judged(all(falls), any(falls)), why)
