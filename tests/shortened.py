"""Suites and experiments of a few steps, for tests of what is done with their results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from saddlepoint.cli import attack
from saddlepoint.evaluation import OurAttack, domains, suites
from saddlepoint.evaluation.attacks import AbstractAttack
from saddlepoint.evaluation.ours import RandomSearch
from saddlepoint.experiments import catalogue, runner
from saddlepoint.experiments.plan import Experiment
from saddlepoint.losses import neg_cross_entropy
from saddlepoint.runs import patching
from saddlepoint.runs.settings import AttackSettings

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
    """Short suites, experiments, tests of patches and demos, with restarts and many pages, for good."""
    shorten_suites()
    OurAttack.calls = 2
    runner._CHUNK = 2
    catalogue.EXPERIMENTS = {n: _quick(each) for n, each in catalogue.EXPERIMENTS.items()}
    # Heat maps of 2 x 2 places and one size and angle, in place of 60 views.
    patching._PLACES, patching._SCALES, patching._ANGLES = (0.0, 1.0), (1.0,), (0.0,)
    few = (("top", "bottom"), ("left", "right")), (("x 1",), ("0°",))
    patching._MAPS = dict(zip(patching._MAPS, few, strict=True))
    attack.run_attack = functools.partial(_shorter_demo, attack.run_attack)  # type: ignore[assignment]


def _shorter_demo(
    run: Callable[..., int], settings: AttackSettings, *given: object, **flags: object
) -> int:
    """The demo, which has no flag for it, takes a few steps."""
    if str(flags.get("command")).startswith("saddlepoint demo"):
        settings = settings.model_copy(update={"steps": 3})
    return run(settings, *given, **flags)


def _quick(experiment: Experiment) -> Experiment:
    blocks = tuple(block.but(steps=2) for block in experiment.blocks)
    measured = tuple(replace(m, block=m.block.but(steps=12)) for m in experiment.measurements)
    return replace(experiment, blocks=blocks, measurements=measured)
