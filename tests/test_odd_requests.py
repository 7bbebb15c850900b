"""Requests that once gave a wrong number, moved what is the user's, or ended in a bare Python error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import saddlepoint as sp


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = (nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 4))
    return nn.Sequential(*layers).eval()


@pytest.fixture
def net() -> nn.Sequential:
    return network(1)


@pytest.fixture
def images(net: nn.Sequential) -> tuple[Tensor, Tensor]:
    x = (torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(5)) * 255).round() / 255
    return x, net(x).argmax(dim=1)


# ------------------------------------------------------------------------------- numbers


def test_a_patch_is_no_threat_of_an_evaluation(net: nn.Sequential, images: Any) -> None:
    with pytest.raises(TypeError, match=r"`threats\['patch'\]` must be an LpBall .* takes patches"):
        sp.robust_accuracy(net, *images, {"patch": sp.Patch(1)})
    with pytest.raises(TypeError, match="takes patches"):
        sp.robust_domains(sp.Ensemble([net], *images), {"patch": sp.Patch(1)})


class Rounded(nn.Module):
    """Eight bits before the network: no gradient, although its parameters have some."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner((images * 255).round() / 255)


@pytest.mark.parametrize("solve", [sp.attack, sp.apgda])
def test_a_domain_that_masks_its_gradient_is_named_beside_one_that_does_not(
    solve: Callable[..., Any], net: nn.Sequential, images: Any
) -> None:
    problem = sp.Ensemble([network(2), Rounded(net).eval()], *images, names=["open", "rounded"])
    with pytest.warns(UserWarning, match=r"the gradient of domain 1 \(rounded\) is zero") as told:
        solve(problem, sp.linf(0.1), steps=2)
    assert len(told) == 1


def test_a_domain_that_is_fooled_already_needs_no_gradient(net: nn.Sequential, images: Any) -> None:
    x, y = images
    wrong = sp.Universal(net, x[:4].reshape(2, 2, 1, 8, 8), (y[:4].reshape(2, 2) + 1) % 4)
    # A warning would be an error here.
    result = sp.attack(wrong, sp.linf(0.1), steps=2, loss=sp.clipped(sp.cw_margin, 0.0))
    assert bool(result.success.all())
    assert not bool(result.delta.any())


class Energies(nn.Module):
    """Large scores in float64, whose order float32 would lose."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network(1).double()

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images.double()) + 1e8


def test_the_largest_score_is_what_the_model_says_not_what_rounding_says(images: Any) -> None:
    model = Energies().eval()
    x = images[0]
    y = model(x).argmax(dim=1)
    problem = sp.Ensemble([model, network(1)], x, y)
    assert sp.success_rates(problem, torch.zeros_like(x)).clean_accuracy[0] == 1.0
    assert sp.robust_accuracy(model, x, y, {"linf": sp.linf(1e-6)}).clean == 1.0
    result = sp.attack(sp.Ensemble([model], x, y), sp.linf(0.2), steps=5)
    assert result.delta.dtype == result.losses.dtype == result.weights.dtype == torch.float32
    assert torch.equal(result.fooled[:, 0], model(x + result.delta).argmax(dim=1) != y)


@pytest.mark.parametrize("seed", [np.int64(3), np.uint32(3), torch.tensor(3)])
def test_whole_numbers_of_other_libraries_are_seeds(
    seed: Any, net: nn.Sequential, images: Any
) -> None:
    problem = sp.Ensemble([net], *images)
    ours = sp.attack(problem, sp.l2(0.05), steps=2, restarts=2, seed=3)
    theirs = sp.attack(problem, sp.l2(0.05), steps=2, restarts=2, seed=seed)
    assert torch.equal(ours.delta, theirs.delta)
    assert sp.robust_accuracy(net, *images, {"l2": sp.l2(0.01)}, seed=seed).clean == 1.0
    assert sp.RandomStart(seed) == sp.RandomStart(3)
    assert (
        len(sp.train(network(3), [images], {"l2": sp.l2(0.1)}, epochs=1, steps=1, seed=seed)) == 1
    )


# ------------------------------------------------------------------------------- what is the user's


class Root(nn.Module):
    """A root that meets zero: the loss is a number, the gradient of `extra` is not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.extra = network(3), nn.Parameter(torch.zeros(3))

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images) + self.extra.pow(2).sum().sqrt()


