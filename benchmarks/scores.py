"""Attacks that see scores only, beside the white box and beside Square (AutoAttack) on the worst model.

``python -m benchmarks scores`` measures, stores every part of the rows as soon as it is done in
docs/results/scores.json, and writes the tables of docs/scores.md; called again, it goes on.
The table of results is of test images from number 3000 on, two seeds; what was tried on the way is of 50 test
images from number 1000 on: `ideas` can be measured again with what the library has, the trials were made with
scratch code on the way to it and are kept as they were printed. One query is one perturbed image shown to all
three networks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.evaluation.other_libraries import library

from .peers import machine
from .peers.cells import Store
from .stores import exit_with
from .timing import Figure, at_least

STORE = Path("docs/results/scores.json")
PAGE = Path("docs/scores.md")
QUERIES, EPS, PART = 5000, 0.2, 25
NETWORKS = ("mnist-a", "mnist-c", "mnist-d")
RESULTS = "results"
IDEAS = "ideas"
TRIALS = Path("docs/results/scores-trials.json")
MARK = "<!-- {}: python -m benchmarks scores -->"

Method = Callable[[sp.Ensemble, int], tuple[Tensor, Tensor]]
"""A problem of networks with gradients and a seed, to perturbations, (B, C, H, W), and queries, (B,)."""


class ChannelsLast(nn.Module):
    """A network in the memory layout in which it is fastest; its numbers are the same but for rounding."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images.contiguous(memory_format=torch.channels_last))


def problem(first: int, rows: int) -> sp.Ensemble:
    x, y = sp.data.load("mnist", split="test")
    networks = [sp.models.load(name) for name in NETWORKS]
    networks[2] = ChannelsLast(networks[2]).eval()
    few = slice(first, first + rows)
    return sp.Ensemble(networks, x[few], y[few], names=list(NETWORKS))


def blind(gradient: sp.Estimated | sp.Searched) -> Method:
    """Our attack when the networks answer scores only."""

    def run(problem: sp.Ensemble, seed: int) -> tuple[Tensor, Tensor]:
        declared = sp.Ensemble(
            [sp.scores(each) for each in problem.models], problem.x, problem.labels[:, 0]
        )
        declared.rows = problem.rows
        result = sp.attack(declared, sp.linf(EPS), gradient=gradient, seed=seed)
        return result.delta, result.num_forwards

    return run


def white(problem: sp.Ensemble, seed: int) -> tuple[Tensor, Tensor]:
    """The same attack with gradients."""
    result = sp.attack(problem, sp.linf(EPS), seed=seed)
    return result.delta, result.num_forwards


def square(problem: sp.Ensemble, seed: int) -> tuple[Tensor, Tensor]:
    """AutoAttack's Square on what the network of largest margin answers."""
    worst = WorstModel(problem)
    attack = library("pyautoattack.square", "square").SquareAttack(
        worst,
        norm="Linf",
        eps=EPS,
        n_queries=QUERIES,
        p_init=0.8,
        n_restarts=1,
        resc_schedule=False,
        seed=seed,
        device="cpu",
    )
    x, y = problem.x, problem.labels[:, 0]
    return attack.perturb(x, y).detach() - x, worst.shown


def judged(problem: sp.Ensemble, delta: Tensor) -> Tensor:
    """Which rows fool all networks, (B,), by the one judge for all methods.

    Raises:
        ValueError: A method has left the ball.
    """
    if float(delta.abs().max()) > EPS + 1e-6:
        raise ValueError(f"`delta` must be within {EPS:g}, got {float(delta.abs().max()):g}.")
    inside = delta.clamp(-problem.x, 1 - problem.x)
    return sp.success_rates(problem, inside).fooled.all(dim=1)


class WorstModel(nn.Module):
    """The logits of the network whose margin is largest: misclassified exactly where all of them are wrong.

    Square shows any of the rows in any order, and does not say which; a row is the image that is nearest.
    """

    def __init__(self, problem: sp.Ensemble) -> None:
        super().__init__()
        self.problem, self.shown = problem, torch.zeros(len(problem), dtype=torch.long)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            far = (images.unsqueeze(1) - self.problem.x.unsqueeze(0)).abs().flatten(2).amax(dim=2)
            rows = far.argmin(dim=1)
            self.shown += torch.bincount(rows, minlength=len(self.problem))
            few = self.problem.take(rows)
            logits = few.logits(images - few.x)
            hardest = sp.cw_margin(logits, few.labels).argmax(dim=1)
            return logits[torch.arange(len(images)), hardest]


METHODS: Mapping[str, Mapping[str, Method]] = {
    RESULTS: {
        "white box: attack": white,
        "Square (AutoAttack), worst model": square,
        "searched()": blind(sp.searched(QUERIES)),
        "estimated()": blind(sp.estimated(QUERIES)),
    },
    IDEAS: {
        "Square (AutoAttack), worst model": square,
        "searched(objective='worst')": blind(sp.searched(QUERIES, objective="worst")),
        "searched(objective='clipped')": blind(sp.searched(QUERIES, objective="clipped")),
        "searched()": blind(sp.searched(QUERIES)),
        "estimated(search=0)": blind(sp.estimated(QUERIES, search=0.0)),
        "estimated(search=0, side=2)": blind(sp.estimated(QUERIES, search=0.0, side=2)),
        "estimated(search=0, distance=0.05)": blind(
            sp.estimated(QUERIES, search=0.0, distance=0.05)
        ),
        "estimated(search=0, per_step=64)": blind(sp.estimated(QUERIES, search=0.0, per_step=64)),
        "estimated()": blind(sp.estimated(QUERIES)),
        "estimated(search=0.4)": blind(sp.estimated(QUERIES, search=0.4)),
        "estimated(search=0, directions='signs', side=4, per_step=64)": blind(
            sp.estimated(QUERIES, search=0.0, directions="signs", side=4, per_step=64)
        ),
        "estimated(search=0, directions='signs', side=2, per_step=64, momentum=0.75)": blind(
            sp.estimated(
                QUERIES, search=0.0, directions="signs", side=2, per_step=64, momentum=0.75
            )
        ),
    },
}
IMAGES = {RESULTS: (3000, 100, (0, 1)), IDEAS: (1000, 50, (0,))}
"""First test image, rows, seeds."""


