"""The smallest radius at which an attack fools every domain at once, image by image."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from saddlepoint.counts import check_count
from saddlepoint.evaluation.verdicts import clean_answers, judge_domains
from saddlepoint.losses import cw_margin
from saddlepoint.precision import FULL, Precisions
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall
from saddlepoint.solver import attack_unchecked
from saddlepoint.solver.domain_losses import gradients_enabled
from saddlepoint.solver.inspection import inspect
from saddlepoint.solver.result import Callback

__all__ = ["radii_unchecked", "smallest_radius"]

_GROWTH = 4.0  # from one radius to the next on the way up


def smallest_radius(
    problem: AbstractProblem,
    p: float,
    *,
    unit: Literal["entry", "pixel"] = "entry",
    failed: Tensor | None = None,
    succeeded: Tensor | None = None,
    first: float | None = None,
    steps: int = 20,
    searches: int = 10,
    batch_size: int | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> Tensor:
    """Smallest radius at which the min-max attack fools every domain of a row at once, by bisection.

    A row is bracketed first: by zero and the radius of the whole box, 1 for p = inf, or, with `first`, by the
    steps of a ladder on which every radius is four times the last one. Then its bracket is halved `searches`
    times; counts (p = 0) are halved until they are exact.

    Args:
        problem: B rows, K domains.
        p: 0, 1, 2 or ``math.inf``.
        unit: What p = 0 counts, as in `LpBall`.
        failed: A radius per row, (B,), at which an attack has failed already; 0 by default.
        succeeded: A radius per row, (B,), at which one is known to succeed, inf where none is.
        first: Radius to begin with, if the answer is expected to be near it.
        steps: Of every attack.
        searches: Halvings: the radius is found to 2 ** -searches of the bracket.
        batch_size: Rows at a time; it changes no result.
        seed: Of the attack.
        callback: Called with a `Progress` after every iterate of every attack.

    Returns:
        Radii, (B,), float64, on the CPU, at which the attack did succeed: 0 for rows that every domain has
        wrong as they are, inf where it fails even with the whole box.

    Raises:
        ValueError: An argument is unusable, or the models cannot be attacked.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> def first(images):  # right as long as the first number is above 0.25
        ...     return torch.stack([images[:, 0], 0 * images[:, 0] + 0.25], dim=1)
        >>> def second(images):  # and the second
        ...     return first(images[:, 1:])
        >>> x, y = torch.tensor([[0.5, 0.3], [0.3, 0.9]]), torch.tensor([0, 0])
        >>> [round(r, 2) for r in smallest_radius(Ensemble([first], x, y), math.inf).tolist()]
        [0.25, 0.05]
        >>> [round(r, 2) for r in smallest_radius(Ensemble([first, second], x, y), math.inf).tolist()]
        [0.25, 0.65]
    """
    if searches < 0:
        raise ValueError(f"`searches` must be >= 0, got {searches}.")
    if first is not None and not first > 0:
        raise ValueError(f"`first` must be a positive radius, or None, got {first}.")
    check_count("steps", steps, 0)
    batch_size, accumulate = inspect(problem, cw_margin, False, batch_size, None)
    return radii_unchecked(
        problem,
        LpBall(p, 1.0, unit),
        failed=_radii("failed", failed, problem, 0.0),
        succeeded=_radii("succeeded", succeeded, problem, math.inf),
        first=first,
        steps=steps,
        searches=searches,
        batch_size=batch_size,
        accumulate=accumulate,
        seed=seed,
        callback=callback,
    )


def radii_unchecked(
    problem: AbstractProblem,
    unit_ball: LpBall,
    *,
    failed: Tensor,
    succeeded: Tensor,
    first: float | None,
    steps: int,
    searches: int,
    batch_size: int,
    accumulate: bool,
    seed: int,
    callback: Callback | None,
    precisions: Precisions = FULL,
) -> Tensor:
    """`smallest_radius` for callers who have checked the arguments and looked at the problem.

    Args as there, but for `unit_ball`, the ball of radius 1, `accumulate`, as in `attack`, and
    `precisions`, what the models compute in during attacks.
    """
    p, unit, whole = unit_ball.p, unit_ball.unit, unit_ball.p == 0
    high = succeeded.clone()
    low = failed.floor() if whole else failed.clone()

    def hits(rows: Tensor, radii: Tensor) -> Tensor:
        """Whether the attack fools every domain of these rows within these radii, (n,)."""
        here = rows.to(problem.lower.device)
        ball = LpBall(p, radii.to(problem.lower), unit)
        part = problem.take(here)
        result = attack_unchecked(
            part,
            ball,
            steps=steps,
            batch_size=batch_size,
            accumulate=accumulate,
            seed=seed,
            callback=callback,
            precisions=precisions,
        )
        return judge_domains(part, result.delta, ball).broken.all(dim=1)

    with gradients_enabled():
        high[~clean_answers(problem).any(dim=1).cpu()] = 0.0
        top = unit_ball.norm(torch.ones_like(problem.lower)).cpu()
        radius = torch.full_like(top, math.inf if first is None else first).minimum(top)
        while True:
            radius = radius.floor().clamp_min(1.0) if whole else radius
            rows = (high.isinf() & (radius > low)).nonzero().flatten()
            if len(rows):
                hit = hits(rows, radius[rows])
                high[rows[hit]] = radius[rows[hit]]
                low[rows[~hit]] = radius[rows[~hit]]
            if not bool((high.isinf() & (low < top)).any()):
                break
            radius = (_GROWTH * radius).minimum(top)
        halvings = max(searches, math.frexp(float(top.max()))[1]) if whole else searches
        for _ in range(halvings):
            middle = ((low + high) / 2).floor() if whole else (low + high) / 2
            rows = (high.isfinite() & (low < middle) & (middle < high)).nonzero().flatten()
            if len(rows) == 0:
                break
            hit = hits(rows, middle[rows])
            high[rows[hit]] = middle[rows[hit]]
            low[rows[~hit]] = middle[rows[~hit]]
    return high


def _radii(name: str, given: Tensor | None, problem: AbstractProblem, default: float) -> Tensor:
    if given is None:
        return torch.full((len(problem),), default, dtype=torch.float64)
    radii = given.detach().double().cpu().clone()
    if radii.shape != (len(problem),) or not bool((radii >= 0).all()):
        raise ValueError(
            f"`{name}` must be one radius >= 0 per row, ({len(problem)},), got shape "
            f"{tuple(radii.shape)} with a minimum of {radii.min().item() if radii.numel() else None}."
        )
    return radii
