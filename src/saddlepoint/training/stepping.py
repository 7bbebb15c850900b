"""The update of the parameters: one step of an optimiser down a loss, or an error before anything is changed.

float16 holds 6e-8 to 65504. Gradients go through a model that computes in it times a power of two, which is
taken out before the optimiser sees them, exactly: what it gets is the gradient of the loss, in the dtype of the
parameters. The power is chosen anew in every step, from the gradient of the logits, which is there in float32,
and lowered until the gradients of the parameters are finite, each time by another backward pass through the
same graph. Hooks on parameters are refused; those on modules see gradients times that power, in every pass.

This is not `torch.amp.GradScaler`, which finds its scale over many steps, skips those in which it is too large,
and carries it along: here nothing is remembered, so that a checkpoint has nothing more to hold, a step by
itself is as good as one of many, none is skipped, and processes with a share of a batch each need not agree on
which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from saddlepoint.precision import how_of

__all__ = ["FLOAT16_ENDS", "buffers_back", "is_float16", "step_on"]

FLOAT16_ENDS = (
    "in float16, and float16 ends at 65504; take "
    'precision="bfloat16", which has the range of float32'
)
"""What to say of numbers that are not finite there."""

# What the largest gradients of the logits of all rows sum to in the first pass, up to a factor of two. The
# largest entry of a parameter's gradient is then 2**8 to 2**13 for networks A to D, the CNN of the defence,
# VGG16 and the small ResNet, untrained.
_FIRST = 2.0**12
_LOWER = 2.0**-8  # from one pass to the next
_PASSES = 5


def is_float16(model: nn.Module) -> bool:
    """Whether a model computes in float16 here and now."""
    how = how_of(model)
    return how is not None and how.dtype == torch.float16


@contextmanager
def buffers_back(model: nn.Module) -> Iterator[None]:
    """After a FloatingPointError buffers are as before: batch norm has seen what was not finite, and keeps it.

    Example:
        >>> model = nn.BatchNorm1d(2)
        >>> try:
        ...     with buffers_back(model):
        ...         _ = model(torch.full((4, 2), torch.inf))
        ...         raise FloatingPointError
        ... except FloatingPointError:
        ...     model.running_mean
        tensor([0., 0.])
    """
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    except FloatingPointError:
        with torch.no_grad():
            for buffer, kept in before:
                buffer.copy_(kept)
        raise


def step_on(
    loss: Tensor, optimizer: torch.optim.Optimizer, model: nn.Module, logits: Tensor
) -> None:
    """One step of the optimiser down a loss, or an error before anything is changed.

    Args:
        loss: ().
        optimizer: Gradients of an earlier step are forgotten.
        model: What was asked, in the precision that it is asked in here.
        logits: Its answers, (N, C), float32 or finer, that the loss is made of.

    Raises:
        FloatingPointError: The loss or a gradient of the parameters is not finite.
    """
    half = is_float16(model)
    if not torch.isfinite(loss):
        if half:
            raise FloatingPointError(
                f"`loss` must be finite, got {loss.item()} {FLOAT16_ENDS}; parameters are unchanged."
            )
        raise FloatingPointError(
            f"`loss` must be finite, got {loss.item()}; the parameters are unchanged. Lower the learning rate, "
            "or check that the model maps images in [0, 1] to finite logits."
        )
    optimizer.zero_grad()
    moved: list[Tensor] = [each for group in optimizer.param_groups for each in group["params"]]
    if half:
        finite = _backward_scaled(loss, moved, model, logits)
    else:
        loss.backward()
        finite = _finite(moved)
    if not finite:
        optimizer.zero_grad()
        got = (
            f"gradients of parameters must be finite, got NaN or inf at a loss of {loss.item():.6g}"
        )
        if half:
            raise FloatingPointError(f"{got} {FLOAT16_ENDS}; parameters are unchanged.")
        raise FloatingPointError(
            f"{got}; the parameters are unchanged. Look for a root, norm, logarithm or division that meets "
            "zero in the model, and keep it away from there, as with clamp_min(1e-12)."
        )
    optimizer.step()


def _finite(parameters: Sequence[Tensor]) -> bool:
    """Whether all gradients are; one look for all of them."""
    looks = [each.grad.isfinite().all() for each in parameters if each.grad is not None]
    return not looks or bool(torch.stack(looks).all())


def _backward_scaled(
    loss: Tensor, moved: Sequence[Tensor], model: nn.Module, logits: Tensor
) -> bool:
    """Add the gradients of a loss, (), that went through a model in float16; whether they are finite.

    As `loss.backward()`, for the parameters of the optimiser and of the model, and for what the loss has of its
    own: they keep the gradient that they had, and get theirs added if all are finite.
    """
    every = list(
        {id(each): each for each in (*moved, *model.parameters(), *_leaves(loss))}.values()
    )
    _refuse_hooks(every)
    before = [each.grad for each in every]
    scale, finite = _scale(loss, model, logits), False
    for number in range(_PASSES):
        reached = [each for each in every if each.grad is not None] if number else []
        for each in every:
            each.grad = None
        loss.backward(scale, retain_graph=number + 1 < _PASSES)
        if number and isinstance(model, DistributedDataParallel):
            _average(reached, model)  # it does so by itself in the first pass only
        finite = _finite(every)
        if finite:
            break
        scale = scale * _LOWER
    for each, kept in zip(every, before, strict=True):
        if not finite or each.grad is None:
            each.grad = kept
            continue
        each.grad /= scale.to(each.grad.device)
        if kept is not None:
            each.grad = kept + each.grad
    return finite


def _refuse_hooks(parameters: Sequence[Tensor]) -> None:
    """Refuse hooks on gradients: what they clip, note or step on would be gradients times the power of two."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    hooked = sum(any(getattr(each, name, None) for name in names) for each in parameters)
    if hooked:
        raise ValueError(
            "`precision` must be float32 or bfloat16 where parameters have hooks on gradients, which would "
            f"see them times a power of two in float16, got hooks on {hooked} of {len(parameters)} parameters."
        )


def _leaves(loss: Tensor) -> list[Tensor]:
    """What `loss.backward()` would give a gradient, some of it more than once."""
    seen: set[Any] = set()
    todo: list[Any] = [loss.grad_fn]
    found: list[Tensor] = []
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and leaf.is_leaf:
            found.append(leaf)
        todo += [following for following, _ in node.next_functions]
    return found


def _scale(loss: Tensor, model: nn.Module, logits: Tensor) -> Tensor:
    """The power of two, (), of the first pass; processes that average gradients in it have the same one."""
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True, materialize_grads=True)
    total = gradient.abs().amax(dim=1).sum().to(loss)
    exponent = torch.frexp(total).exponent.clamp(-100, 100)
    scale = _FIRST * torch.ldexp(torch.ones_like(total), -exponent)
    if isinstance(model, DistributedDataParallel):
        dist.all_reduce(scale, dist.ReduceOp.MIN, group=model.process_group)
    return scale


def _average(parameters: Sequence[Tensor], model: DistributedDataParallel) -> None:
    """Make gradients their means over the processes, for parameters that have one in any."""
    group = model.process_group
    for each in parameters:
        each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        dist.all_reduce(each.grad, group=group)
        each.grad /= dist.get_world_size(group)
