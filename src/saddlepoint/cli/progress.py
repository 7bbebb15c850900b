"""Progress bars on a terminal, plain lines elsewhere. They go to stderr; results go to stdout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from saddlepoint.training import TrainingProgress as State

__all__ = ["downloads", "training"]


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


@contextmanager
def training(title: str, *, shown: bool = True) -> Iterator[Callable[[State], None]]:
    """A bar over all steps with loss, accuracy, weights and remaining time; one line per epoch elsewhere."""
    console = Console(stderr=True, quiet=not shown)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, figures="")

        def report(state: State) -> None:
            figures = _figures(state)
            done = (state.epoch - 1) * state.steps + state.step
            where = f"{title}  epoch {state.epoch}/{state.epochs}"
            total = state.epochs * state.steps
            bar.update(task, completed=done, total=total, description=where, figures=figures)
            if state.step == state.steps and not console.is_terminal:
                console.print(f"{where}  {figures}", highlight=False, soft_wrap=True)

        yield report


def _figures(state: State) -> str:
    """Loss and accuracy, the mean weight of every threat, and what held-out images say in percent."""
    stats = state.stats
    parts = [f"{key} {value:.4f}" for key, value in stats.items() if "/" not in key]
    prefix = "weight/"
    weights = {k.removeprefix(prefix): v for k, v in stats.items() if k.startswith(prefix)}
    if len(weights) > 1:
        parts.append("weights " + " ".join(f"{name} {w:.2f}" for name, w in weights.items()))
    if state.validation:
        shares = (f"{name} {100 * share:.1f}" for name, share in state.validation.items())
        parts.append("held out " + " ".join(shares) + " %")
    return "  ".join(parts)
