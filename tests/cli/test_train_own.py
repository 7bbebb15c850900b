"""`train` with a network and data of one's own, from new parameters or from those that are there."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file

import saddlepoint as sp
from commands import inside
from saddlepoint import runs, training
from saddlepoint.cli import progress
from saddlepoint.data import image_files
from saddlepoint.runs import training_parts
from saddlepoint.runs.settings import TrainSettings
from saddlepoint.training import TrainingProgress

NETS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import saddlepoint as sp

class Small(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5, stride=3)
        self.out = nn.Linear(4 * 8 * 8, classes)

    def forward(self, x):
        h = self.conv(x).relu()
        return self.out(h.view(len(x), -1))  # refuses what is not contiguous

def seven():
    return Small(7)

def function():
    return lambda x: x.flatten(1)

def digits(split):
    x, y = sp.data.sample("mnist", 150)
    return TensorDataset(x[:100], y[:100]) if split == "train" else TensorDataset(x[100:], y[100:])
"""
QUICK = ("--model", "mynets.py:Small", "--epochs", 1, "--batch-size", 20)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynets.py").write_text(NETS)


def small(tmp_path, name="Small") -> torch.nn.Module:
    """The network of the user's own file."""
    space: dict[str, type] = {}
    exec(NETS, space)
    return space[name]()


