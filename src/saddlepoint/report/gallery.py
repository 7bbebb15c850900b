"""The rows a report shows: which ones, and everything said about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem, Product, Transformed
from saddlepoint.report.pictures import picture, sign_picture
from saddlepoint.report.record import Run
from saddlepoint.report.words import class_name
from saddlepoint.streams import JUDGE

__all__ = [
    "BEFORE",
    "FOOLED",
    "GALLERY_ROWS",
    "HELD",
    "Scales",
    "gallery_rows",
    "hardness",
    "keep_for_gallery",
    "picture_row",
    "scales",
]

GALLERY_ROWS = 60
"""How many rows a report shows at most."""

FOOLED, HELD, BEFORE = "hit", "miss", "before"
"""Fooled by the attack, not fooled, wrong before the attack: names of styles of the page."""

_CURVE_POINTS = 51


def hardness(fooled: Tensor, losses: Tensor, num_forwards: Tensor) -> Tensor:
    """How hard every row was: its rank from 0 (fell at once) to 1 (resisted most), (B,).

    Rows are ordered by the domains they did not fool, then by the evaluations they took, then by their
    worst loss.

    Args:
        fooled: (B, K).
        losses: (B, K).
        num_forwards: (B,).

    Example:
        >>> fooled = torch.tensor([[True, True], [True, False], [True, True]])
        >>> hardness(fooled, torch.zeros(3, 2), torch.tensor([5, 9, 2]))
        tensor([0.5000, 1.0000, 0.0000])
    """
    keys = list(
        zip(
            (~fooled).sum(dim=1).tolist(),
            num_forwards.tolist(),
            losses.amax(dim=1).tolist(),
            strict=True,
        )
    )
    order = sorted(range(len(keys)), key=lambda row: keys[row])
    ranks = torch.zeros(len(keys))
    ranks[torch.tensor(order, dtype=torch.long)] = torch.arange(len(keys), dtype=torch.float32)
    return ranks / max(len(keys) - 1, 1)


def gallery_rows(tensors: Mapping[str, Tensor], limit: int = GALLERY_ROWS) -> Tensor:
    """Rows for the gallery, hardest first: a quarter the hardest ones, the rest spread over the others.

    Args:
        tensors: `fooled`, `losses`, (B, K), and `num_forwards`, (B,).
        limit: At most so many.
    """
    ranks = hardness(tensors["fooled"], tensors["losses"], tensors["num_forwards"])
    order = ranks.argsort(descending=True)
    if len(order) <= limit:
        return order
    top = max(1, limit // 4)
    rest = order[top:]
    spread = torch.linspace(0, len(rest) - 1, limit - top).round().long()
    return torch.cat([order[:top], rest[spread]])


def keep_for_gallery(problem: AbstractProblem, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The images the report needs, so that it can be drawn again without data or models.

    Returns:
        `gallery.rows` (G,), `gallery.clean` and `gallery.adversarial` (G, ...) or (G, K, ...), and where
        domains look at transformed images, `gallery.views` (G, K, ...), what each of them sees.
    """
    rows = gallery_rows(tensors)
    part = problem.take(rows.to(problem.lower.device))
    delta = tensors["delta"][rows].to(problem.lower)
    kept = {
        "gallery.rows": rows,
        "gallery.clean": part.images(part.zeros()),
        "gallery.adversarial": part.images(delta),
    }
    if isinstance(part, Transformed | Product):
        with torch.no_grad():
            views = [part.view(delta, k, JUDGE) for k in range(part.num_domains)]
        if all(view.shape == views[0].shape for view in views):
            kept["gallery.views"] = torch.stack(views, dim=1)
    return kept


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
    grouped = run.kind == "universal"
    domains = [
        {
            "index": k,
            "name": name,
            "label": class_name(run, labels[k]),
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
        "classes": sorted({class_name(run, label) for label in labels}),
        "missed": [k for k, state in enumerate(states) if state == HELD],
        "before": [k for k, state in enumerate(states) if state == BEFORE],
        "evaluations": int(tensors["num_forwards"][row]),
        "clean": "" if grouped else picture(clean),
        "delta": sign_picture(tensors["delta"][row], scale.strength),
        "adversarial": "" if grouped else picture(adversarial),
        "domains": domains,
        "curves": {
            "weights": _curves(tensors["history.weights"][scale.steps, row]),
            "losses": _curves(tensors["history.losses"][scale.steps, row]),
        },
    }


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
