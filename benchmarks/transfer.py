"""How often perturbations found on three networks fool the fourth: ``python -m benchmarks transfer``.

Every shipped network of MNIST and CIFAR-10 is once the victim, and the three others are the surrogates that
attacks may ask. All methods get ten gradients per image and surrogate. Each part of the images is stored as
soon as it is done, and docs/TRANSFER.md is written from the store; called again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint import directions
from saddlepoint import transforms as T

from .peers import machine
from .peers.cells import Store
from .peers.methods import MeanLogits, load, missing
from .timing import Figure, at_least
from .transfer_page import LETTERS, outcomes, render

STORE, PAGE = Path("docs/results/transfer.json"), Path("docs/TRANSFER.md")
FIRST, IMAGES, PART = 6000, 200, 50
"""Number of the first test image, how many are taken, and how many are stored at once."""
STEPS = 10
"""Gradients per image and surrogate: the default of MI-FGSM."""
RADII = {"mnist": 0.2, "cifar10": 8 / 255}
DIVERSE = T.random_crop_resize(0.8, 1.0)
STEP = 1 / 4
"""Step size of signed steps in radii: that of torchattacks' defaults, 2/255 of 8/255."""


@dataclass(frozen=True)
class Work:
    """What a method is given: three surrogates, n images, a radius, a seed."""

    models: Sequence[nn.Module]
    x: Tensor
    y: Tensor
    eps: float
    seed: int


@dataclass(frozen=True)
class Found:
    """Perturbed images, (n, ...), and how many gradients they took, all images together."""

    images: Tensor
    gradients: int


Method = Callable[[Work], Found]


