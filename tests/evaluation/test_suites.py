"""Attacks of other libraries: sound verdicts, no harm done, and every known trap shown and avoided."""

from __future__ import annotations

import dataclasses
import importlib
import math
import random
import runpy
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from folders import ROOT
from saddlepoint.evaluation import (
    AbstractAttack,
    AttackFailedError,
    OurAttack,
    RobustAccuracy,
    Target,
    judge,
    robust_accuracy,
)
from saddlepoint.evaluation.attacks import Watched
from saddlepoint.evaluation.autoattacks import APGD, FAB, Square, TargetedAPGD
from saddlepoint.evaluation.foolbox_attacks import FoolboxAttack, Seen
from saddlepoint.evaluation.other_libraries import Isolated, MissingLibraryError, library, seed_of
from saddlepoint.evaluation.suites import attacks_for

foolbox = library("foolbox")
INF = math.inf
EXAMPLES = ROOT / "examples"

PEPPER = FoolboxAttack("pepper", "SaltAndPepperNoiseAttack", {"steps": 60}, minimal=True)
BLEND = FoolboxAttack(
    "blend",
    "LinearSearchBlendedUniformNoiseAttack",
    {"directions": 5, "steps": 20},
    minimal=True,
)
DEEPFOOL = FoolboxAttack("deepfool", "L2DeepFoolAttack", minimal=True)
DDN = FoolboxAttack("ddn", "DDNAttack", {"steps": 100}, minimal=True)
CARLINI = FoolboxAttack(
    "carlini",
    "L2CarliniWagnerAttack",
    {"binary_search_steps": 6, "steps": 50, "stepsize": 0.1, "initial_const": 0.1},
    minimal=True,
)
BOUNDARY = FoolboxAttack("boundary", "BoundaryAttack", {"steps": 200}, minimal=True, start=BLEND)
POINTWISE = FoolboxAttack("pointwise", "PointwiseAttack", minimal=True, start=PEPPER)
NOISE = FoolboxAttack(
    "noise", "L2ClippingAwareRepeatedAdditiveGaussianNoiseAttack", {"repeats": 5}, restarts=2
)
AUTO: list[AbstractAttack] = [
    APGD(steps=10),
    APGD("apgd-dlr", "dlr", steps=10, restarts=2),
    TargetedAPGD(steps=10, targets=3),
    FAB(steps=10, targets=3),
    FAB("fab", targeted=False, steps=5, restarts=2),
    Square(queries=60),
]
SMALL: dict[float, list[AbstractAttack]] = {
    INF: [
        FoolboxAttack("fgsm", "LinfFastGradientAttack"),
        FoolboxAttack("mim", "LinfMomentumIterativeFastGradientMethod"),
        FoolboxAttack("pgd", "LinfProjectedGradientDescentAttack", {"steps": 20}, restarts=2),
        *AUTO,
    ],
    2.0: [
        NOISE,
        DEEPFOOL,
        DDN,
        FoolboxAttack("pgd", "L2ProjectedGradientDescentAttack", {"steps": 20}, restarts=2),
        CARLINI,
        BOUNDARY,
        POINTWISE,
        *AUTO,
    ],
    1.0: [
        OurAttack("pgd", sp.neg_cross_entropy, steps=20, restarts=2),
        PEPPER,
        POINTWISE,
        FoolboxAttack("sparse", "SparseL1DescentAttack", {"steps": 20}),
        *AUTO,
        APGD("apgd-shrinking", steps=20, shrinking=True),
        TargetedAPGD("apgd-t-shrinking", steps=10, targets=2, shrinking=True),
    ],
}
RADII = {INF: 0.12, 2.0: 1.5, 1.0: 9.0}
EVERY = [(p, attack) for p, attacks in SMALL.items() for attack in attacks]


def label(value: Any) -> str:
    return value.name if isinstance(value, AbstractAttack) else f"l{value:g}"


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    return sp.models.load("mnist-a"), *sp.data.sample("mnist", limit=8)


class Plane(nn.Module):
    """Three classes on two numbers: the largest of x0, x1 and a constant."""

    def __init__(self, least: float = 0.2, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(2, dtype=dtype))
        self.least = least
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        own = x.flatten(1) @ self.weight
        return torch.cat([own, torch.full_like(own[:, :1], self.least)], dim=1)


