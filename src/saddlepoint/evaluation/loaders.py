"""Images and labels as they are given: both, or batches of both from a loader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from saddlepoint.problems.inputs import Numbers, as_images, as_labels

__all__ = ["images_and_labels"]


def images_and_labels(
    x: Numbers | Iterable[Any], y: Numbers | None = None
) -> tuple[Tensor, Tensor]:
    """Images (N, ...) and labels (N,) as tensors; the batches of a loader are put together.

    Args:
        x: Images, or, without `y`, pairs of images and labels, as a `DataLoader` gives them.
        y: Labels.

    Raises:
        TypeError: They are neither numbers nor batches of them.
        ValueError: Labels are missing, there is no batch, or numbers are out of range.

    Example:
        >>> batches = [(torch.rand(2, 3), torch.tensor([0, 1])), (torch.rand(1, 3), torch.tensor([1]))]
        >>> x, y = images_and_labels(batches)
        >>> x.shape, y
        (torch.Size([3, 3]), tensor([0, 1, 1]))
    """
    if isinstance(y, Mapping):
        raise TypeError("`y` must be labels, got a mapping; write threats= before the threats.")
    if y is not None:
        return _both(x, y)
    if hasattr(x, "__array__") or not isinstance(x, Iterable):
        raise ValueError(
            f"`y` must be the labels of the images, got None for {type(x).__name__}; leave it out only for a "
            "loader, which gives both."
        )
    pairs: list[tuple[Tensor, Tensor]] = []
    for batch in x:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(
                f"`x` must give pairs of images and labels, got {type(batch).__name__}; let the loader return "
                "(images, labels), or give `y`."
            )
        pairs.append(_both(*batch))
    if not pairs:
        raise ValueError("`x` must give at least one batch of images and labels, got none.")
    return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])


def _both(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    images = as_images("x", x, 2)
    return images, as_labels("y", y, (len(images),))
