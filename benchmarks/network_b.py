"""Why our network B is hard under linf where the paper's is easy: ``python -m benchmarks.network_b``.

Network B is trained in short by the paper's recipe (Adam, 1e-3, batches of 128) with one thing changed at a
time: the stride of the last convolution, as in the authors' code, the shift of the input, the initial
parameters, the training length. Every variant is attacked alone, and with the shipped A, C, D by the average
strategy, where the paper leaves 0.07 % of the images to B. Verdicts are those of the library, on test images.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import saddlepoint as sp

BALL = sp.linf(0.2)


@dataclass(frozen=True)
class Variant:
    """What is different from network B as it is shipped."""

    stride: int = 1
    shift: bool = True
    glorot: bool = False
    length: int = 1


VARIANTS = {
    "as shipped": Variant(),
    "last convolution with stride 2": Variant(stride=2),
    "input not shifted": Variant(shift=False),
    "both, as in the authors' code": Variant(stride=2, shift=False),
    "all that, initial parameters as in the authors' code": Variant(2, shift=False, glorot=True),
    "as shipped, four times the steps": Variant(length=4),
}


def network(variant: Variant) -> nn.Sequential:
    """Network B with the changes of a variant.

    Example:
        >>> network(Variant(stride=2, shift=False))(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    layers = list(sp.models.build("B", channels=1, size=28).children())
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    convolutions[-1].stride = (variant.stride, variant.stride)
    if variant.glorot:
        for each in convolutions:
            nn.init.xavier_uniform_(each.weight)
    return nn.Sequential(*(layers if variant.shift else layers[1:]))


def trained(variant: Variant, x: Tensor, y: Tensor, epochs: int, seed: int) -> nn.Module:
    """The variant after so many epochs, in bfloat16 where the processor has it."""
    torch.manual_seed(seed)
    model = network(variant).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs * variant.length):
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


def main(words: list[str], say: Callable[[str], None] = print) -> int:
    """Train and attack the variants that the file does not hold yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network_b", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="JSON file for what is measured")
    parser.add_argument("--images", type=int, default=10_000, help="training images")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--test-images", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    given = {n: getattr(options, n) for n in ("images", "epochs", "test_images", "seed")}
    kept = json.loads(options.store.read_text()) if options.store.is_file() else {}
    if kept.setdefault("settings", given) != given:
        say(f"{options.store} must hold numbers of {given}, got {kept['settings']}.")
        return 2
    x, y = sp.data.load("mnist", split="train", limit=options.images)
    test = sp.data.load("mnist", split="test", limit=options.test_images)
    found = kept.setdefault("variants", {})
    for name, variant in VARIANTS.items():
        if name in found:
            continue
        began = time.process_time()
        model = trained(variant, x, y, options.epochs, options.seed)
        spent = round(time.process_time() - began, 1)
        found[name] = {**asdict(variant), "training_seconds": spent, **measured(model, *test)}
        options.store.write_text(json.dumps(kept, indent=2) + "\n")
        say(f"{name}: {found[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
