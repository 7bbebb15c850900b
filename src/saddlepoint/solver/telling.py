"""Who is told how far an attack has come: the user's function, a bar, or both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic as clock

from saddlepoint.bars import bar
from saddlepoint.solver.result import Callback, Progress

__all__ = ["telling"]

_SECONDS = 10.0  # between two lines


@contextmanager
def telling(progress: bool, callback: Callback | None) -> Iterator[Callback | None]:
    """The callback of an attack.

    Args:
        progress: Whether to show a bar.
        callback: The user's own, or None.

    Example:
        >>> with telling(False, None) as told:
        ...     print(told)
        None
    """
    if not progress:
        yield callback
        return
    said = clock()
    with bar("attack") as shown:

        def tell(state: Progress) -> None:
            nonlocal said
            figures = f"{state.done}/{state.rows} rows done, {state.fooled} fooled"
            shown.move(state.fraction, 1.0, figures)
            # Where there is no terminal, a line now and then, and one in the end.
            over = state.done == state.rows
            if not shown.live and (over or clock() - said >= _SECONDS):
                said = clock()
                shown.say(
                    f"attack: {figures}" if over else f"attack: {state.fraction:.0%}, {figures}"
                )
            if callback is not None:
                callback(state)

        yield tell
