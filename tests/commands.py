"""The command line, in the process of the test or in one of its own, and settings that make it quick."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from children import Started, shared
from folders import ROOT
from saddlepoint import cli

__all__ = ["ENVIRONMENT", "QUICK", "SLOW_MODEL", "after", "begin", "fresh", "inside", "run"]

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
SHORT_SUITES = "import shortened; shortened.shorten_suites()"
QUICK = ("--models", "A,C", "--limit", "12", "--steps", "6", "--batch-size", "5")

SLOW_MODEL = """
import os, time
from pathlib import Path
import torch
import saddlepoint as sp

def held():  # in a process that a test ends when there are so many pages, beside that of the answers
    pages = os.environ.get("HELD_AT")
    return pages is not None and len(list(Path().glob("*/pages/[!.]*"))) > int(pages)

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = sp.models.load("mnist-a")
        self.eval()

    def forward(self, x):
        if held():
            time.sleep(600)
        return self.network(x)

def broken():
    raise KeyError("no weights here")

class Raises(Slow):
    def forward(self, x):
        raise ZeroDivisionError("the model itself is broken")

def untrained():
    torch.manual_seed(5)
    return sp.models.build("A", channels=1, size=28).eval()
number = 3
"""


def after(calls: int, what: Callable[..., object]) -> Callable[..., object]:
    """The same function, which Ctrl-C stops when it has been called so often."""
    left = [calls]

    def stopping(*values: object, **options: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return what(*values, **options)

    return stopping


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one command in a process of its own, which is forked: see `children`."""
    (done,) = shared().run(*words, cwd=cwd, patch=SHORT_SUITES)
    return subprocess.CompletedProcess(words, done.code, done.out, done.err)


def begin(*words: object, cwd: Path, held_at: int) -> Started:
    """Begin one command in such a process, in which `SLOW_MODEL` waits when there are so many pages."""
    held = f"import os; os.environ['HELD_AT'] = '{held_at}'"
    return shared().start(*words, cwd=cwd, patch=f"{SHORT_SUITES}\n{held}")


def fresh(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one command in a new interpreter, as a shell does, which takes seconds to import torch."""
    command = [sys.executable, "-m", "saddlepoint", *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )


def inside(*words: object) -> int:
    """Run one command in this process, which is quicker; its exit code."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(word) for word in words])
    finally:
        signal.signal(signal.SIGINT, before)  # a command that was stopped ignores it to its end
    return int(stop.value.code or 0)
