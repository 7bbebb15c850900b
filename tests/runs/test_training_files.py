"""Files of a finished training: a byte that changed is noticed by every reader, and the file is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from commands import inside
from saddlepoint import runs

LINE = "train --data mnist-sample --model C --limit 10 --epochs 1 --steps 1 --test-steps 1 --test-images 4"
FILES = [
    "best.safetensors",
    "checkpoint.safetensors",
    "history.jsonl",
    "model.json",
    "model.safetensors",
    "seen.safetensors",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert inside(*_line(folder)) == 0
    return folder


def _line(folder: Path) -> list[object]:
    return [*LINE.split(), "--threat", "linf:0.1", "--test-restarts", "1", "--out", folder]


def test_the_record_has_the_digest_of_every_file_with_results(trained: Path) -> None:
    assert sorted(runs.Run.read(trained).digests) == FILES
    assert runs.finished(trained).status == "complete"


@pytest.mark.parametrize("harm", ["flip", "delete"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(
    trained: Path, name: str, harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    if harm == "flip":
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
    else:
        (folder / name).unlink()
    before = (folder / runs.RECORD).read_bytes()
    capsys.readouterr()
    for words in (["report", folder], ["report", folder, trained], [*_line(folder), "--resume"]):
        assert inside(*words) == 2
        said = capsys.readouterr().err
        assert name in said
        assert ("got content of another digest" if harm == "flip" else "got none") in said
        assert said.count("\n") == 1
    assert inside("report", tmp_path, "--json") == 0
    (reason,) = json.loads(capsys.readouterr().out)["left_out"].values()
    assert name in reason
    assert (folder / runs.RECORD).read_bytes() == before


def test_what_is_drawn_may_be_drawn_again(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    page = folder / "report.html"
    page.write_text(f"{page.read_text()}edited")
    assert inside("report", folder) == 0
    assert not page.read_text().endswith("edited")
