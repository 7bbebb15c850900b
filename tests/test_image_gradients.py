"""Cheap gradients of images against those of torch."""

from __future__ import annotations

import functools
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import saddlepoint as sp
from saddlepoint import image_gradients
from saddlepoint.calls import call
from saddlepoint.image_gradients import cheap_image_gradients

# out, kernel, stride, padding, bias, height, width
LAYERS = [
    (16, 4, 2, 1, True, 28, 28),
    (32, 5, 1, 2, True, 28, 28),
    (8, 3, 1, 0, False, 9, 12),
    (5, (3, 2), (2, 3), (1, 0), True, 11, 10),  # windows that do not reach the last row
    (4, 2, 3, 0, True, 9, 9),  # entries between windows
]


def layer_and_images(out, kernel, stride, padding, bias, height, width, dtype=torch.float64):
    torch.manual_seed(0)
    layer = nn.Conv2d(1, out, kernel, stride=stride, padding=padding, bias=bias).to(dtype)
    return layer, torch.rand(3, 1, height, width, dtype=dtype)


def cheaply(model):
    def ask(images):
        with cheap_image_gradients(model, images):
            return model(images)

    return ask


def gradients(ask, x, parameters=()):
    x = x.clone().requires_grad_()
    answers = ask(x)
    torch.manual_seed(1)
    loss = (answers * torch.randn(answers.shape, dtype=torch.float64)).sum()
    return answers.detach().clone(), torch.autograd.grad(loss, [x, *parameters])


def folds(ask, x):
    """Whether the gradient is taken by folding, and not by the convolution's own."""
    x = x.clone().requires_grad_()
    with torch.profiler.profile() as profile:
        torch.autograd.grad(ask(x).sum(), x)
    names = {event.key for event in profile.key_averages()}
    assert ("aten::col2im" in names) != ("aten::convolution_backward" in names)
    return "aten::col2im" in names


@pytest.mark.parametrize("layer", LAYERS)
def test_answers_and_gradients_are_those_of_torch(layer):
    model, x = layer_and_images(*layer)
    parameters = list(model.parameters())
    answers, found = gradients(cheaply(model), x, parameters)
    usual_answers, usual = gradients(model, x, parameters)
    assert torch.equal(answers, usual_answers)
    assert folds(cheaply(model), x)
    assert not folds(model, x)
    for each, other in zip(found, usual, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-12, atol=1e-12)


def test_blocks_of_rows_make_no_difference(monkeypatch):
    model, x = layer_and_images(*LAYERS[0])
    _, (whole,) = gradients(cheaply(model), x)
    monkeypatch.setattr(image_gradients, "_ENTRIES", 2 * 16 * 14 * 14)
    _, (parts,) = gradients(cheaply(model), x)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


def test_the_next_layer_may_write_into_the_answers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten()).double()
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64)
    answers, found = gradients(cheaply(model), x, model.parameters())
    usual_answers, usual = gradients(model, x, model.parameters())
    assert torch.equal(answers, usual_answers)
    for each, other in zip(found, usual, strict=True):
        torch.testing.assert_close(each, other)


def test_second_derivatives_also_with_respect_to_parameters():
    model, x = layer_and_images(*LAYERS[3])
    weight = model.weight.detach().clone().requires_grad_()

    def slope(images, weight):
        with cheap_image_gradients(F.conv2d, images):
            answers = F.conv2d(images, weight, model.bias.detach(), (2, 3), (1, 0))
        return torch.autograd.grad(answers.square().sum(), images, create_graph=True)[0]

    assert torch.autograd.gradcheck(slope, (x.requires_grad_(), weight))


def test_frozen_and_parametrised_filters():
    torch.manual_seed(0)
    model, x = parametrizations.weight_norm(nn.Conv2d(1, 4, 3).double()), torch.rand(2, 1, 6, 6)
    parameters = list(model.parameters())
    _, found = gradients(cheaply(model), x.double(), parameters)
    _, usual = gradients(model, x.double(), parameters)
    for each, other in zip(found, usual, strict=True):
        torch.testing.assert_close(each, other)
    model.requires_grad_(False)
    _, found = gradients(cheaply(model), x.double())
    torch.testing.assert_close(found[0], usual[0])


def test_fewer_bits_are_left_to_torch():
    model, x = layer_and_images(*LAYERS[0], dtype=torch.float32)

    def low(images):
        with torch.autocast("cpu", torch.bfloat16):
            return cheaply(model)(images)

    assert not folds(low, x)
    assert folds(cheaply(model), x)


