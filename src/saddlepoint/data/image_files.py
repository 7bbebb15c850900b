"""Which files of a folder of images are meant: one folder per class, in the order of labels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from saddlepoint.display import counted

from .classes import Classes, class_folders, is_aside
from .splits import rows_of

__all__ = ["chosen_files", "files_of", "sides_of"]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff")


def files_of(
    path: str | os.PathLike[str],
    classes: Classes | None = None,
    *,
    limit: int | None = None,
    split: str | None = None,
) -> list[Path]:
    """The files that `folder` reads, in the order of its images."""
    return [file for _, file in chosen_files(Path(path), classes, limit, split)[1]]


def sides_of(files: Iterable[Path]) -> set[tuple[int, int]]:
    """Sizes of pictures, as they are stored, the shorter side first; nothing is unpacked."""
    from PIL import Image

    found = set()
    for file in files:
        with Image.open(file) as picture:
            shorter, longer = sorted(picture.size)
            found.add((shorter, longer))
    return found


def chosen_files(
    root: Path, classes: Classes | None, limit: int | None, split: str | None
) -> tuple[tuple[str, ...], list[tuple[int, Path]]]:
    """Names of the classes, and labels and files of the images that are meant, in order.

    Args:
        root: One folder per class in it.
        classes: As in `folder`.
        limit: So many, taken from the classes in turn; of a split the first.
        split: As in `folder`.

    Raises:
        ValueError: There is no image.
    """
    names, folders = class_folders(root, classes)
    whole = None if split is not None else limit
    chosen = _spread([_image_files(f) if f is not None else [] for f in folders], whole)
    if split is not None and chosen:
        labels = torch.tensor([label for label, _ in chosen])
        chosen = [chosen[row] for row in rows_of(labels, split)[:limit].tolist()]
    if not chosen:
        raise ValueError(_no_image(root, sum(f is not None for f in folders)))
    return names, chosen


def _image_files(place: Path) -> list[Path]:
    """Pictures in a folder and those within, in order, but for what is hidden."""
    return sorted(
        f
        for f in place.rglob("*")
        if f.suffix.lower() in _SUFFIXES
        and f.is_file()
        and not any(map(is_aside, f.relative_to(place).parts))
    )


def _spread(by_class: Sequence[Sequence[Path]], limit: int | None) -> list[tuple[int, Path]]:
    """All files with their labels, or the first `limit` taking one class after the other in turn."""
    turns = [
        (turn, label, file)
        for label, files in enumerate(by_class)
        for turn, file in enumerate(files)
    ]
    return sorted((label, file) for _, label, file in sorted(turns)[:limit])


def _no_image(root: Path, folders: int) -> str:
    loose = sum(f.suffix.lower() in _SUFFIXES for f in root.iterdir() if f.is_file())
    start = f"`path` {str(root)!r} must hold one folder of images per class, got"
    if folders:
        where = "it" if folders == 1 else "them"
        beside = f"; {counted(loose, 'image')} beside, without a class" if loose else ""
        return f"{start} {counted(folders, 'folder')} and no image in {where} ({', '.join(_SUFFIXES)}){beside}."
    if loose:
        return (
            f"{start} {counted(loose, 'image')} directly in it and no folder: the folder of an image says its "
            "class, so put every image into one named after its class."
        )
    return f"{start} an empty folder."
