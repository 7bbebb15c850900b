"""Weight rules: one exact step each, their limits, and the symmetries all of them share."""

from __future__ import annotations

import math

import cvxpy
import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from saddlepoint import Average, Entropic, Fixed, Grouped, MinMax, WorstCase
from saddlepoint.rules import AbstractWeightRule

RULES = {
    "minmax": MinMax(step_size=0.3, gamma=0.7),
    "minmax without pull": MinMax(step_size=0.1, gamma=0.0),
    "minmax at the maximiser": MinMax(step_size=1.0, gamma=4.0),
    "average": Average(),
    "worst case": WorstCase(),
    "entropic": Entropic(step_size=0.5),
    "grouped": Grouped(MinMax(step_size=0.3), (0, 1, 1, 0)),
}


def losses_of(seed: int, rows: int = 7, domains: int = 4) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, domains, generator=g, dtype=torch.float64)


def run(rule: AbstractWeightRule, series: list[Tensor]) -> Tensor:
    weights = rule.init(series[0])
    for losses in series[1:]:
        weights = rule.update(weights, losses)
    return weights


@pytest.mark.parametrize("name", RULES)
def test_weights_stay_on_the_simplex_row_by_row(name: str) -> None:
    series = [losses_of(seed) * 10.0**seed for seed in range(6)]
    weights = run(RULES[name], series)
    assert weights.shape == (7, 4)
    assert weights.dtype == torch.float64
    assert bool((weights >= 0).all())
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(7).double(), rtol=1e-13, atol=0)
    for b in range(7):
        alone = run(RULES[name], [losses[b : b + 1] for losses in series])
        torch.testing.assert_close(alone[0], weights[b], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", RULES)
def test_permuting_domains_permutes_weights(name: str) -> None:
    order = torch.tensor([2, 0, 3, 1])
    series = [losses_of(seed) for seed in range(4)]
    moved = run(RULES[name], [losses[:, order] for losses in series])
    torch.testing.assert_close(moved, run(RULES[name], series)[:, order], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", RULES)
def test_equal_losses_keep_equal_weights(name: str) -> None:
    series = [losses_of(seed)[:, :1].expand(-1, 4) for seed in range(5)]
    expected = torch.full((7, 4), 0.25, dtype=torch.float64)
    torch.testing.assert_close(run(RULES[name], series), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", RULES)
def test_one_domain_has_all_the_weight(name: str) -> None:
    series = [losses_of(seed, domains=1) for seed in range(3)]
    rule = Grouped(MinMax(), (0,)) if name == "grouped" else RULES[name]
    assert torch.equal(run(rule, series), torch.ones(7, 1).double())


@pytest.mark.parametrize("name", RULES)
def test_rules_do_not_modify_what_they_are_given(name: str) -> None:
    losses, weights = losses_of(0), torch.full((7, 4), 0.25).double()
    before = losses.clone(), weights.clone()
    RULES[name].init(losses)
    RULES[name].update(weights, losses)
    assert torch.equal(losses, before[0])
    assert torch.equal(weights, before[1])


def test_minmax_step_by_hand() -> None:
    rule = MinMax(step_size=0.1, gamma=2.0)
    start = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    losses = torch.tensor([[1.0, 4.0, -1.0]], dtype=torch.float64)
    # b = w + 0.1 (F - 2 (w - 1/3)) = (0.5 + 0.1 - 1/30, 0.3 + 0.4 + 0.02/3, 0.2 - 0.1 + 0.08/3);
    # it sums to 1.4, and all stay positive after taking 0.4/3 from each but the last, which is 0.126...
    b = torch.tensor([0.5 + 0.1 - 1 / 30, 0.7 + 0.02 / 3, 0.1 + 0.08 / 3]).double()
    mu = (b[:2].sum() - 1) / 2
    assert b[2] < mu
    expected = torch.stack([b[0] - mu, b[1] - mu, torch.tensor(0.0).double()])[None]
    torch.testing.assert_close(rule.update(start, losses), expected)
    assert rule.init(losses).tolist() == [[1 / 3] * 3]


def test_minmax_agrees_with_the_plain_loop() -> None:
    rule = MinMax(step_size=0.05, gamma=1.5)
    weights, plain = rule.init(losses_of(0)), [torch.full((4,), 0.25).double()] * 7
    for seed in range(8):
        losses = losses_of(seed)
        weights = rule.update(weights, losses)
        plain = [
            oracles.minmax_update(w, f, step_size=0.05, gamma=1.5)
            for w, f in zip(plain, losses, strict=True)
        ]
        torch.testing.assert_close(weights, torch.stack(plain), rtol=1e-12, atol=1e-13)


def test_more_loss_means_more_weight() -> None:
    losses = torch.tensor([[0.1, 0.3, 0.2, -0.1]])
    for name, rule in RULES.items():
        weights = rule.update(rule.init(losses), losses)[0]
        if name != "average":
            assert weights[1] == weights.max()
            assert weights[1] > weights[3], name


@pytest.mark.parametrize("gamma", [math.inf, 1e12])
@pytest.mark.parametrize("step_size", [0.02, 5.0])
def test_an_infinite_pull_is_the_average(gamma: float, step_size: float) -> None:
    series = [losses_of(seed) for seed in range(4)]
    weights = run(MinMax(step_size=step_size, gamma=gamma), series)
    torch.testing.assert_close(weights, run(Average(), series), rtol=0, atol=1e-10)


@pytest.mark.parametrize("excess", [1.0, 1.5, 40.0])
def test_steps_beyond_one_over_gamma_land_on_the_exact_maximiser(excess: float) -> None:
    gamma = 3.0
    losses = losses_of(3)
    rule = MinMax(step_size=excess / gamma, gamma=gamma)
    start = torch.softmax(losses_of(4), dim=1)
    weights = rule.update(start, losses)
    torch.testing.assert_close(rule.update(weights, losses), weights)
    for b in range(7):
        w = cvxpy.Variable(4)
        value = losses[b].numpy() @ w - gamma / 2 * cvxpy.sum_squares(w - 0.25)
        problem = cvxpy.Problem(cvxpy.Maximize(value), [w >= 0, cvxpy.sum(w) == 1])
        problem.solve(solver=cvxpy.CLARABEL)
        np.testing.assert_allclose(weights[b].numpy(), w.value, atol=1e-5)


def test_steps_below_one_over_gamma_converge_to_the_maximiser() -> None:
    losses, rule = losses_of(5), MinMax(step_size=0.1, gamma=2.0)
    weights = run(rule, [losses] * 300)
    expected = MinMax(step_size=1.0, gamma=2.0).update(weights, losses)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)


def test_average_and_fixed_never_move() -> None:
    losses = losses_of(6)
    assert torch.equal(run(Average(), [losses] * 3), torch.full((7, 4), 0.25).double())
    fixed = run(Fixed((0.2, 0.1, 0.4, 0.3)), [losses, losses_of(7)])
    torch.testing.assert_close(fixed, torch.tensor([[0.2, 0.1, 0.4, 0.3]] * 7).double())
    halves = Fixed.equal([False, False, True, True]).init(losses.float())
    assert halves.dtype == torch.float32
    assert halves.tolist() == [[0.0, 0.0, 0.5, 0.5]] * 7


def test_worst_case_is_one_hot_and_ties_share() -> None:
    losses = torch.tensor([[1.0, 3.0, 2.0], [2.0, -1.0, 2.0], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [1 / 3] * 3])
    for rule_weights in (WorstCase().init(losses), WorstCase().update(expected.flip(1), losses)):
        torch.testing.assert_close(rule_weights, expected)


def test_entropic_step_by_hand() -> None:
    start = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    losses = torch.tensor([[0.0, math.log(2) / 0.5, math.log(3) / 0.5]], dtype=torch.float64)
    # 0.5 * 1, 0.25 * 2, 0.25 * 3 -> divided by 1.75
    expected = torch.tensor([[0.5, 0.5, 0.75]], dtype=torch.float64) / 1.75
    torch.testing.assert_close(Entropic(step_size=0.5).update(start, losses), expected)


def test_entropic_weights_survive_huge_losses_and_come_back() -> None:
    rule = Entropic(step_size=1.0)
    weights = rule.update(torch.tensor([[0.5, 0.5]]), torch.tensor([[1e6, 0.0]]))
    assert weights.tolist() == [[1.0, 0.0]]
    weights = rule.update(weights, torch.tensor([[0.0, 1e6]]))
    assert weights.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("rule", [MinMax, Entropic])
@pytest.mark.parametrize("step_size", [0.0, -1.0, math.nan, math.inf])
def test_step_sizes_must_be_positive_and_finite(rule: type, step_size: float) -> None:
    with pytest.raises(ValueError, match="`step_size` must be positive"):
        rule(step_size=step_size)


@pytest.mark.parametrize("gamma", [-1.0, math.nan])
def test_gamma_must_not_be_negative(gamma: float) -> None:
    with pytest.raises(ValueError, match="`gamma` must be >= 0"):
        MinMax(gamma=gamma)


@pytest.mark.parametrize(
    "weights",
    [
        (),
        (0.0, 0.0),
        (-1.0, 2.0),
        (math.nan, 1.0),
        (math.inf, 1.0),
        (0.2, 0.9),
        (1, 1),
        (0.3, 0.3, 0.3),
    ],
)
def test_fixed_weights_are_on_the_simplex_or_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"`weights` must be >= 0 and sum to one.*divide them by"):
        Fixed(weights)


def test_digits_that_printing_lost_are_forgiven_and_made_up_for() -> None:
    weights = Fixed((0.333, 0.333, 0.333)).init(torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3, dtype=torch.float64))


