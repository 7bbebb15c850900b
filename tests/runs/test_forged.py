"""Records that somebody changed, with a digest that fits: read, or refused in one sentence, by every reader."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands import inside
from run_factory import make_evaluation, make_run
from saddlepoint import report, runs
from saddlepoint.experiments import Setup, collect, find, reproduce
from saddlepoint.experiments.summary import summarise
from saddlepoint.runs.record import RECORD, _digest

TRAIN = "train --data mnist-sample --model C --limit 10 --epochs 2 --steps 1 --test-steps 1 --test-images 4"
REPLACED: tuple[Any, ...] = (None, "x", -1, [], {}, math.inf, math.nan, True, [["x"]])
Path_ = tuple[str | int, ...]


def _places(value: Any, here: Path_ = ()) -> Iterator[Path_]:
    """Where values are, of a list the first and the last."""
    if here:
        yield here
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _places(each, (*here, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1}) if value else []:
            yield from _places(value[index], (*here, index))


def _damaged(raw: dict[str, Any], place: Path_, change: Callable[[Any, Any], None]) -> str:
    copy = json.loads(json.dumps(raw))
    holder = copy
    for key in place[:-1]:
        holder = holder[key]
    change(holder, place[-1])
    return json.dumps({**copy, "digest": _digest(copy)})


def _changes() -> dict[str, Callable[[Any, Any], None]]:
    def put(value: Any) -> Callable[[Any, Any], None]:
        return lambda holder, key: holder.__setitem__(key, value)

    named = {f"put {value!r}": put(value) for value in REPLACED}
    return {"delete": lambda holder, key: holder.__delitem__(key), **named}


CHANGES = _changes()


def harms(folder: Path, every: int) -> Iterator[tuple[str, str]]:
    """Records with one change each, and what it is: all places, with one of `every` changes in turn."""
    raw = json.loads((folder / RECORD).read_text())
    del raw["digest"]
    number = 0
    for place in _places(raw):
        for name, change in CHANGES.items():
            number += 1
            if number % every == 0:
                yield f"{name} at {place}", _damaged(raw, place, change)


def check(read: Callable[[], object], what: str) -> bool:
    """It succeeds or is refused in our own words; whether it was refused."""
    try:
        read()
    except ValueError as error:
        text = str(error)
        assert text.startswith("`"), f"{what}: {text}"
        assert "must" in text, f"{what}: {text}"
        assert "validation error" not in text, f"{what}: {text}"
        assert len(text) < 800, f"{what}: {text}"
        return True
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return False


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("forged")
    make_run(home / "ensemble", rows=6, domains=2)
    make_run(home / "universal", "universal", rows=6, domains=2, baseline=False)
    make_evaluation(home / "evaluate", rows=4)
    make_evaluation(home / "evaluate-several", rows=4, domains=2)
    assert (
        inside(
            *TRAIN.split(), "--threat", "linf:0.1", "--test-restarts", "1", "--out", home / "train"
        )
        == 0
    )
    assert inside(*TRAIN.split(), "--out", home / "train-clean") == 0
    return {path.name: path for path in home.iterdir()}


MEASURED = {"convergence": {}, "cost": {"repeats": 1}}


@pytest.mark.parametrize("name", MEASURED)
def test_a_forged_measurement_is_shown_or_refused_in_one_sentence(
    name: str, tmp_path: Path
) -> None:
    first = find(name).measurements[0]
    short = replace(first, block=first.block.but(steps=12), **MEASURED[name])
    experiment = replace(find(name), blocks=(), measurements=(short,))
    reproduce(experiment, tmp_path, Setup(limit=4))
    folder = tmp_path / "true" / "apgda" / short.key
    assert not check(lambda: summarise(collect(experiment, tmp_path)), "as it is")
    refused = 0
    for what, text in harms(folder, every=23):
        (folder / RECORD).write_text(text)
        refused += check(lambda: summarise(collect(experiment, tmp_path)), what)
        check(lambda: reproduce(experiment, tmp_path, Setup(limit=4), resume=True), what)
        check(lambda: runs.rank_runs([tmp_path]), what)
        assert check(lambda: report.write_report(folder), what)
    assert refused > 5


KINDS = ["ensemble", "universal", "evaluate", "evaluate-several", "train", "train-clean"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_record_is_drawn_or_refused_in_one_sentence(
    folders: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / "run")
    run, refused = runs.finished(folder), 0

    def resume() -> None:
        with runs.opened(run, folder, resume=True) as execution:
            assert execution.complete

    for what, text in harms(folder, every=37):
        (folder / RECORD).write_text(text)
        refused += check(lambda: report.write_report(folder), what)
        check(resume, what)
        check(
            lambda: report.write_comparison(runs.rank_runs([tmp_path]), tmp_path / "b.html"), what
        )
    assert refused > 5
