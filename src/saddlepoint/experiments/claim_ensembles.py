"""What stored runs say of the claims on ensembles of networks, Tables 1 and 3 and Figures 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.claim_checks import (
    NEAR,
    Finding,
    Pair,
    Summaries,
    apart,
    based,
    comparable,
    incomplete,
    judged,
    limited,
    nothing,
    unstored,
)
from saddlepoint.experiments.finished import Attacked
from saddlepoint.experiments.ranks import spearman

__all__ = [
    "hard_against_easy",
    "moderate_radii",
    "order_of_weights",
    "path_of_weights",
    "radii",
    "settling",
]

_RADII = ("eps-mnist", "eps-cifar10", "eps-mnist-abc", "eps-cifar10-abc")
_MODERATE = {"mnist": (0.15, 0.25), "cifar10": (0.03, 0.05)}


def _linf(summaries: Summaries, name: str) -> Pair | None:
    """Average and min-max of the linf rows of Table 1, on the networks that an experiment has."""
    results = summaries.attacks(name)
    pairs = [] if results is None else comparable(results, summaries.source, "linf-0.2")
    return pairs[0] if pairs else None


def hard_against_easy(summaries: Summaries, name: str = "ensemble-mnist") -> Finding:
    """Holds if the hard half gains at least ten points and the easy half loses at most a tenth of that.

    In part if the hard half gains more than the easy half loses. The paper's loses a thirty-sixth. Means of the
    halves decide; every network is named, because one may gain what the other loses.
    """
    pair = _linf(summaries, name)
    if pair is None:
        return unstored(name)
    base, item = pair
    order = sorted(base.domains, key=lambda name: -base.accuracy[name])
    hard, easy = sorted(order[:2]), sorted(order[2:])
    each = {name: apart(base.accuracy[name], item.accuracy[name]) for name in (*hard, *easy)}
    gains = [round(fmean(each[name] for name in names), 4) for names in (hard, easy)]
    ours = f"{', '.join(hard)} {gains[0]:+.1f} points; {', '.join(easy)} {gains[1]:+.1f} "
    ours += f"({summaries.source.name})"
    small, more = apart(gains[1], -gains[0] / 10) >= 0, gains[0] > max(0.0, -gains[1])
    why = (
        f"{based([item])}; our hard networks under the average are {' and '.join(hard)}; ASR_all goes "
        f"from {base.asr_all:.1f} to {item.asr_all:.1f} %, ASR_avg from {base.asr_mean:.1f} to "
        f"{item.asr_mean:.1f} %; network by network "
        f"{', '.join(f'{name} {gain:+.1f}' for name, gain in each.items())} points"
    )
    why += "" if more else "; the easy networks lose as much as the hard ones gain, or more"
    return limited(Finding(ours, judged(gains[0] >= 10 and small, more), why), [item])


def order_of_weights(summaries: Summaries, name: str = "ensemble-mnist") -> Finding:
    """Holds if no two networks are the other way round in weight and accuracy; in part if ranks correlate."""
    pair = _linf(summaries, name)
    if pair is None:
        return unstored(name)
    base, item = pair
    weights = [item.weights[name] for name in item.domains]
    order = sorted(item.domains, key=lambda name: -item.weights[name])
    under = [spearman(weights, [each.accuracy[n] for n in item.domains]) for each in (item, base)]
    ours = ", ".join(f"w_{name} {item.weights[name]:.2f}" for name in order)
    left = ", ".join(f"{name} {item.accuracy[name]:.1f} %" for name in order)
    why = (
        f"accuracy under min-max, in that order: {left}; rank correlation {under[0]:.2f}, with the accuracies "
        f"under the average {under[1]:.2f}; {based([item])}"
    )
    left_over = [item.accuracy[name] for name in order]
    verdict = judged(left_over == sorted(left_over, reverse=True), under[0] > 0)
    return limited(Finding(ours, verdict, why), [item])


# ------------------------------------------------------------------------------- over the steps


def _steps(summaries: Summaries) -> Attacked | None:
    """Min-max of Figure 1."""
    results = summaries.attacks("steps-mnist")
    if results is None:
        return None
    return results.one(results.experiment.blocks[0], "minmax", summaries.source)


def settling(summaries: Summaries) -> Finding:
    """Holds if weights are within 0.1 (l1, mean over images) of the final ones from a fifth of the steps on.

    In part if they are from half of them on. The weights of each image decide: every image is attacked with its
    own, and while these still move, what they lose and gain cancels in their mean, which is told beside it.
    """
    item = _steps(summaries)
    if item is None or (settled := item.settles()) is None:
        return nothing("no run of Figure 1 with the steps of its weights is stored")
    steps = item.block.settings.steps
    path = item.path()
    mean = "" if path is None else f", the mean weights from step {_still(path)} on"
    why = (
        "the step from which on the l1 distance of the weights of an image to its final ones, mean over "
        "images, stays below 0.1, and the same of the mean weights; the weights of each image decide; a small "
        f"number is a fifth of the steps or less, in part half of them; {based([item])}"
    )
    verdict = judged(settled <= steps / 5, settled <= steps / 2)
    ours = f"from step {settled} of {steps} on{mean} ({summaries.source.name})"
    return limited(Finding(ours, verdict, why), [item])


def _still(path: Mapping[str, Sequence[float]]) -> int:
    """The step from which on mean weights are less than 0.1 (l1) from their final ones."""
    far = [
        sum(abs(now - means[-1]) for now, means in zip(each, path.values(), strict=True)) >= 0.1
        for each in zip(*path.values(), strict=True)
    ]
    return max((step + 1 for step, moves in enumerate(far) if moves), default=0)


def path_of_weights(summaries: Summaries) -> Finding:
    """Holds if the weight of D rises and falls by half of the paper's 0.2 and 0.15 or more.

    In part if that of another network does.
    """
    item = _steps(summaries)
    if item is None or (path := item.path()) is None:
        return nothing("no run of Figure 1 with the mean weights of every step is stored")
    found = {name: (means[0], max(means), means[-1]) for name, means in path.items()}
    shown = [f"w_{n} {a:.2f}, at most {b:.2f}, at last {c:.2f}" for n, (a, b, c) in found.items()]
    rises = {n: (apart(b, a), apart(b, c)) for n, (a, b, c) in found.items()}
    like = [n for n, (up, down) in rises.items() if up >= 0.1 and down >= 0.075]
    why = f"means over {based([item])}; rising by 0.1 and falling by 0.075 or more: "
    found_so = judged("D" in like, bool(like))
    why += ", ".join(like) or "none"
    ours = f"{'; '.join(shown)} ({summaries.source.name})"
    return limited(Finding(ours, found_so, why), [item])


# ------------------------------------------------------------------------------- over the radius


def _by_radius(summaries: Summaries) -> dict[str, list[Pair]]:
    """The pairs of every data set and ensemble that is stored."""
    found: dict[str, list[Pair]] = {}
    for name in _RADII:
        results = summaries.attacks(name)
        for pair in [] if results is None else comparable(results, summaries.source):
            block = pair.item.block
            where = f"{block.settings.data} {', '.join(block.letters)}"
            found.setdefault(where, []).append(pair)
    return found


def _gone(found: Mapping[str, Sequence[Pair]]) -> list[str]:
    """How many radii of which ensembles are not stored."""
    gone = []
    for name in _RADII:
        blocks = find(name).blocks
        where = f"{blocks[0].settings.data} {', '.join(blocks[0].letters)}"
        lacking = len(blocks) - len(found.get(where, ()))
        gone += [f"{lacking} of {len(blocks)} radii of {where}"] if lacking else []
    return gone


def radii(summaries: Summaries) -> Finding:
    """Holds if min-max is nowhere more than two points below the average; in part if in less than a quarter.

    With fewer than a hundred images, or without one of the radii, at most in part.
    """
    found = _by_radius(summaries)
    pairs = [pair for several in found.values() for pair in several]
    if not pairs:
        return unstored(_RADII[0])
    above = sum(p.gain > 0 for p in pairs)
    below = [p for p in pairs if p.gain < -NEAR]
    level = len(pairs) - above - len(below)
    ours = f"above in {above}, level in {level}, below in {len(below)} of {len(pairs)} radii "
    ours += f"({summaries.source.name})"
    where = [
        f"{p.item.block.settings.data} {''.join(p.item.domains)} {p.item.block.label} by {-p.gain:.1f}"
        for p in below
    ]
    why = f"{'; '.join(found)}; {based(p.item for p in pairs)}"
    why += f"; below in {', '.join(where)} points" if where else ""
    verdict = judged(not below, len(below) < len(pairs) / 4)
    return limited(incomplete(Finding(ours, verdict, why), _gone(found)), [p.item for p in pairs])


def moderate_radii(summaries: Summaries) -> Finding:
    """Holds if in every ensemble the radius with the largest gain is moderate; in part if in some.

    With fewer than a hundred images, or without one of the radii, at most in part.
    """
    found = _by_radius(summaries)
    texts, inside, items = [], [], []
    for where, pairs in found.items():
        low, high = _MODERATE[pairs[0].item.block.settings.data]
        moderate = [p for p in pairs if low <= p.item.block.settings.eps <= high]
        others = [p for p in pairs if p not in moderate]
        if not moderate or not others:
            continue
        best = max(pairs, key=lambda pair: pair.gain)
        gains = [fmean(p.gain for p in several) for several in (moderate, others)]
        inside.append(best in moderate and best.gain > max(p.gain for p in others))
        items += [p.item for p in pairs]
        texts.append(
            f"{where}: {gains[0]:+.1f} points in [{low:g}, {high:g}], {gains[1]:+.1f} elsewhere, most at "
            f"{best.item.block.settings.eps:g}"
        )
    if not texts:
        return unstored(_RADII[0])
    why = (
        f"{based(items)} (true labels); gain in points of min-max over the average, mean over radii"
    )
    ours = f"{'; '.join(texts)} ({summaries.source.name})"
    found_so = Finding(ours, judged(all(inside), any(inside)), why)
    return limited(incomplete(found_so, _gone(found)), items)
