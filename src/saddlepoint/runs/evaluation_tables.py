"""An evaluation as a run: its numbers and its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from saddlepoint.evaluation import RobustAccuracy, wilson
from saddlepoint.evaluation.domain_results import DomainAccuracy
from saddlepoint.evaluation.rates import share
from saddlepoint.losses import fooled
from saddlepoint.problems import AbstractProblem
from saddlepoint.runs.metric_parts import percent, percents
from saddlepoint.runs.metrics import (
    AccuracyIntervals,
    AttackOutcome,
    DomainMetrics,
    EvaluationMetrics,
)

__all__ = [
    "CLOSEST",
    "Result",
    "as_domains",
    "evaluation_metrics",
    "evaluation_tensors",
    "prefix_of",
]

Result = RobustAccuracy | DomainAccuracy
"""Of one domain, or of several."""

CLOSEST = 9
"""How many images closest to the boundary are kept for the gallery, per threat."""

ALONE = ("model",)
"""What a model is called that nobody has named."""

_LEVELS = {"10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "90 %": 0.9}


def evaluation_metrics(result: Result, domains: Sequence[str]) -> EvaluationMetrics:
    """The numbers of an evaluation, accuracies in percent.

    Args:
        result: Of one domain, or of several.
        domains: Their names.

    Example:
        >>> from saddlepoint.evaluation import Outcome
        >>> from saddlepoint.projections import LpBall
        >>> correct, broken = torch.tensor([True, True, False]), torch.tensor([True, False, False])
        >>> outcome = Outcome("linf", "pgd", correct, broken, torch.full((3,), 0.1))
        >>> result = RobustAccuracy({"linf": LpBall(math.inf, 0.3)}, correct, (outcome,))
        >>> metrics = evaluation_metrics(result, ["A"])
        >>> metrics.robust, metrics.domains["A"].attacks[0].accuracy, metrics.domains["A"].attacks[0].first
        ({'linf': 33.3333}, 33.3333, 1)
    """
    result = as_domains(result, domains)
    joint = {name: percents(result.joint_interval(name)) for name in result.fooled}
    return EvaluationMetrics(
        **_accuracies(result, joint),
        joint={name: percent(share(~table)) for name, table in result.fooled.items()},
        eps_min={name: _quantiles(radii) for name, radii in result.eps_min.items()},
        weights={
            name: dict(zip(result.per_domain, _means(weights), strict=True))
            for name, weights in result.weights.items()
        },
        domains={
            name: DomainMetrics(**_accuracies(each), attacks=_attacks(each))
            for name, each in result.per_domain.items()
        },
    )


def _accuracies(
    result: Result, joint: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Any]:
    """The fields of `Accuracies`."""
    return {
        "rows": result.count,
        "radii": {name: float(ball.eps) for name, ball in result.balls.items()},
        "clean": percent(share(result.correct)),
        "union": percent(share(result.still_right())),
        "robust": {name: percent(share(result.still_right(name))) for name in result.balls},
        "intervals": AccuracyIntervals(
            clean=percents(wilson(int(result.correct.sum()), result.count)),
            union=percents(result.interval()),
            robust={name: percents(result.interval(name)) for name in result.balls},
            joint=joint or {},
        ),
        "notes": tuple(result.notes),
        "failures": tuple(result.failures),
        "at_most": tuple(sorted(result.at_most)),
        "because": tuple(result.because),
    }


def evaluation_tensors(result: Result, problem: AbstractProblem | None) -> dict[str, Tensor]:
    """What happened to every image, and the images of the gallery, of which there are none without a problem.

    Returns:
        `labels`, `correct` (N,); for every domain, behind `domains/NAME/`, `correct`, `THREAT/distance` and
        `THREAT/ATTACK/attacked`, `broken`, `distance` (N,); with several also `joint/THREAT/fooled`, `eps_min`,
        `missed`, `unsearched` (N,), `broken` and `weights` (N, K). For the images closest to the boundary there
        are
        `gallery.threat`, its number, `gallery.rows`, `gallery.distance` (G,), `gallery.says` (classes,
        -1 for logits that are not numbers) and `gallery.fooled` (G, K), `gallery.clean` and `gallery.delta`
        (G, ...).
    """
    result = as_domains(result, ALONE if problem is None else problem.names)
    tensors: dict[str, Tensor] = {"correct": result.correct}
    if problem is not None:
        tensors["labels"] = problem.truth[:, 0]
    for name, each in result.per_domain.items():
        tensors |= _tables(each, prefix_of(name))
    for name in result.fooled:
        tensors |= {
            f"joint/{name}/fooled": result.fooled[name],
            f"joint/{name}/eps_min": result.eps_min[name],
            f"joint/{name}/broken": result.broken[name],
            f"joint/{name}/weights": result.weights[name],
            f"joint/{name}/missed": result.missed[name],
            f"joint/{name}/unsearched": result.unsearched[name],
        }
    closest = {name: _closest(result, name) for name in result.balls}
    if problem is None:
        return tensors | {"gallery.threat": torch.zeros(0, dtype=torch.long)}
    return tensors | _gallery(problem, closest, result.nearest)


def as_domains(result: Result, names: Sequence[str]) -> DomainAccuracy:
    """One domain as K = 1 of several: all at once are that one, so that nothing is told of them apart.

    Raises:
        ValueError: There are more names than the one domain.
    """
    if isinstance(result, DomainAccuracy):
        return result
    (name,) = names
    return DomainAccuracy(
        result.balls,
        {name: result},
        fooled={},
        broken={},
        weights={},
        eps_min={},
        nearest=result.nearest,
        precision=result.precision,
    )


def _closest(result: DomainAccuracy, threat: str) -> Tensor:
    """Distance to the nearest image found that fools every domain, inf where there is none, (N,)."""
    if threat not in result.fooled:
        (only,) = result.per_domain.values()
        return only.distance(threat)
    return torch.where(result.fooled[threat], result.eps_min[threat], math.inf)


def prefix_of(domain: str) -> str:
    """Where the tensors of a domain begin."""
    return f"domains/{domain}/"


def _tables(result: RobustAccuracy, prefix: str) -> dict[str, Tensor]:
    tensors = {f"{prefix}{name}/distance": result.distance(name) for name in result.balls}
    tensors[f"{prefix}correct"] = result.correct
    for each in result.outcomes:
        where = f"{prefix}{each.threat}/{each.attack}"
        tensors |= {
            f"{where}/attacked": each.attacked,
            f"{where}/broken": each.broken,
            f"{where}/distance": each.distance,
        }
    return tensors


def _gallery(
    problem: AbstractProblem, closest: Mapping[str, Tensor], nearest: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """For every threat the images that took the smallest perturbation, nearest first."""
    threats, rows, distances, deltas = [], [], [], []
    for number, (name, distance) in enumerate(closest.items()):
        if name not in nearest:  # of images that were read once and are gone
            nearest = {**nearest, name: torch.zeros_like(problem.lower)}
        found = nearest[name].flatten(1).any(dim=1) & distance.isfinite() & (distance > 0)
        order = distance.argsort(stable=True)
        chosen = order[found[order]][:CLOSEST]
        threats.append(torch.full_like(chosen, number))
        rows.append(chosen)
        distances.append(distance[chosen])
        deltas.append(nearest[name][chosen])
    row, delta = torch.cat(rows), torch.cat(deltas)
    part = problem.take(row.to(problem.lower.device))
    says = torch.zeros(0, problem.num_domains, dtype=torch.long)
    wrong = says.bool()
    if len(row):
        with torch.no_grad():
            logits = part.logits(delta.to(part.lower))
        # Where a logit is not finite the model has given no answer: -1 instead of a class.
        says = logits.argmax(dim=-1).masked_fill(~logits.isfinite().all(dim=-1), -1)
        wrong = fooled(logits, part.truth)
    return {
        "gallery.threat": torch.cat(threats),
        "gallery.rows": row,
        "gallery.distance": torch.cat(distances),
        "gallery.says": says,
        "gallery.fooled": wrong,
        "gallery.clean": part.images(part.zeros()),
        "gallery.delta": delta,
    }


def _attacks(result: RobustAccuracy) -> tuple[AttackOutcome, ...]:
    not_fooled = {name: result.correct.clone() for name in result.balls}
    rows = []
    for each in result.outcomes:
        before = not_fooled[each.threat]
        first = before & each.broken
        not_fooled[each.threat] = before & ~each.broken
        whole = bool((each.attacked == result.correct).all()) and each.status == "complete"
        rows.append(
            AttackOutcome(
                threat=each.threat,
                attack=each.attack,
                attacked=int(each.attacked.sum()),
                broken=int(each.broken.sum()),
                first=int(first.sum()),
                after=percent(share(not_fooled[each.threat])),
                accuracy=percent(share(result.correct & ~each.broken)) if whole else None,
                seconds=round(each.seconds, 3),
                queries=each.queries,
                status=each.status,
                minimal=each.minimal,
                notes=tuple(each.notes),
            )
        )
    return tuple(rows)


def _quantiles(radii: Tensor) -> dict[str, float | None]:
    marks = {
        name: radii.quantile(level, interpolation="lower").item() for name, level in _LEVELS.items()
    }
    return {name: round(mark, 6) if math.isfinite(mark) else None for name, mark in marks.items()}


def _means(weights: Tensor) -> list[float]:
    return [round(value, 6) for value in weights.double().mean(dim=0).tolist()]
