"""The record of a run: what was asked, what it ran on, what came out. The file `run.json`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from pydantic import Field

from saddlepoint.files import write_atomically
from saddlepoint.runs.drawn import DRAWN
from saddlepoint.runs.model_words import CARD, NETWORK
from saddlepoint.runs.plain import quoted, read_plain
from saddlepoint.training.session import BEST, CHECKPOINT, HISTORY

__all__ = [
    "BOARD",
    "EVALUATE",
    "RECORD",
    "ROW_NOUNS",
    "SCHEMA_VERSION",
    "SEEN",
    "TENSORS",
    "Hashes",
    "Kind",
    "Machine",
    "Run",
    "Status",
    "versions",
]

RECORD = "run.json"
"""The file of the record inside a run folder."""

TENSORS = "tensors.safetensors"
"""What every row of a finished run came to."""

SEEN = "seen.safetensors"
"""What a training has seen: one number per image, and what its network said to the first ones."""

BOARD = "tensorboard"
"""The folder of a training with scalars for TensorBoard."""

SCHEMA_VERSION = 5
"""Raised whenever a reader of older files would misunderstand the new ones."""

Kind = Literal["ensemble", "universal", "transform", "patch", "evaluate", "train", "measure"]
Status = Literal["running", "interrupted", "failed", "complete"]

EVALUATE: Kind = "evaluate"
"""The kind of a run that counts what withstands attacks."""

ROW_NOUNS = {"universal": "groups", "patch": "patches", "train": "epochs"}
"""What the rows of attacks are, by kind; images where it is not here."""

# What runs of a kind write besides their record: results, and what is drawn of them; attacks are the default.
_RESULTS: dict[str, tuple[str, ...]] = {
    "train": (CHECKPOINT, BEST, HISTORY, NETWORK, CARD, SEEN),
    "measure": (),
}
_TABLES = (DRAWN, "table.md", "table.csv", "table.tex")  # the last ones are removed first
_DRAWN: dict[str, tuple[str, ...]] = {
    "train": ("report.html",),
    "patch": ("report.html", DRAWN, "patch.png", "patch-true-size.png"),
    "evaluate": ("report.html", *_TABLES),
    "measure": (),
}

_LATER = ("asked", "taken")  # only where there is something to say, and in no older record
_EVENTS = "events.out.tfevents."  # how TensorBoard calls its files
_Count = Annotated[int, Field(ge=0)]
# A folder whose record cannot be read is not overwritten: nobody knows which files in it are ours.
_AGAIN = "repeat the run into another --out, or delete this folder"


@final
@dataclass(frozen=True)
class Machine:
    """What a run ran on, without anything that names a person, a host or a path.

    Example:
        >>> Machine.this().cpus >= 1
        True
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    system: str
    architecture: str
    cpus: int
    threads: int
    gpus: int

    @staticmethod
    def this() -> Machine:
        """The one that this process runs on."""
        return Machine(
            system=platform.system(),
            architecture=platform.machine(),
            cpus=os.cpu_count() or 1,
            threads=torch.get_num_threads(),
            gpus=torch.cuda.device_count(),
        )


