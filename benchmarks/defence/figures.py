"""The paper's two defence figures from the store: accuracy over the epochs, weights over a radius."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from saddlepoint.experiments import drawing
from saddlepoint.experiments.figures import Curve, Panel, Sheet

COMPARED = "race"
ROWS = ("MSD", "AMPGD")
BY_RADIUS = "weights"


def draw(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the figures that a store has trainings for; returns the files."""
    trainings: Mapping[str, Any] = content["trainings"]
    panels = tuple(
        _over_epochs(row, seeds) for row in ROWS if (seeds := _of(trainings, f"{COMPARED}/{row}"))
    )
    sheets = [Sheet("defence-accuracy", panels)] if panels else []
    if any(key.startswith(f"{BY_RADIUS}/") for key in trainings):
        sheets.append(Sheet("defence-weights", (_over_radii(trainings),)))
    return [path for sheet in sheets for path in drawing.draw(sheet, folder)]


def _of(trainings: Mapping[str, Any], row: str) -> list[Mapping[str, Any]]:
    return [kept for key, kept in trainings.items() if key.rpartition("/")[0] == row]


def _over_epochs(row: str, seeds: Sequence[Mapping[str, Any]]) -> Panel:
    """Held-out accuracy after every epoch, a line per threat and one for their union."""
    epochs = list(zip(*(kept["validation"] for kept in seeds), strict=True))
    time = [float(number) for number in range(1, len(epochs) + 1)]
    names = [name for name in epochs[0][0] if name != "clean"]
    curves = tuple(
        _banded(name, time, ([100 * each[name] for each in same] for same in epochs), colour)
        for colour, name in enumerate(names)
    )
    title = f"{row}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return Panel(title, "epoch", "robust accuracy, %", curves, y_range=(0.0, 100.0))


def _over_radii(trainings: Mapping[str, Any]) -> Panel:
    """Mean weight of every threat in the last epoch, against the radius of l2."""
    found: dict[float, list[Mapping[str, float]]] = {}
    for key, kept in trainings.items():
        table, row, _ = key.split("/")
        if table == BY_RADIUS:
            found.setdefault(float(row.removeprefix("l2 ")), []).append(kept["weights"])
    radii = sorted(found)
    curves = tuple(
        _banded(name, radii, ([each[name] for each in found[radius]] for radius in radii), colour)
        for colour, name in enumerate(found[radii[0]][0])
    )
    axes = ("radius of l2", "mean weight")
    return Panel("Weights after training", *axes, curves, y_range=(0.0, 1.0))


def _banded(label: str, x: Sequence[float], values: Iterable[Sequence[float]], n: int) -> Curve:
    """The mean of the values at every x; a band from the smallest to the largest where some have several."""
    every = [tuple(each) for each in values]
    mean = tuple(sum(each) / len(each) for each in every)
    if all(len(each) == 1 for each in every):
        return Curve(label, tuple(x), mean, colour=n)
    return Curve(label, tuple(x), mean, tuple(map(min, every)), tuple(map(max, every)), colour=n)
