"""Images without a test set of their own: a fifth of every class is set aside, the same for everybody."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["MOST_CLASSES", "SPLITS", "rows_of"]

SPLITS = ("test", "train")
MOST_CLASSES = 100_000
"""Larger labels are taken for a mistake; names are made for labels without one."""


def rows_of(labels: Tensor, split: str | None, *, shuffle: bool = True) -> Tensor:
    """Which images belong to a split: a fifth of every class to "test", the others to "train", all to None.

    Both are drawn at random, always the same way, because files often have one class after the other. A class
    with two images or more has one in each at least; that of a single image is to train on, unless all are.

    Args:
        labels: Of the images, (N,).
        split: "train", "test" or None.
        shuffle: Whether they are drawn; else "test" is the last fifth, whatever its classes.

    Raises:
        ValueError: Another split, too few images to divide, or labels that are no numbers of classes.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 1, 1])
        >>> rows_of(labels, "test"), rows_of(labels, "train"), rows_of(labels[:3], None)
        (tensor([3, 2]), tensor([4, 0, 1]), tensor([0, 1, 2]))
    """
    count = len(labels)
    if split is None:
        return torch.arange(count)
    if split not in SPLITS:
        raise ValueError(f"`split` must be one of {', '.join(SPLITS)}, got {split!r}.")
    if count < 2:
        raise ValueError(f"`data` must have images to train on and to test on, got {count}.")
    if shuffle:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        aside = _set_aside(_numbers(labels)[order])
    else:
        order = torch.arange(count)
        aside = order >= count * 4 // 5
    return order[aside if split == "test" else ~aside]


def _numbers(labels: Tensor) -> Tensor:
    """Labels as indices."""
    numbers = labels.long().cpu()
    wrong = numbers[(numbers < 0) | (numbers >= MOST_CLASSES)]
    if len(wrong):
        raise ValueError(
            f"`data` must have labels from 0 to {MOST_CLASSES - 1:,}, got {int(wrong[0])}."
        )
    return numbers


def _set_aside(labels: Tensor) -> Tensor:
    """The last fifth of every class, to the nearest image, but one at least, (N,), boolean."""
    counts = labels.bincount()
    if int(counts.max()) == 1:  # nothing to spread
        return torch.arange(len(labels)) >= len(labels) * 4 // 5
    tested = ((counts + 2) // 5).clamp_min(1).masked_fill(counts < 2, 0)
    by_class = labels.argsort(stable=True)
    left = counts.cumsum(0)[labels[by_class]] - torch.arange(
        len(labels)
    )  # of the class, from here on
    aside = torch.zeros(len(labels), dtype=torch.bool)
    aside[by_class] = left <= tested[labels[by_class]]
    return aside
