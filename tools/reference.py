"""What the reference has to hold: every public name, with a docstring and an example that the tests run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path

import saddlepoint

PAGES = Path(__file__).parent.parent / "docs" / "reference"


def public() -> dict[str, object]:
    """Public names and what they are: those of the package, and those of its modules that are public."""
    here = {f"saddlepoint.{name}": getattr(saddlepoint, name) for name in saddlepoint.__all__}
    rooms = {name: value for name, value in here.items() if isinstance(value, types.ModuleType)}
    found = {name: value for name, value in here.items() if name not in rooms}
    for room, module in rooms.items():
        for name in module.__all__:
            value = getattr(module, name)
            if not any(value is each for each in found.values()):  # some have two names
                found[f"{room}.{name}"] = value
    return found


def docstring(name: str, value: object) -> str:
    """Of a class or function its own; of another value the text behind its assignment; else nothing."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__doc__ or ""
    module, _, last = name.rpartition(".")
    return assigned(module, last)[1]


def assigned(module: str, name: str) -> tuple[str, str]:
    """The module in which a value is assigned, and the text behind the assignment."""
    loaded = importlib.import_module(module)
    tree = ast.parse(Path(str(loaded.__file__)).read_text(encoding="utf-8"))
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            return module, inspect.cleandoc(str(after.value.value)) if said else ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
            above = "." * node.level + (node.module or "")
            return assigned(importlib.util.resolve_name(above, loaded.__package__), name)
    raise LookupError(f"{name} is neither assigned nor imported in {module}")


def incomplete() -> list[str]:
    """Public names without a docstring, or with one that has no example."""
    return [name for name, value in public().items() if ">>>" not in docstring(name, value)]


def listed() -> Iterator[str]:
    """Names that the pages of the reference show."""
    for page in sorted(PAGES.glob("*.md")):
        for found in re.finditer(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            yield found.group(1)
