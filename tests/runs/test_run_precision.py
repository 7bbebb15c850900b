"""What the models of a run compute in: decided once, recorded, and taken up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import inside
from saddlepoint import runs
from saddlepoint.solver import lowering
from stand_ins import passes_of

DATA = ("--data", "mnist-sample", "--limit", 4)
ATTACK = (
    "attack",
    "ensemble",
    *DATA,
    "--models",
    "A,C",
    "--eps",
    0.15,
    "--steps",
    2,
    "--batch-size",
    2,
)
EVALUATE = ("evaluate", "mnist-c", *DATA, "--threat", "l0:9", "--no-doctor", "--batch-size", 2)
TRAIN = (
    *("train", "--data", "mnist-sample", "--model", "A", "--threat", "linf:0.1", "--limit", 20),
    *("--steps", 1, "--epochs", 1, "--held-out", 2, "--test-images", 2, "--test-steps", 1),
)


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Decide what measurements find; networks are loaded anew by every command."""
    monkeypatch.setattr(lowering, "is_native", lambda device: True)

    def find(pays: bool) -> None:
        low = 0.5 if pays else 1.0
        monkeypatch.setattr(
            lowering, "_passes", lambda *_: passes_of({"float32": 1.0, "bfloat16": low})
        )

    find(True)
    return find


@pytest.mark.parametrize("words", [ATTACK, EVALUATE], ids=["attack", "evaluate"])
def test_auto_is_decided_once_and_recorded(
    words: tuple[Any, ...],
    tmp_path: Path,
    measure: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:  # stopped after the first page
        patch.setattr(runs.Store, "put", _stop_at_second(runs.Store.put))
        assert inside(*words, "--precision", "auto", "--out", tmp_path) == 130
    told = capsys.readouterr().err
    assert "--precision auto: bfloat16" in told
    assert "--precision bfloat16" in told.splitlines()[-1]  # the line that continues it
    run = runs.Run.read(tmp_path)
    assert run.settings["precision"] == ["bfloat16"]
    assert "--precision bfloat16" in run.command
    measure(False)  # would be found now, and is not asked
    assert inside(*words, "--precision", "auto", "--out", tmp_path, "--resume") == 0
    run = runs.Run.read(tmp_path)
    assert (run.status, run.settings["precision"]) == ("complete", ["bfloat16"])
    assert inside(*words, "--precision", "auto", "--out", tmp_path, "--overwrite") == 0
    assert runs.Run.read(tmp_path).settings["precision"] == ["float32"]


def _stop_at_second(put: Callable[..., None]) -> Callable[..., None]:
    pages: list[str] = []

    def stop(store: runs.Store, key: str, page: Any) -> None:
        put(store, key, page)
        pages.append(key)
        if len(pages) == 2:
            raise KeyboardInterrupt

    return stop


def test_every_model_has_its_own_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: Callable[[bool], None]
) -> None:
    times = ({"float32": 1.0, "bfloat16": 0.95}, {"float32": 1.0, "bfloat16": 0.9})
    monkeypatch.setattr(lowering, "_passes", lambda problem, index, ways: passes_of(times[index]))
    assert inside(*ATTACK, "--precision", "auto", "--out", tmp_path / "a") == 0
    assert runs.Run.read(tmp_path / "a").settings["precision"] == ["float32", "bfloat16"]
    assert inside(*ATTACK, "--precision", "float32,bfloat16", "--out", tmp_path / "b") == 0
    first, second = (runs.read_results(tmp_path / name) for name in "ab")
    assert first[0].hashes == second[0].hashes
    assert all(first[1][name].equal(value) for name, value in second[1].items())


def test_training_records_what_it_computed_in(
    tmp_path: Path, measure: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(*TRAIN, "--precision", "auto", "--out", tmp_path) == 0
    assert "--precision auto: bfloat16" in capsys.readouterr().err
    assert runs.Run.read(tmp_path).settings["precision"] == "bfloat16"
    measure(False)
    assert inside(*TRAIN, "--precision", "auto", "--out", tmp_path, "--resume") == 0
    assert inside(*TRAIN, "--out", tmp_path, "--resume") != 0
    assert "precision: bfloat16 there, float32 here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*ATTACK, "--precision", "half"), "`--precision` must be"),
        ((*ATTACK, "--precision", "auto,auto,auto"), "one for each of 2 models, got 3"),
        (
            (*TRAIN, "--precision", "float32+channels_last"),
            "`--precision` must be 'float32', 'bfloat16', 'float16' or 'auto'",
        ),
    ],
)
def test_other_words_are_refused(
    words: tuple[Any, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(*words, "--out", tmp_path / "run") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_default_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inside("demo", "--limit", 1, "--out", tmp_path, "--json") == 0
    run = runs.Run.read(tmp_path)
    assert run.settings["precision"] == ["float32"]
    assert "precision" not in run.command + capsys.readouterr().err