PLANE_X = torch.tensor([[0.7, 0.5], [0.4, 0.5], [0.9, 0.35], [0.5, 0.9], [0.1, 0.1]])
PLANE_Y = torch.tensor([0, 1, 0, 1, 2])
# Nearest boundaries: half the difference of the two (linf), over sqrt 2 (l2), all of it (l1); 0.1 for the last.
PLANE_DISTANCE = {
    INF: torch.tensor([0.1, 0.05, 0.275, 0.2, 0.1]),
    2.0: torch.tensor([0.2, 0.1, 0.55, 0.4, 0.1 * math.sqrt(2)]) / math.sqrt(2),
    1.0: torch.tensor([0.2, 0.1, 0.55, 0.4, 0.1]),
}


def alone(
    model: Any, x: Tensor, y: Tensor, p: float, eps: float, attack: AbstractAttack, **options: Any
) -> RobustAccuracy:
    ball = sp.LpBall(p, eps)
    return robust_accuracy(model, x, y, {"threat": ball}, {p: [attack]}, **options)


def target(model: Any, x: Tensor, y: Tensor, p: float, eps: float, seed: int = 0) -> Target:
    return Target(Watched(model), x, y, torch.arange(len(x)), sp.LpBall(p, eps), seed)


def length(delta: Tensor, p: float) -> np.ndarray:
    return np.linalg.norm(delta.flatten(1).double().numpy(), ord=p, axis=1)


# ------------------------------------------------------------------------------------------ every attack


@pytest.mark.parametrize(("p", "attack"), EVERY, ids=label)
def test_what_counts_as_broken_is_near_in_the_box_and_misclassified(
    digits: tuple[nn.Module, Tensor, Tensor], p: float, attack: AbstractAttack
) -> None:
    model, x, y = digits
    result = alone(model, x, y, p, RADII[p], attack)
    (outcome,) = result.outcomes
    assert outcome.status == "complete", outcome.notes
    assert outcome.notes == ()
    delta = result.nearest["threat"]
    found = outcome.distance.isfinite()
    image = x + delta
    assert ((image >= -1e-6) & (image <= 1 + 1e-6)).all()
    wrong = model(image.clamp(0, 1)).argmax(dim=1) != y
    assert wrong[found].all()
    assert length(delta, p)[found] == pytest.approx(outcome.distance[found].numpy(), rel=1e-5)
    near = torch.from_numpy(length(delta, p)) <= RADII[p] * (1 + 1e-6)
    assert torch.equal(outcome.broken, found & near)
    gradient_free = ("noise", "pepper", "boundary", "square", "pointwise")
    assert outcome.broken.any() or attack.name in gradient_free


@pytest.mark.parametrize(("p", "attack"), EVERY, ids=label)
def test_three_classes_on_two_numbers(p: float, attack: AbstractAttack) -> None:
    exact = PLANE_DISTANCE[p]
    result = alone(Plane(), PLANE_X, PLANE_Y, p, 0.25, attack)
    (outcome,) = result.outcomes
    assert outcome.status == "complete", outcome.notes
    assert (outcome.distance >= exact.double() - 1e-6).all()  # nothing is nearer than the nearest
    assert not outcome.broken[exact > 0.2501].any()
    weak = ("noise", "pepper", "fgsm", "mim", "boundary", "square")
    assert outcome.broken[1] or attack.name in weak
    if attack in (DDN, DEEPFOOL, CARLINI):
        # DDN descends on cross-entropy, which from the last image leads to both other classes at once.
        kept = slice(4 if attack is DDN else 5)
        assert outcome.distance[kept].numpy() == pytest.approx(exact[kept].numpy(), rel=0.15)


