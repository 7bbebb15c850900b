"""What stored runs say of weights that are set by hand: Tables 2 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.claim_checks import (
    NEAR,
    Finding,
    Summaries,
    apart,
    based,
    incomplete,
    judged,
    limited,
    nothing,
)
from saddlepoint.experiments.finished import Attacked, Results
from saddlepoint.experiments.plan import UNREPORTED

__all__ = ["above_heuristics", "static_weights", "tuned_clipping"]

_HEURISTICS = {"MNIST": "ensemble-mnist-heuristics", "CIFAR-10": "ensemble-cifar10-heuristics"}
_CLIPS = ("clip", "clip-50")


class _Compared(NamedTuple):
    """Min-max and the other strategies of a data set on the same images, of one source."""

    data: str
    worst: Attacked
    others: tuple[Attacked, ...]

    @property
    def where(self) -> str:
        """The data set, and the labels if they are not the true ones."""
        labels = self.worst.source.labels
        return self.data + ("" if labels == "true" else f", {labels} labels")

    def listed(self, items: Sequence[Attacked]) -> list[str]:
        """Each with its rate."""
        return [f"{o.row.strategy.label} {o.asr_all:.1f} % ({self.where})" for o in items]


def _heuristics(summaries: Summaries) -> list[_Compared]:
    """Every data set; with predicted labels where true ones leave min-max at 100 %, which hides its lead."""
    found = []
    for data, name in _HEURISTICS.items():
        results = summaries.attacks(name)
        several = [] if results is None else _sources(data, results, summaries)
        free = [each for each in several if each.worst.asr_all < 100]
        found += (free or several)[:1]
    return found


def _sources(data: str, results: Results, summaries: Summaries) -> list[_Compared]:
    (block,) = results.experiment.blocks
    found = []
    for source in (summaries.source, summaries.predicted):
        worst = results.one(block, "minmax", source)
        rows = [results.one(block, row.strategy.key, source) for row in block.rows]
        others = tuple(
            r
            for r in rows
            if r is not None and worst is not None and r is not worst and r.same_images(worst)
        )
        if worst is not None and others:
            found.append(_Compared(data, worst, others))
    return found


def above_heuristics(summaries: Summaries) -> Finding:
    """Holds if min-max is more than two points above all others that the paper has.

    In part if none of them is more than two points above it. What is level with it at 100 % is not counted, and
    weightings that the paper does not have are listed alone. Without one of the paper's on both data sets, or
    with fewer than a hundred images, at most in part.
    """
    texts, near, full, added, behind, items = [], [], [], [], [], []
    compared = _heuristics(summaries)
    for each in compared:
        _, worst, others = each
        free = [o for o in others if min(o.asr_all, worst.asr_all) < 100]
        full += each.listed([o for o in others if o not in free])
        close = [o for o in free if apart(worst.asr_all, o.asr_all) <= NEAR]
        near += each.listed([o for o in close if o.row.paper != UNREPORTED])
        added += each.listed([o for o in close if o.row.paper == UNREPORTED])
        papers = [o for o in free if o.row.paper != UNREPORTED]
        if not papers:
            continue
        best = max(papers, key=lambda other: other.asr_all)
        texts.append(
            f"{each.where}: min-max {worst.asr_all:.1f} %, best of the paper's others {best.asr_all:.1f} % "
            f"({best.row.strategy.label})"
        )
        behind.append(apart(best.asr_all, worst.asr_all))
        items.append(worst)
    if not texts:
        return nothing("no rows of Tables 2 and 4 that are not at 100 % are stored")
    why = based(items)
    why += f"; within {NEAR:g} points of min-max or above: {', '.join(near)}" if near else ""
    why += f"; not counted, because both are at 100 %: {', '.join(full)}" if full else ""
    why += f"; of our own weightings so near or above: {', '.join(added)}" if added else ""
    verdict = judged(not near, max(behind) <= NEAR)
    found = Finding(f"{'; '.join(texts)} ({summaries.source.name})", verdict, why)
    return limited(incomplete(found, _gone(summaries, compared)), items)


def _gone(summaries: Summaries, compared: Sequence[_Compared]) -> list[str]:
    """The paper's rows of Tables 2 and 4 that min-max is not compared with."""
    there, gone = {each.data: each for each in compared}, list[str]()
    for data, name in _HEURISTICS.items():
        (block,) = find(name).blocks
        results = summaries.attacks(name)
        if results is None or data not in there:
            gone.append(f"rows of {data}")
            continue
        each = there[data]
        keys = {item.row.strategy.key for item in (each.worst, *each.others)}
        rows = [row for row in block.rows if row.paper != UNREPORTED]
        gone += [
            f"{row.strategy.label} ({each.where})" for row in rows if row.strategy.key not in keys
        ]
        if results.one(block, "minmax", summaries.source) is None:
            gone.append(f"min-max ({data}, true labels)")
    return gone


def static_weights(summaries: Summaries) -> Finding:
    """Holds if fixed weights lose at least two points on both data sets; in part if on one.

    A data set in which both are at 100 % is not counted.
    """
    texts, falls, items, papers = [], [], [], []
    for each in _heuristics(summaries):
        worst = each.worst
        static = next((o for o in each.others if o.row.strategy.key == "static"), None)
        if static is None or min(worst.asr_all, static.asr_all) >= 100:
            continue
        texts.append(f"{each.where}: {worst.asr_all:.1f} to {static.asr_all:.1f} %")
        falls.append(apart(worst.asr_all, static.asr_all) >= NEAR)
        items.append(static)
        both = (worst.row.paper.asr_all, static.row.paper.asr_all)
        papers.append(" to ".join(f"{rate:.1f}" for rate in both if rate is not None))
    if not texts:
        return nothing("no rows of Tables 2 and 4 that are not at 100 % are stored")
    why = f"{based(items)}; the paper's fall is {' and '.join(papers)} %"
    whole = all(falls) and len(falls) == len(_HEURISTICS)
    verdict = judged(whole, any(falls))
    ours = f"{'; '.join(texts)} ({summaries.source.name})"
    return limited(Finding(ours, verdict, why), items)


def tuned_clipping(summaries: Summaries) -> Finding:
    """Holds if min-max is more than two points above the better threshold on both data sets; in part if on one.

    Two thresholds are tried: the paper's, and that of a comment in the authors' code.
    """
    texts, ahead, items = [], [], []
    for each in _heuristics(summaries):
        clips = [o for o in each.others if o.row.strategy.key in _CLIPS]
        if len(clips) < len(_CLIPS):
            continue
        best = max(clips, key=lambda other: other.asr_all)
        rates = ", ".join(f"{o.row.strategy.label} {o.asr_all:.1f} %" for o in clips)
        texts.append(f"{each.where}: min-max {each.worst.asr_all:.1f} %, {rates}")
        ahead.append(apart(each.worst.asr_all, best.asr_all) > NEAR)
        items += [each.worst, *clips]
    if not texts:
        return nothing("no rows of Tables 2 and 4 with both thresholds are stored")
    whole = all(ahead) and len(ahead) == len(_HEURISTICS)
    ours = f"{'; '.join(texts)} ({summaries.source.name})"
    return limited(Finding(ours, judged(whole, any(ahead)), based(items)), items)
