"""`attack`: optimal where the optimum is known, the same alone or in a batch, honest about itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint import transforms as T
from saddlepoint.solver.domain_losses import Evaluation, evaluate

INF = math.inf
BALLS = {"l0": (0, 1), "l1": (1, 0.35), "l2": (2, 0.2), "linf": (INF, 0.1)}


@pytest.fixture
def problem(networks: list[nn.Module], generator: torch.Generator) -> sp.Ensemble:
    """Twelve rows: some fooled from the start, some on the way, some never."""
    x = torch.rand(12, 6, generator=generator, dtype=torch.float64)
    return sp.Ensemble(networks[:2], x, torch.randint(0, 4, (12,), generator=generator))


def same(result: sp.AttackResult, other: sp.AttackResult, rows: Tensor | slice) -> None:
    """`result` equals the given rows of `other`."""
    for name in ("delta", "weights", "losses"):
        torch.testing.assert_close(
            getattr(result, name), getattr(other, name)[rows], rtol=0, atol=1e-9
        )
    for name in ("fooled", "num_forwards", "completed"):
        assert torch.equal(getattr(result, name), getattr(other, name)[rows]), name
    for name in ("weights", "losses"):
        mine, theirs = getattr(result.history, name), getattr(other.history, name)
        torch.testing.assert_close(mine, theirs[:, rows], rtol=0, atol=1e-9)


# ------------------------------------------------------------------- a row and its company


@pytest.mark.parametrize("batch_size", [1, 2, 5, 12, 100])
@pytest.mark.parametrize("ball_name", BALLS)
def test_a_row_does_not_depend_on_its_company(
    problem: sp.Ensemble, ball_name: str, batch_size: int
) -> None:
    ball = sp.LpBall(*BALLS[ball_name])
    whole = sp.attack(problem, ball, steps=6, restarts=3)
    # The case must contain rows that leave at once, later, and never.
    assert {1} < set(whole.num_forwards.tolist()) > {21}
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    part = sp.attack(problem.take(order), ball, steps=6, restarts=3, batch_size=batch_size)
    same(part, whole, order)


@pytest.mark.parametrize("ball_name", BALLS)
def test_a_row_alone_equals_the_row_in_a_batch(problem: sp.Ensemble, ball_name: str) -> None:
    ball = sp.LpBall(*BALLS[ball_name])
    whole = sp.attack(problem, ball, steps=6, restarts=2)
    for b in range(12):
        alone = sp.attack(problem.take(torch.tensor([b])), ball, steps=6, restarts=2)
        same(alone, whole, slice(b, b + 1))


def test_of_a_random_problem_the_last_iterate_is_taken_not_the_luckiest(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    def spy(problem: sp.AbstractProblem, delta: Tensor, *args: Any, **options: Any) -> Evaluation:
        seen.append(delta)
        return evaluate(problem, delta, *args, **options)

    monkeypatch.setattr(import_module("saddlepoint.solver.restart"), "evaluate", spy)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).eval()
    x = torch.rand(12, 1, 6, 6, generator=generator)
    views = [T.random_rotate(-50, 50), T.random_crop_resize(0.5, 1.0)]
    problem = sp.Transformed(model, views, x, torch.arange(12) % 3)
    result = sp.attack(problem, sp.LpBall(2, 0.8), steps=8)
    moved = (result.delta != seen[0]).flatten(1).any(dim=1)
    assert moved.sum() > 6
    assert torch.equal(result.delta[moved], seen[-1][moved])


def test_random_transforms_meet_a_row_alike_alone_and_in_a_batch(networks: list[nn.Module]) -> None:
    x = torch.rand(6, 1, 2, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    views = [T.random_rotate(-50, 50), T.random_crop_resize(0.5, 1.0), T.identity]
    problem = sp.Transformed(networks[0], views, x, torch.arange(6) % 4, samples=2, seed=9)
    whole = sp.attack(problem, sp.LpBall(INF, 0.1), steps=5, restarts=2)
    order = torch.tensor([5, 2, 0, 1, 4, 3])
    part = sp.attack(problem.take(order), sp.LpBall(INF, 0.1), steps=5, restarts=2, batch_size=4)
    same(part, whole, order)


def test_the_seed_chooses_the_restarts_and_nothing_else(problem: sp.Ensemble) -> None:
    ball = sp.LpBall(2, 0.15)
    first, again, other = (
        sp.attack(problem, ball, steps=1, restarts=6, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first.delta, again.delta)
    restarted = first.num_forwards > 2
    assert restarted.any()
    assert not torch.equal(first.delta[restarted], other.delta[restarted])
    assert torch.equal(first.delta[~restarted], other.delta[~restarted])


# ----------------------------------------------------------------------------- known optima


def linear(weight: Tensor, bias: float) -> Callable[[Tensor], Tensor]:
    """Two classes with the margin w . x + b."""

    def model(images: Tensor) -> Tensor:
        margin = images.flatten(1) @ weight.to(images) + bias
        return torch.stack([margin, torch.zeros_like(margin)], dim=1)

    return model


WEIGHT = torch.tensor([3.0, -1.0, 0.5, -2.0, 0.25, 1.5, -0.75, 0.1], dtype=torch.float64)


@pytest.mark.parametrize(
    ("p", "eps", "gain"),
    [
        (INF, 0.1, 0.1 * WEIGHT.abs().sum().item()),
        (2, 0.3, 0.3 * WEIGHT.norm().item()),
        (1, 0.4, 0.4 * 3.0),
        (0, 3, 0.5 * (3.0 + 2.0 + 1.5)),  # three pixels, each from grey to black or white
    ],
)
def test_linear_models_are_attacked_optimally_in_every_norm(
    p: float, eps: float, gain: float
) -> None:
    x = torch.full((2, 8), 0.5, dtype=torch.float64)
    problem = sp.Ensemble([linear(WEIGHT, 10.0)], x, torch.tensor([0, 0]))
    result = sp.attack(problem, sp.LpBall(p, eps), steps=100)
    start = problem.logits(problem.zeros())[:, 0, 0]
    found = (start - result.losses[:, 0]) / gain
    assert bool((found <= 1 + 1e-9).all())
    assert bool((found >= 0.995).all()), found


@pytest.mark.parametrize("p", [1, 2, INF])
def test_two_linear_models_are_attacked_at_the_minimax_point(p: float) -> None:
    # Margins x1 + 2 and x2 + 2: the worst is smallest where both fall alike.
    eye = torch.eye(2, dtype=torch.float64)
    models = [linear(eye[0], 2.0), linear(eye[1], 2.0)]
    x = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    eps = 0.2
    best = 2.5 - {1: eps / 2, 2: eps / 2**0.5, INF: eps}[p]
    problem = sp.Ensemble(models, x, torch.tensor([0]))
    rule = sp.MinMax(step_size=0.5, gamma=0.0)
    result = sp.attack(problem, sp.LpBall(p, eps), rule=rule, steps=100)
    assert best - 1e-9 <= result.losses.max().item() <= best + 0.01


@pytest.mark.parametrize("p", [1, 2, INF])
def test_an_infinite_radius_reaches_the_corner_of_the_box(p: float) -> None:
    x = torch.full((1, 8), 0.5, dtype=torch.float64)
    problem = sp.Ensemble([linear(WEIGHT, 10.0)], x, torch.tensor([0]))
    result = sp.attack(problem, sp.LpBall(p, INF), steps=60, restarts=2)
    expected = 10 + 0.5 * WEIGHT.sum().item() - 0.5 * WEIGHT.abs().sum().item()
    assert result.losses.item() == pytest.approx(expected, abs=0.02)


def test_rows_that_can_just_be_fooled_are_fooled() -> None:
    # The margin at the best corner of the linf ball is -1e-3; every pixel has to move all the way.
    x = torch.full((1, 8), 0.5, dtype=torch.float64)
    bias = 0.1 * WEIGHT.abs().sum().item() - 0.5 * WEIGHT.sum().item() - 1e-3
    problem = sp.Ensemble([linear(WEIGHT, bias)], x, torch.tensor([0]))
    assert sp.attack(problem, sp.LpBall(INF, 0.1), steps=30).fooled.all()
    assert not sp.attack(problem, sp.LpBall(INF, 0.0998), steps=30).fooled.any()


# ------------------------------------------------------------------------- what is returned


@pytest.mark.parametrize("ball_name", BALLS)
@pytest.mark.parametrize("targeted", [False, True])
def test_the_result_is_feasible_and_says_what_the_models_say(
    problem: sp.Ensemble, ball_name: str, targeted: bool
) -> None:
    p, eps = BALLS[ball_name]
    ball = sp.LpBall(p, eps)
    result = sp.attack(problem, ball, steps=10, restarts=2, targeted=targeted)
    assert bool(((result.delta >= problem.lower) & (result.delta <= problem.upper)).all())
    assert bool((ball.norm(result.delta) <= eps * (1 + 1e-12)).all())
    logits = problem.logits(result.delta)
    losses = sp.cw_margin(logits, problem.labels, targeted=targeted)
    torch.testing.assert_close(result.losses, losses, rtol=0, atol=1e-9)
    hit = logits.argmax(dim=-1) == problem.labels
    assert torch.equal(result.fooled, hit if targeted else ~hit)
    torch.testing.assert_close(result.weights.sum(dim=1), torch.ones(12).double())
    assert torch.equal(
        result.fooled, sp.success_rates(problem, result.delta, targeted=targeted).fooled
    )
    assert 0 < result.fooled.sum() < result.fooled.numel()


@pytest.mark.parametrize("ball_name", BALLS)
def test_the_best_iterate_is_kept_most_domains_first_then_lowest_worst_loss(
    problem: sp.Ensemble, ball_name: str
) -> None:
    result = sp.attack(problem, sp.LpBall(*BALLS[ball_name]), steps=12)
    losses = result.history.losses
    assert losses.shape == result.history.weights.shape == (13, 12, 2)
    for b in range(12):
        ranks = [(-(f < 0).sum().item(), round(f.max().item(), 12)) for f in losses[:, b]]
        best = min(range(13), key=lambda step: ranks[step])
        torch.testing.assert_close(result.losses[b], losses[best, b])
        torch.testing.assert_close(result.weights[b], result.history.weights[best, b])


def test_rows_leave_once_fooled_and_their_history_stops(problem: sp.Ensemble) -> None:
    sizes: list[int] = []

    def watched(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return problem.models[0](images)

    watching = sp.Ensemble([watched, problem.models[1]], problem.x, problem.labels[:, 0])
    result = sp.attack(watching, sp.LpBall(INF, 0.1), steps=12)
    fooled = result.fooled.all(dim=1)
    leaving = result.num_forwards[fooled]
    assert {1} < set(leaving.tolist())
    assert bool((result.num_forwards[~fooled] == 13).all())
    run = sizes[4:-1]  # after the look at entry, and before the verdict on all rows
    assert sizes[-1] == len(problem)
    assert run == [int((result.num_forwards > step).sum()) for step in range(len(run))]
    for b in fooled.nonzero().flatten().tolist():
        last = int(result.num_forwards[b]) - 1
        for series, end in (
            (result.history.losses, result.losses),
            (result.history.weights, result.weights),
        ):
            assert torch.equal(series[last:, b], end[b].expand_as(series[last:, b]))
        assert bool((result.losses[b] < 0).all())


def test_rows_that_keep_going_take_every_step_and_end_at_their_lowest_worst_loss(
    problem: sp.Ensemble,
) -> None:
    stopped = sp.attack(problem, sp.linf(0.5), steps=12)
    gone = sp.attack(problem, sp.linf(0.5), steps=12, keep_going=True)
    assert bool(stopped.success.any())
    assert bool((stopped.num_forwards[stopped.success] < 13).all())
    assert gone.num_forwards.tolist() == [13] * len(problem)
    assert bool(gone.success[stopped.success].all())
    # Of the iterates that fool as many domains the one of lowest worst loss, from the first to the last.
    worst = gone.history.losses.amax(dim=2).amin(dim=0)
    torch.testing.assert_close(gone.losses.amax(dim=1)[gone.success], worst[gone.success])
    assert bool((gone.losses.amax(dim=1) < stopped.losses.amax(dim=1))[stopped.success].any())
    again = sp.attack(problem, sp.linf(0.5), steps=12, restarts=3, keep_going=True)
    assert bool((again.num_forwards[gone.success] == 13).all())  # fooled rows are not restarted


def test_misclassified_images_are_successes_without_perturbation(problem: sp.Ensemble) -> None:
    wrong = (problem.logits(problem.zeros()).argmax(dim=-1) != problem.labels).all(dim=1)
    assert 0 < wrong.sum() < 12
    result = sp.attack(problem, sp.LpBall(2, 0.2), steps=5)
    assert bool((result.num_forwards[wrong] == 1).all())
    assert not result.delta[wrong].any()
    assert bool((result.num_forwards[~wrong] > 1).all())


def test_only_standing_rows_are_restarted_and_never_to_their_loss(problem: sp.Ensemble) -> None:
    ball = sp.LpBall(2, 0.2)
    once, often = (sp.attack(problem, ball, steps=5, restarts=count) for count in (1, 4))
    done = once.fooled.all(dim=1)
    same(
        sp.AttackResult(**{f.name: _rows(once, f.name, done) for f in dataclasses.fields(once)}),
        often,
        done,
    )
    not_fooled = ~done
    hits_once, hits_often = (r.fooled[not_fooled].sum(dim=1) for r in (once, often))
    worst_once, worst_often = (r.losses[not_fooled].amax(dim=1) for r in (once, often))
    better = (hits_often > hits_once) | ((hits_often == hits_once) & (worst_often <= worst_once))
    assert bool(better.all())
    still = ~often.fooled.all(dim=1)
    assert bool((often.num_forwards[still] == 24).all())


def _rows(result: sp.AttackResult, name: str, rows: Tensor) -> object:
    value = getattr(result, name)
    if name == "history":
        return sp.History(value.weights[:, rows], value.losses[:, rows])
    return value[rows] if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("p", [1, 2])
def test_restarts_begin_in_a_larger_ball_and_what_fools_only_there_does_not_count(p: float) -> None:
    # Right as long as the first number is above 0.5: 0.3 away, in a ball of 0.2.
    def model(images: torch.Tensor) -> torch.Tensor:
        lengths.append((images - x).norm(p=p, dim=1).max().item())
        return torch.stack([images[:, 0], 0 * images[:, 0] + 0.5], dim=1)

    x, y = torch.full((3, 4), 0.8), torch.zeros(3, dtype=torch.long)
    lengths: list[float] = []
    problem, ball = sp.Ensemble([model], x, y), sp.LpBall(p, 0.2)
    once = sp.attack(problem, ball, steps=12, batch_size=3)
    assert max(lengths) <= 0.2 + 1e-6
    lengths.clear()
    often = sp.attack(problem, ball, steps=12, restarts=3, batch_size=3)
    assert max(lengths) > 0.35  # where the model is fooled
    for result in (once, often):
        assert not result.fooled.any()
        assert (ball.norm(result.delta) <= 0.2 + 1e-6).all()
    assert often.num_forwards.tolist() == [39] * 3
    # Over two thirds of the steps the ball shrinks to the true one, and the last third is inside it.
    assert all(length <= 0.2 + 1e-6 for length in lengths[-5:])


@pytest.mark.parametrize(("p", "growth"), [(1, [0, 5, 10, 20, 5]), (2, [0, 3, 6, 12, 3])])
def test_restarts_begin_in_balls_of_three_sizes_in_turn(p: float, growth: list[int]) -> None:
    def model(images: Tensor) -> Tensor:
        lengths.append((images - x).norm(p=p, dim=1))
        return torch.stack([images.sum(dim=1), torch.zeros_like(images[:, 0])], dim=1)

    x = torch.full((2, 400), 0.5, dtype=torch.float64)
    problem = sp.Ensemble([model], x, torch.zeros(2, dtype=torch.long))
    eps = torch.tensor([0.1, 0.3], dtype=torch.float64)
    lengths: list[Tensor] = []
    sp.attack(problem, sp.LpBall(p, eps), steps=6, restarts=5, batch_size=2)
    starts = torch.stack(lengths[-5 * 7 - 1 : -1 : 7]).detach()
    torch.testing.assert_close(starts, torch.tensor(growth).outer(eps), rtol=1e-6, atol=0)


def test_restarts_escape_a_flat_start() -> None:
    # Between -0.1 and 0.1 the loss does not move: only a random start finds the slope.
    def model(images: Tensor) -> Tensor:
        moved = images.flatten(1).sum(dim=1) - 4.0
        margin = 2.0 - 20 * (moved.abs() - 0.1).clamp_min(0)
        return torch.stack([margin, torch.zeros_like(margin)], dim=1)

    x = torch.full((3, 8), 0.5, dtype=torch.float64)
    problem = sp.Ensemble([model], x, torch.zeros(3, dtype=torch.long))
    with pytest.warns(UserWarning, match="gradient is zero"):
        assert not sp.attack(problem, sp.LpBall(INF, 0.1), steps=10).fooled.any()
    with pytest.warns(UserWarning, match="gradient is zero"):
        assert sp.attack(problem, sp.LpBall(INF, 0.1), steps=10, restarts=12).fooled.all()


def test_the_result_is_frozen(problem: sp.Ensemble) -> None:
    result = sp.attack(problem, sp.LpBall(2, 0.1), steps=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.delta = result.delta


def test_no_steps_judge_the_start(problem: sp.Ensemble) -> None:
    start = torch.full((12, 6), 0.05, dtype=torch.float64)
    ball = sp.LpBall(2, 0.1)
    result = sp.attack(problem, ball, steps=0, start=start)
    assert torch.equal(result.delta, ball.project(start, problem.lower, problem.upper))
    assert result.num_forwards.tolist() == [1] * 12


def test_pixels_of_a_colour_image_are_counted_once(networks: list[nn.Module]) -> None:
    x = torch.rand(5, 3, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = sp.Ensemble(networks, x, torch.tensor([0, 1, 2, 3, 0]))
    result = sp.attack(problem, sp.LpBall(0, 1, unit="pixel"), steps=10)
    changed = result.delta != 0
    assert changed.any(dim=1).flatten(1).sum(dim=1).max() == 1
    assert changed.flatten(1).sum(dim=1).max() > 1


@pytest.mark.parametrize("rule", [sp.MinMax(), sp.Average(), sp.WorstCase(), sp.Entropic()])
@pytest.mark.parametrize("loss", [sp.cw_margin, sp.dlr, sp.neg_cross_entropy])
def test_every_rule_and_loss_lowers_the_worst_loss(
    problem: sp.Ensemble, rule: object, loss: Callable
) -> None:
    result = sp.attack(problem, sp.LpBall(INF, 0.1), rule=rule, loss=loss, steps=15)
    before = loss(problem.logits(problem.zeros()), problem.labels).amax(dim=1)
    after = result.losses.amax(dim=1)
    moved = result.num_forwards > 1
    assert moved.any()
    # Fooling one more domain may cost the worst one something; most rows are lower, none much higher.
    assert (after[moved] < before[moved]).double().mean() > 0.8


# -------------------------------------------------------------------------------- quantisation


def exactly(tensor: Tensor) -> list[Fraction]:
    """The numbers of a tensor without any rounding."""
    return [Fraction(value) for value in tensor.double().flatten().tolist()]


def quantised_problem(generator: torch.Generator, dtype: torch.dtype) -> tuple[sp.Ensemble, Tensor]:
    """Images on the grid, with a model that likes them as they are and one that does not; and their levels."""
    models = [nn.Sequential(nn.Flatten(), nn.Linear(48, 4)).eval() for _ in range(2)]
    for model in models:
        with torch.no_grad():
            model[1].weight.copy_(torch.randn(4, 48, generator=generator))
        model.to(dtype)
    levels = torch.randint(0, 256, (20, 3, 4, 4), generator=generator)
    levels[:, 0, :2] = 0  # black and white, where the box is
    levels[:, 1, :2] = 255
    x = levels.to(dtype) / 255
    return sp.Ensemble(models, x, models[0](x).argmax(dim=1)), levels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ball_name", BALLS)
def test_quantised_results_are_on_the_grid_in_ball_and_box_and_survive_saving(
    generator: torch.Generator, ball_name: str, dtype: torch.dtype
) -> None:
    problem, levels = quantised_problem(generator, dtype)
    x, y = problem.x, problem.labels[:, 0]
    p, eps = {"l0": (0, 4), "l1": (1, 1.0), "l2": (2, 0.5), "linf": (INF, 8 / 255)}[ball_name]
    ball = sp.LpBall(p, eps)
    result = sp.attack(problem, ball, steps=15, restarts=2, quantize=256)
    assert result.delta.any()
    # The box in exact arithmetic, and the ball: exactly where a single entry decides, else up to rounding.
    sums = [a + b for a, b in zip(exactly(x), exactly(result.delta), strict=True)]
    assert min(sums) >= 0
    assert max(sums) <= 1
    if p == INF:
        assert max(map(abs, exactly(result.delta))) <= Fraction(eps)
    assert bool((ball.norm(result.delta) <= eps * (1 + (1e-6 if p else 0))).all())
    # What is returned is what a file holds: 8-bit integers and back.
    moved = (result.delta.double() * 255).round().long()
    torch.testing.assert_close(result.delta.double() * 255, moved.double(), rtol=0, atol=1e-4)
    saved = (result.adversarial * 255).round().to(torch.uint8)
    assert torch.equal(saved.long(), levels + moved)
    assert torch.equal(((x + result.delta) * 255).round().to(torch.uint8), saved)
    loaded = saved.to(dtype) / 255
    assert torch.equal(loaded, result.adversarial)
    verdict = torch.stack([model(loaded).argmax(dim=1) != y for model in problem.models], dim=1)
    assert torch.equal(verdict, result.fooled)
    torch.testing.assert_close(
        sp.cw_margin(torch.stack([m(loaded) for m in problem.models], dim=1), problem.labels),
        result.losses,
    )
    assert torch.equal(result.success, verdict.all(dim=1))
    assert result.success.any()


@pytest.mark.parametrize("box", ["intersection", "clip"])
def test_quantised_groups_are_what_a_file_holds(generator: torch.Generator, box: str) -> None:
    problem, levels = quantised_problem(generator, torch.float32)
    groups, labels = problem.x.reshape(4, 5, 3, 4, 4), problem.labels[:, 0].reshape(4, 5)
    universal = sp.Universal(problem.models[0], groups, labels, box=box)
    result = sp.attack(universal, sp.LpBall(INF, 8 / 255), steps=10, quantize=256)
    moved = (result.delta * 255).round().long().unsqueeze(1)
    expected = (levels.reshape(4, 5, 3, 4, 4) + moved).clamp(0, 255).float() / 255
    assert torch.equal(result.adversarial, expected)
    said = problem.models[0](expected.flatten(0, 1)).argmax(dim=1).reshape(4, 5)
    assert torch.equal(result.fooled, said != labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("below", [1e-7, 1e-9, 5e-13])
def test_a_radius_just_below_a_level_does_not_reach_it(below: float, dtype: torch.dtype) -> None:
    x = torch.full((1, 8), 128, dtype=dtype) / 255
    problem = sp.Ensemble([linear(WEIGHT, 20.0)], x, torch.tensor([0]))
    eps = 8 / 255 * (1 - below)
    result = sp.attack(problem, sp.LpBall(INF, eps), steps=20, quantize=256)
    assert max(map(abs, exactly(result.delta))) <= Fraction(eps)
    levels = 8 if below < 1e-11 and dtype == torch.float32 else 7  # which cannot tell it from 8/255
    assert (result.delta * 255).round().abs().tolist() == [[levels] * 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_box_holds_in_exact_arithmetic(generator: torch.Generator, dtype: torch.dtype) -> None:
    x = torch.rand(40, 12, generator=generator, dtype=dtype)

    def model(images: Tensor) -> Tensor:
        total = images.sum(dim=1)
        return torch.stack([12 - total, total], dim=1)

    for direction in (0, 1):  # up to white, and down to black
        problem = sp.Ensemble([model], x, torch.full((40,), direction))
        result = sp.apgda(problem, sp.LpBall(INF, 1.0), steps=3, step_size=10.0, batch_size=40)
        sums = [a + b for a, b in zip(exactly(x), exactly(result.delta), strict=True)]
        assert min(sums) >= 0
        assert max(sums) <= 1
        ends = torch.full_like(x, 1.0 - direction)
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(result.adversarial, ends, rtol=0, atol=rounding)


def test_the_result_holds_the_images_to_save(problem: sp.Ensemble) -> None:
    for solver in (sp.attack, sp.apgda):
        result = solver(problem, sp.LpBall(INF, 0.1), steps=4, batch_size=5)
        assert torch.equal(result.adversarial, (problem.x + result.delta).clamp(0, 1))
        assert result.success.tolist() == [all(row) for row in result.fooled.tolist()]


def test_quantisation_reaches_the_edge_of_a_ball_on_the_grid() -> None:
    x = torch.full((1, 8), 128 / 255)
    problem = sp.Ensemble([linear(WEIGHT, 20.0)], x, torch.tensor([0]))
    for levels in (1, 8, 51):
        result = sp.attack(problem, sp.LpBall(INF, levels / 255), steps=20, quantize=256)
        assert (result.delta * 255).round().abs().tolist() == [[levels] * 8]


def test_quantisation_refuses_images_off_the_grid_and_too_few_levels(problem: sp.Ensemble) -> None:
    with pytest.raises(ValueError, match="multiples of 1/255"):
        sp.attack(problem, sp.LpBall(INF, 0.1), quantize=256)
    with pytest.raises(ValueError, match="`quantize` must be >= 2, got 1"):
        sp.attack(problem, sp.LpBall(INF, 0.1), quantize=1)
    with pytest.raises(ValueError, match="`restarts` must be >= 1"):
        sp.attack(problem, sp.LpBall(INF, 0.1), restarts=0)


# ------------------------------------------------------------------- progress and interruption


def test_progress_tells_where_the_attack_stands(problem: sp.Ensemble) -> None:
    seen: list[sp.Progress] = []
    result = sp.attack(
        problem, sp.LpBall(2, 0.1), steps=4, restarts=2, batch_size=5, callback=seen.append
    )
    assert all((progress.rows, progress.steps) == (12, 4) for progress in seen)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert {p.done for p in seen} == {0, 5, 10, 12}
    assert {p.restart for p in seen} == {0, 1}
    first = [(p.restart, p.step) for p in seen if p.done == 0]
    assert first == [(restart, step) for restart in (0, 1) for step in range(5)]
    hits = result.fooled.all(dim=1)
    for (
        progress
    ) in seen:  # those of the batches before, and of the current one what is fooled so far
        assert progress.fooled >= int(hits[: progress.done].sum())
    assert seen[-1].fooled == int(hits.sum())


def interrupt(when: Callable[[sp.Progress], bool]) -> Callable[[sp.Progress], None]:
    def callback(progress: sp.Progress) -> None:
        if when(progress):
            raise KeyboardInterrupt

    return callback


def stopped(problem: sp.Ensemble, *args: Any, **options: Any) -> sp.AttackResult:
    """What the attack had found when Ctrl-C stopped it."""
    with pytest.raises(KeyboardInterrupt) as stop:
        sp.attack(problem, *args, **options)
    done = int(stop.value.result.completed.sum())
    (told,) = stop.value.__notes__
    assert f"the attack was stopped: {done} of {len(problem)} rows are done (fooled, or" in told
    return stop.value.result


def check_untouched(problem: sp.Ensemble, result: sp.AttackResult, rows: slice) -> None:
    assert not result.delta[rows].any()
    assert not result.fooled[rows].any()
    assert not result.completed[rows].any()
    assert not result.num_forwards[rows].any()
    assert bool(result.losses[rows].isnan().all())


def test_ctrl_c_inside_a_batch_raises_with_what_is_done_so_far(problem: sp.Ensemble) -> None:
    ball = sp.LpBall(2, 0.1)
    whole = sp.attack(problem, ball, steps=6, restarts=2, batch_size=4)
    stop = interrupt(lambda progress: progress.done == 4 and progress.step == 3)
    result = stopped(problem, ball, steps=6, restarts=2, batch_size=4, callback=stop)
    assert result.interrupted
    first = {f.name: _rows(result, f.name, torch.arange(4)) for f in dataclasses.fields(result)}
    same(sp.AttackResult(**first), whole, torch.arange(4))
    middle, rest = slice(4, 8), slice(8, 12)
    # Four evaluations of rows that are not fooled yet; they are not complete, but what they have is true.
    fooled = result.fooled[middle].all(dim=1)
    assert torch.equal(result.completed[middle], fooled)
    assert bool((result.num_forwards[middle][~fooled] == 4).all())
    losses = sp.cw_margin(problem.logits(result.delta), problem.labels)
    torch.testing.assert_close(result.losses[middle], losses[middle], rtol=0, atol=1e-9)
    assert torch.equal(result.fooled[middle], losses[middle] < 0)
    assert bool((ball.norm(result.delta) <= 0.1 * (1 + 1e-12)).all())
    history = result.history
    once = sp.attack(problem, ball, steps=6)
    torch.testing.assert_close(history.losses[:4, middle], once.history.losses[:4, middle])
    sums = history.weights[:, middle].sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones(7, 4).double())
    check_untouched(problem, result, rest)


def test_ctrl_c_between_two_batches_keeps_the_finished_one(problem: sp.Ensemble) -> None:
    whole = sp.attack(problem, sp.LpBall(2, 0.1), steps=4, batch_size=4)
    stop = interrupt(lambda progress: progress.done == 4)
    result = stopped(problem, sp.LpBall(2, 0.1), steps=4, batch_size=4, callback=stop)
    assert result.completed.tolist() == [True] * 4 + [False] * 8
    assert torch.equal(result.delta[:4], whole.delta[:4])
    check_untouched(problem, result, slice(4, 12))


def test_ctrl_c_stops_even_if_every_row_of_the_batch_is_fooled(problem: sp.Ensemble) -> None:
    wrong = (problem.logits(problem.zeros()).argmax(dim=-1) != problem.labels).all(dim=1)
    order = torch.cat([wrong.nonzero().flatten(), (~wrong).nonzero().flatten()])
    count = int(wrong.sum())
    assert 0 < count < 12
    stop = interrupt(lambda progress: progress.done == 0 and progress.step == 0)
    result = stopped(
        problem.take(order), sp.LpBall(2, 0.1), steps=4, batch_size=count, callback=stop
    )
    assert result.completed.tolist() == [True] * count + [False] * (12 - count)
    assert bool(result.fooled[:count].all())
    check_untouched(problem, result, slice(count, 12))


def test_ctrl_c_during_a_restart_keeps_the_first_run(problem: sp.Ensemble) -> None:
    ball = sp.LpBall(2, 0.1)
    once = sp.attack(problem, ball, steps=5)
    stop = interrupt(lambda progress: progress.restart == 1 and progress.step == 0)
    result = stopped(problem, ball, steps=5, restarts=9, callback=stop)
    assert result.interrupted
    done = once.fooled.all(dim=1)
    torch.testing.assert_close(result.delta[done], once.delta[done])
    assert bool((result.fooled.sum(dim=1) >= once.fooled.sum(dim=1)).all())
    assert bool(result.completed[done].all())
    torch.testing.assert_close(result.num_forwards, once.num_forwards + (~done).to(torch.int64))


def test_ctrl_c_inside_the_model_before_any_result_touches_nothing(problem: sp.Ensemble) -> None:
    def model(images: Tensor) -> Tensor:
        if len(images) == 12:  # not the look at entry
            raise KeyboardInterrupt
        return problem.models[0](images)

    refusing = sp.Ensemble([model], problem.x, problem.labels[:, 0])
    for solver in (sp.attack, sp.apgda):
        with pytest.raises(KeyboardInterrupt) as stop:
            solver(refusing, sp.LpBall(2, 0.1), steps=4)
        result = stop.value.result
        assert result.interrupted
        assert result.delta.shape == (12, 6)
        check_untouched(refusing, result, slice(0, 12))


@pytest.mark.parametrize("solver", [sp.attack, sp.apgda])
def test_ctrl_c_ends_a_loop_over_a_loader(problem: sp.Ensemble, solver: Callable) -> None:
    begun: list[Tensor] = []

    def loop() -> None:
        for rows in torch.arange(12).split(4):
            begun.append(rows)
            late = interrupt(lambda progress: len(begun) == 2 and progress.step == 2)
            solver(problem.take(rows), sp.LpBall(2, 0.1), steps=4, callback=late)

    with pytest.raises(KeyboardInterrupt) as stop:
        loop()
    assert len(begun) == 2  # the third batch is never begun
    assert type(stop.value) is KeyboardInterrupt
    assert len(stop.value.result.delta) == 4


def test_other_exceptions_from_a_callback_are_not_swallowed(problem: sp.Ensemble) -> None:
    def callback(progress: sp.Progress) -> None:
        raise ZeroDivisionError

    for solver in (sp.attack, sp.apgda):
        with pytest.raises(ZeroDivisionError):
            solver(problem, sp.LpBall(2, 0.1), steps=2, callback=callback)


def test_a_result_prints_as_one_line(problem: sp.Ensemble) -> None:
    result = sp.attack(problem, sp.LpBall(INF, 0.1), steps=5)
    every = int(result.fooled.all(dim=1).sum())
    spent = result.num_forwards.double().mean().item()
    clean = problem.logits(problem.zeros()).argmax(dim=-1)
    wrong = int((clean != problem.truth).all(dim=1).sum())
    assert 0 < wrong < every
    shown = (
        f"AttackResult({every} of 12 rows fool all 2 domains, {wrong} without any perturbation, "
        f"{spent:.1f} evaluations per row)"
    )
    assert repr(result) == shown
    assert f"<p>all at once without any perturbation: {wrong} of 12; " in result._repr_html_()
    part = dataclasses.replace(result, completed=torch.arange(12) < 7)
    told = repr(part)
    assert told.endswith(", stopped with 5 rows to do)")
    assert "without any" not in told  # of some rows nobody knows


@pytest.mark.parametrize(
    "how", ["start", "keep_going", "bfloat16", "gradient", "random", "apgda", "kept"]
)
def test_rows_that_fool_as_they_are_are_counted_only_where_delta_tells(
    problem: sp.Ensemble, how: str
) -> None:
    ball = sp.LpBall(INF, 0.1)
    options: dict[str, dict[str, Any]] = {
        "start": {"start": torch.full_like(problem.lower, 0.01)},
        "keep_going": {"keep_going": True},
        "gradient": {"gradient": sp.searched(queries=20)},
    }
    if how in options:
        steps = {} if how == "gradient" else {"steps": 5}
        result = sp.attack(problem, ball, **steps, **options[how])
    elif how in ("random", "bfloat16"):
        x, y = sp.data.sample("mnist", 4)
        views = T.paper_random_family()[:2] if how == "random" else [T.identity]
        seen = sp.Transformed(sp.models.load("mnist-a"), views, x, y)
        word = "float32" if how == "random" else "bfloat16"
        result = sp.attack(seen, ball, steps=2, precision=word)
    elif how == "apgda":
        result = sp.apgda(problem, ball, steps=5)
    else:  # in a file, without what was asked
        result = dataclasses.replace(sp.attack(problem, ball, steps=5), asked=None)
    assert "without any perturbation" not in repr(result) + result._repr_html_()


@pytest.mark.parametrize(
    ("letters", "eps", "rows", "fooled"),
    [("abcd", 0.2, 32, 26), pytest.param("acd", 0.13, 128, 43, marks=pytest.mark.slow)],
)
def test_the_default_is_close_to_its_ceiling_and_loses_to_no_other_rule(
    letters: str, eps: float, rows: int, fooled: int
) -> None:
    """Five restarts fool 26 and 44; weights of step size 1/20 and gamma 1, with momentum, 24 and 41."""
    x, y = sp.data.sample("mnist")
    networks = [sp.models.load(f"mnist-{letter}") for letter in letters]
    problem = sp.Ensemble(networks, x[:rows], y[:rows])
    rules = (None, sp.WorstCase(), sp.Entropic())
    default, *others = (
        int(sp.attack(problem, sp.linf(eps), rule=rule).success.sum()) for rule in rules
    )
    assert default >= fooled
    assert default >= max(others)
