"""The report of a training run: robust accuracy and weights over epochs, the paper's two defence figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from saddlepoint.display import counted, radius_text
from saddlepoint.report.epoch_chart import epoch_chart
from saddlepoint.report.svg import ceiling, coloured
from saddlepoint.report.template import render_template
from saddlepoint.runs import Epoch, Run, TrainingMetrics, settings_of
from saddlepoint.runs.metrics import Share
from saddlepoint.runs.model_words import NETWORK
from saddlepoint.runs.settings import TrainSettings
from saddlepoint.runs.training_parts import line_to_evaluate

__all__ = ["render_training"]

_STYLES = {"clean": "plain", "union": "every"}


def render_training(run: Run, folder: Path) -> str:
    """The page of a finished training.

    Args:
        run: The record.
        folder: Where the network is, as the user names it.
    """
    metrics = TrainingMetrics.of(run)
    settings, epochs = settings_of(run, TrainSettings), metrics.history
    threats = [name for name in epochs[0].validation if name not in _STYLES]
    shown = _shown(epochs, threats)
    styles = [_STYLES.get(name, coloured(k, "")) for k, name in enumerate(shown)]
    weighted = [name for name in threats if f"weight/{name}" in epochs[0].stats]
    weighted = weighted if len(weighted) > 1 else []  # the only one has all the weight
    best, held_out = _kept(epochs), metrics.held_out
    return render_template(
        "training.html",
        run=run,
        title=f"{_method_title(settings)} on {settings.data}, network {settings.model}",
        threats=", ".join(settings.threat) or "without threats",
        metrics=metrics,
        figure=_figure(metrics),
        tests=_tests(metrics, settings),
        names=shown,
        styles=dict(zip(shown, styles, strict=True)),
        accuracy_chart=_accuracy(metrics, shown, styles, best),
        loss_chart=_losses(epochs),
        weighted=weighted,
        weights_chart=_weights(epochs, weighted, best),
        best=best,
        held_out=bool(shown),
        kept=[_counted(name, held_out[best - 1][name]) for name in shown],
        rows=[_row(k, each, shown, weighted, held_out[k]) for k, each in enumerate(epochs)],
        init=settings.init,
        network=str(folder / NETWORK),
        evaluate=line_to_evaluate(settings, folder),
    )


def _method_title(settings: TrainSettings) -> str:
    """The method as a heading: names of methods are written in capitals."""
    return "Clean training" if settings.method == "clean" else str(settings.method).upper()


def _shown(epochs: Sequence[Epoch], threats: Sequence[str]) -> list[str]:
    """Threats first, which have colours; what is clean and the union of all threats have none."""
    if threats:
        return [*threats, "clean", "union"]
    return ["clean"] if all(each.validation for each in epochs) else []


def _kept(epochs: Sequence[Epoch]) -> int:
    """The epoch that `train` keeps: of equals the one with the best clean accuracy, and of those the first."""
    if not all(each.validation for each in epochs):
        return len(epochs)
    scores = [(each.validation["union"], each.validation["clean"]) for each in epochs]
    return scores.index(max(scores)) + 1


def _figure(metrics: TrainingMetrics) -> dict[str, Any]:
    """The number at the head, and what it is a share of."""
    robust = bool(metrics.robust_accuracy)
    return {"robust": robust, **_counted("union" if robust else "clean", metrics.score)}


def _tests(metrics: TrainingMetrics, settings: TrainSettings) -> list[dict[str, Any]]:
    """The tests of the network that was kept, one line each."""
    every = f"all {metrics.rows} test images"
    eps = metrics.fgsm_eps
    fgsm = "FGSM" if eps is None else f"FGSM, linf {radius_text(eps)}"
    lines = [
        {"what": every, **_counted("clean", metrics.clean)},
        {"what": every, **_counted(fgsm, metrics.fgsm)},
    ]
    few = metrics.rows_attacked
    attacks = (
        f"{counted(settings.test_restarts, 'attack')} of {counted(settings.test_steps, 'step')}"
    )
    for name, share in metrics.attacked.items():
        if name != "clean":
            what = f"the first {few}, {attacks} per threat"
            lines.append({"what": what, **_counted(name, share)})
        elif few < metrics.rows:  # else it stands above
            lines.append({"what": f"the first {few}", **_counted(f"clean, of these {few}", share)})
    return lines


def _counted(name: str, share: Share) -> dict[str, Any]:
    """A share of so many images: percent, the number right, and the 95 % interval."""
    low, high = share.interval
    about = {"percent": share.percent, "right": share.right, "count": share.count}
    return {"name": name, **about, "low": low, "high": high}


def _row(
    index: int,
    epoch: Epoch,
    shown: Sequence[str],
    weighted: Sequence[str],
    held_out: Mapping[str, Share],
) -> dict[str, Any]:
    return {
        "epoch": index + 1,
        "loss": epoch.stats["loss"],
        "accuracy": [_counted(name, held_out[name]) for name in shown],
        "weights": {name: 100 * epoch.stats[f"weight/{name}"] for name in weighted},
    }


def _accuracy(
    metrics: TrainingMetrics, shown: Sequence[str], styles: Sequence[str], best: int
) -> Markup | None:
    if not shown:
        return None
    series = [torch.tensor([each.validation[name] for each in metrics.history]) for name in shown]
    ends = torch.tensor([each[shown[-1]].interval for each in metrics.held_out]) / 100
    label, band = "Accuracy on held-out images", (ends[:, 0], ends[:, 1])
    return epoch_chart(series, shown, label, styles=styles, kept=best, band=band)


def _weights(epochs: Sequence[Epoch], weighted: Sequence[str], best: int) -> Markup | None:
    if not weighted:
        return None
    series = [torch.tensor([each.stats[f"weight/{n}"] for each in epochs]) for n in weighted]
    return epoch_chart(series, weighted, "Mean weight of each threat", kept=best)


def _losses(epochs: Sequence[Epoch]) -> Markup:
    losses = torch.tensor([each.stats["loss"] for each in epochs])
    highest = ceiling(losses.max().item())
    return epoch_chart([losses], ["loss"], "Training loss", styles=["every"], highest=highest)
