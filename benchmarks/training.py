"""Adversarial training: what the weights cost, and what surrounds the forward and backward passes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import saddlepoint as sp

from .timing import Figure, at_most, one_thread, ratios

THREATS = {
    "linf": sp.LpBall(math.inf, 0.3),
    "l2": sp.LpBall(2, 2.0),
    "l1": sp.LpBall(1, 10.0),
}
STEPS = 5
# The activations of 3 * 64 rows pass 16 MB, and page faults would be what is measured: see `allocation`.
ROWS = 32


def figures() -> Iterator[Figure]:
    x, y = sp.data.sample("mnist", limit=ROWS)
    with one_thread():
        yield at_most("AMPGD step over AVG step, K = 3", _rules(x, y, sp.avg_step), 1.03)
        yield at_most("AMPGD step over MAX step, K = 3", _rules(x, y, sp.max_step), 1.15)
        yield at_most("AMPGD step over K times bare forward + backward", _overhead(x, y), 1.15)


def _network() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = sp.models.build("mnist_cnn", channels=1, size=28).train()
    return model, torch.optim.SGD(model.parameters(), 1e-4)


def _rules(x: Tensor, y: Tensor, other: Callable[..., object]) -> list[float]:
    model, optimizer = _network()
    return ratios(
        lambda: sp.ampgd_step(model, optimizer, x, y, THREATS, steps=STEPS, iteration=0),
        lambda: other(model, optimizer, x, y, THREATS, steps=STEPS, iteration=0),
        clock=time.process_time,
    )


def _overhead(x: Tensor, y: Tensor) -> list[float]:
    """Against nothing but the passes: for each threat in turn R with respect to images, one to parameters."""
    model, optimizer = _network()

    def bare() -> None:
        for _ in THREATS:
            images = x.clone().requires_grad_()
            for _ in range(STEPS):
                torch.autograd.grad(F.cross_entropy(model(images), y), images)
            optimizer.zero_grad()
            F.cross_entropy(model(images.detach()), y).backward()
        optimizer.step()

    return ratios(
        lambda: sp.ampgd_step(model, optimizer, x, y, THREATS, steps=STEPS, iteration=0),
        bare,
        clock=time.process_time,
    )
