"""`attack(..., evaluations=)`: a budget of evaluations, divided into steps and restarts, never exceeded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import saddlepoint as sp
from saddlepoint.precision import Precisions
from saddlepoint.solver.schedule import divided
from saddlepoint.transforms import random_rotate


@pytest.fixture(scope="module")
def problem() -> sp.Ensemble:
    x, y = sp.data.sample("mnist", 4)
    return sp.Ensemble([sp.models.load("mnist-a"), sp.models.load("mnist-c")], x, y)


def same(one: sp.AttackResult, other: sp.AttackResult) -> bool:
    return torch.equal(one.delta, other.delta) and torch.equal(one.num_forwards, other.num_forwards)


@pytest.mark.parametrize("evaluations", [1, 2, 7, 49, 50, 99, 100, 101, 250, 999, 1000])
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("confirmed", [False, True])
def test_a_division_takes_what_there_is_and_no_more(
    evaluations: int, draws: int, confirmed: bool
) -> None:
    reserve = min(2, evaluations // draws - 1) if confirmed else 0
    precisions = Precisions((torch.nn.Identity(),), ("bfloat16" if confirmed else "float32",))
    if evaluations < draws * (1 + confirmed):
        with pytest.raises(ValueError, match="`evaluations` must be >= "):
            divided(evaluations, draws, precisions=precisions)
        return
    steps, restarts = divided(evaluations, draws, precisions=precisions)
    spent = restarts * (steps + 1 + reserve) * draws
    assert evaluations - restarts * draws < spent <= evaluations


def test_the_budget_of_the_default_is_one_restart(problem: sp.Ensemble) -> None:
    ball = sp.linf(0.12)
    assert same(sp.attack(problem, ball, evaluations=51), sp.attack(problem, ball))


def test_one_domain_has_two_short_restarts_on_the_soft_margin(problem: sp.Ensemble) -> None:
    ball = sp.l1(2.0)
    one = sp.Ensemble(problem.models[:1], *sp.data.sample("mnist", 8))
    options: dict[str, Any] = {"steps": 25, "restarts": 2, "loss": sp.soft_margin}
    default = sp.attack(one, ball)
    assert same(default, sp.attack(one, ball, **options))
    assert same(default, sp.attack(one, ball, evaluations=52))
    assert int(default.num_forwards.max()) == 52
    assert not same(default, sp.attack(one, ball, steps=50))
    assert default.asked is not None
    assert default.asked.restarts == 2


def test_of_one_domain_what_is_given_is_taken(problem: sp.Ensemble) -> None:
    one, ball = sp.Ensemble(problem.models[:1], *sp.data.sample("mnist", 4)), sp.linf(1e-3)
    for options, spent in (
        ({"steps": 7}, 8),
        ({"restarts": 3}, 153),
        ({"keep_going": True}, 51),
        ({"loss": sp.cw_margin}, 52),
        ({"evaluations": 24}, 24),
        ({"evaluations": 100}, 100),
    ):
        result = sp.attack(one, ball, **options)  # type: ignore[arg-type]
        assert result.num_forwards.tolist() == [spent] * 4


def test_random_transforms_of_one_domain_keep_one_restart() -> None:
    x, y = sp.data.sample("mnist", 2)
    problem = sp.Transformed(sp.models.load("mnist-a"), [random_rotate(-20, 20)], x, y, samples=2)
    assert sp.attack(problem, sp.linf(1e-3)).num_forwards.tolist() == [102, 102]


@pytest.mark.parametrize("ball", [sp.linf(0.1), sp.l2(1.5), sp.l1(8.0)], ids=["linf", "l2", "l1"])
def test_two_short_restarts_fool_more_than_a_long_one_at_no_more_evaluations(
    ball: sp.LpBall,
) -> None:
    x, y = sp.data.sample("mnist", 200)
    one = sp.Ensemble([sp.models.load("mnist-a")], x, y)
    short, long = sp.attack(one, ball), sp.attack(one, ball, steps=50, loss=sp.cw_margin)
    assert int(short.success.sum()) > int(long.success.sum())
    assert short.num_forwards.sum() < 1.02 * long.num_forwards.sum()


def test_a_budget_is_the_steps_and_restarts_that_follow_from_it(problem: sp.Ensemble) -> None:
    ball = sp.linf(0.05)
    steps, restarts = divided(110)
    assert (steps, restarts) == (54, 2)
    given = sp.attack(problem, ball, steps=steps, restarts=restarts)
    result = sp.attack(problem, ball, evaluations=110)
    assert same(result, given)
    assert int(result.num_forwards.max()) == 110  # rows that are never fooled take all of it


def test_the_budget_holds_where_successes_are_confirmed(problem: sp.Ensemble) -> None:
    for eps in (0.01, 0.1, 0.2):
        result = sp.attack(problem, sp.linf(eps), evaluations=12, precision="bfloat16")
        assert int(result.num_forwards.max()) <= 12
    assert int(sp.attack(problem, sp.linf(1e-3), evaluations=12).num_forwards.min()) == 12


def test_doubtful_successes_end_a_row_at_the_limit() -> None:
    """A network that looks fooled in bfloat16 alone would be asked twice at every iterate."""

    class Doubtful(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            score = images.flatten(1).sum(dim=1, keepdim=True) * 1e-3
            right = -1.0 if torch.is_autocast_enabled("cpu") else 1.0
            return torch.cat((score + right, -score), dim=1)

    x = torch.full((3, 1, 2, 2), 0.5)
    problem = sp.Ensemble([Doubtful().eval()], x, torch.zeros(3, dtype=torch.long))
    result = sp.attack(problem, sp.linf(0.1), evaluations=9, precision="bfloat16")
    assert not result.success.any()
    assert result.num_forwards.tolist() == [8, 8, 8]  # a ninth might have to be confirmed


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_random_transforms_take_their_draws_from_the_budget(precision: Any) -> None:
    x, y = sp.data.sample("mnist", 3)
    model = sp.models.load("mnist-a")
    problem = sp.Transformed(model, [random_rotate(-20, 20)], x, y, samples=2)
    result = sp.attack(problem, sp.linf(0.3), evaluations=20, precision=precision)
    assert 12 <= int(result.num_forwards.min()) <= int(result.num_forwards.max()) <= 20


def test_the_last_iterate_of_a_random_problem_is_offered_within_the_budget() -> None:
    x, y = sp.data.sample("mnist", 3)
    problem = sp.Transformed(sp.models.load("mnist-a"), [random_rotate(-20, 20)], x, y)
    result = sp.attack(problem, sp.linf(0.3), evaluations=20, precision="bfloat16")
    assert result.delta.flatten(1).abs().amax(dim=1).gt(0.2).all()  # not the start


@pytest.mark.parametrize(("name", "value"), [("steps", 50), ("restarts", 1), ("steps", 0)])
def test_a_budget_beside_steps_or_restarts_is_refused(
    problem: sp.Ensemble, name: str, value: int
) -> None:
    message = rf"`{name}` must be left out where `evaluations` is given, got {value}; steps and"
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=message):
        sp.attack(problem, sp.linf(0.1), evaluations=50, **options)


def test_a_budget_is_a_whole_number_from_one_on(problem: sp.Ensemble) -> None:
    with pytest.raises(ValueError, match="`evaluations` must be >= 1, got 0"):
        sp.attack(problem, sp.linf(0.1), evaluations=0)
    with pytest.raises(TypeError, match="`evaluations` must be a whole number, got float"):
        sp.attack(problem, sp.linf(0.1), evaluations=50.0)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match="`evaluations` must be a whole number, got bool True; write"
    ):
        sp.attack(problem, sp.linf(0.1), evaluations=True)
    with pytest.raises(
        ValueError, match=r"must be >= 2, .* in bfloat16 with a second look in full"
    ):
        sp.attack(problem, sp.linf(0.1), evaluations=1, precision="bfloat16")
    assert int(sp.attack(problem, sp.linf(0.1), evaluations=1).num_forwards.max()) == 1
    least = sp.attack(problem, sp.linf(0.1), evaluations=2, precision="bfloat16")
    assert int(least.num_forwards.max()) <= 2


@pytest.mark.parametrize("many", [{"evaluations": 10**10}, {"restarts": 10**9}])
def test_restarts_that_nobody_needs_take_no_memory(many: dict[str, int]) -> None:
    model, x, options = torch.nn.Linear(4, 3).eval(), torch.rand(3, 4), dict[str, Any](many)
    wrong = sp.Ensemble([model], x, model(x).argmin(dim=1))  # fooled without attack
    assert sp.attack(wrong, sp.linf(0.1), **options).num_forwards.tolist() == [1, 1, 1]
