"""A run on the command line: its folder, what is shown on the way, and how to go on."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saddlepoint.runs.settings import TrainSettings

from . import printing, progress
from .cluster import joined, launcher, processes
from .errors import UsageError, data_taken, library, usage, usage_unless_models_raise
from .flags import ImagesRunning, Running

if TYPE_CHECKING:
    from saddlepoint.runs import Execution, Run
    from saddlepoint.runs.tasks import AbstractTask, Station

__all__ = ["Bar", "carry_out", "finish"]

Bar = Callable[[Path, bool], AbstractContextManager[Any]]


def carry_out(
    task: "AbstractTask[Any]",
    running: Running,
    name: str,
    bar: Bar,
    done: "Callable[[Run, Path], int]",
    *,
    named: bool = True,
) -> int:
    """Carry out a task in its folder, together with other processes if there are some, and show it.

    Args:
        task: What to do.
        running: Where things go and how much is said.
        name: Of the folder, if none is given.
        bar: Shows the progress of the work in a folder, quietly or not.
        done: Shows what came out; the exit code is its.
        named: Whether the user has named the images.
    """
    from saddlepoint.runs import RunInterrupted
    from saddlepoint.runs.tasks import carried_out

    if running.print_config:
        print(task.settings.to_yaml(), end="")
        return 0
    if running.out is None and processes() > 1:  # each would choose a folder of its own
        raise UsageError("`--out` must be given where several processes share the work, got none.")
    folder = _run_folder(name, running)
    _check_images(running, folder)
    with joined() as rank:
        said = replace(running, quiet=running.quiet or rank != 0)
        watch = _Shown(task, folder, said, bar, named=named)
        how = {"resume": running.resume, "overwrite": running.overwrite}
        try:
            with printing.warnings_as_notes(quiet=said.quiet):
                run = carried_out(task, folder, watch, **how)
        except RunInterrupted as stop:
            _tell_way_on(stop.run, folder, running)
            return 130
        return 0 if rank else done(run, folder)


def finish(run: "Run", folder: Path, running: Running, *more: str) -> None:
    """Draw the report of a finished run, and say what came out, with `more` lines."""
    from saddlepoint import report

    with library():
        path = report.write_report(folder)
    if running.json:
        print(printing.metrics_json(run))
    elif not running.quiet:
        printing.outcome(run)
        print(*more, f"\n{run.seconds:.1f} s; report: {path}", sep="\n")


class _Shown:
    """Shows the stations of a task on the terminal."""

    def __init__(
        self, task: "AbstractTask[Any]", folder: Path, running: Running, bar: Bar, *, named: bool
    ) -> None:
        self.task, self.asked, self.named = task, task.settings, named
        self.running, self.quiet = running, running.quiet
        self.progress: dict[str, Callable[[], AbstractContextManager[Any]]]
        self.progress = {"load": progress.downloads, "work": partial(bar, folder, self.quiet)}

    @contextmanager
    def at(self, station: "Station") -> Iterator[Any]:
        # Files, settings and folders are for the user to mend; what models do is the work itself.
        meant: Callable[[], AbstractContextManager[None]] = (
            usage if station in ("load", "record", "open") else library
        )
        if station == "assemble":
            meant = usage_unless_models_raise
        elif station == "work" and isinstance(self.asked, TrainSettings):
            meant = nullcontext  # a training checks its settings itself; `main` tells what is wrong with them
        given = self.named or station in ("record", "open", "work")
        taken = data_taken(self.asked.data, given=given)
        shown = self.progress.get(station, nullcontext)
        with taken, meant(), shown() as told:
            yield told

    def assembled(self, images: int) -> None:
        """Say what was taken where that was left open."""
        asked, now, told = self.asked, self.task.settings, partial(printing.note, quiet=self.quiet)
        printing.size_used(asked.size, now.size, now.crop, quiet=self.quiet)
        if asked.limit is not None and asked.limit > images:
            told(f"--limit {asked.limit}: there are {images} images; using all of them")
        if "auto" in _words(asked.precision).split(","):
            told(f"--precision {_words(asked.precision)}: {_words(now.precision)}")

    def opened(self, execution: "Execution") -> None:
        from saddlepoint.runs.execute import saved_text
        from saddlepoint.runs.refusals import unhashed

        folder, run = execution.folder, execution.run
        if execution.complete:
            printing.note(f"{folder} is complete already", quiet=self.quiet)
            return
        if self.running.resume and not execution.resumed:
            printing.note(f"nothing to resume in {folder}: starting", quiet=self.quiet)
        elif self.running.resume and not self.quiet:
            printing.note(f"continuing after {saved_text(run, folder)}", quiet=self.quiet)
        if not execution.resumed and (idle := self._idle(run.rows)):
            printing.note(idle, quiet=self.quiet)
        if why := unhashed(run):
            printing.note(f"the run cannot be continued if it is stopped: {why}", quiet=self.quiet)

    def _idle(self, rows: int) -> str:
        """What to say where there are fewer batches than processes; a training divides every batch itself."""
        count = processes()
        if count == 1 or isinstance(self.asked, TrainSettings):
            return ""
        size = self.task.settings.batch_size
        batches = ceil(rows / size)
        if batches >= count or rows <= batches:
            return ""
        there = (
            f"is one batch of {rows}" if batches == 1 else f"are {batches} batches of up to {size}"
        )
        have = "has" if count - batches == 1 else "have"
        return (
            f"there {there} for {count} processes, {count - batches} of which {have} nothing to do; divide "
            f"{'it' if batches == 1 else 'them'} with --batch-size {max(1, rows // count)}"
        )

    def failed(self, execution: "Execution") -> None:
        # As after Ctrl-C: a service that refused its answer may give it later.
        _tell_way_on(execution.run, execution.folder, self.running)


def _tell_way_on(run: "Run", folder: Path, running: Running) -> None:
    """Say what a run that did not end has saved and how to go on. Process 0 speaks for all."""
    from saddlepoint.runs.execute import saved_text
    from saddlepoint.runs.refusals import way_on

    if _rank() == 0:
        images = running.save_images if isinstance(running, ImagesRunning) else None
        more = [] if images is None else ["--save-images", str(images)]
        more += [f"--{name}" for name in ("quiet", "json") if getattr(running, name)]
        saved = f"{saved_text(run, folder)} are saved{running.lost(run)}"
        printing.say(f"stopped: {saved} in {folder}", error=True)
        printing.say(way_on(run, folder, *more, by=launcher()), error=True)


def _words(precision: str | list[str]) -> str:
    return precision if isinstance(precision, str) else ",".join(precision)


def _rank() -> int:
    from saddlepoint.training.distributed import World

    return World.current().rank


def _run_folder(name: str, running: Running) -> Path:
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


def _check_images(running: Running, folder: Path) -> None:
    """Refuse, before any work, a folder for images that holds something, or is part of that of the run."""
    if isinstance(running, ImagesRunning) and running.save_images is not None:
        from saddlepoint.evaluation.saved_images import check_folder

        wanted, run = running.save_images.resolve(), folder.resolve()
        if wanted == run or run in wanted.parents:
            raise UsageError(
                f"`--save-images` must be outside the folder of the run, {str(folder)!r}, got "
                f"{str(running.save_images)!r}."
            )
        with usage(folder="--save-images"):
            check_folder(running.save_images)
