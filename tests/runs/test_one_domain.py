"""Defaults of an attack on one domain: those of `saddlepoint.attack`, in settings, lines, files and records."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import saddlepoint as sp
from commands import inside
from saddlepoint.runs import build
from saddlepoint.runs.settings import ATTACKS, AttackSettings, EnsembleSettings, PatchSettings
from saddlepoint.solver.inspection import look

USUAL = {"loss": "soft-margin", "steps": 25, "restarts": 2}
SEVERAL = {"loss": "cw", "steps": 50, "restarts": 1}


def decided(settings: AttackSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in USUAL}


@pytest.mark.parametrize(
    ("kind", "more", "options"),
    [
        ("ensemble", {}, {}),
        ("ensemble", {"norm": "l1", "eps": 12}, {}),
        ("ensemble", {}, {"evaluations": 30}),
        ("ensemble", {}, {"steps": 6}),
        ("ensemble", {}, {"restarts": 2}),
        ("ensemble", {}, {"keep_going": True}),
        ("universal", {"group_size": 1}, {}),
        ("transform", {"transforms": ["hflip"]}, {}),
    ],
)
def test_the_command_line_takes_what_python_takes(
    kind: str, more: dict[str, Any], options: dict[str, Any]
) -> None:
    x, y = sp.data.sample("mnist", 6)
    model = sp.models.load("mnist-ampgd")
    settings = ATTACKS[kind].load({"models": "mnist-ampgd", "eps": 0.25, **more, **options})
    problem = build.problem_of(settings, x, y, {"mnist-ampgd": model})
    found = build.solver_of(settings, look(problem), problem)(problem, sp.MinMax(), lambda _: None)
    direct = sp.attack(problem, build.ball_of(settings), **options)
    assert torch.equal(found.delta, direct.delta)
    assert torch.equal(found.num_forwards, direct.num_forwards)


@pytest.mark.parametrize(
    "more",
    [
        {"models": "A,C"},
        {"models": "A", "method": "apgda"},
        {"models": "A", "gradient": "estimated:queries=500"},
    ],
)
def test_other_attacks_keep_theirs(more: dict[str, Any]) -> None:
    assert decided(EnsembleSettings.load({"eps": 0.2, **more})) == SEVERAL


def test_patches_have_their_own() -> None:
    settings = PatchSettings.load({"models": "A", "views": "here"})
    assert decided(settings) == {"loss": "clipped:-5", "steps": 60, "restarts": 1}


@pytest.mark.parametrize(
    "given",
    [
        {},
        SEVERAL,
        {"loss": "cw"},
        {"steps": 25},
        {"restarts": 2},
        {"steps": 50},
        {"evaluations": 50},
        {"evaluations": 50, "loss": "cw"},
        {"keep_going": True},
        {"keep_going": True, "steps": 25, "restarts": 2},
        {"method": "apgda"},
    ],
)
def test_the_line_of_a_run_repeats_it(given: dict[str, Any]) -> None:
    settings = EnsembleSettings.load({"models": "A", "eps": 0.2, **given})
    words = shlex.split(settings.command())[3:]
    flags: dict[str, Any] = {}
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        flags[name] = words.pop(0) if words and not words[0].startswith("--") else True
    assert EnsembleSettings.load(flags) == settings
    assert given or not {"loss", "steps", "restarts"} & flags.keys()


def test_what_a_file_says_of_one_model_is_found_anew_for_two_and_back(tmp_path: Path) -> None:
    one, two, old = (tmp_path / f"{name}.yaml" for name in ("one", "two", "old"))
    one.write_text(EnsembleSettings.load({"models": "A", "eps": 0.2}).to_yaml())
    two.write_text(EnsembleSettings.load({"models": "A,C", "eps": 0.2}).to_yaml())
    old.write_text(EnsembleSettings.load({"models": "A", "eps": 0.2, **SEVERAL}).to_yaml())
    assert decided(EnsembleSettings.load({}, one)) == USUAL
    assert decided(EnsembleSettings.load({"models": "A,C"}, one)) == SEVERAL
    assert decided(EnsembleSettings.load({"models": "A"}, two)) == USUAL
    assert decided(EnsembleSettings.load({"seed": 1}, old)) == SEVERAL
    assert EnsembleSettings.load({"evaluations": 30}, one).evaluations == 30


@pytest.mark.parametrize("given", [[], ["--steps", "9"], ["--evaluations", "9"]])
def test_a_run_that_was_begun_with_the_defaults_of_several_is_continued_with_them(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [
        "attack",
        "ensemble",
        "--models",
        "A",
        "--eps",
        "0.1",
        "--limit",
        "3",
        "--quiet",
        *given,
    ]
    begun = {"loss": "cw"} if "--evaluations" in given else SEVERAL
    begun = {name: value for name, value in begun.items() if f"--{name}" not in given}
    before = [word for name, value in begun.items() for word in (f"--{name}", value)]
    assert inside(*line, *before, "--out", tmp_path) == 0
    record = (tmp_path / "run.json").read_text()
    assert json.loads(record)["settings"]["loss"] == "cw"
    assert inside(*line, "--out", tmp_path, "--resume") == 0
    assert (tmp_path / "run.json").read_text() == record
    assert inside(*line, "--loss", "dlr", "--out", tmp_path, "--resume") == 2
    assert "loss: cw there, dlr here" in capsys.readouterr().err
