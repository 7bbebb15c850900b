"""Ratios of running times that survive a noisy machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch


class SkippedError(Exception):
    """A room has nothing to measure on this machine; says why."""


@dataclass(frozen=True)
class Figure:
    """One line of the result: what was measured, the value, what it has to be, and how far rounds differed."""

    name: str
    value: float
    bound: str
    passed: bool
    rounds: tuple[float, float] | None = None  # the lowest and the highest, where they are known


Value = float | Sequence[float]
"""One number, or one for each round, of which the median counts."""


def at_most(name: str, value: Value, limit: float) -> Figure:
    number, rounds = _median(value)
    return Figure(name, number, f"<= {limit:g}", number <= limit, rounds)


def at_least(name: str, value: Value, limit: float) -> Figure:
    number, rounds = _median(value)
    return Figure(name, number, f">= {limit:g}", number >= limit, rounds)


def unbounded(name: str, value: Value) -> Figure:
    """Something to compare others with."""
    number, rounds = _median(value)
    return Figure(name, number, "-", True, rounds)


def _median(value: Value) -> tuple[float, tuple[float, float] | None]:
    if isinstance(value, Sequence):
        return median(value), (min(value), max(value))
    return value, None


@contextmanager
def one_thread() -> Iterator[None]:
    """In which torch computes on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return clock() - start


def ratios(
    numerator: Callable[[], object],
    denominator: Callable[[], object],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Time of one over time of the other in each round, which runs both, back to back.

    Whatever else the machine does slows both sides of a round; alternating the order removes the advantage
    of being second.
    """
    numerator()
    denominator()
    found = []
    for index in range(rounds):
        if index % 2:
            above, below = seconds(numerator, clock), seconds(denominator, clock)
        else:
            below, above = seconds(denominator, clock), seconds(numerator, clock)
        found.append(above / below)
    return found
