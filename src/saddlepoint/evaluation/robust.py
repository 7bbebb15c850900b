"""How many images a model still classifies correctly under every attack of a suite."""

from __future__ import annotations

import math
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from saddlepoint.evaluation.attacks import AbstractAttack, OutOfTimeError, Target, Watched
from saddlepoint.evaluation.rates import wilson
from saddlepoint.evaluation.suites import Suite, attacks_for
from saddlepoint.evaluation.verdicts import is_right, judge
from saddlepoint.problems import Model, check_eval_mode
from saddlepoint.problems.inputs import check_images, check_labels, plain
from saddlepoint.projections import LpBall

__all__ = [
    "EvaluationProgress",
    "Ledger",
    "Outcome",
    "Page",
    "RobustAccuracy",
    "Status",
    "ThreatLike",
    "robust_accuracy",
]

Status = Literal["complete", "cut short", "failed", "not needed"]


class _HasBall(Protocol):
    @property
    def ball(self) -> LpBall: ...


ThreatLike = LpBall | _HasBall
"""A ball, or a `Threat`, which has one."""


@final
@dataclass(frozen=True)
class Page:
    """What one batch of one attack gave: tensors by name, and the seconds it took."""

    tensors: Mapping[str, Tensor]
    seconds: float


class Ledger(Protocol):
    """Where finished batches are kept; a folder on disk makes an evaluation resumable."""

    def get(self, key: str) -> Page | None:
        """What was kept under the key, or None."""
        ...

    def put(self, key: str, page: Page) -> None:
        """Keep it, whole or not at all."""
        ...


@final
@dataclass(frozen=True)
class Outcome:
    """What one attack did under one threat.

    Attributes:
        threat: Name of the threat.
        attack: Name of the attack.
        attacked: Images it was run on to the end, (N,), boolean.
        broken: Images it broke, (N,), boolean.
        distance: Of the nearest misclassified image it found, also outside the ball; inf where none; (N,).
        seconds: Time it took.
        queries: Images shown to the model.
        status: "cut short" by the time budget, "failed" with an error, "not needed" if no image was left.
        notes: What a reader of the numbers has to know.
        minimal: Whether the attack looks for the nearest adversarial image, whatever the radius.
    """

    threat: str
    attack: str
    attacked: Tensor
    broken: Tensor
    distance: Tensor
    seconds: float = 0.0
    queries: int = 0
    status: Status = "complete"
    notes: tuple[str, ...] = ()
    minimal: bool = False


