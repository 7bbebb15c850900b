"""Patches with average and with min-max weights over their views, where they were not made for it.

``python -m benchmarks.patches`` measures, stores every cell as soon as it is done in docs/results/patches.json,
and writes the table into docs/patches.md; called again, it goes on where it was stopped. Patches are made with
test images 2000 to 2199 and tested on 5000 to 5299; nothing was chosen on either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import saddlepoint as sp
from saddlepoint.files import write_atomically
from saddlepoint.runs import attack_words

STORE = Path("docs/results/patches.json")
PAGE = Path("docs/patches.md")
MODELS = ("A", "C")
SIZE, IMAGES, STEPS, LOSS = 8, 50, 60, -5.0
MADE, HELD_OUT = (2000, 2200), (5000, 5300)
SEEDS = (0, 1)
FAMILIES: Mapping[str, Sequence[str]] = {
    "standard": (
        "anywhere",
        "anywhere+scale:0.6..0.8",
        "anywhere+rotate:-45..45",
        "anywhere+brightness:-0.3..-0.1",
    ),
    "turned": (
        "anywhere",
        "anywhere+rotate:90",
        "anywhere+rotate:180",
        "anywhere+rotate:-90",
    ),
}
RULES: Mapping[str, sp.AbstractWeightRule] = {
    "average": sp.Average(),
    "min-max": sp.MinMax(),
    "min-max, gamma 3": sp.MinMax(gamma=3),
}
ALONE: Mapping[str, Mapping[str, sp.AbstractWeightRule]] = {
    "standard": {"the small view alone": sp.Fixed((0, 1, 0, 0))}
}
"""What all weight on the hardest view comes to: the most that weights could do for it."""
_TABLE = re.compile(r"(<!-- table: patches -->\n).*?(<!-- end -->)", re.DOTALL)


def rules_of(family: str) -> dict[str, sp.AbstractWeightRule]:
    """The rules that are measured with a family of views."""
    return {**RULES, **ALONE.get(family, {})}


def measure(family: str, rule: str, seed: int, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    """One cell: patches with one rule, judged on the images that were held out.

    Args:
        family: Of views.
        rule: Of the weights.
        seed: Of the groups of images and of all looks.
        x: Images from number MADE[0] on.
        y: Labels.
    """
    models = [sp.models.channels_last(sp.models.load(f"cifar10-{name.lower()}")) for name in MODELS]
    count, first = MADE[1] - MADE[0], HELD_OUT[0] - MADE[0]
    groups, truth = sp.data.group(x[:count], y[:count], IMAGES, seed=seed)
    views, patch = attack_words.views(list(FAMILIES[family])), sp.Patch(size=SIZE)
    problem = sp.Patched(models, patch, groups, truth, views, seed=seed)
    result = sp.attack(
        problem,
        patch,
        rule=sp.Grouped(rules_of(family)[rule], problem.sharing("view")),
        loss=sp.clipped(sp.cw_margin, LOSS),
        steps=STEPS,
        seed=seed,
    )
    rates = sp.patch_rates(problem.elsewhere(x[first:], y[first:]), result.delta)
    weights = result.weights.unflatten(1, (len(MODELS), len(views), IMAGES)).sum(dim=(1, 3))
    return {
        "family": family,
        "rule": rule,
        "seed": seed,
        "patches": len(problem),
        "trials": rates.trials,
        "success": _rounded(rates.per_view),
        "intervals": [_rounded(pair) for pair in rates.intervals()],
        "plain": _rounded(rates.plain_per_view),
        "weights": _rounded(weights.mean(dim=0).tolist()),
    }


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """The stored cells as Markdown: the hardest view and the mean, in percent, seed by seed."""
    lines = [
        "| views | seed | weights | hardest view | success there | 95 % | mean over views | plain grey, mean |",
        "|---|--:|---|---|--:|--:|--:|--:|",
    ]
    for cell in cells:
        success, names = cell["success"], FAMILIES[cell["family"]]
        worst = min(range(len(names)), key=lambda v: success[v])
        low, high = cell["intervals"][worst]
        means = (sum(cell[key]) / len(names) for key in ("success", "plain"))
        told = " | ".join(f"{100 * mean:.1f}" for mean in means)
        lines.append(
            f"| {cell['family']} | {cell['seed']} | {cell['rule']} | `{names[worst]}` | "
            f"{100 * success[worst]:.1f} | {100 * low:.1f} to {100 * high:.1f} | {told} |"
        )
    return "\n".join(lines) + "\n"


def write_page(cells: Sequence[Mapping[str, Any]], page: Path = PAGE) -> None:
    """Put the table where the page has its marks."""
    text = page.read_text(encoding="utf-8")
    write_atomically(page, _TABLE.sub(lambda m: m[1] + table(cells) + m[2], text).encode())


def main() -> None:
    """Measure what is not stored yet."""
    x, y = sp.data.load("cifar10", "test", HELD_OUT[1])
    x, y = x[MADE[0] :], y[MADE[0] :]
    cells = _stored()
    for family in FAMILIES:
        for seed in SEEDS:
            for rule in rules_of(family):
                key = {"family": family, "rule": rule, "seed": seed}
                if any(key.items() <= cell.items() for cell in cells):
                    continue
                cells.append(measure(family, rule, seed, x, y))
                _store(cells)
                print(json.dumps(cells[-1]), flush=True)
    order = [(f, s, r) for f in FAMILIES for s in SEEDS for r in rules_of(f)]
    cells.sort(key=lambda cell: order.index((cell["family"], cell["seed"], cell["rule"])))
    _store(cells)
    write_page(cells)


def _stored() -> list[dict[str, Any]]:
    """The cells that are there already.

    Raises:
        ValueError: They were measured with other settings.
    """
    if not STORE.is_file():
        return []
    stored = json.loads(STORE.read_text(encoding="utf-8"))
    if stored["settings"] != json.loads(json.dumps(_settings())):
        raise ValueError(f"`{STORE}` must be of these settings, got others; move it to begin anew.")
    cells: list[dict[str, Any]] = stored["cells"]
    return cells


def _store(cells: Sequence[Mapping[str, Any]]) -> None:
    stored = {"settings": _settings(), "cells": cells}
    write_atomically(STORE, (json.dumps(stored, indent=1) + "\n").encode())


def _settings() -> dict[str, Any]:
    return {
        "data": "cifar10, test",
        "made_with": MADE,
        "held_out": HELD_OUT,
        "models": MODELS,
        "patch": SIZE,
        "images_per_patch": IMAGES,
        "steps": STEPS,
        "loss": f"clipped:{LOSS:g}",
        "over": "view",
        "views": FAMILIES,
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), 4) for value in values]


if __name__ == "__main__":
    main()
