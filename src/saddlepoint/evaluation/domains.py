"""Robust accuracy of several domains: each on its own, and all of them at once."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final
from urllib.parse import quote

import torch
from torch import Tensor, nn

from saddlepoint.calls import call
from saddlepoint.evaluation.attacks import OutOfTimeError
from saddlepoint.evaluation.pages import Ledger, Part, Stage, batches_of
from saddlepoint.evaluation.radii import smallest_radius
from saddlepoint.evaluation.results import DomainAccuracy
from saddlepoint.evaluation.robust import EvaluationProgress, ThreatLike, as_balls, robust_accuracy
from saddlepoint.evaluation.suites import Suite, attacks_for
from saddlepoint.evaluation.verdicts import judge
from saddlepoint.problems import (
    AbstractProblem,
    Ensemble,
    Model,
    Product,
    Transformed,
    check_eval_mode,
)
from saddlepoint.projections import LpBall
from saddlepoint.solver import Progress, attack
from saddlepoint.solver.evaluate import gradients_enabled
from saddlepoint.transforms import Transform

__all__ = ["domain_models", "robust_domains"]

_DESCENTS = 5  # of the min-max attack, as many as the quick suite takes against one domain
_ALL = (
    "+all"  # where the ledger keeps attacks on all domains; names of domains are quoted, "+" is not
)


def robust_domains(
    problem: AbstractProblem,
    threats: Mapping[str, ThreatLike],
    suite: Suite = "quick",
    *,
    every_attack: bool = False,
    batch_size: int = 128,
    budget: float | None = None,
    seed: int = 0,
    steps: int = 50,
    searches: int = 10,
    ledger: Ledger | None = None,
    callback: Callable[[EvaluationProgress], None] | None = None,
) -> DomainAccuracy:
    """Run a suite against each domain alone, then attack all domains at once, and count what stands.

    A domain alone is its model after its transform, and goes through `robust_accuracy`. All domains at once
    are attacked by the min-max `attack`; what was found against one domain is tried on the others too. Every
    verdict is one of `judge`. Then the smallest radius at which all domains fall is searched for every image.

    Args:
        problem: An `Ensemble`, `Transformed` or `Product` without random transforms.
        threats: Balls or `Threat`s by name; one radius each.
        suite: As in `robust_accuracy`.
        every_attack: Run every attack on every correctly classified image, for tables of single attacks.
        batch_size: Images at a time; our own attacks do not depend on it.
        budget: Seconds for each attack under each threat, and for each search of the smallest radii; what it
            cut short stands in `notes`.
        seed: Of everything random.
        steps: Of every descent of the min-max attack.
        searches: Halvings of the search: radii are found to 2 ** -searches of their bracket.
        ledger: Keeps finished batches. What it has already is not computed again.
        callback: Called before and after every batch.

    Returns:
        Accuracies, and the radii.

    Raises:
        ValueError: An argument is unusable, or the suite has no attack for a norm.
        ImportError: The suite needs a library that is not installed.

    Example:
        >>> def left(images):  # right as long as the first number is above 0.25
        ...     return torch.stack([images[:, 0], 0 * images[:, 0] + 0.25], dim=1)
        >>> def lower(images):  # right as long as the second number is above 0.25
        ...     return left(images[:, 1:])
        >>> x, y = torch.tensor([[0.4, 0.3], [0.9, 0.3]]), torch.tensor([0, 0])
        >>> problem = Ensemble([left, lower], x, y, names=["A", "B"])
        >>> result = robust_domains(problem, {"linf": LpBall(math.inf, 0.2)})
        >>> result.clean, result.union, result.joint
        (1.0, 0.0, {'linf': 0.5})
        >>> [round(radius, 2) for radius in result.eps_min["linf"].tolist()]
        [0.15, 0.65]
    """
    views = _checked(problem)
    for name, value in (("steps", steps), ("searches", searches)):
        if value < 0:
            raise ValueError(f"`{name}` must be >= 0, got {value}.")
    balls = as_balls(threats)
    alone = sum(len(attacks_for(suite, ball.p)) for ball in balls.values())
    before = alone * views.num_domains  # attacks on one domain
    stages = before + 2 * len(balls)
    models = domain_models(views)
    with gradients_enabled():
        per_domain = {
            name: robust_accuracy(
                model,
                views.x,
                views.labels[:, 0],
                balls,
                suite,
                every_attack=every_attack,
                batch_size=batch_size,
                budget=budget,
                seed=seed,
                ledger=_part(ledger, quote(name, safe=" ")),
                callback=_for_domain(callback, name, number * alone, stages),
            )
            for number, (name, model) in enumerate(models.items())
        }
        right = torch.stack([each.correct for each in per_domain.values()], dim=1)
        joint = _Joint(
            views, models, right, batch_size, budget, seed, steps, searches, ledger, callback
        )
        found: dict[str, _Found] = {}
        for number, (name, ball) in enumerate(balls.items()):
            where = EvaluationProgress(name, "", before + 2 * number, stages, 0, 0, 0, len(problem))
            candidates = [each.nearest[name] for each in per_domain.values()]
            found[name] = joint.run(ball, candidates, where)
    return DomainAccuracy(
        balls,
        per_domain,
        fooled={name: each.fooled for name, each in found.items()},
        broken={name: each.broken for name, each in found.items()},
        weights={name: each.weights for name, each in found.items()},
        eps_min={name: each.radii for name, each in found.items()},
        nearest={name: each.delta for name, each in found.items()},
        remarks=tuple(f"{name} {note}" for name, each in found.items() for note in each.notes),
    )


def _checked(problem: AbstractProblem) -> Ensemble | Transformed | Product:
    """The problem, or an error that says why its domains cannot be attacked one by one."""
    instead = "evaluate it with `attack` and `success_rates`"
    if not isinstance(problem, Ensemble | Transformed | Product):
        raise ValueError(
            "`problem` must be an Ensemble, Transformed or Product, whose domains look at one image, "
            f"got {type(problem).__name__}; {instead}."
        )
    if problem.random:
        raise ValueError(
            "`problem` must be deterministic, got random transforms, of which one draw decides nothing; "
            f"fix their parameters, or {instead}."
        )
    if len(set(problem.names)) < len(problem.names):
        raise ValueError(
            "`problem` must have domains of different names, got "
            f"{', '.join(problem.names)}; give it `names`."
        )
    check_eval_mode(problem.models)
    return problem


def domain_models(problem: Ensemble | Transformed | Product) -> dict[str, Model]:
    """Every domain as a model of its own, by name: its model after its transform.

    Example:
        >>> problem = Ensemble([nn.Identity().eval()], torch.rand(1, 2), torch.tensor([0]), names=["A"])
        >>> domain_models(problem)["A"](torch.tensor([[0.25, 0.5]]))
        tensor([[0.2500, 0.5000]])
    """
    return {
        name: _View(problem.models[m], problem.transforms[t])
        for name, (m, t) in zip(problem.names, problem.pairs, strict=True)
    }


@final
class _View(nn.Module):
    """One domain as a model: its model after its transform."""

    def __init__(self, model: Model, transform: Transform) -> None:
        super().__init__()
        self.model, self.transform = model, transform
        self.training = False  # not `eval`, which would reach into the model

    def forward(self, images: Tensor) -> Tensor:
        return call(self.model, self.transform(images))


def _part(ledger: Ledger | None, prefix: str) -> Ledger | None:
    return None if ledger is None else Part(ledger, prefix)


def _for_domain(
    callback: Callable[[EvaluationProgress], None] | None, name: str, offset: int, stages: int
) -> Callable[[EvaluationProgress], None] | None:
    """The callback, told which domain is attacked and how many attacks there are in all."""
    if callback is None:
        return None
    return lambda where: callback(
        replace(where, domain=name, index=offset + where.index, attacks=stages)
    )


@final
@dataclass
class _Found:
    """What was found against all domains under one threat; all on the CPU.

    Attributes:
        broken: (N, K), boolean.
        fooled: (N,), boolean.
        radii: Of the nearest perturbation that fools all domains, also outside the ball, (N,), float64.
        delta: The nearest one inside the ball, (N, ...).
        weights: (N, K).
        notes: What went wrong.
    """

    broken: Tensor
    fooled: Tensor
    radii: Tensor
    delta: Tensor
    weights: Tensor
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def none(problem: AbstractProblem, right: Tensor) -> _Found:
        fooled = ~right.any(dim=1)
        return _Found(
            broken=~right,
            fooled=fooled,
            radii=torch.where(fooled, 0.0, math.inf).double(),
            delta=problem.zeros().cpu(),
            weights=torch.full(right.shape, 1.0 / right.shape[1], dtype=problem.lower.dtype),
        )


_Run = Callable[[AbstractProblem, Tensor, Callable[[Progress], None]], dict[str, Tensor]]


@final
@dataclass(frozen=True)
class _Joint:
    """Attacks on all domains at once, batch by batch."""

    problem: Ensemble | Transformed | Product
    models: Mapping[str, Model]
    right: Tensor
    batch_size: int
    budget: float | None
    seed: int
    steps: int
    searches: int
    ledger: Ledger | None
    callback: Callable[[EvaluationProgress], None] | None

    def run(self, ball: LpBall, candidates: Sequence[Tensor], where: EvaluationProgress) -> _Found:
        """All about one threat; `candidates` are perturbations, (N, ...), that were found elsewhere."""
        found = _Found.none(self.problem, self.right)
        for delta in candidates:
            some = delta.flatten(1).any(dim=1).nonzero().flatten()
            for rows in batches_of(some, self.batch_size):
                self._judge(found, rows, delta[rows], ball)
                if ball.p != 0:
                    self._judge(found, rows, self._stretched(rows, delta[rows], ball), ball)
        self._minmax(found, ball, replace(where, attack="min-max"))
        self._radii(found, ball, replace(where, attack="eps_min", index=where.index + 1))
        return found

    def _stretched(self, rows: Tensor, delta: Tensor, ball: LpBall) -> Tensor:
        """Perturbations as long as the radius, in the box: at the boundary of one domain they fool no other."""
        here = rows.to(self.problem.x.device)
        scale = float(ball.eps) / ball.norm(delta)
        full = delta * scale.to(delta).reshape(-1, *(1 for _ in delta.shape[1:]))
        return full.to(self.problem.x).clamp(self.problem.lower[here], self.problem.upper[here])

    def _judge(self, found: _Found, rows: Tensor, delta: Tensor, ball: LpBall) -> None:
        """Look at one perturbation per row, (n, ...), with every domain."""
        here = rows.to(self.problem.x.device)
        x, y = self.problem.x[here], self.problem.labels[here, 0]
        images = x + delta.to(x)
        verdicts = [judge(model, x, y, images, ball) for model in self.models.values()]
        broken = torch.stack([verdict.broken for verdict in verdicts], dim=1)
        distance = torch.stack([verdict.distance for verdict in verdicts], dim=1).amax(dim=1)
        every = broken.all(dim=1)
        # Projections are in the ball up to rounding, and count as inside.
        distance = torch.where(every, distance.clamp_max(float(ball.eps)), distance)
        nearer = every & (distance < found.radii[rows])
        found.delta[rows[nearer]] = verdicts[0].delta[nearer]
        found.broken[rows] |= broken
        found.fooled[rows] |= every
        found.radii[rows] = torch.minimum(found.radii[rows], distance)

    def _minmax(self, found: _Found, ball: LpBall, where: EvaluationProgress) -> None:
        """The min-max attack in the ball."""

        def run(
            part: AbstractProblem, rows: Tensor, tick: Callable[[Progress], None]
        ) -> dict[str, Tensor]:
            result = attack(
                part,
                ball,
                steps=self.steps,
                restarts=_DESCENTS,
                batch_size=len(rows),
                seed=self.seed,
                callback=tick,
            ).finished()
            queries = result.num_forwards.sum().cpu() * part.num_domains
            return {
                "delta": result.delta.cpu(),
                "weights": result.weights.cpu(),
                "queries": queries,
            }

        for rows, tensors in self._batches(found, where, run):
            found.weights[rows] = tensors["weights"]
            self._judge(found, rows, tensors["delta"], ball)

    def _radii(self, found: _Found, ball: LpBall, where: EvaluationProgress) -> None:
        """The smallest radii; a row whose search was not run keeps the best that is known."""
        eps = float(ball.eps)
        # Inside the ball everything was tried that there is: what it withstood is not tried again.
        failed = torch.full_like(found.radii, eps).masked_fill(found.fooled, 0.0)
        known = found.radii.clone()

        def run(
            part: AbstractProblem, rows: Tensor, tick: Callable[[Progress], None]
        ) -> dict[str, Tensor]:
            radii = smallest_radius(
                part,
                ball.p,
                unit=ball.unit,
                failed=failed[rows],
                succeeded=known[rows],
                first=4 * eps if 0 < eps < math.inf else None,
                steps=self.steps,
                searches=self.searches,
                batch_size=len(rows),
                seed=self.seed,
                callback=tick,
            )
            return {"radius": radii}

        for rows, tensors in self._batches(found, where, run):
            found.radii[rows] = tensors["radius"]

    def _batches(
        self, found: _Found, where: EvaluationProgress, run: _Run
    ) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
        """Run something on all rows that a domain has right, batch by batch."""
        stage = Stage(_part(self.ledger, _ALL), self.budget)
        todo = self.right.any(dim=1).nonzero().flatten()
        done = 0

        def report(done: int) -> None:
            if self.callback is not None:
                standing = int((~found.fooled).sum())
                self.callback(replace(where, done=done, total=len(todo), standing=standing))

        for number, rows in enumerate(batches_of(todo, self.batch_size)):
            report(done)

            def batch(deadline: float | None, rows: Tensor = rows) -> dict[str, Tensor]:
                part = self.problem.take(rows.to(self.problem.x.device))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # as in `robust_accuracy`
                    return run(part, rows, _Clock(deadline))

            page = stage.page(f"{where.threat}/{where.attack}/{number}", rows, batch)
            if page is None:
                found.notes.append(
                    f"{where.attack}: {stage.reason} ({done} of {len(todo)} images attacked)"
                )
                break
            done += len(rows)
            yield rows, page.tensors
        if len(todo):
            report(len(todo))


@final
@dataclass(frozen=True)
class _Clock:
    """Stops an attack after an iterate when its time is over."""

    deadline: float | None

    def __call__(self, progress: Progress) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError
