"""The numbers of a run, in percent, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from saddlepoint.evaluation import SuccessRates, wilson

__all__ = ["lift", "summarise"]

_Z95 = 1.959963984540054


def summarise(
    domains: Sequence[str], tensors: Mapping[str, Tensor], *, baseline: bool
) -> dict[str, Any]:
    """Metrics of a finished (or partly finished) run.

    `asr_all_among_correct` counts the `rows_correct` rows that every domain had right before the attack, and is
    left out where there is none; `asr_all` counts all rows, as the paper does. Both and the accuracies come
    with Wilson score intervals; ASR_mean, a mean over rows of means over domains, with the normal interval of
    the row means. `lift` is the relative gain in ASR_all over the baseline, as in the paper, and
    `lift_among_correct` that in the other rate; they are left out where there is no baseline or the baseline
    never succeeds.

    Args:
        domains: K names.
        tensors: Tables `fooled`, `clean_fooled` (B, K), boolean, `weights` (B, K) and `num_forwards` (B,),
            evaluations of all domains; with `baseline` also `baseline.fooled`, `baseline.weights` and
            `baseline.num_forwards`.
        baseline: Whether a baseline ran.

    Returns:
        A dictionary for `run.json`.

    Example:
        >>> table = torch.tensor([[True, True], [True, False]])
        >>> tensors = {"fooled": table, "clean_fooled": ~table & False, "weights": torch.full((2, 2), 0.5)}
        >>> tensors["num_forwards"] = torch.tensor([3, 51])
        >>> result = summarise(["A", "B"], tensors, baseline=False)
        >>> result["asr_all"], result["accuracy"], result["weights"]
        (50.0, {'A': 0.0, 'B': 50.0}, {'A': 0.5, 'B': 0.5})
    """
    correct = ~tensors["clean_fooled"]
    result = _one(domains, tensors, "", correct)
    result["clean_accuracy"] = _named(domains, SuccessRates(~correct, correct).clean_accuracy)
    if baseline:
        other = _one(domains, tensors, "baseline.", correct)
        result["baseline"] = other
        for name, rate in (("lift", "asr_all"), ("lift_among_correct", "asr_all_among_correct")):
            gain = lift(result[rate], other[rate]) if rate in result else None
            if gain is not None:
                result[name] = gain
    return result


def lift(asr_all: float, baseline: float) -> float | None:
    """Relative gain in percent, or None over a baseline of zero.

    Example:
        >>> lift(90.0, 60.0)
        50.0
    """
    return round(100 * (asr_all / baseline - 1), 4) if baseline > 0 else None


def _one(
    domains: Sequence[str], tensors: Mapping[str, Tensor], prefix: str, correct: Tensor
) -> dict[str, Any]:
    fooled, weights, spent = (
        tensors[f"{prefix}{name}"] for name in ("fooled", "weights", "num_forwards")
    )
    rates = SuccessRates(fooled, correct)
    right = correct.all(dim=1)
    result: dict[str, Any] = {
        "rows": rates.count,
        "rows_correct": int(right.sum()),
        "asr_all": _percent(rates.all),
        "asr_mean": _percent(rates.mean),
        "accuracy": _named(domains, [1 - rate for rate in rates.per_domain]),
        "evaluations": {
            "total": int(spent.sum()),
            "per_row": round(spent.double().mean().item(), 4),
        },
        "weights": {
            name: round(value, 6)
            for name, value in zip(domains, weights.double().mean(dim=0).tolist(), strict=True)
        },
    }
    accuracies = [wilson(int((~column).sum()), rates.count) for column in fooled.T]
    result["intervals"] = {
        "asr_all": _pair(rates.interval()),
        "asr_mean": _pair(_interval_of_mean(fooled)),
        "accuracy": {name: _pair(pair) for name, pair in zip(domains, accuracies, strict=True)},
    }
    if bool(right.any()):
        hits = int(fooled[right].all(dim=1).sum())
        result["asr_all_among_correct"] = _percent(rates.among_correct)
        result["intervals"]["asr_all_among_correct"] = _pair(wilson(hits, int(right.sum())))
    return result


def _interval_of_mean(fooled: Tensor) -> tuple[float, float]:
    means = fooled.double().mean(dim=1)
    if bool((means == means[0]).all()):  # no spread to go by: as if every row were one trial
        return wilson(round(float(means.sum())), len(means))
    half = _Z95 * torch.std(means).item() / math.sqrt(len(means))
    return max(0.0, means.mean().item() - half), min(1.0, means.mean().item() + half)


def _named(domains: Sequence[str], fractions: Sequence[float]) -> dict[str, float]:
    return {name: _percent(value) for name, value in zip(domains, fractions, strict=True)}


def _pair(pair: tuple[float, float]) -> list[float]:
    return [_percent(value) for value in pair]


def _percent(fraction: float) -> float:
    return round(100 * fraction, 4)
