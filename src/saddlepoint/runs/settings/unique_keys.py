"""YAML in which no key comes twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from saddlepoint.runs.plain import quoted

__all__ = ["UniqueKeys", "settings_in", "why_not_yaml"]


def why_not_yaml(error: Exception) -> str:
    """What is wrong with a file, and in which line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())[:300]


def settings_in(values: Any, file: Path) -> dict[str, Any]:
    """What is in a file, or an error that says so if it is not `name: value`."""
    if isinstance(values, dict):
        found = next((f"the name {quoted(n)}" for n in values if not isinstance(n, str)), "")
    else:
        kinds = {"NoneType": "nothing", "list": "a list", "str": "text"}
        found = kinds.get(type(values).__name__, f"{quoted(values)} alone")
    if found:
        raise ValueError(
            f"`--config` {str(file)!r} must hold settings as `name: value`, got {found}."
        )
    checked: dict[str, Any] = values
    return checked


class UniqueKeys(yaml.SafeLoader):
    """Refuses a key that comes twice, of which YAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping as YAML has it, or an error that says where the key comes again."""
        seen: set[object] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                problem = f"the key {quoted(name)} comes twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)