def measure(table: str, store: Store) -> None:
    """Add the cells that are missing, part by part of the rows, all methods on the same ones."""
    first, rows, seeds = IMAGES[table]
    hashes = {name: sp.models.card(name).sha256 for name in NETWORKS}
    store.content["networks"].update(hashes)
    settings = {"first": first, "eps": EPS, "queries": QUERIES, "networks": hashes}
    done = store.open(table, settings, {"cpu": machine.cpu()})
    whole = problem(first, rows)
    for seed in seeds:
        for number in range(0, rows, PART):
            for name, method in METHODS[table].items():
                key = f"{name}/{seed}/{number}"
                if key in done:
                    continue
                began = time.process_time()
                part = whole.take(torch.arange(number, min(number + PART, rows)))
                delta, queries = method(part, seed)
                success = judged(part, delta)
                cell: dict[str, Any] = {
                    "fooled": "".join("1" if each else "0" for each in success.tolist()),
                    "queries": " ".join(map(str, queries.tolist())),
                    "cpu_seconds": round(time.process_time() - began, 1),
                }
                store.add(table, key, cell)
                print(f"{table}: {key}: {int(success.sum())} of {len(part)} fooled", flush=True)


class Line:
    """What one method found with the given seeds, on all parts that every method has done."""

    def __init__(self, cells: Sequence[Mapping[str, Any]]) -> None:
        self.fooled = [mark == "1" for cell in cells for mark in cell["fooled"]]
        self.queries = [int(word) for cell in cells for word in cell["queries"].split()]

    def rate(self, most: int = QUERIES) -> float:
        """Percent of rows that are fooled in all networks within so many queries."""
        pairs = zip(self.fooled, self.queries, strict=True)
        return 100 * sum(hit and spent <= most for hit, spent in pairs) / max(1, len(self.fooled))


def lines(content: Mapping[str, Any], table: str, seed: int) -> dict[str, Line]:
    """The methods of a table, on the rows that all of them have done."""
    cells = content["cases"].get(table, {"cells": {}})["cells"]
    _, rows, _ = IMAGES[table]
    done = {
        name: [n for n in range(0, rows, PART) if f"{name}/{seed}/{n}" in cells]
        for name in METHODS[table]
    }
    if table == RESULTS:  # compared row by row: only what all have done
        shared = [n for n in range(0, rows, PART) if all(n in each for each in done.values())]
        done = dict.fromkeys(done, shared)
    return {
        name: Line([cells[f"{name}/{seed}/{number}"] for number in parts])
        for name, parts in done.items()
        if parts
    }


def rendered(content: Mapping[str, Any], table: str) -> str:
    """A table of the page."""
    first, _, seeds = IMAGES[table]
    budgets = (250, 500, 1000, 2000, QUERIES)
    text = [
        "| fooled in all three networks, % | images | seed | "
        + " | ".join(f"within {b:,}" for b in budgets)
        + " |",
        "|---|--:|--:|" + "--:|" * len(budgets),
    ]
    if table == IDEAS:
        for trial in json.loads(TRIALS.read_text(encoding="utf-8"))["trials"]:
            numbers = " | ".join(map(str, trial["within"]))
            text.append(f"| {trial['name']} | {first} to {first + 49} | 0 | {numbers} |")
    for seed in seeds:
        for name, line in lines(content, table, seed).items():
            numbers = " | ".join(f"{line.rate(budget):.0f}" for budget in budgets)
            images = f"{first} to {first + len(line.fooled) - 1}"
            text.append(f"| {name} | {images} | {seed} | {numbers} |")
    return "\n".join(text)


def write(content: Mapping[str, Any], page: Path) -> None:
    """Put the tables between their marks in the guide."""
    text = page.read_text(encoding="utf-8")
    for table in METHODS:
        mark = MARK.format(table)
        before, _, rest = text.partition(mark)
        _, _, after = rest.partition(MARK.format("end"))
        text = f"{before}{mark}\n{rendered(content, table)}\n{MARK.format('end')}{after}"
    page.write_text(text, encoding="utf-8")


def figures() -> Iterator[Figure]:
    """Measure what is not stored yet, write the tables, and compare."""
    main([])
    for seed in IMAGES[RESULTS][2]:
        found = lines(Store(STORE).content, RESULTS, seed)
        ceiling = found["white box: attack"].rate()
        other = found["Square (AutoAttack), worst model"].rate()
        for name in ("searched()", "estimated()"):
            rate = found[name].rate()
            yield at_least(f"seed {seed}: {name}, share of the white box", rate / ceiling, 0.8)
            yield at_least(f"seed {seed}: {name}, ahead of Square by", rate - other, 1)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scores")
    parser.add_argument("--tables", default=",".join(METHODS), help="which, separated by commas")
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--render", action="store_true", help="write the tables again, run nothing")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    store = Store(options.store, read_only=options.render)
    for table in options.tables.split(",") if not options.render else ():
        measure(table, store)
    if options.out.exists():
        write(store.content, options.out)
        print(f"wrote {options.out}")


if __name__ == "__main__":
    exit_with(main)
