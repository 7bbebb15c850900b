"""Robust accuracy of several domains: each on its own, and all of them at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final
from urllib.parse import quote

from torch import Tensor, nn

from saddlepoint.behind import keeping_buffers
from saddlepoint.calls import call
from saddlepoint.counts import check_seed
from saddlepoint.evaluation.domain_results import DomainAccuracy
from saddlepoint.evaluation.failures import AttackFailedError, OnFailure, check_on_failure
from saddlepoint.evaluation.given import BallLike, as_balls, check_limits
from saddlepoint.evaluation.joint import Found, Joint
from saddlepoint.evaluation.ledger import Ledger, gather_of, part_of
from saddlepoint.evaluation.results import RobustAccuracy
from saddlepoint.evaluation.robust import accuracy_unchecked, check_gradients, inspect_model
from saddlepoint.evaluation.streamed import streaming_problems
from saddlepoint.evaluation.suites import Suite, attacks_for
from saddlepoint.evaluation.verdicts import clean_answers
from saddlepoint.evaluation.work import EvaluationProgress
from saddlepoint.precision import Precision, Precisions
from saddlepoint.problems import (
    AbstractProblem,
    Ensemble,
    Model,
    Product,
    Transformed,
    check_eval_mode,
    check_targets,
)
from saddlepoint.projections import LpBall
from saddlepoint.rounding import full_precision
from saddlepoint.solver.domain_losses import gradients_enabled
from saddlepoint.solver.inspection import Look
from saddlepoint.solver.lowering import choose_precisions
from saddlepoint.transforms import Transform

__all__ = ["domain_models", "domains_unchecked", "robust_domains"]


@streaming_problems
def robust_domains(
    problem: AbstractProblem | Iterable[AbstractProblem],
    threats: Mapping[str, BallLike],
    suite: Suite = "quick",
    *,
    on_failure: OnFailure = "raise",
    every_attack: bool = False,
    batch_size: int = 128,
    budget: float | None = None,
    seed: int = 0,
    steps: int = 50,
    searches: int = 10,
    precision: Precision | Sequence[Precision] = "float32",
    ledger: Ledger | None = None,
    progress: bool = False,
    callback: Callable[[EvaluationProgress], None] | None = None,
) -> DomainAccuracy:
    """Run a suite against each domain alone, then attack all domains at once, and count the images still right.

    A domain alone is its model after its transform, and goes through `robust_accuracy`. All domains at once
    are attacked by the min-max `attack`, with as many restarts as suite "quick" takes against one domain; what
    was found against one domain is tried on the others too. Every verdict is one of `judge_domains`. Then the
    smallest radius at which all domains fall is searched for every image.

    Args:
        problem: An `Ensemble`, `Transformed` or `Product` without random transforms. Or several with the same
            domains, one after the other, for more images than fit into memory; the result is then without
            `nearest`: `(Ensemble(models, x, y) for x, y in saddlepoint.data.batches(loader, 512))`.
        threats: Balls or `Threat`s by name; one radius each.
        suite: As in `robust_accuracy`.
        on_failure: What becomes of an attack that raises, on one domain or on all, as in `robust_accuracy`.
        every_attack: Run every attack on every correctly classified image, for tables of single attacks.
        batch_size: Images at a time; our own attacks do not depend on it.
        budget: Seconds for each attack under each threat, and for each search of the smallest radii; what it
            cut short is in `notes`; numbers are upper bounds, named in `at_most`, where an attack did not reach
            every image.
        seed: Of everything random.
        steps: Of every restart of the min-max attack.
        searches: Halvings of the search: radii are found to 2 ** -searches of their bracket.
        precision: As in `robust_accuracy`, one word for all models or one for each.
        ledger: Keeps finished batches. What it has already is not computed again. Several processes that share
            a `SharedLedger` divide the batches; the result is that of one.
        progress: Whether to show a bar for the attack under way, on stderr (needs rich).
        callback: Called before and after every batch.

    Returns:
        Accuracies, and the radii.

    Raises:
        ValueError: An argument is unusable, or the suite has no attack for a norm.
        AttackFailedError: An attack raised, and `on_failure` is "raise".
        ImportError: The suite needs a library that is not installed.

    Example:
        >>> import torch
        >>> def left(images):  # right as long as the first number is above 0.25
        ...     return torch.stack([images[:, 0], 0 * images[:, 0] + 0.25], dim=1)
        >>> def lower(images):  # right as long as the second number is above 0.25
        ...     return left(images[:, 1:])
        >>> x, y = torch.tensor([[0.4, 0.3], [0.9, 0.3]]), torch.tensor([0, 0])
        >>> problem = Ensemble([left, lower], x, y, names=["A", "B"])
        >>> result = robust_domains(problem, {"linf": LpBall(float("inf"), 0.2)})
        >>> result.clean, result.union, result.joint
        (1.0, 0.0, {'linf': 0.5})
        >>> [round(radius, 2) for radius in result.eps_min["linf"].tolist()]
        [0.15, 0.65]
    """
    del progress  # by `streaming_problems`, once for all problems
    views = _checked(problem)
    check_gradients(views)
    check_on_failure(on_failure)
    check_limits(batch_size, budget)
    seed = check_seed(seed)
    for name, value in (("steps", steps), ("searches", searches)):
        if value < 0:
            raise ValueError(f"`{name}` must be >= 0, got {value}.")
    balls = as_balls(threats, views.x.shape[1:], stacklevel=5)  # above `streaming_problems`
    with full_precision(), gradients_enabled(), keeping_buffers(views.models):
        right = clean_answers(views, batch_size).cpu()
        looks = [
            inspect_model(model, views.x, views.truth[:, k], right[:, k], balls, suite)
            for k, model in enumerate(domain_models(views).values())
        ]
        precisions = choose_precisions(views, precision, gather_of(ledger))
    for name, seen in zip(views.names, looks, strict=True):
        for fault in seen.faults:
            warnings.warn(f"{name}: {fault}", stacklevel=4)
    every = Look(views.num_domains, sum(seen.row_bytes for seen in looks), ())
    found = domains_unchecked(
        views,
        balls,
        suite,
        right=right,
        on_failure=on_failure,
        every_attack=every_attack,
        batch_size=batch_size,
        accumulate=every.accumulate,
        budget=budget,
        seed=seed,
        steps=steps,
        searches=searches,
        precisions=precisions,
        ledger=ledger,
        callback=callback,
    )
    return replace(found, problem=views)


def domains_unchecked(
    views: Ensemble | Transformed | Product,
    balls: Mapping[str, LpBall],
    suite: Suite,
    *,
    right: Tensor,
    on_failure: OnFailure,
    every_attack: bool,
    batch_size: int,
    accumulate: bool,
    budget: float | None,
    seed: int,
    precisions: Precisions,
    ledger: Ledger | None,
    callback: Callable[[EvaluationProgress], None] | None,
    steps: int = 50,
    searches: int = 10,
) -> DomainAccuracy:
    """`robust_domains` for callers who have checked the arguments and looked at the problem.

    Args as there, but for `right`, which domains have which images right, (N, K), see `clean_answers`,
    `accumulate`, as in `attack`, and `precisions`, from `choose_precisions`.
    """
    alone = sum(len(attacks_for(suite, ball.p)) for ball in balls.values())
    before, per_domain = alone * views.num_domains, dict[str, RobustAccuracy]()
    stages = before + 2 * len(balls)
    with full_precision(), gradients_enabled(), keeping_buffers(views.models):
        for number, (name, model) in enumerate(domain_models(views).items()):
            try:
                per_domain[name] = accuracy_unchecked(
                    model,
                    *(views.x, views.truth[:, number]),
                    balls,
                    suite,
                    correct=right[:, number],
                    on_failure=on_failure,
                    every_attack=every_attack,
                    batch_size=batch_size,
                    budget=budget,
                    seed=seed,
                    rows=views.rows.cpu(),
                    precisions=precisions.only(views.model_of(number)),
                    ledger=part_of(ledger, quote(name, safe=" ")),
                    callback=_for_domain(callback, name, number * alone, stages),
                )
            except AttackFailedError as error:
                raise AttackFailedError(error.failure.of(name)) from error.__cause__
        how = (on_failure, batch_size, accumulate, budget, seed, steps, searches, ledger, callback)
        joint, found = Joint(views, right, *how, precisions), dict[str, Found]()
        for number, (name, ball) in enumerate(balls.items()):
            where = EvaluationProgress(name, "", before + 2 * number, stages, 0, 0, 0, len(views))
            candidates = [each.nearest[name] for each in per_domain.values()]
            found[name] = joint.run(ball, candidates, where)
    return DomainAccuracy(
        dict(balls),
        per_domain,
        **_tables(found),
        remarks=tuple(f"{name} {note}" for name, each in found.items() for note in each.notes),
        failed=tuple(failure for each in found.values() for failure in each.failures),
        precision=precisions.names,
    )


def _tables(found: Mapping[str, Found]) -> dict[str, Any]:
    """What was found against all domains, table by table and threat by threat."""
    names = {"eps_min": "radii", "nearest": "delta"}
    same = ("fooled", "broken", "weights", "missed", "unsearched")
    return {
        name: {threat: getattr(each, own) for threat, each in found.items()}
        for name, own in (names | dict(zip(same, same, strict=True))).items()
    }


def _checked(problem: object) -> Ensemble | Transformed | Product:
    """The problem, or an error that says why its domains cannot be attacked one by one."""
    instead = "evaluate it with `attack` and `success_rates`"
    if not isinstance(problem, Ensemble | Transformed | Product):
        raise ValueError(
            "`problem` must be an Ensemble, Transformed or Product, whose domains look at one image, "
            f"got {type(problem).__name__}; {instead}."
        )
    check_targets(problem, targeted=False)
    if problem.random:
        raise ValueError(
            "`problem` must be deterministic, got random transforms, of which one draw decides nothing; "
            f"fix their parameters, or {instead}."
        )
    check_eval_mode(problem.models)
    return problem


def domain_models(problem: Ensemble | Transformed | Product) -> dict[str, Model]:
    """Every domain as a model of its own, by name: its model after its transform.

    Example:
        >>> import torch
        >>> problem = Ensemble([nn.Identity().eval()], torch.rand(1, 2), torch.tensor([0]), names=["A"])
        >>> domain_models(problem)["A"](torch.tensor([[0.25, 0.5]]))
        tensor([[0.2500, 0.5000]])
    """
    return {
        name: _Domain(problem.models[m], problem.transforms[t])
        for name, (m, t) in zip(problem.names, problem.pairs, strict=True)
    }


@final
class _Domain(nn.Module):
    """One domain as a model: its model after its transform."""

    def __init__(self, model: Model, transform: Transform) -> None:
        super().__init__()
        self.model, self.transform = model, transform
        self.training = False  # not `eval`, which would reach into the model

    def forward(self, images: Tensor) -> Tensor:
        return call(self.model, self.transform(images))


def _for_domain(
    callback: Callable[[EvaluationProgress], None] | None, name: str, offset: int, stages: int
) -> Callable[[EvaluationProgress], None] | None:
    """The callback, told which domain is attacked and how many attacks there are in all."""
    if callback is None:
        return None
    return lambda where: callback(
        replace(where, domain=name, index=offset + where.index, attacks=stages)
    )
