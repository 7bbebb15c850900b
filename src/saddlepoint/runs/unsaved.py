"""A result in memory as a run that was never on disk, so that it can be shown like one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from saddlepoint.problems import AbstractProblem, Ensemble, Product, Transformed, Universal
from saddlepoint.projections import LpBall, norm_name
from saddlepoint.runs.build import begun, hashes_of
from saddlepoint.runs.counting import summarise
from saddlepoint.runs.evaluation_tables import (
    ALONE,
    Result,
    as_domains,
    evaluation_metrics,
    evaluation_tensors,
)
from saddlepoint.runs.metrics import Metrics
from saddlepoint.runs.record import EVALUATE, Kind, Run
from saddlepoint.runs.rows import judged_rows
from saddlepoint.runs.rule_words import rule_of
from saddlepoint.runs.shown import keep_for_gallery
from saddlepoint.solver import AttackResult
from saddlepoint.solver.result import asked_of

__all__ = ["as_run", "evaluation_as_run"]

_KINDS: Mapping[type, Kind] = {
    Ensemble: "ensemble",
    Universal: "universal",
    Transformed: "transform",
    Product: "transform",
}


def as_run(
    result: AttackResult, *, data: str = "own images", classes: Sequence[str] = ()
) -> tuple[Run, dict[str, Tensor]]:
    """The record and the tensors of an attack from Python, as a run folder would hold them.

    The models are asked again about every row: a run holds what a fresh look says.

    Args:
        result: Of `attack` or `apgda`.
        data: What the images are called.
        classes: Names of the classes; numbers if there are none.

    Raises:
        ValueError: The result does not know what was asked, was stopped, knows no true classes, or its domains
            are of a kind of the user's own.

    Example:
        >>> import torch
        >>> from saddlepoint import attack, linf
        >>> model = torch.nn.Linear(4, 3).eval()
        >>> problem = Ensemble([model], torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
        >>> run, tensors = as_run(attack(problem, linf(0.1), steps=2))
        >>> run.kind, run.rows, tensors["delta"].shape
        ('ensemble', 5, torch.Size([5, 4]))
    """
    asked = asked_of(result)
    problem = asked.problem
    kind = _KINDS.get(type(problem))
    if kind is None:
        raise ValueError(
            f"`result` must be of an attack on {', '.join(k.__name__ for k in _KINDS)} to be reported, got one "
            f"on {type(problem).__name__}."
        )
    if asked.targeted and not problem.aimed:
        raise ValueError(
            "`result` must know the true classes to be reported, got a targeted attack that knows its targets "
            "only; build the problem with true classes and attack `problem.aim_at(targets)`."
        )
    settings: dict[str, Any] = {"kind": kind, "data": data, "models": _model_names(problem)}
    settings |= {**_ball(asked.ball.ball), "steps": asked.steps, "restarts": asked.restarts}
    settings |= {"rule": rule_of(asked.rule), "baseline": None}
    settings |= {"quantize": problem.levels, "targeted": "given" if asked.targeted else None}
    tensors = judged_rows(problem, result)
    metrics = summarise(problem.names, tensors, baseline=False)
    tensors |= keep_for_gallery(problem, tensors)
    told = f"sp.attack(problem, {asked.ball!r}, rule={asked.rule!r}, steps={asked.steps}"
    told += f", restarts={asked.restarts})" if asked.restarts > 1 else ")"
    run = _run(kind, told, settings, problem, classes, metrics)
    return run, {name: value.detach().cpu() for name, value in tensors.items()}


def evaluation_as_run(
    result: Result,
    problem: AbstractProblem | None,
    *,
    data: str = "own images",
    classes: Sequence[str] = (),
) -> tuple[Run, dict[str, Tensor]]:
    """The record and the tensors of an evaluation from Python.

    Args:
        result: Of one domain, or of several.
        problem: The images and the domains, such as `Ensemble([model], x, y, names=["mine"])`; without them
            there are no images to show.
        data: What the images are called.
        classes: Names of the classes; numbers if there are none.

    Raises:
        ValueError: The problem is not the one that was evaluated.
    """
    names = ALONE if problem is None else problem.names
    result = as_domains(result, names[:1])
    count, domains = len(result.per_domain), tuple(result.per_domain) if problem is None else names
    if problem is not None and (len(problem), problem.num_domains) != (result.count, count):
        raise ValueError(
            f"`problem` must be what was evaluated, {result.count} images and {count} domains, got "
            f"{len(problem)} and {problem.num_domains}."
        )
    parts = result.per_domain.values()
    attacks = dict.fromkeys(each.attack for part in parts for each in part.outcomes)
    settings: dict[str, Any] = {
        "data": data,
        "models": list(domains),
        "suite": ", ".join(attacks),
    }
    settings |= {"every_attack": False, "transforms": []}
    metrics = evaluation_metrics(result, domains)
    told = "sp.robust_accuracy(model, x, y, threats)"
    run = _run(EVALUATE, told, settings, problem, classes, metrics)
    run = run.but(domains=domains, rows=result.count, done=result.count)
    tensors = evaluation_tensors(result, problem)
    return run, {name: value.detach().cpu() for name, value in tensors.items()}


def _run(
    kind: Kind,
    command: str,
    settings: Mapping[str, Any],
    problem: AbstractProblem | None,
    classes: Sequence[str],
    metrics: Metrics,
) -> Run:
    """The record; of what is not there any more nothing is hashed."""
    if problem is None:
        hashes = replace(hashes_of(settings, {}, {}), models=dict.fromkeys(settings["models"], ""))
        run = begun(kind, command, settings, hashes, domains=(), rows=0, classes=classes)
    else:
        models = dict(zip(_model_names(problem), problem.models, strict=True))
        data = {"x": problem.images(problem.zeros()), "y": problem.truth}
        about: Any = {"domains": problem.names, "rows": len(problem), "classes": classes}
        run = begun(kind, command, settings, hashes_of(settings, data, models), **about)
        run = run.but(seed=problem.seed)
    return metrics.noted(run.but(status="complete", done=run.rows))


def _model_names(problem: AbstractProblem) -> list[str]:
    """Of the models: the domains have them where each is one model."""
    models = len(problem.models)
    own = (
        problem.names
        if models == problem.num_domains
        else map("model {}".format, range(1, 1 + models))
    )
    return list(own)


def _ball(ball: LpBall) -> dict[str, Any]:
    """Norm and radius as settings; of many radii there is none to name."""
    eps: object = ball.eps
    if isinstance(eps, Tensor):
        eps = float(eps) if eps.numel() == 1 else f"{float(eps.min()):g} to {float(eps.max()):g}"
    return {"norm": norm_name(ball.p), "eps": eps}
