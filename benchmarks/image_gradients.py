"""Gradients with respect to grey images: the library's way over torch's own, for whole networks of MNIST.

Times are those that the processor worked for this process, on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.image_gradients import cheap_image_gradients

from .timing import Figure, at_most, one_thread, ratios

ROWS = 128


def figures() -> Iterator[Figure]:
    sp.keep_memory()
    with one_thread():
        for name, model, times in (
            ("C", sp.models.load("mnist-c"), 20),
            ("D", sp.models.load("mnist-d"), 5),
            ("B", sp.models.load("mnist-b"), 1),
            ("mnist_cnn_small", sp.models.load("mnist-ampgd"), 30),
            ("mnist_cnn", sp.models.build("mnist_cnn", channels=1, size=28).eval(), 5),
        ):
            yield _over_torch(name, model, times)


def _over_torch(name: str, model: nn.Module, times: int) -> Figure:
    x, _ = sp.data.sample("mnist", limit=ROWS)
    x.requires_grad_()

    def gradients(*, cheap: bool) -> None:
        for _ in range(times):
            with cheap_image_gradients(model, x) if cheap else nullcontext():
                logits = model(x)
            torch.autograd.grad(logits.sum(), x)

    over = ratios(
        lambda: gradients(cheap=True), lambda: gradients(cheap=False), 9, time.process_time
    )
    return at_most(f"forward and backward to the images on {name}, over torch's own", over, 1.0)
