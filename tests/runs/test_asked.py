"""What a record says of settings that became others, or that followed from others; and records without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import inside
from saddlepoint import runs
from saddlepoint.runs import record
from saddlepoint.solver import lowering
from stand_ins import passes_of

WORDS = ("attack", "ensemble", "--data", "mnist-sample", "--models", "A,C", "--eps", 0.15)
WORDS += ("--limit", 4, "--batch-size", 2, "--evaluations", 8, "--precision", "auto", "--quiet")


@pytest.fixture(autouse=True)
def _bfloat16_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "is_native", lambda device: True)
    found = passes_of({"float32": 1.0, "bfloat16": 0.5})
    monkeypatch.setattr(lowering, "_passes", lambda *_: found)


def _content(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / record.RECORD).read_text())
    return content


def test_a_record_has_what_was_asked_and_what_was_taken(tmp_path: Path) -> None:
    assert inside(*WORDS, "--out", tmp_path) == 0
    run = runs.Run.read(tmp_path)
    assert run.settings["precision"] == ["bfloat16"]
    assert run.asked == {"precision": ["auto"]}
    # Two evaluations are left for verdicts.
    assert run.taken == {"steps": 5, "restarts": 1, "channels_last": "C"}
    page = (tmp_path / "report.html").read_text()
    assert '<th scope="row">steps</th><td>5, follows from evaluations</td>' in page
    told = "bfloat16 (asked for: auto) in the search, verdicts in full precision; "
    told += "filters with channels last: C"
    assert f'<th scope="row">precision</th><td>{told}</td>' in page


def test_a_record_says_nothing_where_nothing_changed(tmp_path: Path) -> None:
    assert inside("demo", "--limit", 1, "--out", tmp_path, "--json") == 0
    assert "asked" not in _content(tmp_path)
    run = runs.Run.read(tmp_path)
    assert (run.asked, run.taken) == ({}, {"channels_last": "B, C, D"})


def test_a_training_says_so_too(tmp_path: Path) -> None:
    words = ("train", "--data", "mnist-sample", "--model", "A", "--threat", "linf:0.1")
    words += ("--limit", 20, "--steps", 1, "--epochs", 1, "--held-out", 2, "--out", tmp_path)
    words += ("--test-images", 2, "--test-steps", 1, "--precision", "auto")
    assert inside(*words) == 0
    run = runs.Run.read(tmp_path)
    assert (run.settings["precision"], run.asked) == ("bfloat16", {"precision": "auto"})


@pytest.mark.parametrize("complete", [False, True])
def test_an_older_run_is_read_and_continued(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose record has neither entry, and the same hashes."""
    if not complete:
        put, pages = runs.Store.put, list[str]()

        def stop(store: runs.Store, key: str, page: Any) -> None:
            put(store, key, page)
            pages.append(key)
            if len(pages) == 2:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(runs.Store, "put", stop)
            assert inside(*WORDS, "--out", tmp_path) == 130
    else:
        assert inside(*WORDS, "--out", tmp_path) == 0
    content = _content(tmp_path)
    for name in ("asked", "taken", "digest"):
        del content[name]
    content["digest"] = record._digest(content)
    (tmp_path / record.RECORD).write_text(json.dumps(content))
    old = runs.Run.read(tmp_path)
    assert (old.asked, old.taken) == ({}, {})
    assert inside(*WORDS, "--out", tmp_path, "--resume") == 0
    run = runs.Run.read(tmp_path)
    assert (run.status, run.hashes) == ("complete", old.hashes)
    assert run.taken == ({} if complete else {"steps": 5, "restarts": 1, "channels_last": "C"})
    assert inside("report", tmp_path) == 0
    page = (tmp_path / "report.html").read_text()
    assert "follows from evaluations</td>" in page


def test_resuming_with_the_word_that_was_chosen_keeps_the_one_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = runs.Store.put

    def stop(store: runs.Store, key: str, page: Any) -> None:
        put(store, key, page)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs.Store, "put", stop)
        assert inside(*WORDS, "--out", tmp_path) == 130
    words = tuple("bfloat16" if word == "auto" else word for word in WORDS)
    assert inside(*words, "--out", tmp_path, "--resume") == 0
    assert runs.Run.read(tmp_path).asked == {"precision": ["auto"]}
