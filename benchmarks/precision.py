"""What fewer bits and another memory layout bring on one thread of a CPU that computes in bfloat16.

Times are those of this process alone: on one thread they are what a clock shows on a machine that does nothing
else.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.precision import is_native

from .timing import Figure, SkippedError, at_least, at_most, one_thread, ratios

IMAGES = 64
MANY = 128  # of which one image is less than a point
ROUNDS = 3
_plain = torch.contiguous_format


def figures() -> Iterator[Figure]:
    if not is_native(torch.device("cpu")):
        raise SkippedError("this CPU does not compute in bfloat16 by itself")
    with one_thread():
        yield from _attack()
        yield at_least("AMPGD step of VGG16 (E), float32 over bfloat16, time", _training(), 1.6)
        yield from _formats()
        yield from _auto()


def _in_plain_layout(name: str) -> nn.Module:
    """A shipped network as a user would bring it."""
    network = copy.deepcopy(sp.models.load(name))
    return network.to(memory_format=_plain)  # type: ignore[call-overload, no-any-return]


def _attack() -> Iterator[Figure]:
    """Network B of MNIST as a user would bring it, end to end: a look, the search and the verdicts.

    All ways run in every round, and the order is turned round. Of "auto" each time is the first: the network is
    a new one, so that what "auto" measures to decide is part of its time.
    """
    x, y = sp.data.sample("mnist", MANY)
    ways = ("float32", "bfloat16", "bfloat16+channels_last", "auto")
    spent: dict[str, list[float]] = {way: [] for way in ways}
    rates: dict[str, float] = {}
    for number in range(-1, ROUNDS):
        rows = (
            slice(None) if number >= 0 else slice(4)
        )  # what torch does the first time is in no round
        for way in ways[::-1] if number % 2 else ways:
            problem = sp.Ensemble([_in_plain_layout("mnist-b")], x[rows], y[rows])
            began = time.process_time()
            result = sp.attack(problem, sp.linf(0.2), precision=way)  # type: ignore[arg-type]
            if number >= 0:
                spent[way].append(time.process_time() - began)
                rates[way] = 100 * sp.success_rates(problem, result.delta).all
    for way in ways[1:]:
        gain = [full / low for full, low in zip(spent["float32"], spent[way], strict=True)]
        shown = "auto with its own measurement" if way == "auto" else way
        yield at_least(f"attack on MNIST B, float32 over {shown}, time", gain, 1.6)
        lost = abs(rates["float32"] - rates[way])
        yield at_most(f"attack on MNIST B: ASR_all, {way} from float32, points", lost, 1.0)


def _training() -> list[float]:
    x, y = sp.data.sample("cifar10", 16)
    model = sp.models.build("E", channels=3, size=32).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    threats = {"linf": sp.linf(8 / 255), "l2": sp.l2(0.5)}

    def step(precision: Any) -> None:
        sp.ampgd_step(*(model, optimizer, x, y, threats), steps=3, iteration=0, precision=precision)

    return ratios(lambda: step("float32"), lambda: step("bfloat16"), 5, time.process_time)


def _formats() -> Iterator[Figure]:
    """Shipped networks in both layouts: one gradient of the images. The last is the one that stays plain."""
    for name, bounded in (
        ("mnist-c", partial(at_least, limit=1.1)),
        ("mnist-d", partial(at_least, limit=1.1)),
        ("cifar10-c", partial(at_least, limit=1.15)),
        ("cifar10-d", partial(at_least, limit=1.15)),
        ("mnist-ampgd", partial(at_most, limit=1.05)),
    ):
        x, _ = sp.data.sample(name.partition("-")[0], IMAGES)

        def gradient(network: nn.Module, x: torch.Tensor = x) -> None:
            leaf = x.clone().requires_grad_()
            torch.autograd.grad(network(leaf).sum(), leaf)

        plain = _in_plain_layout(name)
        # Not by `sp.models.channels_last`, whose rule is what this is to show.
        last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        gain = ratios(
            *(lambda n=network: gradient(n) for network in (plain, last)),  # type: ignore[misc]
            9,
            time.process_time,
        )
        yield bounded(f"gradient of {name}, plain layout over channels last, time", gain)


def _auto() -> Iterator[Figure]:
    """That "auto" loses nothing: its attack over the model as it is, once it has been measured."""
    for name in ("mnist-a", "mnist-c", "mnist-d", "mnist-ampgd"):  # the last a small strided CNN
        x, y = sp.data.sample("mnist", 4 * IMAGES)
        problem = sp.Ensemble([_in_plain_layout(name)], x, y)

        def run(precision: Any, problem: sp.Ensemble = problem) -> None:
            sp.attack(problem, sp.l2(0.5), steps=20, precision=precision)

        time_of_auto = ratios(
            lambda run=run: run("auto"),  # type: ignore[misc]
            lambda run=run: run("float32"),  # type: ignore[misc]
            3,
            time.process_time,
        )
        yield at_most(
            f"attack on {name}: auto after its measurement over float32, time", time_of_auto, 1.05
        )
