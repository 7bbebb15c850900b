"""Run folders: complete, resumable or refused, whatever stops the work and whoever else is in the folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from saddlepoint.evaluation import Page
from saddlepoint.runs.execute import Execution, RunInterrupted, in_pages, opened, read_results
from saddlepoint.runs.hashing import hash_settings
from saddlepoint.runs.record import RECORD, TENSORS, Hashes, Run, _digest
from saddlepoint.runs.store import LOCK, PAGES, Store, locked

ROWS, SIZE = 10, 4


def record(eps: float = 0.1, *, data: str = "d", models: dict[str, str] | None = None) -> Run:
    settings = {"eps": eps}
    return Run(
        kind="ensemble",
        command="saddlepoint attack",
        settings=settings,
        seed=0,
        domains=("A",),
        classes=("0",),
        rows=ROWS,
        hashes=Hashes(hash_settings(settings), {"A": "m"} if models is None else models, data),
    )


class Work:
    """Squares of the row numbers times eps, with a count of the pages that were computed."""

    def __init__(self, eps: float = 0.1, stop_at: int | None = None) -> None:
        self.eps, self.stop_at, self.computed = eps, stop_at, 0

    def page(self, start: int, stop: int) -> Page:
        if start == self.stop_at:
            raise KeyboardInterrupt
        self.computed += 1
        rows = torch.arange(start, stop)
        history = (rows * 1.0).expand(3, -1)
        return Page({"square": self.eps * rows**2, "history.x": history}, seconds=1.0)

    def run(self, execution: Execution) -> Run:
        tensors, seconds = in_pages(execution, ROWS, SIZE, self.page)
        return execution.finish(tensors, done=ROWS, seconds=seconds)


def go(folder: Path, work: Work, **options: bool) -> Run:
    with opened(record(work.eps), folder, **options) as execution:
        return execution.run if execution.complete else work.run(execution)


def squares(folder: Path) -> torch.Tensor:
    return read_results(folder)[1]["square"]


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    run = go(tmp_path / "r", Work())
    assert (run.status, run.done, run.seconds) == ("complete", 10, 3.0)
    stored, tensors = read_results(tmp_path / "r")
    assert stored == run
    assert torch.equal(tensors["square"], 0.1 * torch.arange(10) ** 2)
    assert tensors["history.x"].shape == (3, 10)
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [RECORD, TENSORS]


def test_an_interrupted_run_goes_on_with_what_is_left(tmp_path: Path) -> None:
    with pytest.raises(RunInterrupted) as stop:
        go(tmp_path, Work(stop_at=8))
    assert stop.value.run.done == 8
    assert Run.read(tmp_path).status == "interrupted"
    assert not (tmp_path / LOCK).exists()
    with pytest.raises(ValueError, match="add --resume"):
        go(tmp_path, Work())
    work = Work()
    assert go(tmp_path, work, resume=True).status == "complete"
    assert work.computed == 1
    assert torch.equal(squares(tmp_path), 0.1 * torch.arange(10) ** 2)
    again = Work()
    go(tmp_path, again, resume=True)
    assert again.computed == 0


@pytest.mark.parametrize("harm", ["delete a page", "delete the folder", "flip a byte"])
def test_pages_that_disappear_or_rot_in_mid_run_are_computed_again(
    tmp_path: Path, harm: str
) -> None:
    class Harmed(Work):
        def page(self, start: int, stop: int) -> Page:
            if start == 8 and self.computed == 2:
                first = sorted((tmp_path / PAGES).iterdir())[0]
                if harm == "delete a page":
                    first.unlink()
                elif harm == "delete the folder":
                    shutil.rmtree(tmp_path / PAGES)
                else:
                    content = bytearray(first.read_bytes())
                    content[-1] ^= 1
                    first.write_bytes(content)
            return super().page(start, stop)

    run = go(tmp_path, Harmed())
    assert (run.status, run.done) == ("complete", 10)
    assert torch.equal(squares(tmp_path), 0.1 * torch.arange(10) ** 2)
    assert any("damaged" in line for line in run.warnings) == (harm == "flip a byte")


def test_pages_of_other_settings_are_not_used(tmp_path: Path) -> None:
    with pytest.raises(RunInterrupted):
        go(tmp_path, Work(0.1, stop_at=8))
    with pytest.raises(ValueError, match=r"same configuration.*eps: 0.1 there, 0.3 here"):
        go(tmp_path, Work(0.3), resume=True)
    (tmp_path / RECORD).unlink()  # as if somebody had tidied up
    work = Work(0.3)
    go(tmp_path, work)
    assert work.computed == 3
    assert torch.equal(squares(tmp_path), 0.3 * torch.arange(10) ** 2)


def test_resuming_refuses_other_data_and_models_and_those_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(RunInterrupted):
        go(tmp_path, Work(stop_at=8))
    for other, words in (
        (record(data="e"), "same data"),
        (record(models={"A": "n"}), "other parameters or code for A"),
        (record(models={"A": ""}), "nobody can say"),
    ):
        with pytest.raises(ValueError, match=words), opened(other, tmp_path, resume=True):
            pass
    assert Run.read(tmp_path).status == "interrupted"


def test_foreign_files_are_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match=r"report\.html"):
        go(tmp_path, Work(), overwrite=True)
    (tmp_path / "report.html").rename(tmp_path / "notes.txt")
    go(tmp_path, Work())
    go(tmp_path, Work(), overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_overwriting_removes_what_the_old_run_wrote(tmp_path: Path) -> None:
    go(tmp_path, Work())
    (tmp_path / "report.html").write_text("of the old run")
    with pytest.raises(RunInterrupted):
        go(tmp_path, Work(0.3, stop_at=4), overwrite=True)
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / TENSORS).exists()


def test_a_start_that_fails_leaves_nothing_behind_and_a_failure_later_keeps_the_work(
    tmp_path: Path,
) -> None:
    with pytest.raises(RuntimeError), opened(record(), tmp_path / "new"):
        raise RuntimeError("the model is no good")
    assert not (tmp_path / "new").exists()

    class Failing(Work):
        def page(self, start: int, stop: int) -> Page:
            if start == 8:
                raise RuntimeError("out of memory")
            return super().page(start, stop)

    with pytest.raises(RuntimeError):
        go(tmp_path / "later", Failing())
    assert Run.read(tmp_path / "later").status == "failed"
    work = Work()
    go(tmp_path / "later", work, resume=True)
    assert work.computed == 1


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ValueError, match="one process at a time"):
        go(tmp_path, Work())
    assert not (tmp_path / RECORD).exists()


@pytest.mark.parametrize("name", [TENSORS, RECORD])
def test_a_flipped_byte_in_the_results_is_noticed(tmp_path: Path, name: str) -> None:
    go(tmp_path, Work())
    path = tmp_path / name
    whole = path.read_bytes()
    for place in range(len(whole) - 60, len(whole) - 1, 7):
        broken = bytearray(whole)
        broken[place] ^= 1
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"damaged|must be"):
            read_results(tmp_path)
        with pytest.raises(ValueError, match=r"damaged|must be"):
            go(tmp_path, Work(), resume=True)


def test_results_of_another_run_are_noticed(tmp_path: Path) -> None:
    go(tmp_path / "a", Work(0.1))
    go(tmp_path / "b", Work(0.3))
    shutil.copy(tmp_path / "b" / TENSORS, tmp_path / "a" / TENSORS)
    with pytest.raises(ValueError, match="other settings, models or data"):
        read_results(tmp_path / "a")


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_execute import Work, go
class Slow(Work):
    def page(self, start, stop):
        if start == 8 and not (Path(sys.argv[1]) / "go on").exists():
            print("ready", flush=True)
            time.sleep(60)
        return super().page(start, stop)
go(Path(sys.argv[1]), Slow(), resume=True)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_whatever_stops_the_process_the_run_can_be_continued(tmp_path: Path, name: str) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", SLOW, str(tmp_path), here]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, getattr(signal, name))
        process.wait(20)
    expected = "running" if name == "SIGKILL" else "interrupted"
    assert Run.read(tmp_path).status == expected
    work = Work()
    go(tmp_path, work, resume=True)
    assert work.computed == 1
    assert torch.equal(squares(tmp_path), 0.1 * torch.arange(10) ** 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_run_that_is_complete_stays_complete(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear = Store.clear

    def stopped(self: Store) -> None:
        clear(self)
        if Run.read(tmp_path).status == "complete":
            raise error

    monkeypatch.setattr(Store, "clear", stopped)
    with pytest.raises((RunInterrupted, OSError)):
        go(tmp_path, Work())
    monkeypatch.undo()
    assert Run.read(tmp_path).status == "complete"
    assert torch.equal(squares(tmp_path), 0.1 * torch.arange(10) ** 2)
    work = Work()
    assert go(tmp_path, work, resume=True).status == "complete"
    assert work.computed == 0


@pytest.mark.parametrize("change", [{"domains": 5}, {"hashes": {"a": 1}}])
def test_a_record_of_wrong_kinds_is_refused_in_one_sentence(
    change: dict[str, object], tmp_path: Path
) -> None:
    go(tmp_path, Work())
    raw = json.loads((tmp_path / RECORD).read_text()) | change
    del raw["digest"]
    (tmp_path / RECORD).write_text(json.dumps({**raw, "digest": _digest(raw)}))
    with pytest.raises(ValueError, match=r"must hold a run, got"):
        Run.read(tmp_path)


def test_a_record_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("[" * 100_000)
    with pytest.raises(ValueError, match="must be a readable run"):
        Run.read(tmp_path)
