"""How many images a model still classifies correctly under every attack of a suite."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, final

import torch
from torch import Tensor

from saddlepoint.evaluation.attacks import AbstractAttack, Target, Watched, sealed
from saddlepoint.evaluation.ours import OurAttack
from saddlepoint.evaluation.pages import Ledger, Page, Stage, Status, batches_of
from saddlepoint.evaluation.results import Outcome, RobustAccuracy
from saddlepoint.evaluation.suites import Suite, attacks_for
from saddlepoint.evaluation.verdicts import is_right, judge, pulled_back
from saddlepoint.problems import Ensemble, Model, check_eval_mode
from saddlepoint.problems.inputs import as_images, as_labels, plain
from saddlepoint.projections import LpBall
from saddlepoint.solver.batches import look
from saddlepoint.solver.evaluate import gradients_enabled

__all__ = [
    "EvaluationProgress",
    "ThreatLike",
    "as_balls",
    "robust_accuracy",
]


class _HasBall(Protocol):
    @property
    def ball(self) -> LpBall: ...


ThreatLike = LpBall | _HasBall
"""A ball, or a `Threat`, which has one."""


@final
@dataclass(frozen=True)
class EvaluationProgress:
    """Where an evaluation stands.

    Attributes:
        threat, attack: What is running.
        index, attacks: Its number among all attacks of all threats, from 0, and their count.
        done, total: Images this attack is done with, and has to be run on.
        standing: Images that still stand under this threat.
        images: N.
        domain: Name of the domain that is attacked alone; empty if there is but one, or all at once.
    """

    threat: str
    attack: str
    index: int
    attacks: int
    done: int
    total: int
    standing: int
    images: int
    domain: str = ""


def robust_accuracy(
    model: Model,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, ThreatLike],
    suite: Suite = "quick",
    *,
    every_attack: bool = False,
    batch_size: int = 128,
    budget: float | None = None,
    seed: int = 0,
    ledger: Ledger | None = None,
    callback: Callable[[EvaluationProgress], None] | None = None,
) -> RobustAccuracy:
    """Run a suite of attacks under every threat and count what still stands.

    Cheap attacks come first, and an image that is broken under a threat is not attacked again for it. Verdicts
    do not rely on what an attack says of itself, see `judge`. An attack that raises is reported
    in `notes`, and the others go on. There is a warning if the model gives probabilities or no gradient: for
    attacks that need gradients the numbers would then say nothing.

    Args:
        model: From images in [0, 1] to logits, in evaluation mode; left as it was.
        x: Images, (N, ...), in [0, 1].
        y: Labels, (N,).
        threats: Balls or `Threat`s by name; one radius each.
        suite: "quick" (our attack), "paper", "autoattack", "autoattack+", or for every norm p a sequence of
            attacks of your own, such as {math.inf: [OurAttack()]}.
        every_attack: Run every attack on every correctly classified image, for tables of single attacks.
        batch_size: Images at a time. Results of other libraries depend on it through their random numbers.
        budget: Seconds for each attack under each threat; what it cut short stands in `notes`.
        seed: Of everything random.
        ledger: Keeps finished batches. What it has already is not computed again.
        callback: Called before and after every batch.

    Returns:
        Accuracies, and what every attack did to every image.

    Raises:
        ValueError: An argument is unusable, or the suite has no attack for a norm.
        ImportError: The suite needs a library that is not installed.

    Example:
        >>> model = torch.nn.Linear(2, 2, bias=False).eval()
        >>> _ = torch.nn.init.eye_(model.weight)
        >>> x, y = torch.tensor([[0.9, 0.1], [0.6, 0.5], [0.1, 0.2]]), torch.tensor([0, 0, 0])
        >>> robust = robust_accuracy(model, x, y, {"linf": LpBall(math.inf, 0.2)})
        >>> [round(value, 2) for value in (robust.clean, robust.per_threat["linf"], robust.union)]
        [0.67, 0.33, 0.33]
    """
    x = as_images("x", x, 2)
    y = as_labels("y", y, (x.shape[0],))
    check_eval_mode([model])
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be >= 1, got {batch_size}.")
    if budget is not None and not budget > 0:
        raise ValueError(f"`budget` must be positive seconds, or None, got {budget}.")
    balls = as_balls(threats)
    plan = {name: _attacks(suite, name, ball, x) for name, ball in balls.items()}
    with gradients_enabled():
        x = plain(x)
        correct = is_right(model, x, y, batch_size).cpu()
        if not isinstance(suite, Mapping) or any(
            isinstance(attack, OurAttack) for attacks in plan.values() for attack in attacks
        ):
            for fault in _faults(model, x, y, correct):
                warnings.warn(fault, stacklevel=2)
        evaluation = _Evaluation(model, x, y, seed, batch_size, budget, ledger, callback)
        outcomes: list[Outcome] = []
        nearest: dict[str, Tensor] = {}
        total = sum(map(len, plan.values()))
        for name, ball in balls.items():
            standing, best = correct.clone(), _Nearest.none(x)
            for attack in plan[name]:
                todo = correct if every_attack else standing
                where = EvaluationProgress(name, attack.name, len(outcomes), total, 0, 0, 0, len(x))
                outcome = evaluation.run(where, ball, attack, todo.clone(), standing, best)
                outcomes.append(outcome)
                standing &= ~outcome.broken
            nearest[name] = best.delta
    return RobustAccuracy(balls, correct, tuple(outcomes), nearest)


def _faults(model: Model, x: Tensor, y: Tensor, correct: Tensor) -> tuple[str, ...]:
    """Why gradient attacks would say nothing about this model; the attacks themselves are sealed off."""
    rows = correct.nonzero().flatten()[:4].to(x.device)
    if len(rows) == 0:
        return ()
    try:
        with sealed(model, 0):
            return look(Ensemble([model], x[rows], y.to(x.device)[rows])).faults
    except Exception:  # every attack that fails for the same reason has it in its notes
        return ()


@dataclass
class _Nearest:
    """The nearest misclassified images of one threat so far."""

    distance: Tensor
    delta: Tensor

    @staticmethod
    def none(x: Tensor) -> _Nearest:
        return _Nearest(
            torch.full((len(x),), math.inf, dtype=torch.float64), torch.zeros_like(x).cpu()
        )

    def offer(self, page: Page) -> None:
        rows, distance = page.tensors["rows"], page.tensors["distance"]
        better = distance < self.distance[rows]
        self.distance[rows[better]] = distance[better]
        self.delta[rows[better]] = page.tensors["delta"][better]


@final
@dataclass
class _Work:
    """What one attack has done so far under one threat."""

    attack: AbstractAttack
    todo: Tensor
    attacked: Tensor
    broken: Tensor
    distance: Tensor
    outside: int = 0
    unusable: int = 0
    done: int = 0  # images of all restarts
    restart: int = 0

    @staticmethod
    def none(attack: AbstractAttack, todo: Tensor) -> _Work:
        none = torch.zeros_like(todo)
        never = torch.full((len(todo),), math.inf, dtype=torch.float64)
        return _Work(attack, todo, none.clone(), none.clone(), never)

    @property
    def total(self) -> int:
        return int(self.todo.sum()) * self.attack.restarts

    def batches(self, size: int) -> Iterator[tuple[str, Tensor]]:
        """Batch by batch, restart by restart, what is still to be attacked: the end of a key, and rows."""
        for restart in range(self.attack.restarts):
            self.restart = restart
            left = (self.todo & ~self.broken).nonzero().flatten()
            self.done = int(self.todo.sum()) * (restart + 1) - len(left)
            for number, rows in enumerate(batches_of(left, size)):
                yield f"{restart}/{number}", rows

    def add(self, rows: Tensor, page: Page) -> None:
        """Count a finished batch."""
        tensors = page.tensors
        self.attacked[rows] = True
        self.broken[rows] |= tensors["broken"]
        self.distance[rows] = torch.minimum(self.distance[rows], tensors["distance"])
        self.outside += int(tensors["outside"])
        self.unusable += int(tensors["unusable"])
        self.done += len(rows)

    def notes(self, stage: Stage) -> Iterator[str]:
        """What a reader of the numbers has to know."""
        if stage.reason:
            again = (
                f", restart {self.restart + 1} of {self.attack.restarts}" if self.restart else ""
            )
            reached = f"{int(self.attacked.sum())} of {int(self.todo.sum())} images attacked"
            yield f"{stage.reason} ({reached}{again})"
        if self.outside and not self.attack.minimal:
            yield f"{self.outside} candidates outside ball or box were discarded"
        if self.unusable:
            yield f"{self.unusable} candidates were not numbers and were discarded"


@final
@dataclass(frozen=True)
class _Evaluation:
    model: Model
    x: Tensor
    y: Tensor
    seed: int
    batch_size: int
    budget: float | None
    ledger: Ledger | None
    callback: Callable[[EvaluationProgress], None] | None

    def run(
        self,
        where: EvaluationProgress,
        ball: LpBall,
        attack: AbstractAttack,
        todo: Tensor,
        standing: Tensor,
        nearest: _Nearest,
    ) -> Outcome:
        """One attack under one threat."""
        work, stage = _Work.none(attack, todo), Stage(self.ledger, self.budget)

        def report(done: int) -> None:
            if self.callback is not None:
                left = int((standing & ~work.broken).sum())
                self.callback(replace(where, done=done, total=work.total, standing=left))

        for number, rows in work.batches(self.batch_size):
            report(work.done)
            key = f"{where.threat}/{attack.name}/{number}"
            page = stage.page(key, rows, self._batch(key, ball, attack, rows, work.restart))
            if page is None:
                break
            work.add(rows, page)
            nearest.offer(page)
        if work.total:
            report(work.total)
        status: Status = stage.status if work.total else "not needed"
        return Outcome(
            where.threat,
            attack.name,
            work.attacked,
            work.broken,
            work.distance,
            stage.seconds,
            stage.queries,
            status,
            tuple(work.notes(stage)),
            attack.minimal,
        )

    def _batch(
        self, key: str, ball: LpBall, attack: AbstractAttack, rows: Tensor, restart: int
    ) -> Callable[[float | None], dict[str, Tensor]]:
        def run(deadline: float | None) -> dict[str, Tensor]:
            here = rows.to(self.x.device)
            x, y = self.x[here], self.y.to(self.x.device)[here]
            watched = Watched(self.model)
            watched.deadline = deadline
            # Copies: what an attack writes into them changes nothing here.
            target = Target(watched, x.clone(), y.clone(), rows.clone(), ball, self.seed, restart)
            with sealed(self.model, zlib.crc32(f"{self.seed}/{key}".encode())):
                candidates = attack.run(target)
            verdict = judge(self.model, x, y, candidates, ball)
            if not attack.minimal:
                verdict = pulled_back(self.model, x, y, verdict, ball)
            return {
                "broken": verdict.broken,
                "distance": verdict.distance,
                "outside": verdict.outside.sum(),
                "unusable": verdict.unusable.sum(),
                "delta": verdict.delta,
                "queries": torch.tensor(watched.queries),
            }

        return run


def _attacks(suite: Suite, name: str, ball: LpBall, x: Tensor) -> tuple[AbstractAttack, ...]:
    """The attacks of a suite for a threat, or an error that says why there can be none."""
    if ball.unit == "pixel" and x.dim() < 3:
        raise ValueError(
            f"`threats[{name!r}]` counts pixels and needs images (N, C, ...), got {tuple(x.shape)}; "
            'take unit="entry".'
        )
    attacks = attacks_for(suite, ball.p)
    for attack in attacks:
        if attack.restarts < 1:
            raise ValueError(
                f"`restarts` of attack {attack.name!r} must be >= 1, got {attack.restarts}."
            )
    return attacks


def as_balls(threats: Mapping[str, ThreatLike]) -> dict[str, LpBall]:
    """The balls of the threats, or an error that says what is wrong with them.

    Example:
        >>> as_balls({"linf": LpBall(math.inf, 0.3)})["linf"].eps
        0.3
    """
    example = '{"linf": LpBall(math.inf, 0.3)}'
    if not isinstance(threats, Mapping) or not threats:
        raise ValueError(
            f"`threats` must name at least one threat, such as {example}, got {threats!r}."
        )
    found: dict[str, LpBall] = {}
    for name, threat in threats.items():
        ball = threat if isinstance(threat, LpBall) else getattr(threat, "ball", None)
        if not isinstance(ball, LpBall):
            raise TypeError(
                f"`threats[{name!r}]` must be an LpBall or a Threat, as in {example}, got {threat!r}."
            )
        if isinstance(ball.eps, Tensor) and ball.eps.dim() > 0:
            raise ValueError(
                f"`threats[{name!r}]` must have one radius, got one per row; evaluate at one radius and read "
                "`distance`."
            )
        # A number: a tensor could be written into.
        found[name] = LpBall(ball.p, float(ball.eps), ball.unit)
    return found
