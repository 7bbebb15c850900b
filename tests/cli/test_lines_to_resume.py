"""The line that a stopped run prints, and the one of `report`, continue the run as they are."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from children import Nursery
from commands import after, inside
from saddlepoint import experiments, report, runs, training
from saddlepoint.evaluation import Page

COMMANDS = {
    "attack": (
        *("attack", "transform", "--models", "C", "--eps", 0.15, "--steps", 2, "--limit", 4),
        *("--batch-size", 2, "--transforms", "identity,rotate:30", "--baseline", "average"),
        *("--seed", 3, "--loss", "cross-entropy", "--restarts", 2, "--device", "cpu", "--trust"),
    ),
    "evaluate": (
        *("evaluate", "C", "--threat", "linf:0.1/2", "--threat", "l2:1", "--limit", 2, "--seed", 3),
        *("--batch-size", 1, "--no-doctor", "--on-failure", "note", "--every-attack"),
    ),
    "train": (
        *("train", "--data", "mnist-sample", "--model", "C", "--threat", "linf:0.1/2:0.01"),
        *("--limit", 40, "--held-out", 8, "--epochs", 2, "--steps", 1, "--checkpoint-every", 1),
        *("--test-images", 4, "--test-steps", 1, "--test-restarts", 2, "--device", "cpu:0"),
        *("--mix", 0.5, "--ramp", 1, "--start", "random", "--rule", "minmax:step_size=0.5"),
    ),
}


def stopped(
    words: tuple[object, ...],
    pages: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What a command says that Ctrl-C stops after so many pages, or before the first validation."""
    with monkeypatch.context() as patch:
        patch.setattr(runs.Store, "put", after(pages, runs.Store.put))
        patch.setattr(training, "validate", after(0, training.validate))
        assert inside(*words) == 130
    return capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_stopped_run_continues_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("my runs") / name
    said = stopped((*COMMANDS[name], "--out", out), 2, monkeypatch, capsys)
    line = said.splitlines()[-1].removeprefix("continue with: ")
    assert runs.Run.read(out).status == "interrupted"
    assert inside("report", out) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"continue it with: {line}")
    assert line.count("--out") == 1
    given = [word for word in COMMANDS[name] if str(word).startswith("--")]
    assert {*given} - {"--device"} <= {*shlex.split(line)} | {"--data"}
    assert ("--device cpu:0" in line) == (name == "train")
    assert inside(*shlex.split(line)[1:]) == 0
    assert "starting" not in capsys.readouterr().err
    assert runs.finished(out).warnings == ()


def test_the_line_of_a_stopped_run_saves_images_and_says_as_much_as_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my images"
    words = (*COMMANDS["evaluate"], "--out", tmp_path / "run", "--save-images", folder)
    words += ("--quiet", "--json")
    said = stopped(words, 2, monkeypatch, capsys)
    line = said.splitlines()[-1].removeprefix("continue with: ")
    last = ["--save-images", str(folder), "--quiet", "--json", "--resume"]
    assert shlex.split(line)[-5:] == last


def test_a_part_of_an_experiment_is_continued_with_the_experiment(
    nursery: Nursery, tmp_path: Path
) -> None:
    words = ("reproduce", "ensemble-mnist", "--only", "linf, eps 0.2", "--limit", 3)
    (killed,) = nursery.run(*words, "--out", "my runs", cwd=tmp_path, die_at=4)
    assert killed.code == -9
    (record,) = (tmp_path / "my runs").rglob(runs.RECORD)
    part, whole = record.parent, str(tmp_path / "my runs")
    for cwd, place, out in ((tmp_path, part.relative_to(tmp_path), "my runs"), (part, ".", whole)):
        (said,) = nursery.run("report", place, cwd=cwd)
        assert said.code == 2
        line = shlex.split(said.err.rpartition("continue it with: ")[2])
        assert line[-3:] == ["--out", out, "--resume"]
    assert line[line.index("--only") + 1] == "linf, eps 0.2"
    (again,) = nursery.run(*line[1:], cwd=tmp_path)
    assert again.code == 0, again.err
    assert runs.finished(record.parent).done == 3


