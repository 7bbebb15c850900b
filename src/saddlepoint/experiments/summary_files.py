"""Files of summaries: what is in them, and what they are refused for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddlepoint.experiments.plan import Experiment
from saddlepoint.runs.plain import read_json, read_plain

__all__ = ["SUMMARY_VERSION", "read_content"]

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
    lines: list[list[Any]]


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
    read_plain(_Stored, content, must, "move it away")
    return content
