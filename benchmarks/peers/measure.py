"""One method on one part of the images: what our judge counts, what it asked of the models, and how long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torch import nn

import saddlepoint as sp
from saddlepoint.evaluation.attacks import sealed
from saddlepoint.evaluation.verdicts import judge_domains

from .cases import Case
from .methods import Counting, Method, Work

PARTS = 4
"""Images are divided into as many parts. On each part all methods run, so that whatever else the machine does
slows all of them, and the order is turned round from part to part."""

Cell = dict[str, Any]


def parts(count: int) -> list[slice]:
    """At most `PARTS` slices of almost the same size."""
    number = min(PARTS, count)
    ends = [count * index // number for index in range(number + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def in_turn(methods: list[Method], part: int) -> list[Method]:
    """The methods in the order of a part, turned round each time: a machine that slows down favours nobody."""
    return methods[::-1] if part % 2 else methods


def measure(method: Method, work: Work) -> Cell:
    """Run a method and judge its candidates.

    Returns:
        images; fooled: images whose candidate is in the box, in the ball up to rounding, and misclassified by
        every model when they are asked again; outside: those misclassified by all that are not in the ball
        or box; unusable: those that are not numbers; evaluations: images shown to the models, over their
        number and over the images; seconds that the processor worked.
    """
    counting = [Counting(model) for model in work.models]
    with sealed(nn.ModuleList(counting), work.seed):
        start = time.process_time()
        candidates = method.run(replace(work, models=counting))
        seconds = time.process_time() - start
    shown = sum(model.images for model in counting)
    found = judge_domains(
        sp.Ensemble(work.models, work.x, work.y), candidates.detach() - work.x, work.ball
    )
    fooled = found.broken.all(dim=1)
    count = len(work.x)
    return {
        "images": count,
        "fooled": int(fooled.sum()),
        "outside": int(((found.broken | found.outside).all(dim=1) & ~fooled).sum()),
        "unusable": int(found.unusable.sum()),
        "evaluations": shown / count / len(counting),
        "seconds": seconds,
    }


def attacked(
    case: Case,
    methods: list[Method],
    count: int,
    evaluations: int,
    seed: int,
    done: set[str],
) -> Iterator[tuple[str, Cell]]:
    """The cells of a case that are not done, by name: method/part."""
    slices = parts(count)
    plan = [
        (f"{method.name}/{part}", method, part)
        for part in range(len(slices))
        for method in in_turn(methods, part)
    ]
    if all(name in done for name, _, _ in plan):
        return
    models = case.models()
    x, y = case.images(count)
    # What a method or torch does the first time is in no cell.
    few = Work(models, x[:2], y[:2], case.ball, evaluations, seed)
    for method in methods:
        if any(name not in done for name, each, _ in plan if each is method):
            measure(method, few)
    for name, method, part in plan:
        if name not in done:
            rows = slices[part]
            yield (
                name,
                measure(method, Work(models, x[rows], y[rows], case.ball, evaluations, seed)),
            )
