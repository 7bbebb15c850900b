"""What stored runs say of universal perturbations: groups of images, and the weights of these images."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.claim_checks import (
    Finding,
    Summaries,
    based,
    comparable,
    counted,
    incomplete,
    judged,
    limited,
    losing,
    nothing,
    unstored,
)
from saddlepoint.experiments.image_weights import NORMS
from saddlepoint.experiments.pairs import paired, verdict_pairs
from saddlepoint.report.tables import Cell

__all__ = ["across_norms", "bold_letters", "distances", "every_group_size", "hard_images"]

_GROUPS = {
    "CIFAR-10": "universal-cifar10",
    "MNIST, random groups": "universal-mnist",
    "MNIST, groups of one digit": "universal-mnist-digits",
}


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
    for source in (summaries.source, summaries.predicted):
        pairs = comparable(results, source)
        free = [
            p for p in pairs if p.base.asr_all < 100 and max(p.base.asr_all, p.item.asr_all) > 0
        ]
        if not free:
            continue
        above, below = sum(p.gain > 0 for p in free), losing(free)
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
    ours = f"{'; '.join(texts)} ({summaries.source.method_name})"
    found = Finding(ours, judged(min(shares) == 1, min(shares) > 0.5), why)
    asked = len(results.experiment.blocks)
    lacking = asked - len(comparable(results, summaries.source))
    gone = [f"{lacking} of {asked} settings with true labels"] if lacking else []
    return limited(incomplete(found, gone), every)


def hard_images(summaries: Summaries) -> Finding:
    """Holds if min-max fools half of the groups that the average does not, on CIFAR-10 and on MNIST.

    All settings of a kind of groups count together, and on MNIST both kinds. In part if min-max fools more of
    these groups everywhere than it loses of the others. Verdicts of groups are stored, not of their images: a
    group that min-max alone fools has an image that the average does not fool.
    """
    texts, reasons, half, more, gone, items = [], [], [], [], list[str](), []
    for where, name in _GROUPS.items():
        results = summaries.attacks(name)
        pairs = [
            pair
            for pair in ([] if results is None else verdict_pairs(results))
            if pair.item.source == summaries.source and pair.item.row.strategy.key == "minmax"
        ]
        each = [paired(*pair.verdicts) for pair in pairs]
        won, lost = sum(e.gained for e in each), sum(e.lost for e in each)
        left = sum(pair.verdicts[0].count(False) for pair in pairs)
        asked = len(find(name).blocks)
        if not left:
            gone.append(f"rows of {where}")
            continue
        if len(pairs) < asked:
            gone.append(f"{asked - len(pairs)} of {asked} settings of {where}")
        texts.append(f"{where} {100 * won / left:.1f} % ({won} of {left})")
        fewer = sum(pair.item.asr_mean < pair.base.asr_mean for pair in pairs)
        reasons.append(
            f"{where}: {lost} that only the average fools, ASR_avg lower in {fewer} of {len(pairs)}"
        )
        half.append(2 * won >= left)
        more.append(won > lost)
        items += [pair.item for pair in pairs]
    if not texts:
        return nothing("no verdicts of groups are stored")
    why = (
        "groups that min-max fools of those that the average does not, all settings together; "
        f"{'; '.join(reasons)} settings; verdicts of single images are not stored; {based(items)}"
    )
    ours = f"{'; '.join(texts)} ({summaries.source.name})"
    return incomplete(Finding(ours, judged(all(half), all(more)), why), gone)


def bold_letters(_: Summaries) -> Finding:
    """Not measured: it would take the weight of every image, and a measure of how clear a letter looks."""
    return nothing(
        "weights of single images are not stored, and the paper, which shows examples, does not say how the "
        "clarity of a letter is to be measured; RESULTS has a figure of digits with their weights"
    )


def distances(summaries: Summaries) -> Finding:
    """Holds if all mean rank correlations are at least 0.4 with intervals above zero; in part if these are.

    Without one of the norms at most in part.
    """
    method = summaries.source.method
    lines = [line for line in summaries.lines("image-robustness") if line[1] == method]
    if not lines:
        return nothing("no lines of image-robustness are stored")
    means = _numbers(line[k] for line in lines for k in (3, 5))
    lows = [pair[0] for line in lines for k in (4, 6) if isinstance(pair := line[k], tuple)]
    if not lows:
        return nothing("the stored lines of image-robustness have no correlations with an interval")
    printed = [line for line in summaries.lines("image-robustness") if line[1] == "paper"]
    papers = _numbers(line[k] for line in printed for k in (3, 5))
    ours = f"mean rank correlations {min(means):.2f} to {max(means):.2f} ({method})"
    why = (
        f"norms {', '.join(str(line[0]) for line in lines)}, C&W distance and smallest radius, "
        f"{lines[0][2]} groups of our network C; the paper's "
        f"printed numbers give {min(papers):.2f} to {max(papers):.2f}; zero is in "
        f"{sum(low <= 0 for low in lows)} of {len(lows)} intervals"
    )
    whole = {line[0] for line in lines if None not in line[3:7]}
    gone = [f"{norm} with both correlations" for norm in NORMS if norm not in whole]
    verdict = judged(min(means) >= 0.4 and min(lows) > 0, min(lows) > 0)
    return incomplete(Finding(ours, verdict, why), gone)


def across_norms(summaries: Summaries) -> Finding:
    """Holds if all mean rank correlations between norms are at least 0.5; in part if they are positive.

    Without one of the pairs at most in part.
    """
    lines, method = summaries.lines("image-robustness"), summaries.source.method
    found: dict[str, list[float]] = {"paper": [], method: []}
    pairs = set[frozenset[str]]()
    for line in lines:
        if line[1] in found:
            cells = line[7 : 7 + len(NORMS)]
            found[str(line[1])] += _numbers(cells)
        if line[1] == method:
            both = zip(NORMS, line[7:], strict=False)
            pairs |= {frozenset((str(line[0]), n)) for n, cell in both if isinstance(cell, float)}
    ours, paper = found[method], found["paper"]
    if not ours:
        return nothing("the stored run was made before weights were compared across norms")
    text = f"mean rank correlations {min(ours):.2f} to {max(ours):.2f} ({method})"
    why = (
        f"{len(pairs)} pairs of norms, weights inside groups; the paper's printed weights give "
        f"{min(paper):.2f} to {max(paper):.2f}"
    )
    every = combinations(NORMS, 2)
    gone = [f"{one} with {other}" for one, other in every if frozenset((one, other)) not in pairs]
    return incomplete(Finding(text, judged(min(ours) >= 0.5, min(ours) > 0), why), gone)


def _numbers(cells: Iterable[Cell]) -> list[float]:
    return [cell for cell in cells if isinstance(cell, float)]
