"""Accuracy on held-out images: clean, under each threat, and under all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from saddlepoint.loaders import batches, sent
from saddlepoint.losses import fooled
from saddlepoint.rounding import full_precision

from .ampgd import perturb
from .attack_and_update import ask, check_batch, evaluating
from .distributed import World
from .threats import Checked, RandomStart, Threat, ThreatLike, ZeroStart, check_threats

__all__ = ["validate"]


@full_precision()
def validate(
    model: nn.Module,
    x: Tensor | Dataset[Any] | DataLoader[Any],
    y: Tensor | None,
    threats: Mapping[str, ThreatLike],
    *,
    steps: int = 20,
    restarts: int = 1,
    batch_size: int = 250,
) -> dict[str, float]:
    """Accuracy of a network on held-out images, against the steps of every threat, as in training.

    Fast enough to follow training with; for numbers to publish, evaluate the finished network with many steps
    and restarts, and with other attacks.

    Args:
        model: Evaluated in evaluation mode; left as it was.
        x: Images in [0, 1], (N, ...); or a data set or a loader in place of `x` and `y`, of which one batch is
            in memory at a time. It must give several processes the same order.
        y: Labels, (N,).
        threats: Named balls or `Threat`s; none gives the clean accuracy only.
        steps: Of every attack.
        restarts: Attacks per threat: the first starts from zero, further ones from random points, for rows that
            some threat has not fooled yet; three of them are one round of the sizes of balls.
        batch_size: Images at a time; it changes no result. Several processes share the batches.

    Returns:
        Shares of all images that are classified correctly: "clean", one entry per threat, and "union", under
        all threats and without any.

    Raises:
        ValueError: An argument is wrong.
        FloatingPointError: A gradient is not finite, so that an attack would fail for that reason alone.

    Example:
        >>> from saddlepoint.projections import LpBall
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = nn.init.eye_(model.weight)
        >>> x, y = torch.tensor([[0.9, 0.1], [0.6, 0.5]]), torch.tensor([0, 0])
        >>> validate(model, x, y, {"linf": LpBall(torch.inf, 0.2)})
        {'clean': 1.0, 'linf': 0.5, 'union': 0.5}
    """
    if restarts < 1:
        raise ValueError(f"`restarts` must be >= 1, got {restarts}.")
    world = World.current()
    device = next(model.parameters()).device
    named: Mapping[str, Threat] = {}
    counts: dict[str, float] = {}
    total = 0
    for index, (images, labels) in enumerate(_batches(x, y, batch_size)):
        rows = torch.arange(total, total + len(labels))
        total += len(labels)
        if not counts:
            named = check_threats(threats, images.shape[1:]) if threats else {}
            counts = dict.fromkeys(("clean", *named, "union"), 0.0)
        if index % world.size != world.rank:
            continue
        images, labels = sent(images, device), sent(labels, device)
        right = _right(model, images.unsqueeze(1), labels)
        if named:
            robust = _robust(model, images, labels, named, rows.to(device), steps, restarts)
            right = torch.cat([right, robust], dim=1)
        for name, hits in zip(("clean", *named), right.T, strict=True):
            counts[name] += hits.sum().item()
        counts["union"] += right.all(dim=1).sum().item()
    if not total:
        raise ValueError("`x` must give at least one image with its label, got none.")
    return {name: count / total for name, count in world.sums(counts, tuple(counts)).items()}


def _batches(x: Any, y: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels, checked, so many at a time."""
    if y is None:
        for images, labels in batches(x, size):
            yield check_batch(images, labels)
        return
    x, y = check_batch(x, y)
    yield from zip(x.split(size), y.split(size), strict=True)


def _robust(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, Threat],
    rows: Tensor,
    steps: int,
    restarts: int,
) -> Tensor:
    """Whether each row withstands every attack of each threat, (B, K)."""
    not_fooled = torch.ones(len(x), len(threats), dtype=torch.bool, device=x.device)
    for restart in range(restarts):
        left = not_fooled.any(dim=1).nonzero().squeeze(1)
        if len(left) == 0:
            break
        start = RandomStart(restart, rows[left]) if restart else ZeroStart()
        part = Checked(
            (name, replace(threat, ball=threat.ball.take(rows[left])))
            for name, threat in threats.items()
        )
        delta = perturb(model, x[left], y[left], part, iteration=restart, steps=steps, start=start)
        not_fooled[left] &= _right(model, x[left].unsqueeze(1) + delta, y[left])
    return not_fooled


def _right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Whether images (B, K, ...) are classified correctly, (B, K)."""
    every = labels.repeat_interleave(images.shape[1])
    with evaluating(model) as module, torch.no_grad():
        wrong = fooled(ask(module, images.flatten(0, 1), every), every)
    return ~wrong.view(images.shape[:2])
