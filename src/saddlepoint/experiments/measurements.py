"""What is measured besides success rates: distances of images, residuals of iterates, time."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from saddlepoint.evaluation import smallest_radius
from saddlepoint.evaluation.ledger import batches_of
from saddlepoint.evaluation.other_libraries import MissingLibraryError, library
from saddlepoint.evaluation.verdicts import is_right
from saddlepoint.experiments.plan import Measurement, Method
from saddlepoint.experiments.stationarity import log_log_slope, residuals
from saddlepoint.models import measure as measure_network
from saddlepoint.problems import AbstractProblem, Ensemble, Universal
from saddlepoint.rules import MinMax
from saddlepoint.runs import Metrics, build, rule_words
from saddlepoint.solver.inspection import look

__all__ = [
    "FIT_FROM",
    "RESULTS",
    "Distances",
    "MeasureSettings",
    "MeasuredMetrics",
    "NetworkAccuracy",
    "Residuals",
    "Tell",
    "Times",
    "carlini_wagner_distance",
    "measure",
]

FIT_FROM = 10
"""The slope of the convergence plot is fitted from this step on."""

_ROWS = 64  # rows that are iterated together

Tell = Callable[[float], None]
"""Receives the fraction that is done."""


Table = tuple[tuple[float | None, ...], ...]
"""(B, K) numbers; None where there is none."""


@final
@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """What decides a measurement: what is measured, how, on how many images, and the seed of groups."""

    measurement: Mapping[str, object]
    method: str
    limit: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class MeasuredMetrics(Metrics):
    """What a measurement came to."""

    about: ClassVar[str] = "a measurement"


@final
@dataclass(frozen=True, kw_only=True)
class Distances(MeasuredMetrics):
    """Of every image of every group, (B, K): its label, and how far it has to be moved alone.

    Attributes:
        labels: Classes.
        distance: l2 length of the Carlini-Wagner perturbation.
        eps_min: Smallest linf radius in which the image is fooled.
        note: Why there are no distances; empty if there are.
    """

    labels: tuple[tuple[int, ...], ...]
    distance: Table
    eps_min: Table
    note: str


@final
@dataclass(frozen=True, kw_only=True)
class Residuals(MeasuredMetrics):
    """Squared residuals of iterates, means over rows.

    Attributes:
        steps: T = 1, 2, ...
        best: S(T), the smallest residual so far.
        delta: Its part of the perturbation at every step; `weights` that of the weights.
        slope: Of log S(T) against log T; None where it cannot be fitted.
    """

    steps: tuple[int, ...]
    best: tuple[float, ...]
    delta: tuple[float, ...]
    weights: tuple[float, ...]
    slope: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Times(MeasuredMetrics):
    """Of every strategy microseconds per evaluation, and evaluations per row.

    `ratio` is the time of the last strategy over that of the first; `low` and `high` are the smallest and the
    largest of the repeats.
    """

    microseconds: Mapping[str, float]
    evaluations: Mapping[str, float]
    ratio: float
    low: float
    high: float


@final
@dataclass(frozen=True, kw_only=True)
class NetworkAccuracy(MeasuredMetrics):
    """Of a network, in percent of the images.

    Attributes:
        clean: Without attack.
        fgsm: After an FGSM step away from the true class.
        fgsm_predicted: After one away from the class that the network predicts.
    """

    clean: float
    fgsm: float
    fgsm_predicted: float


RESULTS: Mapping[str, type[MeasuredMetrics]] = {
    "distances": Distances,
    "residuals": Residuals,
    "times": Times,
    "accuracy": NetworkAccuracy,
}
"""What every kind of measurement comes to."""


def measure(
    measurement: Measurement, problem: AbstractProblem, method: Method, seed: int, tell: Tell
) -> MeasuredMetrics:
    """Carry out a measurement.

    Args:
        measurement: What to measure.
        problem: Its block's problem.
        method: How to attack, where time is measured; other measurements do not depend on it.
        seed: Of everything random.
        tell: Called with the fraction done.
    """
    if measurement.what == "distances":
        return _distances(measurement, problem, seed, tell)
    if measurement.what == "residuals":
        return _residuals(measurement, problem, tell)
    if measurement.what == "accuracy":
        return _accuracy(measurement, problem)
    return _times(measurement, problem, method, seed, tell)


def _distances(
    measurement: Measurement, problem: AbstractProblem, seed: int, tell: Tell
) -> Distances:
    if not isinstance(problem, Universal):
        raise TypeError(f"`problem` must be Universal, got {type(problem).__name__}.")
    network: Any = problem.models[0]
    x, y = problem.groups.flatten(0, 1), problem.labels.flatten()
    alone, steps = Ensemble([network], x, y), measurement.block.settings.steps
    radii = smallest_radius(alone, math.inf, steps=steps, seed=seed)
    tell(0.2)
    note = ""
    try:
        distance = carlini_wagner_distance(
            network, x, y, searches=measurement.searches, steps=measurement.inner_steps
        )
    except MissingLibraryError as error:
        distance, note = torch.full_like(radii, math.nan), str(error)
    shape = problem.labels.shape
    return Distances(
        labels=tuple(tuple(row) for row in problem.labels.tolist()),
        distance=_table(distance.reshape(shape)),
        eps_min=_table(radii.reshape(shape)),
        note=note,
    )


def carlini_wagner_distance(
    model: nn.Module, x: Tensor, y: Tensor, *, searches: int = 9, steps: int = 300
) -> Tensor:
    """l2 distance from each image to the adversarial one that the Carlini-Wagner attack finds.

    What foolbox returns is judged again here: the image must be in [0, 1] and misclassified when we evaluate
    it, and the distance is the one we compute. Its answer after a failure is not an adversarial image.

    Args:
        model: In evaluation mode.
        x: Images, (N, ...), in [0, 1].
        y: Labels, (N,).
        searches: Binary search steps over the trade-off constant.
        steps: Steps of the optimiser for each constant.

    Returns:
        Distances, (N,), float64: 0 for images that are misclassified as they are, inf where the attack fails.

    Raises:
        MissingLibraryError: foolbox is not installed.
    """
    foolbox = library("foolbox", "the Carlini-Wagner distance")
    distance = torch.zeros(len(x), dtype=torch.float64)
    right = is_right(model, x, y).nonzero().flatten()
    for rows in batches_of(right, 256):
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # foolbox's own, about torch and eagerpy
            wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
            attacker = foolbox.attacks.L2CarliniWagnerAttack(
                binary_search_steps=searches, steps=steps
            )
            _, found, _ = attacker(wrapped, x[rows], y[rows], epsilons=None)
        found = found.detach().clamp(0, 1)
        length = (found - x[rows]).flatten(1).double().norm(dim=1).cpu()
        wrong = ~is_right(model, found, y[rows]).cpu()
        distance[rows.cpu()] = torch.where(wrong, length, math.inf)
    return distance


def _residuals(measurement: Measurement, problem: AbstractProblem, tell: Tell) -> Residuals:
    settings = measurement.block.settings
    ball, step_size = build.ball_of(settings).ball, settings.step_size
    rule = _only_rule(measurement)
    assert step_size is not None  # blocks are settings of `apgda`
    parts = []
    for rows in torch.arange(len(problem)).split(_ROWS):
        part = problem.take(rows)
        parts.append(residuals(part, ball, rule, steps=settings.steps, step_size=step_size))
        tell((int(rows[-1]) + 1) / len(problem))
    squares = torch.cat(parts, dim=1)
    best = squares.sum(dim=-1).cummin(dim=0).values.mean(dim=1).tolist()
    steps = range(1, len(best) + 1)
    return Residuals(
        steps=tuple(steps),
        best=tuple(best),
        delta=tuple(squares[..., 0].mean(dim=1).tolist()),
        weights=tuple(squares[..., 1].mean(dim=1).tolist()),
        slope=_number(log_log_slope(steps[FIT_FROM - 1 :], best[FIT_FROM - 1 :])),
    )


def _accuracy(measurement: Measurement, problem: AbstractProblem) -> NetworkAccuracy:
    if not isinstance(problem, Ensemble):
        raise TypeError(f"`problem` must be Ensemble, got {type(problem).__name__}.")
    network: Any = problem.models[0]
    x, y, eps = problem.x, problem.truth[:, 0], measurement.block.settings.eps
    assert eps is not None  # blocks have the paper's radius
    found = measure_network(network, x, y, eps=eps)
    other = measure_network(network, x, y, eps=eps, attacked="predicted")
    return NetworkAccuracy(
        clean=round(100 * found.clean, 4),
        fgsm=round(100 * found.fgsm, 4),
        fgsm_predicted=round(100 * other.fgsm, 4),
    )


def _times(
    measurement: Measurement, problem: AbstractProblem, method: Method, seed: int, tell: Tell
) -> Times:
    """Strategies take turns, so that what disturbs the machine disturbs all of them."""
    block = measurement.block
    seconds: dict[str, list[float]] = {row.strategy.key: [] for row in block.rows}
    evaluations: dict[str, float] = {}
    rounds = measurement.repeats + 1  # the first warms up and is not counted
    seen = look(problem)
    for repeat in range(rounds):
        for row in block.rows:
            strategy = row.strategy
            if not isinstance(strategy.rule, str):
                raise TypeError(f"`rule` must be a weight rule here, got {strategy.rule}.")
            rule = rule_words.rule(strategy.rule)
            settings = block.row_settings(strategy, strategy.rule, method=method, seed=seed)
            solve = build.solver_of(settings, seen, problem)
            began = time.perf_counter()
            result = solve(problem, rule, lambda _: None)
            spent = time.perf_counter() - began
            evaluations[strategy.key] = float(result.num_forwards.sum())
            if repeat:
                seconds[strategy.key].append(spent / evaluations[strategy.key])
        tell((repeat + 1) / rounds)
    first, last = block.rows[0].strategy.key, block.rows[-1].strategy.key
    ratios = [b / a for a, b in zip(seconds[first], seconds[last], strict=True)]
    return Times(
        microseconds={key: 1e6 * median(values) for key, values in seconds.items()},
        evaluations={key: value / len(problem) for key, value in evaluations.items()},
        ratio=median(ratios),
        low=min(ratios),
        high=max(ratios),
    )


def _only_rule(measurement: Measurement) -> MinMax:
    (row,) = measurement.block.rows
    rule = rule_words.rule(str(row.strategy.rule))
    if not isinstance(rule, MinMax):
        raise TypeError(f"`rule` must be MinMax for residuals, got {rule}.")
    return rule


def _table(values: Tensor) -> Table:
    return tuple(tuple(_number(value) for value in row) for row in values.tolist())


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
