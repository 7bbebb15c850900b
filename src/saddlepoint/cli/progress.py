"""Progress bars on a terminal, plain lines elsewhere. They go to stderr; results go to stdout."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
)

from saddlepoint.bars import bar as progress_bar

if TYPE_CHECKING:
    from saddlepoint.experiments import Step
    from saddlepoint.runs import RunProgress
    from saddlepoint.training import TrainingProgress

__all__ = ["Forecast", "attacking", "downloads", "reproducing", "training"]

# A training is timed for so many steps, or for so many seconds where they are slow; from so many on it is long.
_STEPS, _SECONDS, _LONG = 20, 10.0, 120.0


@contextmanager
def attacking(title: str, noun: str, *, quiet: bool) -> "Iterator[Callable[[RunProgress], None]]":
    """A bar with rows done, rows that were right and are wrong everywhere so far, and the time left.

    On a terminal it moves with every step; elsewhere there is one plain line per tenth of the work.
    """
    reached, said, worked = 0.0, -1, False
    with progress_bar(title, quiet=quiet) as bar:

        def report(state: "RunProgress") -> None:
            nonlocal reached, said, worked
            # Rows that a run has on disk already are done without a step; they were told before.
            worked = worked or state.fraction > state.done / state.rows
            reached = max(reached, state.fraction)
            share = f"{state.done}/{state.rows} {noun}"
            if noun != "patches":  # those are judged on images that are held out, at the end
                share += f", {state.fooled} fooled that were right"
            bar.move(reached, 1.0, share)
            tenth = 10 * state.done // state.rows
            if not bar.live and worked and state.done and tenth > said:
                said = tenth
                bar.say(f"{title}: {share}")

        yield report


@contextmanager
def reproducing(
    title: str, *, quiet: bool
) -> "Iterator[tuple[Callable[[Step], None], Callable[[str, int, int], None]]]":
    """One line per finished row; on a terminal also a bar for the row, or the download, under way."""
    began, done, files = time.monotonic(), 0, set[str]()
    with progress_bar(title, quiet=quiet) as bar:

        def report(step: "Step") -> None:
            nonlocal began, done
            if step.done > done:
                done, now = step.done, time.monotonic()
                took = "already there" if step.there else f"{now - began:.1f} s"
                bar.say(f"{title} [{done}/{step.total}] {step.label}: {took}")
                began = now
                bar.shown.reset(bar.task)  # the time left is that of one row
            else:
                where = f"{title} [{done + 1}/{step.total}] {step.label}"
                bar.move(step.fraction, 1.0, f"{step.fraction:.0%}", where)

        def download(what: str, done: int, total: int) -> None:
            if what not in files:
                files.add(what)
                bar.say(f"downloading {what}")
            bar.move(done, total or None, title=f"downloading {what}")

        yield report, download


@contextmanager
def training(
    title: str, *, quiet: bool, shorter: str = ""
) -> "Iterator[Callable[[TrainingProgress], None]]":
    """The bar of a training, and after its first steps how long it will take.

    Args:
        title: What is trained.
        quiet: Neither bar nor lines.
        shorter: What makes it shorter, see `Forecast`.
    """
    from saddlepoint.training.training_bar import training_bar

    with training_bar(title, quiet=quiet, also=lambda say: Forecast(say, shorter)) as report:
        yield report


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file that is downloaded; shows nothing when nothing is."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=None)
                if not console.is_terminal:
                    console.print(f"downloading {what}", highlight=False)
            bar.update(tasks[what], completed=done, total=total or None)

        yield report


class Forecast:
    """Says once, after the first steps of a training, how long it will take, if that is long.

    Args:
        say: Gets the sentence.
        shorter: What makes it shorter.
        clock: Seconds that pass.

    Example:
        >>> from saddlepoint.training import TrainingProgress
        >>> times = iter([0, *range(100, 800, 30)])
        >>> forecast = Forecast(print, "--epochs 2", clock=lambda: next(times))
        >>> for step in range(1, 9):
        ...     forecast(TrainingProgress(1, 4, step, 100, {}))
        about 11 h 3 min for 4 epochs, by the first 2 steps, tests not counted; shorter: --epochs 2. Ctrl-C \
stops it, --resume goes on.
    """

    def __init__(
        self, say: Callable[[str], None], shorter: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._shorter, self._clock = say, shorter, clock
        self._first: tuple[int, float] | None = None
        self._done = False

    def __call__(self, state: "TrainingProgress") -> None:
        """Take the time of a step."""
        if self._done:
            return
        now, done = self._clock(), (state.epoch - 1) * state.steps + state.step
        if self._first is None:  # the first step is slower than the others
            self._first = done, now
            return
        steps, seconds = done - self._first[0], now - self._first[1]
        if steps < _STEPS and seconds < _SECONDS:
            return
        self._done = True
        left = seconds / steps * (state.epochs * state.steps - done)
        if left >= _LONG:
            epochs = state.epochs - state.epoch + 1
            those = f"{epochs} epoch{'' if epochs == 1 else 's'}"
            self._say(
                f"about {_duration(left)} for {those}, by the first {steps + 1} steps, tests not counted; "
                f"shorter: {self._shorter}. Ctrl-C stops it, --resume goes on."
            )


def _duration(seconds: float) -> str:
    """A time in hours and minutes.

    Example:
        >>> _duration(11_900), _duration(200)
        ('3 h 18 min', '3 min')
    """
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
