"""What methods are compared on: networks, images and a radius at which they differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

import saddlepoint as sp

THIRD_PARTY = {"resnet18": "ResNet-18", "mnist": "robust CNN"}
"""Networks inside pyautoattack, by the function in examples/pyautoattack_networks.py that loads them."""


@dataclass(frozen=True)
class Case:
    """One table: in which room, on which data, which networks, and where perturbations may be."""

    room: str
    data: str
    networks: tuple[str, ...]
    ball: sp.LpBall
    radius: str  # as it is written

    @property
    def key(self) -> str:
        return f"{self.room}: {self.title}"

    @property
    def title(self) -> str:
        networks = ", ".join(THIRD_PARTY.get(name, name[-1].upper()) for name in self.networks)
        norm = {math.inf: "linf", 2.0: "l2", 1.0: "l1"}[self.ball.p]
        data = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[self.data]
        return f"{data} {{{networks}}}, {norm} {self.radius}"

    @property
    def deep(self) -> bool:
        """Whether a network is so slow without a GPU that fewer images have to do."""
        return "resnet18" in self.networks

    def models(self) -> list[nn.Module]:
        """Without gradients of parameters, which some libraries would compute and others not."""
        return [network(name).requires_grad_(False) for name in self.networks]

    def images(self, count: int) -> tuple[Tensor, Tensor]:
        x, y = sp.data.sample(self.data)
        # Settings of ours were chosen on the first 300 images of MNIST, of which these are none; those of l1
        # steps on the first thousand, of which they are some.
        first = 300 if self.data == "mnist" else 0
        if not 1 <= count <= len(x) - first:
            raise ValueError(
                f"`--images` must be from 1 to {len(x) - first} for {self.data}, got {count}."
            )
        return x[first : first + count], y[first : first + count]


def network(name: str) -> nn.Module:
    if name not in THIRD_PARTY:
        return sp.models.load(name)
    from examples import pyautoattack_networks

    model: nn.Module = getattr(pyautoattack_networks, name)()
    return model


def case_of(room: str, data: str, networks: str, p: float, radius: str) -> Case:
    names = tuple(each if each in THIRD_PARTY else f"{data}-{each}" for each in networks.split(" "))
    above, _, below = radius.partition("/")
    return Case(room, data, names, sp.LpBall(p, float(above) / float(below or 1)), radius)


CASES = (
    case_of("a", "mnist", "a c d", math.inf, "0.2"),
    case_of("a", "mnist", "a b c d", math.inf, "0.2"),
    case_of("a", "mnist", "mnist a c d", math.inf, "0.3"),
    case_of("a", "cifar10", "a b c d", math.inf, "4/255"),
    case_of("a", "cifar10", "resnet18 a c d", math.inf, "1/255"),
    case_of("b", "mnist", "a", math.inf, "0.1"),
    case_of("b", "mnist", "a", 2.0, "1.5"),
    case_of("b", "mnist", "a", 1.0, "8"),
    case_of("b", "mnist", "mnist", math.inf, "0.3"),
    case_of("b", "mnist", "mnist", 2.0, "2"),
    case_of("b", "mnist", "mnist", 1.0, "8"),
    case_of("b", "cifar10", "resnet18", math.inf, "1/255"),
    case_of("b", "cifar10", "resnet18", 2.0, "0.15"),
    case_of("b", "cifar10", "resnet18", 1.0, "3"),
    case_of("d", "mnist", "mnist", math.inf, "0.3"),
    case_of("d", "mnist", "mnist", 2.0, "2"),
    case_of("d", "mnist", "mnist", 1.0, "8"),
    case_of("d", "mnist", "a", math.inf, "0.1"),
    case_of("d", "cifar10", "resnet18", math.inf, "8/255"),
)
