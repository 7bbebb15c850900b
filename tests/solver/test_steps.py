"""Steps of `attack` and of training: what is left out of them because it changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.solver.best import Best
from saddlepoint.solver.domain_losses import Evaluation, evaluate
from saddlepoint.solver.steps import linf_move, movable, steepest, step, tightened


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


def test_only_motion_into_a_bound_is_taken_out() -> None:
    near = 16 * torch.finfo(torch.float64).eps
    for seed in range(5):
        delta, lower, upper, motion = random_box(seed)
        delta[0] = upper[0] - near / 2  # as good as there
        kept = movable(motion, delta, lower, upper)
        stuck = ((delta <= lower + near) & (motion < 0)) | ((delta >= upper - near) & (motion > 0))
        assert torch.equal(kept, torch.where(stuck, 0.0, motion))
        assert bool(stuck.any())
    motion = torch.full((1, 2), torch.nan)
    assert bool(
        movable(motion, torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2)).isnan().all()
    )


@pytest.mark.parametrize("size", [24, 240, 3072])
def test_of_equal_entries_the_first_move_whatever_other_rows_ask_for(size: int) -> None:
    draw = torch.Generator().manual_seed(0)
    gradient = torch.randn(5, size // 3, generator=draw).repeat_interleave(3, dim=1)
    gradient[0] = 1.0
    gradient[1, 2:] = 0.0
    entries = torch.tensor([7, 7, 1, 8, 20])
    found = [
        steepest(sp.l1(9.0), gradient, entries, most) for most in (20, 21, 24, size) if most <= size
    ]
    assert all(torch.equal(each, found[0]) for each in found)
    for row, count in enumerate(entries.tolist()):
        alone = steepest(sp.l1(9.0), gradient[row : row + 1], count)
        assert torch.equal(alone[0], found[0][row])
        order = sorted(range(size), key=lambda i: (-abs(gradient[row, i].item()), i))
        wanted = torch.zeros(size)
        wanted[order[:count]] = gradient[row, order[:count]].sign() / count
        assert torch.equal(found[0][row], wanted)


def test_an_l1_attack_with_a_radius_per_row_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(196, 10)
    model = nn.Sequential(nn.AvgPool2d(2), *layers).eval()  # equal gradients in blocks of four
    x = torch.rand(6, 1, 32, 32)
    with torch.no_grad():
        y = model(x).argmax(dim=1)
    eps = torch.tensor([0.5, 0.7, 0.9, 1.0, 2.0, 400.0])
    problem = sp.Ensemble([model], x, y)
    whole = sp.attack(problem, sp.l1(eps), steps=12)
    alone = sp.attack(problem, sp.l1(eps), steps=12, batch_size=1)
    torch.testing.assert_close(whole.delta, alone.delta)
    assert torch.equal(whole.num_forwards, alone.num_forwards)


@pytest.mark.parametrize("kind", ["plain", "channels last", "one number for all"])
@pytest.mark.parametrize("eps", [0.1, torch.linspace(0.1, 0.3, 4)], ids=["one", "per row"])
def test_a_linf_move_has_a_tensor_of_its_own(kind: str, eps: float | torch.Tensor) -> None:
    """Hooks of a model may hold the gradient, and the best iterates hold delta: neither is written into."""
    draw = torch.Generator().manual_seed(0)
    delta, gradient = (torch.rand(4, 3, 5, 5, generator=draw) - 0.5 for _ in range(2))
    if kind == "channels last":
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    if kind == "one number for all":
        gradient = gradient[:, :1, :1, :1].expand_as(delta)
    before = delta.clone(), gradient.clone()
    moved = linf_move(sp.LpBall(torch.inf, eps), delta, gradient, 1.3)
    radius = torch.as_tensor(eps).reshape(-1, 1, 1, 1)
    assert torch.equal(moved, delta - 1.3 * radius * gradient.sign())
    assert moved.stride() == delta.stride()
    moved.zero_()
    assert torch.equal(delta, before[0])
    assert torch.equal(gradient, before[1])


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


def rows_of(number: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A radius for every row."""
    return torch.full((number,), 0.1, dtype=dtype)


@pytest.mark.parametrize("eps", [0.1, rows_of(6)], ids=["one radius", "a radius per row"])
def test_a_box_cut_to_a_linf_ball_is_all_that_bounds_a_step(eps: float | torch.Tensor) -> None:
    ball = sp.LpBall(torch.inf, eps)
    for seed in range(5):
        delta, lower, upper, gradient = (part.float() for part in random_box(seed))
        problem = sp.Ensemble([torch.nn.Identity()], -lower, torch.zeros(6, dtype=torch.long))
        problem.lower, problem.upper = lower, upper
        _, part = tightened(ball, problem)
        moved = linf_move(ball, delta, gradient, 1.3).clamp(part.lower, part.upper)
        assert torch.equal(moved, step(ball, lower, upper, delta, gradient, 1.3))
        assert not torch.equal(moved, delta)
        assert torch.equal(problem.lower, lower)  # the one that was given is as it was


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_radius_and_the_same_for_every_row_project_alike(dtype: torch.dtype) -> None:
    delta, lower, upper, _ = (part.to(dtype) for part in random_box(0))
    points = 3 * delta
    found = sp.linf(0.1).project(points, lower, upper)
    assert torch.equal(found, sp.linf(rows_of(6, dtype)).project(points, lower, upper))
    assert bool((found.abs() <= torch.tensor(0.1, dtype=dtype)).all())


def offered(best: Best, rows: torch.Tensor, seed: int, share: float) -> torch.Tensor:
    """Offer an iterate that is better in about a share of its rows."""
    draw = torch.Generator().manual_seed(seed)
    losses = torch.rand(len(rows), 2, generator=draw) - 0.5 * seed
    losses[torch.rand(len(rows), generator=draw) >= share] = 99.0
    weights = torch.rand(len(rows), 2, generator=draw, dtype=torch.float64)
    delta = torch.rand(len(rows), 4, generator=draw)
    nothing = losses < -9
    point = Evaluation(losses, nothing, ~nothing, lambda weights: delta, 1)
    return best.offer(rows, delta, weights, point)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_best_iterate_does_not_depend_on_what_may_be_asked(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU iterates that are better nowhere or everywhere are not copied row by row."""
    x, y = torch.rand(5, 4), torch.zeros(5, dtype=torch.long)
    found = []
    for asked in ("cpu",), ():
        monkeypatch.setattr("saddlepoint.solver.best._ASKED", asked)
        best = Best.none(sp.Ensemble([torch.nn.Identity()] * 2, x, y), 3)
        told = [offered(best, torch.arange(5), 1, 1.0)]
        told.append(offered(best, torch.arange(5), 2, share))
        told.append(offered(best, torch.tensor([1, 3, 4]), 3, share))
        kept = best.kept
        found.append((*told, kept.delta, kept.weights, kept.losses, kept.fooled))
    for one, two in zip(*found, strict=True):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
    assert bool(found[0][0].all())
