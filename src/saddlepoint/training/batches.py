"""What goes into the training loop and what comes out: batches, and the state of affairs after a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, final, get_args

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

__all__ = [
    "Batch",
    "Batches",
    "Border",
    "Loader",
    "TrainingProgress",
    "as_batch",
    "as_loader",
    "check_border",
]

Border = Literal["black", "mirrored"]
"""What comes in at the edge of an image that is shifted: black, or the image, mirrored at its last pixel."""


class Loader(Protocol):
    """What `train` needs of a loader: batches (x, y) or (x, y, numbers), and how many. A DataLoader is one.

    Example:
        >>> import saddlepoint as sp
        >>> loader: sp.Loader = [(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))] * 3
        >>> len(loader), next(iter(loader))[0].shape
        (3, torch.Size([4, 2]))
    """

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


class Batch(NamedTuple):
    """Images (B, ...), labels (B,), and numbers of the images in the data set, (B,), where they are given."""

    x: Tensor
    y: Tensor
    numbers: Tensor | None = None


def as_batch(given: Any) -> Batch:
    """What a loader gave, or an error that says what it should give.

    Example:
        >>> as_batch([torch.rand(2, 3), torch.tensor([0, 1])]).numbers is None
        True
    """
    if isinstance(given, list | tuple):
        arrays = (torch.as_tensor(e) if hasattr(e, "__array__") else e for e in given)
        given = type(given)(arrays) if type(given) in (list, tuple) else tuple(arrays)
    pair = isinstance(given, list | tuple) and len(given) in (2, 3)
    if not pair or not all(isinstance(each, Tensor) for each in given):
        got = type(given).__name__
        if isinstance(given, list | tuple):
            got += f" of {', '.join(type(each).__name__ for each in given) or 'nothing'}"
        raise TypeError(
            f"`loader` must give tensors (x, y) or (x, y, numbers of the images), got a {got}; a loader that "
            "gives something else needs a collate function."
        )
    batch = Batch(*given)
    if any(len(each) != len(batch.x) for each in given):
        raise ValueError(
            f"`loader` must give as many labels as images, got {[len(each) for each in given]}."
        )
    return batch


def as_loader(loader: Loader | Dataset[Any], size: int) -> Loader:
    """The loader, or one that shuffles a data set into batches of so many images.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> len(as_loader(TensorDataset(torch.rand(5, 3), torch.arange(5)), 2))
        3
    """
    if not isinstance(loader, Dataset):
        return loader
    if isinstance(loader, IterableDataset):
        raise TypeError(
            "`loader` must be a loader, or a data set that can be shuffled, got an IterableDataset; give a "
            "DataLoader of it that has a length."
        )
    return DataLoader(loader, batch_size=size, shuffle=True)


@final
@dataclass(frozen=True, repr=False)
class TrainingProgress:
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

    Example:
        >>> import saddlepoint as sp
        >>> model, data = torch.nn.Linear(4, 3), Batches(torch.rand(6, 4), torch.arange(6) % 3, 3)
        >>> (last,) = sp.train(model, data, epochs=1)
        >>> last.epoch, last.step, last.steps, sorted(last.stats)
        (1, 2, 2, ['accuracy', 'loss'])
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    stats: Mapping[str, float]
    validation: Mapping[str, float] | None = None

    def __repr__(self) -> str:
        figures = [self.stats, *([self.validation] if self.validation else [])]
        told = [
            ", ".join(f"{name} {value:.4g}" for name, value in each.items()) for each in figures
        ]
        where = f"epoch {self.epoch}/{self.epochs}, step {self.step}/{self.steps}"
        return f"TrainingProgress({where}: {'; held out '.join(told)})"


@final
class Batches:
    """Shuffled batches of a data set held in memory: a loader without worker processes.

    Each pass draws its order, and which images to mirror and how far to shift them, from torch's global
    generator, which `train` seeds for every epoch. The last batch may be smaller.

    Args:
        x: Images, (N, ...).
        y: Labels, (N,).
        size: Images per batch.
        flip: Mirror each image left to right with probability one half.
        shift: Shift each image by up to so many pixels along both axes, every distance as likely.
        border: What comes in then: "black", or the image "mirrored" at its edge.
        numbered: Give the numbers of the images too, as methods need that remember something of each image.

    Example:
        >>> batches = Batches(torch.rand(10, 1, 4, 4), torch.arange(10), size=4)
        >>> [len(y) for _, y in batches]
        [4, 4, 2]
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        size: int,
        *,
        flip: bool = False,
        shift: int = 0,
        border: Border = "black",
        numbered: bool = False,
    ) -> None:
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(f"`x` and `y` must be of equal length > 0, got {len(x)}, {len(y)}.")
        if size < 1:
            raise ValueError(f"`size` must be at least 1, got {size}.")
        if shift < 0:
            raise ValueError(f"`shift` must be at least 0, got {shift}.")
        check_border(border)
        if border == "mirrored" and shift and shift >= min(x.shape[-2:]):
            raise ValueError(
                f"`shift` must be below {min(x.shape[-2:])} for images of {tuple(x.shape[-2:])} that are "
                f"mirrored at the edge, got {shift}."
            )
        if (flip or shift) and numbered:
            name, value = ("flip", "True") if flip else ("shift", shift)
            raise ValueError(
                f"`{name}` must be {'False' if flip else 0} with numbered images, got {value}: what was found "
                "for an image is not meant for one that is mirrored or shifted."
            )
        self.x, self.y, self.size = x, y, size
        self.flip, self.shift, self.border, self.numbered = flip, shift, border, numbered

    def __len__(self) -> int:
        return math.ceil(len(self.x) / self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(len(self.x))
        for start in range(0, len(order), self.size):
            index = order[start : start + self.size]
            x = self.x[index]
            if self.flip:
                mirrored = torch.rand(len(x)) < 0.5
                x[mirrored] = x[mirrored].flip(-1)
            if self.shift:
                by = torch.randint(2 * self.shift + 1, (2, len(x)))
                x = _shifted(x, by, self.shift, self.border)
            yield (x, self.y[index], index) if self.numbered else (x, self.y[index])


def check_border(border: str) -> None:
    """Refuse what is no border."""
    if border not in get_args(Border):
        raise ValueError(f"`border` must be 'black' or 'mirrored', got {border!r}.")


def _shifted(x: Tensor, by: Tensor, most: int, border: Border) -> Tensor:
    """Windows of images (B, C, H, W) with a border, `by` (2, B) entries from its top and left edge."""
    count, channels, height, width = x.shape
    mode = "reflect" if border == "mirrored" else "constant"
    wide = torch.nn.functional.pad(x, (most,) * 4, mode)
    rows = (by[0][:, None] + torch.arange(height))[:, None, :, None]
    columns = (by[1][:, None] + torch.arange(width))[:, None, None, :]
    image, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    return wide[image, channel, rows, columns]