def test_equal_weights_of_some_domains() -> None:
    assert Fixed.equal((1, 0, 1, 1)).weights == (1 / 3, 0, 1 / 3, 1 / 3)
    assert Fixed.equal((0, 0, 1, 1)).weights == (0, 0, 0.5, 0.5)
    for chosen in ((0, 0), (), (1, 2), (0.5, 0.5)):
        with pytest.raises(ValueError, match="`chosen` must be a 1 or 0 for every domain"):
            Fixed.equal(chosen)


def test_fixed_weights_must_be_as_many_as_domains() -> None:
    with pytest.raises(ValueError, match="K = 4, got 3"):
        Fixed.equal((1, 1, 1)).init(losses_of(0))


@pytest.mark.parametrize("domains", [1, 2, 5, 10])
def test_the_default_step_of_minmax_shrinks_with_the_number_of_domains(domains: int) -> None:
    losses = torch.rand(7, domains, generator=torch.Generator().manual_seed(domains)) * 4 - 2
    rule, explicit = MinMax(), MinMax(step_size=0.4 / domains, gamma=0.3)
    weights = rule.init(losses)
    assert torch.equal(rule.update(weights, losses), explicit.update(weights, losses))
    assert rule.beta(domains) == explicit.beta(domains) == 0.4 / domains


