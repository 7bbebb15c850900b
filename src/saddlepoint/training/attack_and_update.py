"""The two halves of an adversarial training step: the attack, which leaves the model alone, and the update.

Private to `ampgd`, whose docstring states signs, iterates and the treatment of batch norm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from saddlepoint.calls import call
from saddlepoint.losses import fooled
from saddlepoint.problems.inputs import as_images, as_labels, plain
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.solver.schedule import Schedule

from .stepping import FLOAT16_ENDS, buffers_back, is_float16, step_on
from .threats import AbstractStart, Threat, ZeroStart

__all__ = [
    "TrainingLoss",
    "ascend",
    "check_batch",
    "check_model",
    "descend",
    "evaluating",
    "steepest_of_all",
]

TrainingLoss = Callable[[Tensor, Tensor], Tensor]
"""Losses (N,) from logits (N, C) and labels (N,); large = hard, nothing averaged."""


class Attack(NamedTuple):
    """delta_R, (K, B, ...), and w_R, (B, K)."""

    delta: Tensor
    weights: Tensor


class Proposals(NamedTuple):
    """The last K proposals of MSD and what became of them."""

    chosen: Tensor  # delta_R, (B, ...)
    delta: Tensor  # the proposals, (K, B, ...)
    weights: Tensor  # one-hot at the chosen one, (B, K)
    losses: Tensor  # (B, K)
    correct: Tensor  # (B, K)


@final
@dataclass(frozen=True)
class Update:
    """What the training pass saw before theta moved; (B, K) but for `loss`."""

    loss: float
    losses: Tensor
    weights: Tensor
    correct: Tensor


def ascend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threats: Sequence[Threat],
    rule: AbstractWeightRule,
    plan: Schedule,
    start: AbstractStart | None,
    loss: TrainingLoss,
) -> Attack:
    """R steps of projected ascent in w and in every delta_i, both from (w_{r-1}, delta_{r-1})."""
    lower, upper = -x, 1 - x
    start = ZeroStart() if start is None else start
    delta = start.delta(threats, lower, upper)
    weights: Tensor | None = None
    lost: list[Tensor] = []
    with evaluating(model) as module:
        for number in range(plan.steps):
            losses, gradient = _gradients(module, x, y, delta, loss, lost)
            if weights is None:
                _warn_if_zero(gradient)
                weights = start.weights(rule.init(losses))
            moved = [
                threat.ascend(delta[k], gradient[k], weights[:, k], lower, upper, number, plan)
                for k, threat in enumerate(threats)
            ]
            if all(threat.inside(number, plan) for threat in threats):
                # Losses outside the balls are not those the weights are about.
                weights = rule.update(weights, losses)
            delta = torch.stack(moved)
    _refuse_lost(lost, model)
    assert weights is not None
    return Attack(delta, weights)


def steepest_of_all(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threats: Sequence[Threat],
    plan: Schedule,
    start: AbstractStart | None,
    loss: TrainingLoss,
) -> Proposals:
    """R steps of multi steepest descent: each row follows the proposal with the largest loss."""
    lower, upper = -x, 1 - x
    start = ZeroStart() if start is None else start
    one = torch.ones(len(x), dtype=x.dtype, device=x.device)
    lost: list[Tensor] = []
    with evaluating(model) as module:
        best = _choose(module, x, y, start.delta(threats, lower, upper), loss, first=True)
        for number in range(plan.steps):
            _, (gradient,) = _gradients(module, x, y, best.chosen.unsqueeze(0), loss, lost)
            if number == 0:
                _warn_if_zero(gradient.unsqueeze(0))
            proposals = [
                threat.ascend(best.chosen, gradient, one, lower, upper, number, plan)
                for threat in threats
            ]
            best = _choose(module, x, y, torch.stack(proposals), loss)
    _refuse_lost(lost, model)
    return best


def descend(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    delta: Tensor,
    weigh: Callable[[Tensor], Tensor],
    mix: float,
    loss: TrainingLoss,
) -> Update:
    """One optimiser step on the mean over rows of sum_i w_i f_i, mixed with the loss of clean images.

    Args:
        model: In the caller's mode.
        optimizer: Over the parameters of `model`.
        x: (B, ...).
        y: (B,).
        delta: (K, B, ...).
        weigh: Maps the losses, (B, K), to weights, (B, K).
        mix: Share of the adversarial loss.
        loss: Large = hard.
    """
    images = x + delta
    if mix < 1:
        images = torch.cat([images, x.unsqueeze(0)])
    count = len(delta)
    with buffers_back(model):
        losses, correct, logits = _losses(model, images, y, loss)
        weights = weigh(losses[:, :count].detach())
        total = (weights * losses[:, :count]).sum(dim=1).mean()
        if mix < 1:
            total = mix * total + (1 - mix) * losses[:, count].mean()
        step_on(total, optimizer, model, logits)
    return Update(total.item(), losses[:, :count].detach(), weights, correct[:, :count])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """The module inside any DistributedDataParallel, in evaluation mode; all modes are restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model.module if isinstance(model, DistributedDataParallel) else model
    finally:
        for module, mode in modes:
            module.training = mode


