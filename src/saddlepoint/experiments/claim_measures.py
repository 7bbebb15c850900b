"""What stored runs say of the numbers of the method: gamma, beta, alpha, the rate, the cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from saddlepoint import paper
from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.claim_checks import (
    NEAR,
    Finding,
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
from saddlepoint.experiments.pairs import paired_rows
from saddlepoint.experiments.plan import AVERAGE
from saddlepoint.runs.plain import read_json, read_plain

__all__ = [
    "betas",
    "cost",
    "gammas",
    "rate",
    "same_alpha",
    "sensitivity",
    "training_cost",
]


_OWN = "(Table 1)"
"""What the settings of `convergence` with the paper's step sizes are called by."""

_LARGE = 10.0
"""Points of success rate that are a large change."""

_TRAINING = {name: f"AMPGD step over {name} step, K = 3" for name in ("AVG", "MAX")}


@dataclass(frozen=True)
class _Figure:
    name: str
    value: float


@dataclass(frozen=True)
class _Room:
    """What `python -m benchmarks` keeps of a room, as far as claims rest on it."""

    figures: tuple[_Figure, ...] = ()
    begun_and_ended_with_load: tuple[float, ...] = ()
    cores: int = 1


def _room(file: Path, name: str) -> _Room:
    """A room of the figures that are kept; empty where there are none of it."""
    must = f"`{file}` must be as `python -m benchmarks --store` writes it"
    remedy = "take it from version control again, or move it away and repeat that command"
    kept = read_json(file, must, remedy) if file.is_file() else {}
    return read_plain(dict[str, _Room], kept, must, remedy).get(name, _Room())


def _swept(summaries: Summaries, name: str) -> tuple[Attacked, dict[float, Attacked]] | None:
    """The average, and min-max on the same images by the number that is varied."""
    results = summaries.attacks(name)
    if results is None:
        return None
    (block,) = results.experiment.blocks
    base = results.one(block, AVERAGE.key, summaries.source)
    rows = [results.one(block, row.strategy.key, summaries.source) for row in block.rows[1:]]
    found = {
        float(row.row.strategy.key.partition("-")[2]): row
        for row in rows
        if row is not None and base is not None and row.same_images(base)
    }
    return None if base is None or not found else (base, found)


def _absent(name: str, found: Iterable[float]) -> list[float]:
    """The values of a sweep that are not stored."""
    (block,) = find(name).blocks
    every = [float(row.strategy.key.partition("-")[2]) for row in block.rows[1:]]
    return sorted(set(every) - set(found))


def gammas(summaries: Summaries) -> Finding:
    """Holds if every gamma is above the average, one from 3 to 5 is among the best, and 0 and 10 are not.

    Among the best is what is within two points of the best. In part if every gamma is above the average.
    Without one of the values at most in part.
    """
    swept = _swept(summaries, "gamma-mnist")
    if swept is None:
        return unstored("gamma-mnist")
    base, found = swept
    rates = [item.asr_all for item in found.values()]
    best = [gamma for gamma, item in found.items() if item.asr_all == max(rates)]
    ours = f"{min(rates):.1f} to {max(rates):.1f} %, the average {base.asr_all:.1f} %"
    ours += f"; best at gamma {_listed(best)}"
    ours += f"; {found[4.0].asr_all:.1f} % at 4" if 4.0 in found else ""
    above = min(rates) > base.asr_all
    near = [gamma for gamma in found if apart(max(rates), found[gamma].asr_all) <= NEAR]
    middle = any(3 <= gamma <= 5 for gamma in near)
    weak = [gamma for gamma in (0.0, 10.0) if gamma in found and gamma not in near]
    why = f"{based([base])}; within {NEAR:g} points of the best: gamma {_listed(near)}"
    why += f"; of the ends weaker: {f'gamma {_listed(weak)}' if weak else 'none'}"
    verdict = judged(above and middle and len(weak) == 2, above)
    gone = [f"gamma {value:g}" for value in _absent("gamma-mnist", found)]
    return limited(
        incomplete(Finding(f"{ours} ({summaries.source.name})", verdict, why), gone), [base]
    )


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def betas(summaries: Summaries) -> Finding:
    """Holds if 1/T is within two points of the best; in part if it is above the average.

    Without one of the values at most in part, and without 1/T it is not measured.
    """
    swept = _swept(summaries, "beta-mnist")
    if swept is None:
        return unstored("beta-mnist")
    base, found = swept
    unit = 1 / base.block.settings.steps
    there = min(found, key=lambda beta: abs(beta - unit))
    if round(there / unit, 4) != 1:
        return nothing("no row of beta-mnist with 1/T is stored")
    best = max(found, key=lambda beta: found[beta].asr_all)
    shown = ", ".join(f"{beta / unit:g}/T {item.asr_all:.1f}" for beta, item in found.items())
    ours = f"{shown} % ({summaries.source.name})"
    behind = apart(found[best].asr_all, found[there].asr_all)
    why = (
        f"{based([base])}; the average fools {base.asr_all:.1f} %, the best is {best / unit:g}/T, "
        f"{behind:.1f} points ahead of 1/T"
    )
    verdict = judged(behind <= NEAR, found[there].asr_all > base.asr_all)
    gone = [f"beta {value / unit:g}/T" for value in _absent("beta-mnist", found)]
    return limited(incomplete(Finding(ours, verdict, why), gone), [base])


