"""What separates runs that a leaderboard could rank together, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commands import inside
from run_factory import make_evaluation, make_run
from saddlepoint import runs
from saddlepoint.runs.comparable import QUESTIONS, _difference, differences, facts, read_entry

TRAIN = (
    "train --data mnist-sample --model C --init mnist-c --limit 10 --epochs 1 --steps 1 --test-steps 1 "
    "--test-images 4"
)


def test_one_radius_written_in_several_ways_is_one_threat(tmp_path: Path) -> None:
    for name, threat in (("half", "linf:0.5/2"), ("plain", "LINF:0.25:0.1")):
        words = [*TRAIN.split(), "--test-restarts", 1, "--threat", threat, "--quiet"]
        assert inside(*words, "--out", tmp_path / name) == 0
    (ranking,) = runs.rank_runs([tmp_path]).rankings
    assert {entry.name for entry in ranking.entries} == {"half", "plain"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    make_evaluation(folder / "evaluation", rows=4, domains=1)
    make_run(folder / "attack", rows=4, domains=1)
    return folder


@pytest.mark.parametrize(
    ("number", "name", "apart"),
    [
        # What a model subtracts and divides by belongs to it, and two models are what is compared.
        (2, "mean", False),
        (2, "std", False),
        (2, "precision", True),  # a weaker search flatters a model
        (0, "precision", False),  # and is what attacks are compared in
        (1, "precision", True),
        (1, "mean", False),
    ],
)
def test_settings_separate_runs_where_they_change_what_is_compared(
    finished: Path, number: int, name: str, apart: bool
) -> None:
    one = read_entry("one", finished / ("evaluation" if number == 2 else "attack"))
    settings = {**one.run.settings, name: "other"}
    two = replace(one, run=one.run.but(settings=settings))
    question = QUESTIONS[number]
    assert (facts(question, one) != facts(question, two)) == apart
    if number == 2:
        assert differences(one, two) == ([f"{name} none instead of other"] if apart else [])


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        ("none", "next", "untargeted instead of targeted at next"),
        ("next", "none", "targeted at next instead of untargeted"),
        ("3", "next", "targeted at 3 instead of targeted at next"),
    ],
)
def test_what_is_aimed_at_is_told_of_both_runs(here: str, there: str, told: str) -> None:
    assert _difference("targeted", {"targeted": here}, {"targeted": there}) == told
