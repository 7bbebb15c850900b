"""Adversarial images in files: 8 bits, read back, judged again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import saddlepoint as sp
from commands import inside
from saddlepoint import models
from shortened import short_suites


@pytest.fixture(scope="module")
def problem() -> sp.Ensemble:
    x, y = sp.data.sample("mnist", 12)
    return sp.Ensemble([models.load("mnist-a"), models.load("mnist-c")], x, y, names=["A", "C"])


def test_what_was_attacked_in_whole_levels_is_fooled_when_read_back(
    problem: sp.Ensemble, tmp_path: Path
) -> None:
    result = sp.attack(problem, sp.linf(0.12), steps=8, quantize=256)
    saved = sp.save_images(result, tmp_path / "new" / "images")
    assert torch.equal(saved.fooled, result.fooled)
    assert 0 < int(result.success.sum()) < 12
    assert not saved.outside.any()
    x, y, classes = sp.data.own.folder(saved.folder)
    assert classes == tuple(map(str, range(10)))
    # Read as any data set: the same images, in another order.
    order = sorted(range(12), key=lambda row: (int(problem.labels[row, 0]), row))
    assert y.tolist() == [int(problem.labels[row, 0]) for row in order]
    torch.testing.assert_close(x, result.adversarial[order])
    for row, (path,) in enumerate(saved.files):
        with Image.open(path) as image:
            assert (image.mode, image.size) == ("L", (28, 28))
            levels = np.asarray(image).astype(np.float64)
        expected = 255 * result.adversarial[row, 0].double().numpy()
        np.testing.assert_allclose(levels, expected, atol=1e-3)
    told = json.loads((saved.folder / "verdicts.json").read_text())
    assert [each["fooled"] for each in told] == [
        dict(zip(("A", "C"), row, strict=True)) for row in result.fooled.tolist()
    ]
    says = problem.on_grid(256).logits(result.delta).argmax(dim=-1)
    assert [list(each["says"].values()) for each in told] == says.tolist()
    assert all(each["distance"] <= 0.12 + 1e-6 for each in told)


def test_what_was_wrong_before_any_attack_is_told(problem: sp.Ensemble, tmp_path: Path) -> None:
    truth = problem.labels[:, 0].clone()
    truth[:3] = (truth[:3] + 1) % 10  # so that three images are misclassified as they are
    wrong = sp.Ensemble(problem.models, problem.x, truth, names=["A", "C"])
    result = sp.attack(wrong, sp.linf(0.12), steps=8, quantize=256)
    every = int(result.success.sum())
    assert 3 < every < 12
    assert f"{every} of 12 rows fool all 2 domains, 3 without any perturbation" in repr(result)
    assert "all at once without any perturbation: 3 of 12" in result._repr_html_()
    saved = sp.save_images(result, tmp_path)
    assert repr(saved).endswith(f"{every} did before; 3 would without any perturbation)")
    # What rounding moves out of the ball fools nobody inside it, and would as it was.
    moved = dataclasses.replace(saved, fooled=saved.fooled & False, outside=~saved.outside)
    assert "0 of 12 rows fool all 2 domains when read back" in repr(moved)
    assert repr(moved).endswith("; 3 would without any perturbation)")
    assert saved.unperturbed.all(dim=1).tolist() == [True] * 3 + [False] * 9
    told = json.loads((tmp_path / "verdicts.json").read_text())
    assert [each["fooled_unperturbed"] for each in told[2:4]] == [
        {"A": True, "C": True},
        {"A": False, "C": False},
    ]


def test_rounding_out_of_the_ball_is_no_success(problem: sp.Ensemble, tmp_path: Path) -> None:
    # 0.1 is 25.5 levels: rounded to 26 the image has left the ball.
    result = sp.attack(problem, sp.linf(0.1), steps=8)
    assert result.fooled.any()
    with pytest.warns(UserWarning, match="8 bits were too few for .* moved out of the ball"):
        saved = sp.save_images(result, tmp_path / "images")
    clean = problem.x
    levels = (result.adversarial * 255).round() / 255
    far = (levels - clean).flatten(1).abs().amax(dim=1) > 0.1 * (1 + 1e-4)
    assert torch.equal(saved.outside, far)
    assert not saved.fooled[far].any()
    assert torch.equal(saved.before, result.fooled)


def test_what_rounding_undoes_is_told(tmp_path: Path) -> None:
    # Wrong above 0.4995. From 127/255 = 0.49804 that takes 0.37 of a level, which 8 bits round away.
    def model(images: torch.Tensor) -> torch.Tensor:
        value = images.flatten(1).mean(dim=1)
        return torch.stack([torch.zeros_like(value), value - 0.4995], dim=1)

    x = torch.full((1, 1, 2, 2), 127 / 255)
    result = sp.attack(sp.Ensemble([model], x, torch.tensor([0])), sp.linf(0.0018), steps=4)
    assert result.success.item()
    with pytest.warns(
        UserWarning, match=r"8 bits were too few for 1 of 1 rows.*than before; attack"
    ):
        saved = sp.save_images(result, tmp_path)
    assert saved.before.item()
    assert not saved.fooled.item()
    assert not saved.outside.item()


def test_groups_have_a_file_per_image(problem: sp.Ensemble, tmp_path: Path) -> None:
    x, y = problem.x.reshape(3, 4, 1, 28, 28), problem.labels[:, 0].reshape(3, 4)
    group = sp.Universal(problem.models[1], x, y, box="clip")
    result = sp.attack(group, sp.linf(0.2), steps=6, quantize=256)
    saved = sp.save_images(result, tmp_path)
    assert torch.equal(saved.fooled, result.fooled)
    assert [len(own) for own in saved.files] == [4, 4, 4]
    assert saved.files[1][2] == tmp_path / str(int(y[1, 2])) / "00001-3.png"
    assert repr(saved).startswith("SavedImages(12 images in ")


def test_colour(tmp_path: Path) -> None:
    x, y = sp.data.sample("cifar10", 2)
    problem = sp.Ensemble([models.load("cifar10-c")], x, y)
    result = sp.attack(problem, sp.linf(4 / 255), steps=3, quantize=256)
    saved = sp.save_images(result, tmp_path)
    assert "rows fool the domain when read back" in repr(saved)
    with Image.open(saved.files[0][0]) as image:
        assert image.mode == "RGB"
    assert torch.equal(saved.fooled, result.fooled)


def test_what_cannot_be_saved_is_refused_before_anything_is_written(
    problem: sp.Ensemble, tmp_path: Path
) -> None:
    result = sp.attack(problem, sp.linf(0.12), steps=1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="`folder` must be new or empty"):
        sp.save_images(result, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    vectors = sp.Ensemble([torch.nn.Linear(4, 3).eval()], torch.rand(2, 4), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"images \(C, H, W\) with C = 1 or 3 .* got \(4,\)"):
        sp.save_images(sp.attack(vectors, sp.linf(0.1), steps=1), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_attack_saves_images_that_it_can_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--models", "A,C", "--eps", "0.2", "--limit", "6", "--steps", "6", "--quantize", "256"]
    out = ["--out", tmp_path / "run", "--save-images", tmp_path / "images"]
    assert inside("attack", "ensemble", *words, *out) == 0
    err = capsys.readouterr().err
    metrics = json.loads((tmp_path / "run" / "run.json").read_text())["metrics"]
    count = round(6 * metrics["asr_all"] / 100)
    assert (
        f"saved 6 images in {tmp_path / 'images'}: read back, {count} of 6 fool everything" in err
    )
    # The saved images as data: what was fooled is wrong from the start.
    words = ["--data", tmp_path / "images", "--models", "mnist-a,mnist-c", "--eps", "0.01"]
    again = ["--steps", "1", "--out", tmp_path / "again"]
    assert inside("attack", "ensemble", *words, *again) == 0
    found = json.loads((tmp_path / "again" / "run.json").read_text())["metrics"]
    assert list(found["clean_accuracy"].values()) == list(metrics["accuracy"].values())
    # A complete run has its images still; a folder with something in it is refused before any work.
    more = ["--quiet", "--resume", "--out", tmp_path / "run", "--save-images"]
    line = ["attack", "ensemble", "--models", "A,C", "--eps", "0.2", "--limit", "6", "--steps", "6"]
    line += ["--quantize", "256"]
    assert inside(*line, *more, tmp_path / "more") == 0
    assert len(list((tmp_path / "more").rglob("*.png"))) == 6
    capsys.readouterr()
    assert inside(*line, *more, tmp_path / "images") == 2
    assert "`--save-images` must be new or empty" in capsys.readouterr().err


def test_evaluate_saves_what_broke_images_per_threat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["evaluate", "mnist-a", "--threat", "linf:0.1", "--threat", "l2:0.01", "--limit", "12"]
    line += ["--no-doctor", "--out", tmp_path / "run", "--save-images"]
    with short_suites():
        assert inside(*line, tmp_path / "images") == 0
    err = capsys.readouterr().err
    metrics = json.loads((tmp_path / "run" / "run.json").read_text())["metrics"]
    broken = round(12 * (metrics["clean"] - metrics["robust"]["linf"]) / 100)
    assert broken > 2
    told = json.loads((tmp_path / "images" / "linf" / "verdicts.json").read_text())
    assert len(told) == broken
    # Right at the boundary rounding would undo many; made longer, all of them are wrong when read back.
    assert all(each["fooled"]["mnist-a"] and not each["outside"] for each in told)
    assert f"saved linf: {broken} images" in err
    assert "l2: no image was broken, none is saved" in err
    assert inside(*line, tmp_path / "other", "--resume") == 2
    assert "got one that is complete" in capsys.readouterr().err
