"""What is drawn of a run replaces what was drawn of it before, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import inside
from run_factory import make_evaluation, make_run
from saddlepoint import report
from saddlepoint.runs.drawn import write_drawn

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
    for name, content in drawn.items():
        (evaluation / name).write_bytes(content[: 2 * len(content) // 3])  # as if it had said less
    report.write_report(evaluation)
    assert {name: (evaluation / name).read_bytes() for name in FILES} == drawn


def test_a_picture_that_is_not_the_one_drawn_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "patch.png"
    for _ in range(2):  # nothing is there, and then the same
        write_drawn(tmp_path, {"patch.png": b"PNG\nours"})
    with pytest.raises(ValueError, match="must be free"):
        write_drawn(tmp_path, {"patch.png": b"PNG\nother"})
    assert path.read_bytes() == b"PNG\nours"


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
