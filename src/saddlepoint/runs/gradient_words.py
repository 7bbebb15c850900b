"""How to do without gradients, as settings say it: estimated:queries=5000,search=0.2 or searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saddlepoint.runs.plain import quoted
from saddlepoint.runs.texts import number, renamed, split

if TYPE_CHECKING:
    from saddlepoint.solver import Gradient

__all__ = ["HELP", "check_alone", "gradient"]

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
    options: dict[str, Any] = {}
    for part in split(rest):
        key, equals, value = part.partition("=")
        if not equals or key not in _OPTIONS[name]:
            known = ", ".join(f"{key}=..." for key in _OPTIONS[name])
            raise ValueError(f"`gradient` {name} must have {known}, got {quoted(part)}.")
        if key in options:
            raise ValueError(f"`gradient` {name} must have every option once, got {key} twice.")
        options[key] = value if key in _NAMES else number(value, f"gradient {key}")
        if key in _WHOLE and options[key] == int(options[key]):
            options[key] = int(options[key])
    try:
        return estimated(**options) if name == "estimated" else searched(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            renamed(str(error), {key: f"gradient {name} {key}" for key in options})
        ) from error


def check_alone(settings: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse what follows from the number of evaluations, or of queries, beside it.

    Args:
        settings: All of them.
        given: Those that somebody has chosen.

    Raises:
        ValueError: One of them has no say any longer.
    """
    for flag, others in (
        ("evaluations", ("steps", "restarts")),
        ("gradient", ("steps", "restarts", "evaluations", "precision", "keep_going")),
    ):
        for name in others if settings.get(flag) is not None else ():
            if given.get(name):
                raise ValueError(
                    f"`--{name.replace('_', '-')}` must be left out with --{flag}, got {given[name]}; it "
                    f"follows from --{flag} {settings[flag]}."
                )
