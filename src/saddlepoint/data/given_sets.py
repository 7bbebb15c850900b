"""Data sets of torch, loaders and pairs of arrays that the user made, as images in [0, 1] with labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saddlepoint.loaders import items, pairs

from .classes import Classes, listed
from .own import (
    LabelledImages,
    channels_first,
    check_positive,
    check_share,
    names_of,
    warn_if_black,
)
from .pixels import from_array, from_picture, resized
from .splits import rows_of

__all__ = ["from_dataset"]


def from_dataset(
    source: Any,
    size: int | None = None,
    classes: Classes | None = None,
    *,
    crop: float = 1.0,
    limit: int | None = None,
    split: str | None = None,
) -> LabelledImages:
    """Reads a data set of torch, or what else gives images with labels, into memory.

    Args:
        source: A data set of torch, a DataLoader, other pairs of images and labels one by one or in batches, or
            one pair of arrays. Images are (C, H, W), (H, W, C) or (H, W), of floats in [0, 1] or with 8 or 16
            bits, or pictures of PIL. The channels are first where the first number is 1, 3 or 4, also where
            the last one could be: give images of such few rows, as (4, 6, 3), with their channels first.
        size: Bring all images to size x size, as in `folder`.
        classes: Names of the labels, as in `folder`; else those the data set has as `classes`, or numbers.
        crop: With `size`, how much of the shorter side is kept, as in `folder`.
        limit: Read the first so many images.
        split: As in `folder`; all images are read.

    Raises:
        TypeError, ValueError: It does not give images with labels, or images that cannot be read rightly.

    Example:
        >>> x, y, names = from_dataset([(np.full((9, 7), 51, np.uint8), k) for k in range(3)], size=4)
        >>> x.shape, x.unique(), y.tolist(), names
        (torch.Size([3, 1, 4, 4]), tensor([0.2000]), [0, 1, 2], ('0', '1', '2'))
    """
    check_positive("limit", limit)
    check_positive("size", size)
    check_share("crop", crop)
    images: list[Tensor] = []
    labels: list[int] = []
    limit, first = (limit, None) if split is None else (None, limit)
    for pixels, numbers in pairs(_items(source)):
        room = len(numbers) if limit is None else limit - len(labels)
        for image, label in zip(pixels[:room], numbers[:room].tolist(), strict=True):
            plane = image.detach().unsqueeze(0) if image.dim() == 2 else image.detach()
            plane = channels_first(plane.unsqueeze(0))[0] if plane.dim() == 3 else plane
            if plane.dim() != 3 or not isinstance(label, int) or label < 0:
                raise ValueError(
                    "`data` must give images (C, H, W) or (H, W) with labels from 0 on, got shape "
                    f"{tuple(image.shape)} and label {label}."
                )
            images.append(plane if size is None else resized(plane, size, crop))
            labels.append(label)
        if limit is not None and len(labels) >= limit:
            break
    if not images:
        raise ValueError("`data` must give at least one image with its label, got none.")
    shapes = list(dict.fromkeys(tuple(image.shape) for image in images))
    if len(shapes) > 1:
        raise ValueError(
            f"`data` must give images of one shape, got {shapes[0]} and {shapes[1]}; give `size` to "
            "resize them."
        )
    together = torch.stack(images).cpu()
    x = from_array((together.float() if together.is_floating_point() else together).numpy())
    warn_if_black(x, "the images of the data set")
    y = torch.tensor(labels)
    own = getattr(getattr(source, "dataset", source), "classes", None)
    found = listed(classes) if classes is not None else listed(own) if own is not None else None
    names = names_of("the data set", found, int(y.max()) + 1)
    if split is None:
        return LabelledImages(x, y, names)
    rows = rows_of(y, split)[:first]
    return LabelledImages(x[rows], y[rows], names)


def _items(source: Any) -> Iterable[Any]:
    """Images with labels, pictures of PIL as tensors; one pair of arrays is a batch."""
    if isinstance(source, tuple) and len(source) in (2, 3) and np.ndim(source[1]) == 1:
        return [source[:2]]
    return map(_picture_read, items(source))


def _picture_read(item: Any) -> Any:
    if isinstance(item, tuple | list) and len(item) == 2 and hasattr(item[0], "getbands"):
        return from_picture(item[0]), item[1]
    return item
