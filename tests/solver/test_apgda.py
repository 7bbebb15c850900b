"""`apgda` against Algorithm 1 written out, by hand, and by what must not change it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Literal, Self

import pytest
import torch
from torch import Tensor, nn

import oracles
import saddlepoint as sp
from saddlepoint import directions
from saddlepoint import transforms as T
from saddlepoint.problems import AbstractProblem
from saddlepoint.solver import apgda_unchecked, attack_unchecked
from saddlepoint.solver.domain_losses import evaluate

INF = math.inf
BALLS = {"l0": (0, 2), "l1": (1, 0.7), "l2": (2, 0.4), "linf": (INF, 0.2)}
# library rule, weights to start from given F(delta_0), and the update in plain arithmetic
RULES: dict[str, tuple] = {
    "minmax": (
        sp.MinMax(step_size=0.1, gamma=0.8),
        lambda losses: torch.full_like(losses, 1 / 3),
        partial(oracles.minmax_update, step_size=0.1, gamma=0.8),
    ),
    "average": (sp.Average(), lambda f: torch.full_like(f, 1 / 3), oracles.constant),
    "fixed": (
        sp.Fixed((1 / 8, 3 / 8, 4 / 8)),
        lambda losses: torch.tensor([1, 3, 4]).to(losses) / 8,
        oracles.constant,
    ),
    "worst case": (
        sp.WorstCase(),
        lambda losses: oracles.one_hot_of_largest(losses, losses),
        oracles.one_hot_of_largest,
    ),
    "entropic": (
        sp.Entropic(step_size=0.3),
        lambda losses: torch.full_like(losses, 1 / 3),
        partial(oracles.entropic_update, step_size=0.3),
    ),
}


@pytest.fixture
def problem(networks: list[nn.Module], generator: torch.Generator) -> sp.Ensemble:
    x = torch.rand(6, 6, generator=generator, dtype=torch.float64)
    return sp.Ensemble(networks, x, torch.randint(0, 4, (6,), generator=generator))


def plain_projection(problem: sp.Ensemble, row: int, p: float, eps: float) -> Callable:
    lower, upper = problem.lower[row].numpy(), problem.upper[row].numpy()

    def project(v: Tensor) -> Tensor:
        z = oracles.project_by_bisection(v.numpy(), p, eps, lower, upper)
        return torch.from_numpy(z.astype(float))

    return project


# ------------------------------------------------------------------------------- the algorithm


def test_with_momentum_and_signs_it_is_mi_fgsm(problem: sp.Ensemble) -> None:
    eps, alpha, decay, steps = 0.2, 0.05, 0.7, 6
    result = sp.apgda(
        problem,
        sp.linf(eps),
        rule=sp.Average(),
        loss=sp.neg_cross_entropy,
        steps=steps,
        step_size=alpha,
        direction=directions.sign,
        momentum=decay,
        batch_size=4,  # the last batch begins without the memory of the first
    )
    for b in range(len(problem)):  # Dong et al., 2018, Algorithm 1 and equation 6, written out
        x, y = problem.x[b], problem.labels[b, :1]
        moved, velocity = x.clone(), torch.zeros_like(x)
        for _ in range(steps):
            moved.requires_grad_()
            logits = [model(moved.unsqueeze(0)) for model in problem.models]
            loss = sum(nn.functional.cross_entropy(each, y) for each in logits)
            (gradient,) = torch.autograd.grad(loss, moved)
            velocity = decay * velocity + gradient / gradient.abs().sum() * len(gradient)
            moved = moved.detach() + alpha * velocity.sign()
            moved = torch.minimum(torch.maximum(moved, x - eps), x + eps).clamp(0, 1)
        torch.testing.assert_close(result.adversarial[b], moved)


def test_a_row_without_gradient_goes_on_with_its_momentum() -> None:
    """Flat for small inputs: the first step has to come from the memory of nothing, and be none."""
    step = nn.Linear(2, 2).eval()
    nn.init.zeros_(step.weight)
    step.bias.data = torch.tensor([2.0, 0.0])
    problem = sp.Ensemble([step], torch.full((1, 2), 0.5), torch.tensor([0]))
    with pytest.warns(UserWarning, match="the gradient is zero"):
        result = sp.apgda(problem, sp.linf(0.1), direction=directions.sign, momentum=1.0, steps=3)
    assert result.delta.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("momentum", [-0.1, INF, math.nan])
def test_momentum_must_be_a_share(problem: sp.Ensemble, momentum: float) -> None:
    with pytest.raises(ValueError, match=r"`momentum` must be >= 0 and finite, got"):
        sp.apgda(problem, sp.linf(0.1), momentum=momentum)


@pytest.mark.parametrize("rule_name", RULES)
@pytest.mark.parametrize("ball_name", BALLS)
def test_apgda_equals_the_literal_algorithm_with_two_evaluations_per_step(
    problem: sp.Ensemble, ball_name: str, rule_name: str
) -> None:
    p, eps = BALLS[ball_name]
    rule, start, update = RULES[rule_name]
    result = sp.apgda(problem, sp.LpBall(p, eps), rule=rule, steps=6, step_size=0.3)
    for b in range(len(problem)):
        losses = oracles.ensemble_losses(problem.models, problem.x[b], problem.labels[b, 0].item())
        zero = torch.zeros(6, dtype=torch.float64)
        with torch.no_grad():
            w = start(losses(zero))
        project = plain_projection(problem, b, p, eps)
        delta, w, seen = oracles.algorithm_1(
            losses, project, update, zero, w, steps=6, step_size=0.3
        )
        torch.testing.assert_close(result.delta[b], delta, rtol=0, atol=1e-10)
        torch.testing.assert_close(result.weights[b], w, rtol=0, atol=1e-10)
        torch.testing.assert_close(result.history.weights[:, b], torch.stack(seen))
        with torch.no_grad():
            torch.testing.assert_close(result.losses[b], losses(delta), rtol=0, atol=1e-9)


def test_one_step_by_hand() -> None:
    # Two linear models on two pixels, classes 0 and 1, true class 0: margins x0 - x1 and 3 x0.
    first = nn.Linear(2, 2, bias=False).double().eval()
    second = nn.Linear(2, 2, bias=False).double().eval()
    with torch.no_grad():
        first.weight.copy_(torch.eye(2))
        second.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
    x = torch.tensor([[0.6, 0.45]], dtype=torch.float64)
    problem = sp.Ensemble([first, second], x, torch.tensor([0]))
    rule = sp.MinMax(step_size=0.2, gamma=1.0)
    result = sp.apgda(problem, sp.LpBall(INF, 0.15), rule=rule, steps=2, step_size=0.1)
    # w = (1/2, 1/2): gradient (1 + 3, -1) / 2 = (2, -1/2); delta_1 = (-0.15 (cut), 0.05).
    # F(delta_1) = (0.45 - 0.5, 1.35); w_1 = proj(0.5 - 0.01, 0.5 + 0.27) = (0.36, 0.64).
    # gradient (0.36 + 1.92, -0.36); delta_2 = (-0.15, 0.05 + 0.036); F(delta_2) = (-0.086, 1.35).
    expected = torch.tensor([[[0.5, 0.5]], [[0.36, 0.64]]], dtype=torch.float64)
    torch.testing.assert_close(result.history.weights[:2], expected)
    torch.testing.assert_close(result.history.losses[1], torch.tensor([[-0.05, 1.35]]).double())
    torch.testing.assert_close(result.delta, torch.tensor([[-0.15, 0.086]]).double())
    torch.testing.assert_close(result.losses, torch.tensor([[-0.086, 1.35]]).double())
    # b = w_1 + 0.2 (F - (w_1 - 1/2)) = (0.3708, 0.882), which is 0.2528 too much
    last = torch.tensor([[0.3708 - 0.1264, 0.882 - 0.1264]], dtype=torch.float64)
    torch.testing.assert_close(result.weights, last)
    assert result.fooled.tolist() == [[True, False]]


@pytest.mark.parametrize(
    "direction",
    [directions.sign, directions.unit_l2, directions.unit_linf, directions.SparseL1(2)],
)
def test_directions_replace_the_raw_gradient(
    problem: sp.Ensemble, direction: directions.Direction
) -> None:
    ball = sp.LpBall(2, 0.5)
    result = sp.apgda(problem, ball, steps=1, step_size=0.1, direction=direction)
    delta = problem.zeros().requires_grad_()
    value = sp.cw_margin(problem.logits(delta), problem.labels).sum() / 3
    (gradient,) = torch.autograd.grad(value, delta)
    expected = ball.project(-0.1 * direction(gradient), problem.lower, problem.upper)
    torch.testing.assert_close(result.delta, expected)


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_one_forward_and_one_backward_per_iterate(problem: sp.Ensemble, steps: int) -> None:
    counted = [Counting(model) for model in problem.models]
    counting = sp.Ensemble(counted, problem.x, problem.labels[:, 0])
    result = sp.apgda(counting, sp.LpBall(2, 0.4), steps=steps)
    assert result.num_forwards.tolist() == [steps + 1] * 6
    for model in counted:
        # The look at four rows at entry comes on top, and at one of them alone; so does the verdict at the end,
        # which asks again.
        assert model.forwards.count(6) == steps + 2
        assert model.backwards.count(6) == steps
        assert [size for size in model.forwards if size != 6] == [4, 4, 1, 4]


class Counting(nn.Module):
    """Counts forward and backward passes, with the number of rows of each."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.forwards, self.backwards = model, [], []
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        self.forwards.append(len(images))
        logits = self.model(images)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: self.backwards.append(len(gradient)))
        return logits


