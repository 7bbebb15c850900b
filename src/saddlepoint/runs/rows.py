"""The rows of an attack: attacked, judged afresh, and kept page by page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from saddlepoint.evaluation import Page
from saddlepoint.losses import fooled as is_fooled
from saddlepoint.problems import AbstractProblem
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.runs.counting import by_guessing, summarise
from saddlepoint.runs.execute import VICTIMS, Execution, in_pages
from saddlepoint.runs.metrics import AttackMetrics
from saddlepoint.runs.patching import PatchTest, keep_patches
from saddlepoint.runs.record import Run
from saddlepoint.runs.shown import keep_for_gallery
from saddlepoint.solver import AttackResult, Progress
from saddlepoint.streams import JUDGE

__all__ = [
    "CLEAN",
    "Job",
    "RunProgress",
    "Solve",
    "attack_rows",
    "class_count",
    "fooled_rows",
    "judged_rows",
    "no_better_than_chance",
]

CLEAN = ("clean_predictions", "clean_fooled")
"""Tensors of a run about its images before the attack."""

_ROWS = 256  # at a time, where nothing is differentiated
Solve = Callable[[AbstractProblem, AbstractWeightRule, Callable[[Progress], None]], AttackResult]


@final
@dataclass(frozen=True)
class Job:
    """What to run.

    Attributes:
        problem: All rows.
        solve: Attacks some of them with a weight rule.
        rule: Of the attack.
        baseline: Of the attack it is compared with, or None.
        chunk: Rows between two writes to disk.
        notes: What a look at the models has shown, for the record.
        victims: Problems of the same rows whose models are asked only when all rows are on disk.
        test: Of patches, on images that were held out; None for other attacks.
        clean: `clean_predictions` and `clean_fooled` of all rows, where another run has asked already.
    """

    problem: AbstractProblem
    solve: Solve
    rule: AbstractWeightRule
    baseline: AbstractWeightRule | None
    chunk: int
    notes: tuple[str, ...] = ()
    victims: tuple[AbstractProblem, ...] = ()
    test: PatchTest | None = None
    clean: Mapping[str, Tensor] | None = None


@final
@dataclass(frozen=True)
class RunProgress:
    """How far a run has come: `fraction` of the rows, `done` of them on disk, `fooled` in all domains by it."""

    rows: int
    done: int
    fooled: int
    fraction: float


def attack_rows(
    job: Job, execution: Execution, *, callback: Callable[[RunProgress], None] | None = None
) -> Run:
    """Attack every row that is not on disk yet, and finish the run.

    Args:
        job: The problem and how to solve it.
        execution: The open run.
        callback: Called after every step of the attack.

    Returns:
        The complete record, as written.
    """
    total, report = len(job.problem), callback or (lambda _: None)
    state = RunProgress(total, 0, 0, 0.0)

    def compute(start: int, stop: int) -> Page:
        rows = torch.arange(start, stop, device=job.problem.lower.device)
        return _page(job, rows, state, report)

    def tell(done: int, tensors: Mapping[str, Tensor]) -> None:
        nonlocal state
        fooled = state.fooled + fooled_rows(tensors["fooled"], tensors["clean_fooled"])
        state = RunProgress(total, done, fooled, done / total)
        report(state)

    execution.notes.extend(job.notes)
    tensors, seconds = in_pages(execution, total, job.chunk, compute, tell)
    classes = class_count(job.problem)  # before the victims, which come after all else
    if job.victims:
        judged, more = _ask_victims(job, execution, tensors)
        tensors, seconds = {**tensors, **judged}, seconds + more
    metrics = summarise(
        execution.run.domains,
        tensors,
        baseline=job.baseline is not None,
        victims=tuple(execution.run.hashes.victims),
    )
    execution.notes.extend(no_better_than_chance(metrics.clean_accuracy, job.problem, classes))
    if job.test is None:
        tensors |= keep_for_gallery(job.problem, tensors)
    else:
        metrics = _tested(job.test, metrics, tensors)
        tensors |= keep_patches(job.problem, job.test, tensors)
    return execution.finish(metrics, tensors, seconds=seconds)


def class_count(problem: AbstractProblem) -> int:
    """C, which nobody but the models knows."""
    few = problem.take(torch.arange(1, device=problem.lower.device))
    with torch.no_grad():
        return few.logits(few.zeros()).shape[-1]


def no_better_than_chance(
    accuracy: Mapping[str, float], problem: AbstractProblem, classes: int
) -> list[str]:
    """A warning of every model that seems to guess, of which an attack says nothing."""
    if len(problem.models) != problem.num_domains:  # images and views: one of them may be hard
        accuracy = {"the model": sum(accuracy.values()) / len(accuracy)}
    limit = by_guessing(len(problem), classes)
    return [
        f"{name} has {share:.0f} % of the images right before the attack, and guessing among {classes} classes "
        f"{100 / classes:.0f} %: are its parameters, its labels and its normalisation right? `saddlepoint "
        "doctor` looks into it, --mean and --std normalise."
        for name, share in accuracy.items()
        if share <= limit
    ]


def fooled_rows(fooled: Tensor, before: Tensor) -> int:
    """How many rows were right in every domain and are wrong in every one now, of two tables (B, K).

    Example:
        >>> now = torch.tensor([[True, True], [True, True]])
        >>> fooled_rows(now, torch.tensor([[False, False], [True, False]]))
        1
    """
    return int((fooled.all(dim=1) & ~before.any(dim=1)).sum())


def judged_rows(problem: AbstractProblem, result: AttackResult) -> dict[str, Tensor]:
    """What a page would hold of all rows of a result: judged afresh, with the answers before the attack."""
    tensors = {"labels": problem.truth, **_judged(problem, result, "")}
    says, wrong, _ = _verdict(problem, problem.zeros())
    return tensors | {"clean_predictions": says, "clean_fooled": wrong}


def _ask_victims(
    job: Job, execution: Execution, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], float]:
    """What the victims say to the images before the attack and to those with the perturbations as stored."""

    def compute(start: int, stop: int) -> Page:
        began = time.perf_counter()
        rows = torch.arange(start, stop, device=job.problem.lower.device)
        parts = [each.take(rows) for each in job.victims]
        told: dict[str, Tensor] = {}
        for prefix in ("", "baseline.") if job.baseline is not None else ("",):
            delta = tensors[f"{prefix}delta"][start:stop].to(job.problem.lower)
            says, wrong, fooled = _verdicts(parts, delta)
            told |= {f"{prefix}victims.predictions": says, f"{prefix}victims.fooled": fooled}
            if job.problem.aimed:
                told[f"{prefix}victims.wrong"] = wrong
        _, told["victims.clean_fooled"], _ = _verdicts(parts, parts[0].zeros())
        return Page(told, time.perf_counter() - began)

    return in_pages(execution, len(job.problem), job.chunk, compute, name=VICTIMS)


def _page(
    job: Job,
    positions: Tensor,
    base: RunProgress,
    report: Callable[[RunProgress], None],
) -> Page:
    """Attack and judge some rows."""
    part, zero = job.problem.take(positions), job.problem.take(positions).zeros()
    test = None if job.test is None else job.test.problem.take(positions)
    rules = [("", job.rule)] + ([("baseline.", job.baseline)] if job.baseline is not None else [])
    tensors: dict[str, Tensor] = {"labels": part.truth}
    began = time.perf_counter()
    for index, (prefix, rule) in enumerate(rules):

        def show(progress: Progress, index: int = index) -> None:
            share = (index + progress.fraction) / len(rules) * len(part) / base.rows
            report(RunProgress(base.rows, base.done, base.fooled, base.fraction + share))

        result = job.solve(part, rule, show)
        tensors |= _judged(part, result, prefix)
        if job.test is not None and test is not None:
            table = _verdict(test, result.delta)[2]
            tensors[f"{prefix}held_out.fooled"] = table.reshape(len(part), *job.test.shape)
    if job.test is not None and test is not None:
        table = _verdict(test, zero)[2]
        tensors["held_out.plain"] = table.reshape(len(part), *job.test.shape)
        tensors["held_out.right"] = job.test.right(len(part))
    if job.clean is None:
        tensors["clean_predictions"], tensors["clean_fooled"], _ = _verdict(part, zero)
    else:
        tensors |= {name: job.clean[name][positions.cpu()] for name in CLEAN}
    return Page(tensors, time.perf_counter() - began)


def _tested(
    test: PatchTest, metrics: AttackMetrics, tensors: Mapping[str, Tensor]
) -> AttackMetrics:
    """Metrics with what was found on images that were held out."""
    baseline = metrics.baseline
    if baseline is not None:
        baseline = replace(baseline, held_out=test.metrics(tensors, "baseline."))
    return replace(metrics, held_out=test.metrics(tensors), baseline=baseline)


def _judged(part: AbstractProblem, result: AttackResult, prefix: str) -> dict[str, Tensor]:
    predictions, wrong, fooled = _verdict(part, result.delta)
    tensors = {
        "delta": result.delta,
        "weights": result.weights,
        "losses": result.losses,
        "fooled": fooled,
        "predictions": predictions,
        "num_forwards": result.num_forwards,
    }
    # Without a class to reach, a domain is fooled exactly where it is wrong, and one table says both.
    if part.aimed:
        tensors["wrong"] = wrong
        if not prefix:  # the baseline aims at the same
            tensors["targets"] = part.labels
    named = {f"{prefix}{name}": value for name, value in tensors.items()}
    if not prefix:
        named |= {
            "history.weights": result.history.weights,
            "history.losses": result.history.losses,
        }
    return named


def _verdicts(parts: Sequence[AbstractProblem], delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of several problems of the same rows, side by side."""
    tables = zip(*(_verdict(part, delta) for part in parts), strict=True)
    says, wrong, fooled = (torch.cat(each, dim=1) for each in tables)
    return says, wrong, fooled


def _verdict(part: AbstractProblem, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What every domain says on draws no attack has seen, whether that is wrong, and whether it is fooled.

    The two differ where a class is to be reached: to be wrong is then not enough.
    """
    rows = torch.arange(len(part), device=delta.device).split(_ROWS)
    with torch.no_grad():
        logits = torch.cat([part.take(few).logits(delta[few], JUDGE) for few in rows])
    wrong = is_fooled(logits, part.truth)
    fooled = is_fooled(logits, part.labels, targeted=True) if part.aimed else wrong
    return logits.argmax(dim=-1), wrong, fooled
