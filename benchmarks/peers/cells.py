"""Finished measurements in one JSON file: each is written at once, and none is used under other settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.stores import exit_with, not_whole, nothing_in
from saddlepoint.files import write_atomically

from .measure import Cell

# `ceiling` and `quick` take `exit_with` from here: another line in their files would be another digest of the
# code that their numbers are of.
__all__ = ["SCHEMA", "Store", "exit_with"]

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
        raise not_whole(path, SCHEMA)
    return dict(content)
