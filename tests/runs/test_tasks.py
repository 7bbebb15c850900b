"""`runs.tasks`: every kind of run goes from station to station in one order, and who looks on is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from saddlepoint import runs
from saddlepoint.runs.evaluation_task import EvaluationTask
from saddlepoint.runs.settings import EnsembleSettings, EvaluateSettings, TrainSettings
from saddlepoint.runs.tasks import AbstractTask, AttackTask, Onlooker, Station, carried_out
from saddlepoint.runs.training_task import TrainingTask

STATIONS = ["load", "assemble", "look", "record", "examine", "open", "work"]


def attack() -> AbstractTask[Any]:
    asked = {"models": ["C"], "eps": 0.1, "steps": 1, "limit": 2, "data": "mnist-sample"}
    return AttackTask(settings=EnsembleSettings.load(asked))


def evaluation() -> AbstractTask[Any]:
    asked = {"models": ["C"], "threat": ["linf:0.1"], "limit": 2, "data": "mnist-sample"}
    return EvaluationTask(settings=EvaluateSettings.load(asked), tell=lambda *_: None)


def training() -> AbstractTask[Any]:
    asked = {"data": "mnist-sample", "model": "C", "limit": 20, "epochs": 1, "method": "clean"}
    return TrainingTask(settings=TrainSettings.load(asked))


KINDS = [attack, evaluation, training]


class Recording(Onlooker):
    """Writes down what it is told, and whether the folder was there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.there: dict[str, bool] = {}

    @contextmanager
    def at(self, station: Station) -> Iterator[None]:
        self.told.append(station)
        self.there[station] = self.folder.exists()
        yield
        self.told.append(f"{station} done")

    def assembled(self, images: int) -> None:
        assert images > 0
        self.told.append("assembled")

    def opened(self, execution: runs.Execution) -> None:
        assert execution.folder == self.folder
        self.told.append("opened")

    def failed(self, execution: runs.Execution) -> None:
        self.told.append(f"failed: {execution.run.status}")


def expected(*stations: str) -> list[str]:
    """What is told of stations that are passed without an error."""
    told: list[str] = []
    for each in stations:
        told += [each, *(["assembled"] if each == "assemble" else ()), f"{each} done"]
        told += ["opened"] if each == "open" else []
    return told


@pytest.mark.parametrize("make", KINDS)
def test_every_kind_passes_the_stations_in_one_order(make: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    watch = Recording(folder)
    run = carried_out(make(), folder, watch)
    assert watch.told == expected(*STATIONS)
    assert watch.there == {each: each == "work" for each in STATIONS}  # nothing is written before
    assert run.status == "complete"
    # What is complete is opened and not done again, and nobody has to look on.
    watch = Recording(folder)
    again = carried_out(make(), folder, watch, resume=True)
    assert watch.told == expected(*STATIONS[:-1])
    assert again == carried_out(make(), folder, resume=True) == run


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("station", ["load", "assemble", "look", "record", "examined", "work"])
def test_an_error_ends_the_walk_at_its_station(
    make: Any, station: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, task = tmp_path / "run", make()
    watch = Recording(folder)

    def fail(*_: object, **__: object) -> None:
        raise ArithmeticError("boom")

    monkeypatch.setattr(type(task), station, fail)
    with pytest.raises(ArithmeticError, match="boom"):
        carried_out(task, folder, watch)
    name = "examine" if station == "examined" else station
    assert watch.told == [*expected(*STATIONS[: STATIONS.index(name)]), name]
    assert not folder.exists()


def test_an_error_that_leaves_something_on_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = runs.Store.put

    def full(store: runs.Store, key: str, page: Any) -> None:
        put(store, key, page)
        if key.startswith("rows"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs.Store, "put", full)
    watch = Recording(tmp_path / "run")
    with pytest.raises(OSError, match="No space left"):
        carried_out(attack(), tmp_path / "run", watch)
    assert watch.told == [*expected(*STATIONS[:-1]), "work", "failed: failed"]
