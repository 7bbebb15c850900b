"""Losses at many points of every row, without gradient: what estimates and random search are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from saddlepoint.losses import Loss, finite, fooled
from saddlepoint.problems import AbstractProblem
from saddlepoint.solver.domain_losses import typed_loss

__all__ = ["Answers", "ask"]

_IMAGES = 512  # shown to a model at once


@final
class Answers(NamedTuple):
    """What some domains say, each (n, c, k) for n rows, c points of each and k domains.

    Attributes:
        losses: F.
        fooled: Boolean; for random problems, fooled in every draw.
        finite: Whether logits and losses are, boolean.
    """

    losses: Tensor
    fooled: Tensor
    finite: Tensor


def ask(
    problem: AbstractProblem,
    points: Tensor,
    loss: Loss,
    domains: Sequence[int],
    *,
    stream: int = 0,
    targeted: bool = False,
) -> Answers:
    """Show c points of every row to some domains, a few hundred images at a time.

    Args:
        problem: n rows.
        points: Perturbations, (n, c, ...).
        loss: Small = fooled.
        domains: Which are asked.
        stream: The draw of random transforms, the same for all points.
        targeted: Whether labels are classes to reach.

    Example:
        >>> from saddlepoint.losses import cw_margin
        >>> from saddlepoint.problems import Ensemble
        >>> problem = Ensemble([torch.nn.Identity()], torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
        >>> answers = ask(problem, torch.tensor([[[0.0, 0.0], [-0.5, 0.0], [0.0, 0.75]]]), cw_margin, [0])
        >>> answers.losses.flatten().tolist(), answers.fooled.flatten().tolist()
        ([0.5, 0.0, -0.25], [False, False, True])
    """
    function = typed_loss(loss, targeted=targeted, dtype=points.dtype)
    rows, count = points.shape[:2]
    flat = points.flatten(0, 1)
    draws = range(stream * problem.samples, (stream + 1) * problem.samples)
    parts: list[Answers] = []
    with torch.no_grad():
        for part in torch.arange(len(flat), device=points.device).split(_IMAGES):
            few = problem if len(part) == rows == len(flat) else problem.take(part // count)
            at = flat if len(part) == len(flat) else flat[part]
            values = [_one(few, at, domain, draws, function, targeted) for domain in domains]
            parts.append(Answers(*(torch.stack(each, dim=1) for each in zip(*values, strict=True))))
    whole = (torch.cat(each).unflatten(0, (rows, count)) for each in zip(*parts, strict=True))
    return Answers(*whole)


def _one(
    problem: AbstractProblem,
    delta: Tensor,
    domain: int,
    draws: range,
    function: Callable[[Tensor, Tensor], Tensor],
    targeted: bool,
) -> Answers:
    """One domain, (n,) each."""
    goal, reached = problem.goal(targeted)
    labels, goal = (each[:, domain : domain + 1] for each in (problem.labels, goal))
    total = torch.zeros(len(delta), dtype=delta.dtype, device=delta.device)
    hit, known = torch.ones_like(total, dtype=torch.bool), torch.ones_like(total, dtype=torch.bool)
    for draw in draws:
        logits = problem.domain_logits(delta, domain, draw).unsqueeze(1)
        total += function(logits, labels).squeeze(1) / len(draws)
        answered = finite(logits)
        hit &= fooled(logits, goal, targeted=reached, known=answered).squeeze(1)
        known &= answered.squeeze(1)
    return Answers(total, hit, known & total.isfinite())
