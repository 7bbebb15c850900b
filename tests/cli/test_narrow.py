"""Results and bars in terminals of 20 to 80 columns: nothing is cut, no line is longer."""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from commands import inside
from run_factory import make_evaluation, make_run
from saddlepoint.bars import bar
from saddlepoint.cli import printing
from saddlepoint.runs import Run, rank_runs

WIDTHS = (20, 30, 40, 50, 80)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("narrow")
    make_run(folder / "attack", rows=6, domains=3, names=("resnet18_of_mine", "vit", "A"))
    make_evaluation(folder / "one", rows=6, domains=1)
    make_evaluation(folder / "several", rows=6, domains=3)
    return folder


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(width: int, shown, *what) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        shown(*what)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
        return plain.splitlines()

    return run


@pytest.mark.parametrize("name", ["attack", "one", "several", "board"])
def test_tables_fit_and_no_figure_is_cut(name: str, runs: Path, printed) -> None:
    shown = {"attack": printing.summary, "board": printing.board}.get(name, printing.evaluation)
    what = rank_runs([runs]) if name == "board" else Run.read(runs / name)
    wide = printed(300, shown, what)
    figures = Counter(re.findall(r"\d+\.\d+", " ".join(wide)))
    assert figures
    for width in WIDTHS:
        lines = printed(width, shown, what)
        assert max(map(len, lines)) <= width, (width, lines)
        assert "…" not in "".join(lines), (width, lines)
        if width >= 40:  # below, a line of words may be broken within a figure
            assert figures <= Counter(re.findall(r"\d+\.\d+", " ".join(lines))), width


@pytest.mark.parametrize("width", WIDTHS)
def test_bar_and_time_stay_visible(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    fake = Console(file=out, force_terminal=True, width=width)
    monkeypatch.setattr("rich.console.Console", lambda **_: fake)
    with bar("ensemble cifar10-sample linf") as shown:
        for done in range(9):
            shown.move(done, 10.0, "8/100 images, 5 fooled that were right")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    last = [line for line in re.split(r"[\r\n]", plain) if "━" in line][-1]
    assert len(last) <= width
    assert last.startswith("ens") == (width > 20)
    assert re.search(r"\d:\d\d:\d\d", last)
    assert "8/100" in last  # whatever else there is no room for
    assert ("8/100 images" in last) == (width >= 40)


def test_a_training_keeps_its_epoch_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    fake = Console(file=out, force_terminal=True, width=40)
    monkeypatch.setattr("rich.console.Console", lambda **_: fake)
    with bar("training") as shown:
        shown.move(3, 10.0, "loss 2.2500  training accuracy 6.2 %", "epoch 1/4")
    assert "epoch 1/4" in out.getvalue()


def test_columns_is_heard_in_a_pipe(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.read(runs / "attack")
    monkeypatch.setenv("COLUMNS", "40")
    printing.summary(run)
    narrow = capsys.readouterr().out.splitlines()
    assert max(map(len, narrow)) <= 40
    for nonsense in ("", "wide", "0", "1", "19", "1001", "5000000", "-5", "²"):
        monkeypatch.setenv("COLUMNS", nonsense)
        printing.summary(run)
        assert 40 < max(map(len, capsys.readouterr().out.splitlines())) <= 100


@pytest.mark.parametrize("nonsense", ["²", "0", "wide", "9" * 20, "9" * 5000, "5000000"])
def test_bars_and_help_do_not_stumble_over_columns(
    nonsense: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", nonsense)
    with bar("work") as shown:
        assert shown.shown.console.width == 80
    assert inside("attack", "--help") == 0
    assert 60 < max(map(len, capsys.readouterr().out.splitlines())) < 1000
