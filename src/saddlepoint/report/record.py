"""The record of a run: what was asked, what it ran on, what came out. The file `run.json`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, final

import torch

from saddlepoint.data.files import write_atomically

__all__ = ["EVALUATE", "SCHEMA_VERSION", "Hashes", "Run", "machine", "versions"]

SCHEMA_VERSION = 1
"""Raised whenever a reader of older files would misunderstand the new ones."""

EVALUATE = "evaluate"
"""The kind of a run that counts what stands under attacks; the other kinds attack."""

Status = Literal["running", "interrupted", "complete"]


@final
@dataclass(frozen=True)
class Hashes:
    """Content hashes: what has to be the same for a run to be continued.

    Attributes:
        config: Of every setting that can change a number.
        models: Of architecture and weights, one per model name.
        data: Of images and labels.
    """

    config: str
    models: Mapping[str, str]
    data: str


@final
@dataclass(frozen=True)
class Run:
    """One run, as it stands in `run.json`.

    Attributes:
        kind: "ensemble", "universal" or "transform" for attacks, "evaluate".
        command: The line that repeats the run.
        config: All settings, defaults included.
        domains: Names, in the order of every axis K.
        classes: Names of the classes.
        rows: Rows in all; `done` of them are attacked.
        seconds: Time in attacks, over all parts of a resumed run.
        gradient_evaluations: Evaluations of all domains, summed over rows ("total") and "per_row".
        metrics: In percent, see `saddlepoint.report.metrics` and `saddlepoint.report.evaluation`.
        warnings: What the library had to say about the models.

    Example:
        >>> run = Run(kind="ensemble", command="saddlepoint demo", config={"eps": 0.2}, seed=0,
        ...           domains=("A", "B"), classes=("0", "1"), rows=8, hashes=Hashes("c", {}, "d"))
        >>> Run.from_json(run.to_json()) == run
        True
    """

    kind: str
    command: str
    config: Mapping[str, Any]
    seed: int
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    rows: int
    hashes: Hashes
    schema_version: int = SCHEMA_VERSION
    status: Status = "running"
    done: int = 0
    seconds: float = 0.0
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    machine: Mapping[str, Any] = field(default_factory=lambda: machine())
    gradient_evaluations: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Indented JSON with a final newline."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Run:
        """Read what `to_json` wrote.

        Raises:
            ValueError: Not a record, or one of another schema version.
        """
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"`run.json` must be JSON, got {error}.") from error
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"`run.json` must have schema version {SCHEMA_VERSION}, got {version}; "
                "read it with the release that wrote it, or repeat the run."
            )
        known = {item.name for item in fields(Run)}
        if set(raw) - known or not {"kind", "config", "domains", "hashes"} <= set(raw):
            odd = sorted(set(raw) ^ known)
            raise ValueError(f"`run.json` must hold a run, got missing or unknown fields {odd}.")
        for name in ("domains", "classes", "warnings"):
            raw[name] = tuple(raw[name])
        return Run(**{**raw, "hashes": Hashes(**raw["hashes"])})

    def write(self, folder: Path) -> None:
        """Write `run.json` in the folder, whole or not at all."""
        write_atomically(folder / "run.json", self.to_json().encode())

    @staticmethod
    def read(folder: Path) -> Run:
        """Read `run.json` of a folder.

        Raises:
            ValueError: No such file, or not a record.
        """
        path = folder / "run.json"
        if not path.is_file():
            raise ValueError(f"`{folder}` must be a run directory, got no run.json in it.")
        return Run.from_json(path.read_text(encoding="utf-8"))

    def but(self, **changes: Any) -> Run:
        """The same record with some fields replaced."""
        return replace(self, **changes)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers.

    Example:
        >>> sorted(versions())
        ['numpy', 'python', 'saddlepoint', 'torch']
    """
    from saddlepoint import __version__

    packages = {name: metadata.version(name) for name in ("numpy", "torch")}
    return {"saddlepoint": __version__, "python": platform.python_version(), **packages}


def machine() -> dict[str, Any]:
    """What the run ran on, without anything that names a person, a host or a path.

    Example:
        >>> machine()["cpus"] >= 1
        True
    """
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "gpus": torch.cuda.device_count(),
    }
