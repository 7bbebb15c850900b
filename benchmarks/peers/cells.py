"""Finished measurements in one JSON file: each is written at once, and none is used under other settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from saddlepoint.files import write_atomically

from .measure import Cell

SCHEMA = 1


class Store:
    """Cases by key, each with settings, the machine's state when it began, missing peers, and cells by name.

    A case that was measured under other settings begins anew: the cells of one table are always of one kind.
    The table that is there stays until the one in its place is complete, as far as `wanted` says how many cells
    that takes, or else has a cell.

    Args:
        path: Of the file; it is made with the first cell.
        read_only: For who writes a page from what is there, so that something must be.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.content: dict[str, Any] = {"schema": SCHEMA, "networks": {}, "cases": {}}
        if path.exists():
            self.content = _checked(path)
        if read_only and not any(case["cells"] for case in self.content["cases"].values()):
            raise nothing_in(path)

    def open(
        self, key: str, settings: Mapping[str, Any], about: Mapping[str, Any]
    ) -> dict[str, Cell]:
        """The cells a case has already under these settings; none if they differ.

        Args:
            key: Of the case.
            settings: What the numbers depend on.
            about: What is said about the case beside them, kept from when it began.
        """
        shown, begun = self.content["cases"], self.content.setdefault("begun", {})
        case = shown.get(key)
        if case is None or case["settings"] != settings:
            place = begun if case is not None and case["cells"] else shown
            case = place.get(key)
            if case is None or case["settings"] != settings:
                case = place[key] = {"settings": dict(settings), **about, "cells": {}}
        else:
            begun.pop(key, None)
        cells: dict[str, Cell] = case["cells"]
        return cells

    def add(self, key: str, name: str, cell: Cell) -> None:
        """Keep a cell, in the file too."""
        shown, begun = self.content["cases"], self.content["begun"]
        case = begun.get(key, shown.get(key))
        case["cells"][name] = cell
        if key in begun and len(case["cells"]) >= case.get("wanted", 1):
            shown[key] = begun.pop(key)
        self.save()

    def save(self) -> None:
        """Write the file; a reader never sees half of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, (json.dumps(self.content, indent=1) + "\n").encode())


class StoreError(ValueError):
    """There is no store, or not the right one: for the user to mend, not for us."""


def nothing_in(path: Path) -> StoreError:
    """What is said where a page is to be written of a store without anything."""
    return StoreError(
        f"`--store` must have something to write a page from, got {path} without; measure first."
    )


def exit_with(main: Callable[[], int | None]) -> NoReturn:
    """Run a command and exit with its code; what is wrong with its store is one sentence and 2."""
    try:
        code = main()
    except StoreError as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)


def _checked(path: Path) -> dict[str, Any]:
    """The content of a file, if it is one of ours and whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = content["schema"] == SCHEMA and all(
            isinstance(case["settings"], dict) and isinstance(case["cells"], dict)
            for case in content["cases"].values()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise StoreError(
            f"`--store` must be a whole file of this command (schema {SCHEMA}), got {path}; name another one."
        )
    return dict(content)
