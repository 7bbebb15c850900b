"""What JSON and YAML hold: read as the types it was written from, quoted in complaints, shown on a terminal."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["printable", "quoted", "read_json", "read_plain"]

T = TypeVar("T")


def printable(text: str) -> str:
    r"""Text that others may have written, without control characters, of which a terminal makes commands.

    Line breaks are among them, and signs that turn the direction of writing.

    Example:
        >>> printable("net\x1b[31m\nA"), printable("d\u00e9j\u00e0 vu")
        ('net [31m A', 'déjà vu')
    """
    return "".join(letter if letter.isprintable() else " " for letter in text)


def quoted(value: object) -> str:
    """A value as complaints quote it: at most 100 characters of it.

    Example:
        >>> quoted("A"), quoted("A" * 1000)[-8:], len(quoted([0] * 1000))
        ("'A'", 'AAAAA...', 100)
    """
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def read_json(path: Path, must: str, remedy: str) -> object:
    """What a JSON file holds: dictionaries, lists, numbers and words.

    Args:
        path: Of a file that is there.
        must: The requirement, for the complaint.
        remedy: What to do otherwise.

    Raises:
        ValueError: It is no JSON.
    """
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{must}, got a file that holds none; {remedy}.") from error
    return found


def read_plain(kind: type[T], plain: object, must: str, remedy: str = "repeat the run") -> T:
    """What JSON holds as the type it was written from, without any conversion.

    Args:
        kind: The type.
        plain: Dictionaries, lists, numbers and words.
        must: The requirement, for the complaint.
        remedy: What to do otherwise.

    Raises:
        ValueError: A key is missing, unknown, or holds something else.
    """
    from pydantic import ValidationError

    try:
        reader: TypeAdapter[T] = _reader(kind)  # type: ignore[arg-type]  # types can be hashed
        return reader.validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        got = {
            "missing": f"no `{key}`",
            "unexpected_keyword_argument": f"an unknown `{key}`",
        }.get(first["type"], f"{quoted(first['input'])} as `{key}`")
        raise ValueError(f"{must}, got {got}; {remedy}.") from error


@functools.cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    """What reads a type: made once, which takes as long as to read many."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
