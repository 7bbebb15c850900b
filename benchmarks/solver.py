"""The loops on the paper's networks A-D: what `attack` brings over `apgda`, and how time grows.

Times are those that the processor worked for this process, on one thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from torch import Tensor

import saddlepoint as sp

from .timing import Figure, at_least, at_most, one_thread, ratios

BALL = sp.LpBall(math.inf, 0.2)


def figures() -> Iterator[Figure]:
    with one_thread():
        x, y = sp.data.sample("mnist")
        yield from _strength(x, y)
        yield from _scaling(x, y)


def _strength(x: Tensor, y: Tensor) -> Iterator[Figure]:
    """`attack` against `apgda` with the paper's step sizes, 50 steps, shipped MNIST networks A, C, D."""
    models = [sp.models.load(f"mnist-{name}") for name in "acd"]
    problem = sp.Ensemble(models, x[:500], y[:500])
    paper = {
        "linf": (sp.LpBall(math.inf, 0.2), 1 / 4, sp.MinMax(1 / 50, 3.0)),
        "l2": (sp.LpBall(2, 3.0), 1 / 10, sp.MinMax(1 / 100, 3.0)),
        "l1": (sp.LpBall(1, 20.0), 1 / 4, sp.MinMax(1 / 100, 5.0)),
        "l0": (sp.LpBall(0, 30), 1.0, sp.MinMax(1 / 100, 7.0)),
    }
    for name, (ball, step_size, rule) in paper.items():
        slow = sp.apgda(problem, ball, rule=rule, steps=50, step_size=step_size)
        fast = sp.attack(problem, ball, steps=50)
        evaluations = slow.num_forwards.double().mean() / fast.num_forwards.double().mean()
        gain = sp.success_rates(problem, fast.delta).all - sp.success_rates(problem, slow.delta).all
        yield at_least(f"{name}: gradient evaluations, apgda over attack", evaluations.item(), 3.0)
        yield at_least(f"{name}: ASR_all of attack minus apgda, points", 100 * gain, 0.0)


def _scaling(x: Tensor, y: Tensor) -> list[Figure]:
    """Four times the rows, or the domains, should cost four times as much, and no more."""
    model = sp.models.build("D", channels=1, size=28).eval()

    def run(rows: int, domains: int) -> None:
        problem = sp.Ensemble([model] * domains, x[:rows], y[:rows])
        sp.apgda(problem, BALL, steps=3, batch_size=64, accumulate=False)

    return [
        at_most(
            "4 x the rows (128 -> 512), time",
            ratios(lambda: run(512, 1), lambda: run(128, 1), 5, time.process_time),
            4.4,
        ),
        at_most(
            "4 x the domains (2 -> 8), time",
            ratios(lambda: run(64, 8), lambda: run(64, 2), 5, time.process_time),
            4.4,
        ),
    ]
