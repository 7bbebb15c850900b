"""A run looks at its models once, before its first page, and says once what it has seen."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import saddlepoint as sp
from commands import inside
from saddlepoint import runs
from saddlepoint.runs import build
from saddlepoint.runs.materials import load_images
from saddlepoint.runs.settings import EnsembleSettings
from saddlepoint.solver import inspection

LIKE_PROBABILITIES = "domain 0 (probable) returns values that look like probabilities"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every problem that is looked at."""
    found: list[int] = []
    first = inspection.first_answers

    def counted(problem, *more):  # type: ignore[no-untyped-def]
        found.append(len(problem))
        return first(problem, *more)

    monkeypatch.setattr(inspection, "first_answers", counted)
    return found


class Probable(nn.Module):
    """Answers probabilities, which is worth a warning; counts how it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.network = sp.models.load("mnist-a")
        self.asked: list[int] = []
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(x))
        return self.network(x).softmax(dim=1)


def attacked(folder: Path, model: nn.Module, **flags: object) -> runs.Run:
    """An attack on five images in pages of two, with a baseline: six calls of the solver."""
    flags = {"models": "A", "eps": 0.1, "steps": 1, "baseline": "average", "limit": 5} | flags
    settings = EnsembleSettings.load({"data": "mnist-sample", "batch_size": 2, **flags})
    images, models = load_images(settings.data, settings.split, settings.limit), {"probable": model}
    problem = build.problem_of(settings, images.x, images.y, models)
    job = build.job_of(settings, problem)
    record = build.record_of(settings, problem, images, models, "saddlepoint")
    with runs.opened(record, folder) as execution:
        return runs.attack_rows(job, execution)


@pytest.mark.parametrize("method", ["attack", "apgda"])
def test_a_run_looks_once_and_warns_once(
    method: str, tmp_path: Path, looks: list[int], recwarn: pytest.WarningsRecorder
) -> None:
    run = attacked(tmp_path, Probable(), method=method)
    assert looks == [5]  # at the whole problem, not at every page
    assert len(run.warnings) == 1
    assert LIKE_PROBABILITIES in run.warnings[0]
    assert not [w for w in recwarn if "probabilities" in str(w.message)]


def test_pages_ask_the_model_for_their_own_rows_alone(tmp_path: Path) -> None:
    model = Probable()
    run = attacked(tmp_path, model, limit=4, baseline=None, method="apgda")
    # Each page of two rows: the start, one step, the verdict of the solver, that of the run on the perturbed
    # images and on the clean ones.
    *look, last = model.asked[:-11], model.asked[-11:]
    assert last == [2] * 10 + [
        1
    ]  # and in the end one image: how many classes there are to guess among
    assert set(*look) == {4, 1}  # the look: the first images, and one of them alone
    assert run.metrics["evaluations"]["total"] == 4 * 2


@pytest.mark.filterwarnings("error")
def test_a_radius_that_bounds_nothing_is_said_once(tmp_path: Path) -> None:
    run = attacked(tmp_path, sp.models.load("mnist-a"), norm="l2", eps=30)
    assert len(run.warnings) == 1
    assert (
        "no two images of shape (1, 28, 28) in [0, 1] are further apart than 28" in run.warnings[0]
    )


def test_the_command_says_it_once(
    tmp_path: Path, looks: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--data mnist-sample --models A,C --norm l2 --eps 30 --steps 1 --limit 5 --batch-size 2"
    with warnings.catch_warnings(record=True) as raised:
        code = inside("attack", "ensemble", *flags.split(), "--out", tmp_path / "o")
    assert code == 0
    assert looks == [5]
    assert not raised
    assert capsys.readouterr().err.count("this radius bounds nothing") == 1


def test_images_off_the_grid_are_refused_before_any_page(tmp_path: Path) -> None:
    settings = EnsembleSettings.load(
        {"data": "mnist-sample", "models": "A", "eps": 0.1, "quantize": 256}
    )
    x = torch.full((3, 1, 28, 28), 0.3)
    model = sp.models.load("mnist-a")
    problem = build.problem_of(settings, x, torch.zeros(3, dtype=torch.long), {"A": model})
    with pytest.raises(ValueError, match="`quantize=256` needs images whose values are multiples"):
        build.job_of(settings, problem)
