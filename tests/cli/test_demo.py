"""`demo` replaces an old demo, and no other run."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import QUICK, inside
from saddlepoint import runs


def test_demo_replaces_an_old_demo_and_refuses_any_other_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo, mine = tmp_path / "demo", tmp_path / "my run"
    for limit in (2, 1):
        assert inside("demo", "--limit", limit, "--out", demo, "--quiet") == 0
        assert runs.finished(demo).rows == limit
    assert runs.Run.read(demo).command == "saddlepoint demo --limit 1"
    assert inside("attack", "ensemble", *QUICK, "--eps", 0.2, "--out", mine, "--quiet") == 0
    before = {path: path.read_bytes() for path in mine.rglob("*")}
    capsys.readouterr()
    assert inside("demo", "--limit", 1, "--out", mine) == 2
    said = capsys.readouterr()
    assert "`--out` must hold no run but an old demo" in said.err
    assert said.out == ""
    assert {path: path.read_bytes() for path in mine.rglob("*")} == before
