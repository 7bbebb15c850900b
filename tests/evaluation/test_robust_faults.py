"""Robust accuracy of models as they come: the right number or an error, never a wrong number in silence."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import saddlepoint as sp
from saddlepoint.evaluation import AttackFailedError, OurAttack, Target, robust_domains
from stand_ins import Memory

EPS = 0.1
THREAT = {"linf": sp.LpBall(math.inf, EPS)}
ONE = {math.inf: [OurAttack(steps=50, restarts=2)]}
UNION = 9 / 40  # what suite quick leaves of network A on the first 40 sample images at linf 0.1


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return sp.models.load("mnist-a")


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    return sp.data.sample("mnist", limit=40)


def normalises_in_place(net: nn.Module) -> Callable[[Tensor], Tensor]:
    def model(v: Tensor) -> Tensor:
        v.sub_(0.1307).div_(0.3081)
        return net(v * 0.3081 + 0.1307)

    return model


def of_type(dtype: torch.dtype) -> Callable[[nn.Module], Callable[[Tensor], Tensor]]:
    return lambda net: lambda v: net(v).to(dtype)


def in_autocast(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """Gives float32 logits of layers that were computed in bfloat16."""

    def model(v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(v)

    return model


class OneBatchSize(nn.Module):
    """Takes as many images at a time as there are, and no other number."""

    def __init__(self, net: nn.Module, count: int) -> None:
        super().__init__()
        self.net, self.count = net, count
        self.eval()

    def forward(self, v: Tensor) -> Tensor:
        if len(v) != self.count:
            raise RuntimeError(f"expected {self.count} images, got {len(v)}")
        return self.net(v)


@pytest.fixture(scope="module")
def union(net: nn.Module, images: tuple[Tensor, Tensor]) -> float:
    """What one attack leaves: little more than the suite."""
    union = sp.robust_accuracy(net, *images, THREAT, ONE).union
    assert UNION <= union <= UNION + 0.1
    return union


class TestTheNumberIsRight:
    def test_of_the_network_itself(self, net, images) -> None:
        assert sp.robust_accuracy(net, *images, THREAT).union == UNION

    @pytest.mark.parametrize(
        "spoil",
        [normalises_in_place, of_type(torch.float64), of_type(torch.float16)],
        ids=["normalises in place", "double logits", "half logits"],
    )
    def test_whatever_the_model_does_to_its_images_and_logits(
        self, spoil, net, images, union
    ) -> None:
        x, y = images
        before = x.clone()
        result = sp.robust_accuracy(spoil(net), x, y, THREAT, ONE)
        assert result.union == union
        assert result.notes == ()
        assert torch.equal(x, before)

    def test_of_a_model_that_halves_its_images_in_place(self, net, images) -> None:
        result = sp.robust_accuracy(lambda v: net(v.mul_(0.5)), *images, THREAT, ONE)
        assert (
            result.union == sp.robust_accuracy(lambda v: net(0.5 * v), *images, THREAT, ONE).union
        )
        assert result.union == pytest.approx(10 / 40, abs=0.03)

    def test_of_a_model_that_casts_by_itself(self, net, images, union) -> None:
        # bfloat16 has three digits: another network, whose number may be a few images off.
        result = sp.robust_accuracy(in_autocast(net), *images, THREAT, ONE)
        assert abs(result.union - union) <= 2 / 40
        assert result.notes == ()

    @pytest.mark.parametrize(
        "around",
        [
            torch.no_grad,
            torch.inference_mode,
            lambda: torch.autocast("cpu", dtype=torch.bfloat16),
            lambda: torch.autocast("cpu", dtype=torch.float16),
        ],
        ids=["no_grad", "inference_mode", "bfloat16", "float16"],
    )
    def test_whatever_mode_the_caller_is_in(self, around, net, images, union) -> None:
        with around():
            x, y = (part.clone() for part in images)
            result = sp.robust_accuracy(net, x, y, THREAT, ONE)
        assert result.union == union
        assert result.notes == ()

    def test_of_images_in_double_precision(self, net, images, union) -> None:
        x, y = images
        assert sp.robust_accuracy(net, x.double(), y, THREAT, ONE).union == union
        assert (
            sp.robust_accuracy(copy.deepcopy(net).double(), x.double(), y, THREAT, ONE).union
            == union
        )

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
    def test_of_a_network_in_another_precision_than_the_images(
        self, dtype, net, images, union
    ) -> None:
        other = copy.deepcopy(net).to(dtype)
        assert sp.robust_accuracy(other, *images, THREAT, ONE).union == union

    def test_from_arrays(self, net, images, union) -> None:
        x, y = (part.numpy() for part in images)
        assert sp.robust_accuracy(net, x, y, THREAT, ONE).union == union
        assert sp.robust_accuracy(net, x, y.astype(np.int32), THREAT, ONE).union == union

    def test_from_a_loader_in_place_of_images_and_labels(self, net, images, union) -> None:
        loader = DataLoader(TensorDataset(*images), batch_size=16)
        result = sp.robust_accuracy(net, loader, threats=THREAT, suite=ONE)
        assert (result.count, result.union) == (40, union)
        arrays = [(part.numpy(), labels.numpy()) for part, labels in loader]
        assert sp.robust_accuracy(net, arrays, threats=THREAT, suite=ONE).union == union

    @pytest.mark.parametrize(
        ("x", "y", "message"),
        [
            ([], None, "`x` must"),
            ([1, 2], None, "`x` must"),
            (torch.rand(2, 1, 28, 28), None, "`y` must"),
            (iter([(torch.rand(2, 1, 28, 28), torch.zeros(2).long())]), THREAT, "`y` must"),
        ],
        ids=["no batch", "no pairs", "no labels", "threats in the place of labels"],
    )
    def test_or_an_error_that_says_what_is_missing(self, x, y, message, net) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            sp.robust_accuracy(net, x, y, THREAT)

    def test_and_the_model_is_left_as_it_was(self, net, images) -> None:
        model = nn.Sequential(nn.BatchNorm2d(1), copy.deepcopy(net)).eval()
        model[0].running_var.fill_(0.5)
        before = copy.deepcopy(model.state_dict())
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        sp.robust_accuracy(model, *(part[:6] for part in images), THREAT)
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert not any(module.training for module in model.modules())
        assert all(p.grad is None for p in model.parameters())
        assert {name: p.requires_grad for name, p in model.named_parameters()} == flags


class TestWhatFailedIsNotRobust:
    def test_a_model_of_one_batch_size_is_an_error(self, net, images) -> None:
        model = OneBatchSize(net, 40)
        with pytest.raises(
            AttackFailedError, match=r"linf attack-ce failed on 40 images"
        ) as caught:
            sp.robust_accuracy(model, *images, THREAT)
        assert "expected 40 images" in str(caught.value)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert caught.value.failure.images == 40

    def test_or_a_bound_that_says_so_wherever_it_is_shown(self, net, images) -> None:
        result = sp.robust_accuracy(OneBatchSize(net, 40), *images, THREAT, on_failure="note")
        assert result.union == 1.0
        assert repr(result) == (
            "RobustAccuracy(40 images: clean 100.0 %, linf at most 100.0 %, union at most 100.0 %: "
            "linf attack-ce failed on 40 images, linf attack failed on 40 images, "
            "linf search failed on 40 images)"
        )
        assert result.at_most == {"union", "robust.linf"}
        assert [failure.attack for failure in result.failures] == ["attack-ce", "attack", "search"]

    def test_finished_batches_are_kept_and_not_computed_again(self, net, images) -> None:
        def fails_late(target: Target) -> Tensor:
            seen.append(target.rows.tolist())
            if broken and 25 in target.rows:
                raise OSError("late")
            return target.x

        class Late(OurAttack):
            run = staticmethod(fails_late)

        seen: list[list[int]] = []
        broken, ledger = True, Memory()
        options = {"suite": {math.inf: [Late("late")]}, "batch_size": 10, "ledger": ledger}
        with pytest.raises(AttackFailedError, match="linf late failed on 20 images") as caught:
            sp.robust_accuracy(net, *images, THREAT, **options)
        assert isinstance(caught.value.__cause__, OSError)
        assert len(ledger) == 2
        broken = False
        seen.clear()
        sp.robust_accuracy(net, *images, THREAT, **options)
        assert [rows[0] for rows in seen] == [20, 30]

    def test_of_one_domain_and_of_all_at_once(self, net, images) -> None:
        x, y = (part[:6] for part in images)
        problem = sp.Ensemble([net, OneBatchSize(net, 6)], x, y, names=["A", "B"])
        options = {"steps": 3, "searches": 1}
        with pytest.raises(AttackFailedError, match="B linf attack-ce failed on 6 images"):
            robust_domains(problem, THREAT, **options)
        result = robust_domains(problem, THREAT, on_failure="note", **options)
        assert {(f.domain, f.attack) for f in result.failures} == {
            ("B", "attack-ce"),
            ("B", "attack"),
            ("B", "search"),
            ("", "transfer"),
            ("", "min-max"),
        }
        assert result.at_most == {"union", "robust.linf", "joint.linf", "eps_min.linf"}
        assert result.per_domain["A"].at_most == frozenset()
        assert "linf fools all at once at least " in repr(result)
        assert "union at most " in repr(result)
        assert "B linf attack failed on 6 images" in repr(result)

    def test_a_wrong_word_is_refused(self, net, images) -> None:
        with pytest.raises(ValueError, match='`on_failure` must be "raise" or "note"'):
            sp.robust_accuracy(net, *images, THREAT, on_failure="ignore")  # type: ignore[arg-type]


class TestWhatIsNoNumber:
    def test_logits_of_clean_images_are_an_error_that_names_the_first(self, net, images) -> None:
        x, y = images
        marks = x.flatten(1).sum(dim=1)

        def model(v: Tensor) -> Tensor:
            bad = torch.isclose(v.flatten(1).sum(dim=1)[:, None], marks[[7, 30]]).any(dim=1)
            return net(v).masked_fill(bad[:, None], math.nan)

        with pytest.raises(ValueError, match=r"2 of 40 images.*first.* 7"):
            sp.robust_accuracy(model, x, y, THREAT)

    def test_logits_under_attack_are_wrong_answers(self, net, images) -> None:
        x, y = (part[:8] for part in images)

        def model(v: Tensor) -> Tensor:
            """Right, and NaN as soon as the first pixel, 0 in every image, is above a half of the radius."""
            return net(v).masked_fill(v[:, 0, 0, 0, None] > EPS / 2, math.nan)

        class Corner(OurAttack):
            def run(self, target: Target) -> Tensor:
                found = target.x.clone()
                found[:, 0, 0, 0] += EPS
                return found

        result = sp.robust_accuracy(model, x, y, THREAT, {math.inf: [Corner("corner")]})
        assert (result.clean, result.union) == (1.0, 0.0)

    def test_gradients_are_an_error(self, net, images) -> None:
        """The root of a square is the number itself on [0, 1], and its gradient at 0 is no number."""
        with pytest.raises(ValueError, match="gradients must be finite"):
            sp.robust_accuracy(lambda v: net((v * v).sqrt()), *images, THREAT)

    def test_gradients_of_some_images_are_an_error_too(self, net, images) -> None:
        def model(v: Tensor) -> Tensor:
            late = (
                torch.isclose(v.detach(), images[0][20]).flatten(1).all(dim=1)[:, None, None, None]
            )
            safe = torch.where(late, v, 1.0)
            return net(torch.where(late, (safe * safe).sqrt(), v))

        with pytest.raises(AttackFailedError, match=r"gradients must be finite.* row 20"):
            sp.robust_accuracy(model, *images, THREAT)


class TestWhatChanges:
    @pytest.mark.parametrize("kind", ["noise", "dropout"])
    def test_a_model_that_answers_at_random_is_refused(self, kind, net, images) -> None:
        def model(v: Tensor) -> Tensor:
            logits: Tensor = net(v)
            if kind == "noise":
                return logits + 3 * torch.randn_like(logits)
            return nn.functional.dropout(logits, 0.5, training=True)

        with pytest.raises(ValueError, match="Transformed"):
            sp.robust_accuracy(model, *images, THREAT)
        with pytest.raises(ValueError, match="Transformed"):
            sp.robust_accuracy(model, *images, THREAT, "quick", on_failure="note")

    def test_a_function_around_a_network_in_training_mode_is_refused(self, net, images) -> None:
        inner = nn.Sequential(nn.BatchNorm2d(1), copy.deepcopy(net)).train()
        before = copy.deepcopy(inner.state_dict())
        with pytest.raises(ValueError, match=r"eval\(\)"):
            sp.robust_accuracy(lambda v: inner(v), *images, THREAT)
        after = inner.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("p", "eps", "words"), [(math.inf, 8.0, "8/255"), (0.0, 0.5, "at least 1")]
)
def test_radii_that_cannot_be_meant_are_refused(p, eps, words, net, images) -> None:
    with pytest.raises(ValueError, match=words):
        sp.robust_accuracy(net, *images, {"it": sp.LpBall(p, eps)})
    with pytest.raises(ValueError, match=words):
        robust_domains(sp.Ensemble([net], *images), {"it": sp.LpBall(p, eps)})


@pytest.mark.parametrize("suite", ["autoattack", "paper"])
def test_gradients_that_are_not_finite_fail_the_attacks_of_other_libraries_too(suite: str) -> None:
    """NaN in some rows only, which the look at the first rows does not meet."""
    network = sp.models.load("mnist-a")
    x, y = sp.data.sample("mnist", 12)
    x[:, :, 0, 0] = 0.0
    x[6:, :, 0, 0] = 1.0

    def model(images: torch.Tensor) -> torch.Tensor:
        tag = (images[:, 0, 0, 0] > 0.5).float().detach()
        root = ((images.flatten(1).mean(dim=1) + 0.1) * (1 - tag)).sqrt()  # at 0 where tagged
        return network(images) + 0 * root.unsqueeze(1)

    with pytest.raises(AttackFailedError, match=r"gradient of the model must be finite"):
        sp.robust_accuracy(model, x, y, {"linf": sp.linf(0.1)}, suite, batch_size=12)
