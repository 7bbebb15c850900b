"""What is drawn of a run replaces what was drawn of it before, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commands import after, inside
from run_factory import make_evaluation, make_run
from saddlepoint import report, runs
from saddlepoint.runs import drawn as room
from saddlepoint.runs.drawn import DRAWN, not_drawn, write_drawn

FILES = ("report.html", "table.md", "table.csv", "table.tex")


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    make_evaluation(folder)
    return folder


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_foreign_file_is_refused_and_nothing_is_written(
    evaluation: Path, name: str, kind: str, tmp_path: Path
) -> None:
    path = evaluation / name
    ours, elsewhere = path.read_bytes(), tmp_path / "elsewhere"
    elsewhere.write_bytes(ours)
    path.unlink()
    if kind == "file":
        path.write_bytes(b"mine\n" + (b"" if name == "report.html" else ours))
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    others = {each: (evaluation / each).read_bytes() for each in FILES if each != name}
    times = {each: (evaluation / each).stat().st_mtime_ns for each in others}
    try:
        with pytest.raises(ValueError, match=f"{name}` must be free, got something that saddlep"):
            report.write_report(evaluation)
        assert (
            path.is_symlink() if kind == "link" else path.is_dir() or b"mine" in path.read_bytes()
        )
        assert {each: (evaluation / each).stat().st_mtime_ns for each in others} == times
    finally:
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(ours)


def test_what_an_earlier_version_has_drawn_is_replaced(evaluation: Path) -> None:
    drawn = {name: (evaluation / name).read_bytes() for name in FILES}
    # As if it had said less.
    write_drawn(evaluation, {name: text[: 2 * len(text) // 3] for name, text in drawn.items()})
    report.write_report(evaluation)
    assert {name: (evaluation / name).read_bytes() for name in FILES} == drawn


def test_what_was_drawn_before_digests_were_kept_is_made_known_by_a_report(
    evaluation: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "old"
    shutil.copytree(evaluation, folder)
    (folder / DRAWN).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run = runs.Run.read(folder)
    told = f"'table.*', which no run there has written; `saddlepoint report {folder}` makes known"
    with pytest.raises(ValueError, match=told), runs.opened(run, folder, overwrite=True):
        pass
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    report.write_report(folder)
    with runs.opened(run.but(status="running"), folder, overwrite=True) as execution:
        assert not (folder / "table.csv").exists()
        execution.update(status="complete")


def test_tables_are_known_wherever_the_drawing_was_stopped(
    evaluation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = {name: (evaluation / name).read_bytes() for name in FILES}
    for count in range(len(FILES) + 1):
        files = {name: text + b"%d" % count for name, text in drawn.items()}
        with monkeypatch.context() as patch:
            patch.setattr(room, "write_atomically", after(count, room.write_atomically))
            with pytest.raises(KeyboardInterrupt):
                write_drawn(evaluation, files)
        assert not_drawn(evaluation, [DRAWN, *FILES]) == []
        report.write_report(evaluation)
    assert {name: (evaluation / name).read_bytes() for name in FILES} == drawn


def test_a_picture_that_was_not_drawn_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "patch.png"
    for content in (b"ours", b"ours", b"of another version"):
        write_drawn(tmp_path, {"patch.png": content})
    path.write_bytes(b"mine")
    with pytest.raises(ValueError, match="must be free"):
        write_drawn(tmp_path, {"patch.png": b"ours"})
    assert path.read_bytes() == b"mine"
    (tmp_path / DRAWN).write_text("mine too")
    with pytest.raises(ValueError, match=r"drawn\.json` must hold the digests"):
        write_drawn(tmp_path, {"patch.png": b"ours"})
    assert (tmp_path / DRAWN).read_text() == "mine too"


@pytest.mark.parametrize("name", FILES)
def test_report_and_overwrite_agree_on_what_is_ours(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("evaluate", "mnist-a", "--threat", "linf:0.1", "--limit", 2, "--no-doctor", "--quiet")
    words += ("--out", tmp_path / "ev")
    path = tmp_path / "ev" / name
    assert inside(*words) == 0
    path.write_text("my notes")
    for refused in (("report", tmp_path / "ev"), (*words, "--overwrite")):
        assert inside(*refused) == 2
        assert name in capsys.readouterr().err
        assert path.read_text() == "my notes"
    # What is missing makes nothing else foreign.
    path.unlink()
    assert inside(*words, "--overwrite") == 0
    assert path.read_text() != "my notes"
    assert inside("report", tmp_path / "ev") == 0


def test_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, rows=4)
    page = tmp_path / "report.html"
    assert inside("report", tmp_path) == 0
    page.write_text("mine")
    capsys.readouterr()
    assert inside("report", tmp_path) == 2
    said = capsys.readouterr().err
    assert "report.html` must be free" in said
    assert "--out" not in said  # which a single run does not take
    assert page.read_text() == "mine"
