"""The user's own images: a folder with one folder per class, or an .npz file."""

from __future__ import annotations

import os
import warnings
import zipfile
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saddlepoint.display import counted, names_text

from .classes import CLASSES, Classes, listed, stored_names
from .formats import check_npz
from .image_files import chosen_files
from .pixels import from_array, read_picture, resized, unit
from .splits import MOST_CLASSES, rows_of

__all__ = [
    "CLASSES",
    "Classes",
    "LabelledImages",
    "channels_first",
    "check_positive",
    "check_share",
    "folder",
    "names_of",
    "npz",
    "warn_if_black",
]


class LabelledImages(NamedTuple):
    """Images (N, C, H, W), float32 in [0, 1], labels (N,), int64, and the name of every label.

    Example:
        >>> images = LabelledImages(torch.rand(2, 1, 4, 4), torch.tensor([0, 1]), ("cat", "dog"))
        >>> x, y, names = images
        >>> names[int(y[1])]
        'dog'
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        images = counted(len(self.images), "image")
        classes = counted(len(self.classes), "class", "classes")
        return f"LabelledImages({images} of {shape}, {classes}: {names_text(self.classes)})"


def folder(
    path: str | os.PathLike[str],
    size: int | None = None,
    classes: Classes | None = None,
    *,
    crop: float = 1.0,
    limit: int | None = None,
    split: str | None = None,
) -> LabelledImages:
    """Reads a folder that holds one folder of images per class.

    The label of an image is the place of its folder among the classes. Those are, in this order of
    preference: `classes`; the lines of a file `classes.txt` in the folder; the names of the folders: 0 to n-1
    if they all are numbers, where a missing one is an error, and sorted as text otherwise. An empty folder is a
    class without images. **A class without a folder shifts the labels of all later ones unless the classes are
    listed**; only of numbers it is known that one is missing.

    Pixels become numbers in [0, 1] whether they have 1, 8 or 16 bits or are floats; photographs are turned
    as their camera says; transparent pixels are shown on white.

    Args:
        path: The folder. Images may lie deeper in the folders of their classes. What is hidden (.name) and
            what archives of a Mac hold besides (__MACOSX) is left out.
        size: Bring all images to size x size: the shorter side is resized, averaging over pixels, and the
            centre kept. None leaves them alone; they must then be of one size.
        classes: All classes in the order of the model's logits, as a list or as a file with one per line.
        crop: With `size`, how much of the shorter side is kept: 0.875 resizes it to 256 for a size of 224.
        limit: Read so many images only, taken from the classes in turn; None reads all. Of a split the first.
        split: "test" is the fifth of every class that `saddlepoint train` sets aside, drawn at random, the same
            for everybody, and "train" the others; None is all.

    Returns:
        `images` (N, C, H, W), float32 in [0, 1], `labels` (N,), int64, and `classes`. C is 1 if all images are
        grey, else 3.

    Raises:
        ValueError: A folder is not listed in `classes`, there is no image, an image cannot be read rightly,
            or sizes differ.

    Warns:
        UserWarning: All images are nearly black, as with 12-bit pixels in 16 bits.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (root / name).mkdir()
        ...     Image.new("RGB", (40, 30), "white").save(root / name / "1.png")
        >>> x, y, names = folder(root, size=8, classes=["bird", "cat", "dog"])
        >>> x.shape, y.tolist(), names
        (torch.Size([2, 3, 8, 8]), [1, 2], ('bird', 'cat', 'dog'))
    """
    check_positive("limit", limit)
    check_positive("size", size)
    check_share("crop", crop)
    root = Path(path)
    if not root.is_dir():
        raise ValueError(f"`path` must be a folder that exists, got {str(path)!r}.")
    names, chosen = chosen_files(root, classes, limit, split)
    pictures = [_read(file, size, crop) for _, file in chosen]
    sides = list(dict.fromkeys(f"{p.shape[2]}x{p.shape[1]}" for p in pictures))
    if len(sides) > 1:
        raise ValueError(
            f"`path` {str(path)!r} must hold images of one size, got {', '.join(sides[:3])}; give `size` "
            "to resize them."
        )
    channels = max(len(picture) for picture in pictures)
    images = torch.stack([unit(p).expand(channels, -1, -1) for p in pictures])
    warn_if_black(images, f"the images in {root}")
    return LabelledImages(images, torch.tensor([label for label, _ in chosen]), names)


def npz(
    path: str | os.PathLike[str],
    classes: Classes | None = None,
    *,
    limit: int | None = None,
    split: str | None = None,
) -> LabelledImages:
    """Reads `images` and `labels` (or x, y, or x_test, y_test), and `classes` if it is there.

    Args:
        path: A file that numpy's `savez` wrote. Nothing in it is unpickled. Channels may be first or last, as
            in `from_dataset`.
        classes: Names of the labels, as in `folder`, in place of those in the file.
        limit: Keep the first so many images.
        split: As in `folder`.

    Raises:
        ValueError: Not such a file, or arrays that cannot be read rightly, see `pixels.from_array`.

    Warns:
        UserWarning: All images are nearly black, as with 12-bit pixels in 16 bits.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "mine.npz"
        >>> np.savez(file, images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.array([0, 1, 1, 0]))
        >>> x, y, names = npz(file)
        >>> x.shape, names
        (torch.Size([4, 3, 8, 8]), ('0', '1'))
    """
    check_positive("limit", limit)
    arrays = _arrays(Path(path))
    if "images" not in arrays or "labels" not in arrays:
        got = ", ".join(arrays) or "neither"
        raise ValueError(f"`{path}` must hold arrays `images` and `labels`, got {got}.")
    images, labels = arrays["images"], arrays["labels"]
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or len(labels) == 0:
        raise ValueError(
            f"`{path}` must have one integer label per image, got images {images.shape} and "
            f"labels {labels.shape} of type {labels.dtype}."
        )
    if int(labels.min()) < 0:
        raise ValueError(f"`{path}` must have labels from 0 on, got {labels.min()}.")
    if images.ndim not in (3, 4) or images.size == 0:
        raise ValueError(
            f"`{path}` must hold images (N, H, W), (N, H, W, C) or (N, C, H, W), got {images.shape}."
        )
    named = arrays.get("classes")
    if classes is not None:
        stored: tuple[str, ...] | None = listed(classes)
    else:
        stored = None if named is None else stored_names(path, named)
    names = names_of(str(path), stored, int(labels.max()) + 1)
    x, y = channels_first(from_array(images)), torch.from_numpy(labels.astype(np.int64))
    warn_if_black(x, f"the images in {path}")
    rows = slice(limit) if split is None else rows_of(y, split)[:limit]
    return LabelledImages(x[rows].contiguous(), y[rows], names)


def names_of(what: str, names: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    """The names of so many labels: those that are known, or numbers.

    Raises:
        ValueError: There are more labels than names, or more than can be meant.

    Example:
        >>> names_of("mine.npz", None, 3)
        ('0', '1', '2')
    """
    if count > MOST_CLASSES:
        raise ValueError(
            f"`{what}` must have labels below {MOST_CLASSES:,}, the numbers of classes, got {count - 1}."
        )
    if names is None:
        return tuple(str(k) for k in range(count))
    if len(names) < count:
        raise ValueError(
            f"`classes` of {what} must have the name of every label, got {len(names)} names and label "
            f"{count - 1}."
        )
    return names


# ------------------------------------------------------------------------------------------ folders


def _read(file: Path, size: int | None, crop: float) -> Tensor:
    pixels = read_picture(file)
    return pixels if size is None else resized(pixels, size, crop)


# ------------------------------------------------------------------------------------------- arrays


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays that are needed, under our names."""
    if not path.is_file():
        raise ValueError(f"`path` must be a file that exists, got {str(path)!r}.")
    ours = {"images": ("images", "x", "x_test"), "labels": ("labels", "y", "y_test")}
    found: dict[str, NDArray[Any]] = {}
    try:
        # Opened here, so that it is closed also where numpy does not get as far as an NpzFile.
        with path.open("rb") as opened:
            if zipfile.is_zipfile(opened):
                check_npz(opened)
            opened.seek(0)
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError(
                    f"`{path}` must be an .npz file, got a single array; save images and labels with "
                    "np.savez(file, images=..., labels=...)."
                )
            for name, theirs in {**ours, "classes": ("classes",)}.items():
                key = next((key for key in theirs if key in file.files), None)
                if key is not None:
                    found[name] = _array(file, key)
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        if str(error).startswith("`"):
            raise
        raise ValueError(f"`{path}` must be an .npz file, got one that cannot be read.") from error
    return found


