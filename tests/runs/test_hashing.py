"""Hashes of models: equal for the same model in another process, different after any change."""

from __future__ import annotations

import copy
import functools
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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


def test_the_hash_of_a_shipped_network_is_the_same_in_another_process() -> None:
    code = (
        "from saddlepoint import models; from saddlepoint.runs.hashing import hash_model;"
        "print(hash_model(models.load('mnist-a')))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == hash_model(models.load("mnist-a"))
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
