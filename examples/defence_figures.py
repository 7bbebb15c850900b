"""The paper's two defence figures, and the weights of every class, from training runs and a trained network.

    python examples/defence_figures.py runs/msd-* runs/ampgd-* -- runs/weights-* -- mnist-ampgd

First: runs whose held-out accuracy over the epochs is shown, one panel per method. Then runs against linf and
l2 that differ in the radius of l2, for the weight of l2 at the end of training. Runs that differ in their seed
only are one line: the mean, in a band from the smallest to the largest. Last: a network that comes with the
package, for which digits need which threat. docs/training.md has the commands.
"""

import copy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import saddlepoint as sp
from saddlepoint.experiments import drawing
from saddlepoint.experiments.figures import Curve, Panel, Sheet
from saddlepoint.runs.metrics import TrainingMetrics
from saddlepoint.runs.reading import finished, metrics_of, settings_of
from saddlepoint.runs.settings import TrainSettings
from saddlepoint.runs.texts import threats

OUT = Path("docs/figures")


def main(
    compared: list[Path], by_radius: list[Path], networks: list[str], out: Path = OUT
) -> list[Path]:
    """Draw the figures; returns the files."""
    sheets = [Sheet("defence-accuracy", accuracy(compared))] if compared else []
    sheets += [Sheet("defence-weights", (weights(by_radius),))] if by_radius else []
    sheets += [Sheet("defence-classes", tuple(map(classes, networks)))] if networks else []
    return [path for sheet in sheets for path in drawing.draw(sheet, out)]


def accuracy(folders: Sequence[Path]) -> tuple[Panel, ...]:
    """Held-out accuracy over the epochs, one line per threat and one for their union; one panel per method."""
    methods: dict[str, list[TrainingMetrics]] = {}
    for settings, metrics in map(read, folders):
        methods.setdefault(str(settings.method), []).append(metrics)
    return tuple(_over_epochs(method, runs) for method, runs in methods.items())


def _over_epochs(method: str, runs: list[TrainingMetrics]) -> Panel:
    names = [name for name in runs[0].history[0].validation if name != "clean"]
    time = [float(number) for number in range(1, len(runs[0].history) + 1)]
    epochs = list(zip(*(run.history for run in runs), strict=True))
    curves = tuple(
        banded(name, time, [[100 * e.validation[name] for e in same] for same in epochs], colour)
        for colour, name in enumerate(names)
    )
    return Panel(method.upper(), "epoch", "robust accuracy, %", curves, y_range=(0.0, 100.0))


def weights(folders: Sequence[Path]) -> Panel:
    """Mean weight of every threat in the last epoch, against the radius of l2."""
    found: dict[float, list[dict[str, float]]] = {}
    for settings, metrics in map(read, folders):
        radius = float(threats(settings.threat)["l2"].ball.eps)
        found.setdefault(radius, []).append(dict(metrics.history[-1].stats))
    radii = tuple(sorted(found))
    names = [key for key in found[radii[0]][0] if key.startswith("weight/")]
    curves = []
    for colour, key in enumerate(names):
        values = [[last[key] for last in found[radius]] for radius in radii]
        curves.append(banded(key.removeprefix("weight/"), radii, values, colour))
    return Panel(
        "Weights after training", "radius of l2", "mean weight", tuple(curves), y_range=(0.0, 1.0)
    )


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


def banded(label: str, x: Sequence[float], values: Sequence[Sequence[float]], colour: int) -> Curve:
    """The mean of the values at every x; a band from the smallest to the largest where some have several."""
    mean = tuple(sum(each) / len(each) for each in values)
    if all(len(each) == 1 for each in values):
        return Curve(label, tuple(x), mean, colour=colour)
    low, high = tuple(map(min, values)), tuple(map(max, values))
    return Curve(label, tuple(x), mean, low, high, colour=colour)


def read(folder: Path) -> tuple[TrainSettings, TrainingMetrics]:
    """Settings and numbers of a finished training."""
    run = finished(folder)
    metrics = metrics_of(run)
    assert isinstance(metrics, TrainingMetrics), f"{folder} must be a training"
    return settings_of(run, TrainSettings), metrics


if __name__ == "__main__":
    parts: list[list[str]] = [[], [], []]
    place = 0
    for word in sys.argv[1:]:
        if word == "--":
            place += 1
        else:
            parts[place].append(word)
    for file in main([Path(w) for w in parts[0]], [Path(w) for w in parts[1]], parts[2]):
        print(file)