def _array(file: Any, key: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = file[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ValueError(
            f"`{key}` must be numbers, got Python objects, which are never loaded; save it with a type such "
            "as uint8, int64 or str."
        ) from error
    return array


def channels_first(x: Tensor) -> Tensor:
    """(N, H, W), (N, H, W, C) or (N, C, H, W) to (N, C, H, W)."""
    if x.dim() == 3:
        return x.unsqueeze(1)
    last = x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4)
    return x.permute(0, 3, 1, 2) if last else x


def check_positive(name: str, value: int | None) -> None:
    """Refuse what is neither None nor a whole number of at least 1."""
    if value is None:
        return
    try:
        positive = index(value) >= 1 and not isinstance(value, bool)
    except TypeError:
        positive = False
    if not positive:
        raise ValueError(f"`{name}` must be a whole number of at least 1, got {value!r}.")


def check_share(name: str, value: float) -> None:
    """Refuse what is no number above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"`{name}` must be a number in (0, 1], got {value!r}.")


def warn_if_black(images: Tensor, what: str) -> None:
    """Say so where pixels use so little of their scale that it is likely to be another one."""
    most = images.max().item()
    if 0 < most < 0.1:
        warnings.warn(
            f"{what} are nearly black, with no value above {most:.2g} of 1: were they stored with fewer bits "
            "than their type has, or divided by 255 twice? Save them as floats in [0, 1], 1 being white.",
            stacklevel=3,
        )
