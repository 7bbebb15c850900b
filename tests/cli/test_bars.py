"""Progress on the terminal and off it: what stays to be read, and that `quiet` is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from saddlepoint.cli import progress
from saddlepoint.evaluation import EvaluationProgress
from saddlepoint.evaluation.evaluation_bar import evaluation_bar
from saddlepoint.experiments import Step
from saddlepoint.runs import RunProgress
from saddlepoint.training import TrainingProgress


def attack(quiet: bool) -> None:
    with progress.attacking("ensemble toy", "images", quiet=quiet) as report:
        for done in range(21):
            report(RunProgress(20, done, done // 2, min(1.0, (done + 0.5) / 20)))


def evaluation(quiet: bool) -> None:
    state = {"domain": "A", "threat": "linf", "attacks": 2, "images": 8, "total": 8}
    with evaluation_bar("evaluate toy", quiet=quiet) as report:
        report(EvaluationProgress(**state, attack="fgsm", index=0, done=4, not_fooled=6))
        report(EvaluationProgress(**state, attack="fgsm", index=0, done=8, not_fooled=5))
        report(EvaluationProgress(**state, attack="[pgd]", index=1, done=8, not_fooled=3))


def patches(quiet: bool) -> None:
    with progress.attacking("patch toy", "patches", quiet=quiet) as report:
        report(RunProgress(2, 0, 0, 0.2))
        report(RunProgress(2, 2, 0, 1.0))


def reproduction(quiet: bool) -> None:
    with progress.reproducing("cost apgda", quiet=quiet) as (report, download):
        download("digits", 0, 10)
        download("digits", 10, 10)
        report(Step("A, clean", 1, 3, 0.0, there=True))
        report(Step("A, [avg]", 1, 3, 0.5))
        report(Step("A, [avg]", 2, 3, 0.0))
        report(Step("A, min-max", 3, 3, 0.0))


def training(quiet: bool) -> None:
    with progress.training("toy A", quiet=quiet) as report:
        for step in (1, 2):
            report(TrainingProgress(1, 1, step, 2, {"loss": 0.25}, {}))


SAID = {
    attack: ["ensemble toy: 2/20 images, 1 fooled that were right", "20/20 images, 10 fooled"],
    evaluation: [
        "evaluate toy: A linf fgsm (1/2): 5/8 not fooled yet",
        "evaluate toy: A linf [pgd] (2/2): 3/8 not fooled yet",
    ],
    patches: ["patch toy: 2/2 patches\n"],
    reproduction: [
        "downloading digits",
        "cost apgda [1/3] A, clean: already there\n",
        "[2/3] A, [avg]: 0.0 s\n",
        "[3/3] A, min-max: 0.0 s\n",
    ],
    training: ["toy A  epoch 1/1  loss 0.2500"],
}


@pytest.mark.parametrize("work", SAID)
def test_plain_lines_off_a_terminal(
    work: Callable[[bool], None], capfd: pytest.CaptureFixture[str]
) -> None:
    work(False)
    out, err = capfd.readouterr()
    assert out == ""
    assert all(line in err for line in SAID[work])
    assert "\033" not in err
    lines = {attack: 11, evaluation: 2, patches: 1, reproduction: 4, training: 1}
    assert len(err.splitlines()) == lines[work]


@pytest.mark.parametrize("work", SAID)
def test_quiet_is_quiet(work: Callable[[bool], None], capfd: pytest.CaptureFixture[str]) -> None:
    work(True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("work", [reproduction, training])
def test_on_a_terminal_finished_rows_and_epochs_stay(
    work: Callable[[bool], None],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    work(False)
    out, err = capfd.readouterr()
    assert out == ""
    assert all(line in err for line in SAID[work])
    assert "━" in err  # the bar itself