def test_channels_last_images():
    model, x = layer_and_images(*LAYERS[1])
    last = x.contiguous(memory_format=torch.channels_last)
    _, (found,) = gradients(cheaply(model), last)
    torch.testing.assert_close(found, gradients(model, x)[1][0])


@pytest.mark.parametrize(
    "model",
    [
        nn.Conv2d(1, 4, 3, padding="same"),
        nn.Conv2d(1, 4, 3, dilation=2),
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(3, 6, 3, groups=3),
        torch.jit.script(nn.Conv2d(1, 4, 3)),
        lambda images: F.conv2d(images, torch.ones(2, 1, 3, 3), padding=1),
    ],
    ids=["same", "dilated", "colour", "groups", "script", "keywords"],
)
def test_other_convolutions_are_left_to_torch(model):
    channels = next(iter(model.parameters())).shape[1] if isinstance(model, nn.Module) else 1
    grouped = getattr(model, "groups", 1) == 3
    x = torch.rand(2, 3 if grouped else channels, 9, 9)
    assert not folds(cheaply(model), x)


def test_reflected_borders_are_padded_before():
    torch.manual_seed(0)
    model = nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect").double()
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64)
    found, usual = gradients(cheaply(model), x), gradients(model, x)
    torch.testing.assert_close(found[1][0], usual[1][0])


def test_models_that_transform_functions_or_compile_get_what_torch_does():
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 4, 3).double()
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64)

    def mapped(images):
        return torch.vmap(lambda image: layer(image.unsqueeze(0)).squeeze(0))(images).flatten(1)

    def forward(images):
        with torch.autograd.forward_ad.dual_level():
            return layer(images).flatten(1)

    compiled = torch.compile(lambda images: layer(images).flatten(1), backend="eager")
    usual = gradients(lambda images: layer(images).flatten(1), x)[1][0]
    for model in (mapped, forward, compiled):
        torch.testing.assert_close(gradients(cheaply(model), x)[1][0], usual)


def test_nothing_is_done_without_a_gradient_or_a_convolution():
    model, x = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()), torch.rand(2, 1, 6, 6)
    assert isinstance(cheap_image_gradients(model, x), nullcontext)
    assert isinstance(cheap_image_gradients(nn.Flatten(), x.requires_grad_()), nullcontext)
    with torch.no_grad():
        assert not call(model, x).requires_grad


class Net(nn.Module):
    """Two convolutions in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 3)
        self.double()

    def forward(self, x):
        return self.conv2(F.relu(self.conv(x))).mean((2, 3))


def images():
    torch.manual_seed(2)
    return torch.rand(3, 1, 9, 9, dtype=torch.float64)


def assert_as_torch(model, x=None):
    """The gradient of images is that of torch, and so are the answers."""
    x = images() if x is None else x
    (answers, (found,)), (usual_answers, (usual,)) = (
        gradients(cheaply(model), x),
        gradients(model, x),
    )
    assert torch.equal(answers, usual_answers)
    torch.testing.assert_close(found, usual, rtol=1e-9, atol=1e-12)


class Adapted(Net):
    """Takes a step of its own parameters before it answers."""

    def forward(self, x):
        loss = super().forward(x).square().sum()
        parameters = [self.conv.weight, self.conv.bias]
        moves = torch.autograd.grad(loss, parameters, create_graph=True)
        filters, bias = (each - 0.1 * move for each, move in zip(parameters, moves, strict=True))
        return self.conv2(F.relu(F.conv2d(x, filters, bias, 1, 1))).mean((2, 3))


class Checkpointed(Net):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def test_models_that_differentiate_themselves_or_keep_nothing():
    assert_as_torch(Adapted())
    assert_as_torch(Checkpointed())
    assert_as_torch(Checkpointed().requires_grad_(False))


def test_gradients_of_parameters_may_be_differentiated_with_respect_to_images():
    found = []
    for ask in (cheaply, lambda model: model):
        model, x = Net(), images().requires_grad_()
        slope = torch.autograd.grad(
            ask(model)(x).square().sum(), model.conv.weight, create_graph=True
        )[0]
        found += torch.autograd.grad(slope.square().sum(), x)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_networks_that_are_mapped_over_their_parameters():
    networks = [Net() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(networks)

    def mean(x):
        ask = functools.partial(torch.func.functional_call, networks[0])
        mapped = torch.vmap(lambda p, b: ask((p, b), (x,)))
        return mapped(parameters, buffers).mean(0)

    assert_as_torch(mean)


def test_batches_of_gradients():
    found = []
    for ask in (cheaply, lambda model: model):
        x = images().requires_grad_()
        answers = ask(Net())(x)
        each = torch.eye(answers.numel(), dtype=torch.float64).view(-1, *answers.shape)
        found += torch.autograd.grad(answers, x, each, is_grads_batched=True)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


class Doubled(torch.Tensor):
    """Filters that count twice."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.conv2d:
            x, weight, *more = args
            with torch._C.DisableTorchFunctionSubclass():
                return func(x, (weight * 2).as_subclass(torch.Tensor), *more)
        return super().__torch_function__(func, types, args, kwargs)


