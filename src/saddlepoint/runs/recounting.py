"""The numbers of a finished run counted again from its rows: a record is not believed for its digest alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from saddlepoint.evaluation import Outcome, RobustAccuracy
from saddlepoint.evaluation.domain_results import DomainAccuracy
from saddlepoint.models import Card
from saddlepoint.projections import LpBall
from saddlepoint.runs import texts
from saddlepoint.runs.counting import summarise
from saddlepoint.runs.evaluation_tables import evaluation_metrics, prefix_of
from saddlepoint.runs.metrics import (
    AttackMetrics,
    DomainMetrics,
    EvaluationMetrics,
    Metrics,
    TrainingMetrics,
)
from saddlepoint.runs.model_words import CARD
from saddlepoint.runs.patching import held_out_rates
from saddlepoint.runs.plain import quoted
from saddlepoint.runs.record import RECORD, TENSORS, Run
from saddlepoint.training.session import HISTORY

__all__ = ["check_counts"]

# What no table holds: words, times, and what the doctor saw.
_UNCOUNTED = frozenset(
    {"notes", "failures", "because", "doctor", "seconds", "queries", "status", "minimal"}
)


def check_counts(run: Run, metrics: Metrics, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse a record that says something else than its rows come to.

    Args:
        run: A finished run.
        metrics: What it says.
        tensors: Its rows; a training has none, but a history and a card.
        folder: Where it is.

    Raises:
        ValueError: A number is another one, or the rows are not those of such a run.
    """
    try:
        if isinstance(metrics, AttackMetrics):
            counted = _attack(run, metrics, tensors).plain()
        elif isinstance(metrics, EvaluationMetrics):
            counted = _evaluation(run, metrics, tensors).plain()
        else:
            counted = {"history": _history(folder), **_card(folder)}
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{folder}` must hold the rows that its record tells of, got tables of another kind "
            f"({quoted(str(error))}); repeat the run."
        ) from error
    said = metrics.plain()
    if isinstance(metrics, TrainingMetrics):
        said = {name: said.get(name, counted[name]) for name in counted}
    for where, told, found in _differing(said, counted):
        file = HISTORY if where.startswith("history") else CARD
        raise ValueError(
            f"`{folder}` must say in {RECORD} what its rows come to, got {where} {quoted(told)} there and "
            f"{quoted(found)} by {TENSORS if tensors else file}: one of them was changed; repeat the run."
        )


def _attack(run: Run, metrics: AttackMetrics, tensors: Mapping[str, Tensor]) -> AttackMetrics:
    found = summarise(
        run.domains,
        tensors,
        baseline=metrics.baseline is not None,
        victims=tuple(run.hashes.victims),
    )
    if metrics.held_out is None:
        return found
    baseline = found.baseline
    if baseline is not None and metrics.baseline is not None and metrics.baseline.held_out:
        again = held_out_rates(metrics.baseline.held_out, tensors, "baseline.")
        baseline = replace(baseline, held_out=again)
    return replace(found, held_out=held_out_rates(metrics.held_out, tensors), baseline=baseline)


def _evaluation(
    run: Run, metrics: EvaluationMetrics, tensors: Mapping[str, Tensor]
) -> EvaluationMetrics:
    balls = {name: each.ball for name, each in texts.threats(run.settings["threat"]).items()}

    def tables(name: str) -> dict[str, Tensor]:
        there = balls if len(run.domains) > 1 else ()
        return {threat: tensors[f"joint/{threat}/{name}"] for threat in there}

    result = DomainAccuracy(
        balls,
        {name: _alone(name, each, balls, tensors) for name, each in metrics.domains.items()},
        fooled=tables("fooled"),
        broken=tables("broken"),
        weights=tables("weights"),
        eps_min=tables("eps_min"),
        missed=tables("missed"),
        unsearched=tables("unsearched"),
        failed=tuple(f for f in metrics.failures if len(run.domains) > 1 and not f.domain),
    )
    return evaluation_metrics(result, run.domains)


def _alone(
    name: str, told: DomainMetrics, balls: Mapping[str, LpBall], tensors: Mapping[str, Tensor]
) -> RobustAccuracy:
    """One domain by its tables; which attacks there were, and how they ended, is told."""
    prefix, failed = prefix_of(name), {(f.threat, f.attack): f for f in told.failures}
    outcomes = []
    for each in told.attacks:
        where = f"{prefix}{each.threat}/{each.attack}"
        attacked, broken, distance = (
            tensors[f"{where}/{table}"] for table in ("attacked", "broken", "distance")
        )
        failure = failed.get((each.threat, each.attack))
        found = Outcome(each.threat, each.attack, attacked, broken, distance, status=each.status)
        outcomes.append(replace(found, failure=failure))
    return RobustAccuracy(balls, tensors[f"{prefix}correct"], tuple(outcomes))


def _history(folder: Path) -> list[dict[str, Any]]:
    """What the training wrote after every epoch."""
    epochs = [json.loads(line) for line in (folder / HISTORY).read_text("utf-8").splitlines()]
    return [
        {"stats": each["stats"]} | ({"validation": v} if (v := each["validation"]) else {})
        for each in epochs
    ]


def _card(folder: Path) -> dict[str, Any]:
    """What the training measured on its test images, as the card of the network has it."""
    card = Card.from_json((folder / CARD).read_text("utf-8"), CARD)
    return {
        "rows": card.test_images,
        "accuracy": card.accuracy,
        "fgsm_accuracy": card.fgsm_accuracy,
        "fgsm_eps": card.fgsm_eps,
    }


def _differing(told: Any, found: Any, where: str = "") -> Iterator[tuple[str, object, object]]:
    """Numbers that are not the same but for rounding, with where they are."""
    if isinstance(told, Mapping) and isinstance(found, Mapping):
        for key in [*told, *(key for key in found if key not in told)]:
            if key not in _UNCOUNTED:
                inside = f"{where}.{key}" if where else str(key)
                yield from _differing(told.get(key), found.get(key), inside)
    elif isinstance(told, list) and isinstance(found, list) and len(told) == len(found):
        for number, pair in enumerate(zip(told, found, strict=True)):
            yield from _differing(*pair, f"{where}[{number}]")
    elif isinstance(told, int | float) and isinstance(found, int | float):
        # Another machine may round a mean differently.
        if not math.isclose(told, found, rel_tol=1e-6, abs_tol=2e-4):
            yield where, told, found
    elif told != found:
        yield where, told, found
