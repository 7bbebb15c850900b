"""Steps of `attack` and of training: what is left out of them because it changes nothing."""

from __future__ import annotations

import torch

import saddlepoint as sp
from saddlepoint.solver.evaluate import evaluate
from saddlepoint.solver.steps import movable, step


def random_box(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A box in which a third of the entries is at a bound, and a gradient; float64."""
    draw = torch.Generator().manual_seed(seed)
    x, at, gradient = (torch.rand(6, 50, generator=draw, dtype=torch.float64) for _ in range(3))
    delta = (0.2 * at - 0.1).clamp(-x, 1 - x)
    delta = torch.where(at < 0.15, -x, torch.where(at > 0.85, 1 - x, delta))
    return delta.clamp(-0.1, 0.1).clamp(-x, 1 - x), -x, 1 - x, gradient - 0.5


def test_a_linf_step_is_that_of_the_entries_that_can_move() -> None:
    """Masked or not, an entry at its bound stays there: the projection stops it."""
    ball = sp.linf(0.1)
    for seed in range(5):
        delta, lower, upper, gradient = random_box(seed)
        masked = movable(-gradient, delta, lower, upper)
        assert bool((masked == 0).any())
        wanted = ball.project(delta + 0.7 * 0.1 * masked.sign(), lower, upper)
        assert torch.equal(step(ball, lower, upper, delta, gradient, 0.7), wanted)


def test_a_linf_step_goes_all_the_way_to_a_bound_that_rounding_fell_short_of() -> None:
    lower, upper = -torch.ones(1, 2), torch.tensor([[0.5, 0.5]])
    delta = upper - torch.tensor([[3e-8, 0.25]])
    moved = step(sp.linf(1.0), lower, upper, delta, torch.tensor([[-1.0, -1.0]]), 0.1)
    assert moved[0, 0] == 0.5
    assert torch.allclose(moved[0, 1], torch.tensor(0.35))


def test_the_gradient_is_that_of_the_weighted_sum() -> None:
    """Bit for bit, also with weights that are wider than the losses."""
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))]
    models = [models[0].eval(), torch.nn.Linear(6, 3).eval()]
    problem = sp.Ensemble(models, torch.rand(5, 6), torch.zeros(5, dtype=torch.long))
    weights = torch.rand(5, 2)
    leaf = problem.zeros().requires_grad_()
    losses = sp.cw_margin(problem.logits(leaf), problem.labels)
    (wanted,) = torch.autograd.grad((weights * losses).sum(), leaf)
    for given in (weights, weights.double()):
        point = evaluate(problem, problem.zeros(), sp.cw_margin)
        assert torch.equal(point.gradient(given), wanted)
