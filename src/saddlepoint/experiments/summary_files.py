"""Files of summaries: what is in them, and what they are refused for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from saddlepoint.experiments.block_parts import domain_names
from saddlepoint.experiments.finished import Results
from saddlepoint.experiments.plan import LABELS, METHODS, Experiment
from saddlepoint.experiments.summary import tables_of
from saddlepoint.runs.plain import quoted, read_json, read_plain
from saddlepoint.runs.settings import UniversalSettings

__all__ = ["SUMMARY_VERSION", "check_content", "read_content"]

SUMMARY_VERSION = 1
"""Raised whenever an older file would be misunderstood."""


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
    verdicts: str = ""
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
    # Of groups of images neither is kept: the position of an image in its group means nothing.
    names = {
        block.key: set()
        if isinstance(block.settings, UniversalSettings)
        else {*domain_names(block)}
        for block in experiment.blocks
    }
    for row in stored.rows:
        found = _wrong_in(row)
        if set(row.accuracy) != names.get(row.block, set(row.accuracy)):
            found = found or (row.accuracy, "accuracy")
        if found is not None:
            value, key = found
            return f"{quoted(value)} as `{key}` of {row.block}, {row.strategy}"
    there = {row.block for row in stored.rows}
    for network in (n for block in experiment.blocks if block.key in there for n in block.networks):
        if network not in stored.networks:
            return f"no hash of {network} in `networks`"
    for entry in stored.measured:
        if {"key", "method"} - set(entry) or entry["method"] not in METHODS:
            return f"{quoted(entry.get('method'))} as `method` of {quoted(entry.get('key'))}"
    if not stored.lines:
        return None
    width = len(tables_of(Results(experiment, ()))[0].columns) if experiment.measurements else 0
    for line in stored.lines:
        numbers = [n for c in line for n in (c if isinstance(c, tuple) else (c,))]
        if len(line) != width or any(isinstance(n, float) and not isfinite(n) for n in numbers):
            return f"{quoted(line)} among its lines"
    return None


def _wrong_in(row: _StoredRow) -> tuple[object, str] | None:
    """The first value of a row that cannot be, and its key."""
    low, high = row.asr_all_interval
    percentages = {
        "asr_all": [row.asr_all],
        "asr_all_interval": [low, high],
        "asr_avg": [row.asr_avg],
        "accuracy": list(row.accuracy.values()),
    }
    for key, values in percentages.items():
        for value in values:
            if not 0 <= value <= 100:
                return value, key
    if not low <= row.asr_all <= high:
        return row.asr_all, "asr_all"
    if set(row.accuracy) != set(row.weights):
        return row.accuracy, "accuracy"
    for key, numbers in (("weights", row.weights.values()), ("evaluations", [row.evaluations])):
        for number in numbers:
            if not isfinite(number):
                return number, key
    if row.images < 1 or row.rows < 1:
        return (row.images, "images") if row.images < 1 else (row.rows, "rows")
    if row.method not in METHODS:
        return row.method, "method"
    return (row.labels, "labels") if row.labels not in LABELS else None
