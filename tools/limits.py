"""The limits of CONTRIBUTING: lines of a function, lines of a file, and file names that exist once.

Run by `make lint`; prints what is beyond a limit and ends with exit code 1 if anything is.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FUNCTION = 60
FILE = 350
SOURCE = Path(__file__).parent.parent / "src" / "saddlepoint"


def long_functions(path: Path) -> Iterator[str]:
    """Functions whose code is too long, docstrings aside: those are as long as a reader needs."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            lines = (node.end_lineno or 0) - node.lineno + 1
            if said:
                lines -= (first.end_lineno or 0) - first.lineno + 1
            if lines > FUNCTION:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION}"


def complaints(source: Path) -> Iterator[str]:
    """Everything beyond a limit, one line each."""
    names = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        yield from long_functions(path)
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE:
            yield f"{path}: has {lines} lines, at most {FILE}"
        # A command may be called after what it runs, and every folder has an __init__.
        if path.stem != "__init__" and path.parent.name != "cli":
            names[path.name].append(str(path))
    for name, paths in names.items():
        if len(paths) > 1:
            yield f"{name} exists {len(paths)} times: {', '.join(paths)}"


if __name__ == "__main__":
    found = list(complaints(SOURCE))
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.exit(bool(found))
