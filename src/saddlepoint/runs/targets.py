"""Which class an attack is to reach, as settings name it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem
from saddlepoint.runs.settings import AttackSettings

__all__ = ["LEAST_LIKELY", "NEXT", "aimed", "without"]

NEXT, LEAST_LIKELY = "next", "least-likely"
_ROWS = 256  # at a time, where nothing is differentiated


def aimed(problem: AbstractProblem, target: str, classes: Sequence[str]) -> AbstractProblem:
    """The problem of reaching a class, without the rows that have it as their true class.

    Args:
        problem: With true classes as labels.
        target: "next" is the class after the true one; "least-likely" the one the domains give the least
            probability, on average where they look at one image; else the name or the number of a class.
        classes: Names of the classes.

    Raises:
        ValueError: There is no such class, or no row is left.

    Warns:
        UserWarning: Rows are left out.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> x, y = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.9, 0.2]]), torch.tensor([2, 1])
        >>> problem = Ensemble([torch.nn.Identity().eval()], x, y)
        >>> aimed(problem, "next", ()).labels.flatten(), aimed(problem, "least-likely", ()).labels.flatten()
        (tensor([0, 2]), tensor([0, 2]))
    """
    if target == LEAST_LIKELY:
        return problem.aim_at(_least_likely(problem))
    count = _logits(problem, torch.zeros(1, dtype=torch.long)).shape[-1]
    if target == NEXT:
        return problem.aim_at((problem.truth + 1) % count)
    number = _number(target, classes, count)
    left = (problem.truth != number).all(dim=1).nonzero().flatten()
    if len(left) == 0:
        raise ValueError(
            f"`--targeted` must be another class than the images have, got {target!r} for images that all "
            "have it; choose another."
        )
    if len(left) < len(problem):
        warnings.warn(
            f"{len(problem) - len(left)} of {len(problem)} rows are left out: their class is {target}, the "
            "one to reach.",
            stacklevel=2,
        )
    part = problem.take(left)
    return part.aim_at(torch.full_like(part.truth, number))


def without(
    settings: AttackSettings, x: Tensor, y: Tensor, classes: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Images and labels without those that have the class to reach, where rows are made of many of them.

    Elsewhere `aimed` leaves out the rows of that class; a patch is for many images, and none would be left.
    """
    target = settings.targeted
    if settings.kind != "patch" or target in (None, NEXT, LEAST_LIKELY):
        return x, y
    left = y != _number(str(target), classes, max(len(classes), int(y.max()) + 1))
    return x[left], y[left]


def _number(target: str, classes: Sequence[str], count: int) -> int:
    if target in classes:
        return list(classes).index(target)
    if target.isdecimal() and int(target) < count:
        return int(target)
    known = ", ".join(classes[:20])
    raise ValueError(
        f"`--targeted` must be {NEXT}, {LEAST_LIKELY} or a class, from 0 to {count - 1} or by its name "
        f"({known}), got {target!r}."
    )


def _least_likely(problem: AbstractProblem) -> Tensor:
    """The class of least probability that is not the true one, (B, K)."""
    tables = []
    for rows in torch.arange(len(problem), device=problem.lower.device).split(_ROWS):
        likely, truth = _logits(problem, rows).softmax(dim=-1), problem.truth[rows]
        if problem.images(problem.zeros()).dim() == problem.lower.dim():  # all look at one image
            likely = likely.mean(dim=1, keepdim=True).expand_as(likely)
        tables.append(likely.scatter(-1, truth.unsqueeze(-1), torch.inf).argmin(dim=-1))
    return torch.cat(tables)


def _logits(problem: AbstractProblem, rows: Tensor) -> Tensor:
    part = problem.take(rows.to(problem.lower.device))
    with torch.no_grad():
        return part.logits(part.zeros())