class Squaring(TorchFunctionMode):
    """Convolutions see the squares of their images."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.conv2d:
            args = (args[0].square(), *args[1:])
        return func(*args, **(kwargs or {}))


def test_what_others_make_of_a_convolution_stays_so():
    model = Net()
    model.conv.weight = nn.Parameter(model.conv.weight.detach().as_subclass(Doubled))
    assert_as_torch(model)
    with Squaring():
        assert_as_torch(Net())
    assert_as_torch(
        lambda x: F.conv2d(x.to_mkldnn(), torch.ones(2, 1, 3, 3)).to_dense(), images().float()
    )


class Odd(Net):
    """Compares by values, which are no truth."""

    def __eq__(self, other):
        return self.conv.weight == other.conv.weight

    __hash__ = nn.Module.__hash__


class Closed(Net):
    def modules(self):
        raise RuntimeError("not for you")


@pytest.mark.parametrize("kind", [Odd, Closed])
def test_modules_that_compare_or_list_their_parts_in_ways_of_their_own(kind):
    model = kind()
    assert_as_torch(model)
    assert_as_torch(model)


def test_a_compiled_network_is_not_compiled_once_more():
    model, x = torch.compile(Net(), backend="eager", fullgraph=True), images().requires_grad_()
    usual = model(x)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(cheaply(model)(x), usual)
    torch.compiler.reset()


@pytest.mark.parametrize(
    "how", [((2,),), ((2,), (1,)), ([2, 1], [1, 0]), (2, 1), (torch.Size([1, 2]),)]
)
def test_every_form_of_stride_and_padding_that_torch_takes(how):
    torch.manual_seed(0)
    weight = torch.rand(2, 1, 3, 3, dtype=torch.float64)
    assert_as_torch(lambda x: F.conv2d(x, weight, None, *how))


def test_a_network_that_is_traced_on_the_way():
    def traced(x):
        return torch.jit.trace(Net(), x)(x)

    assert_as_torch(traced)


def test_products_of_matrices_that_round_are_not_taken():
    model, x = nn.Conv2d(1, 4, 3), images().float()
    assert folds(cheaply(model), x)
    torch.set_float32_matmul_precision("medium")
    try:
        assert not folds(cheaply(model), x)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_autocast_around_the_gradient_changes_nothing():
    x = images().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(call(Net().float(), x).sum(), x)
    usual = torch.autograd.grad(call(Net().float(), x).sum(), x)
    assert torch.equal(*found, *usual)


def test_it_is_done_where_it_pays():
    assert folds(cheaply(nn.Conv2d(1, 64, 3)), torch.rand(1, 1, 28, 28))
    assert not folds(cheaply(nn.Conv2d(1, 8, 15)), torch.rand(2, 1, 96, 96))


def test_the_size_of_a_batch_makes_no_difference():
    x, y = sp.data.sample("mnist", limit=24)
    problem = sp.Ensemble([sp.models.load("mnist-ampgd")], x, y)
    whole, parts = (sp.attack(problem, sp.l2(1.0), steps=5, batch_size=n) for n in (24, 5))
    assert torch.equal(whole.fooled, parts.fooled)
    torch.testing.assert_close(whole.delta, parts.delta, rtol=0, atol=1e-6)


def test_an_attack_on_a_grey_network_takes_it():
    x, y = sp.data.sample("mnist", limit=4)
    with torch.profiler.profile() as profile:
        sp.attack(sp.Ensemble([sp.models.load("mnist-c")], x, y), sp.linf(0.05), steps=2)
    assert "aten::col2im" in {event.key for event in profile.key_averages()}
