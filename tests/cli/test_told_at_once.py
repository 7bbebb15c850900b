"""Mistakes about models, data and radii: found before anything is loaded, and told in the user's own words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import saddlepoint as sp
from commands import ENVIRONMENT, inside
from saddlepoint import runs

NETS = """
import saddlepoint as sp

def small():
    return sp.models.load("cifar10-a")
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("oncenets.py").write_text(NETS)
    np.savez("d.npz", images=np.zeros((4, 32, 32, 3), np.uint8), labels=np.arange(4))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "evaluate oncenets.py:smal --threat linf:0.1",
            "`MODEL` oncenets.py:smal must name something in oncenets.py, which has small, got 'smal'; did",
        ),
        ("attack ensemble --models oncenets.py:smal --eps 0.1", "`--models` oncenets.py:smal must"),
        (
            "attack ensemble --models A --victims oncenets.py:smal --eps 0.1",
            "`--victims` oncenets.py:smal must",
        ),
        (
            "attack ensemble --models A --victims no.pt:oncenets.py:small --eps 0.1",
            "`--victims` must name a file that exists, got 'no.pt'",
        ),
        ("attack ensemble --models A --victims a:b:c --eps 0.1", "`--victims` must be one of: A,B"),
        (
            "train --data d.npz --model none.py:net",
            "`--model` must name a file that exists, got 'n",
        ),
        ("doctor small.onnx", "`MODEL` must name a file that exists, got 'small.onnx'"),
        (
            "attack ensemble --models oncenets.py:small --data d.npz",
            "`--eps` must be given, such as",
        ),
    ],
)
def test_it_is_told_before_torch_is_loaded(words, message, monkeypatch, capsys):
    def load(*_, **__):
        raise AssertionError("images were loaded")

    monkeypatch.setattr(sp.data, "load", load)
    assert inside(*words.split()) == 2
    assert capsys.readouterr().err.startswith(f"saddlepoint: {message}")


def test_torch_is_not_imported_for_it(tmp_path):
    code = "import sys; from saddlepoint import cli\ntry: cli.main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules)"
    (tmp_path / "t.py").write_text(code)
    words = ["attack", "ensemble", "--models", "oncenets.py:smal", "--data", "d.npz"]
    done = subprocess.run(
        [sys.executable, "t.py", *words], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False"]
    assert "did you mean small?" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "evaluate oncenets.py:small --threat linf:0.1 --no-doctor",
        "attack ensemble --models oncenets.py:small --eps 0.1",
    ],
)
def test_data_that_was_not_named_is(words, capsys):
    assert inside(*words.split()) != 0
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "was taken" in each]
    assert line.endswith("; --data was not given, so mnist-sample was taken.")
    assert ".;" not in line


@pytest.mark.parametrize(
    "words", ["evaluate A --threat linf:0.1 --no-doctor", "attack ensemble --eps 0.1 --models A"]
)
def test_a_folder_in_the_way_has_nothing_to_do_with_the_data(words, capsys):
    Path("o").mkdir()
    Path("o/report.html").write_text("mine")
    assert inside(*words.split(), "--limit", "2", "--out", "o") == 2
    told = capsys.readouterr().err
    assert "report.html" in told
    assert "was taken" not in told


def test_the_sample_of_the_models_own_data_set_is_the_default():
    assert (
        runs.settings.EvaluateSettings.load({"models": "cifar10-a", "threat": ["linf:8/255"]}).data
        == "cifar10-sample"
    )
    settings = runs.settings.EnsembleSettings.load({"models": "cifar10-a,cifar10-c", "eps": "0.1"})
    assert settings.data == "cifar10-sample"
    assert runs.settings.EnsembleSettings.load({"models": "A", "eps": "0.1"}).data == "mnist-sample"


def test_resume_tells_radii_as_they_were_written(capsys):
    words = "attack ensemble --models cifar10-a --limit 2 --steps 1 --out o"
    assert inside(*words.split(), "--eps", "2/255", "--quiet") == 0
    assert inside(*words.split(), "--eps", "8/255", "--resume") == 2
    assert "got eps: 2/255 there, 8/255 here" in capsys.readouterr().err


def test_help_says_what_is_required(capsys):
    assert inside("evaluate", "--help") == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    models, threat = (told[told.index(f"--{name} ") :] for name in ("models", "threat"))
    assert "[required]" not in models.partition(" --mean ")[0]
    assert "[required]" in threat.partition(" --suite ")[0]
    assert inside("attack", "ensemble", "--help") == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    eps = told[told.index("--eps ") :].partition(" --rule ")[0]
    assert "[required]" not in eps
    assert "required where it has none" in eps


RAISING = """
import saddlepoint as sp
from torch import nn

class Raising(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = sp.models.load("mnist-c")

    def forward(self, x):
        raise KIND("boom in my model")

def net():
    return Raising().eval()
"""


@pytest.mark.parametrize("labels", ["true", "predicted"])
@pytest.mark.parametrize("kind", ["ValueError", "KeyError"])
def test_what_a_model_raises_is_told_alike_wherever_it_is_asked_first(
    labels: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"raising_{labels}_{kind}.py"
    Path(file).write_text(RAISING.replace("KIND", kind))
    words = ("attack", "ensemble", "--models", f"A,{file}:net", "--eps", 0.1, "--limit", 2)
    assert inside(*words, "--data", "mnist-sample", "--labels", labels, "--out", "r") == 1
    said = capsys.readouterr().err.rstrip()
    assert "boom in my model" in said
    assert "raised by domain 1 (net), for images of shape (2, 1, 28, 28)" in said
    assert said.endswith(f"({file}, line 11)")


@pytest.mark.parametrize("seed", [10**22, 2**64, -(2**63) - 1])
@pytest.mark.parametrize(
    "words",
    [
        "attack ensemble --models A --eps 0.1",
        "attack patch --models A",
        "evaluate A --threat linf:0.1",
        "train --data mnist-sample --model A",
        "doctor A",
        "reproduce ensemble-mnist --limit 2",
    ],
)
def test_a_seed_that_torch_cannot_take_is_told_with_the_range(words, seed, monkeypatch, capsys):
    def load(*_, **__):
        raise AssertionError

    monkeypatch.setattr("saddlepoint.runs.materials.load_images", load)
    assert inside(*words.split(), f"--seed={seed}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    said = "[0, 2**32)" if words.startswith("train") else "[-2**63, 2**64)"
    assert line == f"saddlepoint: `--seed` must be in {said}, got {seed}."


def test_the_seeds_at_the_ends_of_the_range_are_taken(capsys):
    for seed in (-(2**63), 2**64 - 1):
        words = f"attack universal --models mnist-a --eps 0.1 --group-size 2 --limit 4 --steps 2 --seed={seed}"
        assert inside(*words.split(), "--out", f"run{seed}", "--quiet") == 0


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_training_cannot_take_is_told_at_once(seed, capsys):
    assert inside("train", "--data", "mnist-sample", "--model", "A", f"--seed={seed}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"saddlepoint: `--seed` must be in [0, 2**32), got {seed}."
