"""Success rates counted by hand."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from saddlepoint import (
    Ensemble,
    LpBall,
    SuccessRates,
    Transformed,
    Universal,
    apgda,
    attack,
    success_rates,
)
from saddlepoint import transforms as T
from saddlepoint.evaluation import wilson

#                       all    A     B      C
FOOLED = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
CORRECT = torch.tensor([[True, True, True], [True, True, True], [False, True, True]])


def test_rates_of_a_three_by_three_table_by_hand() -> None:
    rates = SuccessRates(FOOLED, CORRECT)
    assert rates.count == 3
    assert rates.all == pytest.approx(1 / 3)
    assert rates.mean == pytest.approx(6 / 9)
    assert rates.per_domain == pytest.approx((1, 2 / 3, 1 / 3))
    assert rates.clean_accuracy == pytest.approx((2 / 3, 1, 1))
    assert rates.among_correct == pytest.approx(1 / 2)  # the first of the first two rows
    assert rates.interval(0.9) == wilson(1, 3, 0.9)
    assert rates.intervals() == (wilson(3, 3), wilson(2, 3), wilson(1, 3))


def test_no_row_right_everywhere_leaves_no_rate() -> None:
    rates = SuccessRates(FOOLED, torch.zeros(3, 3, dtype=torch.bool))
    assert math.isnan(rates.among_correct)


@pytest.mark.parametrize("seed", range(5))
def test_fooling_all_is_never_easier_than_fooling_one(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    fooled = torch.rand(50, 4, generator=g) < 0.7
    rates = SuccessRates(fooled, fooled)
    assert rates.all <= min(rates.per_domain) <= rates.mean <= max(rates.per_domain)
    assert rates.mean == pytest.approx(sum(rates.per_domain) / 4)


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (10, 10), (3, 10), (90, 100), (1, 1)])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_wilson_intervals_agree_with_scipy(hits: int, count: int, level: float) -> None:
    expected = binomtest(hits, count).proportion_ci(level, method="wilson")
    assert wilson(hits, count, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_wilson_by_hand() -> None:
    # n = 4, x = 2, z = 1.959964: centre 1/2, half = z sqrt(1/16 + z^2/64) / (1 + z^2/4)
    z = 1.959963984540054
    half = z * math.sqrt(1 / 16 + z * z / 64) / (1 + z * z / 4)
    assert wilson(2, 4) == pytest.approx((0.5 - half, 0.5 + half))
    assert wilson(0, 0) == (0.0, 1.0)
    for count in range(1, 40):  # no rounding where nothing or everything was counted
        assert (wilson(0, count)[0], wilson(count, count)[1]) == (0.0, 1.0)
    with pytest.raises(ValueError, match="`level` must be in"):
        wilson(1, 2, 1.0)


def first_three(images: Tensor) -> Tensor:
    return images.flatten(1)[:, :3]


def last_three(images: Tensor) -> Tensor:
    return images.flatten(1)[:, 1:4]


X = torch.tensor([[0.9, 0.1, 0.2, 0.0], [0.2, 0.6, 0.5, 0.1], [0.1, 0.2, 0.3, 0.8]])
Y = torch.tensor([0, 1, 2])
#  first_three says 0 1 2 (all right); last_three says 1 0 2 (right in row 2 only)
PROBLEM = Ensemble([first_three, last_three], X, Y)
# row 0 becomes 0.4 0.5 0.2 0: fooled (says 1), and last says 0, right; row 1 unchanged;
# row 2 becomes 0.4 0.2 0.3 0.1: first says 0, fooled; last says 1, fooled.
DELTA = torch.tensor([[-0.5, 0.4, 0.0, 0.0], [0.0] * 4, [0.3, 0.0, 0.0, -0.7]])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_perturbations_are_judged_afresh_and_every_row_counts_once(batch_size: int) -> None:
    rates = success_rates(PROBLEM, DELTA, batch_size=batch_size)
    assert rates.fooled.tolist() == [[True, False], [False, True], [True, True]]
    assert rates.correct.tolist() == [[True, False], [True, False], [True, True]]
    assert rates.all == pytest.approx(1 / 3)
    assert rates.mean == pytest.approx(4 / 6)
    assert rates.clean_accuracy == pytest.approx((1, 1 / 3))
    assert rates.among_correct == 1.0


def test_targeted_success_is_reaching_the_class() -> None:
    problem = Ensemble([first_three, last_three], X, torch.tensor([1, 1, 0]))
    rates = success_rates(problem, DELTA, targeted=True)
    # predictions at delta: (1, 0), (1, 0), (0, 1); before: (0, 1), (1, 0), (2, 2)
    assert rates.fooled.tolist() == [[True, False], [True, False], [True, False]]
    assert rates.correct.tolist() == [[True, False], [False, True], [True, True]]


def test_attacks_on_the_models_own_answers_are_counted_against_the_truth() -> None:
    problem = Ensemble([first_three, last_three], X, Y, labels="predicted")
    assert problem.labels.tolist() == [[0, 1], [1, 0], [2, 2]]
    rates = success_rates(problem, DELTA)
    # The same table as for true labels: row 0 was wrong in the second model and is right now.
    assert rates.fooled.tolist() == [[True, False], [False, True], [True, True]]
    assert rates.correct.tolist() == [[True, False], [True, False], [True, True]]
    assert rates.clean_accuracy == pytest.approx((1, 1 / 3))


def test_the_solvers_judge_the_models_own_answers() -> None:
    problem = Ensemble([first_three, last_three], X, Y, labels="predicted")
    for solve in (attack, apgda):
        result = solve(problem, LpBall(math.inf, 0.6), steps=20)
        said = problem.logits(result.delta).argmax(dim=-1)
        assert torch.equal(result.fooled, said != problem.labels)
        assert torch.equal(success_rates(problem, result.delta).fooled, said != problem.truth)
    assert not torch.equal(said != problem.labels, said != problem.truth)


def test_a_target_cannot_be_what_the_models_answer_anyway() -> None:
    problem = Ensemble([first_three, last_three], X, Y, labels="predicted")
    with pytest.raises(ValueError, match="give the targets as `y`"):
        success_rates(problem, DELTA, targeted=True)
    for solve in (attack, apgda):
        with pytest.raises(ValueError, match="give the targets as `y`"):
            solve(problem, LpBall(math.inf, 0.1), targeted=True)


def test_groups_are_counted_image_by_image() -> None:
    problem = Universal(first_three, X.unsqueeze(0), Y.unsqueeze(0), box="clip")
    rates = success_rates(problem, torch.tensor([[0.0, 0.45, 0.0, 0.0]]))
    # 0.9 0.55 | 0.2 1 | 0.1 0.65 0.3: only the third changes its class
    assert rates.fooled.tolist() == [[False, False, True]]


def test_random_transforms_are_judged_on_draws_no_attack_has_seen() -> None:
    seen: list[Tensor] = []

    def model(images: Tensor) -> Tensor:
        seen.append(images.detach().clone())
        return images.flatten(1)[:, :3]

    x = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    problem = Transformed(model, [T.random_rotate(-40, 40)], x, torch.zeros(4, dtype=torch.long))
    zero = problem.zeros()
    for stream in range(200):
        problem.logits(zero, stream)
    attacked = torch.stack(seen)
    seen.clear()
    first = success_rates(problem, zero)
    for judged in seen[-2:]:  # after the look at the first rows: clean and perturbed
        assert bool((attacked - judged).abs().flatten(2).amax(dim=2).gt(1e-6).all())
    again = success_rates(problem, zero, batch_size=3)
    assert torch.equal(first.fooled, again.fooled)


def test_nothing_is_recorded_for_autograd() -> None:
    weight = torch.ones(3, requires_grad=True)
    problem = Ensemble([lambda images: first_three(images) * weight], X, Y)
    success_rates(problem, DELTA)
    assert weight.grad is None


def test_wrong_tables_and_deltas_are_refused() -> None:
    with pytest.raises(ValueError, match="`fooled` must be a boolean table"):
        SuccessRates(FOOLED.float(), CORRECT)
    with pytest.raises(ValueError, match="`correct` must be a boolean table"):
        SuccessRates(FOOLED, CORRECT[0])
    with pytest.raises(ValueError, match="with B >= 1"):
        SuccessRates(FOOLED[:0], CORRECT[:0])
    with pytest.raises(ValueError, match="one shape"):
        SuccessRates(FOOLED, CORRECT[:2])
    with pytest.raises(ValueError, match="`delta` must have shape"):
        success_rates(PROBLEM, DELTA[:2])


@pytest.mark.parametrize("value", [0.2, -1.0, math.nan])
def test_perturbations_that_leave_the_box_are_refused(value: float) -> None:
    delta = DELTA.clone()
    delta[0, 0] = value  # the pixel is 0.9
    with pytest.raises(ValueError, match="`delta` must keep images in"):
        success_rates(PROBLEM, delta)


def test_a_model_in_training_mode_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    problem = Ensemble([model], torch.rand(3, 2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"models\[0\].*training mode.*model\.eval\(\)"):
        success_rates(problem, problem.zeros())


class TestRatesAreRefused:
    """A count over answers that mean nothing is no rate."""

    X, Y, ZERO = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.zeros(6, 3)

    def test_logits_that_are_not_numbers_without_perturbation(self) -> None:
        for row in (0, 5):  # among the first rows, and beyond
            bad = self.X[row]
            problem = Ensemble(
                [lambda v, bad=bad: v / (v != bad).any(dim=1, keepdim=True)], self.X, self.Y
            )
            with pytest.raises(ValueError, match=rf"finite, got NaN or inf in row {row}, domain 0"):
                success_rates(problem, self.ZERO, batch_size=2)

    def test_labels_beyond_the_classes(self) -> None:
        problem = Ensemble([lambda v: v], self.X, self.Y + 2)
        with pytest.raises(
            ValueError, match="labels must be below the number of classes, 3, got 4"
        ):
            success_rates(problem, self.ZERO)

    def test_chance(self) -> None:
        problem = Ensemble([lambda v: v + torch.rand_like(v)], self.X, self.Y)
        with pytest.raises(ValueError, match="asked twice"):
            success_rates(problem, self.ZERO)

    def test_no_rows_at_a_time(self) -> None:
        with pytest.raises(ValueError, match="`batch_size` must be >= 1, got 0"):
            success_rates(Ensemble([lambda v: v], self.X, self.Y), self.ZERO, batch_size=0)

    def test_arrays_are_taken(self) -> None:
        problem = Ensemble([lambda v: v], self.X, self.Y)
        rates = success_rates(problem, self.ZERO.double().numpy())
        assert torch.equal(rates.fooled, success_rates(problem, self.ZERO).fooled)
