"""Run folders: complete, resumable or refused, whatever stops the work and whoever else is in the folder."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from children import Nursery, Started
from saddlepoint.evaluation import Page
from saddlepoint.runs.counting import summarise
from saddlepoint.runs.execute import Execution, RunInterrupted, in_pages, opened, saved_text
from saddlepoint.runs.hashing import hash_settings
from saddlepoint.runs.reading import read_results
from saddlepoint.runs.record import RECORD, SCHEMA_VERSION, TENSORS, Hashes, Run, _digest
from saddlepoint.runs.refusals import check_free
from saddlepoint.runs.signals import stop_on_signals
from saddlepoint.runs.store import LOCK, PAGES, Store, locked

ROWS, SIZE = 10, 4
TABLE = torch.ones(ROWS, 1)
TABLES = {"fooled": TABLE > 0, "clean_fooled": TABLE < 0, "weights": TABLE}
TABLES |= {"num_forwards": TABLE[:, 0]}
METRICS = summarise(["A"], TABLES, baseline=False)


def record(eps: float = 0.1, *, data: str = "d", models: dict[str, str] | None = None) -> Run:
    settings = {"kind": "ensemble", "models": ["A"], "eps": eps}
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
        found = {**tensors, **TABLES}
        return execution.finish(METRICS, found, seconds=seconds)


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


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_run_that_was_not_finished_has_drawn_nothing(tmp_path: Path, how: str) -> None:
    with pytest.raises(RunInterrupted):
        go(tmp_path, Work(stop_at=4))
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match=r"report\.html"):
        go(tmp_path, Work(), **{how: True})
    assert (tmp_path / "report.html").read_text() == "mine"
    (tmp_path / "report.html").unlink()
    assert go(tmp_path, Work(), **{how: True}).status == "complete"


def test_overwriting_removes_what_the_old_run_wrote(tmp_path: Path) -> None:
    go(tmp_path, Work())
    (tmp_path / "report.html").write_text("<title>of the old run - saddlepoint</title>")
    with pytest.raises(RunInterrupted):
        go(tmp_path, Work(0.3, stop_at=4), overwrite=True)
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / TENSORS).exists()


@pytest.mark.parametrize("page", ["mine", None])
@pytest.mark.parametrize("name", ["report.html", "table.csv"])
def test_overwriting_a_complete_run_keeps_what_it_has_not_drawn(
    tmp_path: Path, name: str, page: str | None
) -> None:
    run = go(tmp_path, Work()).but(hashes=replace(record().hashes, victims={"V": "v"}))
    run.write(tmp_path)  # of a run with victims, which has tables too
    (tmp_path / name).write_text("mine")
    if page is not None:
        (tmp_path / "report.html").write_text(page)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="which no run there has written"):
        go(tmp_path, Work(0.3), overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("how", [{"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    ("change", "words"), [('"schema_version": 3', "schema version"), ("?", "must be JSON")]
)
def test_a_record_that_cannot_be_read_is_neither_continued_nor_replaced_and_says_what_helps(
    tmp_path: Path, how: dict[str, bool], change: str, words: str
) -> None:
    go(tmp_path, Work())
    text = (tmp_path / RECORD).read_text()
    text = text.replace(f'"schema_version": {SCHEMA_VERSION}', change)
    (tmp_path / RECORD).write_text(text)
    helps = "another --out, or delete this folder"
    with pytest.raises(ValueError, match=f"{words}.*{helps}"):
        go(tmp_path, Work(), **how)
    with pytest.raises(ValueError, match=f"{words}.*{helps}"):
        check_free(tmp_path, **how)  # before anything is loaded
    assert (tmp_path / RECORD).read_text() == text
    assert (tmp_path / TENSORS).exists()


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
    with pytest.raises(ValueError, match="damaged or of another run"):
        read_results(tmp_path / "a")


SLOW = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_execute import Work, go
class Slow(Work):
    def page(self, start, stop):
        if start == 8 and not Path("go on").exists():
            print("ready", flush=True)
            time.sleep(600)
        return super().page(start, stop)
go(Path(), Slow(), resume=True)
sys.exit()
"""


def started(folder: Path, nursery: Nursery) -> Started:
    """A process that has done a part of the run in the folder."""
    process = nursery.start(cwd=folder, patch=SLOW)
    process.wait_until(lambda: process.said() == "ready\n")
    return process


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_whatever_stops_the_process_the_run_can_be_continued(
    tmp_path: Path, name: str, nursery: Nursery
) -> None:
    process = started(tmp_path, nursery)
    process.send_signal(getattr(signal, name))
    process.wait()
    expected = "running" if name == "SIGKILL" else "interrupted"
    assert Run.read(tmp_path).status == expected
    work = Work()
    go(tmp_path, work, resume=True)
    assert work.computed == 1
    assert torch.equal(squares(tmp_path), 0.1 * torch.arange(10) ** 2)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    # As nohup starts a program.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_does_not_interrupt_the_writing_of_the_record(
    tmp_path: Path, nursery: Nursery
) -> None:
    process = started(tmp_path, nursery)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        process.send_signal(number)
    process.wait()
    assert Run.read(tmp_path).status == "interrupted"