def sensitivity(summaries: Summaries) -> Finding:
    """Holds if none of gamma, beta and alpha changes the success rate by more than ten points.

    In part if one of them does not. With fewer than a hundred images, or without one of the values, at most in
    part. The values of each are compared on the same images.
    """
    texts, reasons, small, items, gone = [], [], [], [], list[str]()
    for name, found, absent in (
        ("gamma", *_named_rows(summaries, "gamma", 1.0, "")),
        ("beta", *_named_rows(summaries, "beta", 1 / paper.STEPS["ensemble"], "/T")),
        ("alpha", by_alpha := _alphas(summaries), _absent_alphas(by_alpha)),
    ):
        if not found:
            return unstored(f"{name}-mnist")
        first, *others = found
        if not others:
            return nothing(f"of {name}-mnist nothing but {name} = {first} is stored")
        if not all(item.same_images(found[first]) for item in found.values()):
            return nothing(f"the rows of {name}-mnist are of different images")
        last, rates = others[-1], [item.asr_all for item in found.values()]
        gone += [f"{name} {text}" for text in absent]
        texts.append(f"{name} {first} to {last}: {min(rates):.1f} to {max(rates):.1f} %")
        far = [text for text, item in found.items() if apart(max(rates), item.asr_all) > _LARGE]
        small.append(not far)
        reasons.append(f"{name}: {', '.join(far) or 'none'}")
        items += list(found.values())
    why = f"{based(items)}; more than {_LARGE:g} points below the best: {'; '.join(reasons)}"
    verdict = judged(all(small), any(small))
    found_so = Finding(f"{'; '.join(texts)} ({summaries.source.name})", verdict, why)
    return limited(incomplete(found_so, gone), items)


def _named_rows(
    summaries: Summaries, name: str, unit: float, after: str
) -> tuple[dict[str, Attacked], list[str]]:
    """Min-max by the number that is varied, in so many units, the smallest first, and what is not stored."""
    swept = _swept(summaries, f"{name}-mnist")
    found = {} if swept is None else swept[1]
    absent = _absent(f"{name}-mnist", found)
    rows = {f"{value / unit:g}{after}": found[value] for value in sorted(found)}
    return rows, [f"{value / unit:g}{after}" for value in absent]


def _alphas(summaries: Summaries) -> dict[str, Attacked]:
    """Min-max by alpha, which varies from block to block."""
    results = summaries.attacks("alpha-mnist")
    pairs = [] if results is None else comparable(results, summaries.source)
    return {f"{pair.item.block.value:g}": pair.item for pair in pairs}


def _absent_alphas(found: Iterable[str]) -> list[str]:
    every = [f"{block.value:g}" for block in find("alpha-mnist").blocks]
    return [text for text in every if text not in set(found)]


def same_alpha(summaries: Summaries) -> Finding:
    """Holds if min-max is above the average with the same alpha at every value; in part if at more than half.

    Where the interval of the gain holds zero is named. With fewer than a hundred images, or without one of the
    values, at most in part.
    """
    results = summaries.attacks("alpha-mnist")
    pairs = [] if results is None else comparable(results, summaries.source)
    if not pairs:
        return unstored("alpha-mnist")
    gains = {f"{pair.item.block.value:g}": pair for pair in pairs}
    above = sum(pair.gain > 0 for pair in pairs)
    shown = ", ".join(f"{alpha} {pair.gain:+.1f}" for alpha, pair in gains.items())
    ours = (
        f"above at {above} of {len(pairs)} values; alpha {shown} points ({summaries.source.name})"
    )
    why = f"points of min-max over the average with the same alpha, {based(p.item for p in pairs)}"
    won = {alpha: paired_rows(*pair) for alpha, pair in gains.items()}
    near = [
        f"{alpha} [{low:+.1f}, {high:+.1f}]"
        for alpha, each in won.items()
        if each is not None and (low := each.interval[0]) <= 0 <= (high := each.interval[1])
    ]
    why += f"; the interval holds zero at alpha {', '.join(near)}" if near else ""
    verdict = judged(above == len(pairs), 2 * above > len(pairs))
    gone = [f"alpha {alpha}" for alpha in _absent_alphas(gains)]
    return limited(incomplete(Finding(ours, verdict, why), gone), [pair.item for pair in pairs])


