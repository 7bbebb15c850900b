"""Checks of what a user hands to a solver, before anything is computed."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.counts import check_count
from saddlepoint.losses import Loss
from saddlepoint.problems import AbstractProblem, check_targets
from saddlepoint.projections import AbstractSet
from saddlepoint.rules import AbstractWeightRule

__all__ = ["check_arguments", "check_budget", "check_differentiable"]


def check_arguments(
    problem: AbstractProblem,
    ball: AbstractSet,
    rule: AbstractWeightRule,
    loss: Loss,
    steps: int,
    start: Tensor | None,
    targeted: bool,
    batch_size: int | None,
) -> None:
    """Refuse what no solver can work with; called by the public functions alone, to warn where they are called.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: An argument is unusable, or does not fit the others.
    """
    _check_kinds(problem, ball, rule, loss)
    check_count("steps", steps, 0)
    if batch_size is not None:
        check_count("batch_size", batch_size, 1)
    check_targets(problem, targeted)
    shape = tuple(problem.lower.shape)
    if start is not None and not hasattr(start, "shape"):
        raise TypeError(
            f"`start` must be a tensor of the shape of delta, {shape}, got {type(start).__name__}."
        )
    if start is not None and tuple(start.shape) != shape:
        raise ValueError(
            f"`start` must have the shape of delta, {shape}, got {tuple(start.shape)}."
        )
    if start is not None and not bool(torch.as_tensor(start).isfinite().all()):
        raise ValueError("`start` must be finite, got NaN or inf; leave it out to start at zero.")
    eps = ball.ball.eps
    if isinstance(eps, Tensor) and eps.dim() == 1 and len(eps) != len(problem):
        raise ValueError(
            f"`ball.eps` must have one radius per row, ({len(problem)},), got ({len(eps)},)."
        )
    ball.box(problem.lower, problem.upper)  # a mask of another size is refused
    if bool((problem.lower >= -1).all() & (problem.upper <= 1).all()):  # images in [0, 1]
        ball.check(shape[1:], stacklevel=4)


def check_budget(steps: int | None, restarts: int | None, evaluations: int | None) -> None:
    """Refuse a number of evaluations beside what would follow from it, or too small a one.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is below one, or `steps` or `restarts` is given too.
    """
    if evaluations is None:
        return
    check_count("evaluations", evaluations, 1)
    for name, value in (("steps", steps), ("restarts", restarts)):
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out where `evaluations` is given, got {value}; steps and restarts "
                f"follow from evaluations={evaluations}."
            )


def check_differentiable(problem: object) -> None:
    """Refuse domains without gradient, for those who follow nothing else.

    Raises:
        ValueError: There are some; names them.
    """
    if not isinstance(problem, AbstractProblem):
        return  # refused elsewhere
    if blind := problem.without_gradient:
        named = ", ".join(f"domain {k} ({problem.names[k]})" for k in blind)
        raise ValueError(
            f"`gradient` must say how to do without gradients, which {named} does not have; write "
            "attack(..., gradient=saddlepoint.estimated(queries=5000)), or searched(queries=5000)."
        )


def _check_kinds(problem: object, ball: object, rule: object, loss: object) -> None:
    """Refuse names and numbers in place of the things they mean."""
    kinds = "an Ensemble, Universal, Transformed, Product or Patched"
    fits = isinstance(problem, AbstractProblem)
    _check_kind("problem", problem, fits, kinds, "Ensemble([model], x, y)")
    _check_kind("ball", ball, isinstance(ball, AbstractSet), "an LpBall or a Patch", "linf(0.2)")
    fits = isinstance(rule, AbstractWeightRule)
    _check_kind("rule", rule, fits, "a rule for the weights", "MinMax()")
    fits = callable(loss) and not isinstance(loss, type)
    _check_kind("loss", loss, fits, "a function", "cw_margin")


def _check_kind(name: str, value: object, fits: bool, needed: str, remedy: str) -> None:
    if not fits:
        kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        given = f" {value!r}" if isinstance(value, str | int | float) else ""
        raise TypeError(
            f"`{name}` must be {needed}, got {kind}{given}; write {name}=saddlepoint.{remedy}."
        )
