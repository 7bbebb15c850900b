"""A progress bar for whoever asks for one. rich is imported when it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from saddlepoint.extras import install

__all__ = ["Bar", "bar", "columns", "telling"]

State = TypeVar("State")

_BOTH = 24  # so many columns hold a part of a title and a part of the figures


def columns() -> int | None:
    """The width that COLUMNS tells, from 20 to 1000; None where it tells none: rich must not read it then."""
    text = os.environ.get("COLUMNS", "")
    told = text.isascii() and text.isdigit() and len(text) <= 4 and 20 <= int(text) <= 1000
    return int(text) if told else None


class Bar:
    """One bar on stderr if that is a terminal; where it is not, also in notebooks, the lines that are said.

    Args:
        title: What is under way.
        more: Further columns of rich.
        quiet: Neither bar nor lines.

    Raises:
        ImportError: rich is not installed.
    """

    def __init__(self, title: str, *more: Any, quiet: bool = False) -> None:
        try:
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError as error:
            raise ImportError(
                f"a progress bar needs rich; install it with {install('show')}",
                name="rich",
            ) from error
        # In notebooks rich would need widgets, which are not always there.
        told = {k: v for k, v in os.environ.items() if k != "COLUMNS" or columns()}
        console = Console(stderr=True, force_jupyter=False, _environ=told)
        self.live, self.quiet, self._escape = console.is_terminal and not quiet, quiet, escape
        self.width = max(5, min(30, console.width // 4))
        self.shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=self.width),
            *more,
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not self.live,
            transient=True,
            speed_estimate_period=600,  # steps of minutes are slow, and not without a speed
        )
        # What stays visible whatever else there is: the bar, the share that is done, the time that is left.
        self._fixed = self.width + (15 if more else 10)
        self._title = title
        self.task = self.shown.add_task(
            escape(self._cut(title, console.width - self._fixed)), total=None, figures=""
        )

    def move(
        self, done: float, total: float | None, figures: str = "", title: str | None = None
    ) -> None:
        """Show how much is done, and what there is room for to say beside it."""
        self._title = self._title if title is None else title
        room = self.shown.console.width - self._fixed
        if room < _BOTH:
            figures = self._count(figures, room)
            named = self._cut(self._title, room - len(figures))
        else:  # half of it is for the figures
            named = self._cut(self._title, max(room // 2, room - len(figures)))
        self.shown.update(
            self.task,
            completed=done,
            total=total,
            figures=self._escape(self._cut(figures, room - len(named))),
            description=self._escape(named),
        )

    @staticmethod
    def _count(figures: str, room: int) -> str:
        """What is worth more than the title where there is room for one of them: how much is done.

        Example:
            >>> [Bar._count("8/100 images, 5 fooled", room) for room in (20, 9, 4)]
            ['8/100 images', '8/100', '']
        """
        if not figures[:1].isdigit():
            return ""
        first, word = figures.partition(",")[0], figures.split()[0].rstrip(",")
        return first if len(first) + 4 <= room else word if len(word) <= room else ""

    @staticmethod
    def _cut(text: str, room: int) -> str:
        """The text, or as much of it as there is room for."""
        if len(text) <= room:
            return text
        return text[: room - 1] + "…" if room > 3 else ""

    def say(self, line: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self.shown.console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def bar(title: str, *more: Any, quiet: bool = False) -> Iterator[Bar]:
    """A `Bar` that is gone in the end."""
    made = Bar(title, *more, quiet=quiet)
    with made.shown:
        yield made


@contextmanager
def telling(
    progress: bool,
    callback: Callable[[State], None] | None,
    shown: Callable[[], AbstractContextManager[Callable[[State], None]]],
) -> Iterator[Callable[[State], None] | None]:
    """Who is told how far some work has come: the user's function, a bar, or both.

    Args:
        progress: Whether to show a bar.
        callback: The user's own, or None.
        shown: Makes the bar.

    Example:
        >>> with telling(False, None, lambda: bar("work")) as told:
        ...     print(told)
        None
    """
    if not progress:
        yield callback
        return
    with shown() as report:

        def tell(state: State) -> None:
            report(state)
            if callback is not None:
                callback(state)

        yield tell
