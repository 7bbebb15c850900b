"""The rows a report shows: which ones, and everything said about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint.report.pictures import picture, sign_picture
from saddlepoint.report.sentences import class_name, spent_noun
from saddlepoint.runs import settings_of, texts
from saddlepoint.runs.record import Run
from saddlepoint.runs.settings import AttackSettings

__all__ = [
    "BEFORE",
    "FOOLED",
    "HELD",
    "Scales",
    "loss_text",
    "picture_row",
    "scales",
]

FOOLED, HELD, BEFORE = "hit", "miss", "before"
"""Fooled by the attack, not fooled, wrong before the attack: names of styles of the page."""

_CURVE_POINTS = 51


@final
@dataclass(frozen=True)
class Scales:
    """What is the same for all rows: the value of full strength and which steps curves show."""

    strength: float
    steps: Tensor


def scales(tensors: Mapping[str, Tensor]) -> Scales:
    """One scale for all perturbations: the 99.5th percentile of the largest entry per row."""
    largest = tensors["delta"].abs().flatten(1).amax(dim=1)
    strength = float(largest.quantile(0.995)) or 1.0
    count = tensors["history.weights"].shape[0]
    steps = torch.linspace(0, count - 1, min(count, _CURVE_POINTS)).round().long()
    return Scales(strength, steps)


def picture_row(
    run: Run, tensors: Mapping[str, Tensor], position: int, scale: Scales
) -> dict[str, Any]:
    """Everything the report says about one row of the gallery, ready for the page."""
    row = int(tensors["gallery.rows"][position])
    clean, adversarial = (
        tensors["gallery.clean"][position],
        tensors["gallery.adversarial"][position],
    )
    labels = tensors["labels"][row].tolist()
    losses, weights = tensors["losses"][row].tolist(), tensors["weights"][row].tolist()
    says = tensors["predictions"][row].tolist()
    before = tensors["clean_predictions"][row].tolist()
    states = _states(tensors, row)
    # Records of older releases do not have them.
    targets = tensors["targets"][row].tolist() if "targets" in tensors else []
    settings = settings_of(run, AttackSettings)
    # An attack from Python may have had any.
    loss = settings.loss if "loss" in settings.model_fields_set else ""
    grouped = run.kind == "universal"
    domains = [
        {
            "index": k,
            "name": name,
            "label": class_name(run, labels[k]),
            "target": class_name(run, targets[k]) if targets else "",
            "clean": class_name(run, before[k]),
            "says": class_name(run, says[k]),
            "state": states[k],
            "weight": weights[k],
            "loss": losses[k],
        }
        for k, name in enumerate(run.domains)
    ]
    for k, domain in enumerate(domains):
        if grouped:
            domain["clean_picture"] = picture(clean[k])
            domain["picture"] = picture(adversarial[k])
        elif "gallery.views" in tensors:
            domain["picture"] = picture(tensors["gallery.views"][position][k])
    return {
        "row": row,
        "label": class_name(run, labels[0]) if len(set(labels)) == 1 else "",
        "target": class_name(run, targets[0]) if len(set(targets)) == 1 else "",
        "classes": sorted({class_name(run, label) for label in labels}),
        "missed": [k for k, state in enumerate(states) if state == HELD],
        "before": [k for k, state in enumerate(states) if state == BEFORE],
        "spent": _spent(run, int(tensors["num_forwards"][row])),
        "clean": "" if grouped else picture(clean),
        "delta": sign_picture(tensors["delta"][row], scale.strength),
        "adversarial": "" if grouped else picture(adversarial),
        "domains": domains,
        "told": loss_text(loss, targeted=bool(targets)),
        "restarts": run.taken.get("restarts", settings.restarts),
        "curves": {
            "weights": _curves(tensors["history.weights"][scale.steps, row]),
            "losses": _curves(tensors["history.losses"][scale.steps, row]),
        },
    }


def loss_text(loss: str, *, targeted: bool) -> str:
    """What the sign of a loss says about the answer; nothing of a loss without a name.

    A margin changes its sign with the answer. Other losses know the odds of one class against all others
    together, and of more than two classes the one that is answered may have less than half.

    Example:
        >>> print(loss_text("cw", targeted=False))
        below zero = no longer the class that is attacked
        >>> print(loss_text("soft-margin", targeted=False))
        above zero = still the class that is attacked, below it perhaps, too
    """
    name, _, least = loss.partition(":")
    if name in ("cw", "cw_margin", "dlr") or (name == "clipped" and texts.number(least) < 0):
        goal = "the class aimed at" if targeted else "no longer the class that is attacked"
        return f"below zero = {goal}"
    if name in ("soft-margin", "soft_margin"):
        even = "zero"
    elif name in ("ce", "cross-entropy", "neg_cross_entropy"):
        even = "0.69" if targeted else "-0.69"
    else:
        return ""
    if targeted:
        return f"below {even} = the class aimed at, above it perhaps, too"
    return f"above {even} = still the class that is attacked, below it perhaps, too"


def _states(tensors: Mapping[str, Tensor], row: int) -> list[str]:
    """What the attack did to every domain: only what was right before, and is wrong now, was fooled by it."""
    wrong = tensors["clean_fooled"][row].tolist()
    moved = bool(tensors["delta"][row].any())
    return [
        BEFORE if was else FOOLED if now and moved else HELD
        for was, now in zip(wrong, tensors["fooled"][row].tolist(), strict=True)
    ]


def _curves(series: Tensor) -> list[list[float]]:
    """(T, K) to K lists of T numbers with four significant digits."""
    return [[float(f"{value:.4g}") for value in column] for column in series.T.tolist()]


def _spent(run: Run, count: int) -> str:
    """What a row took, in words."""
    return f"{count} {spent_noun(run, count)}"