class Halved(nn.Module):
    """A network that computes in bfloat16: B, the slowest, while attacks search. Verdicts are in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            logits: Tensor = self.model(images)
        return logits.float()


def _problem(work: Work, *, mean: bool, diverse: bool) -> sp.AbstractProblem:
    models = [MeanLogits(work.models)] if mean else list(work.models)
    if diverse:
        return sp.Product(models, [DIVERSE], work.x, work.y, seed=work.seed)
    return sp.Ensemble(models, work.x, work.y)


def _attack(
    rule: sp.AbstractWeightRule, *, mean: bool = False, diverse: bool = False, **options: Any
) -> Method:
    def run(work: Work) -> Found:
        problem = _problem(work, mean=mean, diverse=diverse)
        ball = sp.linf(work.eps)
        result = sp.attack(problem, ball, rule=rule, steps=STEPS, seed=work.seed, **options)
        # The last iterate of a row is judged and not differentiated.
        return Found(result.adversarial, int((result.num_forwards - 1).sum()))

    return run


def _signs(
    rule: sp.AbstractWeightRule,
    *,
    mean: bool = False,
    diverse: bool = False,
    momentum: float = 0.0,
    loss: sp.Loss = sp.cw_margin,
) -> Method:
    def run(work: Work) -> Found:
        result = sp.apgda(
            _problem(work, mean=mean, diverse=diverse),
            sp.linf(work.eps),
            rule=rule,
            loss=loss,
            steps=STEPS,
            step_size=STEP * work.eps,
            direction=directions.sign,
            momentum=momentum,
        )
        return Found(result.adversarial, int((result.num_forwards - 1).sum()))

    return run


def _torchattacks(kind: str, **options: Any) -> Method:
    def run(work: Work) -> Found:
        attack = getattr(load("torchattacks"), kind)
        size = {"eps": work.eps, "alpha": STEP * work.eps, "steps": STEPS}
        with torch.random.fork_rng(devices=[]):  # its input diversity draws from the global stream
            torch.manual_seed(work.seed)
            images: Tensor = attack(MeanLogits(work.models), **size, **options)(work.x, work.y)
        return Found(images, STEPS * len(work.x))

    return run


_GO: dict[str, Any] = {"keep_going": True}
_AVERAGE, _MINMAX = sp.Average(), sp.MinMax()
_SHARES = (
    ("min-max", _MINMAX, False),
    ("average", _AVERAGE, False),
    ("mean logits", _AVERAGE, True),
)
METHODS: dict[str, Method] = {
    "attack, min-max, stops": _attack(_MINMAX),
    "attack, min-max": _attack(_MINMAX, **_GO),
    "attack, average": _attack(_AVERAGE, **_GO),
    "attack, min-max, 8 bits": _attack(_MINMAX, quantize=256, **_GO),
    **{
        ", ".join(["signs", name, *words]): _signs(
            rule, mean=mean, diverse="diverse" in words, momentum=float("momentum" in words)
        )
        for words in ((), ("momentum",), ("diverse", "momentum"))
        for name, rule, mean in _SHARES
    },
    "torchattacks MI-FGSM": _torchattacks("MIFGSM", decay=1.0),
    "torchattacks DI-FGSM": _torchattacks("DIFGSM"),
}
"""By name: how steps are taken, how the surrogates are weighed, and what is added."""


@functools.cache
def networks(data: str) -> dict[str, nn.Module]:
    return {n: sp.models.channels_last(sp.models.load(f"{data}-{n.lower()}")) for n in LETTERS}


@functools.cache
def images(data: str, count: int) -> tuple[Tensor, Tensor, list[int]]:
    """The first test images from number 6000 on that all four networks have right, labels, and numbers."""
    x, y = sp.data.load(data, split="test")
    kept: list[int] = []
    for start in range(FIRST, len(x), 100):
        few = slice(start, start + 100)
        rates = sp.success_rates(
            sp.Ensemble(list(networks(data).values()), x[few], y[few]), torch.zeros_like(x[few])
        )
        kept += (start + rates.correct.all(dim=1).nonzero().flatten()).tolist()
        if len(kept) >= count:
            return x[kept[:count]], y[kept[:count]], kept[:count]
    raise ValueError(f"`images` must be at most {len(kept)} for {data}, got {count}.")


def measure(store: Store, data: str, victim: str, number: int, count: int, seed: int) -> None:
    """Add the cells of one victim that are missing: every method on `PART` images from `number` on."""
    cards = {n: sp.models.card(f"{data}-{n.lower()}").sha256 for n in LETTERS}
    store.content["networks"].update({f"{data}-{n.lower()}": each for n, each in cards.items()})
    settings = {
        "images": count,
        "first": FIRST,
        "eps": RADII[data],
        "steps": STEPS,
        "seed": seed,
        "networks": cards,
        "code": machine.code(),
        "torchattacks": machine.versions()["torchattacks"],
    }
    about = {"begun": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "cpu": machine.cpu()}
    key = f"{data} {victim}"
    done = store.open(key, settings, about)
    wanted = [
        name
        for name in METHODS
        if f"{name}/{number}" not in done
        and not (name.startswith("torchattacks") and missing("torchattacks"))
    ]
    if not wanted:
        return
    x, y, _ = images(data, count)
    there = networks(data)
    surrogates = {n: model for n, model in there.items() if n != victim}
    asked = [Halved(model) if n == "B" else model for n, model in surrogates.items()]
    for name in wanted:
        few = slice(number, number + PART)
        began = time.process_time()
        work = Work(asked, x[few], y[few], RADII[data], seed)
        found = METHODS[name](work)
        seconds = time.process_time() - began
        cell = judged(found, work, there[victim], list(surrogates.values()))
        store.add(key, f"{name}/{number}", {**cell, "seconds": round(seconds, 2)})
        print(f"{key}, {name}, {number}: {cell['victim'].count('1')} of {len(x[few])}", flush=True)


def judged(
    found: Found, work: Work, victim: nn.Module, surrogates: Sequence[nn.Module]
) -> dict[str, Any]:
    """Of every image whether the victim, and whether all surrogates, are wrong about it, by the one judge.

    Raises:
        ValueError: A method has left the ball.
    """
    delta = found.images.detach() - work.x
    if float(delta.abs().max()) > work.eps + 1e-5:
        raise ValueError(f"`images` must be within {work.eps:g}, got {float(delta.abs().max()):g}.")
    delta = delta.clamp(-work.x, 1 - work.x)
    rates = sp.success_rates(sp.Ensemble([victim, *surrogates], work.x, work.y), delta)
    marks = {"victim": rates.fooled[:, 0], "surrogates": rates.fooled[:, 1:].all(dim=1)}
    told: dict[str, Any] = {
        name: "".join("1" if each else "0" for each in table.tolist())
        for name, table in marks.items()
    }
    return {**told, "gradients": found.gradients}


def figures() -> Iterator[Figure]:
    """Measure what is not stored yet, write the page, and say how much was measured."""
    main([])
    for key, methods in outcomes(Store(STORE).content, METHODS).items():
        most = max(each.rate for each in methods.values())
        yield at_least(f"transfer to {key}: best rate of {len(methods)} methods", most, 0.0)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES, help="per victim")
    parser.add_argument("--only", default="", help='victims whose key has this in it, as "mnist A"')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--render", action="store_true", help="write the page again, run nothing")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    store = Store(options.store)
    # Some images of every victim first, then more: what is stored is a whole table at any time.
    for number in range(0, 0 if options.render else options.images, PART):
        for data, victim in itertools.product(RADII, LETTERS):
            if options.only in f"{data} {victim}":
                measure(store, data, victim, number, options.images, options.seed)
    options.out.write_text(
        render(store.content, options.store.as_posix(), METHODS), encoding="utf-8"
    )
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
