"""What is wrong with a file of measurements, and how a command of ours ends where something is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


class StoreError(ValueError):
    """There is no store, or not the right one: for the user to mend, not for us."""


def nothing_in(path: Path) -> StoreError:
    """What is said where a page is to be written of a store without anything."""
    return StoreError(
        f"`--store` must have something to write a page from, got {path} without; measure first."
    )


def not_whole(path: Path, schema: int | None = None, where: str = "") -> StoreError:
    """What is said of a file that is none of the command's own, or not as it was written (where)."""
    which = "" if schema is None else f" (schema {schema})"
    damaged = f", where {where} is damaged" if where else ""
    return StoreError(
        f"`--store` must be a whole file of this command{which}, got {path}{damaged}; name another one."
    )


def exit_with(main: Callable[[], int | None]) -> NoReturn:
    """Run a command and exit with its code; what is wrong with its store is one sentence and 2."""
    try:
        code = main()
    except StoreError as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)
