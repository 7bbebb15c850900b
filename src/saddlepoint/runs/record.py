"""The record of a run: what was asked, what it ran on, what came out. The file `run.json`."""

from __future__ import annotations

import hashlib
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

from saddlepoint.files import write_atomically

__all__ = [
    "EVALUATE",
    "RECORD",
    "SCHEMA_VERSION",
    "TENSORS",
    "Hashes",
    "Kind",
    "Run",
    "Status",
    "machine",
    "versions",
]

RECORD = "run.json"
"""The file of the record inside a run folder."""

TENSORS = "tensors.safetensors"
"""What every row of a finished run came to."""

SCHEMA_VERSION = 3
"""Raised whenever a reader of older files would misunderstand the new ones."""

Kind = Literal["ensemble", "universal", "transform", "evaluate", "train", "measure"]
Status = Literal["running", "interrupted", "failed", "complete"]

EVALUATE: Kind = "evaluate"
"""The kind of a run that counts what withstands attacks."""

# What runs of a kind write besides their record; attacks write tensors and a report.
_FILES: dict[str, tuple[str, ...]] = {
    "evaluate": (TENSORS, "report.html", "table.md", "table.csv", "table.tex"),
    "train": (
        "checkpoint.safetensors",
        "best.safetensors",
        "history.jsonl",
        "model.safetensors",
        "model.json",
        "report.html",
    ),
    "measure": (),
}


@final
@dataclass(frozen=True)
class Hashes:
    """Content hashes: what has to be the same for a run to be continued.

    Attributes:
        settings: Of every setting that can change a number.
        models: Of architecture, parameters and code, one per model name.
        data: Of images and labels.
    """

    settings: str
    models: Mapping[str, str]
    data: str

    @property
    def fingerprint(self) -> str:
        """One hash of all of them: results under another fingerprint belong to another run."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@final
@dataclass(frozen=True)
class Run:
    """One run of any kind, as it is in `run.json`.

    Attributes:
        kind: "ensemble", "universal" or "transform" for attacks, "evaluate", "train", "measure".
        command: The line that repeats the run.
        settings: All settings, defaults included; brought to what JSON can say, as they are read back.
        seed: Of everything random.
        domains: Names, in the order of every axis K: models, images, views or threats.
        classes: Names of the classes.
        rows: How many rows there are in all; `done` of them are finished. Epochs for "train".
        hashes: What the run was made of.
        status: "complete" only if every row is finished and everything is written.
        seconds: Time of the work, over all parts of a resumed run.
        metrics: In percent; see `saddlepoint.runs.metrics`.
        warnings: What the library had to say.

    Example:
        >>> run = Run(kind="ensemble", command="saddlepoint demo", settings={"eps": 0.2}, seed=0,
        ...           domains=("A", "B"), classes=("0", "1"), rows=8, hashes=Hashes("c", {}, "d"))
        >>> Run.from_json(run.to_json()) == run
        True
    """

    kind: Kind
    command: str
    settings: Mapping[str, Any]
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
    metrics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plain = json.loads(json.dumps(self.settings, default=str))
        object.__setattr__(self, "settings", plain)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of everything a run of this kind may write into its folder, pages aside."""
        return (RECORD, *_FILES.get(self.kind, (TENSORS, "report.html")))

    def to_json(self) -> str:
        """Indented JSON with a final newline; the last entry is the digest of the others."""
        plain = asdict(self)
        plain["digest"] = _digest(plain)
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Run:
        """Read what `to_json` wrote.

        Raises:
            ValueError: Not a record, one of another schema version, or one that was changed since.
        """
        try:
            raw = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"`{RECORD}` must be JSON, got {error}.") from error
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"`{RECORD}` must have schema version {SCHEMA_VERSION}, got {version}; "
                "read it with the release that wrote it, or repeat the run."
            )
        if raw.pop("digest", None) != _digest(raw):
            raise ValueError(
                f"`{RECORD}` must be as it was written, got other content: it is damaged or was edited."
            )
        known = {item.name for item in fields(Run)}
        if set(raw) != known:
            odd = sorted(set(raw) ^ known)
            raise ValueError(f"`{RECORD}` must hold a run, got missing or unknown fields {odd}.")
        try:
            lists = {name: tuple(raw[name]) for name in ("domains", "classes", "warnings")}
            return Run(**{**raw, **lists, "hashes": Hashes(**raw["hashes"])})
        except TypeError as error:
            raise ValueError(f"`{RECORD}` must hold a run, got {error}.") from error

    def write(self, folder: Path) -> None:
        """Write `run.json` in the folder, whole or not at all."""
        write_atomically(folder / RECORD, self.to_json().encode())

    @staticmethod
    def read(folder: Path) -> Run:
        """Read `run.json` of a folder.

        Raises:
            ValueError: No such file, or not a record; the message names the folder.
        """
        path = folder / RECORD
        if not path.is_file():
            raise ValueError(f"`{folder}` must be a run folder, got no {RECORD} in it.")
        try:
            return Run.from_json(path.read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise ValueError(f"`{folder}` must be a readable run: {error}") from error

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


def _digest(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
