"""Words of a patch attack as objects of the library: the patch itself, and the views of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saddlepoint.runs import texts
from saddlepoint.runs.plain import quoted

if TYPE_CHECKING:
    from saddlepoint.projections import Patch
    from saddlepoint.transforms import View

__all__ = ["check_patch", "patch", "size_of", "view", "views"]

_FILES = (".png", ".bmp", ".gif", ".tif", ".tiff")  # what keeps black and white as they are


def size_of(text: str) -> tuple[int, int] | None:
    """Height and width, of "8" or "8x6"; None for the name of a file.

    Example:
        >>> size_of("8"), size_of("8x6"), size_of("round.png")
        ((8, 8), (8, 6), None)
    """
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    return (int(found[1]), int(found[2] or found[1])) if found else None


def check_patch(text: str) -> None:
    """Refuse what is neither a size nor the name of a picture.

    Raises:
        ValueError: So it is.
    """
    size = size_of(text)
    if (size is None and Path(text).suffix.lower() not in _FILES) or (size and min(size) < 1):
        raise ValueError(
            "`--patch` must be a size such as 8 or 8x6 (height by width), or a picture of the mask such as "
            f"mask.png, got {quoted(text)}."
        )


def patch(text: str, eps: float) -> Patch:
    """The set of a patch: a size, or a picture of the size of the images whose bright pixels are the patch.

    Args:
        text: As `check_patch` has it.
        eps: How far a pixel may be moved; 1, the range of pixels, sets no bound.

    Raises:
        ValueError: The picture cannot be read, or has no bright pixel.
    """
    from saddlepoint.data.pixels import read_picture, unit
    from saddlepoint.projections import Patch

    check_patch(text)
    bound = None if eps >= 1 else eps
    size = size_of(text)
    if size is not None:
        return Patch(size=size, eps=bound)
    if not Path(text).is_file():
        raise ValueError(f"`--patch` must be a file that exists, got {quoted(text)}.")
    bright = unit(read_picture(Path(text))).mean(dim=0) > 0.5
    if not bool(bright.any()):
        raise ValueError(f"`--patch` must be bright where the patch is, got a dark {quoted(text)}.")
    return Patch(mask=bright, eps=bound)


def view(text: str) -> View:
    """A view: a place, and what else happens to the patch, joined by +, with numbers or ranges.

    Example:
        >>> view("anywhere+scale:0.6..0.8+rotate:45")
        View(at='anywhere', scale=(0.6, 0.8), rotate=45.0, brightness=0.0)
        >>> view("at:0/1").at
        (0.0, 1.0)
    """
    from saddlepoint.transforms import View

    options: dict[str, Any] = {}
    for part in text.split("+"):
        name, _, rest = part.strip().partition(":")
        key = "at" if name in ("here", "anywhere", "at") else name
        if key in options:
            raise ValueError(f"`--views` must say everything once, got {quoted(text)}.")
        if name in ("here", "anywhere") and not rest:
            options["at"] = None if name == "here" else "anywhere"
        elif name == "at" and rest.count("/") == 1:
            down, right = (texts.number(share, "--views") for share in rest.split("/"))
            options["at"] = (down, right)
        elif name in ("scale", "rotate", "brightness") and rest:
            ends = [texts.number(end, "--views") for end in rest.split("..", 1)]
            options[name] = ends[0] if len(ends) == 1 else (ends[0], ends[1])
        else:
            raise ValueError(
                "`--views` must be here, anywhere or at:DOWN/RIGHT, with +scale:, +rotate: or +brightness: and "
                f"a number or a range such as 0.6..0.8, got {quoted(text)}."
            )
    try:
        return View(**options)
    except ValueError as error:
        raise ValueError(f"`--views` {quoted(text)}: {error}") from error


def views(words: list[str]) -> list[View]:
    """Views, each of them once.

    Raises:
        ValueError: A word is none, or two are the same.
    """
    found = [view(word) for word in words]
    names = [each.name for each in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"`--views` must name every view once, got {twice[0]} twice.")
    return found
