"""Rows in batches that fit into memory, until all are done or Ctrl-C is pressed."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from saddlepoint.precision import Precisions
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import AbstractSet, LpBall
from saddlepoint.rounding import UNROUNDED
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.solver.result import (
    Asked,
    AttackResult,
    Callback,
    History,
    Progress,
    concatenate,
    keep_partial,
    partial_of,
)

__all__ = ["Plan", "Report", "SolveBatch", "in_batches"]


@final
@dataclass(frozen=True)
class Plan:
    """How the rows will be worked through."""

    rows: int
    steps: int
    targeted: bool
    batch_size: int
    accumulate: bool
    rule: AbstractWeightRule
    precisions: Precisions = field(default_factory=Precisions)
    restarts: int = 1
    evaluations: int | None = None  # that a row may take
    stays: bool = False  # a row whose start fools every domain, if that is certain

    def most(self, problem: AbstractProblem) -> float:
        """What a row may have spent before another iterate, which may have to be confirmed, is too much."""
        if self.evaluations is None:
            return math.inf
        return self.evaluations - problem.samples * (2 if self.precisions.low else 1)


Report = Callable[[int, int, Tensor], None]
"""Told after every iterate of a batch: restart, step, and what is fooled, (n, K)."""
SolveBatch = Callable[[AbstractProblem, LpBall, Tensor, Report], AttackResult]
"""Rows to their result, which is judged, see `judging`; after Ctrl-C it is in the exception."""


def in_batches(
    problem: AbstractProblem,
    region: AbstractSet,
    start: Tensor | None,
    setup: Plan,
    solve: SolveBatch,
    callback: Callback | None,
) -> AttackResult:
    """Solve batch after batch. What a set forbids is taken out of the box here: solvers see a ball and a box.

    Raises:
        KeyboardInterrupt: After Ctrl-C, with what is done; rows that were not attacked to the end are marked.
    """
    unsure = start is not None or problem.random or setup.precisions.low
    start = problem.zeros() if start is None else torch.as_tensor(start).detach().to(problem.lower)
    done, fooled = 0, 0
    parts: list[AttackResult] = []
    how = (setup.rule, setup.steps, setup.targeted, setup.restarts, setup.stays and not unsure)
    asked = Asked(problem, region, *how)

    problem, ball = _restricted(problem, region), region.ball

    def named(result: AttackResult) -> AttackResult:
        return replace(result, precision=setup.precisions.names, asked=asked)

    def report(restart: int, step: int, table: Tensor) -> None:
        if callback is not None:
            so_far = fooled + int(table.all(dim=1).sum())
            # The verdict is still to come after the last iterate.
            share = (restart + step / (setup.steps + 1)) / setup.restarts
            fraction = (done + len(table) * share) / setup.rows
            callback(Progress(setup.rows, done, so_far, step, setup.steps, restart, fraction))
            with UNROUNDED:  # what it sets of float32 is for afterwards
                pass

    try:
        for rows in torch.arange(len(problem), device=start.device).split(setup.batch_size):
            part, part_ball = problem.take(rows), ball.take(rows)
            delta = part_ball.project(start[rows], part.lower, part.upper)
            parts.append(solve(part, part_ball, delta, report))
            done += len(part)
            fooled += int(parts[-1].fooled.all(dim=1).sum())
            report(0, setup.steps, parts[-1].fooled[:0])
    except KeyboardInterrupt as stop:
        found = partial_of(stop)
        if found is not None:  # else the rows of this batch are among those left
            parts.append(found)
        reached = sum(len(part.delta) for part in parts)
        if reached < len(problem):
            left = torch.arange(reached, len(problem), device=start.device)
            parts.append(_untouched(problem.take(left), setup.steps))
        whole = named(concatenate(parts))
        keep_partial(stop, whole)
        ready = int(whole.completed.sum())
        stop.add_note(
            f"the attack was stopped: {ready} of {len(problem)} rows are done (fooled, or attacked to the end);"
            " the `result` of this exception holds them."
        )
        raise
    return named(concatenate(parts))


def _restricted(problem: AbstractProblem, region: AbstractSet) -> AbstractProblem:
    """The problem with the box that the set leaves of its own."""
    part = copy(problem)
    part.lower, part.upper = region.box(problem.lower, problem.upper)
    return part


def _untouched(problem: AbstractProblem, steps: int) -> AttackResult:
    """The result for rows that were not attacked: no perturbation, nothing claimed."""
    rows, domains = problem.labels.shape
    unknown = torch.full((rows, domains), float("nan"), dtype=problem.lower.dtype)
    unknown = unknown.to(problem.lower.device)
    return AttackResult(
        delta=problem.zeros(),
        adversarial=problem.images(problem.zeros()),
        weights=torch.full_like(unknown, 1.0 / domains),
        losses=unknown,
        fooled=torch.zeros_like(unknown, dtype=torch.bool),
        history=History(*(unknown.expand(steps + 1, -1, -1).clone() for _ in range(2))),
        num_forwards=torch.zeros_like(problem.rows),
        completed=torch.zeros_like(problem.rows, dtype=torch.bool),
    )