def check_model(model: object) -> None:
    """Refuse what cannot be trained: functions, and parameters so short that a step may make them NaN."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`model` must be an nn.Module, got {type(model).__name__}; training moves its parameters."
        )
    parameters = list(model.parameters())
    if parameters and not any(each.requires_grad for each in parameters):
        raise ValueError(
            "`model` must have parameters that may move, got only frozen ones; write "
            "model.requires_grad_(True), or leave the last layers free."
        )
    # The 1e-8 that Adam adds to its denominator is zero in float16, as is the gradient of many a weight.
    if any(each.dtype == torch.float16 for each in parameters):
        raise TypeError(
            "`model` must not have parameters of float16, which become NaN in training, got some; train in "
            "float32, with model.float(), and convert afterwards."
        )


def check_batch(x: Tensor, y: Tensor, mix: float = 1.0) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] without any graph, (B, ...), and class numbers, (B,); or an error."""
    x = plain(as_images("x", x, 2))
    if not 0 <= mix <= 1:
        raise ValueError(f"`mix` must be in [0, 1], got {mix}.")
    y = as_labels("y", y, (len(x),)).to(x.device)
    with torch.inference_mode(False):  # a loader that is read in inference mode gives such labels
        return x, y.clone()


def _gradients(
    module: nn.Module, x: Tensor, y: Tensor, delta: Tensor, loss: TrainingLoss, lost: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Losses, (B, K), and the gradient of each with respect to its own perturbation, (K, B, ...).

    Where gradients are not finite is added to `lost`, see `_refuse_lost`.
    """
    leaf = delta.detach().requires_grad_()
    losses, _, _ = _losses(module, x + leaf, y, loss, first=not lost)
    # Every loss depends on one row of one block only, so the gradient of the sum holds all of them.
    (gradient,) = torch.autograd.grad(losses.sum(), leaf, materialize_grads=True)
    # An attack that follows NaN does not move and says nothing. A loss that is not finite is seen by `step_on`.
    lost.append(losses.detach().isfinite() & ~gradient.flatten(2).sum(dim=2).isfinite().T)
    return losses.detach(), gradient


def _refuse_lost(lost: Sequence[Tensor], model: nn.Module) -> None:
    """Refuse gradients that were not finite in any step, (B, K) each: one look, in the end, for all of them."""
    rows = torch.stack([each.any(dim=1) for each in lost]).any(dim=0)
    if bool(rows.any()):
        got = (
            f"gradients must be finite, got NaN or inf for {int(rows.sum())} of {len(rows)} images"
        )
        if is_float16(model):
            raise FloatingPointError(f"{got}, {FLOAT16_ENDS}.")
        raise FloatingPointError(
            f"{got}; look for a root, norm, logarithm or division that meets zero in the model, and keep it "
            "away from there, as with clamp_min(1e-12)."
        )


def _warn_if_zero(gradient: Tensor) -> None:
    """Say so where no perturbation, (K, B, ...), changes its loss: those trained on would be none."""
    if not bool(gradient.any()):
        warnings.warn(
            f"the gradient is zero in all {gradient.shape[1]} images: the model may mask it (detach, "
            "quantisation, argmax, saturation), and what is trained or validated on is then no attack.",
            stacklevel=4,
        )


def _choose(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    proposals: Tensor,
    loss: TrainingLoss,
    *,
    first: bool = False,
) -> Proposals:
    """Each row's proposal, (K, B, ...), with the largest loss; the first of equals."""
    with torch.no_grad():
        losses, correct, _ = _losses(module, x + proposals, y, loss, first=first)
    index = losses.argmax(dim=1)
    chosen = proposals[index, torch.arange(len(x), device=x.device)]
    weights = torch.zeros_like(losses).scatter_(1, index.unsqueeze(1), 1.0)
    return Proposals(chosen, proposals, weights, losses, correct)


def _losses(
    module: nn.Module, images: Tensor, y: Tensor, loss: TrainingLoss, *, first: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses and correctness, (B, K), of (K, B, ...) images in one forward pass, and the logits, (K * B, C).

    The first looks at labels.
    """
    blocks, rows = images.shape[:2]
    labels = y.repeat(blocks)
    flat = images.flatten(0, 1)
    logits = call(module, flat, fresh=True, training=True)
    if first:
        _check_classes(logits, labels)
    losses = loss(logits, labels).to(images.dtype)  # logits may be finer
    if losses.shape != labels.shape:
        raise ValueError(
            f"`loss` must return one number per row, ({len(labels)},), got shape {tuple(losses.shape)}; "
            'torch losses do so with reduction="none".'
        )
    correct = ~fooled(logits.detach(), labels)
    return losses.reshape(blocks, rows).T, correct.reshape(blocks, rows).T, logits


def ask(module: nn.Module, images: Tensor, labels: Tensor, *, fresh: bool = False) -> Tensor:
    """Logits (N, C) of images (N, ...), with a class for each of the labels (N,); `fresh` as in `call`."""
    logits = call(module, images, fresh=fresh)
    _check_classes(logits, labels)
    return logits


def _check_classes(logits: Tensor, labels: Tensor) -> None:
    classes = logits.shape[1]
    if int(labels.max()) >= classes:
        raise ValueError(
            f"`y` must be in 0 ... {classes - 1}, as the model has {classes} classes, got {int(labels.max())}."
        )