@pytest.mark.parametrize(("p", "attack"), EVERY, ids=label)
def test_equal_seeds_give_equal_candidates_and_nothing_else_changes(
    p: float, attack: AbstractAttack
) -> None:
    model, x, y = Plane(), PLANE_X.clone(), PLANE_Y.clone()
    before = x.clone(), y.clone()
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    where = target(model, x, y, p, 0.2, seed=5)
    first = attack.run(where)
    np.random.rand()  # must not matter
    torch.rand(1)
    second = attack.run(where)
    assert torch.equal(first, second)
    assert first.shape == x.shape
    assert not first.requires_grad
    np.random.set_state(("MT19937", states[1], *np.random.get_state()[2:]))
    torch.set_rng_state(states[0])
    attack.run(where)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert not any(module.training for module in model.modules())
    assert all(each.requires_grad and each.grad is None for each in model.parameters())


@pytest.mark.parametrize(("p", "attack"), EVERY, ids=label)
def test_one_image_in_an_odd_memory_layout(p: float, attack: AbstractAttack) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 6 * 6, 5)).eval()
    x = torch.rand(1, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    y = model(x).argmax(dim=1)
    (outcome,) = alone(model, x, y, p, 1.0 if p == INF else 3.0, attack).outcomes
    assert outcome.status == "complete", outcome.notes
    assert outcome.attacked.all()


@pytest.mark.parametrize(("p", "attack"), EVERY, ids=label)
def test_models_in_double_precision(p: float, attack: AbstractAttack) -> None:
    (outcome,) = alone(
        Plane(dtype=torch.float64), PLANE_X.double(), PLANE_Y, p, 0.25, attack
    ).outcomes
    assert outcome.status == "complete", outcome.notes


def test_seeds_differ_between_batches_restarts_and_evaluations() -> None:
    one = target(Plane(), PLANE_X, PLANE_Y, 2, 1.0)
    others = [
        dataclasses.replace(one, restart=1),
        dataclasses.replace(one, seed=1),
        dataclasses.replace(one, rows=one.rows + 5),
        dataclasses.replace(one, rows=one.rows[:2]),
    ]
    seeds = [seed_of(each) for each in (one, *others)]
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**32 for seed in seeds)


@pytest.mark.parametrize("attack", [BOUNDARY, POINTWISE, CARLINI, *AUTO], ids=label)
def test_the_time_budget_ends_an_attack_inside_the_library(
    digits: tuple[nn.Module, Tensor, Tensor], attack: AbstractAttack
) -> None:
    (outcome,) = alone(*digits, 2.0, 1.5, attack, budget=1e-4).outcomes
    assert outcome.status == "cut short"
    assert not outcome.attacked.any()


# ------------------------------------------------------------------------------------------------ suites


def test_the_suites_have_the_attacks_they_promise() -> None:
    def names(suite: Any, p: float) -> str:
        return " ".join(attack.name for attack in attacks_for(suite, p))

    for p in (INF, 2.0, 1.0, 0.0):
        assert names("quick", p) == "attack-ce attack" + (" search" if p == math.inf else "")
    assert names("paper", INF) == "fgsm mim pgd"
    assert names("paper", 2) == (
        "gaussian-noise deepfool ddn pgd carlini-wagner boundary pointwise"
    )
    assert names("paper", 1) == "pgd salt-and-pepper pointwise"
    for p in (INF, 2.0, 1.0):
        assert names("autoattack", p) == "apgd-ce apgd-t fab-t square"
        assert names("autoattack+", p) == "apgd-ce apgd-dlr fab square apgd-t fab-t"
        many = [each for each in attacks_for("paper", p) if each.name in ("pgd", "pointwise")]
        assert all(each.restarts == 10 for each in many)
    for suite in ("paper", "autoattack", "autoattack+"):
        with pytest.raises(ValueError, match="must have an attack for l0"):
            attacks_for(suite, 0.0)
    with pytest.raises(ValueError, match="must be one of quick, paper"):
        attacks_for("nonsense", 2.0)


