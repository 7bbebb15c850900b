"""The bar of an attack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic as clock

from saddlepoint.bars import bar
from saddlepoint.solver.result import Callback, Progress

__all__ = ["attack_bar"]

_SECONDS = 10.0  # between two lines


@contextmanager
def attack_bar() -> Iterator[Callback]:
    """A bar with rows done and rows fooled; without a terminal a line now and then, and one in the end."""
    said = clock()
    with bar("attack") as shown:

        def report(state: Progress) -> None:
            nonlocal said
            figures = f"{state.done}/{state.rows} rows done, {state.fooled} fooled"
            shown.move(state.fraction, 1.0, figures)
            over = state.done == state.rows
            if not shown.live and (over or clock() - said >= _SECONDS):
                said = clock()
                shown.say(
                    f"attack: {figures}" if over else f"attack: {state.fraction:.0%}, {figures}"
                )

        yield report
