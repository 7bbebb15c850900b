"""The folder of a run, as the user names it: where it is, what is in the way, and how to go on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .cluster import processes
from .errors import UsageError, usage
from .flags import ImagesRunning, Running

if TYPE_CHECKING:
    from torch import Tensor

    from saddlepoint.runs import Execution, Run

__all__ = ["check_images", "check_shared", "opened", "run_folder", "stopped"]


def run_folder(name: str, running: Running) -> Path:
    """The folder of a run: the one given, or a new one under `runs`: name, name-2, name-3.

    A run that is in the way is refused now, before models and images are loaded.
    """
    out = running.out
    if out is None:
        if running.resume:
            raise UsageError("`--resume` must say which run to continue, such as --out runs/mine.")
        names = (name if n == 1 else f"{name}-{n}" for n in range(1, 10_000))
        return next(path for each in names if not (path := Path("runs") / each).exists())
    if out.exists() and not out.is_dir():
        raise UsageError(f"`--out` must be a folder, got the file {str(out)!r}.")
    from saddlepoint.runs.refusals import check_free

    with usage():
        check_free(out, resume=running.resume, overwrite=running.overwrite)
    return out


def check_shared(running: Running) -> None:
    """Refuse processes that share the work and were not told where: each would choose a folder of its own."""
    if running.out is None and processes() > 1:
        raise UsageError("`--out` must be given where several processes share the work, got none.")


def check_images(running: ImagesRunning, folder: Path) -> None:
    """Refuse, before any work, a folder for images that holds something, or is part of that of the run."""
    if running.save_images is not None:
        from saddlepoint.evaluation.saved_images import check_folder

        wanted, run = running.save_images.resolve(), folder.resolve()
        if wanted == run or run in wanted.parents:
            raise UsageError(
                f"`--save-images` must be outside the folder of the run, {str(folder)!r}, got "
                f"{str(running.save_images)!r}."
            )
        with usage(folder="--save-images"):
            check_folder(running.save_images)


@contextmanager
def opened(
    run: "Run",
    folder: Path,
    running: Running,
    *,
    quiet: bool,
    ask: "Callable[[], Tensor | None]",
) -> "Iterator[Execution]":
    """The folder of a run, open for it; what is in the way is for the user to mend.

    Args:
        run: The new record.
        folder: Where it goes.
        running: Whether a run that is there is continued or replaced.
        quiet: Whether nothing is said.
        ask: What the models answer, which has to be as it was when the run began.
    """
    from saddlepoint import runs
    from saddlepoint.runs.execute import saved_text
    from saddlepoint.runs.refusals import unhashed

    from . import show

    execution: Execution | None = None
    try:
        with ExitStack() as stack:
            with usage():
                how = {"resume": running.resume, "overwrite": running.overwrite}
                manager = runs.opened(run, folder, **how, ask=ask)
                execution = stack.enter_context(manager)
            if execution.complete:
                show.note(f"{folder} is complete already", quiet=quiet)
            elif running.resume and not execution.resumed:
                show.note(f"nothing to resume in {folder}: starting", quiet=quiet)
            elif running.resume and not quiet:
                show.note(f"continuing after {saved_text(execution)}", quiet=quiet)
            if not execution.complete and (why := unhashed(run)):
                show.note(f"the run cannot be continued if it is stopped: {why}", quiet=quiet)
            yield execution
    except Exception:
        # As after Ctrl-C: a service that refused its answer may give it later.
        if execution is not None and execution.run.status == "failed":
            stopped(f"{saved_text(execution)} are done and saved", run, folder, running)
        raise


def stopped(saved: str, run: "Run", folder: Path, running: Running) -> int:
    """Say what a run that did not end has saved and how to go on; the exit code. Process 0 speaks for all."""
    from saddlepoint.runs.refusals import way_on
    from saddlepoint.training.distributed import World

    from . import show

    if World.current().rank == 0:
        images = running.save_images if isinstance(running, ImagesRunning) else None
        more = () if images is None else ("--save-images", str(images))
        show.say(f"stopped: {saved} in {folder}", error=True)
        show.say(way_on(run, folder, *more), error=True)
    return 130
