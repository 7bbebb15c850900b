"""The folder of a run, as the user names it: where it is, what is in the way, and how to go on."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError, usage
from .flags import Running

if TYPE_CHECKING:
    from saddlepoint.runs import Execution, Run

__all__ = ["opened", "run_folder", "stopped"]


def run_folder(name: str, out: Path | None, resume: bool) -> Path:
    """The folder of a run: the one given, or a new one under `runs`: name, name-2, name-3."""
    if out is None:
        if resume:
            raise UsageError("`--resume` must say which run to continue, such as --out runs/mine.")
        names = (name if n == 1 else f"{name}-{n}" for n in range(1, 10_000))
        return next(path for each in names if not (path := Path("runs") / each).exists())
    if out.exists() and not out.is_dir():
        raise UsageError(f"`--out` must be a folder, got the file {str(out)!r}.")
    return out


@contextmanager
def opened(run: "Run", folder: Path, running: Running, *, quiet: bool) -> "Iterator[Execution]":
    """The folder of a run, open for it; what is in the way is for the user to mend."""
    from saddlepoint import runs

    from . import show

    with ExitStack() as stack:
        with usage():
            manager = runs.opened(run, folder, resume=running.resume, overwrite=running.overwrite)
            execution = stack.enter_context(manager)
        if execution.complete:
            show.note(f"{folder} is complete already", quiet=quiet)
        elif running.resume and not execution.resumed:
            show.note(f"nothing to resume in {folder}: starting", quiet=quiet)
        yield execution


def stopped(saved: str, folder: Path, command: str) -> int:
    """Say what an interrupted run has saved and how to go on; the exit code. Process 0 speaks for all."""
    from saddlepoint.training.distributed import World

    if World.current().rank == 0:
        print(f"stopped: {saved} in {folder}", file=sys.stderr)
        print(f"continue with: {command} --resume", file=sys.stderr)
    return 130