def test_the_history_holds_every_iterate(problem: sp.Ensemble) -> None:
    result = sp.apgda(problem, sp.LpBall(2, 0.4), steps=5)
    assert result.history.weights.shape == result.history.losses.shape == (6, 6, 3)
    for steps in range(6):
        shorter = sp.apgda(problem, sp.LpBall(2, 0.4), steps=steps)
        assert torch.equal(shorter.weights, result.history.weights[steps])
        assert torch.equal(shorter.losses, result.history.losses[steps])
    logits = problem.logits(result.delta)
    torch.testing.assert_close(result.losses, sp.cw_margin(logits, problem.labels))
    assert torch.equal(result.fooled, logits.argmax(dim=-1) != problem.labels)
    assert bool(result.completed.all())
    assert not result.interrupted


def test_the_start_is_projected_and_used(problem: sp.Ensemble) -> None:
    ball = sp.LpBall(1, 0.3)
    start = torch.full_like(problem.zeros(), 0.5)
    result = sp.apgda(problem, ball, steps=0, start=start.float())
    expected = ball.project(start, problem.lower, problem.upper)
    torch.testing.assert_close(result.delta, expected, rtol=0, atol=1e-7)


def test_targeted_runs_towards_the_class(problem: sp.Ensemble) -> None:
    result = sp.apgda(problem, sp.LpBall(2, 2.0), steps=30, targeted=True)
    reached = problem.logits(result.delta).argmax(dim=-1) == problem.labels
    assert torch.equal(result.fooled, reached)
    before = sp.cw_margin(problem.logits(problem.zeros()), problem.labels, targeted=True)
    assert result.losses.amax(dim=1).sum() < before.amax(dim=1).sum() - 1


