"""Hashes of models: equal for the same model in another process, different after any change."""

from __future__ import annotations

import copy
import functools
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from children import shared
from saddlepoint import models
from saddlepoint.runs.hashing import hash_model, hash_settings, hash_tensors


class Scaled(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.factor = factor
        self.register_buffer("shift", torch.zeros(1), persistent=False)
        with torch.no_grad():
            self.net.weight.fill_(0.5), self.net.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.factor


class Scaling:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factor


FACTOR = 1.0


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR


def test_a_model_has_one_hash_and_every_change_of_it_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = hash_model(Scaled())
    assert base is not None
    assert base == hash_model(Scaled())
    changed = [Scaled(factor=2.0), Scaled(), Scaled(), Scaled().eval()]
    with torch.no_grad():
        changed[1].net.weight[0, 0] += 1e-6
        changed[2].shift.fill_(1.0)  # not in the state dict
    hashes = [hash_model(model) for model in changed]
    assert len({base, *hashes}) == 5
    monkeypatch.setattr(Scaled, "forward", lambda self, x: self.net(x) * self.factor + 1)
    assert hash_model(Scaled()) not in (base, None)


def _hooked(register: str, factor: float, **options: bool) -> nn.Module:
    model = Scaled()
    getattr(model.net, register)(lambda *given: given[-1] * factor, **options)
    return model


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_pre_hook",
        "register_forward_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_hooks_are_a_part_of_the_model(register: str) -> None:
    one, two = _hooked(register, 1.0), _hooked(register, 0.0)
    assert hash_model(one) == hash_model(_hooked(register, 1.0)) is not None
    assert len({hash_model(model) for model in (Scaled(), one, two)}) == 3


def test_what_a_hook_is_given_is_a_part_of_the_model() -> None:
    name = "register_forward_hook"
    models = [_hooked(name, 1.0), _hooked(name, 1.0, with_kwargs=True)]
    models.append(_hooked(name, 1.0, always_call=True))
    assert len({hash_model(model) for model in models}) == 3


def test_the_order_of_hooks_matters_and_their_numbers_do_not() -> None:
    def add(module: nn.Module, given: tuple[Tensor]) -> Tensor:
        return given[0] + 1

    def double(module: nn.Module, given: tuple[Tensor]) -> Tensor:
        return given[0] * 2

    hashes = []
    for hooks in ((add, double), (double, add), (add, double)):
        model = Scaled()
        for hook in hooks:
            model.register_forward_pre_hook(hook)
        hashes.append(hash_model(model))
    assert hashes[0] == hashes[2] != hashes[1]


def test_an_object_that_comes_again_is_known_by_where_it_came_first() -> None:
    a, b = Scaling(1.0), Scaling(2.0)

    def chain(*steps: Scaling) -> Scaling:
        chained = Scaling(0.0)
        chained.steps = steps  # type: ignore[attr-defined]
        return chained

    assert hash_model(chain(a, b, a)) != hash_model(chain(a, b, b))
    assert hash_model(chain(a, b, a)) == hash_model(chain(a, b, a)) is not None


def test_functions_partials_methods_and_objects_are_hashed_with_what_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Scaled()
    one = hash_model(functools.partial(torch.mul, other=1.0))
    two = hash_model(functools.partial(torch.mul, other=2.0))
    assert one is not None
    assert one != two
    assert hash_model(Scaling(1.0)) == hash_model(Scaling(1.0)) != hash_model(Scaling(2.0))
    assert hash_model(net.forward) != hash_model(Scaled(2.0).forward)

    def around(model: nn.Module):  # type: ignore[no-untyped-def]
        return lambda x: model(x)

    assert hash_model(around(net)) == hash_model(around(Scaled())) is not None
    assert hash_model(around(net)) != hash_model(around(Scaled(2.0)))
    before = hash_model(scaled)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 2.0)
    assert before not in (None, hash_model(scaled))


def test_what_cannot_be_hashed_has_no_hash() -> None:
    generator, file = random.SystemRandom(), Path(__file__)
    assert hash_model(lambda x: x * generator.random()) is None
    with file.open() as stream:
        assert hash_model(lambda x: x + len(stream.name)) is None


def test_modules_that_hold_themselves_are_walked_once() -> None:
    model = Scaled()
    model.__dict__["again"] = model
    assert hash_model(model) is not None


def test_the_hash_of_a_shipped_network_is_the_same_in_another_process(tmp_path: Path) -> None:
    code = (
        "from saddlepoint import models; from saddlepoint.runs.hashing import hash_model;"
        "print(hash_model(models.load('mnist-a')))"
    )
    other = shared().start(cwd=tmp_path, patch=f"{code}; raise SystemExit")
    assert other.communicate()[0].strip() == hash_model(models.load("mnist-a"))
    assert hash_model(models.load("mnist-a")) != hash_model(models.load("mnist-b"))


def test_settings_and_tensors() -> None:
    assert hash_settings({"a": 1, "b": [2]}) == hash_settings({"b": [2], "a": 1})
    assert hash_settings({"a": 1}) != hash_settings({"a": 2})
    x = torch.zeros(2, 3)
    assert hash_tensors({"x": x}) != hash_tensors({"x": x.reshape(3, 2)})
    assert hash_tensors({"x": x}) != hash_tensors({"x": x.double()})
    assert hash_tensors({"x": x}) != hash_tensors({"y": x})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array(["cat", "dog"]), np.array(["cat", "cow"])),
        (np.array([{"a": 1}, None], dtype=object), np.array([{"a": 2}, None], dtype=object)),
        (np.array([1.0], dtype=">f4"), np.array([2.0], dtype=">f4")),
        (torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse()),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 3j]).conj()),
    ],
    ids=["words", "objects", "big-endian", "sparse", "conjugate"],
)
def test_attributes_of_every_kind_are_hashed(one: object, other: object) -> None:
    def model(value: object) -> nn.Module:
        made = nn.Identity()
        made.attribute = value
        return made

    assert hash_model(model(one)) is not None
    assert hash_model(model(one)) == hash_model(model(copy.deepcopy(one)))
    assert hash_model(model(one)) != hash_model(model(other))


def test_what_raises_cannot_be_hashed() -> None:
    class Odd:
        def __getattribute__(self, name: str) -> object:
            raise RuntimeError(name)

    model = nn.Identity()
    model.attribute = [Odd()]
    assert hash_model(model) is None
