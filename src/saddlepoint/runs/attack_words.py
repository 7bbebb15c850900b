"""Words of attacks: how to do without gradients, patches and views of them, and what domains are called.

Modules with torch in them are imported when they are needed, so that `--help` answers at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saddlepoint.runs import texts
from saddlepoint.runs.plain import quoted
from saddlepoint.runs.texts import number, renamed

if TYPE_CHECKING:
    from saddlepoint.projections import Patch
    from saddlepoint.solver import Gradient
    from saddlepoint.transforms import View

__all__ = [
    "HELP",
    "check_alone",
    "check_patch",
    "check_unweighted",
    "gradient",
    "patch",
    "size_of",
    "view",
    "view_names",
    "views",
    "weighted",
]

HELP = (
    "For models that answer scores only (scores:A, onnxruntime:model.onnx): estimated:queries=5000 or "
    "searched:queries=5000, the most queries that an image may take; guide: docs/scores.md."
)
_WHOLE = ("queries", "per_step", "side")
_OPTIONS = {
    "estimated": (*_WHOLE, "search", "directions", "distance", "momentum"),
    "searched": ("queries", "objective"),
}
_NAMES = ("directions", "objective")


def gradient(text: str) -> Gradient:
    """An object of the library.

    Raises:
        ValueError: It is none, or an option is unknown or out of range.

    Example:
        >>> gradient("searched:queries=800")
        Searched(queries=800, objective='soft')
    """
    from saddlepoint.solver import estimated, searched

    name, _, rest = text.partition(":")
    if name not in _OPTIONS:
        raise ValueError(
            "`gradient` must be estimated or searched, with options as in estimated:queries=5000, got "
            f"{quoted(text)}."
        )

    def read(key: str, text: str) -> Any:
        if key in _NAMES:
            return text
        value = number(text, f"gradient {key}")
        return int(value) if key in _WHOLE and value.is_integer() else value

    options = texts.options("gradient", name, rest, _OPTIONS[name], read)
    try:
        return estimated(**options) if name == "estimated" else searched(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            renamed(str(error), {key: f"gradient {name} {key}" for key in options})
        ) from error


_FOLLOW = {
    "evaluations": ("steps", "restarts"),
    "gradient": ("steps", "restarts", "evaluations", "precision", "keep_going"),
}


def check_alone(settings: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse what follows from the number of evaluations, or of queries, beside it.

    Args:
        settings: All of them.
        given: Those that somebody has chosen.

    Raises:
        ValueError: One of them has no say any longer.
    """
    for flag, others in _FOLLOW.items():
        for name in others if settings.get(flag) is not None else ():
            if given.get(name):
                raise ValueError(
                    f"`--{name.replace('_', '-')}` must be left out with --{flag}, got {given[name]}; it "
                    f"follows from --{flag} {settings[flag]}."
                )


def following(settings: Mapping[str, object]) -> set[str]:
    """Settings whose own values are not used, since they follow from evaluations or queries.

    Example:
        >>> sorted(following({"evaluations": 50, "gradient": None}))
        ['restarts', 'steps']
    """
    return {n for flag, names in _FOLLOW.items() if settings.get(flag) is not None for n in names}


_FILES = (".png", ".bmp", ".gif", ".tif", ".tiff")  # what keeps black and white as they are


def weighted(gradient: str | None) -> bool:
    """Whether an attack follows weights; random search does not.

    Example:
        >>> weighted(None), weighted("estimated"), weighted("searched:queries=800")
        (True, True, False)
    """
    return (gradient or "").partition(":")[0] != "searched"


def check_unweighted(gradient: str | None, **rules: str | None) -> None:
    """Refuse weight rules for random search, which would find the same with any of them.

    Args:
        gradient: As settings have it.
        rules: Those that somebody has chosen, by the name of the flag.

    Raises:
        ValueError: Somebody asks for it.
    """
    for name, rule in rules.items():
        if rule is not None and not weighted(gradient):
            raise ValueError(
                f"`--{name}` must be left out with --gradient searched, got {rule}; random search follows no "
                "weights, and estimated does."
            )


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


# The paper's short names in words, for its families, of which the user has named none alone.
_VIEWS = {
    "ori": "identity",
    "flh": "hflip",
    "flv": "vflip",
    "bri": "brightness",
    "gam": "gamma",
    "rot": "rotate",
}


def view_names(models: Iterable[str], transforms: Sequence[str]) -> list[str]:
    """Every model behind every transformation, as the user has called them.

    Args:
        models: Names of the models; a single one is not said.
        transforms: As settings name them.

    Example:
        >>> view_names(["A"], ["identity", "rotate:30", "rotate:-30"])
        ['identity', 'rotate:30', 'rotate:-30']
        >>> view_names(["A", "C"], ["hflip", "hflip"])
        ['A/hflip 1', 'A/hflip 2', 'C/hflip 1', 'C/hflip 2']
        >>> view_names(["A"], ["paper"])[:3]
        ['identity', 'hflip', 'vflip']
    """
    seen: list[str] = []
    for word in transforms:
        family = texts.transforms([word])
        single = len(family) == 1 and not word.startswith("paper")
        seen += [word] if single else [_VIEWS.get(each.name, each.name) for each in family]
    views, names = _unique(seen), list(models)
    return views if len(names) == 1 else [f"{model}/{view}" for model in names for view in views]


def _unique(names: list[str]) -> list[str]:
    counts = {name: names.count(name) for name in names}
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(f"{name} {seen[name]}" if counts[name] > 1 else name)
    return result
