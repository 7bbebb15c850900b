"""A run of a model that cannot be hashed: that is said, and no line is given that is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from commands import after, inside
from saddlepoint import runs, training

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
SHORT = ("--data", "mnist-sample", "--limit", 4, "--batch-size", 2)
COMMANDS = {
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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_that_cannot_be_continued_says_so_at_the_start_and_when_it_is_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd_nets.py").write_text(NETS)
    words = (*COMMANDS[name], "--out", "run")
    with monkeypatch.context() as patch:
        patch.setattr(runs.Store, "put", after(1, runs.Store.put))
        patch.setattr(training, "validate", after(0, training.validate))
        assert inside(*words) == 130
    said = capsys.readouterr().err
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
