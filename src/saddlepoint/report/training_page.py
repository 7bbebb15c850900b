"""The report of a training run: robust accuracy and weights over epochs, the paper's two defence figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from markupsafe import Markup

from saddlepoint.display import radius_text
from saddlepoint.evaluation import wilson
from saddlepoint.report import charts
from saddlepoint.report.template import render_template
from saddlepoint.runs import Run, TrainingMetrics, settings_of
from saddlepoint.runs.settings import TrainSettings
from saddlepoint.runs.training_parts import line_to_evaluate

__all__ = ["render_training"]


def render_training(run: Run, folder: Path) -> str:
    """The page of a finished training in its folder."""
    metrics = TrainingMetrics.of(run)
    settings = settings_of(run, TrainSettings)
    epochs, robust = metrics.history, metrics.robust_accuracy
    held_out = all(each.validation for each in epochs)
    threats = [name for name in epochs[0].validation if name not in ("clean", "union")]
    # Threats first: a threat has one colour in both charts.
    shown = [*threats, "clean", "union"] if threats else ["clean"] if held_out else []
    weighted = [name for name in threats if f"weight/{name}" in epochs[0].stats]
    weighted = weighted if len(weighted) > 1 else []  # the weight of one threat is one
    count = metrics.rows_attacked if robust else metrics.rows
    low, high = wilson(round((robust.get("union", metrics.accuracy)) * count / 100), count)
    # As `train` keeps it: of equals the one with the best clean accuracy, and of those the first.
    scores = [(each.validation["union"], each.validation["clean"]) for each in epochs if held_out]
    best = scores.index(max(scores)) if scores else len(epochs) - 1
    return render_template(
        "training.html",
        title=f"{str(settings.method).upper()} on {settings.data}, network {settings.model}",
        threats=", ".join(settings.threat) or "without threats",
        metrics=metrics,
        names=shown,
        accuracy_chart=_lines(
            [[each.validation[name] for each in epochs] for name in shown],
            shown,
            "Accuracy on held-out images",
            # With one threat the union is the same line, which has to be seen below it.
            dashed=["union"],
        ),
        loss_chart=_lines([[each.stats["loss"] for each in epochs]], ["loss"], "Training loss"),
        weighted=weighted,
        weights_chart=_lines(
            [[each.stats[f"weight/{name}"] for each in epochs] for name in weighted],
            weighted,
            "Mean weight of each threat",
        ),
        best=best + 1,
        best_accuracy=epochs[best].validation,
        robust=robust,
        count=count,
        interval=f"{100 * low:.1f} to {100 * high:.1f} %",
        fgsm="" if metrics.fgsm_eps is None else f" (linf {radius_text(metrics.fgsm_eps)})",
        evaluate=line_to_evaluate(settings, folder),
        rows=[
            {
                "epoch": index + 1,
                "loss": each.stats["loss"],
                "accuracy": [100 * each.validation[name] for name in shown],
                "weights": [each.stats[f"weight/{name}"] for name in weighted],
            }
            for index, each in enumerate(epochs)
        ],
        command=run.command,
        seconds=run.seconds,
    )


def _lines(
    series: Sequence[Sequence[float]], names: Sequence[str], label: str, dashed: Sequence[str] = ()
) -> Markup | None:
    if not names:
        return None
    return charts.epoch_chart([torch.tensor(values) for values in series], names, label, dashed)
