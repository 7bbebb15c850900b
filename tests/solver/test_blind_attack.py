"""`attack(..., gradient=)`: the same loop for models that answer scores only."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.solver import attack_unchecked
from saddlepoint.solver.gradients import phases_of

GRADIENTS = (
    sp.estimated(queries=150, per_step=10),
    sp.estimated(queries=150, per_step=10, search=0.5),
    sp.estimated(queries=150, per_step=10, directions="signs", search=0.0, momentum=0.5),
    sp.searched(queries=150),
)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    return sp.data.sample("mnist", 6)


@pytest.fixture(scope="module")
def networks() -> list[nn.Module]:
    return [sp.models.load("mnist-a"), sp.models.load("mnist-c")]


def scored(networks: list[nn.Module], digits: tuple[Tensor, Tensor]) -> sp.Ensemble:
    return sp.Ensemble([sp.scores(network) for network in networks], *digits)


class Counting(sp.AbstractProblem):
    """Two domains that count what each row shows them; at a large margin none is fooled."""

    def __init__(self, margin: float, shown: Tensor) -> None:
        self.x = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(2))
        self.labels = torch.zeros(6, 2, dtype=torch.long)
        self.lower, self.upper, self.rows = -self.x, 1 - self.x, torch.arange(6)
        self.names, self.margin, self.shown = ("one", "two"), margin, shown
        self._model = sp.scores(nn.Identity().eval())

    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        self.shown[domain] += torch.bincount(self.rows, minlength=6)
        margin = (
            self.margin + (-1) ** domain * delta.flatten(1)[:, :8].sum(1) + delta.flatten(1).sum(1)
        )
        return torch.stack([margin, torch.zeros_like(margin)], dim=1)

    def take(self, rows: Tensor) -> Counting:
        part = copy(self)
        for name in ("x", "labels", "lower", "upper", "rows"):
            setattr(part, name, getattr(self, name)[rows])
        return part

    def images(self, delta: Tensor) -> Tensor:
        return self.x + delta

    @property
    def models(self) -> list[sp.Scores]:
        return [self._model]


@pytest.mark.parametrize("ball", [sp.linf(0.04), sp.l2(0.16), sp.l1(0.6), sp.l0(3)], ids=str)
@pytest.mark.parametrize("margin", [99.0, 0.1])
@pytest.mark.parametrize("queries", [13, 60, 151])
@pytest.mark.parametrize("how", ["estimated", "half", "signs", "searched"])
def test_no_row_is_shown_more_often_than_the_queries_and_the_verdict(ball, margin, queries, how):
    makers = {
        "estimated": lambda: sp.estimated(queries, per_step=9, search=0.1),
        "half": lambda: sp.estimated(queries, per_step=2, search=0.5),
        "signs": lambda: sp.estimated(queries, per_step=6, directions="signs", search=0.0),
        "searched": lambda: sp.searched(queries),
    }
    shown = torch.zeros(2, 6, dtype=torch.long)
    problem = Counting(margin, shown)
    result = attack_unchecked(problem, ball, gradient=makers[how](), batch_size=4)
    assert result.num_forwards.max() <= queries
    assert torch.equal(shown, (result.num_forwards + 1).expand(2, -1))  # and the verdict
    if margin == 99.0:
        assert not result.success.any()
        assert result.num_forwards.min() > queries - 8  # and few are left unused


def test_the_look_and_the_verdict_are_all_that_comes_beside_the_queries():
    shown = torch.zeros(2, 6, dtype=torch.long)
    problem = Counting(99.0, shown)
    result = sp.attack(problem, sp.linf(0.04), gradient=sp.searched(40))
    # The first four are looked at three times, the last of them once more, alone; and the verdict.
    assert (shown - result.num_forwards).tolist() == [[4, 4, 4, 5, 1, 1]] * 2


@pytest.mark.parametrize("gradient", GRADIENTS, ids=str)
@pytest.mark.parametrize("ball", [sp.linf(0.1), sp.l2(1.5), sp.l1(8.0), sp.l0(12)], ids=str)
def test_results_do_not_depend_on_batches_or_order(networks, digits, gradient, ball):
    x, y = digits[0].double(), digits[1]
    double = [type(n)(*n).double().eval() if isinstance(n, nn.Sequential) else n for n in networks]
    problem = sp.Ensemble([sp.scores(n) for n in double], x, y)
    try:
        whole = sp.attack(problem, ball, gradient=gradient, seed=4)
        order = torch.tensor([5, 2, 0])
        part = sp.attack(problem.take(order), ball, gradient=gradient, seed=4, batch_size=2)
    finally:
        for network in networks:
            network.float()
    torch.testing.assert_close(part.delta, whole.delta[order], rtol=1e-6, atol=1e-8)
    assert torch.equal(part.num_forwards, whole.num_forwards[order])
    assert whole.delta.flatten(1).any(dim=1).sum() >= 5
    norm = ball.norm(whole.delta)
    assert (norm <= ball.eps * (1 + 1e-6)).all()
    assert (whole.delta >= problem.lower).all()
    assert (whole.delta <= problem.upper).all()


def test_other_seeds_are_other_attacks(networks, digits):
    problem = scored(networks, digits)
    for gradient in GRADIENTS:
        one, two = (sp.attack(problem, sp.linf(0.05), gradient=gradient, seed=n) for n in (0, 1))
        assert not torch.equal(one.delta, two.delta)


def test_estimates_follow_what_gradients_would(digits):
    """Enough queries for every pixel at every step: the white box, at its own number of steps."""
    x, y = (part[:3] for part in digits)
    network = sp.models.load("mnist-a")
    white = sp.attack(sp.Ensemble([network], x, y), sp.linf(0.06), steps=6, loss=sp.cw_margin)
    gradient = sp.estimated(6 * 785 + 1, search=0.0, per_step=784, distance=0.002)
    blind = sp.attack(sp.Ensemble([sp.scores(network)], x, y), sp.linf(0.06), gradient=gradient)
    assert len(blind.history.losses) == len(white.history.losses) == 7
    # The first step is the same but for pixels whose derivative is next to nothing.
    for step in range(3):
        torch.testing.assert_close(
            blind.history.losses[step], white.history.losses[step], rtol=0.1, atol=0.2
        )


def test_only_what_has_no_gradient_is_estimated(networks, digits):
    """A mixed ensemble: the network with gradients sees iterates only, the other one the probes too."""
    asked = [0, 0]

    class Counted(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number, self.network = number, (networks[number],)

        def forward(self, images: Tensor) -> Tensor:
            asked[self.number] += len(images)
            return self.network[0](images)

    open_, closed = Counted(0).eval(), Counted(1).eval()
    problem = sp.Ensemble([open_, sp.scores(closed)], *digits)
    assert problem.without_gradient == (1,)
    gradient = sp.estimated(queries=400, per_step=30, search=0.0)
    result = attack_unchecked(problem, sp.linf(0.15), gradient=gradient, batch_size=6)
    iterates, spent = asked[0] - 6, int(result.num_forwards.sum())
    assert asked[1] - 6 == spent  # the verdict aside
    assert iterates < spent / 15
    alone = attack_unchecked(
        sp.Ensemble([sp.scores(open_), sp.scores(closed)], *digits),
        sp.linf(0.15),
        gradient=gradient,
        batch_size=6,
    )
    # The known half of the gradient helps, where it is known.
    assert result.losses[:, 0].mean() < alone.losses[:, 0].mean() - 2


@pytest.mark.parametrize("gradient", [sp.estimated(600, per_step=60), sp.searched(600)], ids=str)
@pytest.mark.parametrize(
    "ball", [sp.linf(0.25), sp.l2(3.5), sp.l1(28.0), sp.l0(45), sp.l0(45, unit="pixel")], ids=str
)
def test_every_norm_is_attacked(digits, ball, gradient):
    problem = sp.Ensemble([sp.scores(sp.models.load("mnist-a"))], *digits)
    result = sp.attack(problem, ball, gradient=gradient)
    assert result.success.sum() >= 3
    assert (ball.norm(result.delta) <= ball.eps * (1 + 1e-6)).all()
    with torch.no_grad():
        said = sp.models.load("mnist-a")(result.adversarial).argmax(dim=1)
    assert torch.equal(said != digits[1], result.success)


def test_grey_levels_targets_and_radii_of_rows(networks, digits):
    x, y = (digits[0] * 255).round() / 255, digits[1]
    for gradient in (sp.estimated(200, per_step=20), sp.searched(200)):
        result = sp.attack(
            sp.Ensemble([sp.scores(networks[0])], x, (y + 1) % 10),
            sp.linf(torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.3])),
            gradient=gradient,
            targeted=True,
            quantize=256,
        )
        levels = result.adversarial * 255
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
        reach = result.delta.flatten(1).abs().amax(dim=1)
        assert (reach <= torch.tensor([0.1, 0.2, 0.3] * 2) + 1e-6).all()
        assert reach[2] > 0.2


def test_universal_and_transformed_problems_have_estimates_too(digits):
    network = sp.scores(sp.models.load("mnist-a"))
    x, y = digits
    groups = sp.Universal(network, x.reshape(2, 3, 1, 28, 28), y.reshape(2, 3))
    result = sp.attack(groups, sp.linf(0.3), gradient=sp.estimated(200, per_step=20))
    assert (
        result.losses.mean()
        < sp.attack(groups, sp.linf(1e-3), gradient=sp.searched(20)).losses.mean()
    )
    turned = sp.Transformed(network, [sp.transforms.random_rotate(-9, 9)], x, y, samples=2)
    found = sp.attack(turned, sp.linf(0.3), gradient=sp.estimated(200, per_step=20))
    assert found.num_forwards.max() <= 200
    with pytest.raises(ValueError, match=r"`gradient` must not be searched\(\) for random"):
        sp.attack(turned, sp.linf(0.3), gradient=sp.searched(200))


class TestRefusals:
    def test_a_model_without_gradient_needs_a_word(self, networks, digits):
        problem = sp.Ensemble([networks[0], sp.scores(networks[1])], *digits, names=["open", "api"])
        for solver in (sp.attack, sp.apgda):
            with pytest.raises(
                ValueError, match=r"`gradient` must say .* domain 1 \(api\) does not"
            ):
                solver(problem, sp.linf(0.1))

    def test_a_model_that_lets_no_gradient_through_is_named(self, networks, digits):
        def api(images: Tensor) -> Tensor:
            return networks[1](images).detach()

        problem = sp.Ensemble([networks[0], api], *digits, names=["open", "api"])
        with pytest.warns(
            UserWarning, match=r"domain 1 \(api\) lets no gradient .*sp?.*scores\(model\)"
        ):
            sp.attack(problem, sp.linf(0.1), steps=2)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"steps": 5}, "`steps` must be left out where `gradient` is given, got 5"),
            ({"restarts": 2}, "`restarts` must be left out"),
            ({"evaluations": 50}, "`evaluations` must be left out"),
            ({"rule": sp.Average()}, "`rule` must be left out .*random search follows no weights"),
            ({"precision": "bfloat16"}, "`precision` must be float32 where `gradient` is given"),
        ],
    )
    def test_what_follows_from_the_queries_is_left_out(self, networks, digits, options, message):
        arguments: dict[str, Any] = options
        with pytest.raises(ValueError, match=message):
            sp.attack(scored(networks, digits), sp.linf(0.1), gradient=sp.searched(50), **arguments)

    def test_other_things_are_no_gradient(self, networks, digits):
        with pytest.raises(TypeError, match=r"`gradient` must be saddlepoint\.estimated"):
            sp.attack(scored(networks, digits), sp.linf(0.1), gradient="estimated")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"queries": 5}, "`queries` must be >= 10"),
            ({"search": 1.0}, "`search` must be a share"),
            ({"per_step": 1}, "`per_step` must be >= 2"),
            ({"distance": 0.0}, "`distance` must be in"),
            ({"side": 0}, "`side` must be >= 1"),
            ({"momentum": 0.5}, "`momentum` must be 0"),
            ({"directions": "waves"}, "`directions` must be 'squares' or 'signs'"),
        ],
    )
    def test_numbers_are_in_range(self, options, message):
        arguments: dict[str, Any] = options
        with pytest.raises(ValueError, match=message):
            sp.estimated(**arguments)

    def test_queries_are_enough_for_a_step(self, networks, digits):
        with pytest.raises(
            ValueError, match=r"`queries` must be enough for a step .*lower `per_step`"
        ):
            sp.attack(scored(networks, digits), sp.linf(0.1), gradient=sp.estimated(60, side=1))

    def test_nan_on_the_way_is_refused(self, digits):
        network = sp.models.load("mnist-a")

        def broken(images: Tensor) -> Tensor:
            changed = images.flatten(1).sum(dim=1) > digits[0].flatten(1).sum(dim=1).max() + 1
            return network(images).masked_fill(changed[:, None], math.nan)

        problem = sp.Ensemble([sp.scores(broken, numpy=False)], *digits)
        for gradient in (sp.searched(60), sp.estimated(2000, search=0.0)):
            with pytest.raises(ValueError, match="must be finite, got NaN or inf in row"):
                sp.attack(problem, sp.linf(0.3), gradient=gradient)


def test_phases_use_the_queries_and_squares_grow_with_the_image():
    def problem(*shape: int) -> sp.Ensemble:
        return sp.Ensemble([nn.Identity()], torch.rand(1, *shape), torch.tensor([0]))

    for shape, side in (((1, 28, 28), 1), ((3, 32, 32), 2), ((3, 224, 224), 13), ((64,), 1)):
        *_, last = phases_of(sp.estimated(5000), problem(*shape), sp.linf(0.1))
        assert last.side == side
    for queries in (150, 999, 5000):
        for gradient in (sp.estimated(queries), sp.searched(queries)):
            phases = phases_of(gradient, problem(1, 28, 28), sp.linf(0.1))
            total = sum(1 + phase.steps * (phase.per_step + 1) for phase in phases)
            assert 0.94 * queries < total <= queries


class TestPatches:
    """A set that keeps most pixels as they are: queries go to those that it does not."""

    @pytest.mark.parametrize("gradient", [sp.estimated(40, search=0.0), sp.searched(40)], ids=str)
    @pytest.mark.parametrize("seed", range(3))
    def test_few_are_enough_for_few_pixels(self, gradient, seed):
        def service(images: Tensor) -> Tensor:
            return torch.stack([9 + images.flatten(1).sum(dim=1), 0 * images[:, 0, 0, 0]], dim=1)

        x = torch.rand(2, 1, 20, 20, generator=torch.Generator().manual_seed(seed))
        problem = sp.Ensemble([sp.scores(service, numpy=False)], x, [0, 0])
        mask = torch.zeros(20, 20)
        mask[15:17, 3:5] = 1
        result = sp.attack(problem, sp.Patch(mask=mask), gradient=gradient, seed=seed)
        # Four dark pixels are the best patch.
        torch.testing.assert_close(result.adversarial[:, 0, 15:17, 3:5], torch.zeros(2, 2, 2))
        assert torch.equal(result.adversarial[:, 0, :15], x[:, 0, :15])

    def test_photographs_of_a_patch_have_estimates(self):
        network = sp.scores(sp.models.load("mnist-a"))
        x, y = sp.data.sample("mnist", 4)
        patch, gradient = sp.Patch(size=6), sp.estimated(400, per_step=36)
        problem = sp.Patched([network], patch, x[None], y[None])
        result = sp.attack(problem, patch, gradient=gradient)
        before = sp.cw_margin(problem.logits(problem.zeros()), problem.labels)
        assert result.losses.mean() < before.mean() - 3
        anywhere = sp.Patched([network], patch, x[None], y[None], [sp.View(at="anywhere")])
        assert sp.attack(anywhere, patch, gradient=gradient).num_forwards.max() <= 400
