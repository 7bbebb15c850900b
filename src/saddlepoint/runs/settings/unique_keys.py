"""YAML in which no key comes twice."""

from __future__ import annotations

from typing import Any

import yaml

from saddlepoint.runs.plain import quoted

__all__ = ["UniqueKeys", "why_not_yaml"]


def why_not_yaml(error: Exception) -> str:
    """What is wrong with a file, and in which line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())[:300]


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