def test_grouped_weights_are_the_inner_rule_on_the_means_of_the_groups() -> None:
    """The objective is that of the groups: sum_k w_k F_k = sum_g w_g mean F, and so are all weights."""
    groups = (2, 0, 1, 0, 2, 2)
    inner = MinMax(step_size=0.3, gamma=0.7)
    rule = Grouped(inner, groups)
    generator = torch.Generator().manual_seed(0)
    series = [torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(5)]

    def means(losses: Tensor) -> Tensor:
        return torch.stack(
            [losses[:, [k for k in range(6) if groups[k] == g]].mean(dim=1) for g in range(3)],
            dim=1,
        )

    weights, expected = rule.init(series[0]), inner.init(means(series[0]))
    for losses in series[1:]:
        weights, expected = rule.update(weights, losses), inner.update(expected, means(losses))
        for k, group in enumerate(groups):
            torch.testing.assert_close(weights[:, k], expected[:, group] / groups.count(group))
        torch.testing.assert_close((weights * losses).sum(1), (expected * means(losses)).sum(1))
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(4).double())
    single = Grouped(inner, range(6))
    start = single.init(series[0])
    torch.testing.assert_close(single.update(start, series[1]), inner.update(start, series[1]))


@pytest.mark.parametrize("groups", [(), (0, 2), (1, 2)])
def test_groups_are_numbered_without_gaps(groups: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`groups` must be the number of a group"):
        Grouped(MinMax(), groups)


def test_groups_are_those_of_the_domains() -> None:
    with pytest.raises(ValueError, match="`groups` must have one entry per domain, K = 3, got 2"):
        Grouped(MinMax(), (0, 1)).init(torch.zeros(1, 3))


def test_the_weight_of_one_domain_is_one() -> None:
    losses = torch.randn(5, 1)
    for weights in (torch.ones(5, 1), torch.ones(1, 1), torch.full((5, 1), 2.0)):
        assert torch.equal(MinMax().update(weights, losses), torch.ones(5, 1))