@pytest.mark.parametrize("p", [INF, 2.0, 1.0])
@pytest.mark.parametrize("version", ["standard", "plus"])
def test_parameters_are_those_that_autoattack_sets(version: Any, p: float) -> None:
    norm = {INF: "Linf", 2.0: "L2", 1.0: "L1"}[p]
    reference = library("pyautoattack").AutoAttack(Plane(), norm=norm, version=version, eps=0.1)
    suite = attacks_for("autoattack" if version == "standard" else "autoattack+", p)
    assert [attack.name for attack in suite] == reference.attacks_to_run
    made = {attack.name: attack for attack in suite}
    for name in {"apgd-ce", "apgd-dlr"} & set(made):
        apgd = made[name]
        assert isinstance(apgd, APGD)
        assert (apgd.steps, apgd.restarts) == (reference.apgd.n_iter, reference.apgd.n_restarts)
        # "plus" forgets the shrinking ball for l1, which makes it the weaker version; ours does not
        assert apgd.shrinking == (reference.apgd.use_largereps or p == 1)
        assert apgd.loss == name.removeprefix("apgd-")
    aimed = made["apgd-t"]
    assert isinstance(aimed, TargetedAPGD)
    assert aimed.steps == reference.apgd_targeted.n_iter
    assert aimed.targets == reference.apgd_targeted.n_target_classes
    assert reference.apgd_targeted.n_restarts == 1
    fab = made["fab-t"]
    assert isinstance(fab, FAB)
    assert fab.targeted
    assert (fab.steps, fab.targets) == (reference.fab.n_iter, reference.fab.n_target_classes)
    assert fab.restarts == 1  # AutoAttack sets it back before FAB-T
    if version == "plus":
        untargeted = made["fab"]
        assert isinstance(untargeted, FAB)
        assert not untargeted.targeted
        assert untargeted.restarts == reference.fab.n_restarts
    square = made["square"]
    assert isinstance(square, Square)
    assert square.queries == reference.square.n_queries


@pytest.mark.parametrize(
    ("suite", "package"),
    [("paper", "foolbox"), ("autoattack", "pyautoattack"), ("autoattack+", "pyautoattack")],
)
def test_a_missing_library_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, suite: Any, package: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    remedy = rf"suite '{suite}' needs {package}; install it with pip install 'saddlepoint\[eval\]'"
    with pytest.raises(ImportError, match=remedy.replace("+", r"\+")) as caught:
        robust_accuracy(Plane(), PLANE_X, PLANE_Y, {"l2": sp.LpBall(2, 0.1)}, suite)
    assert isinstance(caught.value, MissingLibraryError)
    assert caught.value.name == package
    assert robust_accuracy(Plane(), PLANE_X, PLANE_Y, {"l2": sp.LpBall(2, 0.1)}).clean == 1


def test_importing_the_evaluation_imports_no_other_library() -> None:
    code = (
        "import sys, saddlepoint.evaluation\n"
        "sys.exit(', '.join({'foolbox', 'eagerpy', 'pyautoattack'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda: APGD(steps=2),
        lambda: APGD(restarts=0),
        lambda: TargetedAPGD(targets=0),
        lambda: FAB(steps=0),
        lambda: Square(queries=0),
        lambda: FoolboxAttack("x", "DDNAttack", restarts=0),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="must be >= "):
        make()


# --------------------------------------------------------------------------------------- traps of foolbox


