"""What goes into the training loop and what comes out: batches, and the state of affairs after a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor

__all__ = ["Batches", "Loader", "Progress"]


class Loader(Protocol):
    """What `train` needs of a loader: batches (x, y), and how many. A DataLoader is one."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


@final
@dataclass(frozen=True)
class Progress:
    """Where training is, after a step.

    Attributes:
        epoch: The current epoch, from 1.
        epochs: How many there will be.
        step: Steps done in this epoch, from 1.
        steps: Steps in an epoch.
        stats: Means over the images of this epoch so far: "loss", "accuracy" and what else the
            method reports, such as "weight/linf".
        validation: At the end of an epoch, the accuracy on held-out images: "clean", one entry per threat,
            and "union". None before, and where nothing is held out.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    stats: Mapping[str, float]
    validation: Mapping[str, float] | None = None


@final
class Batches:
    """Shuffled batches of a data set held in memory: a loader without worker processes.

    Each pass draws its order, and which images to mirror, from torch's global generator, which
    `train` seeds for every epoch. The last batch may be smaller.

    Args:
        x: Images, (N, ...).
        y: Labels, (N,).
        size: Images per batch.
        flip: Mirror each image left to right with probability one half.

    Example:
        >>> batches = Batches(torch.rand(10, 1, 4, 4), torch.arange(10), size=4)
        >>> [len(y) for _, y in batches]
        [4, 4, 2]
    """

    def __init__(self, x: Tensor, y: Tensor, size: int, *, flip: bool = False) -> None:
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(f"`x` and `y` must be of equal length > 0, got {len(x)}, {len(y)}.")
        if size < 1:
            raise ValueError(f"`size` must be at least 1, got {size}.")
        self.x, self.y, self.size, self.flip = x, y, size, flip

    def __len__(self) -> int:
        return math.ceil(len(self.x) / self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.x))
        for start in range(0, len(order), self.size):
            index = order[start : start + self.size]
            x = self.x[index]
            if self.flip:
                mirrored = torch.rand(len(x)) < 0.5
                x[mirrored] = x[mirrored].flip(-1)
            yield x, self.y[index]
