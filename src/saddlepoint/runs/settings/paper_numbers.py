"""Which of the paper's numbers settings take where nothing is said, and where they must not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from saddlepoint import paper
from saddlepoint.runs import texts

__all__ = [
    "check_radius_given",
    "check_radius_of_file",
    "not_in_paper",
    "parameters",
    "radius",
    "rule_numbers",
]


def not_in_paper(kind: str, data: str, norm: str) -> str:
    """Why there is no default."""
    return f"the paper has none for {kind} attacks on {_text(data)} within {_text(norm)}"


def _case(known: Mapping[str, Any]) -> tuple[str, str, str]:
    """Kind of attack, data and norm, by which the paper's numbers are found."""
    kind, data, norm = (str(known[name]) for name in ("kind", "data", "norm"))
    return kind, data.removesuffix("-sample"), norm.lower()


def parameters(known: Mapping[str, Any]) -> paper.Parameters | None:
    """The paper's numbers for `apgda`, where it has some; `attack` needs none."""
    kind, data, norm = _case(known)
    if known["method"] != "apgda" or kind not in paper.STEPS:  # patches came after it
        return None
    return paper.parameters(kind, data, norm)


def rule_numbers(found: paper.Parameters | None) -> dict[str, float]:
    """Those of the weight rule."""
    return {} if found is None else {"step_size": found.beta, "gamma": found.gamma}


def radius(known: Mapping[str, Any]) -> float | None:
    """The paper's radius for this attack, data, norm and these networks; None where it has none."""
    kind, data, norm = _case(known)
    if kind not in paper.STEPS:
        return None
    return paper.radius(kind, data, norm, _letters(known.get("models"), data))


def _letters(models: object, data: str) -> list[str]:
    """The networks of the paper among the models, which are called A or mnist-a."""
    names = texts.split(models) if isinstance(models, str) else models
    if not isinstance(names, list):
        return []
    short = (str(name).removeprefix(f"{data}-") for name in names)
    return [name.upper() for name in short if len(name) == 1]


def check_radius_given(kind: str, flags: Mapping[str, Any], norm: str) -> None:
    """Say at once, before torch is loaded, that images of the user's own need a radius.

    Args:
        kind: Of the attack.
        flags: What was given on the command line.
        norm: Where none was.
    """
    data = str(flags.get("data") or "")
    if flags.get("eps") is None and (Path(data).suffix == ".npz" or (data and Path(data).is_dir())):
        why = not_in_paper(kind, data, str(flags.get("norm") or norm))
        raise ValueError(f"`--eps` must be given, such as --eps 8/255: {why}.")


def check_radius_of_file(
    before: Mapping[str, Any], after: Mapping[str, Any], given: Mapping[str, Any], file: Path
) -> None:
    """Refuse the radius of a file for another norm, and the paper's for what it has another one for."""
    if "eps" in given or before.get("eps") in (None, PydanticUndefined):
        return
    others = [n for n in ("data", "models", "norm") if n in given and after[n] != before[n]]
    old, new = radius(before), radius(after)
    try:
        eps = texts.number(before["eps"])
    except ValueError:  # what is no number is refused later, by name
        return
    if _case(before)[2] != _case(after)[2] or (eps == old and new != old):
        flags = " and ".join(f"--{name} {_text(after[name])}" for name in others)
        was = ", ".join(_text(before[name]) for name in others)
        raise ValueError(
            f"`--eps` must be given with {flags}: the {texts.written(eps)} in {file} is for {was}."
        )


def _text(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
