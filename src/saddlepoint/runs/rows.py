"""The rows of an attack: attacked, judged afresh, and kept page by page."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.evaluation import Page
from saddlepoint.losses import fooled as is_fooled
from saddlepoint.problems import AbstractProblem
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.runs.counting import summarise
from saddlepoint.runs.execute import Execution, in_pages
from saddlepoint.runs.record import Run
from saddlepoint.runs.shown import keep_for_gallery
from saddlepoint.solver import AttackResult, Progress
from saddlepoint.streams import JUDGE

__all__ = ["Job", "RunProgress", "Solve", "attack_rows", "fooled_rows"]

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
    """

    problem: AbstractProblem
    solve: Solve
    rule: AbstractWeightRule
    baseline: AbstractWeightRule | None
    chunk: int


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
        part = job.problem.take(torch.arange(start, stop, device=job.problem.lower.device))
        return _page(job, part, state, report, execution.notes)

    def tell(done: int, tensors: Mapping[str, Tensor]) -> None:
        nonlocal state
        fooled = state.fooled + fooled_rows(tensors["fooled"], tensors["clean_fooled"])
        state = RunProgress(total, done, fooled, done / total)
        report(state)

    tensors, seconds = in_pages(execution, total, job.chunk, compute, tell)
    metrics = summarise(execution.run.domains, tensors, baseline=job.baseline is not None)
    tensors |= keep_for_gallery(job.problem, tensors)
    return execution.finish(tensors, done=total, seconds=round(seconds, 3), metrics=metrics.plain())


def fooled_rows(fooled: Tensor, before: Tensor) -> int:
    """How many rows were right in every domain and are wrong in every one now, of two tables (B, K).

    Example:
        >>> now = torch.tensor([[True, True], [True, True]])
        >>> fooled_rows(now, torch.tensor([[False, False], [True, False]]))
        1
    """
    return int((fooled.all(dim=1) & ~before.any(dim=1)).sum())


def _page(
    job: Job,
    part: AbstractProblem,
    base: RunProgress,
    report: Callable[[RunProgress], None],
    notes: list[str],
) -> Page:
    """Attack and judge some rows."""
    rules = [("", job.rule)] + ([("baseline.", job.baseline)] if job.baseline is not None else [])
    tensors: dict[str, Tensor] = {"labels": part.truth}
    began = time.perf_counter()
    for index, (prefix, rule) in enumerate(rules):

        def show(progress: Progress, index: int = index) -> None:
            left = (len(part) - progress.done) * progress.step / max(progress.steps, 1)
            share = (
                (index + (progress.done + left) / len(part)) / len(rules) * len(part) / base.rows
            )
            report(RunProgress(base.rows, base.done, base.fooled, base.fraction + share))

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            result = job.solve(part, rule, show)
        notes.extend(str(w.message) for w in caught if issubclass(w.category, UserWarning))
        tensors |= _judged(part, result, prefix)
    zero = part.zeros()
    tensors["clean_predictions"], tensors["clean_fooled"] = _verdict(part, zero)
    return Page(tensors, time.perf_counter() - began)


def _judged(part: AbstractProblem, result: AttackResult, prefix: str) -> dict[str, Tensor]:
    predictions, fooled = _verdict(part, result.delta)
    tensors = {
        "delta": result.delta,
        "weights": result.weights,
        "losses": result.losses,
        "fooled": fooled,
        "predictions": predictions,
        "num_forwards": result.num_forwards,
    }
    named = {f"{prefix}{name}": value for name, value in tensors.items()}
    if not prefix:
        named |= {
            "history.weights": result.history.weights,
            "history.losses": result.history.losses,
        }
    return named


def _verdict(part: AbstractProblem, delta: Tensor) -> tuple[Tensor, Tensor]:
    """What every domain says, and whether that is wrong, evaluated afresh on draws no attack has seen."""
    with torch.no_grad():
        logits = part.logits(delta, JUDGE)
    return logits.argmax(dim=-1), is_fooled(logits, part.truth)
