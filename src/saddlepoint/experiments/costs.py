"""How long an experiment takes here: networks are timed for a moment, the rest is counting."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import torch

from saddlepoint import models
from saddlepoint.calls import call
from saddlepoint.experiments.block_parts import FULL, gradient_count, missing
from saddlepoint.experiments.plan import RESTARTS, Block, Experiment, Labels, Method
from saddlepoint.experiments.runner import Setup

__all__ = ["Estimate", "at_most", "estimate", "overhead", "seconds_per_gradient"]

_SHAPES = {"mnist": (1, 28), "cifar10": (3, 32)}
_BATCH = {"A": 128, "B": 16, "C": 128, "D": 64}  # enough to time; deep networks take eight
_TICK = 1e-6  # seconds, of a clock that tells no difference
_OVERHEAD = 3.0  # seconds per row for loading, judging and drawing its page
_WRITTEN = 0.2  # seconds per row of a table for hashing and writing, and
_PAGE = 0.5  # for drawing its page
_STEP = 0.005  # seconds per step of rows that are attacked together, besides networks; and
_ROWS = 128  # how many these are


@final
@dataclass(frozen=True)
class Estimate:
    """Minutes with some of the images and with the whole test set.

    `apgda` takes them. `attack` takes fewer where rows fall early, and `attack-5` at most five times as many as
    `apgda`; so do predicted labels after true ones, because rows whose labels are the same are taken over.

    Attributes:
        minutes: By default, or with the limit that was asked about.
        full_minutes: With --full.
        missing: Networks without parameters, which are not counted.
    """

    minutes: float
    full_minutes: float
    missing: tuple[str, ...]


def estimate(
    experiment: Experiment,
    parameters: Path | None = None,
    limit: int | None = None,
    *,
    sources: Sequence[tuple[Method, Labels]] = (("apgda", "true"),),
    jobs: int = 1,
    threads: int | None = None,
) -> Estimate:
    """What an experiment costs on this machine.

    Args:
        experiment: Which one.
        parameters: Folder with parameters of networks that are not shipped.
        limit: How many images instead of the default number.
        sources: Methods and labels that are run in turn.
        jobs: Processes that share the rows; measurements are made by one of them.
        threads: Of every process; as many as torch has now if None.

    Example:
        >>> from saddlepoint.experiments import find
        >>> estimate(find("universal-mnist")).missing
        ()
    """
    absent: list[str] = []
    minutes = full = 0.0
    for block, passes, workers in _work(experiment, jobs):
        if gone := missing(block.networks, parameters):
            absent += gone
            continue
        data = block.settings.data
        image = sum(seconds_per_gradient(data, letter, threads) for letter in block.letters)
        image *= gradient_count(block) * passes * sum(RESTARTS[method] for method, _ in sources)
        overhead = _OVERHEAD * len(block.rows) * len(sources)
        images = experiment.images(block, limit)
        minutes += (image * images + overhead) / workers / 60
        full += (image * FULL + overhead) / workers / 60
    return Estimate(minutes, full, tuple(dict.fromkeys(absent)))


def at_most(experiment: Experiment, setup: Setup, jobs: int = 1) -> float:
    """Seconds that an experiment takes if every image takes all steps, roughly.

    Args:
        experiment: Which one.
        setup: How it is run.
        jobs: Processes that share the rows; measurements are made by one of them.
    """
    total = 0.0
    for block, passes, workers in _work(experiment, jobs):
        if not missing(block.networks, setup.parameters):
            image = sum(seconds_per_gradient(block.settings.data, n) for n in block.letters)
            images = setup.images(experiment, block)
            size = getattr(block.settings, "group_size", 1)  # of a row, in images
            steps = (block.settings.steps + 1) * math.ceil(images / size / _ROWS)
            once = image * gradient_count(block) * images + _STEP * steps
            total += once * passes * RESTARTS[setup.method] / workers
    rows = sum(len(block.rows) for block in experiment.blocks)
    return total + rows * overhead(setup)


def overhead(setup: Setup) -> float:
    """Seconds that a row of a table takes besides the attack."""
    return _WRITTEN + (_PAGE if setup.reports else 0.0)


@cache
def seconds_per_gradient(data: str, letter: str, threads: int | None = None) -> float:
    """Seconds for one forward and backward pass of one image.

    With one thread they are those of the processor, so that other work on the machine does not count. Several
    threads wait for each other, some of them at work, some not, so that neither the sum of their times nor a
    share of it says how long a pass takes: they are timed by the clock.

    Args:
        data: "mnist" or "cifar10".
        letter: Of the network.
        threads: As many as torch has now if None.
    """
    channels, size = _SHAPES[data]
    with torch.random.fork_rng(devices=[]):
        network = models.channels_last(models.build(letter, channels, size).eval())
    images = torch.full((_BATCH.get(letter, 8), channels, size, size), 0.5, requires_grad=True)
    before, best = torch.get_num_threads(), float("inf")
    clock = time.process_time if (threads or before) == 1 else time.perf_counter
    torch.set_num_threads(threads or before)
    try:
        for _ in range(2):
            began = clock()
            with torch.enable_grad():
                torch.autograd.grad(call(network, images).sum(), images)
            best = min(best, clock() - began)
    finally:
        torch.set_num_threads(before)
    return max(best, _TICK) / len(images)


def _work(experiment: Experiment, jobs: int) -> list[tuple[Block, float, int]]:
    """Every setting, how many times its images go through all of its steps, and in how many processes."""
    work = [(block, float(len(block.rows)), jobs) for block in experiment.blocks]
    for item in experiment.measurements:
        passes = {
            # Eleven attacks, and the optimiser of Carlini and Wagner in place of steps.
            "distances": 11 + item.searches * item.inner_steps / (item.block.settings.steps + 1),
            "residuals": 1.0,
            "accuracy": 3 / (item.block.settings.steps + 1),
            "times": float(len(item.block.rows) * (item.repeats + 1)),
        }
        work.append((item.block, passes[item.what], 1))
    return work
