"""Where numbers were measured: machine, versions, and a digest of the code they depend on."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import saddlepoint as sp

PACKAGES = ("torch", "torchattacks", "foolbox", "pyautoattack", "adv-lib", "cvxpy", "clarabel")
# Rooms of the library on which no number of these tables depends.
_ELSEWHERE = {"cli", "report", "experiments", "training", "runs", "doctor"}
# Those on which the figures of some rooms of `python -m benchmarks` do.
_ALSO = {room: {"training"} for room in ("training", "allocation", "precision")}
_ALSO["processes"] = {"cli", "runs", "report"}
_WITH = {"one_domain": ("peers/methods.py", "peers/cases.py")}
"""What else of the benchmarks the numbers of a room depend on."""
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


def now() -> str:
    """Day and minute, UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime())


def others(seconds: float = 0.5) -> list[str]:
    """What else runs: names of processes that use more than a tenth of a core now, with the share of a core.

    Names are those that the system knows a program by, without a path. Empty where there is no /proc.
    """
    before = _ticks()
    begun = time.perf_counter()
    time.sleep(seconds)
    spent = os.sysconf("SC_CLK_TCK") * (time.perf_counter() - begun) if before else 1.0
    shares = [
        ((ticks - before[number][1]) / spent, name)
        for number, (name, ticks) in _ticks().items()
        if number in before and number != os.getpid()
    ]
    return [f"{name} {share:.1f}" for share, name in sorted(shares, reverse=True) if share > 0.1]


def said(others: Sequence[str]) -> str:
    """What else ran, in words."""
    return ", ".join(others) or "no other process used more than a tenth of a core"


def _ticks() -> dict[int, tuple[str, int]]:
    """Name and ticks of the processor, by the number of the process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name, _, rest = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
            ticks = rest.split()[11:13]  # fields 14 and 15: user and system
            found[int(path.parent.name)] = (name.partition("(")[2], sum(map(int, ticks)))
    return found


def told(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Options by the name of a method, as a file can keep them: functions by their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, int | float | str):
            return value
        return getattr(value, "__name__", None) or repr(value)

    return {n: {key: plain(value) for key, value in each.items()} for n, each in options.items()}


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
    names = (f"{room}.py", "timing.py", *_WITH.get(room, ()))
    own = [here / name for name in names if (here / name).exists()]
    return digest([*_library(elsewhere), *own])


def codes(rooms: Iterable[str]) -> dict[str, str]:
    """The digest of the present code by what is stored: of the tables of peers, and of these rooms."""
    return {"peers": code(), **{room: code_of(room) for room in rooms}}


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
