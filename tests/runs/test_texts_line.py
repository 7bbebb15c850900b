"""The line that repeats a command is read as it was written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from commands import inside
from saddlepoint.cli import reproduce
from saddlepoint.runs import texts


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("-o2", "--out=-o2"),
        (Path("-o2"), "--out=-o2"),
        (Path("-o 2"), "'--out=-o 2'"),
        (["-m.pt", "b"], "--out=-m.pt,b"),
        (["b", "-m.pt"], "--out b,-m.pt"),
        (("-a", "b"), "--out=-a --out b"),
        (-1, "--out=-1"),
        ("o-2", "--out o-2"),
        (True, "--out"),
    ],
)
def test_values_that_begin_with_a_dash_are_no_flags(value: object, written: str) -> None:
    assert texts.line(["attack"], {"out": value}) == f"saddlepoint attack {written}"


def test_folders_that_begin_with_a_dash_are_given_to_other_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-P").mkdir()
    asked = {"out": Path("-o2"), "parameters": Path("-P"), "store": Path("--s")}
    line = reproduce.Wanted(**asked, only=("-x",), seed=-1).line("cost")
    assert inside(*shlex.split(line)[1:]) == 2
    assert "`--only` must be a setting of cost" in capsys.readouterr().err  # all before it was read
