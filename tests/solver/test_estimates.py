"""Gradients estimated from scores: exact on linear functions, unbiased, whatever the box cuts off."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.losses import cw_margin
from saddlepoint.solver.estimates import Estimator, Probes, blocks, signs

SHAPE = (2, 5, 4)
BALL = sp.linf(0.3)


class Linear(nn.Module):
    """Two logits: the margin of class 0 is slopes * images, so that the gradient is `slopes`."""

    def __init__(self, slopes: Tensor) -> None:
        super().__init__()
        self.slopes = slopes

    def forward(self, images: Tensor) -> Tensor:
        margin = (images * self.slopes).flatten(1).sum(dim=1)
        return torch.stack([margin, torch.zeros_like(margin)], dim=1)


def slopes(number: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(number), dtype=torch.float64)


@pytest.fixture(scope="module")
def problem() -> sp.Ensemble:
    """Images with pixels at both ends of the range, close to them, and far away."""
    x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    x[x < 0.2] = 0.0
    x[x > 0.8] = 1.0
    x[:, 0, 0, 0] = 0.01
    return sp.Ensemble([Linear(slopes(0)), Linear(slopes(1))], x, torch.zeros(3, dtype=torch.long))


def estimator(problem: sp.AbstractProblem, **options: Any) -> Estimator:
    given: dict[str, Any] = {"domains": (0, 1), "loss": cw_margin, "directions": "squares"}
    return Estimator(Probes(**{"queries": 40, **given, **options}), problem)


def asked(found: Estimator, problem: sp.AbstractProblem, delta: Tensor, weights: Tensor) -> Tensor:
    losses = cw_margin(problem.logits(delta), problem.labels)
    gradient, finite = found.gradient(problem, BALL, delta, losses, weights)
    assert finite.all()
    return gradient


WEIGHTS = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.1, 0.9]], dtype=torch.float64)
TRUE = torch.stack([w[0] * slopes(0) + w[1] * slopes(1) for w in WEIGHTS])


class TestSquares:
    @pytest.mark.parametrize("distance", [None, 0.05, 1.0])
    def test_are_exact_on_linear_functions_whatever_the_box_cuts_off(self, problem, distance):
        delta = BALL.project(
            0.2 * torch.sign(slopes(5)).expand(3, -1, -1, -1), problem.lower, problem.upper
        )
        found = asked(estimator(problem, distance=distance), problem, delta, WEIGHTS)
        torch.testing.assert_close(found, TRUE, rtol=1e-9, atol=1e-9)

    def test_find_every_square_before_they_ask_again(self, problem):
        few = estimator(problem, queries=7)
        for number in range(6):  # 6 * 7 >= 40
            found = asked(few, problem, problem.zeros(), WEIGHTS)
            known = (found != 0).flatten(1).sum(dim=1)
            assert known.tolist() == [min(7 * (number + 1), 40)] * 3
        torch.testing.assert_close(found, TRUE, rtol=1e-9, atol=1e-9)

    def test_remember_each_domain_so_that_new_weights_need_no_question(self, problem):
        one = estimator(problem, queries=20)
        asked(one, problem, problem.zeros(), WEIGHTS)
        asked(one, problem, problem.zeros(), WEIGHTS)
        other = WEIGHTS.flip(1)
        found = asked(one, problem, problem.zeros(), other)
        torch.testing.assert_close(
            found, torch.stack([w[0] * slopes(0) + w[1] * slopes(1) for w in other])
        )

    def test_of_several_pixels_have_their_mean_gradient(self):
        x = torch.full((1, *SHAPE), 0.5, dtype=torch.float64)
        problem = sp.Ensemble([Linear(slopes(0))], x, torch.tensor([0]))
        found = asked(
            estimator(problem, domains=(0,), side=2), problem, problem.zeros(), torch.ones(1, 1)
        )
        place, _ = blocks(0, problem.rows, 0, x.shape[1:], 2)
        for square in place.unique():
            mine = (place[0] == square).reshape(SHAPE)
            assert 1 <= mine.sum() <= 4
            expected = slopes(0)[mine].mean().expand(int(mine.sum()))
            torch.testing.assert_close(found[0][mine], expected)

    def test_do_not_move_what_cannot_move(self):
        groups = torch.tensor([[[0.0, 0.5], [1.0, 0.5]]])  # no room for the first number
        problem = sp.Universal(nn.Identity(), groups, torch.tensor([[0, 1]]))
        found = asked(
            estimator(problem, queries=2), problem, problem.zeros(), torch.full((1, 2), 0.5)
        )
        assert found[0, 0] == 0


class TestSigns:
    def test_are_exact_on_linear_functions_with_as_many_as_the_next_power_of_two(self, problem):
        delta = BALL.project(
            0.2 * torch.sign(slopes(5)).expand(3, -1, -1, -1), problem.lower, problem.upper
        )
        found = asked(estimator(problem, directions="signs", queries=128), problem, delta, WEIGHTS)
        torch.testing.assert_close(found, TRUE, rtol=1e-9, atol=1e-9)

    def test_few_are_right_in_expectation(self, problem):
        many = []
        for stream in range(600):
            one = estimator(problem, directions="signs", queries=8, seed=stream)
            many.append(asked(one, problem, problem.zeros(), WEIGHTS))
        found = torch.stack(many)
        error = (found.mean(dim=0) - TRUE).abs() / (found.std(dim=0) / math.sqrt(600))
        assert error.max() < 5  # standard errors, of 120 numbers
        assert error.mean() < 1.2
        assert found.std(dim=0).mean() > 1  # each of them is far off

    def test_directions_are_orthogonal_and_each_row_has_its_own(self):
        u = signs(3, torch.tensor([5, 8]), 2, 13, 10).double()
        assert u.shape == (2, 10, 13)
        assert set(u.unique().tolist()) == {-1.0, 1.0}
        assert not torch.equal(u[0], u[1])
        torch.testing.assert_close(signs(3, torch.tensor([8]), 2, 13, 10)[0].double(), u[1])
        whole = signs(3, torch.tensor([5]), 2, 16, 16)[0].double()
        assert torch.equal(whole @ whole.T, 16 * torch.eye(16, dtype=torch.float64))
        more = signs(3, torch.tensor([5]), 2, 4, 12)[0].double()  # three matrices
        for four in more.split(4):
            assert torch.equal(four @ four.T, 4 * torch.eye(4, dtype=torch.float64))

    def test_momentum_adds_a_share_of_what_was_before(self, problem):
        plain, heavy = (
            estimator(problem, directions="signs", queries=8, momentum=m) for m in (0.0, 0.5)
        )
        one, two = (asked(plain, problem, problem.zeros(), WEIGHTS) for _ in range(2))
        asked(heavy, problem, problem.zeros(), WEIGHTS)
        torch.testing.assert_close(asked(heavy, problem, problem.zeros(), WEIGHTS), two + 0.5 * one)


@pytest.mark.parametrize("directions", ["squares", "signs"])
def test_a_row_does_not_depend_on_the_others(problem, directions):
    options: dict[str, Any] = {"directions": directions, "queries": 8}
    together, order = estimator(problem, **options), torch.tensor([2, 0])
    asked(together, problem, problem.zeros(), WEIGHTS)
    together.take(order)
    part = problem.take(order)
    after = asked(together, part, part.zeros(), WEIGHTS[order])
    alone = estimator(part, **options)
    asked(alone, part, part.zeros(), WEIGHTS[order])
    torch.testing.assert_close(asked(alone, part, part.zeros(), WEIGHTS[order]), after)


def test_answers_that_are_not_finite_are_noted(problem):
    class Broken(Linear):
        def forward(self, images: Tensor) -> Tensor:
            logits = super().forward(images)
            return logits.masked_fill((images[:, 1, 2, 3] > 0.999)[:, None], math.nan)

    x = torch.full((2, *SHAPE), 0.5, dtype=torch.float64)
    x[1, 1, 2, 3] = 0.8
    broken = sp.Ensemble(
        [Linear(slopes(0)), Broken(slopes(1))], x, torch.zeros(2, dtype=torch.long)
    )
    losses = cw_margin(broken.logits(broken.zeros()), broken.labels)
    found = estimator(broken, seed=3)
    for _ in range(3):  # either side of a pixel may be looked at
        _, finite = found.gradient(broken, BALL, broken.zeros(), losses, WEIGHTS[:2])
        if not finite.all():
            break
    assert finite.tolist() == [[True, True], [True, False]]
