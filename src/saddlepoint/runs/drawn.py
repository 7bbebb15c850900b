"""What is drawn of runs, pages, tables and pictures: known again as ours, and written whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from saddlepoint.files import write_atomically

__all__ = ["check_page", "is_page", "write_drawn"]

_MARK = b"saddlepoint</title>"
_HEADS = {
    ".md": 1,
    ".csv": 1,
    ".tex": 3,
}  # lines by which a table is known: to its title or columns


def write_drawn(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write what was drawn, each file whole; nothing where one of them would replace what is not ours.

    Of what is there, pages have a mark, tables the same title or columns, and a picture must be the same.

    Args:
        folder: Where to; made if it is not there.
        files: Contents by name.

    Raises:
        ValueError: Something else has one of the names.
    """
    for name, content in files.items():
        path, head = folder / name, _HEADS.get(Path(name).suffix)
        if path.suffix == ".html":
            check_page(path)
        else:
            _check(path, partial(_alike, head, content))
    for name, content in files.items():
        write_atomically(folder / name, content)


def check_page(path: Path) -> None:
    """Refuse to write over what is no page of ours.

    Raises:
        ValueError: There is something else at the path.
    """
    _check(path, lambda content: _MARK in content[:4096])


def is_page(path: Path) -> bool:
    """Whether a page of ours is there.

    Example:
        >>> is_page(Path("no such page.html"))
        False
    """
    return path.is_file() and not path.is_symlink() and _MARK in path.read_bytes()[:4096]


def _alike(lines: int | None, one: bytes, other: bytes) -> bool:
    return one.splitlines()[:lines] == other.splitlines()[:lines]


def _check(path: Path, ours: Callable[[bytes], bool]) -> None:
    if os.path.lexists(path) and not (
        path.is_file() and not path.is_symlink() and ours(path.read_bytes())
    ):
        raise ValueError(
            f"`{path}` must be free, got something that saddlepoint did not write; move it elsewhere."
        )