class TestOwnNetwork:
    def test_its_parameters_are_kept_and_give_the_accuracy_that_is_said(self, tmp_path, capsys):
        words = ("train", "--data", "mynets.py:digits", *QUICK, "--out", "o", "--json")
        assert inside(*words) == 0
        said = json.loads(capsys.readouterr().out)
        run = runs.Run.read(tmp_path / "o")
        assert said == {"status": "complete", "rows": run.rows, "done": 1, **run.metrics}
        network = small(tmp_path)
        network.load_state_dict(load_file(tmp_path / "o" / "model.safetensors"))
        x, y = (part[100:150] for part in sp.data.sample("mnist", 150))
        right = (network.eval()(x).argmax(1) == y).double().mean().item()
        assert said["accuracy"] == round(100 * right, 2)
        assert said["rows"] == 50
        card = json.loads((tmp_path / "o" / "model.json").read_text())
        assert (card["architecture"], card["classes"]) == ("mynets.py:Small", 10)

    def test_against_threats_and_the_same_bits_again(self, tmp_path, capsys):
        words = (
            "train",
            "--data",
            "mynets.py:digits",
            *QUICK,
            "--threat",
            "linf:0.1",
            "--steps",
            1,
        )
        words += ("--held-out", 10, "--test-images", 5, "--test-steps", 1, "--test-restarts", 1)
        assert inside(*words, "--out", "a") == 0
        out, err = capsys.readouterr()
        line = "evaluate it with: saddlepoint evaluate a/model.safetensors:mynets.py:Small --data mynets.py:"
        assert line in out
        assert err.startswith("mynets.py:digits mynets.py:Small ampgd  epoch 1/1  loss ")
        torch.rand(3)
        assert inside(*words, "--out", "b", "--quiet") == 0
        assert capsys.readouterr() == ("", "")
        files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
        assert files[0] == files[1]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--model mynets.py:seven", "got label 9 and 7 logits of mynets.py:seven"),
            (
                "--model mynets.py:function",
                "must give a torch.nn.Module to be trained, got function",
            ),
            ("--model mynets.py:none", "must name something in mynets.py, which has Small, seven"),
            ("--model p.pt2", "got the program p.pt2, which is fixed; give its code as"),
            ("--model mynets.py:Small --init none.pt", "`--init` must be a file of parameters"),
            (
                "--model mynets.py:Small --init w.safetensors",
                "of --model mynets.py:Small, got: out.weight has sha",
            ),
            (
                "--model mynets.py:Small --test-data cifar10-sample",
                "of the shape of --data, (1, 28",
            ),
            ("--model mynets.py:Small --batch-size 0", "`--batch-size` must be at least 1"),
            ("--model mynets.py:Small --learning-rate 0", "`learning_rate` must be positive"),
        ],
    )
    def test_errors_are_one_line_and_leave_nothing(self, tmp_path, capsys, words, message):
        save_file(small(tmp_path, "seven").state_dict(), tmp_path / "w.safetensors")
        (tmp_path / "p.pt2").write_bytes(b"")
        start = ("train", "--data", "mynets.py:digits", "--out", "o")
        assert inside(*start, *words.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
        assert not (tmp_path / "o").exists()


class TestFineTuning:
    WORDS = ("train", "--data", "mnist-sample", "--model", "A", "--epochs", 2, "--limit", 120)

    def test_begins_with_the_parameters_of_a_file_or_of_a_shipped_network(self, tmp_path):
        expected = sp.models.load("mnist-a").state_dict()
        torch.save(expected, tmp_path / "w.pt")
        for number, init in enumerate(("mnist-a", "w.pt")):
            words = (*self.WORDS, "--init", init, "--learning-rate", "1e-12", "--out", number)
            assert inside(*words, "--quiet") == 0
            found = load_file(tmp_path / str(number) / "model.safetensors")
            for key, value in expected.items():
                torch.testing.assert_close(found[key], value, atol=1e-6, rtol=0)
        x, y = (part[800:] for part in sp.data.sample("mnist"))
        right = (sp.models.load("mnist-a")(x).argmax(1) == y).double().mean().item()
        assert runs.Run.read(tmp_path / "1").metrics["accuracy"] == round(100 * right, 2)

    def test_a_network_of_a_file_is_trained_on(self, tmp_path):
        save_file(sp.models.load("mnist-a").state_dict(), tmp_path / "w.safetensors")
        words = ("train", "--data", "mnist-sample", "--model", "w.safetensors:A", "--epochs", 1)
        assert (
            inside(*words, "--limit", 64, "--learning-rate", "1e-12", "--out", "o", "--quiet") == 0
        )
        assert sp.models.load(tmp_path / "o" / "model.safetensors")  # by the card beside it
        assert runs.Run.read(tmp_path / "o").metrics["accuracy"] > 95

    def test_other_parameters_in_the_file_are_refused_on_resume(
        self, tmp_path, capsys, monkeypatch
    ):
        tensors = sp.models.load("mnist-a").state_dict()
        save_file(tensors, tmp_path / "w.safetensors")
        words = (*self.WORDS, "--init", "w.safetensors", "--out", "o")
        step, calls = training.loop.clean_step, iter(range(100))

        def interrupt(*arguments, **options):
            if next(calls) == 3:  # two batches an epoch: in the second one
                raise KeyboardInterrupt
            return step(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(training.loop, "clean_step", interrupt)
            assert inside(*words) == 130
        run = runs.Run.read(tmp_path / "o")
        assert set(run.hashes.models) == {"A", "--init w.safetensors"}
        assert "--init w.safetensors" in run.command
        save_file({k: v * 1.001 for k, v in tensors.items()}, tmp_path / "w.safetensors")
        capsys.readouterr()
        assert inside(*words, "--resume") == 2
        line = capsys.readouterr().err
        assert (
            "got other parameters or code for --init w.safetensors, A; choose another --out" in line
        )
        save_file(tensors, tmp_path / "w.safetensors")
        assert inside(*words, "--resume", "--quiet") == 0


class TestOwnData:
    def folder(self, root, count=60, classes=3) -> None:
        for index in range(count):
            place = root / f"class {index % classes}"
            place.mkdir(parents=True, exist_ok=True)
            Image.new("L", (30, 28), 255 - 4 * index).save(place / f"{index:03d}.png")

    def images(self, **options):
        settings = TrainSettings(model="A", **options)
        return training_parts.training_images(settings)

    def test_a_fifth_of_a_folder_is_drawn_for_testing(self, tmp_path):
        self.folder(tmp_path / "f")
        train, test = self.images(data="f", size=28)
        assert (len(train.y), len(test.y)) == (48, 12)
        both = 255 - torch.cat([train.x, test.x])[:, 0, 0, 0].mul(255).round().long()
        assert sorted(both.tolist()) == [4 * k for k in range(60)]
        assert both.tolist() != sorted(both.tolist())
        for part in (train, test):
            assert set(part.y.tolist()) == {0, 1, 2}  # not one class after the other
            assert ((255 * (1 - part.x[:, 0, 0, 0]) / 4).round() % 3).long().equal(part.y)
        assert set(train.y[38:48].tolist()) == {0, 1, 2}
        again = self.images(data="f", size=28)
        assert torch.equal(again[0].x, train.x)

    def test_every_class_gives_its_fifth(self, tmp_path):
        counts = {"a": 1, "b": 2, "c": 3, "d": 7, "e": 8, "f": 40}
        for name, count in counts.items():
            (tmp_path / "f" / name).mkdir(parents=True)
            for index in range(count):
                Image.new("L", (28, 28), 4 * index + 1).save(tmp_path / "f" / name / f"{index}.png")
        train, test = self.images(data="f")
        assert test.y.bincount(minlength=6).tolist() == [0, 1, 1, 1, 2, 8]
        assert train.y.bincount(minlength=6).tolist() == [1, 1, 2, 6, 6, 32]
        seen = [
            (int(y), float(x.max()))
            for part in (train, test)
            for x, y in zip(part.x, part.y, strict=True)
        ]
        assert len(set(seen)) == sum(counts.values())
        assert train.y.tolist() != sorted(train.y.tolist())
        assert test.y.tolist() != sorted(test.y.tolist())

    def test_a_training_of_another_split_is_refused_and_known(self, tmp_path, capsys, monkeypatch):
        self.folder(tmp_path / "f", 40)
        words = ["train", "--data", "f", "--size", 8, "--model", "A", "--epochs", 2, "--out", "o"]

        def before(labels, split, *, shuffle=True):  # as it was: a fifth of all, whatever the class
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
            first = len(labels) * 4 // 5
            return order[:first] if split == "train" else order[first:]

        with monkeypatch.context() as old:
            old.setattr(image_files, "rows_of", before)
            assert inside(*words, "--quiet") == 0
        assert inside(*words, "--resume") == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "must continue with the same data as the run in o, got images or labels" in told
        assert "with another hash, or divided otherwise;" in told
        model = "o/model.safetensors"
        line = ["evaluate", model, "--data", "f", "--size", 8, "--split", "test", "--no-doctor"]
        assert inside(*line, "--threat", "linf:0.01", "--out", "e") == 0
        told = " ".join(capsys.readouterr().err.split())
        assert "o was trained on" in told
        assert "its training was divided otherwise, by an earlier version or" in told
        assert "--split test" not in told  # which was just given
        assert inside(*line[:6], "--no-doctor", "--threat", "linf:0.01", "--out", "all") == 0
        told = " ".join(capsys.readouterr().err.split())
        assert "--split test takes those that its training has set aside" in told

    def test_a_limit_counts_the_images_to_train_on(self, tmp_path):
        self.folder(tmp_path / "f")
        for limit in (1, 10, 13):
            train, test = self.images(data="f", size=28, limit=limit)
            assert len(train.y) == limit
            assert len(test.y) == -(-limit * 5 // 4) - limit

    def test_other_data_to_test_on(self, tmp_path):
        self.folder(tmp_path / "f")
        x, y = np.zeros((4, 28, 28)), np.array([0, 1, 2, 0])
        names = np.array([f"class {k}" for k in range(3)])
        np.savez(tmp_path / "t.npz", images=x, labels=y, classes=names)
        train, test = self.images(data="f", size=28, test_data="t.npz")
        assert (len(train.y), test.y.tolist()) == (60, [0, 1, 2, 0])
        np.savez(tmp_path / "t.npz", images=x, labels=y)
        with pytest.raises(
            ValueError, match="`--test-data` must have the classes of --data, class 0"
        ):
            self.images(data="f", size=28, test_data="t.npz")

    def test_code_that_takes_a_split_gives_both(self):
        train, test = self.images(data="mynets.py:digits")
        x, y = sp.data.sample("mnist", 150)
        assert torch.equal(test.x, x[100:])
        assert sorted(train.y.tolist()) == sorted(y[:100].tolist())

    def test_named_data_is_as_it_was(self):
        x, y = sp.data.sample("mnist")
        train, test = self.images(data="mnist-sample", limit=100)
        assert torch.equal(train.x, x[:100])
        assert torch.equal(test.y, y[800:])

    def test_built_networks_take_square_images(self, tmp_path, capsys):
        self.folder(tmp_path / "f", 10)
        assert inside("train", "--data", "f", "--model", "A", "--out", "o") == 2
        assert "`--size` must be given for network A" in capsys.readouterr().err
        words = ("train", "--data", "f", "--size", 8, "--model", "A", "--epochs", 1, "--quiet")
        assert inside(*words) == 0
        card = json.loads((tmp_path / "runs" / "train-f-A" / "model.json").read_text())
        assert (card["size"], card["classes"], card["test_images"]) == (8, 3, 3)

    def test_one_image_is_too_few(self, tmp_path):
        self.folder(tmp_path / "f", 1, 1)
        with pytest.raises(
            ValueError, match="`--data` must have images to train on and to test on, got 1"
        ):
            self.images(data="f")


STATS = {"loss": 0.25, "accuracy": 0.9, "weight/linf": 0.3, "weight/l2": 0.3, "weight/l1": 0.4}


class TestProgress:
    @pytest.mark.parametrize("width", [40, 80, 200])
    def test_epoch_bar_and_time_left_stay_visible(self, width, monkeypatch):
        out = io.StringIO()
        fake = Console(file=out, force_terminal=True, width=width)
        monkeypatch.setattr("rich.console.Console", lambda **_: fake)
        with progress.training("mnist mnist_cnn ampgd", quiet=False) as bar:
            for step in range(1, 10):
                bar(TrainingProgress(3, 8, step, 938, STATS))
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
        last = [line for line in re.split(r"[\r\n]", plain) if "━" in line][-1]
        assert len(last) <= width
        assert re.search(r"epoch 3/8 ━[━╸╺]+ +25% ", last)
        assert re.search(r"\d:\d\d:\d\d", last)
        assert ("loss 0.25" in last) == (width >= 80)
        assert ("mnist mnist_cnn ampgd" in last) == (width >= 120)
        assert ("weights linf 0.30 l2 0.30 l1 0.40" in last) == (width >= 120)

    def test_the_end_of_an_epoch_is_one_line(self, capsys):
        with progress.training("mnist A", quiet=False) as bar:
            bar(TrainingProgress(1, 2, 4, 4, STATS, {"clean": 0.5, "union": 0.25}))
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("mnist A  epoch 1/2  loss 0.2500")
        assert line.endswith("held out clean 50.0 union 25.0 %")

    def forecast(self, seconds: float, epochs: int = 8, steps: int = 100) -> list[str]:
        said: list[str] = []
        times = iter(seconds * k for k in range(10_000))
        tell = progress.Forecast(said.append, "--epochs 2", clock=lambda: next(times))
        for step in range(1, 60):
            tell(TrainingProgress(1, epochs, step, steps, {}))
        return said

    def test_a_long_training_is_announced_once_and_a_short_one_is_not(self):
        assert self.forecast(0.1) == []  # 80 s
        (line,) = self.forecast(0.3)
        assert line.startswith(
            "about 4 min for 8 epochs, by the first 21 steps, tests not counted; "
        )
        assert "shorter: --epochs 2. Ctrl-C stops it, --resume goes on." in line
        (line,) = self.forecast(30.0)
        assert line.startswith("about 6 h 39 min for 8 epochs, by the first 2 steps")

    def test_what_makes_it_shorter_is_said_in_flags(self, monkeypatch, capsys):
        monkeypatch.setattr(progress, "_LONG", 0.0)
        words = (
            "train --data mnist-sample --model A --threat linf:0.1 --steps 2 --epochs 4 --limit 120"
        )
        words += " --batch-size 4 --held-out 20 --test-images 2 --test-steps 1 --out o"
        assert inside(*words.split()) == 0
        (line,) = [each for each in capsys.readouterr().err.splitlines() if "about" in each]
        assert "shorter: a tenth with --limit 10, --epochs 1 or --steps 1. Ctrl-C" in line


def test_images_of_one_class_are_refused_by_the_name_of_the_flag(tmp_path, capsys):
    np.savez(tmp_path / "one.npz", images=np.zeros((8, 28, 28), np.uint8) + 9, labels=[0] * 8)
    assert inside("train", "--data", "one.npz", "--model", "C", "--epochs", 1, "--out", "o") == 2
    said = capsys.readouterr().err
    assert "`--data` must have images of two classes or more, got 1 class." in said


def test_models_is_another_word_for_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = ("train", "--data", "mnist-sample", "--print-config")
    assert inside(*line, "--models", "A") == 0
    said = capsys.readouterr().out
    assert "model: A\n" in said
    (tmp_path / "mine.yaml").write_text("models: [A]\ndata: mnist-sample\n")
    assert inside("train", "--config", "mine.yaml", "--print-config") == 0
    assert capsys.readouterr().out == said
    assert inside(*line, "--models", "A,C") == 2
    assert "`--model` must name one network to train, got 2." in capsys.readouterr().err
    (tmp_path / "both.yaml").write_text("models: [A]\nmodel: C\ndata: mnist-sample\n")
    assert inside("train", "--config", "both.yaml", "--print-config") == 2
    assert "they are the same" in capsys.readouterr().err
    for file, word in (("mine", "--model"), ("mine", "--models"), ("both", "--models")):
        assert inside("train", "--config", f"{file}.yaml", word, "C", "--print-config") == 0
        assert "model: C\n" in capsys.readouterr().out
    assert inside("train", "--help") == 0
    assert "--models" in capsys.readouterr().out
