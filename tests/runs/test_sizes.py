"""Pictures of a folder are brought to what the models were made for, where nobody says otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from commands import inside
from saddlepoint import data, models
from saddlepoint.data.image_files import files_of
from saddlepoint.data.pixels import resized
from saddlepoint.models.framing import Framing, _processor_framing
from saddlepoint.runs.settings import ATTACKS, EvaluateSettings, TrainSettings
from saddlepoint.runs.sizes import default_framing, with_size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two grey pictures per digit, of sizes that differ."""
    x, y = data.sample("mnist", 40)
    for label in range(10):
        place = tmp_path / "digits" / str(label)
        place.mkdir(parents=True)
        for k, row in enumerate((y == label).nonzero().flatten()[:2].tolist()):
            pixels = (x[row, 0] * 255).round().byte().numpy()
            Image.fromarray(pixels).resize((56 + 8 * k, 56)).save(place / f"{k}.png")
    return tmp_path / "digits"


def test_the_card_of_a_network_says_what_pictures_are_brought_to(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(folder), "--threat", "linf:0.1", "--no-doctor", "--out", tmp_path / "o"]
    assert inside("evaluate", "mnist-a", *words) == 0
    assert "images are resized for the models: --size 28\n" in capsys.readouterr().err
    record = json.loads((tmp_path / "o" / "run.json").read_text())
    assert (record["settings"]["size"], record["settings"]["crop"]) == (28, 1.0)
    assert " --size 28 " in record["command"]
    assert record["metrics"]["clean"] > 80
    # Said by the user, it is as they say.
    again = ["--data", str(folder), "--threat", "linf:0.1", "--no-doctor", "--size", "28"]
    assert inside("evaluate", "mnist-a", *again, "--crop", "0.7", "--out", tmp_path / "p") == 0
    assert "images are resized" not in capsys.readouterr().err
    assert inside("evaluate", "mnist-a", "--threat", "linf:0.1", "--crop", "0.7") == 2
    assert "`--crop` must be given with --size, got 0.7 alone" in capsys.readouterr().err


def test_doctor_and_train_know_it_too(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside("doctor", "mnist-a", "--data", folder, "--steps", "1", "--limit", "10")
    told = capsys.readouterr()
    assert "images are resized for the models: --size 28\n" in told.err
    assert "10 images 1x28x28" in told.out
    words = ["--data", str(folder), "--epochs", "1", "--method", "clean", "--out", tmp_path / "t"]
    assert inside("train", "--model", "mnist-a", *words) == 0
    assert "images are resized for the models: --size 28\n" in capsys.readouterr().err
    assert json.loads((tmp_path / "t" / "model.json").read_text())["size"] == 28


def test_pictures_that_fit_stay_as_they_are(tmp_path: Path) -> None:
    for name, side in (("a", 20), ("b", 20)):
        (tmp_path / "same" / name).mkdir(parents=True)
        Image.new("L", (side, side), "white").save(tmp_path / "same" / name / "1.png")
    place = str(tmp_path / "same")
    assert default_framing(["mnist-a"], place) is None  # the network resizes, not the pictures
    assert default_framing(["mnist-a", "cifar10-a"], "mnist-sample") is None
    Image.new("L", (20, 30), "white").save(tmp_path / "same" / "a" / "2.png")
    assert default_framing(["mnist-a", "cifar10-a"], place) == Framing(32)  # the largest of them
    assert default_framing(["nets.py:f"], place) is None
    (tmp_path / "same" / "a" / "3.png").write_bytes(b"no picture")
    assert default_framing(["mnist-a"], place) is None  # said better where it is read


def test_the_pictures_that_are_looked_at_are_those_of_the_split(tmp_path: Path) -> None:
    for index in range(20):
        place = tmp_path / "parts" / "ab"[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), "white").save(place / f"{index:02d}.png")
    for file in files_of(tmp_path / "parts", split="test"):
        Image.new("L", (56, 56), "white").save(file)
    place = str(tmp_path / "parts")
    assert default_framing(["mnist-a"], place, split="train") is None
    assert default_framing(["mnist-a"], place, limit=1, split="test") == Framing(28)
    wanted = {"models": ["mnist-a"], "data": place, "limit": 1}
    test, train = {**wanted, "split": "test"}, {**wanted, "split": "train", "threat": ["linf:0.1"]}
    assert with_size(ATTACKS["ensemble"].load({**test, "eps": 0.1})).size == 28
    assert with_size(EvaluateSettings.load(train)).size is None
    both = {"model": "mnist-a", "data": place, "limit": 1, "method": "clean"}
    assert with_size(TrainSettings.load(both)).size == 28


@pytest.mark.parametrize(
    ("known", "framing"),
    [
        ({"size": {"height": 48, "width": 48}}, Framing(48)),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": True}, (224, 0.875)),
        (
            {"size": 256, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True},
            (224, 0.875),
        ),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": False}, (256, 1)),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.9}, (224, 0.9)),
        ({"size": {"height": 48, "width": 64}}, None),
        ({"size": "large", "crop_pct": "much"}, None),
        ({}, None),
    ],
)
def test_image_processors_are_understood(known: dict[str, object], framing: object) -> None:
    assert _processor_framing(known) == framing


def test_a_crop_keeps_the_centre_of_what_is_resized(tmp_path: Path) -> None:
    torch.manual_seed(0)
    picture = torch.rand(3, 256, 300)
    assert torch.equal(resized(picture, 224, 0.875), picture[:, 16:240, 38:262])
    assert resized(picture, 224, 224 / 232).shape == (3, 224, 224)
    (tmp_path / "a").mkdir()
    Image.new("L", (8, 8), "white").save(tmp_path / "a" / "1.png")
    for wrong in (0, 1.5, True, "half"):
        with pytest.raises(ValueError, match=r"`crop` must be a number in \(0, 1\], got"):
            data.folder(tmp_path, 4, crop=wrong)  # type: ignore[arg-type]
    assert models.card("mnist-a").size == 28


def test_a_model_for_other_data_is_told_with_its_channels_and_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["attack", "ensemble", "--models", "mnist-a,cifar10-c", "--data", "mnist-sample"]
    assert inside(*words, "--limit", 4, "--eps", 0.1, "--out", tmp_path / "o") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "images of 1 (grey), 28x28, and cifar10-c, which takes 3 (colour), 32x32" in told
