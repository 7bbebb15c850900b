"""Defences: what the paper publishes of its own networks, and what is kept of those that we have trained.

The paper's are trained for longer and larger than most of ours. Ours are in `defence.json`, which
`python -m benchmarks.defence` writes: of every training its command, the weights of the last epoch, and for
every suite of attacks on which images the network stays right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from saddlepoint.experiments.truths import unpacked
from saddlepoint.runs.plain import quoted, read_json, read_plain

__all__ = ["DEFENCE_SCHEMA", "PUBLISHED", "PublishedRow", "Suite", "Trained", "read_defences"]

DEFENCE_SCHEMA = 1
"""Raised whenever an older file would be misunderstood."""

PublishedRow = tuple[float, float, float, float]
"""Accuracy in percent under linf, l2, l1, and under all three."""

PUBLISHED: dict[tuple[str, str], dict[str, PublishedRow]] = {
    ("mnist", "paper"): {
        "linf": (90.3, 13.6, 4.2, 3.7),
        "l2": (0.4, 69.2, 43.4, 0.4),
        "l1": (0.0, 38.5, 70.0, 0.0),
        "MAX": (51.0, 61.9, 52.6, 42.1),
        "AVG": (65.2, 60.1, 39.2, 34.9),
        "MSD": (62.7, 67.9, 65.0, 58.4),
        "AMPGD": (76.1, 70.2, 67.2, 64.1),
    },
    ("mnist", "autoattack"): {
        "linf": (89.5, 3.5, 2.4, 1.7),
        "l2": (0.0, 67.6, 60.1, 0.0),
        "l1": (0.0, 37.3, 71.9, 0.0),
        "MAX": (55.0, 56.9, 46.5, 36.9),
        "AVG": (52.8, 55.8, 40.7, 30.5),
        "MSD": (56.6, 68.1, 70.0, 55.9),
        "AMPGD": (74.4, 63.8, 60.5, 59.3),
    },
    ("mnist", "autoattack+"): {
        "linf": (89.6, 2.1, 1.8, 1.2),
        "l2": (0.0, 67.4, 60.4, 0.0),
        "l1": (0.0, 36.8, 71.4, 0.0),
        "MAX": (54.4, 55.9, 42.3, 34.3),
        "AVG": (52.4, 53.8, 36.7, 28.8),
        "MSD": (55.7, 67.3, 68.6, 54.8),
        "AMPGD": (74.3, 61.9, 59.8, 58.3),
    },
    ("cifar10", "autoattack"): {
        "linf": (47.8, 57.5, 13.7, 12.8),
        "l2": (22.7, 63.1, 23.6, 18.4),
        "l1": (0.0, 0.1, 1.4, 0.0),
        "MAX": (39.2, 62.0, 36.0, 30.8),
        "AVG": (40.7, 65.5, 58.8, 40.4),
        "MSD": (44.4, 64.9, 52.4, 44.1),
        "AMPGD": (46.9, 64.4, 52.3, 46.2),
    },
}
"""By data set and suite, then by method."""


class Suite(NamedTuple):
    """What a suite of attacks left of a network: on which images it stays right, "clean" and by threat."""

    images: int
    right: Mapping[str, tuple[bool, ...]]


class Trained(NamedTuple):
    """A network that was trained for a row of a table with a seed."""

    table: str
    row: str
    seed: int
    command: str
    weights: Mapping[str, float]
    suites: Mapping[str, Suite]


@dataclass(frozen=True)
class _Kept:
    command: str
    weights: dict[str, float]
    suites: dict[str, dict[str, int | str]]


@dataclass(frozen=True)
class _File:
    schema: int
    trainings: dict[str, _Kept] = field(default_factory=dict)


def read_defences(file: Path) -> list[Trained]:
    """All trainings that a file keeps; none where there is no file.

    Raises:
        ValueError: It has another schema, or is not as it was written.
    """
    if not file.is_file():
        return []
    must = f"`{file}` must be as `python -m benchmarks.defence` writes it"
    remedy = "take it from version control again, or move it away and repeat that command"
    raw = read_json(file, must, remedy)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != DEFENCE_SCHEMA:
        raise ValueError(f"{must}, with schema {DEFENCE_SCHEMA}, got {schema}; {remedy}.")
    found = []
    for key, kept in read_plain(_File, raw, must, remedy).trainings.items():
        if re.fullmatch(r"[^/]+/[^/]+/(0|[1-9][0-9]*)", key) is None:
            raise ValueError(f"{must}, got a training called {quoted(key)}; {remedy}.")
        if not all(map(isfinite, kept.weights.values())):
            raise ValueError(f"{must}, got {quoted(kept.weights)} as weights of {key}; {remedy}.")
        try:
            norms = {"clean", *re.findall(r" --threat (\w+):", kept.command)}
            suites = {name: _suite(each, norms) for name, each in kept.suites.items()}
        except ValueError as error:
            raise ValueError(f"{must}, got other verdicts of {key}; {remedy}.") from error
        table, row, seed = key.split("/")
        found.append(Trained(table, row, int(seed), kept.command, kept.weights, suites))
    return found


def _suite(raw: Mapping[str, int | str], names: set[str]) -> Suite:
    """A suite as it is kept: a number of images, and digits for "clean" and every threat.

    Where one is missing the union would be that of the others, and too high.
    """
    images, digits = raw.get("images"), {n: d for n, d in raw.items() if isinstance(d, str)}
    if not isinstance(images, int) or images < 1 or len(digits) != len(raw) - 1:
        raise ValueError(f"`images` must be a number of images, got {quoted(images)}")
    if digits.keys() != names or len(names) < 2:
        raise ValueError(f"digits must be those of {sorted(names)}, got {sorted(digits)}")
    return Suite(images, {n: unpacked(each, images, filled="after") for n, each in digits.items()})
