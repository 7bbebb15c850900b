"""How often perturbations found on three networks fool the fourth: ``python -m benchmarks transfer``.

Every shipped network of MNIST and CIFAR-10 is once the victim, and the three others are the surrogates that
attacks may ask. All methods get ten gradients per image and surrogate. Each part of the images is stored as
soon as it is done, and docs/TRANSFER_RESULTS.md is written from the store; called again, it goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp

from .peers import machine
from .peers.cells import Store
from .peers.methods import missing
from .stores import exit_with
from .timing import Figure, at_least
from .transfer_methods import METHODS, STEPS, Found, Halved, Work
from .transfer_page import LETTERS, outcomes, render

STORE, PAGE = Path("docs/results/transfer.json"), Path("docs/TRANSFER_RESULTS.md")
FIRST, IMAGES, PART = 6000, 200, 50
"""Number of the first test image, how many are taken, and how many are stored at once."""
_ROOMS = ("solver", "problems", "projections", "transforms")
_FILES = ("rules.py", "losses.py", "directions.py", "calls.py", "streams.py", "models/small.py")
RADII = {"mnist": 0.2, "cifar10": 8 / 255}


@functools.cache
def code() -> str:
    """A digest of what these numbers depend on; the networks are known by the hashes of their parameters."""
    root = Path(sp.__file__).parent
    rooms = (path for room in _ROOMS for path in sorted((root / room).rglob("*.py")))
    here = Path(__file__).with_name("transfer_methods.py")
    return machine.digest([*rooms, *(root / name for name in _FILES), here])


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
        "code": code(),
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
    """Measure what is not stored yet, write the page, and see that no method is missing anywhere."""
    main([])
    found = outcomes(Store(STORE).content, METHODS)
    for data, victim in itertools.product(RADII, LETTERS):
        methods = found.get(f"{data} {victim}", {})
        there = sum(len(each.victim) for each in methods.values()) / (IMAGES * len(METHODS))
        yield at_least(f"transfer to {data} {victim}: share of rows that is measured", there, 1.0)


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
    store = Store(options.store, read_only=options.render)
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
    exit_with(main)