def test_two_signals_at_once_stop_once_and_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    both = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in both]  # as nohup may not have it
    try:
        with stop_on_signals():
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                signal.pthread_kill(threading.get_ident(), number)
            with pytest.raises(KeyboardInterrupt, match="SIGHUP"):  # they arrive together
                signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
            for number in both:
                signal.raise_signal(number)
            # Whoever is started now does not ignore what this process does.
            assert subprocess.run(["sh", "-c", "kill -TERM $$"]).returncode == -signal.SIGTERM
        assert [signal.getsignal(number) for number in both] == [signal.SIG_DFL] * 2
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)
    assert not complaints


def test_a_second_ctrl_c_while_pages_are_counted_loses_no_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, stopping = Store.get, False

    def counted(self: Store, key: str) -> Page | None:
        if stopping:
            raise KeyboardInterrupt
        return get(self, key)

    class Stopped(Work):
        def page(self, start: int, stop: int) -> Page:
            nonlocal stopping
            stopping = start == 8
            return super().page(start, stop)

    monkeypatch.setattr(Store, "get", counted)
    with pytest.raises(RunInterrupted) as stop:
        go(tmp_path, Stopped(stop_at=8))
    assert (Run.read(tmp_path).done, stop.value.run.done) == (8, 8)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_run_whose_last_record_is_not_written_is_not_complete(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Run.write

    def stopped(self: Run, folder: Path) -> None:
        if self.status == "complete":
            raise error
        write(self, folder)

    monkeypatch.setattr(Run, "write", stopped)
    with pytest.raises((RunInterrupted, OSError)) as caught:
        go(tmp_path, Work())
    monkeypatch.undo()
    status = "interrupted" if error is KeyboardInterrupt else "failed"
    left = Run.read(tmp_path)
    assert (left.status, left.done, saved_text(left, tmp_path)) == (status, 10, "10 of 10 images")
    if isinstance(caught.value, RunInterrupted):
        assert caught.value.run.status == status
    work = Work()
    assert go(tmp_path, work, resume=True).status == "complete"
    assert work.computed == 0


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


@pytest.mark.parametrize("end", ["interrupted", "failed", "killed"])
def test_the_note_about_a_damaged_page_outlives_the_part_that_found_it(
    tmp_path: Path, end: str
) -> None:
    with pytest.raises(RunInterrupted):
        go(tmp_path, Work(stop_at=8))
    first = sorted((tmp_path / PAGES).glob("rows*"))[0]
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    before = (tmp_path / RECORD).read_bytes()

    class Ends(Work):
        def page(self, start: int, stop: int) -> Page:
            if start == 8:
                raise ValueError("boom") if end == "failed" else KeyboardInterrupt
            return super().page(start, stop)

    with pytest.raises((RunInterrupted, ValueError)):
        go(tmp_path, Ends(), resume=True)
    if end == "killed":
        (tmp_path / RECORD).write_bytes(before)
    else:
        assert any(first.name in line for line in Run.read(tmp_path).warnings)
    run = go(tmp_path, Work(), resume=True)
    assert [line for line in run.warnings if "damaged" in line] == [
        f"the page {first.name} was damaged and was computed again."
    ]


def test_what_the_library_said_before_an_interruption_is_in_the_final_record(
    tmp_path: Path,
) -> None:
    def noted(execution: Execution, work: Work) -> Run:
        execution.notes.append("said early")
        return work.run(execution)

    with pytest.raises(RunInterrupted), opened(record(), tmp_path) as execution:
        noted(execution, Work(stop_at=8))
    assert go(tmp_path, Work(), resume=True).warnings == ("said early",)


def test_a_start_that_is_refused_or_fails_leaves_no_answers_behind(tmp_path: Path) -> None:
    folder, logits = tmp_path / "r", torch.ones(2, 1, 3)

    def start() -> None:
        with opened(record(), folder, ask=lambda: logits) as execution:
            assert len(list((folder / PAGES).iterdir())) == 1
            assert len(execution.store) == 0
            raise OSError("boom")

    with pytest.raises(OSError, match="boom"):
        start()
    assert not folder.exists()


def test_a_run_of_another_kind_does_not_replace_files_that_the_old_one_did_not_write(
    tmp_path: Path,
) -> None:
    go(tmp_path, Work())
    (tmp_path / "model.safetensors").write_text("mine")
    before = (tmp_path / RECORD).read_bytes()
    other = record().but(kind="train")
    with (
        pytest.raises(ValueError, match=r"model\.safetensors"),
        opened(other, tmp_path, overwrite=True),
    ):
        pass
    assert (tmp_path / "model.safetensors").read_text() == "mine"
    assert (tmp_path / RECORD).read_bytes() == before


def test_scalars_of_a_training_are_replaced_with_it_and_those_of_others_refused(
    tmp_path: Path,
) -> None:
    training = record().but(kind="train")
    board = tmp_path / "tensorboard"
    board.mkdir()
    events = board / "events.out.tfevents.1.host.2.0"
    events.write_text("of a run")
    with pytest.raises(ValueError, match="'tensorboard'"), opened(training, tmp_path):
        pass  # nobody says that a run wrote it
    training.write(tmp_path)
    (board / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"notes\.txt"), opened(training, tmp_path, overwrite=True):
        pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (board / "notes.txt").unlink()
    with opened(training, tmp_path, overwrite=True) as execution:
        assert not board.exists()
        assert not execution.resumed
        board.mkdir()
        execution.update(status="complete")