def theirs(attack: Any, model: nn.Module, x: Tensor, y: Tensor, eps: float | None) -> Tensor:
    """What foolbox itself returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Tensor = attack(foolbox.PyTorchModel(model, (0, 1), "cpu"), x, y, epsilons=eps)[1]
    return found.detach()


def test_trap_l1_gradient_descents_of_foolbox_rescale_and_are_refused() -> None:
    model = sp.models.load("mnist-a")
    x, y = sp.data.sample("mnist", limit=60)
    ball = sp.LpBall(1, 9.0)
    torch.manual_seed(0)
    rescaled = theirs(foolbox.attacks.L1PGD(steps=50), model, x, y, 9.0)
    overstated = 1 - judge(model, x, y, rescaled, ball).broken.double().mean()
    exact = alone(model, x, y, 1.0, 9.0, OurAttack("pgd", sp.neg_cross_entropy)).union
    assert overstated > exact + 0.3
    with pytest.raises(ValueError, match="rescales perturbations instead of projecting"):
        FoolboxAttack("pgd", "L1PGD")


def test_every_l1_descent_that_rescales_is_known() -> None:
    base = importlib.import_module("foolbox.attacks.gradient_descent_base").L1BaseGradientDescent
    for name, kind in vars(foolbox.attacks).items():
        if isinstance(kind, type) and issubclass(kind, base) and kind.project is base.project:
            with pytest.raises(ValueError, match="must not be an l1 gradient descent"):
                FoolboxAttack("x", name)
    FoolboxAttack("x", "SparseL1DescentAttack")


class Step(nn.Module):
    """Class 1 where x0 > 0.6; flat below 0.5, so that gradients lead there from above it only."""

    def forward(self, x: Tensor) -> Tensor:
        slope = 2 * (x[:, 0] - 0.5).relu()
        return torch.stack([torch.full_like(slope, 0.2) + 0 * slope, slope], dim=1)


@pytest.mark.parametrize("kind", ["BoundaryAttack", "PointwiseAttack"])
def test_trap_one_image_without_a_starting_point_fails_the_batch(kind: str) -> None:
    model, x = Step().eval(), torch.tensor([[0.3, 0.4], [0.55, 0.4]])
    y = torch.zeros(2, dtype=torch.long)
    start = foolbox.attacks.L2DeepFoolAttack()  # finds a way for the second image only
    attack = getattr(foolbox.attacks, kind)(init_attack=start)
    with pytest.raises((ValueError, AssertionError)):
        theirs(attack, model, x, y, None)
    steps = {"steps": 50} if kind == "BoundaryAttack" else {}
    walk = FoolboxAttack("walk", kind, steps, minimal=True, start=DEEPFOOL)
    (outcome,) = alone(model, x, y, 2.0, 0.2, walk).outcomes
    assert outcome.status == "complete"
    assert outcome.attacked.all()
    assert outcome.broken.tolist() == [False, True]
    assert outcome.distance[1].item() == pytest.approx(0.05, rel=0.1)


def test_images_without_a_starting_point_start_from_an_image_with_another_label() -> None:
    # 1 in a corner that noise does not hit, so only the third image, which is there, shows the way
    x = torch.tensor([[0.3, 0.4], [0.5, 0.2], [0.999, 0.999]])
    model = Corner().eval()
    (outcome,) = alone(model, x, torch.tensor([0, 0, 1]), 2.0, 1.0, BOUNDARY).outcomes
    assert outcome.distance.isfinite().all()
    (outcome,) = alone(model, x[:2], torch.tensor([0, 0]), 2.0, 1.0, BOUNDARY).outcomes
    assert outcome.status == "complete"
    assert not outcome.broken.any()


class Corner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        inside = (x.amin(dim=1) > 0.998).to(x) + 0 * x[:, 0]
        return torch.stack([0.5 + 0 * inside, inside], dim=1)


def test_trap_carlini_wagner_returns_a_black_image_when_it_fails() -> None:
    model, x, y = Step().eval(), torch.tensor([[0.3, 0.4]]), torch.tensor([0])
    attack = foolbox.attacks.L2CarliniWagnerAttack(steps=5)
    assert torch.equal(theirs(attack, model, x, y, None), torch.zeros(1, 2))
    where = target(model, x, y, 2.0, 1.0)
    assert torch.equal(CARLINI.run(where), x)


def test_trap_foolbox_measures_salt_and_pepper_in_l2() -> None:
    x, y = torch.full((1, 4), 0.5), torch.tensor([0])

    def model(images: Tensor) -> Tensor:
        wrong = ((images - 0.5).abs().sum(dim=1) > 0.3).to(images)
        return torch.stack([1 - wrong, wrong], dim=1)

    shown = Seen(Watched(model), x, y, sp.LpBall(1, 1.0))
    once = torch.tensor([[0.1, 0.5, 0.5, 0.5]])  # l1 0.4, l2 0.4
    spread = torch.tensor([[0.38, 0.38, 0.38, 0.38]])  # l1 0.48, l2 0.24
    for image in (once, spread):
        shown(image)
    assert torch.equal(shown.nearest, once)
    shown = Seen(Watched(model), x, y, sp.LpBall(2, 1.0))
    for image in (once, spread):
        shown(image)
    assert torch.equal(shown.nearest, spread)


def test_what_is_kept_is_in_the_box_a_number_and_safe_from_rounding() -> None:
    x, y = torch.tensor([[0.6, 0.5]]), torch.tensor([0])
    seen = Seen(nn.Identity(), x, y, sp.LpBall(2, 1.0))
    for image in ([0.6, 1.2], [math.nan, 0.5], [0.6, 0.6]):
        seen(torch.tensor([image]))
    assert seen.distance.isinf().all()
    assert torch.equal(seen.nearest, x)
    seen(torch.tensor([[0.5499999, 0.5500001]]))  # by a hair: the next batch may decide otherwise
    assert not seen.safe.any()
    seen(torch.tensor([[0.54998, 0.55002]]))  # a little farther, and safe
    assert seen.safe.all()
    seen(torch.tensor([[0.5, 0.6]]))
    assert seen.nearest[0, 0].item() == pytest.approx(0.54998)
    seen(torch.zeros(3, 2))  # another batch: not ours to judge
    assert seen.nearest[0, 0].item() == pytest.approx(0.54998)


def test_trap_noise_of_foolbox_loses_its_length_by_clipping() -> None:
    x, y = sp.data.sample("mnist", limit=4)
    model = sp.models.load("mnist-a")
    plain = foolbox.attacks.L2AdditiveGaussianNoiseAttack()
    aware = foolbox.attacks.L2ClippingAwareAdditiveGaussianNoiseAttack()
    assert (length(theirs(plain, model, x, y, 2.0) - x, 2) < 1.7).all()
    assert length(theirs(aware, model, x, y, 2.0) - x, 2) == pytest.approx(2.0, rel=1e-3)
    assert any("ClippingAware" in getattr(each, "kind", "") for each in attacks_for("paper", 2))


def test_trap_backward_fills_the_gradients_of_the_parameters() -> None:
    model = Plane()
    theirs(foolbox.attacks.LinfFastGradientAttack(), model, PLANE_X, PLANE_Y, 0.1)
    assert model.weight.grad is not None
    images = PLANE_X.clone().requires_grad_()
    own = Plane()
    logits = Isolated(own, images)(images)
    for _ in range(2):  # FAB asks for one class after the other
        logits[:, 0].sum().backward(retain_graph=True)
    assert own.weight.grad is None
    assert torch.equal(images.grad, torch.tensor([[2.0, 0.0]]).expand(5, 2))


# ----------------------------------------------------------------------------------- traps of pyautoattack


def test_trap_targeted_attacks_raise_with_fewer_classes_than_targets() -> None:
    kind = library("pyautoattack.fab_pt").FABAttack_PT
    attack = kind(Plane(), norm="Linf", eps=0.2, targeted=True, n_iter=3, device="cpu")
    with pytest.raises(IndexError):
        attack.perturb(PLANE_X[2:3], PLANE_Y[2:3])
    kind = library("pyautoattack.autopgd_base").APGDAttack_targeted
    attack = kind(Plane(), norm="Linf", eps=0.2, n_iter=3, device="cpu")
    with pytest.raises(IndexError):  # the loss alone wants four
        attack.perturb(PLANE_X, PLANE_Y)
    for one in (FAB(), TargetedAPGD()):  # nine targets
        (outcome,) = alone(Plane(), PLANE_X, PLANE_Y, INF, 0.25, one).outcomes
        assert outcome.status == "complete"
        assert outcome.broken.tolist() == [True, True, False, True, True]


def test_two_classes_are_refused_where_the_loss_is_constant_and_the_note_says_so() -> None:
    x, y = torch.tensor([[0.7, 0.6]]), torch.tensor([0])
    suite = {INF: [TargetedAPGD(), APGD("apgd-dlr", "dlr"), FAB()]}
    result = robust_accuracy(
        nn.Identity().eval(),
        x,
        y,
        {"linf": sp.LpBall(INF, 0.2)},
        suite,
        every_attack=True,
        on_failure="note",
    )
    assert [each.status for each in result.outcomes] == ["failed", "failed", "complete"]
    assert "apgd-t needs at least 3 classes, got 2" in result.notes[0]
    assert result.union == 0


@pytest.mark.parametrize("p", [INF, 2.0, 1.0])
@pytest.mark.parametrize("shape", [(2,), (20,), (3, 7), (1, 4, 4), (3, 12, 12), (1, 9, 24)])
def test_trap_square_raises_for_other_inputs_than_images_of_some_sizes(
    p: float, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 3)).eval()
    x = 0.25 + torch.rand(4, *shape) / 2
    y = model(x).argmax(dim=1)
    eps = {INF: 0.5, 2.0: 0.3 * math.sqrt(x[0].numel()), 1.0: 0.3 * x[0].numel()}[p]
    (outcome,) = alone(model, x, y, p, eps, Square(queries=100)).outcomes
    assert outcome.status == "complete", outcome.notes
    assert outcome.broken.any()
    if p == 2 and shape != (1, 9, 24):
        norm = library("pyautoattack.square").SquareAttack(model, norm="L2", eps=eps, device="cpu")
        with pytest.raises((ValueError, RuntimeError, ZeroDivisionError)):
            norm.perturb(x, y)


def test_trap_square_writes_into_the_logits() -> None:
    x = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1]).reshape(1, 1, 1, 5)
    model = nn.Flatten().eval()  # its logits are the images themselves
    attack = library("pyautoattack.square").SquareAttack(model, eps=0.2, n_queries=20, device="cpu")
    shown = x.clone()
    attack.perturb(shown, torch.tensor([0]))
    spoilt = attack.margin_and_loss(shown, torch.tensor([0]))
    assert spoilt is not None
    assert shown.isinf().any()
    (outcome,) = alone(model, x, torch.tensor([0]), INF, 0.2, Square(queries=50)).outcomes
    assert outcome.broken.all()
    assert outcome.notes == ()


def test_trap_a_missing_seed_is_the_time_of_day() -> None:
    module = importlib.import_module("pyautoattack.autopgd_base")
    attack = module.APGDAttack(Plane(), eps=0.1, seed=None, device="cpu")
    attack.init_hyperparam(PLANE_X)
    assert attack.seed > 1e9
    seeds: list[Any] = []

    class Spy(module.APGDAttack):  # type: ignore[misc, name-defined]
        def perturb(self, x: Tensor, y: Tensor) -> Tensor:
            seeds.append(self.seed)
            return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "APGDAttack", Spy)
        where = target(Plane(), PLANE_X, PLANE_Y, 2.0, 0.1)
        APGD().run(where)
    assert seeds == [seed_of(where)]


def test_other_norms_are_refused_with_a_remedy() -> None:
    with pytest.raises(AttackFailedError, match="take suite 'quick'"):
        alone(Plane(), PLANE_X, PLANE_Y, 0.0, 1.0, APGD())


def test_nothing_is_printed_or_logged(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    for attack in (APGD(steps=5), TargetedAPGD(steps=5), FAB(steps=5), Square(queries=5), BOUNDARY):
        alone(Plane(), PLANE_X, PLANE_Y, 2.0, 0.1, attack)
    assert capsys.readouterr() == ("", "")
    assert caplog.records == []


# ----------------------------------------------------------------------------------------------- examples


@pytest.fixture(scope="module")
def networks() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "pyautoattack_networks.py"))


def test_the_networks_inside_pyautoattack_classify_test_images(networks: dict[str, Any]) -> None:
    x, y = sp.data.sample("cifar10", limit=40)
    model = networks["resnet18"]()
    assert not model.training
    with torch.no_grad():
        assert (model(x).argmax(dim=1) == y).double().mean() > 0.85
    pytest.importorskip("h5py")
    x, y = sp.data.sample("mnist", limit=200)
    model = networks["mnist"]()
    assert not model.training
    with torch.no_grad():
        assert (model(x).argmax(dim=1) == y).double().mean() > 0.97
    # It was trained against linf perturbations of 0.3, and the sign of the gradient does not break it.
    fgsm = FoolboxAttack("fgsm", "LinfFastGradientAttack")
    assert alone(model, x, y, INF, 0.3, fgsm).union > 0.9


def test_a_missing_h5py_is_named(monkeypatch: pytest.MonkeyPatch, networks: dict[str, Any]) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match="pip install h5py"):
        networks["mnist"]()