@pytest.mark.parametrize("method", ["clean", "ampgd", "msd", "eat"])
def test_no_step_is_made_along_gradients_that_are_no_numbers(method: str, images: Any) -> None:
    model = Root()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    threats = None if method == "clean" else {"linf": sp.linf(0.05)}
    options = {} if method == "clean" else {"steps": 1}
    with pytest.raises(FloatingPointError, match="gradients of parameters must be finite"):
        sp.train(model, [images], threats, method=method, epochs=1, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Counting(nn.Module):
    """Writes into its buffers whenever it is asked, as observers of ranges do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("asked", torch.zeros(()))
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        self.asked += 1
        self.largest = torch.maximum(self.largest, images.detach().max())
        return self.inner(images)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, x, y: sp.attack(sp.Ensemble([model], x, y), sp.linf(0.05), steps=2),
        lambda model, x, y: sp.apgda(sp.Ensemble([model], x, y), sp.linf(0.05), steps=2),
        lambda model, x, y: sp.success_rates(sp.Ensemble([model], x, y), 0 * x),
        lambda model, x, y: sp.robust_accuracy(model, x, y, {"linf": sp.linf(0.01)}),
        lambda model, x, y: sp.robust_domains(
            sp.Ensemble([model], x[:2], y[:2]), {"linf": sp.linf(0.01)}
        ),
    ],
    ids=["attack", "apgda", "success_rates", "robust_accuracy", "robust_domains"],
)
def test_buffers_are_left_as_they_were(
    use: Callable[..., Any], net: nn.Sequential, images: Any
) -> None:
    model = Counting(net).eval()
    kept = model.asked, model.largest
    use(model, *images)
    assert model.asked is kept[0]
    assert model.largest is kept[1]
    assert (float(model.asked), float(model.largest)) == (0.0, 0.0)


class Lazy(nn.Module):
    """Fills a buffer that was empty, and makes others, when it is asked."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("cache", None)

    def forward(self, images: Tensor) -> Tensor:
        self.cache = torch.zeros_like(images)
        self.register_buffer("seen", images.detach().mean())
        self.register_buffer("passing", images.detach().mean(), persistent=False)
        return self.inner(images + self.cache)


def test_no_buffer_is_filled_or_made(net: nn.Sequential, images: Any) -> None:
    model = Lazy(net).eval()
    before = set(model.state_dict())
    sp.attack(sp.Ensemble([model], *images), sp.linf(0.05), steps=2)
    assert set(model.state_dict()) == before
    assert model.cache is None
    assert not hasattr(model, "seen")
    assert not hasattr(model, "passing")
    assert model._non_persistent_buffers_set == set()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_buffers_of_torchscript_are_left_as_they_were(images: Any) -> None:
    layers = (nn.BatchNorm2d(1), Counting(nn.Flatten()), nn.Linear(64, 4))
    script = torch.jit.trace(nn.Sequential(*layers).eval(), images[0])
    before = {name: value.clone() for name, value in script.named_buffers()}
    assert len(before) == 5
    sp.attack(sp.Ensemble([script], *images), sp.linf(0.1), steps=2)
    assert all(torch.equal(value, before[name]) for name, value in script.named_buffers())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_frozen_torchscript_has_no_mode_and_is_attacked_like_the_network_it_was(
    images: Any,
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Dropout()).eval()
    frozen = torch.jit.freeze(torch.jit.script(model))
    one, two = (
        sp.attack(sp.Ensemble([m], *images), sp.linf(0.1), steps=3) for m in (model, frozen)
    )
    assert torch.allclose(one.delta, two.delta)
    threats = {"linf": sp.linf(0.05)}
    one, two = (sp.robust_accuracy(m, *images, threats, suite="quick") for m in (model, frozen))
    assert one.union == two.union
    assert {found.name for found in sp.doctor.examine(frozen, *images)} >= {"mode"}


def test_loaders_do_not_move_the_global_generator(net: nn.Sequential, images: Any) -> None:
    loader = DataLoader(TensorDataset(*images), batch_size=3, shuffle=True)
    before = torch.get_rng_state()
    problem = sp.Ensemble([net], loader)
    sp.robust_accuracy(net, loader, {"linf": sp.linf(0.01)})
    assert torch.equal(before, torch.get_rng_state())
    assert sorted(problem.x.flatten(1).sum(1).tolist()) == sorted(
        images[0].flatten(1).sum(1).tolist()
    )


def test_training_works_where_gradients_are_off(images: Any) -> None:
    model = network(3)
    with torch.inference_mode():
        history = sp.train(model, DataLoader(TensorDataset(*images), 5), epochs=1)
    assert history[-1].stats["loss"] > 0


def test_saving_notices_what_rounding_does_outside_of_a_patch(
    tmp_path: Path, net: nn.Sequential
) -> None:
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    result = sp.attack(sp.Ensemble([net], x, net(x).argmax(1)), sp.Patch(3), steps=6)
    with (
        pytest.warns(UserWarning, match="moved out of the ball")
        if bool(result.success.any())
        else pytest.MonkeyPatch.context()
    ):
        saved = sp.save_images(result, tmp_path / "off")
    assert bool(saved.outside.all())
    assert not bool(saved.fooled.any())
    grey = (x * 255).round() / 255
    result = sp.attack(
        sp.Ensemble([net], grey, net(grey).argmax(1)), sp.Patch(3), steps=6, quantize=256
    )
    assert not bool(sp.save_images(result, tmp_path / "on").outside.any())


# ------------------------------------------------------------------------------- sentences


class Frozen(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 4)
        self.requires_grad_(False)


CALLS: list[tuple[Callable[[nn.Module, Tensor, Tensor], Any], type[Exception], str]] = [
    (
        lambda net, x, y: sp.attack(sp.Ensemble([net], x, y), sp.linf(0.1), quantize="256"),
        TypeError,
        "`quantize` must be a whole number, got str",
    ),
    (
        lambda net, x, y: sp.attack(sp.Ensemble([net], x, y), sp.linf(0.1), start=[1]),
        TypeError,
        "`start` must be a tensor of the shape of delta",
    ),
    (
        lambda net, x, y: sp.attack(sp.Ensemble([net], x, y), sp.linf(0.1), seed=None),
        TypeError,
        "`seed` must be a whole number, got NoneType",
    ),
    (
        lambda net, x, y: sp.attack(
            sp.Ensemble([net], x, y), sp.linf(0.1), loss=nn.CrossEntropyLoss()
        ),
        ValueError,
        r"`loss` must take logits \(B, K, C\) and labels \(B, K\)",
    ),
    (
        lambda net, x, y: sp.attack(
            sp.Ensemble([net], x, y),
            sp.linf(0.1),
            loss=lambda logits, labels: logits.sum(-1),
            targeted=True,
        ),
        ValueError,
        "the word `targeted`",
    ),
    (
        lambda net, x, y: sp.robust_accuracy(net, x, y, {"a": sp.linf(0.1)}, batch_size=2.5),
        TypeError,
        "`batch_size` must be a whole number, got float",
    ),
    (
        lambda net, x, y: sp.robust_accuracy(net, x, y, {"a": sp.linf(0.1)}, budget="60s"),
        TypeError,
        "`budget` must be a number of seconds",
    ),
    (
        lambda net, x, y: sp.Transformed(net, sp.transforms.hflip, x, y),
        TypeError,
        r"got a single one; write \[transform\]",
    ),
    (
        lambda net, x, y: sp.Transformed(net, [3], x, y),
        TypeError,
        "must be functions from images to images, got int 3",
    ),
    (
        lambda net, x, y: sp.Transformed(net, [sp.transforms.hflip], x, y, samples=2.5),
        TypeError,
        "`samples` must be a whole number",
    ),
    (
        lambda net, x, y: sp.Ensemble([net], x, y, names=[1]),
        TypeError,
        "`names` must be strings, got int 1",
    ),
    (
        lambda net, x, y: sp.train(network(1), [(x, y)], epochs=1.5),
        TypeError,
        "`epochs` must be a whole number",
    ),
    (
        lambda net, x, y: sp.train(Frozen(), [(x.flatten(1), y)], epochs=1),
        ValueError,
        "`model` must have parameters that may move, got only frozen ones",
    ),
]


@pytest.mark.parametrize(("act", "kind", "sentence"), CALLS, ids=[case[2] for case in CALLS])
def test_the_argument_is_named(
    act: Callable[..., Any], kind: type[Exception], sentence: str, net: nn.Sequential, images: Any
) -> None:
    with pytest.raises(kind, match=sentence):
        act(net, *images)
