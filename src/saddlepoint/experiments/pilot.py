"""How long a run will take: a few images of every block are attacked, and the clock is read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from saddlepoint.experiments import block_parts
from saddlepoint.experiments.costs import at_most, overhead, seconds_per_gradient
from saddlepoint.experiments.places import complete_in
from saddlepoint.experiments.plan import Block, Experiment, Row
from saddlepoint.experiments.runner import Setup
from saddlepoint.losses import fooled
from saddlepoint.problems import AbstractProblem
from saddlepoint.runs import RECORD, Run, build, rule_words, settings_of
from saddlepoint.runs.settings import AttackSettings
from saddlepoint.solver.inspection import look

__all__ = ["forecast", "left"]

_SECONDS = 0.8  # that an attack on the images of a pilot is to take, about; and
_MOST = 1.6  # at most, for all of its steps
_IMAGES = 8  # at least, because few are slow
_ROWS = 128  # at most: as many as a run attacks together

Clock = Callable[[], float]


def forecast(
    experiment: Experiment,
    folder: Path,
    setups: Sequence[Setup],
    *,
    jobs: int = 1,
    clock: Clock = time.perf_counter,
) -> float:
    """Seconds that the rows and measurements which are not in the folder yet will take.

    Measurements are counted by the passes through networks that they take, and not tried.

    Args:
        experiment: Which one.
        folder: Where `reproduce` puts it; what is finished costs nothing.
        setups: Methods and labels that are run in turn.
        jobs: Processes that share the rows; measurements are made by one of them.
        clock: Tells seconds.
    """
    total = 0.0
    for setup in setups:
        rest = left(experiment, folder, setup)
        first = any(s.labels == "true" and s.method == setup.method for s in setups)
        for block in rest.blocks:
            total += _block(experiment, block, folder, setup, clock, first=first) / jobs
        total += at_most(replace(rest, blocks=()), setup)
    return total


def left(experiment: Experiment, folder: Path, setup: Setup) -> Experiment:
    """The experiment with what can be run, and is not in the folder yet.

    Args:
        experiment: Which one.
        folder: Where `reproduce` puts it.
        setup: How it is run.
    """
    gone = block_parts.skipped(experiment, setup.parameters)
    target = folder / setup.labels / setup.method
    blocks = []
    for block in (block for block in experiment.blocks if block.key not in gone):
        places = ((row, target / block.key / row.strategy.key) for row in block.rows)
        if rows := tuple(row for row, place in places if complete_in(place) is None):
            blocks.append(replace(block, rows=rows))
    measurements = tuple(
        each
        for each in experiment.measurements
        if each.block.key not in gone and complete_in(target / each.key) is None
    )
    return replace(experiment, blocks=tuple(blocks), measurements=measurements)


def _block(
    experiment: Experiment,
    block: Block,
    folder: Path,
    setup: Setup,
    clock: Clock,
    *,
    first: bool,
) -> float:
    """Seconds for the rows of a block: the first and the last are tried, which is average and min-max.

    Of slow networks a few steps are tried and all counted, as if no image stopped early. Whether the rows are
    run with true labels before is `first`; some may be in the folder.
    """
    rows, limit = block.rows, setup.images(experiment, block)
    images = block_parts.load_images(block.settings.data, limit, setup.download)
    networks = [block_parts.load_network(name, setup.parameters) for name in block.networks]
    settings = block.settings.model_copy(update={"seed": setup.seed})
    whole = block_parts.build_problem(block, settings, images, networks)
    each = sum(seconds_per_gradient(block.settings.data, letter) for letter in block.letters)
    each *= block_parts.gradient_count(block) * len(images.x) / len(whole)
    least = math.ceil(_IMAGES * len(whole) / len(images.x))
    count = min(len(whole), _ROWS, max(least, round(_SECONDS / each)))
    steps, there = settings.steps, settings.steps + 1
    if each * count > _MOST:
        steps = max(1, int(there * _MOST / (each * count)) - 1)
    part = whole.take(torch.arange(count))
    tried = [_seconds(block, row, setup, part, clock, steps) for row in {rows[0], rows[-1]}]
    share = len(whole) / count * there / (steps + 1)
    full = float(len(rows))
    if setup.labels == "predicted":
        named = dict(zip(block.networks, networks, strict=True))
        twins = len(rows) if first else _twins(block, rows, folder, setup, len(images.x), named)
        if twins:  # of their images only those are attacked on which some domain is wrong
            wrong = _wrong(whole.take(torch.arange(min(len(whole), max(count, _IMAGES)))))
            full -= twins * (1 - wrong)
    target = folder / setup.labels / setup.method / block.key
    full = max(0.0, full - sum(_begun(target / row.strategy.key) for row in rows))
    return sum(tried) / len(tried) * share * full + len(rows) * overhead(setup)


def _begun(place: Path) -> float:
    """The share of a row that is on disk, where it was stopped."""
    run = Run.read(place) if (place / RECORD).is_file() else None
    return run.done / run.rows if run is not None and run.rows else 0.0


def _twins(
    block: Block,
    rows: Sequence[Row],
    folder: Path,
    setup: Setup,
    limit: int,
    networks: Mapping[str, nn.Module],
) -> int:
    """How many of the rows are in the folder with true labels, of the same images, networks and settings."""
    place = folder / "true" / setup.method / block.key
    found = (complete_in(place / row.strategy.key) for row in rows)
    runs = [run for run in found if run is not None]
    models = build.hashes_of({}, {}, networks).models if runs else {}
    asked = limit, setup.seed, [setup.precision]
    said = ((run, settings_of(run, AttackSettings)) for run in runs)
    same = ((s.limit, s.seed, s.precision) == asked and r.hashes.models == models for r, s in said)
    return sum(same)


def _seconds(
    block: Block, row: Row, setup: Setup, part: AbstractProblem, clock: Clock, steps: int
) -> float:
    rule = row.strategy.rule if isinstance(row.strategy.rule, str) else "average"
    given = {"seed": setup.seed, "precision": [setup.precision], "steps": steps}
    settings = block.row_settings(row.strategy, rule, method=setup.method, **given)
    seen = look(part)
    solve = build.solver_of(settings, seen, part)
    solve_once = build.solver_of(settings.model_copy(update={"steps": 1}), seen, part)
    solve_once(part, rule_words.rule(settings.rule), lambda _: None)  # what comes first is slower
    began = clock()
    solve(part, rule_words.rule(settings.rule), lambda _: None)
    return clock() - began


def _wrong(part: AbstractProblem) -> float:
    """The share of rows in which some domain is wrong from the start."""
    with torch.no_grad():
        table = fooled(part.logits(part.zeros()), part.truth)
    return float(table.any(dim=1).double().mean())