def test_one_radius_per_row(problem: sp.Ensemble) -> None:
    eps = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    for solver in (sp.apgda, sp.attack):
        for p in (1, 2, INF):
            together = solver(problem, sp.LpBall(p, eps), steps=4, batch_size=4)
            assert bool((sp.LpBall(p, eps).norm(together.delta) <= eps * (1 + 1e-12)).all())
            assert not together.delta[0].any()
            for b in range(6):
                alone = solver(
                    problem.take(torch.tensor([b])), sp.LpBall(p, eps[b].item()), steps=4
                )
                torch.testing.assert_close(alone.delta[0], together.delta[b], rtol=0, atol=1e-10)


# ------------------------------------------------------------------- reductions and symmetries


@pytest.mark.parametrize("rule_name", [name for name in RULES if name != "fixed"])
@pytest.mark.parametrize("ball_name", BALLS)
def test_with_one_domain_every_rule_is_projected_gradient_descent(
    problem: sp.Ensemble, ball_name: str, rule_name: str
) -> None:
    model, ball = problem.models[0], sp.LpBall(*BALLS[ball_name])
    single = sp.Ensemble([model], problem.x, problem.labels[:, 0])
    result = sp.apgda(single, ball, rule=RULES[rule_name][0], steps=5, step_size=0.2)
    delta = single.zeros()
    for _ in range(5):
        delta.requires_grad_()
        loss = sp.cw_margin(model(single.x + delta), problem.labels[:, 0]).sum()
        (gradient,) = torch.autograd.grad(loss, delta)
        delta = ball.project(delta.detach() - 0.2 * gradient, single.lower, single.upper)
    torch.testing.assert_close(result.delta, delta, rtol=0, atol=1e-12)
    assert torch.equal(result.weights, torch.ones(6, 1).double())


