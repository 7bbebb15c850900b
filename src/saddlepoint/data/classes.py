"""Names of classes in the order of labels, from folders, lists and files; what would shift them is refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CLASSES",
    "Classes",
    "class_folders",
    "class_names",
    "is_aside",
    "listed",
    "stored_names",
]

CLASSES = "classes.txt"
"""A file of this name beside the class folders lists the classes, one per line."""

Classes = Sequence[str | int] | str | os.PathLike[str]
"""Names of classes in the order of a model's logits, or a file with one name per line, in UTF-8."""

_KNOWN = {
    "cifar10": "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck",
    "fashion-mnist": "T-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot",
    "mnist": "0,1,2,3,4,5,6,7,8,9",
}


def class_names(name: str) -> tuple[str, ...]:
    """Names of the classes of a data set that is known by name.

    Args:
        name: As `saddlepoint.data.load` takes it.

    Example:
        >>> class_names("cifar10-sample")[:3], class_names("mnist")[:3]
        (('airplane', 'automobile', 'bird'), ('0', '1', '2'))
    """
    return tuple(_KNOWN[name.removesuffix("-sample")].split(","))


def class_folders(root: Path, classes: Classes | None) -> tuple[tuple[str, ...], list[Path | None]]:
    """Names of the classes in the order of labels, and the folder of each that has one."""
    found = {f.name: f for f in root.iterdir() if f.is_dir() and not is_aside(f.name)}
    if classes is None and (root / CLASSES).is_file():
        classes = root / CLASSES
    if classes is None:
        names = _numbered(root, found) if all(map(_is_number, found)) else tuple(sorted(found))
    else:
        names = listed(classes)
        unknown = sorted(set(found) - set(names))
        if unknown:
            shown = ", ".join(repr(name) for name in unknown[:3])
            raise ValueError(
                f"`classes` must name every folder of {root}, got no {shown} among {len(names)} names."
            )
    return names, [found.get(name) for name in names]


def _numbered(root: Path, found: Iterable[str]) -> tuple[str, ...]:
    """Names that are numbers, in their order: each must be the label that its place makes it."""
    names = tuple(sorted(found, key=int))
    wrong = [name for label, name in enumerate(names) if int(name) != label]
    if wrong:
        place = names.index(wrong[0])
        raise ValueError(
            f"`path` {str(root)!r} must have all folders from 0 on where they are named by numbers, got "
            f"{wrong[0]!r} in place of {place}, so that labels would be shifted; list all classes in the order "
            f"of the model's logits in `classes` or in {CLASSES}, one per line."
        )
    return names


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def is_aside(name: str) -> bool:
    """Whether a file or folder is hidden, or what archives of a Mac hold besides."""
    return name.startswith(".") or name == "__MACOSX"


def listed(classes: Classes) -> tuple[str, ...]:
    """The names of classes, from a list or from the lines of a file."""
    if isinstance(classes, str | os.PathLike):
        classes = _lines(Path(classes))
    for name in classes:
        if not isinstance(name, str | int | np.integer):
            raise ValueError(f"`classes` must be names, got {name!r}, {type(name).__name__}.")
    names = tuple(str(name) for name in classes)
    if not names:
        raise ValueError("`classes` must name at least one class, got none.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"`classes` must name every class once, got {twice[0]!r} twice.")
    return names


def _lines(path: Path) -> list[str]:
    """The names in a file, one per line."""
    try:
        # Some editors of Windows begin a file with a byte order mark, which is no part of the first name.
        text = path.read_text(encoding="utf-8-sig")
    except OSError:
        raise ValueError(
            f"`classes` must be a list of names or a file with one name per line, got {str(path)!r}, which is "
            "no such file."
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(
            f"`classes` must be a file in UTF-8, got {str(path)!r} with the byte "
            f"0x{error.object[error.start]:02x} in line {line}; save it as UTF-8."
        ) from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def stored_names(path: str | os.PathLike[str], stored: NDArray[Any]) -> tuple[str, ...]:
    """The names of classes in an .npz file: text, bytes in UTF-8, or numbers."""
    if stored.ndim != 1 or stored.dtype.kind not in "USiu":
        raise ValueError(
            f"`classes` in {path} must be a list of names, (classes,), got shape {stored.shape} of type "
            f"{stored.dtype}."
        )
    names = stored.tolist()
    try:
        return listed([n.decode() if isinstance(n, bytes) else n for n in names])
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`classes` in {path} must be in UTF-8, got {error.object!r}; save them as str."
        ) from None
