"""The report of a training run: robust accuracy and weights over epochs, the paper's two defence figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from saddlepoint.files import write_atomically
from saddlepoint.report import charts
from saddlepoint.report.template import render_template
from saddlepoint.runs.record import Run

__all__ = ["epoch_chart", "write_training_report"]


def write_training_report(folder: Path) -> Path:
    """Draw `report.html` of a training run against threats from its `run.json`.

    Args:
        folder: Where `saddlepoint train` has left the run.

    Returns:
        The path of the report.

    Raises:
        ValueError: No `run.json`, or one without validated epochs.
    """
    run = Run.read(folder)
    epochs = [each for each in run.metrics.get("history", []) if "validation" in each]
    if run.kind != "train" or not epochs:
        raise ValueError(
            f"`{folder}` must be a finished training run with held-out images, got none."
        )
    html = render_template("training.html", **_values(run, epochs))
    report = folder / "report.html"
    write_atomically(report, html.encode())
    return report


def epoch_chart(values: Tensor, names: Sequence[str], label: str) -> Markup:
    """Shares between 0 and 1 over epochs, one line per name.

    Args:
        values: (T, K) for epochs 1 to T.
        names: K names.
        label: What the chart shows, for readers who do not see it.

    Example:
        >>> str(epoch_chart(torch.rand(3, 2), ["linf", "l2"], "Accuracy")).count("<polyline")
        2
    """
    count = len(values)
    top = charts._ceiling(values.max().item())
    xs = [charts._x(epoch, count) for epoch in range(1, count + 1)]
    parts = [charts._axes(top, 1, count, "epoch")]
    spoken = []
    for k, name in enumerate(names):
        points = charts._points(xs, values[:, k].double(), top)
        spoken.append(f"{name}: {values[0, k]:.2f} to {values[-1, k]:.2f}")
        line = charts._tag("polyline", charts._class(k, "line"), points=points)
        parts.append(Markup("<g><title>{}</title>{}</g>").format(spoken[-1], line))
    return charts._svg(f"{label}. {'; '.join(spoken)}.", parts)


def _values(run: Run, epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    config, robust = run.settings, run.metrics.get("robust_accuracy", {})
    threats = [name for name in epochs[0]["validation"] if name not in ("clean", "union")]
    # Threats first: a threat has one colour in both charts.
    shown = [*threats, "clean", "union"] if threats else ["clean"]
    accuracy = torch.tensor([[each["validation"][name] for name in shown] for each in epochs])
    weighted = [name for name in threats if f"weight/{name}" in epochs[0]]
    weights = torch.tensor([[each[f"weight/{name}"] for name in weighted] for each in epochs])
    # As `train` keeps it: of equals the one with the best clean accuracy, and of those the first.
    scores = [(each["validation"]["union"], each["validation"]["clean"]) for each in epochs]
    best = scores.index(max(scores))
    return {
        "title": f"{config['method'].upper()} on {config['data']}, network {config['model']}",
        "threats": ", ".join(config.get("threat", [])),
        "names": shown,
        "accuracy_chart": epoch_chart(accuracy, shown, "Accuracy on held-out images"),
        "weighted": weighted,
        "weights_chart": epoch_chart(weights, weighted, "Mean weight of each threat")
        if len(weighted) > 1
        else None,
        "best": best + 1,
        "best_accuracy": epochs[best]["validation"],
        "robust": robust,
        "rows": [
            {
                "epoch": index + 1,
                "loss": each["loss"],
                "accuracy": [100 * each["validation"][name] for name in shown],
                "weights": [each[f"weight/{name}"] for name in weighted],
            }
            for index, each in enumerate(epochs)
        ],
        "command": run.command,
        "seconds": run.seconds,
    }
