"""Templates of ours, filled in: no network, no code but ours, every value escaped."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from saddlepoint.display import distance_text, radius_text
from saddlepoint.runs.plain import printable

__all__ = ["check_drawn", "check_page", "render_template"]

# Names of classes and models may hold what is no sign: commands of terminals, turns of the direction of text.
_TURNS = (0x061C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LETTERS = map(chr, (*range(160), *_TURNS))
_CONTROLS = {ord(each): " " for each in _LETTERS if not each.isprintable() and each not in "\n\t"}
_MARK = b"saddlepoint</title>"
_HEADS = {
    ".md": 1,
    ".csv": 1,
    ".tex": 3,
}  # lines by which a table is known, up to its title or columns


def check_page(path: Path) -> None:
    """Refuse to write over what is no page of ours.

    Raises:
        ValueError: There is something else at the path.
    """
    _check(path, lambda content: _MARK in content[:4096])


def check_drawn(path: Path, content: bytes) -> None:
    """Refuse to write `content`, drawn of a run, over what was not drawn of it, today or earlier.

    Pages have a mark, tables a title or the names of their columns; a picture must be the same.

    Raises:
        ValueError: There is something else at the path.
    """
    if path.suffix == ".html":
        check_page(path)
    else:
        head = _HEADS.get(path.suffix)
        wanted = content.splitlines()[:head]
        _check(path, lambda there: there.splitlines()[:head] == wanted)


def _check(path: Path, ours: Callable[[bytes], bool]) -> None:
    if os.path.lexists(path) and not (
        path.is_file() and not path.is_symlink() and ours(path.read_bytes())
    ):
        raise ValueError(
            f"`{path}` must be free, got something that saddlepoint did not write; move it elsewhere or choose "
            "another --out."
        )


def render_template(name: str, **values: Any) -> str:
    """A template of ours with our style and script; the policy in its head allows no other code."""
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = (
        _environment()
        .get_template(name)
        .render(
            style=Markup(_asset("report.css")),
            script=Markup(script),
            policy=(
                "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
                f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
            ),
            **values,
        )
    )
    return text.translate(_CONTROLS) + "\n"


@cache
def _environment() -> Environment:
    # Everything is escaped; what is not is marked so in Python, in `charts` and here.
    made = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable  # for JSON, which writes control characters in letters
    made.filters |= {"radius": radius_text, "distance": distance_text, "prose": _prose}
    return made


def _prose(sentence: str) -> str:
    """A sentence that breaks between no number and its percent sign."""
    return sentence.replace(" %", "\xa0%")


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")