@pytest.mark.parametrize("why", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_experiment_has_one_line_to_continue_whatever_stops_a_row(
    why: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("reproduce", "ensemble-mnist", "--only", "linf, eps 0.2", "--limit", 3)
    words += ("--out", "my runs")
    put, left = runs.Store.put, [1]  # one page of every row

    def failing(self: runs.Store, key: str, page: Page) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise why
        put(self, key, page)

    with monkeypatch.context() as patch:
        patch.setattr(runs.Store, "put", failing)
        failed = isinstance(why, OSError)
        assert inside(*words) == (1 if failed else 130)
    said = capsys.readouterr().err
    line = said.partition("stopped; continue with: ")[2].splitlines()[0]
    assert ("no space left on device" in said.lower()) == failed
    # That of the records, of which there are some, is the same.
    folders = [path.parent for path in Path("my runs").rglob(runs.RECORD)]
    assert {runs.Run.read(folder).line_to_resume(folder) for folder in folders} == {line}
    assert inside(*shlex.split(line)[1:], "--quiet") == 0
    folders = [path.parent for path in Path("my runs").rglob(runs.RECORD)]
    assert {folder.parent.name for folder in folders} == {"linf-0.2"}
    assert {runs.finished(folder).done for folder in folders} == {3}


def test_an_experiment_that_cannot_be_drawn_has_the_line_to_continue_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "ensemble-mnist", "--only", "linf, eps 0.2", "--limit", "2"]
    words += ["--out", "my runs"]

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "a page")

    for room, name in (
        (report, "write_report"),
        (report, "write_comparison"),
        (experiments, "publish"),
        (experiments, "write_summary"),
    ):
        store = ("--store", "store") if name == "write_summary" else ()
        with monkeypatch.context() as patch:
            patch.setattr(room, name, full)
            assert inside(*words, *store) == 1
        first, last = capsys.readouterr().err.splitlines()[-2:]
        assert last.startswith("saddlepoint: `a page`: no space left on device.")
        words = shlex.split(first.removeprefix("stopped; continue with: saddlepoint "))
        assert words[-1] == "--resume"
    assert inside(*words, "--quiet") == 0
    assert Path("my runs/true/apgda/linf-0.2/compare.html").is_file()
    assert Path("store/ensemble-mnist.json").is_file()


STOPPED = """
import importlib, signal
room = importlib.import_module(place)
before = getattr(room, name)

def stopping(*values, **options):
    before(*values, **options)
    signal.raise_signal(signal.SIGTERM)

setattr(room, name, stopping)
"""


@pytest.mark.parametrize(
    ("where", "words", "last"),
    [
        (
            ("saddlepoint.report", "write_report"),  # between two rows
            ("reproduce", "ensemble-mnist", "--only", "linf, eps 0.2", "--limit", 2),
            "--resume",
        ),
        (
            ("saddlepoint.doctor", "examine"),
            ("evaluate", "C", "--threat", "linf:0.1", "--limit", 2),
            "saddlepoint: stopped",
        ),
        (
            ("saddlepoint.runs.preparing", "load_models"),
            ("attack", "ensemble", "--models", "A,C", "--limit", 2),
            "saddlepoint: stopped",
        ),
    ],
)
def test_a_signal_outside_the_work_itself_ends_a_command_as_ctrl_c_does(
    where: tuple[str, str], words: tuple[object, ...], last: str, tmp_path: Path, nursery: Nursery
) -> None:
    patch = f"place, name = {where}\n{STOPPED}"
    (ended,) = nursery.run(*words, "--out", "run", cwd=tmp_path, patch=patch)
    assert ended.code == 130, ended.err
    assert ended.err.rstrip().endswith(last)


# A model that cannot be hashed: that is said, and no line is given that is refused.
NETS = """
import saddlepoint as sp
from torch import nn

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = sp.models.load("mnist-c")
        self.odd = (number for number in ())

    def forward(self, x):
        return self.network(x)

def odd():
    return Odd().eval()

def plain():
    return sp.models.load("mnist-a")
"""
SHORT: tuple[object, ...] = ("--data", "mnist-sample", "--limit", 4, "--batch-size", 2)
UNHASHED = {
    "attack": (
        "attack",
        "ensemble",
        "--models",
        "odd_nets.py:odd",
        "--eps",
        0.1,
        "--steps",
        2,
        *SHORT,
    ),
    "victim": (
        *("attack", "ensemble", "--models", "odd_nets.py:plain", "--victims", "odd_nets.py:odd"),
        *("--eps", 0.1, "--steps", 2, *SHORT),
    ),
    "evaluate": ("evaluate", "odd_nets.py:odd", "--threat", "linf:0.1", "--no-doctor", *SHORT),
    "train": (
        *("train", "--data", "mnist-sample", "--model", "odd_nets.py:odd", "--limit", 40),
        *("--held-out", 8, "--epochs", 1, "--threat", "linf:0.1", "--steps", 1, "--test-images", 4),
    ),
}


@pytest.mark.parametrize("name", UNHASHED)
def test_a_run_that_cannot_be_continued_says_so_at_the_start_and_when_it_is_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd_nets.py").write_text(NETS)
    words = (*UNHASHED[name], "--out", "run")
    said = stopped(words, 1, monkeypatch, capsys)
    record = runs.Run.read(Path("run"))
    assert "" in {*record.hashes.models.values(), *record.hashes.victims.values()}
    begun, ended = said.split("\nstopped: ")
    assert "cannot be continued if it is stopped" in begun
    assert "odd cannot be hashed" in begun
    assert "cannot be continued: " in ended
    assert "odd cannot be hashed" in ended
    assert "--resume" not in ended
    assert inside("report", "run") == 2
    told = capsys.readouterr().err
    assert "cannot be continued: " in told
    assert "--resume" not in told
    assert inside(*words, "--resume") == 2  # as was said
    assert "nobody can say whether it has changed" in capsys.readouterr().err
    # The remedy works.
    line = told.rpartition("begin again with: ")[2]
    assert shlex.split(line)[-1] == "--overwrite"
    assert inside(*shlex.split(line)[1:]) == 0
    assert runs.finished(Path("run")).status == "complete"
