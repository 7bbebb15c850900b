"""One evaluation of all domains at an iterate, and the gradient of their weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from saddlepoint.losses import Loss, finite, fooled
from saddlepoint.precision import FULL, Precisions
from saddlepoint.problems import AbstractProblem

__all__ = [
    "Evaluation",
    "Verdict",
    "broken_gradients",
    "evaluate",
    "gradients_enabled",
    "typed_loss",
    "verdict_on",
]


@final
@dataclass(frozen=True)
class Evaluation:
    """F(delta) and what follows from it.

    Attributes:
        losses: (B, K), detached.
        fooled: (B, K), boolean; for random problems, fooled in every draw.
        finite: Whether logits and losses are, (B, K), boolean; see `Watch`.
        gradient: Maps weights (B, K) to the gradient of sum_i w_i F_i at delta, (B, ...). Call it once.
        spent: How often the K domains were asked, one number or (B,).
        without: Domains that let no gradient through, as far as they were looked at one by one.
        steep: Whether the gradient of a domain differs from zero in a row, (B, K), boolean, if they were looked
            at one by one.
        confirmed: Rows that were asked again in full precision, (B,), boolean; None where nothing is searched
            in fewer bits, or nothing confirmed.
    """

    losses: Tensor
    fooled: Tensor
    finite: Tensor
    gradient: Callable[[Tensor], Tensor]
    spent: int | Tensor
    without: tuple[int, ...] = ()
    steep: Tensor | None = None
    confirmed: Tensor | None = None


@final
class Verdict(NamedTuple):
    """What models as they are answer to candidates: logits, (n, K, C), and what follows, (n, K) each."""

    logits: Tensor
    losses: Tensor
    fooled: Tensor
    finite: Tensor


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """Autograd on, also inside a user's `no_grad` or `inference_mode`."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def typed_loss(
    loss: Loss, *, targeted: bool, dtype: torch.dtype | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss as a function of two arguments; untargeted losses need not know the word.

    Args:
        loss: Small = fooled.
        targeted: Whether labels are classes to reach.
        dtype: Of the losses, where logits may be finer than perturbations; what the loss returns if None.
    """

    def function(logits: Tensor, labels: Tensor) -> Tensor:
        values = loss(logits, labels, targeted=True) if targeted else loss(logits, labels)
        return values if dtype is None else values.to(dtype)

    return function


def evaluate(
    problem: AbstractProblem,
    delta: Tensor,
    loss: Loss,
    *,
    stream: int = 0,
    targeted: bool = False,
    accumulate: bool = False,
    differentiate: bool = True,
    precisions: Precisions = FULL,
    confirm: bool = True,
) -> Evaluation:
    """Evaluate every domain once (times `problem.samples`) at delta.

    One forward now and one backward when `gradient` is called. With `accumulate` each domain is differentiated
    right after its forward, one graph at a time: the memory of one graph and of K gradients as large as delta.

    Args:
        problem: B rows, K domains.
        delta: (B, ...).
        loss: (B, K, C), (B, K) -> (B, K), small = fooled.
        stream: Which random draw.
        targeted: Whether labels are classes to reach.
        accumulate: Differentiate domain by domain.
        differentiate: Whether `gradient` will be called; if not, there is no graph.
        precisions: What the models compute in.
        confirm: Whether rows that look fooled in every domain in fewer bits are asked again in all of them.
    """
    function = typed_loss(loss, targeted=targeted, dtype=delta.dtype)
    leaf = delta.detach().requires_grad_()
    draws = range(stream * problem.samples, (stream + 1) * problem.samples)
    with precisions.applied(), torch.set_grad_enabled(differentiate):
        if accumulate:
            point = _by_domain(problem, leaf, function, draws, targeted, differentiate)
        else:
            point = _at_once(problem, leaf, function, draws, targeted)
    if not (confirm and precisions.low):
        return point
    return _confirmed(problem, delta, point, loss, draws, targeted)


def verdict_on(
    problem: AbstractProblem, delta: Tensor, loss: Loss, *, stream: int = 0, targeted: bool = False
) -> Verdict:
    """Ask about candidates, delta (n, ...), without gradient and in full precision: every verdict is made here.

    Args:
        problem: n rows.
        delta: (n, ...), as it would be saved.
        loss: Small = fooled.
        stream: Which random draw.
        targeted: Whether labels are classes to reach.
    """
    with torch.no_grad():
        logits = problem.logits(delta, stream)
        function = typed_loss(loss, targeted=targeted, dtype=delta.dtype)
        losses = function(logits, problem.labels)
    known, (goal, reached) = finite(logits), problem.goal(targeted)
    broken = fooled(logits, goal, targeted=reached, known=known)
    return Verdict(logits, losses, broken, known & losses.isfinite())


def _confirmed(
    problem: AbstractProblem,
    delta: Tensor,
    point: Evaluation,
    loss: Loss,
    draws: range,
    targeted: bool,
) -> Evaluation:
    """The same with verdicts in full precision on the rows that look fooled in every domain."""
    rows = point.fooled.all(dim=1).nonzero().flatten()
    confirmed = torch.zeros_like(problem.rows, dtype=torch.bool)
    if len(rows) == 0:
        return replace(point, confirmed=confirmed)
    few, at, broken = problem.take(rows), delta[rows], point.fooled.clone()
    for draw in draws:
        verdict = verdict_on(few, at, loss, stream=draw, targeted=targeted)
        broken[rows] &= verdict.fooled
    spent = torch.full_like(problem.rows, len(draws))
    spent[rows] += len(draws)
    confirmed[rows] = True
    return replace(point, fooled=broken, spent=spent, confirmed=confirmed)


def _at_once(
    problem: AbstractProblem,
    leaf: Tensor,
    function: Callable[[Tensor, Tensor], Tensor],
    draws: range,
    targeted: bool,
) -> Evaluation:
    """One graph of all domains."""
    samples, (goal, reached) = problem.samples, problem.goal(targeted)
    total: Tensor | None = None
    hit: Tensor | None = None
    numbers: Tensor | None = None
    for draw in draws:
        logits = problem.logits(leaf, draw)
        losses = function(logits, problem.labels)
        losses = losses if samples == 1 else losses * (1.0 / samples)
        known = finite(logits.detach())
        broken = fooled(logits.detach(), goal, targeted=reached, known=known)
        total = losses if total is None else total + losses
        hit = broken if hit is None else hit & broken
        numbers = known if numbers is None else numbers & known
    assert total is not None
    assert hit is not None
    assert numbers is not None
    graph = total

    def whole(weights: Tensor) -> Tensor:
        return _gradient(graph, leaf, weights)

    losses = total.detach()
    return Evaluation(losses, hit, numbers & (losses.abs() < torch.inf), whole, len(draws))


def _by_domain(
    problem: AbstractProblem,
    leaf: Tensor,
    function: Callable[[Tensor, Tensor], Tensor],
    draws: range,
    targeted: bool,
    differentiate: bool,
) -> Evaluation:
    """`evaluate` with `accumulate`: a domain's graph is gone before the next domain is asked."""
    losses = torch.zeros(problem.labels.shape, dtype=leaf.dtype, device=leaf.device)
    hit = torch.ones_like(losses, dtype=torch.bool)
    numbers = torch.ones_like(hit)
    gradients: list[Tensor] = []
    without: dict[int, None] = {}
    goal, reached = problem.goal(targeted)
    for k in range(problem.num_domains):
        labels = problem.labels[:, k : k + 1]
        for draw in draws:
            logits = problem.domain_logits(leaf, k, draw).unsqueeze(1)
            value = function(logits, labels).squeeze(1) / len(draws)
            if not value.requires_grad:
                without[k] = None
            if differentiate and draw == draws[0]:
                gradients.append(_gradient(value.sum(), leaf))
            elif differentiate:
                gradients[k] += _gradient(value.sum(), leaf)
            losses[:, k] += value.detach()
            hit[:, k] &= fooled(logits.detach(), goal[:, k : k + 1], targeted=reached).squeeze(1)
            numbers[:, k] &= finite(logits.detach()).squeeze(1)

    def combined(weights: Tensor) -> Tensor:
        total = torch.zeros_like(leaf)
        for k in range(problem.num_domains):
            # Taken out of the list: whoever holds this evaluation does not hold K gradients any longer.
            total += gradients.pop(0) * weights[:, k].reshape(-1, *(1 for _ in leaf.shape[1:]))
        return total

    known = numbers & losses.isfinite()
    steep = None
    if differentiate:
        steep = torch.stack([gradient.flatten(1).any(dim=1) for gradient in gradients], dim=1)
    return Evaluation(losses, hit, known, combined, len(draws), tuple(without), steep)


