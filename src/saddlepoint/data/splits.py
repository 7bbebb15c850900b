"""Images without a test set of their own: the fifth that is set aside for testing, the same for everybody."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["SPLITS", "rows_of"]

SPLITS = ("test", "train")


def rows_of(count: int, split: str | None, *, shuffle: bool = True) -> Tensor:
    """Which of so many images belong to a split: a fifth to "test", the others to "train", all to None.

    Both are drawn at random, always the same way, because files often have one class after the other.

    Args:
        count: How many images there are.
        split: "train", "test" or None.
        shuffle: Whether they are drawn; else "test" is the last fifth.

    Raises:
        ValueError: Another split, or too few images to divide.

    Example:
        >>> rows_of(5, "test"), rows_of(5, "train"), rows_of(3, None)
        (tensor([2]), tensor([4, 0, 1, 3]), tensor([0, 1, 2]))
    """
    if split is None:
        return torch.arange(count)
    if split not in SPLITS:
        raise ValueError(f"`split` must be one of {', '.join(SPLITS)}, got {split!r}.")
    if count < 2:
        raise ValueError(f"`data` must have images to train on and to test on, got {count}.")
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    order = drawn if shuffle else torch.arange(count)
    first = count * 4 // 5
    return order[:first] if split == "train" else order[first:]
