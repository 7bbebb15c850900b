"""Models that ask the outside world, which no hash sees: what they said is not mixed with what they say now."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import saddlepoint as sp
from commands import inside
from saddlepoint import runs
from saddlepoint.runs import rows, training_task
from saddlepoint.runs.refusals import answers, same_answers
from saddlepoint.training import session

NETS = """
    import torch
    from saddlepoint import models

    class Reads(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.inner, self.name = models.load("mnist-a"), name

        def forward(self, x):
            with open(self.name) as file:
                return self.inner(x) * float(file.read())

    def reads():
        return Reads("scale.txt").eval()
"""
NOISY = """
    import torch

    class Noisy(torch.nn.Module):
        "Batch norm, dropout, and noise also when it is tested."
        def __init__(self):
            super().__init__()
            layers = torch.nn.Flatten(), torch.nn.BatchNorm1d(784), torch.nn.Dropout()
            self.inner = torch.nn.Sequential(*layers, torch.nn.Linear(784, 10))

        def forward(self, x):
            return self.inner(x + 0.1 * torch.randn_like(x))
"""
ATTACK = "attack ensemble --models {}:reads --eps 0.1 --limit 6 --batch-size 2 --steps 2 --quiet"
TRAIN = "train --data mnist-sample --model {}:reads --method clean --epochs 3 --limit 40 --plain-images --quiet"
EVALUATE = "evaluate {}:reads --threat linf:0.1 --limit 6 --batch-size 2 --no-doctor --quiet"


def _stop_at(count: int, monkeypatch: pytest.MonkeyPatch, room: object, name: str) -> None:
    function, calls = getattr(room, name), []

    def stopping(*args: object, **kwargs: object) -> object:
        calls.append(None)
        if len(calls) == count:
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    monkeypatch.setattr(room, name, stopping)


@pytest.fixture
def line(
    command: str, request: pytest.FixtureRequest, tmp_path: Path, elsewhere: None
) -> list[str]:
    """A command with a model that reads a file whenever it is asked."""
    nets = f"nets_{abs(hash(request.node.name))}"  # a module of its own
    (tmp_path / f"{nets}.py").write_text(textwrap.dedent(NETS))
    (tmp_path / "scale.txt").write_text("1.0")
    words = {"attack": ATTACK, "evaluate": EVALUATE, "train": TRAIN}[command].format(nets).split()
    return [*words, "--out", "run"]


@pytest.mark.parametrize("command", ["attack", "evaluate", "train"])
def test_a_model_that_answers_otherwise_is_not_continued(
    command: str,
    line: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        if command == "attack":
            _stop_at(2, patch, rows, "_page")
        elif command == "evaluate":
            _stop_at(3, patch, runs.Store, "put")
        else:
            _stop_at(2, patch, session, "write_checkpoint")
        assert inside(*line) == 130
    record = (tmp_path / "run" / "run.json").read_bytes()
    (tmp_path / "scale.txt").write_text("0.9")  # the same class for every image, other logits
    capsys.readouterr()
    assert inside(*line, "--resume") == 2
    said = capsys.readouterr().err
    assert "`--resume` must continue with models that answer as they did" in said
    assert said.count("\n") == 1
    assert (tmp_path / "run" / "run.json").read_bytes() == record
    (tmp_path / "scale.txt").write_text("1.00000001")
    assert inside(*line, "--resume") == 0
    assert runs.Run.read(tmp_path / "run").status == "complete"
    assert not (tmp_path / "run" / "pages").exists()


@pytest.mark.parametrize("command", ["attack", "evaluate", "train"])
def test_a_complete_run_is_not_handed_back_for_a_model_that_answers_otherwise(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(*line) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert inside(*line, "--resume") == 0
    (tmp_path / "scale.txt").write_text("0.0")
    capsys.readouterr()
    assert inside(*line, "--resume") == 2
    said = capsys.readouterr()
    assert "`--resume` must continue with models that answer as they did" in said.err
    assert said.out == ""
    kept = {"run.json", "tensors.safetensors", "model.safetensors"} & written.keys()
    assert len(kept) == 2
    assert all((tmp_path / "run" / name).read_bytes() == written[name] for name in kept)


def test_a_training_is_the_same_whether_its_network_is_asked_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: None
) -> None:
    (tmp_path / "noisy.py").write_text(textwrap.dedent(NOISY))
    line = "train --data mnist-sample --model noisy.py:Noisy --method clean --epochs 1 --limit 40 --quiet"
    assert inside(*line.split(), "--out", "asked") == 0
    monkeypatch.setattr(training_task, "answers", lambda _: None)
    assert inside(*line.split(), "--out", "silent") == 0
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("asked", "silent"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_answers_are_the_logits_of_the_first_images_and_none_if_they_are_random() -> None:
    x, y = sp.data.sample("mnist", 40)
    model = sp.models.load("mnist-a")
    found = answers(sp.Ensemble([model], x, y))
    assert found is not None
    with torch.no_grad():
        assert torch.allclose(found[:, 0], model(x[:32]))
    assert same_answers(found, found * (1 + 1e-6))
    assert not same_answers(found, found * 1.01)
    assert not same_answers(found, found[:, :, :5])
    assert answers(sp.Ensemble([lambda z: model(z + torch.rand_like(z))], x, y)) is None
