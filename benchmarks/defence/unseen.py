"""`quick` on training images that no row of a table has seen.

A choice, of step sizes or radii, that is made on test images makes their accuracy too high for what was chosen.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from saddlepoint import data, models
from saddlepoint.evaluation import RobustAccuracy, robust_accuracy
from saddlepoint.runs import texts
from saddlepoint.runs.settings import TrainSettings

SUITE = "unseen"
"""In place of a suite, in a table that something is chosen by."""


def images_behind(settings: TrainSettings, images: int) -> tuple[Tensor, Tensor]:
    """The training images behind those that are trained and validated on, with their classes.

    Raises:
        ValueError: The training takes all images, or too many.
    """
    if settings.limit is None:
        raise ValueError(
            "`table` must leave training images aside (limit), got one that takes all."
        )
    x, y = data.load(settings.data, "train", settings.limit + images)
    if len(x) < settings.limit + images:
        raise ValueError(
            f"`images` must be at most {len(x) - settings.limit}, the training images behind the first "
            f"{settings.limit}, got {images}."
        )
    return x[settings.limit :], y[settings.limit :]


def judged(settings: TrainSettings, images: int, network: Path) -> RobustAccuracy:
    """What `quick` leaves right of a network in a file, on unseen images."""
    x, y = images_behind(settings, images)
    balls = {name: each.ball for name, each in texts.threats(settings.threat).items()}
    return robust_accuracy(models.load(network), x, y, balls, "quick")
