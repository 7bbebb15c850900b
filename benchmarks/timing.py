"""Ratios of running times that survive a noisy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Figure:
    """One line of the result: what was measured, the value, and what it has to be."""

    name: str
    value: float
    bound: str
    passed: bool


def at_most(name: str, value: float, limit: float) -> Figure:
    return Figure(name, value, f"<= {limit:g}", value <= limit)


def at_least(name: str, value: float, limit: float) -> Figure:
    return Figure(name, value, f">= {limit:g}", value >= limit)


def unbounded(name: str, value: float) -> Figure:
    """Something to compare others with."""
    return Figure(name, value, "-", True)


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return clock() - start


def ratio(
    numerator: Callable[[], object],
    denominator: Callable[[], object],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Time of one over time of the other: the median over rounds that run both, back to back.

    Whatever else the machine does slows both sides of a round; alternating the order removes the advantage
    of being second.
    """
    numerator()
    denominator()
    ratios = []
    for index in range(rounds):
        if index % 2:
            above, below = seconds(numerator, clock), seconds(denominator, clock)
        else:
            below, above = seconds(denominator, clock), seconds(numerator, clock)
        ratios.append(above / below)
    return median(ratios)