def rate(summaries: Summaries) -> Finding:
    """Holds if the squared residual falls with slope -2 or steeper for all step sizes of the paper.

    In part if all of these, or all smaller ones, reach -1. The theorem says 1/T. Its footnote measures the
    norm, which is slope -2 of the square; usual for such results is the squared norm, which is -1. It asks for
    alpha <= 1/L, where gradients of the losses are L-Lipschitz; margins of networks with ReLU have no such L,
    so that no setting is known to meet this, and smaller steps come nearest.
    """
    method = summaries.source.method
    lines = [line for line in summaries.lines("convergence") if line[1] == method]
    slopes = {str(line[0]): line[8] for line in lines if isinstance(line[8], float)}
    own = [slope for label, slope in slopes.items() if _OWN in label]
    small = [slope for label, slope in slopes.items() if _OWN not in label]
    if not own:
        return nothing("no lines of convergence are stored")
    ours = "; ".join(f"{label}: {slope:.2f}" for label, slope in slopes.items())
    usual, strict = (
        " and ".join(
            f"{sum(slope <= bound for slope in those)} of {len(those)} of {whose}"
            for those, whose in ((own, "the paper's step sizes"), (small, "smaller ones"))
            if those
        )
        for bound in (-1, -2)
    )
    why = (
        "slope of the squared residual against T in logarithms. If 1/T is the rate of the squared norm, as "
        f"usual, it is -1, which {usual} reach; if it is that of the norm, as the footnote says, -2, which "
        f"{strict} reach. It holds if all of the paper's reach -2, and in part if all of them reach -1, or all "
        "smaller ones, which come nearest to what the theorem asks for, smooth losses and small steps, though "
        f"margins of networks with ReLU are not smooth; {lines[0][2]} images, networks A, C, D"
    )
    part = any(those and max(those) <= -1 for those in (own, small))
    return incomplete(
        Finding(ours, judged(max(own) <= -2, part), why), _unmeasured("convergence", slopes)
    )


def _unmeasured(name: str, there: Iterable[str]) -> list[str]:
    """The measurements of an experiment that are not stored."""
    return [each.label for each in find(name).measurements if each.label not in set(there)]


def cost(summaries: Summaries) -> Finding:
    """Holds if the largest ratio of times is at most the paper's."""
    method = summaries.source.method
    lines = [line for line in summaries.lines("cost") if line[1] == method]
    ratios = {str(line[0]): line[5] for line in lines if isinstance(line[5], float)}
    if not ratios:
        return nothing("needs a machine that does nothing else: saddlepoint reproduce cost --store")
    ours = "; ".join(f"{label}: {ratio:.2f}" for label, ratio in ratios.items())
    why = f"{lines[0][2]} images; one forward and one backward pass per iterate in both"
    verdict = judged(max(ratios.values()) <= 1.31, min(ratios.values()) <= 1.31)
    return incomplete(Finding(ours, verdict, why), _unmeasured("cost", ratios))


def training_cost(summaries: Summaries) -> Finding:
    """Holds if a step of AMPGD takes at most 1.15 times that of the average and of the maximum.

    In part if one of them is so, or is all that was measured. `python -m benchmarks` keeps the ratios; what was
    measured with twice as much load as there are cores does not count.
    """
    room = _room(summaries.store / "figures.json", "training")
    found = {figure.name: figure.value for figure in room.figures}
    ratios = {name: found[figure] for name, figure in _TRAINING.items() if figure in found}
    if not ratios:
        return nothing("needs a machine that does nothing else: python -m benchmarks training")
    loads = room.begun_and_ended_with_load
    load = f"a load of {' and '.join(f'{each:g}' for each in loads)} on {room.cores} cores"
    if loads and max(loads) >= 2 * room.cores:
        told = "; ".join(f"{ratio:.2f} over {name}" for name, ratio in ratios.items())
        return nothing(
            f"needs a machine that does nothing else: python -m benchmarks training; with {load} it was {told}"
        )
    ours = "; ".join(f"{ratio:.2f} over {name}" for name, ratio in ratios.items())
    why = "a step of training against three threats, all in one run of `python -m benchmarks training`"
    why += f"; with {load}" if loads else ""
    why += "".join(f"; over {name} it was not measured" for name in _TRAINING if name not in ratios)
    low = [ratio <= 1.15 for ratio in ratios.values()]
    return Finding(ours, judged(all(low) and len(low) == len(_TRAINING), any(low)), why)
