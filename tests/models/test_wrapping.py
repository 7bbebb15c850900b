"""`wrap`: any network as a model, without a trace on the network itself."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import saddlepoint as sp
from saddlepoint import models
from saddlepoint.calls import check_eval_mode


@pytest.fixture
def images():
    return sp.data.sample("mnist", limit=24)


class Returns(nn.Module):
    """A network that hands out its logits in some other form."""

    def __init__(self, network, form):
        super().__init__()
        self.network, self.form = network, form

    def forward(self, x):
        return self.form(self.network(x))


def test_images_are_normalised_channel_by_channel():
    model = models.wrap(nn.Flatten(), mean=(0.0, 0.5, 1.0), std=(1.0, 0.5, 0.25))
    x = torch.full((1, 3, 1, 1), 0.75)
    assert model(x).tolist() == [[0.75, 0.5, -1.0]]
    one_for_all = models.wrap(nn.Flatten(), mean=0.5, std=(1.0, 0.5, 0.25))
    assert one_for_all(x).tolist() == [[0.25, 0.5, 1.0]]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_named_constants_are_those_of_the_data(name):
    x, _ = sp.data.sample(name)
    known = models.NORMALISATIONS[name]
    pixels = x.transpose(0, 1).flatten(1)
    # A thousand images: the standard error of the mean is below 0.01.
    assert pixels.mean(1).tolist() == pytest.approx(known.mean, abs=0.02)
    assert pixels.std(1).tolist() == pytest.approx(known.std, abs=0.02)
    normalised = models.wrap(nn.Flatten(), mean=name)(x).view_as(x)
    assert normalised.mean().abs() < 0.1
    assert normalised.std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    "form",
    [
        lambda logits: logits,
        lambda logits: SimpleNamespace(logits=logits, hidden=None),
        lambda logits: {"logits": logits},
        lambda logits: (logits, "more"),
    ],
)
def test_logits_are_taken_out_of_what_the_network_returns(images, form):
    network = models.load("mnist-c")
    assert torch.equal(models.wrap(Returns(network, form))(images[0]), network(images[0]))


def test_only_the_chosen_classes_are_kept_in_their_order(images):
    network = models.load("mnist-c")
    chosen = models.wrap(network, classes=[7, 0, 3])(images[0])
    assert torch.equal(chosen, network(images[0])[:, [7, 0, 3]])


def test_resizing_averages_and_is_differentiable():
    model = models.wrap(nn.Flatten(), size=1)
    x = torch.rand(3, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    # One pixel from four under a triangular filter as wide as the image: all weigh the same.
    torch.testing.assert_close(model(x)[:, 0], x.mean(dim=(1, 2, 3)))
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert torch.allclose(gradient, torch.full_like(gradient, 0.25))
    assert torch.autograd.gradcheck(models.wrap(nn.Flatten(), 0.5, 0.5, size=(3, 4)), x)
    same = models.wrap(nn.Flatten(), size=2)
    assert torch.equal(same(x), x.flatten(1))


def test_nothing_of_the_network_is_changed():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(72, 3)
    )
    network[0].weight.requires_grad_(False)
    network(torch.rand(4, 1, 8, 8)).sum().backward()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    gradient = network[4].weight.grad.clone()
    model = models.wrap(network, mean=0.5, std=0.5)
    assert not any(part.training for part in model.modules())
    assert all(part.training for part in network.modules())
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(model(x), model(x))  # no dropout
    model.double()
    model.network[4].weight.data.zero_()
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert network[4].weight.dtype == torch.float32
    assert torch.equal(network[4].weight.grad, gradient)
    assert not model.network[0].weight.requires_grad


def test_it_moves_as_one_and_its_state_is_the_networks():
    network = models.build("C")
    model = models.wrap(network, mean="mnist", size=28, classes=range(5))
    assert {t.device.type for t in [*model.to("meta").parameters(), *model.buffers()]} == {"meta"}
    model = models.wrap(network, mean="mnist")
    assert [k.removeprefix("network.") for k in model.state_dict()] == list(network.state_dict())
    assert model.double()(torch.rand(1, 1, 28, 28, dtype=torch.float64)).dtype == torch.float64


def test_models_of_one_ensemble_may_want_different_sizes(images):
    x, y = images
    big = models.load("mnist-c")
    small = nn.Sequential(nn.Upsample(28, mode="nearest"), models.load("mnist-d"))

    class Only14(nn.Module):
        def forward(self, v):
            assert v.shape[-2:] == (14, 14)
            return small(v)

    pair = [big, models.wrap(Only14(), size=14)]
    problem = sp.Ensemble(pair, x, y)
    shrunk = F.interpolate(x, (14, 14), mode="bilinear", antialias=True)
    torch.testing.assert_close(problem.logits(problem.zeros())[:, 1], small(shrunk))
    found = sp.attack(problem, sp.linf(0.2), steps=20)
    assert found.delta.shape == x.shape
    assert found.success.sum() >= 12
    for model in pair:
        assert (model(found.adversarial).argmax(1) != y)[found.success].all()


def test_a_function_is_taken_as_it_is():
    model = models.wrap(lambda v: v.flatten(1), mean=0.5, std=0.5)
    assert model(torch.ones(1, 1, 1, 2)).tolist() == [[1.0, 1.0]]
    training = nn.Dropout()
    held = models.wrap(lambda v: training(v).flatten(1))
    with pytest.raises(ValueError, match="training mode"):
        check_eval_mode([held])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": "imagnet"}, "`mean` must be numbers or one of imagenet, half"),
        ({"mean": "imagenet", "std": 1.0}, "`std` must be left out with mean 'imagenet'"),
        ({"mean": 0.5}, "`std` must be given with `mean`, got none"),
        ({"std": 0.5}, "`mean` must be given with `std`, got none"),
        ({"mean": 0.5, "std": 0.0}, "`std` must be positive, got 0.0"),
        ({"mean": (0.5, 0.5), "std": (1.0, 1.0, 1.0)}, "one per channel, got 2 and 3"),
        ({"mean": (), "std": 1.0}, r"`mean` must be a number or one per channel, got \(\)"),
        ({"mean": float("nan"), "std": 1.0}, "`mean` must be a number"),
        ({"size": 0}, "`size` must be height and width"),
        ({"size": (2, 2, 2)}, "`size` must be height and width"),
        ({"size": 28.0}, "`size` must be height and width, such as .*, got 28.0"),
        ({"size": True}, "`size` must be height and width, such as .*, got True"),
        ({"size": "28"}, "`size` must be height and width, such as .*, got '28'"),
        ({"classes": {1, 2}}, r"`classes` must be a list of .*, got \{1, 2\}"),
        ({"classes": "01"}, "`classes` must be a list of .*, got '01'"),
        ({"classes": [True, False]}, r"`classes` must be a list of .*, got \[True, False\]"),
        ({"classes": torch.tensor([True, False])}, "`classes` must be a list of"),
        ({"classes": [0.0, 1.0]}, "`classes` must be a list of"),
        ({"classes": 2}, "`classes` must be a list of .*, got 2"),
        ({"mean": 0.5, "std": 1e-50}, r"`std` must be numbers that float32 has, got \(1e-50,\)"),
        ({"mean": 1e300, "std": 1.0}, r"`mean` must be numbers that float32 has, got \(1e\+300,\)"),
        ({"classes": [1, 1]}, "`classes` must be a list of at least two different numbers"),
        ({"classes": []}, "`classes` must be a list of at least two different numbers"),
        ({"classes": [0, -1]}, "`classes` must be a list of at least two different numbers"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.wrap(nn.Flatten(), **arguments)


def test_wrong_images_and_networks():
    with pytest.raises(ValueError, match="one per channel of the images, got 3 for images"):
        models.wrap(nn.Flatten(), mean="imagenet")(torch.rand(1, 1, 4, 4))
    with pytest.raises(ValueError, match="`classes` must be below the number of logits, 4, got 9"):
        models.wrap(nn.Flatten(), classes=[0, 9])(torch.rand(1, 1, 2, 2))
    with pytest.raises(TypeError, match="`net` must be a module or a function, got str"):
        models.wrap("net")
    network = nn.Linear(2, 2)
    network.kept = network.weight * 2  # torch does not copy what it has computed
    with pytest.raises(ValueError, match="must be a module that can be copied"):
        models.wrap(network)


def test_the_shape_is_shown():
    shown = repr(models.wrap(nn.Flatten(), mean="mnist", size=28, classes=[1, 2]))
    assert "size=(28, 28), mean=[0.1307], std=[0.3081], classes=[1.0, 2.0]" in shown


def test_numbers_of_numpy_and_torch_are_numbers():
    for classes in (np.array([2, 0]), torch.tensor([2, 0]), range(2, -1, -2)):
        assert models.wrap(nn.Flatten(), classes=classes)(torch.eye(3).view(3, 3, 1, 1))[0, 1] == 1
    assert models.wrap(nn.Flatten(), size=np.int64(4)).size == (4, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_in_low_precision_is_normalised_too(dtype, images):
    network = models.load("mnist-a").to(dtype)
    plain, wrapped = models.wrap(network), models.wrap(network, mean=0.0, std=1.0)
    problem = sp.Ensemble([plain, wrapped], *images)
    logits = problem.logits(problem.zeros())
    assert torch.equal(logits[:, 0], logits[:, 1])
    scaled = sp.Ensemble([models.wrap(network, mean=0.5, std=0.5)], *images)
    assert scaled.logits(scaled.zeros()).isfinite().all()
