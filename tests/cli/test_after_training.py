"""From a training to an evaluation of what it gave: same normalisation, images that were not trained on."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import saddlepoint as sp
from commands import inside
from saddlepoint import runs
from saddlepoint.runs.materials import load_images, load_models

NETS = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 10, 3))
"""
TRAIN = "train --data photos --model photonets.py:small --epochs 1 --batch-size 16"
TRAIN += " --threat linf:2/255 --steps 1"
TRAIN += " --held-out 8 --test-images 4 --test-steps 1 --test-restarts 1"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photonets.py").write_text(NETS)
    x, y = sp.data.sample("cifar10", 200)
    for index, (image, label) in enumerate(zip(x, y, strict=True)):
        if label < 3:
            folder = tmp_path / "photos" / "abc"[int(label)]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / f"{index:04d}.png")


class TestNormalisation:
    def test_a_trained_network_is_prepared_as_it_was_in_training(self, capsys):
        assert inside(*TRAIN.split(), "--mean", "cifar10", "--out", "o") == 0
        card = json.loads(Path("o/model.json").read_text())
        assert (card["mean"], card["std"]) == ("cifar10", None)
        images = load_images("photos", "test")
        word = "o/model.safetensors:photonets.py:small"
        (found,) = load_models([word], images).values()
        (given,) = load_models([word], images, mean="cifar10").values()
        (other,) = load_models([word], images, mean="half").values()
        assert torch.equal(found(images.x), given(images.x))
        assert not torch.equal(found(images.x), other(images.x))

    def test_what_is_trained_on_from_there_keeps_it(self):
        assert inside(*TRAIN.split(), "--mean", "0.5", "--std", "0.25,0.5,0.5", "--out", "o") == 0
        words = TRAIN.replace(
            "photonets.py:small", "o/model.safetensors:photonets.py:small"
        ).split()
        assert inside(*words, "--out", "p", "--quiet") == 0
        card = json.loads(Path("p/model.json").read_text())
        assert (card["mean"], card["std"]) == ("0.5", "0.25,0.5,0.5")

    def test_a_card_of_other_parameters_is_refused(self):
        assert inside(*TRAIN.split(), "--mean", "half", "--out", "o", "--quiet") == 0
        text = Path("o/model.json").read_text()
        Path("o/model.json").write_text(text.replace('"sha256": "', '"sha256": "0'))
        with pytest.raises(ValueError, match=r"must be the card of o/model\.safetensors"):
            load_models(["o/model.safetensors:photonets.py:small"], load_images("photos"))

    def test_a_json_file_that_is_no_card_is_left_alone(self, tmp_path):
        assert inside(*TRAIN.split(), "--out", "o", "--quiet") == 0
        (tmp_path / "o" / "model.json").write_text('{"mine": 1}')
        assert load_models(["o/model.safetensors:photonets.py:small"], load_images("photos"))

    @pytest.mark.parametrize(
        ("damage", "told"),
        [
            (lambda text: text[: len(text) // 2], r"`o/model\.json` must be a model card, got"),
            (lambda text: "", r"`o/model\.json` must be a model card, got"),
            (
                lambda text: text.replace('"seed"', '"sead"'),
                r"`o/model\.json` must be a model card",
            ),
            (
                lambda text: text.replace('"mean": "half"', '"mean": 5'),
                "a text or null as mean, got 5",
            ),
            (
                lambda text: text.replace('"size": 32', f'"size": {10**30}'),
                r"a number in \[1, 65536\] as size, got 10000",
            ),
            (
                lambda text: json.dumps({**json.loads(text), "accuracy": "9"}),
                r"a number in \[0, 100\] as accuracy, got '9'",
            ),
        ],
    )
    def test_a_damaged_card_is_refused_since_nobody_else_knows_the_normalisation(
        self, damage, told
    ):
        assert inside(*TRAIN.split(), "--mean", "half", "--out", "o", "--quiet") == 0
        card = Path("o/model.json")
        text = damage(card.read_text())
        assert text != card.read_text()
        card.write_text(text)
        with pytest.raises(ValueError, match=told):
            load_models(["o/model.safetensors:photonets.py:small"], load_images("photos"))


class TestFgsm:
    @pytest.mark.parametrize(
        ("words", "eps", "told"),
        [
            ("", 2 / 255, "FGSM (linf 2/255) "),
            ("--method clean --threat l2:0.5", 8 / 255, "FGSM (linf 8/255) "),
        ],
    )
    def test_has_the_radius_of_the_threat_or_a_usual_one(self, words, eps, told, capsys):
        line = TRAIN.replace("--threat linf:2/255", words) if words else TRAIN
        assert inside(*line.split(), "--out", "o") == 0
        card = json.loads(Path("o/model.json").read_text())
        assert card["fgsm_eps"] == eps
        assert told in capsys.readouterr().out
        assert runs.Run.read(Path("o")).metrics["fgsm_eps"] == eps

    def test_that_of_the_paper_for_its_data(self):
        words = "train --data mnist-sample --model A --epochs 1 --limit 64 --out o --quiet"
        assert inside(*words.split()) == 0
        assert json.loads(Path("o/model.json").read_text())["fgsm_eps"] == sp.models.FGSM_EPS


class TestImagesSetAside:
    def test_the_last_line_evaluates_on_what_was_set_aside(self, capsys):
        assert inside(*TRAIN.split(), "--out", "o") == 0
        out = capsys.readouterr().out
        (line,) = [each for each in out.splitlines() if "saddlepoint evaluate" in each]
        words = shlex.split(line[line.index("saddlepoint ") :])[1:]
        assert words[:2] == ["evaluate", "o/model.safetensors:photonets.py:small"]
        assert words[2:] == ["--data", "photos", "--threat", "linf:2/255", "--split", "test"]
        assert inside(*words, "--no-doctor", "--out", "e") == 0
        assert "trained on" not in capsys.readouterr().err
        run = runs.Run.read(Path("e"))
        card = json.loads(Path("o/model.json").read_text())
        assert run.rows == card["test_images"]
        # After one epoch it may do no better than guessing, which is said; nothing else is.
        assert all("right before the attack, and guessing" in each for each in run.warnings)
        assert run.metrics["clean"] == pytest.approx(card["accuracy"], abs=0.01)

    @pytest.mark.parametrize("more", [(), ("--limit", 10)])
    def test_an_evaluation_warns_of_images_that_were_trained_on(self, more, capsys):
        words = (*TRAIN.replace("--held-out 8", "--held-out 2").split(), *more, "--out", "o")
        assert inside(*words, "--quiet") == 0
        count, kept = len(load_images("photos").y), len(load_images("photos", "train").y)
        seen = more[1] if more else kept
        evaluate = (
            "evaluate o/model.safetensors:photonets.py:small --data photos --threat linf:1/255"
        )
        assert inside(*evaluate.split(), "--no-doctor", "--out", "e") == 0
        told = f"o was trained on {seen} of these {count} images, so that its numbers are too high"
        assert told in capsys.readouterr().err
        assert told in runs.Run.read(Path("e")).warnings[0]
        assert told in Path("e/report.html").read_text()
        assert inside("report", "e", "o", "--out", "board.html") == 0
        assert told in Path("board.html").read_text()

    def test_the_parts_are_those_of_the_training_whatever_its_limit(self):
        whole = load_images("photos")
        train, test = (load_images("photos", split) for split in ("train", "test"))
        assert len(test.y) == len(whole.y) - len(whole.y) * 4 // 5
        rows = {image.numpy().tobytes() for image in train.x}
        assert not rows & {image.numpy().tobytes() for image in test.x}
        assert torch.equal(load_images("photos", "train", 5).x, train.x[:5])
        x, y, _ = sp.data.folder("photos", split="test")
        assert torch.equal(x, test.x)
        assert torch.equal(y, test.y)

    def test_embedded_samples_are_divided_as_a_training_divides_them(self):
        x, _ = sp.data.sample("mnist")
        assert torch.equal(load_images("mnist-sample", "test").x, x[800:])
        assert torch.equal(load_images("mnist-sample", "train", 7).x, x[:7])
        assert torch.equal(load_images("mnist-sample").x, x)


class TestSavedImages:
    ATTACK = "attack {} --models photonets.py:small --data photos --eps 8/255 --steps 2 --limit 6"

    @pytest.mark.parametrize("kind", ["ensemble", "universal --group-size 2"])
    def test_they_keep_the_names_of_classes_and_files(self, kind, capsys):
        words = self.ATTACK.format(kind).split()
        assert inside(*words, "--out", "o", "--save-images", "images") == 0
        told = json.loads(Path("images/verdicts.json").read_text())
        assert Path("images/classes.txt").read_text() == "a\nb\nc\n"
        for each in told:
            assert len(each["sources"]) == len(each["files"])
            for saved, source in zip(each["files"], each["sources"], strict=True):
                pixels = [
                    np.asarray(Image.open(f)).astype(int) for f in (f"images/{saved}", source)
                ]
                assert Path(saved).parent.name == Path(source).parent.name
                assert abs(pixels[0] - pixels[1]).max() <= 9
        assert load_images("images").classes == ("a", "b", "c")
        said = capsys.readouterr().err
        assert ("--quantize 256" in said) == ("8 bits undo" in said)

    def test_of_an_evaluation_too(self):
        words = (
            "evaluate photonets.py:small --data photos --threat linf:8/255 --no-doctor --limit 6"
        )
        assert inside(*words.split(), "--out", "e", "--save-images", "images") == 0
        told = json.loads(Path("images/linf/verdicts.json").read_text())
        assert told
        for each in told:
            (saved,), (source,) = each["files"], each["sources"]
            assert Path(saved).parent.name == Path(source).parent.name
