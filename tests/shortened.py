"""Suites and experiments of a few steps, for tests of what is done with their results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from saddlepoint.evaluation import OurAttack, domains, suites
from saddlepoint.evaluation.attacks import AbstractAttack
from saddlepoint.evaluation.ours import RandomSearch
from saddlepoint.experiments import catalogue, runner
from saddlepoint.experiments.plan import Experiment
from saddlepoint.losses import neg_cross_entropy

__all__ = ["everything", "short_suites", "shorten_suites"]

_NAMED = suites._named


def _named(suite: str, p: float) -> tuple[AbstractAttack, ...]:
    """The attacks of "quick" by their names and in their order, but short."""
    if suite != "quick":
        return _NAMED(suite, p)
    ours = OurAttack("attack-ce", neg_cross_entropy, steps=3), OurAttack("attack", steps=3)
    return (*ours, RandomSearch(queries=20)) if p == math.inf else ours


def shorten_suites() -> None:
    """Suite "quick" and the search of the smallest radius take a few steps from here on."""
    suites._named = _named
    domains.domains_unchecked.__kwdefaults__.update(steps=3, searches=2)


@contextmanager
def short_suites() -> Iterator[None]:
    """The same, within."""
    options, named = domains.domains_unchecked.__kwdefaults__, suites._named
    before = dict(options)
    shorten_suites()
    try:
        yield
    finally:
        suites._named = named
        options.update(before)


def everything() -> None:
    """Short suites with two restarts, and short experiments with many pages, until the process ends."""
    shorten_suites()
    OurAttack.calls = 2
    runner._CHUNK = 2
    catalogue.EXPERIMENTS = {n: _quick(each) for n, each in catalogue.EXPERIMENTS.items()}


def _quick(experiment: Experiment) -> Experiment:
    blocks = tuple(block.but(steps=2) for block in experiment.blocks)
    measured = tuple(replace(m, block=m.block.but(steps=12)) for m in experiment.measurements)
    return replace(experiment, blocks=blocks, measurements=measured)
