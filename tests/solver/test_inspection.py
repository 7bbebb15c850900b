"""One checked entry above a core that trusts its input: how often models are looked at, and who is warned."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.evaluation import robust_domains, smallest_radius
from saddlepoint.solver import apgda_unchecked, attack_unchecked
from shortened import short_suites

BALL = sp.LpBall(2, 0.1)
ENTRIES = {sp.attack: attack_unchecked, sp.apgda: apgda_unchecked}
LOOK = 4  # calls: asked, asked again, about one image alone, and for the gradient


class Counted(nn.Module):
    """Counts how often it is called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return self.model(images)


@pytest.fixture
def model(generator: torch.Generator) -> Counted:
    linear = nn.Linear(6, 3).double()
    with torch.no_grad():
        linear.weight.copy_(torch.randn(3, 6, generator=generator))
        linear.bias.zero_()
    return Counted(linear).eval()


@pytest.fixture
def problem(model: Counted, generator: torch.Generator) -> sp.Ensemble:
    """Six rows that are all right."""
    x = torch.rand(6, 6, generator=generator).double()
    labels = model(x).argmax(dim=1)
    model.calls = 0
    return sp.Ensemble([model], x, labels)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_the_entry_looks_once_and_the_core_never(
    problem: sp.Ensemble, model: Counted, entry: Callable
) -> None:
    given = entry(problem, sp.LpBall(2, 1e-6), steps=3, batch_size=2, loss=sp.cw_margin)
    iterates_and_verdicts = 3 * (4 + 1)  # of three batches
    assert model.calls == LOOK + iterates_and_verdicts
    model.calls = 0
    core = ENTRIES[entry](problem, sp.LpBall(2, 1e-6), steps=3, batch_size=2)
    assert model.calls == iterates_and_verdicts
    for name in ("delta", "losses", "fooled", "num_forwards"):
        assert torch.equal(getattr(given, name), getattr(core, name))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_the_entry_warns_once_where_it_was_called_and_the_core_never(
    problem: sp.Ensemble, model: Counted, entry: Callable
) -> None:
    likely = sp.Ensemble(
        [nn.Sequential(model, nn.Softmax(1)).eval()], problem.x, problem.labels[:, 0]
    )
    with pytest.warns(UserWarning, match="look like probabilities") as caught:
        entry(likely, BALL, steps=2, batch_size=2)
    assert [warning.filename for warning in caught] == [__file__]
    ENTRIES[entry](likely, BALL, steps=2, batch_size=2)  # warnings are errors in these tests


def warned(call: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*args, **options)
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


def test_evaluations_look_at_every_model_once_and_say_each_fault_once(
    problem: sp.Ensemble, model: Counted
) -> None:
    likely = nn.Sequential(model, nn.Softmax(1)).eval()
    x, y = problem.x, problem.labels[:, 0]
    threats = {"l2": BALL, "linf": sp.linf(0.02)}
    with short_suites():
        (line,) = warned(sp.robust_accuracy, likely, x, y, threats, batch_size=2)
    assert "look like probabilities" in line
    views = sp.Ensemble([model, likely], x, y, names=["A", "B"])
    with short_suites():
        (line,) = warned(robust_domains, views, threats, batch_size=2, steps=3, searches=2)
    assert line.startswith("B: domain 0 (model 1) returns values that look like probabilities")
    (line,) = warned(smallest_radius, views, 2, steps=3, searches=2)
    assert "domain 1 (B)" in line
