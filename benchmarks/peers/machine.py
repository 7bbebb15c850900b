"""Where numbers were measured: machine, versions, and a digest of the code they depend on."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Collection, Iterable
from pathlib import Path

import saddlepoint as sp

PACKAGES = ("torch", "torchattacks", "foolbox", "pyautoattack", "adv-lib", "cvxpy", "clarabel")
# Rooms of the library on which no number of these tables depends.
_ELSEWHERE = {"cli", "report", "experiments", "training", "runs", "doctor"}
# Those on which the figures of some rooms of `python -m benchmarks` do.
_ALSO = {room: {"training"} for room in ("training", "allocation", "precision")}
_ALSO["processes"] = {"cli", "runs", "report"}
_HERE = ("methods.py", "cases.py", "measure.py", "projections.py")


def cpu() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()


def machine(threads: int) -> dict[str, str | int | float]:
    """What else ran is the load average at the start: processes that wanted a core, this one not yet."""
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0
    return {"cpu": cpu(), "cores": os.cpu_count() or 0, "threads": threads, "load": load}


def versions() -> dict[str, str]:
    """Of Python and the packages; "not installed" for those that are not."""
    found = {"python": platform.python_version(), "saddlepoint": sp.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


@functools.cache
def code() -> str:
    """A digest of what numbers depend on: the library and the methods here, without comments and docstrings."""
    return digest([*_library(_ELSEWHERE), *(Path(__file__).parent / name for name in _HERE)])


def code_of(room: str) -> str:
    """A digest of what the figures of a room of `python -m benchmarks` depend on, its own file included."""
    here = Path(__file__).parents[1]
    elsewhere = _ELSEWHERE - _ALSO.get(room, set())
    own = [here / name for name in (f"{room}.py", "timing.py") if (here / name).exists()]
    return digest([*_library(elsewhere), *own])


def _library(without: Collection[str]) -> list[Path]:
    root = Path(sp.__file__).parent
    files = sorted(root.rglob("*.py"))
    return [path for path in files if path.relative_to(root).parts[0] not in without]


def digest(files: Iterable[Path]) -> str:
    """A digest of programs, without their comments and docstrings."""
    found = hashlib.sha256()
    for path in files:
        found.update(_instructions(path.read_text(encoding="utf-8")).encode())
    return found.hexdigest()[:12]


def _instructions(source: str) -> str:
    """A program without comments, layout and docstrings.

    >>> _instructions('def f():  # why\\n    "What."\\n    return  1') == _instructions("def f(): return 1")
    True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [
                each
                for each in body
                if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)
