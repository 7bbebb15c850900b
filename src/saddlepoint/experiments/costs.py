"""How long an experiment takes here: networks are timed for a moment, the rest is counting."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import torch

from saddlepoint import models
from saddlepoint.calls import call
from saddlepoint.experiments.block_parts import FULL, gradient_count, missing
from saddlepoint.experiments.plan import RESTARTS, Block, Experiment
from saddlepoint.experiments.runner import Setup

__all__ = ["Estimate", "at_most", "estimate", "seconds_per_gradient"]

_SHAPES = {"mnist": (1, 28), "cifar10": (3, 32)}
_BATCH = {"A": 128, "B": 16, "C": 128, "D": 64}  # enough to time; deep networks take eight
_OVERHEAD = 3.0  # seconds per row for loading, judging and drawing its page


@final
@dataclass(frozen=True)
class Estimate:
    """Minutes with some of the images and with the whole test set, for one method and one label.

    They are those of `apgda`. `attack` takes at most as many evaluations, fewer where rows fall early, and
    `attack-5` at most five times as many.

    Attributes:
        minutes: By default, or with the limit that was asked about.
        full_minutes: With --full.
        missing: Networks without parameters, which are not counted.
    """

    minutes: float
    full_minutes: float
    missing: tuple[str, ...]


def estimate(
    experiment: Experiment, parameters: Path | None = None, limit: int | None = None
) -> Estimate:
    """What an experiment costs on this machine.

    Args:
        experiment: Which one.
        parameters: Folder with parameters of networks that are not shipped.
        limit: How many images instead of the default number.

    Example:
        >>> from saddlepoint.experiments import find
        >>> estimate(find("universal-mnist")).missing
        ()
    """
    absent: list[str] = []
    minutes = full = 0.0
    for block, passes in _work(experiment):
        if gone := missing(block.networks, parameters):
            absent += gone
            continue
        data = block.settings.data
        image = sum(seconds_per_gradient(data, letter) for letter in block.letters)
        image *= gradient_count(block) * passes
        overhead = _OVERHEAD * len(block.rows)
        minutes += (image * (limit or block.limit or experiment.limit) + overhead) / 60
        full += (image * FULL + overhead) / 60
    return Estimate(minutes, full, tuple(dict.fromkeys(absent)))


def at_most(experiment: Experiment, setup: Setup) -> float:
    """Seconds that the attacks of an experiment take if every image takes all steps, roughly.

    Args:
        experiment: Which one.
        setup: How it is run.
    """
    total = 0.0
    for block in experiment.blocks:
        if not missing(block.networks, setup.parameters):
            image = sum(seconds_per_gradient(block.settings.data, n) for n in block.letters)
            images = setup.images(experiment, block) * RESTARTS[setup.method]
            total += image * gradient_count(block) * images * len(block.rows)
    return total


@cache
def seconds_per_gradient(data: str, letter: str) -> float:
    """Seconds for one forward and backward pass of one image, with as many threads as torch has now.

    Args:
        data: "mnist" or "cifar10".
        letter: Of the network.
    """
    channels, size = _SHAPES[data]
    with torch.random.fork_rng(devices=[]):
        network = models.channels_last(models.build(letter, channels, size).eval())
    images = torch.full((_BATCH.get(letter, 8), channels, size, size), 0.5, requires_grad=True)
    best = float("inf")
    for _ in range(2):
        began = time.perf_counter()
        with torch.enable_grad():
            torch.autograd.grad(call(network, images).sum(), images)
        best = min(best, time.perf_counter() - began)
    return best / len(images)


def _work(experiment: Experiment) -> list[tuple[Block, float]]:
    """Every setting, and how many times its images go through all of its steps."""
    work = [(block, float(len(block.rows))) for block in experiment.blocks]
    for item in experiment.measurements:
        passes = {
            # Eleven attacks, and the optimiser of Carlini and Wagner in place of steps.
            "distances": 11 + item.searches * item.inner_steps / (item.block.settings.steps + 1),
            "residuals": 1.0,
            "accuracy": 3 / (item.block.settings.steps + 1),
            "times": float(len(item.block.rows) * (item.repeats + 1)),
        }
        work.append((item.block, passes[item.what]))
    return work
