"""From settings to objects: problem, ball, rule, the call of the solver, and the record of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from saddlepoint import data
from saddlepoint.problems import AbstractProblem, Ensemble, Model, Patched, Product, Universal
from saddlepoint.projections import NORMS, AbstractSet, LpBall
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.runs import attack_words, rule_words, texts
from saddlepoint.runs.attack_words import gradient, view_names
from saddlepoint.runs.hashing import hash_model, hash_settings, hash_tensors
from saddlepoint.runs.materials import Images
from saddlepoint.runs.patching import PatchTest, patched_of, shared
from saddlepoint.runs.preparing import for_models
from saddlepoint.runs.record import EVALUATE, Hashes, Kind, Run
from saddlepoint.runs.rows import Job, Solve
from saddlepoint.runs.settings import (
    AttackSettings,
    EvaluateSettings,
    PatchSettings,
    TransformSettings,
    UniversalSettings,
)
from saddlepoint.runs.victims import check_strangers, look_at_victims
from saddlepoint.solver import apgda_unchecked, attack_unchecked
from saddlepoint.solver.gradients import phases_of
from saddlepoint.solver.grid import Grid
from saddlepoint.solver.inspection import Look, look
from saddlepoint.solver.lowering import choose_precisions
from saddlepoint.solver.schedule import divided, restart_length

__all__ = [
    "ball_of",
    "begun",
    "evaluated_problem",
    "hashes_of",
    "job_of",
    "look_at",
    "problem_of",
    "record_of",
    "rules_of",
    "solver_of",
]


def ball_of(settings: AttackSettings) -> AbstractSet:
    """Where perturbations may be.

    Example:
        >>> from saddlepoint.runs.settings import EnsembleSettings
        >>> ball_of(EnsembleSettings(models=["A"], norm="l2", eps=3))
        LpBall(p=2.0, eps=3.0, unit='entry')
    """
    if isinstance(settings, PatchSettings):
        return attack_words.patch(settings.patch, settings.eps)
    return LpBall(NORMS[settings.norm], settings.eps)


def problem_of(
    settings: AttackSettings,
    x: Tensor,
    y: Tensor,
    models: Mapping[str, Model],
    views: Sequence[str] | None = None,
) -> AbstractProblem:
    """The problem of an attack.

    Args:
        settings: Of the attack.
        x: Images, (N, C, H, W).
        y: Labels, (N,).
        models: By the names that domains are to have.
        views: Names of the transformations; in words if None.

    Example:
        >>> from saddlepoint import models
        >>> settings = UniversalSettings(models=["A"], group_size=3)
        >>> x, y = data.sample("mnist", 7)
        >>> problem_of(settings, x, y, {"A": models.load("mnist-a")}).labels.shape
        torch.Size([2, 3])
    """
    if isinstance(settings, UniversalSettings):
        groups, truth = data.group(
            x, y, settings.group_size, seed=settings.seed, by_class=settings.by_class
        )
        (model,) = models.values()
        return Universal(model, groups, truth, box=settings.box, labels=settings.labels)
    if isinstance(settings, PatchSettings):
        return patched_of(settings, x, y, models)
    if isinstance(settings, TransformSettings):
        family = texts.transforms(settings.transforms)
        names = view_names(models, settings.transforms) if views is None else views
        options: Any = {"seed": settings.seed, "names": names, "labels": settings.labels}
        return Product(list(models.values()), family, x, y, settings.samples, **options)
    return Ensemble(list(models.values()), x, y, names=list(models), labels=settings.labels)


def evaluated_problem(
    settings: EvaluateSettings, x: Tensor, y: Tensor, models: Mapping[str, Model]
) -> Ensemble | Product:
    """The problem of an evaluation: every model, behind every transformation if there are any.

    Raises:
        ValueError: Transformations are random.
    """
    if not settings.transforms:
        return Ensemble(list(models.values()), x, y, names=list(models))
    family = texts.transforms(settings.transforms)
    names = view_names(models, settings.transforms)
    problem = Product(list(models.values()), family, x, y, names=names)
    if problem.random:
        raise ValueError(
            "`--transforms` must be deterministic for evaluate, got random ones, under which an image is "
            "neither right nor wrong; take paper, or names such as identity,hflip,rotate:30."
        )
    return problem


def solver_of(settings: AttackSettings, seen: Look, problem: AbstractProblem) -> Solve:
    """A function that attacks rows of a problem with a weight rule, as the settings say.

    Args:
        settings: Of the attack.
        seen: What a look at the problem has shown, see `job_of`; the rows are not looked at again.
        problem: All rows.
    """
    precisions = choose_precisions(problem, for_models(settings.precision))
    options: dict[str, Any] = {"loss": texts.loss(settings.loss), "steps": settings.steps}
    options |= {"batch_size": seen.rows(seen.accumulate), "accumulate": seen.accumulate}
    options["precisions"] = precisions
    if settings.method == "apgda":
        solve: Callable[..., Any] = apgda_unchecked
        options["step_size"] = settings.step_size
    else:
        solve = attack_unchecked
        own = ("restarts", "seed", "quantize", "keep_going")
        options |= {name: getattr(settings, name) for name in own}
        if settings.gradient is not None:
            options["gradient"] = gradient(settings.gradient)
        options |= {**taken_of(settings, problem), "evaluations": settings.evaluations}
    ball = ball_of(settings)
    options["targeted"] = settings.targeted is not None
    return lambda part, rule, callback: solve(part, ball, rule=rule, callback=callback, **options)


def taken_of(settings: AttackSettings, problem: AbstractProblem) -> dict[str, int]:
    """Steps and restarts of an attack where they follow from its evaluations; nothing where they are given.

    Example:
        >>> from saddlepoint.runs.settings import EnsembleSettings
        >>> problem = Ensemble([torch.nn.Flatten().eval()] * 2, torch.rand(3, 4), torch.zeros(3).long())
        >>> taken_of(EnsembleSettings(models=["A", "B"], eps=0.2, evaluations=100), problem)
        {'steps': 49, 'restarts': 2}
    """
    if settings.evaluations is None:
        return {}
    precisions = choose_precisions(problem, for_models(settings.precision))
    length, draws = restart_length(problem), problem.samples
    steps, restarts = divided(settings.evaluations, draws, length=length, precisions=precisions)
    return {"steps": steps, "restarts": restarts}


def rules_of(
    settings: AttackSettings, problem: AbstractProblem
) -> tuple[AbstractWeightRule, AbstractWeightRule | None]:
    """The weight rules of the attack and of its baseline, if they fit the domains.

    Raises:
        ValueError: A rule has weights for another number of domains.
    """
    rule = rule_words.rule(settings.rule)
    baseline = None if settings.baseline is None else rule_words.rule(settings.baseline)
    rule, baseline = (
        shared(settings, problem, rule),
        baseline and shared(settings, problem, baseline),
    )
    for each in (rule, baseline or rule):
        each.init(torch.zeros(1, problem.num_domains))
    return rule, baseline


def look_at(settings: AttackSettings, problem: AbstractProblem) -> Look:
    """The one look at a problem before it is attacked."""
    return look(problem, texts.loss(settings.loss), targeted=settings.targeted is not None)


def job_of(
    settings: AttackSettings,
    problem: AbstractProblem,
    victims: tuple[AbstractProblem, ...] = (),
    test: PatchTest | None = None,
    seen: Look | None = None,
) -> Job:
    """What the rows of an attack need. The models are looked at here, once for all pages, unless it is `seen`.

    Victims are shown their first images, four at most and as they are, and asked nothing more before the end.

    Raises:
        ValueError: The models or victims cannot be attacked, or a rule, the radius or the grid does not fit.
    """
    rule, baseline = rules_of(settings, problem)
    ball = ball_of(settings)
    if settings.gradient is not None:
        phases_of(gradient(settings.gradient), problem, ball)  # refuses too few queries
    elif blind := problem.without_gradient:
        named = ", ".join(problem.names[k] for k in blind)
        raise ValueError(
            f"`--gradient` must say how to do without gradients, which {named} has not; write --gradient "
            "estimated:queries=5000 or searched:queries=5000."
        )
    if settings.quantize is not None:
        Grid(settings.quantize).check(problem.unperturbed())
        Grid(settings.quantize).check_ball(ball.ball)
    doubt = ball.doubt(problem.lower.shape[1:])
    seen = seen or look_at(settings, problem)
    look_at_victims(victims)
    notes = (doubt, *seen.faults) if doubt else seen.faults
    return Job(
        problem,
        solver_of(settings, seen, problem),
        rule,
        baseline,
        settings.batch_size,
        notes,
        victims,
        test,
    )


def record_of(
    settings: AttackSettings | EvaluateSettings,
    problem: AbstractProblem,
    images: Images,
    models: Mapping[str, Model],
    command: str,
    victims: Mapping[str, Model] | None = None,
    *,
    values: Mapping[str, Any] | None = None,
    known: dict[int, tuple[object, str]] | None = None,
) -> Run:
    """The record of an attack or an evaluation that begins.

    Args:
        settings: All of them, defaults included.
        problem: What is attacked.
        images: What it was made of.
        models: By name, as hashed.
        command: The line that repeats the run.
        victims: Models that the attack never asks, by name.
        values: What the record is to say in place of the settings.
        known: As in `hashes_of`.

    Raises:
        ValueError: A victim is one of the models.
    """
    values = settings.model_dump() if values is None else values
    mask = {"mask": problem.mask} if isinstance(problem, Patched) else {}
    hashes = hashes_of(values, {"x": images.x, "y": images.y, **mask}, models, known=known)
    hashes = replace(hashes, victims={n: hash_model(m) or "" for n, m in (victims or {}).items()})
    check_strangers(models, victims or {})
    kind = settings.kind if isinstance(settings, AttackSettings) else EVALUATE
    about: Any = {"domains": problem.names, "rows": len(problem), "classes": images.classes}
    taken = taken_of(settings, problem) if isinstance(settings, AttackSettings) else {}
    return begun(kind, command, values, hashes, **about).but(taken={**taken, **layout_of(models)})


def layout_of(models: Mapping[str, Model]) -> dict[str, str]:
    """Which models have their filters laid out with channels last, as shipped ones have on the command line.

    Example:
        >>> from saddlepoint import models
        >>> layout_of({"C": models.channels_last(models.load("mnist-c")), "plain": models.load("mnist-c")})
        {'channels_last': 'C'}
    """
    found = []
    for name, model in models.items():
        known = model.parameters() if isinstance(model, torch.nn.Module) else ()
        filters = [each for each in known if each.dim() == 4]
        last = (each.is_contiguous(memory_format=torch.channels_last) for each in filters)
        if all(last) and not all(each.is_contiguous() for each in filters):
            found.append(name)
    return {"channels_last": ", ".join(found)} if found else {}


def begun(
    kind: Kind,
    command: str,
    values: Mapping[str, Any],
    hashes: Hashes,
    *,
    domains: Sequence[str],
    rows: int,
    classes: Sequence[str] = (),
) -> Run:
    """The record of a run that begins, of any kind: every one is made here. The seed is among the `values`."""
    return Run(
        kind=kind,
        command=command,
        settings=values,
        seed=values.get("seed", 0),
        domains=tuple(domains),
        classes=tuple(classes),
        rows=rows,
        hashes=hashes,
    )


def hashes_of(
    settings: Mapping[str, Any],
    data: Mapping[str, Tensor],
    models: Mapping[str, Model],
    *,
    known: dict[int, tuple[object, str]] | None = None,
) -> Hashes:
    """What has to be the same for a run to be continued.

    Args:
        settings: Those that can change a number.
        data: Images, labels, and where a patch is, which may have come from a file; none where it is not known.
        models: By name.
        known: A memory for runs that share models and images, which must not change in between: what is in it
            is not hashed again.
    """
    memory = {} if known is None else known

    def once(thing: object, hashed: Callable[[], str | None]) -> str:
        # The thing is kept with its hash, so that no other can come to have its id.
        if id(thing) not in memory:
            memory[id(thing)] = (thing, hashed() or "")
        return memory[id(thing)][1]

    images = next(iter(data.values()), None)
    return Hashes(
        settings=hash_settings(settings),
        models={name: once(m, partial(hash_model, m)) for name, m in models.items()},
        data="" if images is None else once(images, partial(hash_tensors, data)),
    )
