"""What is drawn of runs, pages, tables and pictures: known again as ours, and written whole.

Pages are known by a mark. Tables and pictures are known by their digests, which `drawn.json` beside them keeps.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from saddlepoint.files import write_atomically
from saddlepoint.runs.plain import read_json, read_plain

__all__ = ["DRAWN", "check_page", "not_drawn", "write_drawn"]

DRAWN = "drawn.json"
"""The file with the digests of tables and pictures, by name."""

_MARK = b"saddlepoint</title>"
_REMEDY = "move it elsewhere"


def write_drawn(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write what was drawn, each file whole; nothing where one of them would replace what is not ours.

    Args:
        folder: Where to; made if it is not there.
        files: Contents by name.

    Raises:
        ValueError: Something else has one of the names.
    """
    for name in not_drawn(folder, files):
        path = folder / name
        # The same content was written by a process that did not come to its end, and nothing is lost.
        if not _is_file(path) or path.read_bytes() != files[name]:
            _refuse(path)
    digests = {
        # What is there stays known until the new file has taken its place.
        name: sorted({_digest(each) for each in (content, _content(folder / name)) if each})
        for name, content in files.items()
        if Path(name).suffix != ".html"
    }
    if digests:  # first: whatever is there afterwards is known
        text = json.dumps(digests, indent=2, sort_keys=True) + "\n"
        write_atomically(folder / DRAWN, text.encode())
    for name, content in files.items():
        write_atomically(folder / name, content)


def check_page(path: Path) -> None:
    """Refuse to write over what is no page of ours.

    Raises:
        ValueError: There is something else at the path.
    """
    if not_drawn(path.parent, [path.name]):
        _refuse(path)


def not_drawn(folder: Path, names: Iterable[str]) -> list[str]:
    """Those of the names under which the folder holds something that was not drawn there; a link never was.

    Raises:
        ValueError: `drawn.json` in the folder is not ours.

    Example:
        >>> not_drawn(Path("no such folder"), ["report.html", "table.csv"])
        []
    """
    there = [name for name in names if os.path.lexists(folder / name)]
    return [name for name in there if not (_is_file(folder / name) and _ours(folder, name))]


def _ours(folder: Path, name: str) -> bool:
    content = (folder / name).read_bytes()
    if Path(name).suffix == ".html":
        return _MARK in content[:4096]
    known = _known(folder)
    return name == DRAWN or _digest(content) in known.get(name, ())


def _known(folder: Path) -> dict[str, list[str]]:
    """Digests by name, as `write_drawn` wrote them down."""
    path = folder / DRAWN
    if not _is_file(path):
        return {}
    must = f"`{path}` must hold the digests of tables and pictures that saddlepoint has drawn"
    return read_plain(dict[str, list[str]], read_json(path, must, _REMEDY), must, _REMEDY)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _content(path: Path) -> bytes:
    return path.read_bytes() if _is_file(path) else b""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _refuse(path: Path) -> None:
    raise ValueError(
        f"`{path}` must be free, got something that saddlepoint did not write; {_REMEDY}."
    )
