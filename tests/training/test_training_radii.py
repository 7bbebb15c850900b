"""Radii of training that differ from those that are validated and tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from saddlepoint import cli, data, l1, l2, linf, models
from saddlepoint.training import Batches, Recipe, train, validate
from small_training import assert_equal_bits, bits, network

TESTED = {
    "linf": linf(0.1),
    "l2": l2(1.0),
    "l1": l1(0.02),
}  # so small that even plain gradients reach it
TRAINED = {"linf": linf(0.1), "l2": l2(1.0), "l1": l1(7.0)}
SGD = Recipe("test", "sgd", 0.05, epochs=2)
ADVERSARIAL = ("ampgd", "ampgd-paper", "avg", "max", "msd", "eat", "l1")


def loader() -> Batches:
    return Batches(*data.sample("mnist", limit=64), size=32, numbered=True)


@pytest.mark.parametrize("method", ADVERSARIAL)
def test_every_method_trains_with_the_radii_and_validates_with_those_of_the_threats(
    method: str,
) -> None:
    """Two epochs with radii are those of a training against the larger balls; only what is measured differs."""
    model, expected, plain = network(), network(), network()
    x, y = (each[500:540] for each in data.sample("mnist"))
    seen: list[dict[str, torch.Tensor]] = []
    options = {"method": method, "recipe": SGD, "steps": 3}
    history = train(
        *(model, loader(), TESTED),
        **options,
        radii={"l1": 7.0},
        validation=(x, y),
        validation_steps=4,
        callback=lambda progress: seen.append(bits(model)) if progress.validation else None,
    )
    train(expected, loader(), TRAINED, **options)
    assert_equal_bits(seen[-1], bits(expected))  # the last epoch; `model` has the best
    assert history[-1].validation == validate(expected, x, y, TESTED, steps=4, restarts=3)
    train(plain, loader(), TESTED, **options)
    assert any(
        not torch.equal(a, b) for a, b in zip(bits(plain).values(), seen[-1].values(), strict=True)
    )


def test_a_norm_alone_may_train_with_another_radius_and_the_others_change_nothing() -> None:
    model, expected = network(), network()
    train(model, loader(), TESTED, method="l2", recipe=SGD, steps=2, radii={"l1": 7.0})
    train(expected, loader(), TESTED, method="l2", recipe=SGD, steps=2)
    assert_equal_bits(bits(model), bits(expected))


def test_radii_rise_to_those_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from saddlepoint.training import methods

    seen: list[float] = []

    def spy(model, optimizer, x, y, threats, **options):  # type: ignore[no-untyped-def]
        seen.append(float(threats["l1"].ball.eps))
        return methods.avg_step(model, optimizer, x, y, threats, **options)

    monkeypatch.setitem(methods.ADVERSARIAL, "avg", methods._baseline(spy))
    train(network(), loader(), TESTED, method="avg", recipe=SGD, steps=1, ramp=1.0, radii={"l1": 8})
    assert seen == [4.0, 8.0, 8.0, 8.0]


def test_other_radii_are_another_run(tmp_path: Path) -> None:
    options = {"method": "avg", "recipe": SGD, "steps": 1, "out": tmp_path}
    train(network(), loader(), TESTED, radii={"l1": 7.0}, **options)
    with pytest.raises(ValueError, match="`options` must be as in"):
        train(network(), loader(), TESTED, radii={"l1": 8.0}, resume=True, **options)


def test_a_radius_of_no_threat_is_refused() -> None:
    with pytest.raises(
        ValueError, match="`radii` must be by the names of threats, linf, l2, l1, got 'l0'"
    ):
        train(network(), loader(), TESTED, radii={"l0": 7.0})


class TestCommand:
    def run(self, *words: object) -> object:
        with pytest.raises(SystemExit) as caught:
            cli.main([str(word) for word in words])
        return caught.value.code

    def test_trains_with_one_radius_and_tests_with_the_other(self, tmp_path: Path) -> None:
        words = "train --data mnist-sample --model A --method max --limit 100 --held-out 0 --epochs 1 --steps 2"
        words += " --threat linf:0.1 --test-images 50 --test-steps 5 --seed 1"
        assert (
            self.run(
                *words.split(),
                "--threat",
                "l1:4",
                "--train-radius",
                "l1:7",
                "--out",
                tmp_path / "a",
            )
            == 0
        )
        assert self.run(*words.split(), "--threat", "l1:7", "--out", tmp_path / "b") == 0
        one, other = (models.load(tmp_path / name / "model.safetensors") for name in "ab")
        assert_equal_bits(bits(one), bits(other))
        run = json.loads((tmp_path / "a" / "run.json").read_text())
        assert "--threat linf:0.1 --threat l1:4 --train-radius l1:7" in run["command"]
        x, y = (each[800:850] for each in data.sample("mnist"))
        found = validate(one, x, y, {"linf": linf(0.1), "l1": l1(4.0)}, steps=5, restarts=3)
        measured = run["metrics"]["robust_accuracy"]
        assert measured == {name: round(100 * value, 2) for name, value in found.items()}

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                "--threat l2:1 --train-radius l1:12",
                "`--train-radius` must be norm:radius for norms of",
            ),
            ("--threat l2:1 --train-radius l2", "`--train-radius` must be norm:radius with a norm"),
            ("--threat l2:1 --train-radius l2:-3", "`--train-radius` must have a radius >= 0"),
            (
                "--threat l2:1 --train-radius l2:3:1",
                "`--train-radius` must be norm:radius for norms of",
            ),
            ("--train-radius l2:3", "`--train-radius` must be norm:radius for norms of"),
            (
                "--method clean --held-out 9 --threat l2:1 --train-radius l2:3",
                "`--train-radius` must be left out for --method clean",
            ),
        ],
    )
    def test_errors_are_one_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
    ) -> None:
        start = ("train", "--data", "mnist-sample", "--model", "A", "--out", tmp_path)
        assert self.run(*start, *words.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line

    def test_a_radius_that_bounds_nothing_is_said(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = "train --data mnist-sample --model A --limit 40 --held-out 0 --epochs 1 --steps 1"
        words += " --threat l2:1 --train-radius l2:40 --test-images 4 --test-steps 1"
        assert self.run(*words.split(), "--out", tmp_path) == 0
        assert "l2 ball is 40" in capsys.readouterr().err
