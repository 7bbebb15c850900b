"""Radii that cannot be meant are refused, radii that bound nothing are noticed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.evaluation.radii import smallest_radius

SHAPE = (3, 32, 32)
SOLVERS = [sp.attack, sp.apgda]


def test_short_names_of_the_four_balls() -> None:
    assert sp.linf(8 / 255) == sp.LpBall(math.inf, 8 / 255)
    assert sp.l2(3.0) == sp.LpBall(2, 3.0)
    assert sp.l1(20.0) == sp.LpBall(1, 20.0)
    assert sp.l0(30) == sp.LpBall(0, 30)
    assert sp.l0(30, unit="pixel") == sp.LpBall(0, 30, "pixel")
    radii = torch.tensor([0.1, 0.2])
    assert sp.linf(radii).eps is radii
    v = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(
        sp.l2(1.0).project(v, torch.tensor(-1.0), torch.tensor(1.0)), torch.tensor([[0.6, 0.8]])
    )


@pytest.mark.parametrize("eps", [1.5, 8, 8.0, torch.tensor([0.5, 8.0])])
def test_linf_beyond_one_is_refused_with_what_was_meant(eps: float | Tensor) -> None:
    most = float(torch.as_tensor(eps).max())
    with pytest.raises(ValueError, match=rf"at most 1.*got {most:g}; write {most:g}/255"):
        sp.linf(eps).check(SHAPE)


@pytest.mark.parametrize("eps", [0, 0.3, 0.999, torch.tensor([30.0, 0.5])])
def test_l0_below_one_is_refused(eps: float | Tensor) -> None:
    with pytest.raises(ValueError, match="at least 1, it counts entries, got 0"):
        sp.l0(eps).check(SHAPE)
    with pytest.raises(ValueError, match="it counts pixels"):
        sp.l0(eps, unit="pixel").check(SHAPE)


@pytest.mark.parametrize(
    ("ball", "widest"),
    [
        (sp.l2(56.0), "55.4256"),  # the root of 3072
        (sp.l1(3100.0), "3072"),
        (sp.l0(3073), "3072"),
        (sp.l0(1025, unit="pixel"), "1024"),
        (sp.l2(torch.tensor([1.0, 60.0])), "55.4256"),
    ],
)
def test_radii_beyond_the_diameter_are_noticed(ball: sp.LpBall, widest: str) -> None:
    with pytest.warns(
        UserWarning, match=rf"further apart than {widest}: this radius bounds nothing"
    ):
        ball.check(SHAPE)


@pytest.mark.parametrize(
    "ball",
    [
        sp.linf(0.0),
        sp.linf(1.0),
        sp.linf(math.inf),  # says that no bound is meant
        sp.l2(math.inf),
        sp.l0(math.inf),
        sp.l2(0.0),
        sp.l2(math.sqrt(3072)),
        sp.l2(torch.tensor(3072.0).sqrt()),  # in float32, a little more than the root
        sp.l1(3072.0),
        sp.l0(1),
        sp.l0(3072),
        sp.l0(1024, unit="pixel"),
    ],
)
def test_radii_that_can_be_meant_pass(ball: sp.LpBall) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ball.check(SHAPE)


def problem() -> sp.Ensemble:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3)).eval()
    x = torch.rand(3, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    return sp.Ensemble([model], x, torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_refuse_and_warn_at_entry(solver: Callable) -> None:
    with pytest.raises(ValueError, match="write 8/255"):
        solver(problem(), sp.linf(8), steps=1)
    with pytest.raises(ValueError, match="counts entries"):
        solver(problem(), sp.l0(0.05), steps=1)
    with pytest.warns(UserWarning, match="bounds nothing") as caught:
        solver(problem(), sp.l2(3.0), steps=1)
    assert caught[0].filename == __file__  # where the solver was called
    assert solver(problem(), sp.linf(0.1), steps=0).num_forwards.tolist() == [1, 1, 1]


def test_the_smallest_radius_is_sought_without_a_word() -> None:
    for p in (0, 1, 2, math.inf):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = smallest_radius(problem(), p, steps=3, searches=3)
        assert [str(warning.message) for warning in caught] == []
        assert not bool(found.isnan().any())


@pytest.mark.parametrize("eps", ["0.2", None, [0.1]])
def test_a_radius_is_a_number(eps: object) -> None:
    with pytest.raises(TypeError, match="`eps` must be a number or a tensor, got"):
        sp.LpBall(2, eps)  # type: ignore[arg-type]


def test_a_ball_smaller_than_one_level_of_the_file_is_refused() -> None:
    x, y = sp.data.sample("mnist", 2)
    problem = sp.Ensemble([sp.models.load("mnist-a")], x, y)
    with pytest.raises(ValueError, match=r"at least one level, 1/255, got 0.003"):
        sp.attack(problem, sp.linf(0.003), quantize=256, steps=2)
    sp.attack(problem, sp.linf(1 / 255), quantize=256, steps=2)


def test_radii_may_be_an_array_and_weights_are_one_number_per_domain() -> None:
    assert torch.equal(sp.linf(np.full(3, 0.25)).eps, torch.full((3,), 0.25, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"one number per domain, \(K,\), got shape \(2, 2\)"):
        sp.Fixed(torch.full((2, 2), 0.5))
    problem = sp.Ensemble(
        [lambda v: v.reshape(7, 784) @ torch.ones(784, 10)],
        torch.rand(7, 1, 28, 28),
        torch.zeros(7, dtype=torch.long),
    )
    with pytest.raises(ValueError, match="take any number of images"):
        sp.attack(problem, sp.linf(0.1))