@final
@dataclass(frozen=True)
class Hashes:
    """Content hashes: what has to be the same for a run to be continued.

    Attributes:
        settings: Of every setting that can change a number.
        models: Of architecture, parameters and code, one per model name.
        data: Of images and labels.
        victims: Of models that the attack never asks, one per name.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    settings: str
    models: Mapping[str, str]
    data: str
    victims: Mapping[str, str] = field(default_factory=dict)

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
        kind: "ensemble", "universal", "transform" or "patch" for attacks, "evaluate", "train", "measure".
        command: The line that repeats the run.
        settings: All settings, defaults included; brought to what JSON can say, as they are read back.
        asked: Settings as they were given, where they have become others, such as precision "auto".
        taken: What follows: steps from evaluations, and which models have filters with their channels last.
        seed: Of everything random.
        domains: Names, in the order of every axis K: models, images, views or threats.
        classes: Names of the classes.
        rows: How many rows there are in all; `done` of them are finished. Epochs for "train".
        hashes: What the run was made of.
        status: "complete" only if every row is finished and everything is written.
        seconds: Time of the work, over all parts of a resumed run.
        metrics: In percent; see `saddlepoint.runs.metrics`.
        warnings: What the library had to say.
        digests: SHA-256 of the files with results, by name; empty until the run is complete.

    Example:
        >>> run = Run(kind="ensemble", command="saddlepoint demo", settings={"eps": 0.2}, seed=0,
        ...           domains=("A", "B"), classes=("0", "1"), rows=8, hashes=Hashes("c", {}, "d"))
        >>> Run.from_json(run.to_json()) == run
        True
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}

    kind: Kind
    command: str
    settings: Mapping[str, Any]
    seed: int
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    rows: _Count
    hashes: Hashes
    schema_version: int = SCHEMA_VERSION
    status: Status = "running"
    done: _Count = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    machine: Machine = field(default_factory=Machine.this)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    taken: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("settings", "asked"):
            plain = json.loads(json.dumps(getattr(self, name), default=str))
            object.__setattr__(self, name, plain)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of everything a run of this kind may write into its folder, pages aside."""
        board = (BOARD,) if self.kind == "train" else ()
        return (RECORD, *self.results, *self.drawn, *board)

    @property
    def drawn(self) -> tuple[str, ...]:
        """Names of the files that are drawn of the results when the run is complete."""
        tables = _TABLES if self.hashes.victims else ()
        return _DRAWN.get(self.kind, ("report.html", *tables))

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the files that hold what came out."""
        return _RESULTS.get(self.kind, (TENSORS,))

    def line_to_resume(self, folder: Path, *more: str) -> str:
        """The line that continues the run in its folder, with `more` words.

        A part of an experiment is continued with the experiment, whose folder is above. A record that does not
        name a command of ours, which somebody else must have written, gives no line of its own.

        Example:
            >>> run = Run(kind="ensemble", command="saddlepoint reproduce steps-mnist", settings={}, seed=0,
            ...           domains=("A",), classes=(), rows=8, hashes=Hashes("c", {}, "d"))
            >>> run.line_to_resume(Path("my runs/true/apgda/linf/minmax"))
            "saddlepoint reproduce steps-mnist --out 'my runs' --resume"
        """
        try:
            words = shlex.split(self.command)
        except ValueError:  # a quotation that does not end
            words = []
        if words[:1] != ["saddlepoint"]:
            return "the command that began it, and --resume (its record names none of saddlepoint)"
        if words[1:2] == ["reproduce"]:
            # FOLDER/labels/method/setting/row or FOLDER/labels/method/measurement
            above = 2 if self.kind == "measure" else 3
            whole = len(folder.parents) > above and ".." not in folder.parts
            folder = (folder if whole else folder.resolve()).parents[above]
        return shlex.join([*words, "--out", str(folder), *more, "--resume"])

    def to_json(self) -> str:
        """Indented JSON with a final newline; the last entry is the digest of the others."""
        plain = {key: value for key, value in asdict(self).items() if value or key not in _LATER}
        plain["digest"] = _digest(plain)
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Run:
        """Read what `to_json` wrote.

        Raises:
            ValueError: Not a record, one of another schema version, or one that was changed since.
        """
        try:
            raw = json.loads(text, parse_float=_finite, parse_constant=_finite)
        except json.JSONDecodeError as error:
            raise ValueError(f"`{RECORD}` must be JSON, got {error}; {_AGAIN}.") from error
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"`{RECORD}` must have schema version {SCHEMA_VERSION}, got {quoted(version)}; read it with "
                f"the release that wrote it, or {_AGAIN}."
            )
        if raw.pop("digest", None) != _digest(raw):
            raise ValueError(
                f"`{RECORD}` must be as it was written, got other content: it is damaged or was edited; "
                f"{_AGAIN}."
            )
        missing = [item.name for item in fields(Run) if item.name not in {*raw, *_LATER}]
        if missing:
            raise ValueError(f"`{RECORD}` must hold a run, got no `{missing[0]}`; {_AGAIN}.")
        return read_plain(Run, raw, f"`{RECORD}` must hold a run")

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
        except (ValueError, RecursionError) as error:
            raise ValueError(f"`{folder}` must be a readable run: {error}") from error

    def remove(self, folder: Path) -> None:
        """Remove what a run of this kind writes, its record last: until then it can be removed again.

        Raises:
            ValueError: The folder of TensorBoard holds files that are not its own; nothing is removed.
        """
        board = folder / BOARD
        events = sorted(board.iterdir()) if BOARD in self.files and board.is_dir() else []
        foreign = [
            each.name for each in events if not (each.name.startswith(_EVENTS) and each.is_file())
        ]
        if events and (foreign or board.is_symlink()):
            got = repr(foreign[0]) if foreign else "a link"
            raise ValueError(
                f"`{board}` must hold nothing but scalars of the run, got {got}, which saddlepoint did not "
                "write; choose another --out."
            )
        for path in events:
            path.unlink()
        if events:
            board.rmdir()
        for name in reversed(self.files):
            if name != BOARD:
                (folder / name).unlink(missing_ok=True)

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

    packages = {name: _version(name) for name in ("numpy", "torch")}
    return {"saddlepoint": __version__, "python": platform.python_version(), **packages}


_version = cache(metadata.version)  # which reads a file


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"`{RECORD}` must hold finite numbers, got {text[:100]}; {_AGAIN}.")
    return value


def _digest(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
