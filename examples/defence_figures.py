"""The paper's two defence figures, drawn from training runs; docs/training.md has the commands that make them.

    python examples/defence_figures.py runs/table/msd runs/table/ampgd -- runs/weights/1.0 runs/weights/2.0 ...

Before the dashes: runs whose robust accuracy over the epochs is shown side by side. After them: runs against
linf and l2 that differ in the radius of l2, for the weight of l2 at the end of training.
"""

import json
import sys
from pathlib import Path

from saddlepoint.experiments import drawing
from saddlepoint.experiments.figures import Curve, Panel, Sheet

OUT = Path("docs/figures")


def main(compared: list[Path], by_radius: list[Path], out: Path = OUT) -> list[Path]:
    """Draw both figures; returns the files."""
    sheets = [Sheet("defence-accuracy", tuple(map(accuracy, compared)))] if compared else []
    sheets += [Sheet("defence-weights", (weights(by_radius),))] if by_radius else []
    return [path for sheet in sheets for path in drawing.draw(sheet, out)]


def accuracy(folder: Path) -> Panel:
    """Held-out accuracy over the epochs, one line per threat and one for their union."""
    run = read(folder)
    epochs = [each["validation"] for each in run["history"]]
    names = [name for name in epochs[0] if name != "clean"]
    time = tuple(float(number) for number in range(1, len(epochs) + 1))
    curves = tuple(
        Curve(name, time, tuple(100 * each[name] for each in epochs), colour=colour)
        for colour, name in enumerate(names)
    )
    title = run["config"]["method"].upper()
    return Panel(title, "epoch", "robust accuracy, %", curves, y_range=(0.0, 100.0))


def weights(folders: list[Path]) -> Panel:
    """Mean weight of every threat in the last epoch, against the radius of l2."""
    runs = sorted((radius(read(folder)), read(folder)["history"][-1]) for folder in folders)
    names = [key for key in runs[0][1] if key.startswith("weight/")]
    radii = tuple(eps for eps, _ in runs)
    curves = tuple(
        Curve(key.removeprefix("weight/"), radii, tuple(last[key] for _, last in runs), colour=k)
        for k, key in enumerate(names)
    )
    title = "Weights after training"
    return Panel(title, "radius of l2", "mean weight", curves, y_range=(0.0, 1.0))


def radius(run: dict) -> float:
    """Of the l2 threat of a training run."""
    return next(float(t.split(":")[1]) for t in run["config"]["threat"] if t.startswith("l2:"))


def read(folder: Path) -> dict:
    """The record of a training run."""
    return json.loads((folder / "run.json").read_text())


if __name__ == "__main__":
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    for file in main([Path(word) for word in words[:cut]], [Path(w) for w in words[cut + 1 :]]):
        print(file)