def broken_gradients(
    problem: AbstractProblem, delta: Tensor, loss: Loss, *, stream: int, targeted: bool
) -> list[int]:
    """The domains whose own gradient at delta, (B, ...), is not finite."""
    function = typed_loss(loss, targeted=targeted, dtype=delta.dtype)
    leaf = delta.detach().requires_grad_()
    draws = range(stream * problem.samples, (stream + 1) * problem.samples)
    return [
        k
        for k in range(problem.num_domains)
        for gradient in [
            sum(_gradient(_domain_loss(problem, leaf, k, n, function).sum(), leaf) for n in draws)
        ]
        if not bool(torch.as_tensor(gradient).isfinite().all())
    ]


def _domain_loss(
    problem: AbstractProblem,
    leaf: Tensor,
    domain: int,
    draw: int,
    function: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """F_domain at leaf for one draw, (B,)."""
    logits = problem.domain_logits(leaf, domain, draw).unsqueeze(1)
    return function(logits, problem.labels[:, domain : domain + 1]).squeeze(1)


def _gradient(value: Tensor, leaf: Tensor, weights: Tensor | None = None) -> Tensor:
    """Gradient at leaf of a number, or of a weighted sum; zero, not an error, where models let none through."""
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    if weights is not None:  # those of a rule of one's own may be wider
        weights = weights.to(value.dtype).expand_as(value)
    (gradient,) = torch.autograd.grad(value, leaf, weights, materialize_grads=True)
    return gradient
