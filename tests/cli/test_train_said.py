"""What `train` says: how many epochs are saved, what it measured and on how many images, why it refuses."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

import saddlepoint as sp
from commands import inside
from saddlepoint import runs
from saddlepoint.cli import progress

WORDS = ("train", "--data", "mnist-sample", "--model", "mnist_cnn_small", "--limit", 32)
WORDS += ("--batch-size", 16, "--epochs", 2, "--out", "o")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@contextmanager
def stopping_bar(title, **_):
    """Ctrl-C while the line of the first epoch is printed."""

    def report(state):
        if state.step == state.steps:
            raise KeyboardInterrupt

    yield report


class TestStopped:
    def test_an_epoch_that_is_saved_counts(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(progress, "training", stopping_bar)
        assert inside(*WORDS) == 130
        assert "stopped: 1 of 2 epochs are saved (the one under way" in capsys.readouterr().err
        assert runs.Run.read(tmp_path / "o").done == 1
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)

        def stop(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(runs.training_task, "_card", stop)
        assert inside(*WORDS, "--resume") == 130
        said = capsys.readouterr().err
        assert "continuing after 1 of 2 epochs" in said
        assert "stopped: 2 of 2 epochs are saved (the tests of the network begin again)" in said

    def test_another_length_is_refused_with_what_differs_and_the_reason(self, monkeypatch, capsys):
        with monkeypatch.context() as patch:
            patch.setattr(progress, "training", stopping_bar)
            assert inside(*WORDS) == 130
        capsys.readouterr()
        assert inside(*[3 if word == 2 else word for word in WORDS], "--resume") == 2
        line = capsys.readouterr().err
        assert "got epochs: 2 there, 3 here; the learning rate of every step depends on" in line
        assert "resume with --epochs 2, or train anew into another --out." in line
        assert "optimizer" not in line


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "A", "--threat", "linf:0.1"),
        ("attack", "ensemble", "--models", "A,C"),
        ("train", "--model", "A"),
    ],
)
def test_an_occupied_folder_is_refused_before_anything_is_loaded(
    words, tmp_path, monkeypatch, capsys
):
    def load(*_, **__):
        raise AssertionError("images were loaded")

    monkeypatch.setattr(sp.data, "load", load)
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / runs.RECORD).write_text("{}")
    assert inside(*words, "--data", "mnist-sample", "--out", "o") == 2
    said = capsys.readouterr().err
    assert said.startswith("saddlepoint: `--out` must not hold a run yet, got 'o'; add --resume")


def test_the_last_lines_say_what_was_measured_on_how_many_images(tmp_path, capsys):
    words = (*WORDS, "--threat", "linf:0.1", "--steps", 1, "--held-out", 8)
    assert inside(*words, "--test-images", 5, "--test-steps", 1, "--test-restarts", 1) == 0
    out, err = capsys.readouterr()
    first, second, *_, last = out.splitlines()
    metrics = runs.Run.read(tmp_path / "o").metrics
    low, high = sp.evaluation.wilson(round(2 * metrics["accuracy"]), 200)
    told = f"clean {metrics['accuracy']:.2f} % ({100 * low:.1f} to {100 * high:.1f}), FGSM "
    assert "accuracy on all 200 test images (95 % interval): " + told in first
    low, high = sp.evaluation.wilson(round(metrics["robust_accuracy"]["union"] / 20), 5)
    assert second.startswith("on the first 5 test images, attacked: clean ")
    union = metrics["robust_accuracy"]["union"]
    assert second.endswith(f"union {union:.2f} % ({100 * low:.1f} to {100 * high:.1f})")
    assert last.endswith("s; report: o/report.html")
    assert "accuracy under the training attack" in err.splitlines()[0]
