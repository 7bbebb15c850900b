"""What the page of a universal attack shows: weights over all images of all groups, and hard beside easy ones.

The place of an image in its group means nothing, so that nothing here is counted by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from saddlepoint.report.gallery import BEFORE, FOOLED, HELD
from saddlepoint.report.weight_charts import boxplot, histogram
from saddlepoint.runs import AttackMetrics, Rates

__all__ = ["right_images", "spread_of"]

OUTCOMES = {FOOLED: "fooled", HELD: "not fooled", BEFORE: "wrong before the attack"}

_EXTREMES = 6  # hard images shown, and as many easy ones


def right_images(rates: Rates) -> tuple[int, float]:
    """How many images of all groups the model has right under attack, and their share in percent.

    Args:
        rates: Of the attack or of its baseline, with accuracies by the place in the group.
    """
    share = sum(rates.accuracy.values()) / len(rates.accuracy)
    return round(share * rates.rows * len(rates.accuracy) / 100), share


def spread_of(
    metrics: AttackMetrics,
    tensors: Mapping[str, Tensor],
    rows: Sequence[Mapping[str, Any]],
    max_bytes: int,
) -> dict[str, Any]:
    """What the section on weights shows.

    Args:
        metrics: Of the run.
        tensors: `weights`, `fooled` and `clean_fooled`, (B, K).
        rows: The groups of the gallery, from `saddlepoint.report.gallery.picture_row`.
        max_bytes: Size that the pictures of hard and easy images must not exceed.

    Returns:
        `histogram` of all weights, `ranks`, boxes of the largest weight of every group, the second and so on,
        `hard` and `easy`, images of the gallery, and `right`, counts of images by column of the table.
    """
    weights = tensors["weights"]
    before, fooled = tensors["clean_fooled"], tensors["fooled"]
    tables = {FOOLED: fooled & ~before, HELD: ~fooled & ~before, BEFORE: before}
    count = weights.shape[1]
    ordered = weights.sort(dim=1, descending=True).values
    images = [{**domain, "group": row["row"]} for row in rows for domain in row["domains"]]
    # Of equal weights the larger loss is the harder one.
    images.sort(key=lambda image: (image["weight"], image["loss"]), reverse=True)
    largest = max(len(i["picture"]) + len(i["clean_picture"]) + 700 for i in images)
    few = min(_EXTREMES, len(images) // 2, max_bytes // (2 * largest))
    columns = {"ours": metrics, "baseline": metrics.baseline}
    clean = metrics.clean_accuracy
    return {
        "histogram": histogram({k: weights[t] for k, t in tables.items()}, OUTCOMES, 1 / count),
        "outcomes": {k: OUTCOMES[k] for k, t in tables.items() if bool(t.any())},
        "ranks": boxplot(ordered, [_rank(k) for k in range(count)], alike=True),
        "none": 100 * float((weights < 0.01).double().mean()),
        "largest": float(ordered[:, 0].double().mean()),
        "hard": images[:few],
        "easy": images[::-1][:few],
        "total": metrics.rows * count,
        "clean": round(sum(clean.values()) * metrics.rows / 100),
        "right": {k: right_images(each)[0] for k, each in columns.items() if each is not None},
    }


def _rank(k: int) -> str:
    return ("largest", "2nd", "3rd")[k] if k < 3 else f"{k + 1}th"
