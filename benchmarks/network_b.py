"""Why our network B is hard under linf where the paper's is easy: ``python -m benchmarks.network_b``.

Network B is trained in short by the paper's recipe (Adam, 1e-3, batches of 128) with one thing changed at a
time: the stride of the last convolution, as in the authors' code, and the shift of the input. Every variant is
attacked alone, and with the shipped A, C, D by the average strategy, where the paper leaves 0.07 % of the
images to B. Verdicts are those of the library, on test images. What is measured is kept in
`docs/results/network-b.json`, from which the table in docs/RESULTS.md is written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import saddlepoint as sp
from saddlepoint.experiments import find
from saddlepoint.experiments.networks import REPORTED_NETWORKS

from .peers.page import table
from .stores import exit_with
from .studies import Study

BALL = sp.linf(0.2)


@dataclass(frozen=True)
class Variant:
    """What is different from network B as it is shipped."""

    stride: int = 1
    shift: bool = True


VARIANTS = {
    "as shipped": Variant(),
    "last convolution with stride 2": Variant(stride=2),
    "input not shifted": Variant(shift=False),
    "both, as in the authors' code": Variant(stride=2, shift=False),
}


def network(variant: Variant) -> nn.Sequential:
    """Network B with the changes of a variant.

    Example:
        >>> network(Variant(stride=2, shift=False))(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    made = sp.models.build("B" if variant.shift else "B_unshifted", channels=1, size=28)
    layers = list(made.children())
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    convolutions[-1].stride = (variant.stride, variant.stride)
    return nn.Sequential(*layers)


def trained(variant: Variant, x: Tensor, y: Tensor, epochs: int, seed: int) -> nn.Module:
    """The variant after so many epochs, in bfloat16 where the processor has it."""
    torch.manual_seed(seed)
    model = network(variant).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(x[rows])
            optimizer.zero_grad()
            cross_entropy(logits.float(), y[rows]).backward()
            optimizer.step()
    return model.eval()


def measured(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy without and with attacks, and how steep the margin is, in percent and l1 norm."""
    alone = sp.Ensemble([model], x, y, names=["B"])
    left = sp.attack(alone, BALL, steps=50)
    others = [sp.models.load(f"mnist-{name}") for name in "acd"]
    together = sp.Ensemble([others[0], model, *others[1:]], x, y, names=list("ABCD"))
    average = sp.apgda(together, BALL, rule=sp.Average(), steps=50, step_size=0.25)
    rates = sp.success_rates(together, average.delta)
    images = x.clone().requires_grad_()
    margin = sp.cw_margin(model(images).unsqueeze(1), y.unsqueeze(1)).sum()
    (slope,) = torch.autograd.grad(margin, images)
    with torch.no_grad():
        clean = (model(x).argmax(dim=1) == y).double().mean()
    percent = {n: 100 - 100 * rate for n, rate in zip("ABCD", rates.per_domain, strict=True)}
    return {
        "clean": 100 * clean.item(),
        "left_alone": 100 - 100 * left.success.double().mean().item(),
        "slope": slope.flatten(1).abs().sum(dim=1).mean().item(),
        **{f"left_average_{name}": round(value, 4) for name, value in percent.items()},
        "asr_all_average": 100 * rates.all,
    }


def render(content: Mapping[str, Any]) -> str:
    """The table of the variants, below the paper's line, in Markdown."""
    head = ["Network B", "Clean", "Left alone", "Slope", *(f"Left, {name}" for name in "ABCD")]
    (block,) = (b for b in find("ensemble-mnist").blocks if b.key == "linf-0.2")
    printed = next(row.paper for row in block.rows if row.strategy.key == "avg")
    theirs = (*(printed.accuracy or ()), printed.asr_all)
    clean = REPORTED_NETWORKS["mnist", "B"][0]
    rows = [["the paper's", f"{clean:.1f}", "-", "-", *(f"{number:.1f}" for number in theirs)]]
    for name, found in content["variants"].items():
        numbers = [found[key] for key in ("clean", "left_alone", "slope")]
        numbers += [found[f"left_average_{letter}"] for letter in "ABCD"]
        rows.append([name, *(f"{number:.1f}" for number in (*numbers, found["asr_all_average"]))])
    given = content["settings"]
    said = (
        f"{given['images']:,} training images, {given['epochs']} epochs of Adam, batches of 128; the first "
        f"{given['test_images']} test images; seed {given['seed']}. Percent of images that are right: without "
        "attack, under `attack` on B alone, and of every network under `apgda` with equal weights on all four "
        "(A, C, D are the shipped ones, in the paper's line the paper's); then ASR_all of the latter. Slope is "
        "the mean l1 norm of the gradient of the clean margin.\n"
    )
    return f"{table([*head, 'ASR_all'], rows)}\n{said}"


def measure(content: dict[str, Any], keep: Callable[[str], None]) -> None:
    """Train and attack the variants that are not there yet."""
    given = content["settings"]
    x, y = sp.data.load("mnist", split="train", limit=given["images"])
    test = sp.data.load("mnist", split="test", limit=given["test_images"])
    found = content.setdefault("variants", {})
    for name, variant in VARIANTS.items():
        if name in found:
            continue
        began = time.process_time()
        model = trained(variant, x, y, given["epochs"], given["seed"])
        spent = round(time.process_time() - began, 1)
        found[name] = {**asdict(variant), "training_seconds": spent, **measured(model, *test)}
        keep(f"{name}: {found[name]}")


STUDY = Study(
    name="network_b",
    about=__doc__,
    store=Path("docs/results/network-b.json"),
    key="variants",
    page=Path("docs/RESULTS.md"),
    mark="<!-- network b -->",
    settings={"images": 10_000, "epochs": 4, "test_images": 200, "seed": 0},
    measure=measure,
    render=render,
)

if __name__ == "__main__":
    exit_with(lambda: STUDY.main(sys.argv[1:]))
