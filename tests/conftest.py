"""Shared fixtures: one thread, reproducible hypothesis runs, tiny models, own folders and processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from children import Nursery, shared
from shortened import short_suites

torch.set_num_threads(1)
hypothesis.settings.register_profile(
    "saddlepoint", deadline=None, derandomize=True, max_examples=80, print_blob=True
)
hypothesis.settings.load_profile("saddlepoint")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20211206)


@pytest.fixture
def networks(generator: torch.Generator) -> list[nn.Module]:
    """Three two-layer networks from 6 numbers to 4 classes, float64, in eval mode."""
    return [_small(generator) for _ in range(3)]


def _small(generator: torch.Generator, size: int = 6, classes: int = 4) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, classes))
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A network for digits, with its parameters."""
    return sp.models.load("mnist-a")


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """Twelve images for it, with their labels."""
    return sp.data.sample("mnist", limit=12)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as in a pipe, however wide the terminal is that the tests are started from."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True, scope="module")
def short_suites_for_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Suite "quick" takes a few steps in the rooms that are about what becomes of its results."""
    with short_suites() if request.path.parent.name in ("cli", "report", "runs") else nullcontext():
        yield


@pytest.fixture
def nursery() -> Nursery:
    """Processes that a test may kill."""
    return shared()
