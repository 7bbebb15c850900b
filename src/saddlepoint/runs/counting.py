"""From tables of what was fooled to the metrics of an attack, and of what it did to victims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from saddlepoint.evaluation import SuccessRates, wilson
from saddlepoint.evaluation.rates import Z95, share
from saddlepoint.runs.metric_parts import Interval, Transfer, VictimMetrics, percent, percents
from saddlepoint.runs.metrics import AttackMetrics, Evaluations, RateIntervals, Rates
from saddlepoint.runs.victims import FOOLED

__all__ = ["by_guessing", "lift", "row_tables", "summarise", "transfer"]


def by_guessing(rows: int, classes: int) -> float:
    """How many percent of so many rows are right no more often than by guessing.

    Twice what guessing gives, or less where so many rows make less of it now and then.

    Example:
        >>> round(by_guessing(10_000, 10), 1), by_guessing(20, 10), by_guessing(20, 2)
        (10.8, 20.0, 60.0)
    """
    top = 100 * wilson(round(rows / classes), rows, 0.99)[1]
    return min(top, 200 / classes, 60.0)


def summarise(
    domains: Sequence[str],
    tensors: Mapping[str, Tensor],
    *,
    baseline: bool,
    victims: Sequence[str] = (),
) -> AttackMetrics:
    """Metrics of a finished attack.

    Args:
        domains: K names.
        tensors: Tables `fooled`, `clean_fooled` (B, K), boolean, `weights` (B, K) and `num_forwards` (B,),
            evaluations of all domains; with `baseline` also `baseline.fooled`, `baseline.weights` and
            `baseline.num_forwards`.
        baseline: Whether a baseline ran.
        victims: Names of models that the attack never asked, with the tables of `transfer`.

    Example:
        >>> table = torch.tensor([[True, True], [True, False]])
        >>> tensors = {"fooled": table, "clean_fooled": ~table & False, "weights": torch.full((2, 2), 0.5)}
        >>> tensors["num_forwards"] = torch.tensor([3, 51])
        >>> result = summarise(["A", "B"], tensors, baseline=False)
        >>> result.asr_all, result.accuracy, result.weights
        (50.0, {'A': 0.0, 'B': 50.0}, {'A': 0.5, 'B': 0.5})
    """
    correct = ~tensors["clean_fooled"]
    ours = _rates(domains, tensors, "", correct, victims)
    theirs = Rates(**_rates(domains, tensors, "baseline.", correct, victims)) if baseline else None
    clean = SuccessRates(~correct, correct).clean_accuracy
    return AttackMetrics(
        **ours,
        clean_accuracy=_named(domains, clean),
        baseline=theirs,
        lift=_gain(ours["asr_all"], theirs.asr_all if theirs else None),
        lift_among_correct=_gain(
            ours["asr_all_among_correct"], theirs.asr_all_among_correct if theirs else None
        ),
    )


def lift(asr_all: float, baseline: float) -> float | None:
    """Relative gain in percent, or None over a baseline of zero.

    Example:
        >>> lift(90.0, 60.0)
        50.0
    """
    return round(100 * (asr_all / baseline - 1), 4) if baseline > 0 else None


def _gain(rate: float | None, baseline: float | None) -> float | None:
    return None if rate is None or baseline is None else lift(rate, baseline)


def _rates(
    domains: Sequence[str],
    tensors: Mapping[str, Tensor],
    prefix: str,
    correct: Tensor,
    victims: Sequence[str],
) -> dict[str, Any]:
    """The fields of `Rates`."""
    fooled, weights, spent = (
        tensors[f"{prefix}{name}"] for name in ("fooled", "weights", "num_forwards")
    )
    rates = SuccessRates(fooled, correct)
    # A targeted attack fools a domain only if it answers the class to reach; other wrong answers lower the
    # accuracy all the same, and have a table of their own.
    wrong = tensors.get(f"{prefix}wrong", fooled)
    right = correct.all(dim=1)
    count, hits = int(right.sum()), int(fooled[right].all(dim=1).sum())
    accuracies = [wilson(int((~column).sum()), rates.count) for column in wrong.T]
    means = [round(value, 6) for value in weights.double().mean(dim=0).tolist()]
    return {
        "rows": rates.count,
        "rows_correct": count,
        "asr_all": percent(rates.all),
        "asr_mean": percent(rates.mean),
        "accuracy": _named(domains, [share(~column) for column in wrong.T]),
        "evaluations": Evaluations(
            total=int(spent.sum()), per_row=round(spent.double().mean().item(), 4)
        ),
        "weights": dict(zip(domains, means, strict=True)),
        "reached": _named(domains, rates.per_domain) if f"{prefix}wrong" in tensors else {},
        "intervals": RateIntervals(
            asr_all=percents(rates.interval()),
            asr_mean=percents(_interval_of_mean(fooled)),
            accuracy={n: percents(pair) for n, pair in zip(domains, accuracies, strict=True)},
            asr_all_among_correct=percents(wilson(hits, count)) if count else None,
        ),
        "asr_all_among_correct": percent(rates.among_correct) if count else None,
        "transfer": transfer(victims, tensors, prefix) if victims else None,
    }


def _interval_of_mean(fooled: Tensor) -> tuple[float, float]:
    means = fooled.double().mean(dim=1)
    if bool((means == means[0]).all()):  # no spread to go by: as if every row were one trial
        return wilson(round(float(means.sum())), len(means))
    half = Z95 * torch.std(means).item() / math.sqrt(len(means))
    return max(0.0, means.mean().item() - half), min(1.0, means.mean().item() + half)


def _named(domains: Sequence[str], fractions: Sequence[float]) -> dict[str, float]:
    return {name: percent(value) for name, value in zip(domains, fractions, strict=True)}


def row_tables(
    names: Sequence[str], tensors: Mapping[str, Tensor], prefix: str = ""
) -> tuple[Tensor, Tensor]:
    """Of every row and victim: whether it is fooled (all images of a group), and was right before, (B, V)."""
    shape = (len(tensors[FOOLED]), len(names), -1)
    fooled = tensors[f"{prefix}{FOOLED}"].reshape(shape).all(dim=2)
    return fooled, ~tensors["victims.clean_fooled"].reshape(shape).any(dim=2)


def transfer(names: Sequence[str], tensors: Mapping[str, Tensor], prefix: str = "") -> Transfer:
    """What the perturbations did to victims, each alone and all at once.

    Args:
        names: Of the V victims.
        tensors: `victims.fooled` and `victims.clean_fooled`, (B, V * D), boolean, D images of a group or one;
            of a targeted attack also `victims.wrong`. With a prefix, those of the baseline.
        prefix: "" or "baseline.".

    Example:
        >>> fooled = torch.tensor([[True, True], [True, False], [False, False]])
        >>> tables = {"victims.fooled": fooled, "victims.clean_fooled": torch.zeros(3, 2).bool()}
        >>> found = transfer(["C", "D"], tables)
        >>> found.asr_all_among_correct, found.victims["C"].asr_among_correct, found.victims["D"].accuracy
        (33.3333, 66.6667, 66.6667)
    """
    fooled, right = row_tables(names, tensors, prefix)
    shape = (len(fooled), len(names), -1)
    wrong = tensors.get(f"{prefix}victims.wrong", tensors[f"{prefix}{FOOLED}"]).reshape(shape)
    before = tensors["victims.clean_fooled"].reshape(shape)
    every = right.all(dim=1)
    rate, ends = _rate(fooled.all(dim=1)[every])
    return Transfer(
        victims={
            name: _victim(fooled[:, k], right[:, k], wrong[:, k], before[:, k])
            for k, name in enumerate(names)
        },
        rows_correct=int(every.sum()),
        asr_all_among_correct=rate,
        interval=ends,
    )


def _victim(fooled: Tensor, right: Tensor, wrong: Tensor, before: Tensor) -> VictimMetrics:
    rate, ends = _rate(fooled[right])
    accuracy = percent(share(~wrong))
    low, high = wilson(int((~wrong).sum()), wrong.numel())
    return VictimMetrics(
        rows_correct=int(right.sum()),
        clean_accuracy=percent(share(~before)),
        accuracy=accuracy,
        accuracy_interval=percents((low, high)),
        asr_among_correct=rate,
        interval=ends,
    )


def _rate(hits: Tensor) -> tuple[float | None, Interval | None]:
    """The share of true entries and its interval, percent; None of nothing."""
    if len(hits) == 0:
        return None, None
    low, high = wilson(int(hits.sum()), len(hits))
    return percent(share(hits)), percents((low, high))
