"""Losses against values worked out by hand and formulas written out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from saddlepoint import clipped, cw_margin, dlr, neg_cross_entropy, soft_margin
from saddlepoint.losses import fooled

LOSSES = {
    "cw_margin": cw_margin,
    "neg_cross_entropy": neg_cross_entropy,
    "soft_margin": soft_margin,
    "dlr": dlr,
    "clipped": clipped(cw_margin, -1.5),
}
LOGITS = torch.tensor([[3.0, 1.0, 2.0], [0.5, 4.0, -1.0], [-2.0, 0.0, 7.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1])


def log_sum_exp(*values: float) -> float:
    return math.log(sum(math.exp(v) for v in values))


def test_cw_margin_by_hand() -> None:
    # true class minus the best other: 3 - 2, -1 - 4, 0 - 7
    assert cw_margin(LOGITS, LABELS).tolist() == [1.0, -5.0, -7.0]
    assert cw_margin(LOGITS, LABELS, targeted=True).tolist() == [-1.0, 5.0, 7.0]


def test_cw_margin_is_cut_off_at_minus_kappa_and_only_there() -> None:
    logits = torch.tensor([[0.0, 60.0, 1.0], [60.0, 0.0, 1.0], [0.0, 49.0, 1.0]])
    labels = torch.zeros(3, dtype=torch.long)
    assert cw_margin(logits, labels).tolist() == [-50.0, 59.0, -49.0]
    assert cw_margin(logits, labels, targeted=True).tolist() == [60.0, -50.0, 49.0]
    assert cw_margin(logits, labels, kappa=0.0).tolist() == [0.0, 59.0, 0.0]


def test_negative_cross_entropy_by_hand() -> None:
    expected = [
        3.0 - log_sum_exp(3, 1, 2),
        -1.0 - log_sum_exp(0.5, 4, -1),
        0.0 - log_sum_exp(-2, 0, 7),
    ]
    assert neg_cross_entropy(LOGITS, LABELS).tolist() == pytest.approx(expected, abs=1e-12)
    targeted = neg_cross_entropy(LOGITS, LABELS, targeted=True)
    assert targeted.tolist() == pytest.approx([-value for value in expected], abs=1e-12)
    plain = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(neg_cross_entropy(LOGITS, LABELS), -plain)


def test_the_soft_margin_is_the_logarithm_of_the_odds() -> None:
    expected = [3 - log_sum_exp(1, 2), -1 - log_sum_exp(0.5, 4), 0 - log_sum_exp(-2, 7)]
    assert soft_margin(LOGITS, LABELS).tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(soft_margin(LOGITS, LABELS, targeted=True), -soft_margin(LOGITS, LABELS))
    chosen = LOGITS.softmax(dim=1).gather(1, LABELS.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(soft_margin(LOGITS, LABELS), (chosen / (1 - chosen)).log())


def test_the_soft_margin_goes_the_way_of_the_cross_entropy_and_does_not_saturate() -> None:
    leaf = LOGITS.clone().requires_grad_()
    (soft,) = torch.autograd.grad(soft_margin(leaf, LABELS).sum(), leaf)
    (entropy,) = torch.autograd.grad(neg_cross_entropy(leaf, LABELS).sum(), leaf)
    torch.testing.assert_close(F.normalize(soft), F.normalize(entropy))
    sure = torch.tensor([[200.0, 1.0, 0.0]], requires_grad=True)
    (soft,) = torch.autograd.grad(soft_margin(sure, torch.tensor([0])).sum(), sure)
    (entropy,) = torch.autograd.grad(neg_cross_entropy(sure, torch.tensor([0])).sum(), sure)
    assert not entropy.any()
    assert soft[0, 0] == 1


def test_dlr_by_hand_with_two_three_and_five_classes() -> None:
    two = torch.tensor([[2.0, 5.0], [5.0, 2.0]])
    assert dlr(two, torch.tensor([0, 0])).tolist() == [-3.0, 3.0]
    assert dlr(two, torch.tensor([0, 0]), targeted=True).tolist() == [3.0, -3.0]
    # (3 - 2) / (3 - 1), (-1 - 4) / (4 + 1), (0 - 7) / (7 + 2)
    three = [0.5, -1.0, -7 / 9]
    assert dlr(LOGITS, LABELS).tolist() == pytest.approx(three, abs=1e-12)
    targeted = dlr(LOGITS, LABELS, targeted=True).tolist()
    assert targeted == pytest.approx([-value for value in three], abs=1e-12)
    five = torch.tensor([[1.0, 6.0, 4.0, 3.0, 0.0]], dtype=torch.float64)
    # sorted 6 4 3 1 0: untargeted divides by 6 - 3, targeted by 6 - (3 + 1) / 2
    assert dlr(five, torch.tensor([1])).item() == pytest.approx(2 / 3)
    assert dlr(five, torch.tensor([2])).item() == pytest.approx(-2 / 3)
    assert dlr(five, torch.tensor([4]), targeted=True).item() == pytest.approx(6 / 4)


def test_dlr_does_not_see_shift_or_scale() -> None:
    torch.testing.assert_close(dlr(7 * LOGITS + 3, LABELS), dlr(LOGITS, LABELS))


def test_dlr_of_equal_logits_is_finite() -> None:
    logits = torch.zeros(1, 4, requires_grad=True)
    value = dlr(logits, torch.tensor([1]))
    assert value.item() == 0.0


def test_clipping_cuts_the_loss_off_from_below_only() -> None:
    # The margins are 1, -5 and -7: the domain that is not fooled keeps its loss.
    loss = clipped(cw_margin, -6.0)
    assert loss(LOGITS, LABELS).tolist() == [1.0, -5.0, -6.0]
    assert loss(LOGITS, LABELS, targeted=True).tolist() == [-1.0, 5.0, 7.0]
    assert clipped(cw_margin, 0.25)(LOGITS, LABELS).tolist() == [1.0, 0.25, 0.25]


def test_a_domain_that_is_fooled_by_enough_stops_pulling() -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = clipped(cw_margin, -6.0)(logits, LABELS)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.tolist() == [[1, 0, -1], [0, -1, 1], [0, 0, 0]]


def test_the_thresholds_of_the_paper_are_of_a_margin_shifted_by_kappa() -> None:
    # Their code: loss = max(margin + kappa, 0) with kappa = 50, then a cut at 40.
    margins = torch.linspace(-80, 20, 21, dtype=torch.float64)
    logits = torch.stack([margins, torch.zeros_like(margins)], dim=1)
    shifted = (margins + 50).clamp_min(0).clamp_min(40)
    ours = clipped(cw_margin, -10.0)(logits, torch.zeros(21, dtype=torch.long))
    assert torch.equal(ours + 50, shifted)


def test_clipping_wraps_a_loss_that_knows_no_targets() -> None:
    loss = clipped(lambda logits, labels: logits.sum(dim=-1), 1.0)
    assert loss(torch.tensor([[3.0, 4.0], [-1.0, 0.5]]), torch.tensor([0, 0])).tolist() == [7, 1]


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_right(name: str, targeted: bool) -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 5, generator=g, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 5, (4, 3), generator=g)
    function = LOSSES[name]
    assert torch.autograd.gradcheck(lambda z: function(z, labels, targeted=targeted), logits)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_every_row_and_domain_has_its_own_loss(name: str, targeted: bool) -> None:
    g = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, 3, 4, 6, generator=g, dtype=torch.float64)
    labels = torch.randint(0, 6, (2, 3, 4), generator=g)
    together = LOSSES[name](logits, labels, targeted=targeted)
    assert together.shape == (2, 3, 4)
    for index in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
        i = tuple(index)
        alone = LOSSES[name](logits[i], labels[i], targeted=targeted)
        torch.testing.assert_close(alone, together[i], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", ["cw_margin", "dlr"])
def test_margins_are_negative_exactly_where_the_row_is_fooled(name: str) -> None:
    g = torch.Generator().manual_seed(2)
    logits = torch.randn(500, 5, generator=g)
    labels = torch.randint(0, 5, (500,), generator=g)
    for targeted in (False, True):
        hit = fooled(logits, labels, targeted=targeted)
        assert 0 < hit.sum() < 500
        assert torch.equal(LOSSES[name](logits, labels, targeted=targeted) < 0, hit)


def test_lowering_the_loss_lowers_the_true_class_and_raises_the_target() -> None:
    for function in LOSSES.values():
        logits = torch.tensor([[0.3, 0.0, 0.1, -0.2]], requires_grad=True)
        (away,) = torch.autograd.grad(function(logits, torch.tensor([0])).sum(), logits)
        (towards,) = torch.autograd.grad(
            function(logits, torch.tensor([1]), targeted=True).sum(), logits
        )
        assert away[0, 0] > 0
        assert towards[0, 1] < 0


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_a_wrong_answer_and_no_target(
    value: float, label: int
) -> None:
    logits = torch.tensor([[value, 5.0, 1.0], [1.0, 5.0, value]])
    labels = torch.tensor([label, label])
    assert fooled(logits, labels).tolist() == [True, True]
    assert fooled(logits, labels, targeted=True).tolist() == [False, False]


def test_the_judge_is_right_about_every_finite_answer() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [2.0, 2.0, 1.0], [2.0, 2.0, 1.0]])
    labels = torch.tensor([0, 2, 0, 1])
    assert fooled(logits, labels).tolist() == [False, True, False, True]
    assert fooled(logits, labels, targeted=True).tolist() == [True, False, True, False]
    assert fooled(logits.reshape(2, 2, 3), labels.reshape(2, 2)).tolist() == [
        [False, True],
        [False, True],
    ]


@pytest.mark.parametrize("name", LOSSES)
def test_wrong_shapes_are_refused(name: str) -> None:
    def call(logits: Tensor, labels: Tensor) -> None:
        LOSSES[name](logits, labels)

    with pytest.raises(ValueError, match="`labels` must have the shape"):
        call(torch.zeros(3, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="`labels` must have the shape"):
        call(torch.zeros(3, 2, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="at least 2 classes"):
        call(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))
