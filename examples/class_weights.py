"""Which classes need which threat: the weights that AMPGD gives the images of each, as a figure.

    python examples/class_weights.py mnist-ampgd mnist-max

The networks are shipped ones that have threats on their cards, with a panel each.
"""

import copy
import sys
from pathlib import Path

import torch

import saddlepoint as sp
from saddlepoint.experiments import drawing
from saddlepoint.experiments.figures import Curve, Panel, Sheet
from saddlepoint.runs.texts import threats

OUT = Path("docs/figures")


def main(networks: list[str], out: Path = OUT) -> list[Path]:
    """Draw the figure; returns the files."""
    return drawing.draw(Sheet("defence-classes", tuple(map(classes, networks))), out)


def classes(name: str, images: int = 1000, steps: int = 30) -> Panel:
    """Mean weight of every threat over the test images of each class, with its 95 % interval."""
    means, errors, names = class_weights(name, images, steps)
    x = tuple(float(number) for number in range(len(means)))
    curves = tuple(
        Curve(
            *(each, x, tuple(means[:, k].tolist())),
            low=tuple((means[:, k] - 1.96 * errors[:, k]).tolist()),
            high=tuple((means[:, k] + 1.96 * errors[:, k]).tolist()),
            colour=k,
        )
        for k, each in enumerate(names)
    )
    return Panel(name, "class", "mean weight", curves, y_range=(0.0, 1.0))


def class_weights(
    name: str, images: int, steps: int
) -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    """Mean weights and their standard errors, (C, K), and the names of the threats.

    They are those that a training step would give: AMPGD with a learning rate of zero, on a copy, for each of
    the three sizes of balls that the inner attack begins in.
    """
    card, model = sp.models.card(name), copy.deepcopy(sp.models.load(name))
    named = threats(card.robust["threats"])
    x, y = sp.data.sample(card.data, limit=images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rows = []
    for part_x, part_y in zip(x.split(100), y.split(100), strict=True):
        found = [
            sp.ampgd_step(model, optimizer, part_x, part_y, named, steps=steps, iteration=n)
            for n in range(3)
        ]
        rows.append(torch.stack([each.row_weights for each in found]).mean(dim=0))
    each = torch.cat(rows)
    groups = [each[y == label] for label in range(card.classes)]
    means = torch.stack([group.mean(dim=0) for group in groups])
    errors = torch.stack([group.std(dim=0) / len(group) ** 0.5 for group in groups])
    return means, errors, tuple(named)


if __name__ == "__main__":
    for file in main(sys.argv[1:]):
        print(file)
