"""Files of summaries: what is in them, and what they are refused for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isinf
from pathlib import Path
from statistics import fmean
from typing import Any

from saddlepoint.evaluation.rates import wilson
from saddlepoint.experiments.block_parts import domain_names
from saddlepoint.experiments.plan import LABELS, METHODS, RESTARTS, Block, Experiment
from saddlepoint.experiments.stored_lines import wrong_lines, wrong_measured
from saddlepoint.experiments.truths import unpacked
from saddlepoint.runs.plain import quoted, read_json, read_plain
from saddlepoint.runs.settings import UniversalSettings

__all__ = ["SUMMARY_VERSION", "check_content", "read_content"]

SUMMARY_VERSION = 1
"""Raised whenever an older file would be misunderstood."""

_ROUNDED = 1e-4  # rates and paths have four digits behind the point


@dataclass(frozen=True)
class _StoredRow:
    block: str
    strategy: str
    method: str
    labels: str
    limit: int | None
    images: int
    rows: int
    seed: int
    rule: str
    evaluations: float
    asr_all: float
    asr_all_interval: tuple[float, float]
    asr_avg: float
    accuracy: dict[str, float]
    weights: dict[str, float]
    settings: str
    precision: str = "float32"
    verdicts: str | None = None
    settled: int = 0
    path: dict[str, list[float]] | None = None


@dataclass(frozen=True)
class _Stored:
    schema_version: int
    experiment: str
    versions: list[dict[str, str]]
    networks: dict[str, str]
    rows: list[_StoredRow]
    measured: list[dict[str, str | int]]
    lines: list[list[str | float | int | tuple[float, float] | None]]


def read_content(experiment: Experiment, store: Path) -> dict[str, Any]:
    """What the summary of an experiment holds, as JSON has it.

    Args:
        experiment: Which one.
        store: Folder with summaries.

    Raises:
        ValueError: There is none, or it is not as `write_summary` writes it.
    """
    path = store / f"{experiment.name}.json"
    if not path.is_file():
        raise ValueError(
            f"`{store}` must hold a summary of {experiment.name}, got no {path.name} there; write it with "
            f"`saddlepoint reproduce {experiment.name} --store {store}`."
        )
    must = f"`{path}` must be a summary as `reproduce --store` writes it"
    content = read_json(path, must, "move it away")
    if not isinstance(content, dict):
        raise ValueError(f"{must}, got a file that holds none; move it away.")
    if (version := content.get("schema_version")) != SUMMARY_VERSION:
        raise ValueError(f"`{path}` must have version {SUMMARY_VERSION}, got {version}.")
    check_content(experiment, content, must, "move it away")
    return content


def check_content(
    experiment: Experiment, content: Mapping[str, Any], must: str, remedy: str
) -> None:
    """Refuse a summary that no experiment can have come to, before it is written and when it is read.

    Args:
        experiment: Which one.
        content: As JSON has it.
        must: The requirement, for the complaint.
        remedy: What to do otherwise.

    Raises:
        ValueError: With the first thing that cannot be.
    """
    stored = read_plain(_Stored, content, must, remedy)
    if wrong := _wrong(experiment, stored):
        raise ValueError(f"{must}, got {wrong}; {remedy}.")


def _wrong(experiment: Experiment, stored: _Stored) -> str | None:
    """The first thing in a summary that no experiment can have found."""
    if stored.experiment != experiment.name:
        return f"that of {stored.experiment}"
    blocks, there = {block.key: block for block in experiment.blocks}, set[tuple[str, ...]]()
    for row in stored.rows:
        if (found := _wrong_in(row, blocks.get(row.block))) is not None:
            value, key = found
            return f"{quoted(value)} as `{key}` of {row.block}, {row.strategy}"
        place = (row.block, row.strategy, row.method, row.labels)
        if place in there:
            return f"a second row of {', '.join(place)}"
        there.add(place)
    attacked = {row.block for row in stored.rows} & set(blocks)
    for network in (name for key in sorted(attacked) for name in blocks[key].networks):
        if network not in stored.networks:
            return f"no hash of {network} in `networks`"
    counts = {(row.block, row.method): row.rows for row in stored.rows}
    return wrong_measured(experiment, stored.measured) or wrong_lines(
        experiment, stored.lines, stored.measured, counts
    )


def _wrong_in(row: _StoredRow, block: Block | None) -> tuple[object, str] | None:
    """The first value of a row that cannot be, and its key; `block` is None where the experiment has none."""
    if row.method not in METHODS:
        return row.method, "method"
    if row.labels not in LABELS:
        return row.labels, "labels"
    for key in ("images", "rows"):
        if (count := getattr(row, key)) < 1:
            return count, key
    low, high = row.asr_all_interval
    path = [] if row.path is None else [weight for each in row.path.values() for weight in each]
    within: dict[str, tuple[float, Iterable[float]]] = {
        "asr_all": (100, [row.asr_all]),
        "asr_all_interval": (100, [low, high]),
        "asr_avg": (100, [row.asr_avg]),
        "accuracy": (100, row.accuracy.values()),
        "weights": (1 + _ROUNDED, row.weights.values()),
        "path": (1 + _ROUNDED, path),
    }
    for key, (most, values) in within.items():
        for value in values:
            if not 0 <= value <= most:
                return value, key
    if not low <= row.asr_all <= high:
        return row.asr_all, "asr_all"
    if set(row.accuracy) != set(row.weights):
        return row.accuracy, "accuracy"
    return (
        _wrong_for(row, block)
        or _wrong_verdicts(row)
        or _wrong_interval(row)
        or _wrong_means(row)
        or _wrong_path(row, block)
    )


def _wrong_for(row: _StoredRow, block: Block | None) -> tuple[object, str] | None:
    """The first value of a row that cannot be in its block, and its key."""
    most, size = inf, None
    if block is not None:
        # Every restart takes at most the steps, and one evaluation more; in fewer bits, or another layout,
        # `attack` asks what looks fooled once more.
        again = 2 if row.method != "apgda" and row.precision != "float32" else 1
        most = again * RESTARTS[row.method] * (block.settings.steps + 1)
        size = block.settings.group_size if isinstance(block.settings, UniversalSettings) else 1
        # Of groups of images there are no names: the position of an image in its group means nothing.
        if set(row.accuracy) != {*domain_names(block)}:
            return row.accuracy, "accuracy"
    if not 0 < row.evaluations <= most or isinf(row.evaluations):
        return row.evaluations, "evaluations"
    if not 0 <= row.settled <= most:
        return row.settled, "settled"
    if (size is not None and row.images != row.rows * size) or row.images > (row.limit or inf):
        return row.images, "images"
    return None


def _wrong_verdicts(row: _StoredRow) -> tuple[object, str] | None:
    """What does not agree with the verdicts of a row, where it has them, and its key."""
    if row.verdicts is None:
        return None
    try:
        fooled = unpacked(row.verdicts, row.rows, filled="before")
    except ValueError:
        return row.verdicts, "verdicts"
    if abs(100 * fmean(fooled) - row.asr_all) > _ROUNDED:
        return row.asr_all, "asr_all"
    return None


def _wrong_interval(row: _StoredRow) -> tuple[object, str] | None:
    """An interval that is not that of so many rows."""
    low, high = row.asr_all_interval
    least, most = wilson(round(row.asr_all * row.rows / 100), row.rows)
    if max(abs(low - 100 * least), abs(high - 100 * most)) <= _ROUNDED:
        return None
    return [low, high], "asr_all_interval"


def _wrong_means(row: _StoredRow) -> tuple[object, str] | None:
    """Means over rows that contradict each other: rates, accuracies and weights."""
    if row.asr_all > row.asr_avg + _ROUNDED:
        return row.asr_avg, "asr_avg"
    if not row.accuracy:
        return None
    missed = row.accuracy.values()
    if abs(100 - fmean(missed) - row.asr_avg) > _ROUNDED:
        return row.asr_avg, "asr_avg"
    # What fools all domains fools the hardest one, and every other row is missed by one at least.
    if not 100 - sum(missed) <= row.asr_all + len(missed) * _ROUNDED:
        return row.accuracy, "accuracy"
    if row.asr_all > 100 - max(missed) + _ROUNDED:
        return row.accuracy, "accuracy"
    if abs(sum(row.weights.values()) - 1) > _ROUNDED:
        return row.weights, "weights"
    return None


def _wrong_path(row: _StoredRow, block: Block | None) -> tuple[object, str] | None:
    """Mean weights of the steps that are not those of the domains, of every step, to the final ones."""
    if row.path is None:
        return None
    each = list(row.path.values())
    lengths = {len(means) for means in each}
    steps = lengths if block is None else {block.settings.steps + 1}
    if list(row.path) != list(row.weights) or lengths != steps or lengths == {0}:
        return row.path, "path"
    if any(abs(sum(now) - 1) > len(each) * _ROUNDED for now in zip(*each, strict=True)):
        return row.path, "path"
    # `attack` may keep other weights than those of its last step.
    last = max(abs(row.path[name][-1] - weight) for name, weight in row.weights.items())
    return (row.path, "path") if row.method == "apgda" and last > _ROUNDED else None
