"""What is wrong with a file of measurements, who writes it, and how a command ends where something is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

from saddlepoint.runs import locked

_PATIENCE = 60.0  # seconds that another process may take to write


class StoreError(ValueError):
    """A store, or another file or word of a command, is missing or not the right one: for the user to mend."""


def nothing_in(path: Path) -> StoreError:
    """What is said where a store without anything is to be read."""
    return StoreError(f"`{path}` must have something to go by, got nothing; measure first.")


def not_whole(path: Path, schema: int | None = None, where: str = "") -> StoreError:
    """What is said of a file that is none of ours, or not as it was written (where)."""
    which = "" if schema is None else f" (schema {schema})"
    damaged = f", where {where} is damaged" if where else ""
    return StoreError(
        f"`{path}` must be a whole file of measurements{which}, got one that is not{damaged}; take it from "
        "version control again, or move it away and measure again."
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, this process alone writes the file.

    Raises:
        StoreError: Another process does not end writing.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path.parent, wait=_PATIENCE))
        except ValueError as error:
            raise StoreError(str(error)) from error
        yield


def exit_with(main: Callable[[], int | None]) -> NoReturn:
    """Run a command and exit with its code; a `StoreError` is one sentence and 2."""
    try:
        code = main()
    except StoreError as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)
