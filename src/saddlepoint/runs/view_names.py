"""What domains are called on the command line: models, views, and pairs of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from saddlepoint.runs import texts

__all__ = ["view_names"]

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