@final
@dataclass(frozen=True)
class RobustAccuracy:
    """Accuracy without attack, under each threat, and under all of them, as fractions.

    Attributes:
        balls: The threats, by name.
        correct: Classified correctly without attack, (N,), boolean.
        outcomes: One per threat and attack, in the order they were run.
        nearest: For every threat the perturbation of the nearest misclassified image found, (N, ...); zero
            where there is none.

    Example:
        >>> correct = torch.tensor([True, True, True, False])
        >>> broken = torch.tensor([True, False, False, False])
        >>> outcome = Outcome("linf", "pgd", correct, broken, torch.full((4,), 0.1))
        >>> result = RobustAccuracy({"linf": LpBall(math.inf, 0.3)}, correct, (outcome,))
        >>> result.clean, result.per_threat, result.union
        (0.75, {'linf': 0.5}, 0.5)
    """

    balls: Mapping[str, LpBall]
    correct: Tensor
    outcomes: tuple[Outcome, ...]
    nearest: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """N, the number of images."""
        return len(self.correct)

    @property
    def clean(self) -> float:
        """Accuracy without attack."""
        return _share(self.correct)

    @property
    def per_threat(self) -> dict[str, float]:
        """Accuracy under all attacks of each threat."""
        return {name: _share(self.standing(name)) for name in self.balls}

    @property
    def union(self) -> float:
        """Accuracy under all attacks of all threats."""
        return _share(self.standing())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        return tuple(
            f"{each.threat} {each.attack}: {note}" for each in self.outcomes for note in each.notes
        )

    def standing(self, threat: str | None = None) -> Tensor:
        """Images classified correctly without attack and under all attacks of a threat, or of all, (N,)."""
        table = self.correct.clone()
        for each in self.outcomes:
            if threat in (None, each.threat):
                table &= ~each.broken
        return table

    def distance(self, threat: str) -> Tensor:
        """Distance to the nearest misclassified image found: 0 if it is the image itself, inf if none; (N,)."""
        nearest = torch.where(self.correct, math.inf, 0.0).double()
        for each in self.outcomes:
            if each.threat == threat:
                nearest = torch.minimum(nearest, each.distance.double())
        return nearest

    def interval(self, threat: str | None = None, level: float = 0.95) -> tuple[float, float]:
        """Wilson score interval of the accuracy under a threat, or under all."""
        return wilson(int(self.standing(threat).sum()), self.count, level)


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
    """

    threat: str
    attack: str
    index: int
    attacks: int
    done: int
    total: int
    standing: int
    images: int


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
    in `notes`, and the others go on.

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
    check_images("x", x, 2)
    check_labels("y", y, (x.shape[0],))
    check_eval_mode([model])
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be >= 1, got {batch_size}.")
    if budget is not None and not budget > 0:
        raise ValueError(f"`budget` must be positive seconds, or None, got {budget}.")
    balls = _balls(threats)
    plan = {name: attacks_for(suite, ball.p) for name, ball in balls.items()}
    x = plain(x)
    evaluation = _Evaluation(model, x, y, seed, batch_size, budget, ledger, every_attack)
    correct = is_right(model, x, y, batch_size).cpu()
    outcomes: list[Outcome] = []
    nearest: dict[str, Tensor] = {}
    index, total = 0, sum(map(len, plan.values()))
    for name, ball in balls.items():
        standing, best = correct.clone(), _Nearest.none(x)
        for attack in plan[name]:
            where = EvaluationProgress(
                name, attack.name, index, total, 0, 0, int(standing.sum()), len(x)
            )
            rows = correct if every_attack else standing
            outcome = evaluation.run(name, ball, attack, rows, best, where, callback)
            outcomes.append(outcome)
            standing &= ~outcome.broken
            index += 1
        nearest[name] = best.delta
    return RobustAccuracy(balls, correct, tuple(outcomes), nearest)


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
@dataclass(frozen=True)
class _Evaluation:
    model: Model
    x: Tensor
    y: Tensor
    seed: int
    batch_size: int
    budget: float | None
    ledger: Ledger | None
    every_attack: bool

    def run(
        self,
        threat: str,
        ball: LpBall,
        attack: AbstractAttack,
        todo: Tensor,
        nearest: _Nearest,
        where: EvaluationProgress,
        callback: Callable[[EvaluationProgress], None] | None,
    ) -> Outcome:
        """One attack under one threat, restart by restart and batch by batch."""
        report = callback or (lambda _: None)
        none = torch.zeros_like(todo)
        never = torch.full((len(todo),), math.inf, dtype=torch.float64)
        result = Outcome(threat, attack.name, none, none, never, minimal=attack.minimal)
        if not bool(todo.any()):
            return replace(result, status="not needed")
        attacked, broken, distance = none.clone(), none.clone(), never.clone()
        seconds, queries, outside, unusable = 0.0, 0, 0, 0
        status: Status = "complete"
        notes: list[str] = []
        total, standing = int(todo.sum()), where.standing
        for restart in range(attack.restarts):
            left = (todo & ~broken).nonzero().flatten()
            for number, rows in enumerate(left.split(self.batch_size)):
                begun = total * restart + (total - len(left)) + number * self.batch_size
                report(
                    replace(
                        where,
                        done=begun,
                        total=total * attack.restarts,
                        standing=standing - int(broken.sum()),
                    )
                )
                key = f"{threat}/{attack.name}/{restart}/{number}"
                page = self._kept(key, rows)
                if page is None:
                    remaining = None if self.budget is None else self.budget - seconds
                    try:
                        page = self._batch(key, ball, attack, rows, restart, remaining)
                    except Exception as error:  # other libraries may raise anything
                        status = "failed"
                        notes.append(
                            f"stopped by {type(error).__name__}: {_one_line(error)} "
                            f"({_of(attacked, todo)} images attacked)"
                        )
                        break
                    if self.ledger is not None:
                        self.ledger.put(key, page)
                seconds += page.seconds
                queries += int(page.tensors["queries"])
                if not bool(page.tensors["finished"]):
                    status = "cut short"
                    again = f", restart {restart + 1} of {attack.restarts}" if restart else ""
                    notes.append(
                        f"cut short by the budget of {self.budget:g} s "
                        f"({_of(attacked, todo)} images attacked{again})"
                    )
                    break
                outside += int(page.tensors["outside"])
                unusable += int(page.tensors["unusable"])
                nearest.offer(page)
                attacked[rows] = True
                broken[rows] |= page.tensors["broken"]
                distance[rows] = torch.minimum(distance[rows], page.tensors["distance"])
            if status != "complete":
                break
        if outside and not attack.minimal:
            notes.append(f"{outside} candidates outside ball or box were discarded")
        if unusable:
            notes.append(f"{unusable} candidates were not numbers and were discarded")
        report(
            replace(
                where,
                done=total * attack.restarts,
                total=total * attack.restarts,
                standing=standing - int(broken.sum()),
            )
        )
        return replace(
            result,
            attacked=attacked,
            broken=broken,
            distance=distance,
            seconds=seconds,
            queries=queries,
            status=status,
            notes=tuple(notes),
        )

    def _kept(self, key: str, rows: Tensor) -> Page | None:
        """What the ledger has of a batch, if it is about the same images."""
        page = None if self.ledger is None else self.ledger.get(key)
        return page if page is not None and torch.equal(page.tensors["rows"], rows) else None

    def _batch(
        self,
        key: str,
        ball: LpBall,
        attack: AbstractAttack,
        rows: Tensor,
        restart: int,
        remaining: float | None,
    ) -> Page:
        began = time.monotonic()
        here = rows.to(self.x.device)
        x, y = self.x[here], self.y.to(self.x.device)[here]
        watched = Watched(self.model)
        watched.deadline = None if remaining is None else began + remaining
        target = Target(watched, x.clone(), y.clone(), rows, ball, self.seed, restart)
        tensors = {"rows": rows, "finished": torch.tensor(False)}
        try:
            with (
                torch.random.fork_rng(),
                torch.enable_grad(),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")  # other libraries', about what they import and call
                torch.manual_seed(zlib.crc32(f"{self.seed}/{key}".encode()))
                candidates = attack.run(target)
            verdict = judge(self.model, x, y, candidates, ball)
            found = verdict.distance.isfinite()
            delta = torch.zeros_like(x).cpu()
            delta[found] = (candidates.detach().to(x).cpu() - x.cpu())[found]
            tensors |= {
                "finished": torch.tensor(True),
                "broken": verdict.broken,
                "distance": verdict.distance,
                "outside": verdict.outside.sum(),
                "unusable": verdict.unusable.sum(),
                "delta": delta,
            }
        except OutOfTimeError:
            pass
        tensors["queries"] = torch.tensor(watched.queries)
        return Page(tensors, time.monotonic() - began)


def _balls(threats: Mapping[str, ThreatLike]) -> dict[str, LpBall]:
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
        found[name] = ball
    return found


def _of(some: Tensor, every: Tensor) -> str:
    return f"{int(some.sum())} of {int(every.sum())}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _share(table: Tensor) -> float:
    return table.double().mean().item()