@pytest.mark.parametrize("solver", [sp.apgda, sp.attack])
@pytest.mark.parametrize("rule_name", [name for name in RULES if name != "fixed"])
def test_identical_domains_keep_equal_weights(
    problem: sp.Ensemble, rule_name: str, solver: Callable
) -> None:
    model = problem.models[0]
    triple = sp.Ensemble([model] * 3, problem.x, problem.labels[:, 0])
    result = solver(triple, sp.LpBall(INF, 0.1), rule=RULES[rule_name][0], steps=5)
    expected = torch.full((6, 6, 3), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(result.history.weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("solver", [sp.apgda, sp.attack])
@pytest.mark.parametrize("gamma", [INF, 1e13])
def test_an_infinite_pull_towards_equal_weights_is_the_average(
    problem: sp.Ensemble, gamma: float, solver: Callable
) -> None:
    ball = sp.LpBall(2, 0.4)
    average = solver(problem, ball, rule=sp.Average(), steps=8)
    pulled = solver(problem, ball, rule=sp.MinMax(gamma=gamma), steps=8)
    torch.testing.assert_close(pulled.delta, average.delta, rtol=0, atol=1e-9)
    torch.testing.assert_close(pulled.history.weights, average.history.weights)


@pytest.mark.parametrize("solver", [sp.apgda, sp.attack])
@pytest.mark.parametrize("ball_name", BALLS)
def test_permuting_domains_permutes_weights_and_nothing_else(
    problem: sp.Ensemble, ball_name: str, solver: Callable
) -> None:
    order, ball = [2, 0, 1], sp.LpBall(*BALLS[ball_name])
    models = [problem.models[k] for k in order]
    permuted = sp.Ensemble(models, problem.x, problem.labels[:, 0])
    rule = sp.MinMax(step_size=0.3, gamma=0.1)
    here, there = (solver(q, ball, rule=rule, steps=8) for q in (problem, permuted))
    torch.testing.assert_close(there.delta, here.delta, rtol=0, atol=1e-9)
    for name in ("weights", "losses"):
        torch.testing.assert_close(getattr(there, name), getattr(here, name)[:, order])
    assert torch.equal(there.fooled, here.fooled[:, order])
    assert here.weights.std() > 1e-3


@pytest.mark.parametrize("batch_size", [1, 2, 4, 5, 6, 100])
@pytest.mark.parametrize("ball_name", BALLS)
def test_apgda_of_a_row_does_not_depend_on_its_company(
    problem: sp.Ensemble, ball_name: str, batch_size: int
) -> None:
    ball = sp.LpBall(*BALLS[ball_name])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    whole = sp.apgda(problem, ball, steps=6)
    part = sp.apgda(problem.take(order), ball, steps=6, batch_size=batch_size)
    for name in ("delta", "weights", "losses", "fooled", "num_forwards"):
        torch.testing.assert_close(getattr(part, name), getattr(whole, name)[order])
    torch.testing.assert_close(part.history.losses, whole.history.losses[:, order])


# ----------------------------------------------------------------------------- a known saddle


class Quadratic(AbstractProblem):
    """F_i(delta) = |delta - c_i|^2 / 2 + b_i: a user's own problem, with a saddle known on paper."""

    names = ("first", "second")

    def __init__(self, centres: Tensor, offsets: Tensor, rows: int) -> None:
        self.centres, self.offsets = centres, offsets
        self.labels = torch.zeros(rows, len(centres), dtype=torch.long)
        self.lower = torch.full((rows, centres.shape[1]), -INF, dtype=centres.dtype)
        self.upper = -self.lower
        self.rows = torch.arange(rows)

    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        value = (delta - self.centres[domain]).square().sum(dim=1) / 2 + self.offsets[domain]
        return torch.stack([value, torch.zeros_like(value)], dim=1)

    def take(self, rows: Tensor) -> Self:
        return type(self)(self.centres, self.offsets, len(rows))

    def images(self, delta: Tensor) -> Tensor:
        return delta

    @property
    def models(self) -> tuple:
        return ()


def first_logit(logits: Tensor, labels: Tensor) -> Tensor:
    del labels
    return logits[..., 0]


def test_apgda_finds_the_saddle_of_a_quadratic_game_primal_and_dual() -> None:
    # Stationary in delta: delta* = sum w_i c_i. In w: F_1 - F_2 = gamma (w_1 - w_2). Choose w* = (0.7,
    # 0.3): delta* = (0.18, 0.06), F_1 - b_1 = 0.009, F_2 - b_2 = 0.049, so b_1 - b_2 = 0.8 + 0.04.
    centres = torch.tensor([[0.3, 0.0], [-0.1, 0.2]], dtype=torch.float64)
    game = Quadratic(centres, torch.tensor([0.84, 0.0], dtype=torch.float64), rows=2)
    rule = sp.MinMax(step_size=0.2, gamma=2.0)
    result = sp.apgda(
        game, sp.LpBall(2, 10.0), rule=rule, loss=first_logit, steps=500, step_size=0.3
    )
    delta = torch.tensor([[0.18, 0.06]], dtype=torch.float64).expand(2, 2)
    torch.testing.assert_close(result.delta, delta, rtol=0, atol=1e-9)
    weights = torch.tensor([[0.7, 0.3]], dtype=torch.float64).expand(2, 2)
    torch.testing.assert_close(result.weights, weights, rtol=0, atol=1e-9)


def test_without_a_pull_the_saddle_equalises_the_losses() -> None:
    # gamma = 0: F_1 = F_2 between the centres 0 and 1 with offsets 0 and 0.1: delta* = 0.6,
    # and 0.6 = w_2 * 1 makes w* = (0.4, 0.6).
    centres = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    game = Quadratic(centres, torch.tensor([0.0, 0.1], dtype=torch.float64), rows=1)
    rule = sp.MinMax(step_size=0.05, gamma=0.0)
    # The first domain begins in its own minimum, which looks like a gradient that is masked.
    with pytest.warns(UserWarning, match=r"the gradient of domain 0 \(first\) is zero"):
        result = sp.apgda(
            game, sp.LpBall(INF, 5.0), rule=rule, loss=first_logit, steps=800, step_size=0.5
        )
    torch.testing.assert_close(result.delta, torch.tensor([[0.6]]).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        result.weights, torch.tensor([[0.4, 0.6]]).double(), atol=1e-6, rtol=0
    )
    assert result.losses[0, 0].item() == pytest.approx(0.18, abs=1e-6)


# -------------------------------------------------------------------- the user's things are safe


@pytest.mark.parametrize("solver", [sp.apgda, sp.attack])
@pytest.mark.parametrize("accumulate", [False, True])
def test_models_inputs_and_generators_are_left_as_they_were(
    networks: list[nn.Module], solver: Callable, accumulate: bool
) -> None:
    torch.manual_seed(3)
    networks[0][1].weight.requires_grad_(False)
    networks[1][1].weight.grad = torch.full_like(networks[1][1].weight, 7.0)
    x, y = torch.rand(5, 6).double(), torch.tensor([0, 1, 2, 3, 0])
    x.requires_grad_()
    start = torch.zeros(5, 6)
    kept = {name: value.detach().clone() for name, value in {"x": x, "y": y, "s": start}.items()}
    states = [{k: v.clone() for k, v in m.state_dict().items()} for m in networks]
    needs = [[p.requires_grad for p in m.parameters()] for m in networks]
    random_state = torch.random.get_rng_state()
    problem = sp.Ensemble(networks, x, y)
    result = solver(problem, sp.LpBall(2, 0.3), steps=3, start=start, accumulate=accumulate)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    for name, value in {"x": x, "y": y, "s": start}.items():
        assert torch.equal(value.detach(), kept[name])
    assert x.grad is None
    for model, state, need in zip(networks, states, needs, strict=True):
        assert not any(module.training for module in model.modules())
        assert [p.requires_grad for p in model.parameters()] == need
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
        assert not model._forward_hooks
    grads = [p.grad for m in networks for p in m.parameters()]
    assert [g is not None for g in grads].count(True) == 1
    assert bool((networks[1][1].weight.grad == 7).all())
    for name in ("delta", "weights", "losses"):
        assert not getattr(result, name).requires_grad


@pytest.mark.parametrize("solver", [sp.apgda, sp.attack])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("accumulate", [False, True])
def test_it_works_the_same_in_every_gradient_mode(
    networks: list[nn.Module], solver: Callable, mode: Callable, accumulate: bool
) -> None:
    def run() -> sp.AttackResult:
        x = torch.linspace(0.1, 0.9, 18, dtype=torch.float64).reshape(3, 6)
        problem = sp.Ensemble(networks, x, torch.tensor([0, 1, 2]))
        return solver(problem, sp.LpBall(1, 0.5), steps=4, accumulate=accumulate)

    plain = run()
    with mode():
        inside = run()
        enabled = torch.is_grad_enabled()
    assert enabled == (mode is torch.enable_grad)
    assert torch.equal(inside.delta, plain.delta)
    assert torch.equal(inside.weights, plain.weights)
    (inside.delta.requires_grad_() * 2).sum().backward()  # an ordinary tensor outside


# ------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("solver", [sp.apgda, sp.attack])
def test_differentiating_domain_by_domain_changes_no_result(
    problem: sp.Ensemble, solver: Callable
) -> None:
    groups = torch.rand(
        4, 5, 1, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    views = [T.random_rotate(-20, 20), T.identity, T.random_hflip(0.5)]
    image, labels = groups[:, 0], torch.tensor([0, 1, 2, 3])
    for case in (
        problem,
        sp.Universal(problem.models[0], groups, torch.arange(20).reshape(4, 5) % 4, box="clip"),
        sp.Product(problem.models[:2], views, image, labels, samples=3),
    ):
        whole, split = (
            solver(case, sp.LpBall(2, 0.3), steps=5, accumulate=flag) for flag in (False, True)
        )
        for name in ("delta", "weights", "losses"):
            torch.testing.assert_close(
                getattr(split, name), getattr(whole, name), rtol=0, atol=1e-10
            )
        assert torch.equal(split.fooled, whole.fooled)


@pytest.mark.parametrize("solver", [apgda_unchecked, attack_unchecked])
@pytest.mark.parametrize("samples", [1, 3])
def test_accumulating_asks_every_model_once_per_iterate_and_draw(
    networks: list[nn.Module], samples: int, solver: Callable
) -> None:
    models = [Counting(network) for network in networks[:2]]
    x = torch.rand(4, 1, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    views = [T.random_rotate(-5, 5)] if samples > 1 else [T.identity]
    with torch.no_grad():
        labels = networks[0](x).argmax(dim=1)
    problem = sp.Product(models, views, x, labels, samples=samples)
    result = solver(problem, sp.LpBall(2, 1e-9), steps=5, accumulate=True, batch_size=4)
    assert bool((result.num_forwards == 6 * samples).all())
    for model in models:
        # Six iterates and the verdict, which takes one draw; no gradient is taken at the last iterate.
        assert model.forwards == [4] * (6 * samples + 1)
        assert model.backwards == [4] * (5 * samples)


def test_gradients_of_domains_combine_to_that_of_the_weighted_sum(problem: sp.Ensemble) -> None:
    delta = torch.full_like(problem.x, 0.01)
    weights = torch.rand(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole, split = (
        evaluate(problem, delta, sp.cw_margin, accumulate=flag) for flag in (False, True)
    )
    torch.testing.assert_close(split.losses, whole.losses, rtol=0, atol=1e-14)
    gradient = whole.gradient(weights)
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close(split.gradient(weights), gradient, rtol=0, atol=1e-14)


def peak_of_saved_tensors(problem: AbstractProblem, accumulate: bool) -> int:
    class Held:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    alive: weakref.WeakSet = weakref.WeakSet()
    peak = 0

    def pack(tensor: Tensor) -> Held:
        nonlocal peak
        held = Held(tensor)
        alive.add(held)
        peak = max(peak, sum(h.tensor.numel() for h in alive))
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        sp.apgda(problem, sp.LpBall(2, 0.3), steps=3, accumulate=accumulate)
    return peak


def test_memory_does_not_grow_with_the_domains_when_accumulating(
    networks: list[nn.Module], generator: torch.Generator
) -> None:
    x = torch.rand(8, 6, generator=generator, dtype=torch.float64)
    y = torch.zeros(8, dtype=torch.long)
    few, many = (sp.Ensemble(networks[:1] * k, x, y) for k in (2, 10))
    assert peak_of_saved_tensors(many, accumulate=True) == peak_of_saved_tensors(few, True) > 0
    ratio = peak_of_saved_tensors(many, False) / peak_of_saved_tensors(few, False)
    assert ratio > 4


def test_large_graphs_are_accumulated_and_split_by_default(
    problem: sp.Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sp.apgda(problem, sp.LpBall(2, 0.3), steps=2)
    seen: list[int] = []

    def model(images: Tensor) -> Tensor:
        seen.append(len(images))
        return problem.models[0](images)

    watched = sp.Ensemble([model, *problem.models[1:]], problem.x, problem.labels[:, 0])
    monkeypatch.setattr("saddlepoint.solver.inspection._GRAPH_BYTES", 2000)
    result = sp.apgda(watched, sp.LpBall(2, 0.3), steps=2)
    torch.testing.assert_close(result.delta, expected.delta, rtol=0, atol=1e-10)
    assert max(seen[4:]) < 6  # in batches, after the look at entry
    assert len(seen[4:]) == 4 * math.ceil(6 / max(seen[4:]))  # three iterates and the verdict


# ------------------------------------------------------------------------------------ samples


def test_random_problems_average_the_loss_over_their_draws(networks: list[nn.Module]) -> None:
    x = torch.rand(4, 1, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    views = [T.random_rotate(-60, 60), T.random_brightness(0.4, 0.5)]
    problem = sp.Transformed(networks[0], views, x, torch.tensor([0, 1, 2, 3]), samples=4, seed=2)
    draws = [problem.logits(problem.zeros(), draw) for draw in range(8)]
    losses = torch.stack([sp.cw_margin(logits, problem.labels) for logits in draws])
    assert losses.std(dim=0).max() > 1e-3
    result = sp.apgda(problem, sp.LpBall(2, 0.0), steps=1)  # delta stays, the draws do not
    torch.testing.assert_close(result.history.losses[0], losses[:4].mean(dim=0))
    torch.testing.assert_close(result.history.losses[1], losses[4:].mean(dim=0))
    assert result.num_forwards.tolist() == [8] * 4


@pytest.mark.parametrize("solver", [sp.apgda, sp.attack])
def test_random_problems_are_judged_like_success_rates_judges_them(
    networks: list[nn.Module], solver: Callable
) -> None:
    x = torch.rand(20, 1, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    views = [T.random_rotate(-90, 90), T.random_hflip(0.5)]
    labels = torch.arange(20) % 4
    problem = sp.Transformed(networks[0], views, x, labels, samples=2, seed=2)
    result = solver(problem, sp.LpBall(2, 0.1), steps=3)
    assert torch.equal(result.fooled, sp.success_rates(problem, result.delta).fooled)
    assert torch.equal(result.fooled, result.losses < 0)
    assert result.num_forwards.tolist() == [8] * 20


# ------------------------------------------------------------------------------- entry checks


SOLVERS = [sp.apgda, sp.attack]


def linear_problem(model: Callable[[Tensor], Tensor], classes_used: int = 3) -> sp.Ensemble:
    x = torch.linspace(0.05, 0.95, 24).reshape(6, 4)
    return sp.Ensemble([model], x, torch.arange(6) % classes_used)


def good_model(images: Tensor) -> Tensor:
    return 5 * images[:, :3] - images[:, 3:]


@pytest.mark.parametrize("solver", SOLVERS)
def test_training_mode_is_refused(solver: Callable) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout()).eval()
    solver(linear_problem(model), sp.LpBall(2, 0.1), steps=1)
    model[1].train()
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        solver(linear_problem(model), sp.LpBall(2, 0.1), steps=1)
    assert model[1].training


@pytest.mark.parametrize("solver", SOLVERS)
def test_probabilities_are_noticed(solver: Callable) -> None:
    problem = linear_problem(lambda images: good_model(images).softmax(dim=1))
    with pytest.warns(UserWarning, match=r"domain 0 \(model 1\).*probabilities"):
        solver(problem, sp.LpBall(2, 0.1), steps=1)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "model",
    [
        lambda images: good_model(images) * 0 + images.detach()[:, :3],
        lambda images: good_model(images.detach()),
        lambda images: torch.ones(4, 3, requires_grad=True).to(images)[[0] * len(images)],
    ],
)
def test_gradients_that_are_all_zero_are_noticed(
    solver: Callable, model: Callable, accumulate: bool
) -> None:
    noticed = "the gradient is zero in all of the first 4 rows|lets no gradient through"
    with pytest.warns(UserWarning, match=noticed):
        result = solver(linear_problem(model), sp.LpBall(2, 0.1), steps=2, accumulate=accumulate)
    assert not result.delta.any()


@pytest.mark.parametrize("accumulate", [False, True])
def test_one_domain_without_gradient_does_not_stop_the_others(accumulate: bool) -> None:
    x, y = torch.full((2, 4), 0.5), torch.tensor([0, 1])
    problem = sp.Ensemble([lambda images: good_model(images.detach()), good_model], x, y)
    with pytest.warns(UserWarning, match=r"domain 0 \(model 1\) lets no gradient through"):
        result = sp.apgda(problem, sp.LpBall(2, 0.1), steps=2, accumulate=accumulate)
    assert bool(result.delta.abs().amax(dim=1).gt(0.01).all())


@pytest.mark.parametrize("solver", SOLVERS)
def test_labels_beyond_the_classes_are_refused(solver: Callable) -> None:
    with pytest.raises(ValueError, match="labels must be below the number of classes, 3, got 5"):
        solver(linear_problem(good_model, classes_used=6), sp.LpBall(2, 0.1))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_models_that_are_not_finite_are_refused(solver: Callable, bad: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        solver(linear_problem(lambda images: good_model(images) * bad), sp.LpBall(2, 0.1))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_models_that_break_under_perturbation_are_refused(solver: Callable, bad: float) -> None:
    x = linear_problem(good_model).x

    def fragile(images: Tensor) -> Tensor:
        nearest = (images.detach().unsqueeze(1) - x).abs().sum(dim=2).amin(dim=1, keepdim=True)
        moved = nearest > 1e-3
        return 100 * good_model(images) + torch.where(moved, bad, 0.0)

    with pytest.raises(ValueError, match="must be finite"):
        solver(linear_problem(fragile), sp.LpBall(INF, 0.01), steps=3)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "model",
    [
        lambda images: images[:, 0],
        lambda images: images.unsqueeze(-1),
        lambda images: good_model(images)[:1],
        lambda images: good_model(images).mean(dim=0),
    ],
)
def test_outputs_of_the_wrong_shape_are_refused(solver: Callable, model: Callable) -> None:
    with pytest.raises(ValueError, match=r"models must return logits \(B, C\)"):
        solver(linear_problem(model), sp.LpBall(2, 0.1))


@pytest.mark.parametrize("solver", SOLVERS)
def test_models_that_disagree_on_the_classes_are_refused(solver: Callable) -> None:
    problem = sp.Ensemble(
        [good_model, lambda images: images], torch.rand(3, 4), torch.tensor([0, 1, 2])
    )
    with pytest.raises(ValueError, match="classes"):
        solver(problem, sp.LpBall(2, 0.1))


@pytest.mark.parametrize("solver", SOLVERS)
def test_losses_that_are_averaged_are_refused(solver: Callable) -> None:
    def mean(logits: Tensor, labels: Tensor) -> Tensor:
        return sp.cw_margin(logits, labels).mean()

    with pytest.raises(ValueError, match="`loss` must return one number per row and domain"):
        solver(linear_problem(good_model), sp.LpBall(2, 0.1), loss=mean)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": -1}, "`steps` must be >= 0"),
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"start": torch.zeros(6, 3)}, "`start` must have the shape of delta"),
        ({"start": torch.full((6, 4), math.nan)}, "must be finite"),
        ({"rule": sp.Fixed((0.5, 0.5))}, "K = 1, got 2"),
    ],
)
def test_wrong_options_are_refused(solver: Callable, options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        solver(linear_problem(good_model), sp.LpBall(2, 0.1), **options)


@pytest.mark.parametrize("solver", SOLVERS)
def test_radii_must_be_as_many_as_rows(solver: Callable) -> None:
    with pytest.raises(ValueError, match=r"`ball.eps` must have one radius per row, \(6,\)"):
        solver(linear_problem(good_model), sp.LpBall(2, torch.ones(5)))


@pytest.mark.parametrize("step_size", [0.0, -1.0, math.nan])
def test_the_step_size_must_be_positive(step_size: float) -> None:
    with pytest.raises(ValueError, match="`step_size` must be positive"):
        sp.apgda(linear_problem(good_model), sp.LpBall(2, 0.1), step_size=step_size)


def test_callback_and_interruption_of_apgda(problem: sp.Ensemble) -> None:
    seen: list[sp.Progress] = []
    whole = sp.apgda(problem, sp.LpBall(2, 0.3), steps=3, batch_size=4, callback=seen.append)
    inside = [progress for progress in seen if progress.done == 0]
    assert [progress.step for progress in inside] == [1, 2, 3]
    assert all((progress.rows, progress.steps) == (6, 3) for progress in seen)
    assert (seen[-1].done, seen[-1].fooled) == (6, int(whole.fooled.all(dim=1).sum()))

    def stop(progress: sp.Progress) -> None:
        if progress.done == 4 and progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        sp.apgda(problem, sp.LpBall(2, 0.3), steps=3, batch_size=4, callback=stop)
    assert "stopped: 4 of 6 rows are done" in caught.value.__notes__[0]
    result = caught.value.result
    assert result.interrupted
    assert result.completed.tolist() == [True] * 4 + [False] * 2
    assert torch.equal(result.delta[:4], whole.delta[:4])
    two = sp.apgda(problem, sp.LpBall(2, 0.3), steps=2)
    for name in ("delta", "losses", "fooled", "num_forwards"):
        torch.testing.assert_close(getattr(result, name)[4:], getattr(two, name)[4:])
    assert result.history.weights.shape == (4, 6, 3)


def test_the_best_iterate_of_apgda_is_kept_if_wanted(problem: sp.Ensemble) -> None:
    """Steps far too long overshoot: the best iterate, by its definition, is rarely the last."""
    ball, options = sp.LpBall(2, 0.5), {"steps": 7, "step_size": 4.0}
    last = sp.apgda(problem, ball, **options)
    best = sp.apgda(problem, ball, keep="best", **options)
    assert torch.equal(best.history.losses, last.history.losses)
    assert torch.equal(best.num_forwards, last.num_forwards)
    iterates = [sp.apgda(problem, ball, **options | {"steps": steps}) for steps in range(8)]
    earlier = 0
    for b in range(len(problem)):
        # Most domains fooled, then the lowest worst loss, then the first of those that are equal.
        key = [(-int(r.fooled[b].sum()), r.losses[b].max().item()) for r in iterates]
        chosen = iterates[key.index(min(key))]
        assert torch.equal(best.delta[b], chosen.delta[b])
        assert torch.equal(best.weights[b], chosen.weights[b])
        assert torch.equal(best.losses[b], chosen.losses[b])
        assert torch.equal(best.fooled[b], chosen.fooled[b])
        earlier += key.index(min(key)) < 7
    assert earlier
    torch.testing.assert_close(best.adversarial, problem.x + best.delta)


def test_of_a_random_problem_the_best_iterate_of_apgda_is_the_last_or_the_start(
    generator: torch.Generator,
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).eval()
    x = torch.rand(12, 1, 6, 6, generator=generator)
    views = [T.random_rotate(-50, 50), T.random_crop_resize(0.5, 1.0)]
    problem = sp.Transformed(model, views, x, torch.arange(12) % 3)
    best, last = (
        sp.apgda(problem, sp.LpBall(2, 0.8), steps=6, keep=keep) for keep in ("best", "last")
    )
    moved = best.delta.flatten(1).any(dim=1)
    assert moved.sum() > 0
    assert torch.equal(best.delta[moved], last.delta[moved])


def test_what_to_keep_is_last_or_best(problem: sp.Ensemble) -> None:
    with pytest.raises(ValueError, match=r"`keep` must be 'last' or 'best', got 'first'"):
        sp.apgda(problem, sp.LpBall(2, 0.3), keep="first")  # type: ignore[arg-type]


class Mean(sp.AbstractWeightRule):
    """A running mean of weights by the losses, as a new tensor."""

    def init(self, losses: Tensor) -> Tensor:
        return torch.full_like(losses, 1 / losses.shape[1])

    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        return weights * 0.8 + 0.2 * losses.softmax(dim=1)


class MeanInPlace(Mean):
    """The same, written into the weights that are given."""

    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        return weights.mul_(0.8).add_(0.2 * losses.softmax(dim=1))


@pytest.mark.parametrize("keep", ["attack", "last", "best"])
def test_rules_that_write_into_their_weights_have_the_same_history(
    problem: sp.Ensemble, keep: Literal["attack", "last", "best"]
) -> None:
    ball = sp.LpBall(2, 0.01)
    fresh, written = (
        sp.attack(problem, ball, rule=rule, steps=4)
        if keep == "attack"
        else sp.apgda(problem, ball, rule=rule, steps=4, keep=keep)
        for rule in (Mean(), MeanInPlace())
    )
    assert not torch.equal(fresh.history.weights[0], fresh.history.weights[-1])
    torch.testing.assert_close(written.history.weights, fresh.history.weights)
    torch.testing.assert_close(written.weights, fresh.weights)
    torch.testing.assert_close(written.delta, fresh.delta)
