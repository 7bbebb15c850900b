"""The set of a patch: its projection by definition, and that no solver leaves it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import saddlepoint as sp
from oracles import project_by_cvxpy

SHAPE = (4, 3, 5, 6)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask(seed: int = 0) -> torch.Tensor:
    return numbers(5, 6, seed=seed) > 0.6


@pytest.mark.parametrize("eps", [None, 0.2])
def test_the_projection_is_the_nearest_point_that_is_zero_outside_the_mask(
    eps: float | None,
) -> None:
    patch = sp.Patch(mask=mask(), eps=eps)
    delta, x = 3 * numbers(*SHAPE, seed=1) - 1.5, numbers(*SHAPE, seed=2)
    found = patch.project(delta, -x, 1 - x)
    inside = mask().numpy()
    for row in range(SHAPE[0]):
        for channel in range(SHAPE[1]):
            v, low = delta[row, channel].numpy()[inside], -x[row, channel].numpy()[inside]
            expected = project_by_cvxpy(v, math.inf, eps or 1.0, low, 1 + low)
            got = found[row, channel].numpy()
            np.testing.assert_allclose(got[inside], expected, atol=1e-8)
            assert not got[~inside].any()


def test_a_size_is_a_rectangle_in_the_middle() -> None:
    inside = sp.Patch(size=(3, 2)).inside((1, 5, 6))
    assert inside.sum() == 6
    assert bool(inside[1:4, 2:4].all())
    assert torch.equal(sp.Patch(size=3).inside((5, 6)), sp.Patch(size=(3, 3)).inside((5, 6)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`size` or `mask` must be given"),
        ({"size": 2, "mask": mask()}, "`size` or `mask` must be given"),
        ({"size": 0}, "`size` must be height and width"),
        ({"size": (1, 2, 3)}, "`size` must be height and width"),
        ({"mask": torch.zeros(3, 3)}, "`mask` must be True somewhere"),
        ({"mask": torch.full((3, 3), 0.5)}, "`mask` must be True or False"),
        ({"mask": torch.ones(1, 3, 3)}, r"`mask` must have shape \(H, W\)"),
        ({"size": 2, "eps": 8}, "`eps` of a patch must be in"),
    ],
)
def test_what_is_no_patch_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.Patch(**options)


def test_a_patch_that_does_not_fit_is_refused_before_the_attack() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 3)).eval()
    problem = sp.Ensemble([model], torch.rand(2, 3, 5, 6), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="`size` must fit into images of 5 x 6"):
        sp.attack(problem, sp.Patch(size=6), steps=2)
    with pytest.raises(ValueError, match="`mask` must have the size of the images"):
        sp.attack(problem, sp.Patch(mask=torch.ones(5, 5)), steps=2)
    with pytest.warns(UserWarning, match="covers all of images"):
        sp.attack(problem, sp.Patch(size=(5, 6)), steps=1)


@pytest.mark.parametrize("solver", ["attack", "apgda", "restarts", "quantize"])
def test_no_solver_leaves_the_set_and_other_pixels_are_the_images_bit_for_bit(solver: str) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Flatten(), nn.Linear(90, 3)).eval() for _ in range(2)]
    x = torch.randint(0, 256, (6, 3, 5, 6)).float() / 255
    y = models[0](x).argmax(dim=1)
    problem, patch = sp.Ensemble(models, x, y), sp.Patch(mask=mask(), eps=0.3)
    if solver == "apgda":
        result = sp.apgda(problem, patch, steps=6, step_size=0.5)
    else:
        options = {"restarts": 3} if solver == "restarts" else {}
        options |= {"quantize": 256} if solver == "quantize" else {}
        result = sp.attack(problem, patch, steps=6, **options)
    outside = ~mask().expand_as(x)
    assert result.delta[~outside].any()
    assert not result.delta[outside].any()
    assert torch.equal(result.adversarial[outside], x[outside])
    assert bool((result.delta.abs() <= 0.3 + 1e-7).all())
    assert bool(((result.adversarial >= 0) & (result.adversarial <= 1)).all())
    assert result.asked is not None
    assert result.asked.ball is patch


def test_against_one_linear_model_the_patch_is_the_best_there_is() -> None:
    """Under a linear model each pixel of the patch goes to the end of its range: the optimum in closed form."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 2, bias=False)).double().eval()
    w = numbers(2, 90, seed=3) - 0.5
    with torch.no_grad():
        model[1].weight.copy_(w)
    x, patch = numbers(12, 3, 5, 6, seed=4), sp.Patch(size=(2, 3))
    inside = patch.inside((5, 6))
    y = model(x).argmax(dim=1)
    slope = (w[y] - w[1 - y]).reshape(x.shape)  # of the margin
    best = torch.where(slope > 0, torch.zeros_like(x), torch.ones_like(x)) - x
    best = torch.where(inside, best, torch.zeros_like(x))
    margin = (slope * (x + best)).flatten(1).sum(dim=1)
    result = sp.attack(sp.Ensemble([model], x, y), patch, steps=30)
    assert torch.equal(result.success, margin < 0)
    held = ~result.success
    assert bool(held.any() & (~held).any()), "choose data in which some rows hold"
    torch.testing.assert_close(result.losses[held, 0], margin[held], rtol=1e-6, atol=1e-6)
