"""A run from the first row to the last: chunk by chunk, so that a killed one can be continued.

Results do not depend on how rows are batched beyond rounding, and chunks are always the same, so that a run
that was stopped and continued ends with the numbers of one that was not.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint.losses import fooled as is_fooled
from saddlepoint.problems import AbstractProblem
from saddlepoint.report.gallery import keep_for_gallery
from saddlepoint.report.metrics import summarise
from saddlepoint.report.record import Run
from saddlepoint.report.shards import TENSORS, Shards, fooled_rows, write_tensors
from saddlepoint.solver import AttackResult, Progress
from saddlepoint.streams import JUDGE
from saddlepoint.training.distributed import World
from saddlepoint.weights import AbstractWeightRule

__all__ = ["Interrupted", "Job", "RunProgress", "check_resumable", "execute"]

Solve = Callable[[AbstractProblem, AbstractWeightRule, Callable[[Progress], None]], AttackResult]


class Interrupted(KeyboardInterrupt):
    """The run was stopped (Ctrl-C); `run` is its record so far."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"stopped after {run.done} of {run.rows} rows")
        self.run = run


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
    """Where a run stands: `fraction` of the rows, `done` of them on disk, `fooled` in all domains by it."""

    rows: int
    done: int
    fooled: int
    fraction: float


def check_resumable(run: Run, folder: Path) -> None:
    """Refuse to continue a run of other settings, models or data.

    Raises:
        ValueError: Something differs; the message says what.
    """
    old = Run.read(folder)
    if old.kind != run.kind:
        raise ValueError(
            f"`--resume` must continue the same kind of run, got {run.kind} for the {old.kind} run "
            f"in {folder}; choose another --out."
        )
    if old.hashes.config != run.hashes.config:
        keys = sorted(set(old.config) | set(run.config))
        differing = [key for key in keys if old.config.get(key) != run.config.get(key)]
        shown = "; ".join(
            f"{k}: {old.config.get(k)} there, {run.config.get(k)} here" for k in differing
        )
        raise ValueError(
            f"`--resume` must continue with the same configuration as the run in {folder}, "
            f"got {shown or 'other settings'}; choose another --out."
        )
    if old.hashes.data != run.hashes.data:
        raise ValueError(
            f"`--resume` must continue with the same data as the run in {folder}, got images or labels "
            "with another hash; choose another --out."
        )
    names = sorted(set(old.hashes.models) | set(run.hashes.models))
    changed = [n for n in names if old.hashes.models.get(n) != run.hashes.models.get(n)]
    if changed:
        raise ValueError(
            f"`--resume` must continue with the same models as the run in {folder}, got other "
            f"weights for {', '.join(changed)}; choose another --out."
        )


def execute(
    job: Job,
    run: Run,
    folder: Path,
    *,
    callback: Callable[[RunProgress], None] | None = None,
) -> Run:
    """Attack every row that is not on disk yet, then write `tensors.safetensors` and `run.json`.

    Where `torch.distributed` has been initialised every process attacks its share of the chunks, and process 0
    writes. Chunks are the same as in a single process, and so is every bit of the tensors.

    Args:
        job: The problem and how to solve it.
        run: The record to complete; its `hashes` were checked by the caller.
        folder: The run directory. Shards in it are continued; clear them first to start again.
        callback: Called after every step of the attack.

    Returns:
        The complete record, as written; in other processes than the first the one given.

    Raises:
        Interrupted: Ctrl-C. Every finished chunk and a record with status "interrupted" are on disk.
    """
    shards = Shards(folder)
    notes: list[str] = list(run.warnings)
    world = World.current()
    if world.rank == 0:
        run.write(folder)
    total = len(job.problem)
    done, fooled = 0, shards.fooled()
    report = callback or (lambda _: None)
    try:
        mine = slice(world.rank, None, world.size)
        for start in range(0, total, job.chunk)[mine]:
            stop = min(start + job.chunk, total)
            if not shards.has(start, stop):
                part = job.problem.take(torch.arange(start, stop, device=job.problem.lower.device))
                base = RunProgress(total, done, fooled, done / total)
                tensors, seconds = _chunk(job, part, base, report, notes)
                shards.put(start, stop, tensors, seconds=seconds)
                fooled += fooled_rows(tensors["fooled"], tensors["clean_fooled"])
            done = stop
            report(RunProgress(total, done, fooled, done / total))
    except KeyboardInterrupt:
        partial = _completed(run, job, shards.merged(), shards.seconds(), notes)
        partial = partial.but(status="interrupted")
        if world.rank == 0:
            partial.write(folder)
        raise Interrupted(partial) from None
    notes = [
        note for each in world.gather(notes) for note in each
    ]  # all chunks are on disk after this
    if world.rank != 0:
        return run
    tensors = shards.merged()
    complete = _completed(run, job, tensors, shards.seconds(), notes).but(status="complete")
    tensors.update(keep_for_gallery(job.problem, tensors))
    write_tensors(folder / TENSORS, tensors)
    complete.write(folder)
    shards.clear()
    return complete


def _completed(
    run: Run, job: Job, tensors: Mapping[str, Tensor], seconds: float, notes: list[str]
) -> Run:
    if not tensors:
        return run
    done = len(tensors["weights"])
    evaluations: dict[str, Any] = {}
    for prefix, target in (("", evaluations), ("baseline.", {})):
        if f"{prefix}num_forwards" in tensors:
            count = int(tensors[f"{prefix}num_forwards"].sum())
            target.update(total=count, per_row=round(count / done, 4))
            if prefix:
                evaluations["baseline"] = target
    return run.but(
        done=done,
        seconds=round(seconds, 3),
        gradient_evaluations=evaluations,
        metrics=summarise(run.domains, tensors, baseline=job.baseline is not None),
        warnings=tuple(dict.fromkeys(notes)),
    )


def _chunk(
    job: Job,
    part: AbstractProblem,
    base: RunProgress,
    report: Callable[[RunProgress], None],
    notes: list[str],
) -> tuple[dict[str, Tensor], float]:
    """Attack and judge some rows: tensors for a shard, and the seconds it took."""
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
        tensors |= _judged(part, result.finished(), prefix)
    zero = part.zeros()
    tensors["clean_predictions"], tensors["clean_fooled"] = _verdict(part, zero)
    return tensors, time.perf_counter() - began


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
