"""Trains and evaluates what is missing, and keeps of every network what its table needs, image by image."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.stores import StoreError, not_whole
from saddlepoint.evaluation import RobustAccuracy
from saddlepoint.experiments.defences import DEFENCE_SCHEMA, read_defences
from saddlepoint.experiments.truths import packed
from saddlepoint.files import write_atomically
from saddlepoint.runs import RECORD, Run, hash_model, locked
from saddlepoint.runs.preparing import prepared
from saddlepoint.runs.reading import read_results
from saddlepoint.runs.settings import EvaluateSettings, TrainSettings

from . import networks, unseen
from .plan import Table, Training

_WANTED = {"sha256", "accuracy", "validation"}  # beside what `read_defences` looks at


class Store:
    """Networks by key, each with the line that trains it, its numbers, and who was right on which image."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {"schema": DEFENCE_SCHEMA, "trainings": {}}
        self._read()

    def _read(self) -> None:
        if not self.path.is_file():
            return
        try:
            read_defences(self.path)  # refuses what is damaged
        except ValueError as error:
            raise StoreError(str(error)) from error
        content = json.loads(self.path.read_text(encoding="utf-8"))
        for key, each in content["trainings"].items():
            if not (each.keys() >= _WANTED and _is_percent(each["accuracy"])):
                raise not_whole(self.path, DEFENCE_SCHEMA, key)
        self.content = content

    @property
    def networks(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content["trainings"]
        return found

    def has(self, training: Training, suite: str, images: int) -> bool:
        """Whether the network of this very training has been judged on so many images, or on more."""
        found = self.networks.get(training.key, {})
        same = found.get("command") == training.settings.command()
        return same and found["suites"].get(suite, {}).get("images", 0) >= images

    def keep(self, training: Training, about: dict[str, Any], suite: str, judged: Any) -> None:
        """Add what a suite found; of a network that was trained anew the older findings are dropped."""
        with locked(self.path.parent, wait=60):
            self._read()  # another process may have added to it
            old = self.networks.get(training.key, {})
            suites = old["suites"] if old.get("sha256") == about["sha256"] else {}
            self.networks[training.key] = {**about, "suites": {**suites, suite: judged}}
            self.content["trainings"] = dict(sorted(self.networks.items()))
            write_atomically(self.path, (json.dumps(self.content, indent=1) + "\n").encode())


@dataclass(frozen=True)
class Part:
    """What of the tables is wanted, so that cores and machines can divide them.

    Attributes:
        only: Networks, TABLE/ROW/SEED, or TABLE/ROW for all seeds; in this order. None is all.
        suites: Judges. None is all.
    """

    only: Sequence[str] | None = None
    suites: Sequence[str] | None = None

    def trainings(self, tables: Iterable[Table]) -> Iterator[tuple[Table, Training]]:
        """The networks that are wanted.

        Raises:
            ValueError: A word of `only` names none.
        """
        every = [(table, training) for table in tables for training in table.trainings()]
        if self.only is None:
            yield from every
            return
        for word in self.only:
            found = [(t, each) for t, each in every if each.key == word or each.row_key == word]
            if not found:
                raise ValueError(
                    f"`--only` must be TABLE/ROW or TABLE/ROW/SEED of a table that is named, such as "
                    f"{every[0][1].key}, got {word!r}."
                )
            yield from found


ALL = Part()


def missing(
    tables: Iterable[Table], store: Store, part: Part = ALL
) -> Iterator[tuple[Training, str, int]]:
    """What has to be judged yet, in the order of the tables."""
    for table, training in part.trainings(tables):
        for suite, images in table.suites.items():
            wanted = part.suites is None or suite in part.suites
            if wanted and not store.has(training, suite, images):
                yield training, suite, images


def lines(
    tables: Iterable[Table],
    store: Store,
    runs: Path,
    part: Part = ALL,
    checkout: Path = networks.KEPT,
) -> Iterator[str]:
    """The commands of all that is missing."""
    told = set()
    for training, suite, images in missing(tables, store, part):
        folder = training.folder(runs)
        there = networks.in_checkout(training, store.networks, checkout)
        if there is None and training.key not in told:
            told.add(training.key)
            yield training.settings.command(resume=True, out=folder / "train")
        if suite == unseen.SUITE:
            yield f"python -m benchmarks.defence {training.table}"
        else:
            file = there or networks.in_runs(training, runs)
            judge = training.judged_by(suite, images, file)
            yield judge.command(resume=True, out=judged_in(folder / suite, judge, file))


def carry_out(
    tables: Iterable[Table],
    store: Store,
    runs: Path,
    part: Part = ALL,
    checkout: Path = networks.KEPT,
) -> None:
    """Do all that is missing; verdicts are kept as soon as a suite has judged a network.

    A network that is in `checkout` is not trained again. One that is loses what had been judged of it, so that
    all is gone through twice.

    Raises:
        subprocess.CalledProcessError: A command has failed or was interrupted.
    """
    twice = itertools.chain.from_iterable(missing(tables, store, part) for _ in range(2))
    for training, suite, images in twice:
        folder = training.folder(runs)
        file = networks.in_checkout(training, store.networks, checkout)
        if file is None:
            train_once(training.settings, folder / "train")
            about = described(training, folder / "train")
            file = networks.in_runs(training, runs)
            networks.keep(training, runs, checkout)
        else:
            found = store.networks.get(training.key) or networks.from_card(file)
            about = {k: v for k, v in found.items() if k != "suites"}
        if suite == unseen.SUITE:
            store.keep(training, about, suite, kept(unseen.judged(training.settings, images, file)))
        else:
            judge = training.judged_by(suite, images, file)
            place = judged_in(folder / suite, judge, file)
            if not _done(place, judge):
                _run(judge.command(resume=True, quiet=True, out=place))
            store.keep(training, about, suite, verdicts(place))
        print(f"{training.key}: {suite} on {images} images", flush=True)


def judged_in(place: Path, judge: EvaluateSettings, file: Path) -> Path:
    """Where a network in a file is judged: beside `place`, if another network has been judged there."""
    if not ((place / RECORD).is_file() and file.is_file()):
        return place
    try:
        before = Run.read(place).hashes.models
    except ValueError:
        return place  # and the evaluation says what is wrong
    ours = [hash_model(model) for model in prepared(judge).models.values()]
    if list(before.values()) == ours:
        return place
    return place.with_name(f"{place.name}-{networks.sha256_of(file)[:8]}")


def train_once(settings: TrainSettings, folder: Path) -> None:
    """Train, or go on with a training that was stopped; nothing if it is finished."""
    if not _done(folder, settings):
        _run(settings.command(resume=True, quiet=True, out=folder))


def described(training: Training, folder: Path) -> dict[str, Any]:
    """What is kept of a finished training."""
    run, _ = read_results(folder)
    epochs = run.metrics["history"]
    return networks.from_card(folder / "model.safetensors") | {
        "command": training.settings.command(),
        "validation": [_rounded(each["validation"]) for each in epochs],
        "weights": _rounded(
            {
                name.removeprefix("weight/"): value
                for name, value in epochs[-1]["stats"].items()
                if name.startswith("weight/")
            }
        ),
        "versions": run.versions,
    }


def verdicts(folder: Path) -> dict[str, Any]:
    """Who was right, image by image, as hexadecimal digits: "clean", and under every threat."""
    run, tensors = read_results(folder)
    (prefix,) = (name.removesuffix("correct") for name in tensors if name.endswith("/correct"))
    correct = tensors[f"{prefix}correct"]
    found: dict[str, Any] = {"images": len(correct), "clean": _digits(correct)}
    for text in run.settings["threat"]:
        name = text.partition(":")[0]
        broken = [
            v
            for k, v in tensors.items()
            if k.startswith(f"{prefix}{name}/") and k.endswith("/broken")
        ]
        found[name] = _digits(correct & ~torch.stack(broken).any(dim=0))
    return found


def kept(found: RobustAccuracy) -> dict[str, Any]:
    """The same of an evaluation that has no folder."""
    truths = {"clean": found.correct} | {name: found.still_right(name) for name in found.balls}
    return {"images": found.count} | {name: _digits(each) for name, each in truths.items()}


def _digits(right: torch.Tensor) -> str:
    return packed(right.tolist(), filled="after")


def _done(folder: Path, settings: TrainSettings | EvaluateSettings) -> bool:
    """Whether a folder has a finished run with these settings, whatever version began it.

    An evaluation of more images is one of the first of them, too: no image depends on another.
    """
    if not (folder / "run.json").exists():
        return False
    try:
        run, _ = read_results(folder)
    except ValueError:
        return False
    wanted, ours = settings.model_dump(), dict(run.settings)
    filled_in = {"recipe"}  # the record has the whole schedule
    if isinstance(settings, EvaluateSettings):
        filled_in |= {"models", "batch_size"}  # where a network was, and what fitted into memory
        wanted["limit"] = max(wanted["limit"], ours["limit"])
    return all(wanted[name] == ours[name] for name in ours.keys() & wanted.keys() - filled_in)


def _run(line: str) -> None:
    """Run a command to its end, which after Ctrl-C is when it has written what there is to go on from."""
    words = shlex.split(line)
    print(f"$ {line}", flush=True)
    child = subprocess.Popen([sys.executable, "-m", *words])
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.terminate()  # as after Ctrl-C, of which a terminal has told it already; it stops once
        child.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, line)


def _is_percent(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 100  # type: ignore[operator]


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(float(value), 4) for name, value in values.items()}
