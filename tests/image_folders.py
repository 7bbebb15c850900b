"""Folders of pictures, as users have them."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

import saddlepoint as sp

__all__ = ["digits"]


def digits(root: Path, count: int = 100, without: int | None = None) -> tuple[torch.Tensor, ...]:
    """Writes MNIST test images into one folder per digit, and returns them in the order of reading."""
    x, y = sp.data.sample("mnist", count)
    for index, (image, label) in enumerate(zip(x, y, strict=True)):
        if int(label) != without:
            folder = root / str(int(label))
            folder.mkdir(parents=True, exist_ok=True)
            pixels = (image[0] * 255).round().byte().numpy()
            Image.fromarray(pixels).save(folder / f"{index:04d}.png")
    order = torch.tensor(sorted(range(count), key=lambda index: (int(y[index]), index)))
    order = order[y[order] != (-1 if without is None else without)]
    return x[order], y[order]
