"""`--evaluations` in the settings of an attack: in place of steps and restarts, and in the solver."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

import saddlepoint as sp
from saddlepoint.runs import build
from saddlepoint.runs.settings import EnsembleSettings, UniversalSettings
from saddlepoint.solver.inspection import look


def test_evaluations_reach_the_attack() -> None:
    x, y = sp.data.sample("mnist", 4)
    problem = sp.Ensemble([sp.models.load("mnist-a")], x, y)
    settings = EnsembleSettings(models=["A"], eps=0.1, evaluations=7)
    solve = build.solver_of(settings, look(problem), problem)
    found = solve(problem, sp.MinMax(), lambda progress: None)
    direct = sp.attack(problem, sp.linf(0.1), evaluations=7)
    assert torch.equal(found.delta, direct.delta)
    assert int(found.num_forwards.max()) <= 7
    assert "--evaluations 7" in settings.command()


@pytest.mark.parametrize(("name", "value"), [("steps", 20), ("steps", 7), ("restarts", 1)])
def test_flags_beside_evaluations_are_refused_also_where_they_are_the_default(
    name: str, value: int
) -> None:
    message = rf"`--{name}` must be left out with --evaluations, got {value}; it follows from"
    with pytest.raises(ValueError, match=message):
        UniversalSettings.load({"models": "A", "eps": 0.1, "evaluations": 50, name: value})


@pytest.mark.parametrize("given", [{"evaluations": 7}, {"gradient": "searched:queries=70"}])
def test_the_settings_of_a_record_are_read_again_with_all_their_defaults(given: dict) -> None:
    settings = EnsembleSettings(models=["A"], eps=0.1, **given)
    assert EnsembleSettings.load(settings.model_dump()) == settings


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"evaluations": 50}, {"steps", "restarts"}),
        ({"gradient": "searched:queries=70"}, {"steps", "restarts", "precision"}),
    ],
)
@pytest.mark.parametrize("size", [1, 5])
def test_a_printed_file_shows_no_number_that_is_not_used_and_is_read_again(
    given: dict, left_out: set[str], size: int, tmp_path: Path
) -> None:
    flags = {"models": "A", "eps": 0.1, "group_size": size, **given}
    settings = UniversalSettings.load(flags)
    file = tmp_path / "c.yaml"
    file.write_text(settings.to_yaml())
    assert not left_out & set(yaml.safe_load(file.read_text()))
    assert UniversalSettings.load({}, file) == settings
    with pytest.raises(ValueError, match=r"`--steps` must be left out with --\w+, got 7"):
        UniversalSettings.load({"steps": 7}, file)


def test_the_algorithm_of_the_paper_takes_no_evaluations() -> None:
    flags = {"models": "A", "method": "apgda", "evaluations": 50}
    with pytest.raises(ValueError, match="`--evaluations` must be left out with --method apgda"):
        EnsembleSettings.load(flags)
