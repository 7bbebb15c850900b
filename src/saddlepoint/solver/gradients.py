"""Where the next step comes from when models answer scores only: estimated gradients, and random search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Literal, final

import torch

from saddlepoint.counts import check_count
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import AbstractSet
from saddlepoint.solver.checks import check_differentiable
from saddlepoint.solver.estimates import Directions, blocks
from saddlepoint.solver.proposals import frame
from saddlepoint.solver.search import Objective

__all__ = [
    "Estimated",
    "Gradient",
    "Phase",
    "Searched",
    "check_gradient",
    "estimated",
    "exact_phases",
    "phases_of",
    "searched",
]

_AT_A_TIME = 100  # proposals of random search between two iterates
_SWEEPS = 4  # of all squares that the queries should be enough for
_AT_LEAST = 10  # queries: fewer say nothing


@final
@dataclass(frozen=True)
class Estimated:
    """What `estimated` returns; its arguments are there.

    Example:
        >>> estimated(queries=1000).queries
        1000
    """

    queries: int
    search: float
    directions: Directions
    per_step: int
    distance: float | None
    side: int | None
    momentum: float


@final
@dataclass(frozen=True)
class Searched:
    """What `searched` returns; its arguments are there.

    Example:
        >>> isinstance(searched(queries=1000), Searched)
        True
    """

    queries: int
    objective: Objective


Gradient = Estimated | Searched
"""How to do without gradients."""


def estimated(
    queries: int = 5000,
    *,
    search: float = 0.1,
    directions: Directions = "squares",
    per_step: int = 128,
    distance: float | None = None,
    side: int | None = None,
    momentum: float = 0.0,
) -> Estimated:
    """Estimate the gradients of models that answer scores only, for `attack(..., gradient=...)`.

    The loop, the weights and the steps are those of `attack`; the gradient comes from differences of losses.
    Estimated are the domains of models that `saddlepoint.scores` declares, the others are differentiated; if
    none is declared, all are estimated. A short random search goes first: what it fools costs little.

    Args:
        queries: The most that a row may take: one query shows one perturbation of a row to all domains (in
            estimates, to those without gradient). `result.num_forwards` says what was taken. Beside them each
            model is asked about the first four rows before, and about every row once for the verdict.
        search: Share of the queries for random search.
        directions: What moves: "squares", one square of pixels at a time, with what is known of each domain
            kept from step to step; or "signs", all of them up or down at random and back. On MNIST the former
            fooled more at 5,000 queries, and the latter more within 500, see docs/scores.md.
        per_step: Queries for each estimate.
        distance: How far pixels move to see what it does; by default the radius for p = inf, and 0.25 for
            others. Models with steps, such as trees, need it long.
        side: Of the squares; by default the smallest for which the queries see every square four times.
        momentum: Share of the estimate before that is added, for "signs".

    Raises:
        TypeError, ValueError: A number is out of range.

    Example:
        >>> from saddlepoint import Ensemble, attack, linf, scores
        >>> def service(images):
        ...     bright = images.mean(axis=(1, 2, 3))
        ...     return [[9 * value, 9 - 9 * value] for value in bright]
        >>> problem = Ensemble([scores(service)], torch.full((1, 1, 4, 4), 0.55), [0])
        >>> result = attack(problem, linf(0.1), gradient=estimated(queries=200))
        >>> bool(result.success), bool(result.num_forwards <= 200)
        (True, True)
    """
    check_count("queries", queries, _AT_LEAST)
    check_count("per_step", per_step, 2)
    if side is not None:
        check_count("side", side, 1)
    if not 0 <= search < 1:
        raise ValueError(f"`search` must be a share from 0 to below 1, got {search}.")
    if directions not in ("squares", "signs"):
        raise ValueError(f"`directions` must be 'squares' or 'signs', got {directions!r}.")
    if distance is not None and not 0 < distance <= 1:
        raise ValueError(f"`distance` must be in (0, 1], pixels are, got {distance}.")
    if not 0 <= momentum < 1 or (momentum and directions != "signs"):
        raise ValueError(
            f"`momentum` must be 0, or with directions='signs' below 1, got {momentum}."
        )
    return Estimated(int(queries), search, directions, int(per_step), distance, side, momentum)


def searched(queries: int = 5000, *, objective: Objective = "soft") -> Searched:
    """Do without any gradient, for `attack(..., gradient=...)`: random search in the ball.

    For p = inf squares of pixels go from one end of the ball to the other, for p = 1 and 2 they are pushed, and
    for p = 0 changed pixels are exchanged for others; what lowers the objective is kept. No weights are
    followed, so that there is no `rule` to choose.

    Args:
        queries: The most that a row may take, see `estimated`.
        objective: What is lowered: "soft", the largest loss of the domains made smooth (log sum exp),
            "worst", the largest loss itself, or "clipped", the sum of those above zero.

    Example:
        >>> searched(queries=1000)
        Searched(queries=1000, objective='soft')
    """
    check_count("queries", queries, _AT_LEAST)
    if objective not in ("soft", "worst", "clipped"):
        raise ValueError(f"`objective` must be 'soft', 'worst' or 'clipped', got {objective!r}.")
    return Searched(int(queries), objective)


@final
@dataclass(frozen=True)
class Phase:
    """One restart.

    Attributes:
        steps: Updates.
        kind: What leads from an iterate to the next.
        begin: Where: at the given start, at a random point, or at the best point so far.
        per_step: Queries from one iterate to the next, the iterate itself aside.
        side: Of the squares of estimates.
        number: Of the phase, from 0; names random streams.
    """

    steps: int
    kind: Literal["exact", "estimated", "searched"] = "exact"
    begin: Literal["start", "random", "best"] = "start"
    per_step: int = 0
    side: int = 1
    number: int = 0


def exact_phases(steps: int, restarts: int) -> Iterator[Phase]:
    """The restarts of an attack that differentiates: the first from the start, others from random points.

    One after the other: of many most are not needed, and all of them would not fit into memory.
    """
    for number in range(restarts):
        yield Phase(steps, begin="random" if number else "start", number=number)


def phases_of(gradient: Gradient, problem: AbstractProblem, region: AbstractSet) -> list[Phase]:
    """How the queries are divided, such that no row can take more.

    Args:
        gradient: How many there are, and what they are for.
        problem: B rows.
        region: Where delta may be: squares of pixels that it keeps as they are need no query.

    Raises:
        ValueError: They are too few, or random search is asked of random transforms.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> from saddlepoint.projections import LpBall
        >>> problem = Ensemble([torch.nn.Identity()], torch.rand(1, 1, 28, 28), torch.tensor([0]))
        >>> phases = phases_of(estimated(5000), problem, LpBall(torch.inf, 0.2))
        >>> [(phase.kind, phase.steps, phase.per_step) for phase in phases]
        [('searched', 19, 25), ('estimated', 35, 127)]
    """
    queries = gradient.queries // problem.samples
    share = gradient.search if isinstance(gradient, Estimated) else 1.0
    if problem.random:
        if isinstance(gradient, Searched):
            raise ValueError(
                "`gradient` must not be searched() for random transforms, of which a lucky draw would be kept; "
                "take estimated()."
            )
        share = 0.0
    phases: list[Phase] = []
    first = round(share * queries)
    at_a_time = max(1, min(_AT_A_TIME, first // 20))
    if (steps := (first - 1) // (at_a_time + 1)) > 0:
        phases.append(Phase(steps, "searched", per_step=at_a_time))
        queries -= 1 + steps * (at_a_time + 1)
    if isinstance(gradient, Searched):
        return phases
    shape = _movable(problem, region)
    side = _side(shape, queries) if gradient.side is None else gradient.side
    most = min(gradient.per_step, _squares(shape, side))
    if gradient.directions == "signs":
        most = max(2, gradient.per_step // 2 * 2)
    if queries < 2 + most:
        raise ValueError(
            f"`queries` must be enough for a step after the random search, {2 + most} (times the samples of "
            f"random transforms), got {queries}; lower `per_step` or `search`."
        )
    steps = max(1, round((queries - 1) / (most + 1)))
    per_step = min((queries - 1) // steps - 1, most) if gradient.directions == "squares" else most
    steps = (queries - 1) // (per_step + 1)
    begin: Literal["start", "best"] = "best" if phases else "start"
    phases.append(Phase(steps, "estimated", begin, per_step, side, number=len(phases)))
    return phases


def check_gradient(
    gradient: object,
    problem: object,
    others: Mapping[str, object],
    precision: object = "float32",
    rule: object = None,
) -> None:
    """Refuse what is no way to do without gradients, what does not go with it, and the lack of one.

    Args:
        gradient: Of `attack`.
        problem: B rows, K domains.
        others: Arguments that follow from the queries, by name; None where they are left out.
        precision: Of `attack`.
        rule: Of `attack`; None where it is left out.

    Raises:
        TypeError, ValueError: It is unusable.
    """
    if not isinstance(problem, AbstractProblem):
        return  # refused elsewhere
    if gradient is None:
        check_differentiable(problem)
        return
    if not isinstance(gradient, Estimated | Searched):
        raise TypeError(
            f"`gradient` must be saddlepoint.estimated(...) or searched(...), got {type(gradient).__name__}."
        )
    if isinstance(gradient, Searched) and rule is not None:
        raise ValueError(
            f"`rule` must be left out where `gradient` is searched(...), got {rule!r}: random search follows "
            "no weights, and would find the same with any; take estimated(...) to compare rules."
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out where `gradient` is given, got {value!r}; all follows from "
                f"queries={gradient.queries}."
            )
    words = precision if isinstance(precision, list | tuple) else [precision]
    if any(word != "float32" for word in words):
        raise ValueError(
            f"`precision` must be float32 where `gradient` is given, got {precision!r}: small differences of "
            "losses drown in the rounding of fewer bits."
        )


def _movable(problem: AbstractProblem, region: AbstractSet) -> torch.Size:
    """The shape of the part of a perturbation that can move in any row."""
    part = copy(problem)
    part.lower, part.upper = region.box(problem.lower, problem.upper)
    *_, tall, wide = (int(number.max()) for number in frame(part))
    shape = problem.lower.shape[1:]
    return torch.Size([*shape[:-2], tall, wide] if len(shape) > 1 else [wide])


def _side(shape: torch.Size, queries: int) -> int:
    """Of the smallest squares that are few enough."""
    widest = max(shape[-2:])
    for side in range(1, widest):
        if _squares(shape, side) * _SWEEPS <= queries:
            return side
    return widest


def _squares(shape: torch.Size, side: int) -> int:
    return blocks(0, torch.zeros(1, dtype=torch.long), 0, shape, side)[1]
