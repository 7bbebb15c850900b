"""Attacks on all domains at once: the min-max attack in the ball, and the smallest radius."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from saddlepoint.evaluation.attacks import OutOfTimeError
from saddlepoint.evaluation.failures import AttackFailedError, Failure, OnFailure, reason
from saddlepoint.evaluation.ledger import Batch, Ledger, Stage, batches_of, part_of
from saddlepoint.evaluation.radii import radii_unchecked
from saddlepoint.evaluation.results import SEARCH
from saddlepoint.evaluation.suites import restarts_of
from saddlepoint.evaluation.verdicts import judge_domains
from saddlepoint.evaluation.work import EvaluationProgress
from saddlepoint.precision import Precisions
from saddlepoint.problems import AbstractProblem, Ensemble, Product, Transformed
from saddlepoint.projections import LpBall
from saddlepoint.solver import Progress, attack_unchecked

__all__ = ["Found", "Joint"]

# Where the ledger keeps attacks on all domains; names of domains are quoted, "+" is not.
_ALL = "+all"


@final
@dataclass
class Found:
    """What was found against all domains under one threat; all on the CPU.

    Attributes:
        broken: (N, K), boolean.
        fooled: (N,), boolean.
        radii: Of the nearest perturbation that fools all domains, also outside the ball, (N,), float64.
        delta: The nearest one inside the ball, (N, ...).
        weights: (N, K).
        missed: Images that a domain has right and the min-max attack was not run on, (N,), boolean.
        unsearched: The same for the search of the smallest radius.
        notes: What was cut short.
        failures: What raised.
    """

    broken: Tensor
    fooled: Tensor
    radii: Tensor
    delta: Tensor
    weights: Tensor
    missed: Tensor
    unsearched: Tensor
    notes: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @staticmethod
    def none(problem: AbstractProblem, right: Tensor) -> Found:
        """Nothing found yet; `right` says which domains have which images right, (N, K)."""
        fooled = ~right.any(dim=1)
        return Found(
            broken=~right,
            fooled=fooled,
            radii=torch.where(fooled, 0.0, math.inf).double(),
            delta=problem.zeros().cpu(),
            weights=torch.full(right.shape, 1.0 / right.shape[1], dtype=problem.lower.dtype),
            missed=~fooled,
            unsearched=~fooled,
        )


_Run = Callable[[AbstractProblem, Tensor, Callable[[Progress], None]], dict[str, Tensor]]


@final
@dataclass(frozen=True)
class Joint:
    """Attacks on all domains at once, batch by batch."""

    problem: Ensemble | Transformed | Product
    right: Tensor
    on_failure: OnFailure
    batch_size: int
    accumulate: bool
    budget: float | None
    seed: int
    steps: int
    searches: int
    ledger: Ledger | None
    callback: Callable[[EvaluationProgress], None] | None
    precisions: Precisions

    def run(self, ball: LpBall, candidates: Sequence[Tensor], where: EvaluationProgress) -> Found:
        """All about one threat; `candidates` are perturbations, (N, ...), that were found elsewhere."""
        found = Found.none(self.problem, self.right)
        self._transfer(found, ball, candidates, replace(where, attack="transfer"))
        self._minmax(found, ball, replace(where, attack="min-max"))
        self._radii(found, ball, replace(where, attack=SEARCH, index=where.index + 1))
        return found

    def _transfer(
        self, found: Found, ball: LpBall, candidates: Sequence[Tensor], where: EvaluationProgress
    ) -> None:
        """What was found against one domain, tried on all."""
        for delta in candidates:
            some = delta.flatten(1).any(dim=1).nonzero().flatten()
            try:
                for rows in batches_of(some, self.batch_size):
                    self._judge(found, rows, delta[rows], ball)
                    if ball.p != 0:
                        self._judge(found, rows, self._stretched(rows, delta[rows], ball), ball)
            except Exception as error:  # the user's model may raise anything
                self._failed(found, where, len(some), reason(error), error)
                return

    def _stretched(self, rows: Tensor, delta: Tensor, ball: LpBall) -> Tensor:
        """Perturbations as long as the radius, in the box: at the boundary of one domain they fool no other."""
        here = rows.to(self.problem.x.device)
        scale = float(ball.eps) / ball.norm(delta)
        full = delta * scale.to(delta).reshape(-1, *(1 for _ in delta.shape[1:]))
        return full.to(self.problem.x).clamp(self.problem.lower[here], self.problem.upper[here])

    def _judge(self, found: Found, rows: Tensor, delta: Tensor, ball: LpBall) -> None:
        """Look at one perturbation per row, (n, ...), with every domain."""
        part = self.problem.take(rows.to(self.problem.x.device))
        verdict = judge_domains(part, delta.to(part.lower), ball)
        every = verdict.broken.all(dim=1)
        distance = verdict.distance.amax(dim=1)
        # Projections are in the ball up to rounding, and count as inside.
        distance = torch.where(every, distance.clamp_max(float(ball.eps)), distance)
        nearer = every & (distance < found.radii[rows])
        found.delta[rows[nearer]] = verdict.delta[nearer]
        found.broken[rows] |= verdict.broken
        found.fooled[rows] |= every
        found.radii[rows] = torch.minimum(found.radii[rows], distance)

    def _minmax(self, found: Found, ball: LpBall, where: EvaluationProgress) -> None:
        """The min-max attack in the ball."""

        def run(
            part: AbstractProblem, rows: Tensor, tick: Callable[[Progress], None]
        ) -> dict[str, Tensor]:
            result = attack_unchecked(
                part,
                ball,
                steps=self.steps,
                restarts=restarts_of(ball.p),
                batch_size=len(rows),
                accumulate=self.accumulate,
                seed=self.seed,
                callback=tick,
                precisions=self.precisions,
            )
            queries = result.num_forwards.sum().cpu() * part.num_domains
            return {
                "delta": result.delta.cpu(),
                "weights": result.weights.cpu(),
                "queries": queries,
            }

        for rows, tensors in self._batches(found, where, run):
            found.weights[rows], found.missed[rows] = tensors["weights"], False
            try:
                self._judge(found, rows, tensors["delta"], ball)
            except Exception as error:  # the user's model may raise anything
                left = int((~found.fooled).sum())
                self._failed(found, where, left, reason(error), error)
                return

    def _radii(self, found: Found, ball: LpBall, where: EvaluationProgress) -> None:
        """The smallest radii; a row whose search was not run keeps the best that is known."""
        eps = float(ball.eps)
        # Inside the ball everything was tried that there is: what it withstood is not tried again.
        failed = torch.full_like(found.radii, eps).masked_fill(found.fooled, 0.0)
        known = found.radii.clone()

        def run(
            part: AbstractProblem, rows: Tensor, tick: Callable[[Progress], None]
        ) -> dict[str, Tensor]:
            radii = radii_unchecked(
                part,
                LpBall(ball.p, 1.0, ball.unit),
                failed=failed[rows],
                succeeded=known[rows],
                first=4 * eps if 0 < eps < math.inf else None,
                steps=self.steps,
                searches=self.searches,
                batch_size=len(rows),
                accumulate=self.accumulate,
                seed=self.seed,
                callback=tick,
                precisions=self.precisions,
            )
            return {"radius": radii}

        for rows, tensors in self._batches(found, where, run):
            found.radii[rows], found.unsearched[rows] = tensors["radius"], False

    def _batches(
        self, found: Found, where: EvaluationProgress, run: _Run
    ) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
        """Run something on all rows that a domain has right, batch by batch."""
        stage = Stage(part_of(self.ledger, _ALL), self.budget, self.on_failure)
        todo = self.right.any(dim=1).nonzero().flatten()
        done = 0

        def report(done: int) -> None:
            if self.callback is not None:
                not_fooled = int((~found.fooled).sum())
                self.callback(replace(where, done=done, total=len(todo), not_fooled=not_fooled))

        def tick(more: int) -> None:
            report(done + more)

        def on(rows: Tensor) -> Callable[[float | None], dict[str, Tensor]]:
            def work(deadline: float | None) -> dict[str, Tensor]:
                part = self.problem.take(rows.to(self.problem.x.device))
                return run(part, rows, _Clock(deadline))

            return work

        name = f"{where.threat}/{where.attack}"
        parts = enumerate(batches_of(todo, self.batch_size))
        batches = [Batch(f"{name}/{number}", rows, on(rows)) for number, rows in parts]
        for batch, page in stage.pages(batches, tick):
            done += len(batch.rows)
            yield batch.rows, page.tensors
        if stage.status == "cut short":
            found.notes.append(f"{where.attack}: {stage.cut_short(done, len(todo))}")
        elif stage.status == "failed":
            self._failed(found, where, len(todo) - done, stage.why, stage.error)
        if len(todo):
            report(len(todo))

    def _failed(
        self,
        found: Found,
        where: EvaluationProgress,
        images: int,
        why: str,
        error: Exception | None,
    ) -> None:
        failure = Failure(where.threat, where.attack, images, why)
        if self.on_failure == "raise":
            raise AttackFailedError(failure) from error
        found.failures.append(failure)


@final
@dataclass(frozen=True)
class _Clock:
    """Stops an attack after an iterate when its time is over."""

    deadline: float | None

    def __call__(self, progress: Progress) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError
