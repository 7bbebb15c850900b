"""What the views of an attack through transformations are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saddlepoint.problems import Model
from saddlepoint.transforms import Transform

__all__ = ["view_names"]

# The paper's short names in words.
_VIEWS = {
    "ori": "original",
    "flh": "hflip",
    "flv": "vflip",
    "bri": "brightness",
    "gam": "gamma",
    "rot": "rotate",
}


def view_names(models: Mapping[str, Model], family: Sequence[Transform]) -> list[str]:
    """Every model behind every transformation, as a user would call it."""
    seen = _unique([_VIEWS.get(transform.name, transform.name) for transform in family])
    return seen if len(models) == 1 else [f"{model}/{view}" for model in models for view in seen]


def _unique(names: list[str]) -> list[str]:
    counts = {name: names.count(name) for name in names}
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(f"{name} {seen[name]}" if counts[name] > 1 else name)
    return result
