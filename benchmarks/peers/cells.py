"""Finished measurements in one JSON file: each is written at once, and none is used under other settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stores import StoreError, exit_with, not_whole, nothing_in, writing
from saddlepoint.files import write_atomically

from .measure import Cell
from .sound import ANY, Kind

# `quick` takes `exit_with` from here: another line in its file would be another digest of the code that its
# numbers are of.
__all__ = ["SCHEMA", "Store", "exit_with"]

SCHEMA = 1
_BESIDE = ("networks", "skipped")
"""What a command changes in the content itself."""


class Store:
    """Cases by key, each with settings, the machine's state when it began, missing peers, and cells by name.

    A case that was measured under other settings begins anew: the cells of one table are always of one kind.
    The table that is there stays until the one in its place is complete, as far as `wanted` says how many cells
    that takes, or else has a cell. What other processes have stored meanwhile stays, too.

    Args:
        path: Of the file; it is made with the first cell.
        read_only: For who writes a page from what is there, so that something must be.
        kind: What a case must have, whenever the file is read.
    """

    def __init__(self, path: Path, *, read_only: bool = False, kind: Kind = ANY) -> None:
        self.path = path
        self.kind = kind
        self.content: dict[str, Any] = {"schema": SCHEMA, "networks": {}, "cases": {}}
        self._opened: dict[str, tuple[dict[str, Any], dict[str, Any], _Pair]] = {}
        if path.exists():
            self.content = _checked(path, kind)
        if read_only and not any(case["cells"] for case in self.content["cases"].values()):
            raise nothing_in(path)
        self._before = _beside(self.content)

    def open(
        self, key: str, settings: Mapping[str, Any], about: Mapping[str, Any]
    ) -> dict[str, Cell]:
        """The cells a case has already under these settings; none if they differ.

        Args:
            key: Of the case.
            settings: What the numbers depend on.
            about: What is said about the case beside them, kept from when it began.

        Raises:
            StoreError: The file has a table of more images, or with methods whose library is missing now: a
                smaller one must not take its place.
        """
        asked = json.loads(json.dumps(settings))  # as the file has them
        shown = self.content["cases"].get(key, {"cells": {}})
        images = shown["settings"].get("images", 0) if shown["cells"] else 0
        if asked.get("images", images) < images:
            raise StoreError(
                f"`--images` must be at least {images}, which {self.path} has for `{key}`, got "
                f"{asked['images']}; name another `--store` and page for a smaller table."
            )
        lost = [name for name in shown.get("methods", ()) if name in about.get("missing", ())]
        if shown["cells"] and lost and _under(self.content, key, asked) is None:
            raise StoreError(
                f"the libraries of {', '.join(lost)} must be installed, whose lines {self.path} has "
                f"for `{key}`, got {about['missing'][lost[0]]}; name another `--store` and page to do without."
            )
        self._opened[key] = (asked, dict(about), _pair(self.content, key))
        cells: dict[str, Cell] = self._placed(self.content, key)["cells"]
        return cells

    def add(self, key: str, name: str, cell: Cell) -> None:
        """Keep a cell, in the file too.

        Raises:
            StoreError: Another process has begun the case under other settings, or does not end writing.
        """
        settings, _, before = self._opened[key]
        with self._alone() as content:
            ours = _under(self.content, key, settings)
            held = ours["cells"] if ours else {}
            if not _under(content, key, settings) and (held or _pair(content, key) != before):
                raise StoreError(
                    f"`{key}` must be measured under one kind of settings at a time, got another process that "
                    f"measures it under other settings into {self.path}; let it end, or name another `--store`."
                )
            case = self._placed(content, key)
            case["cells"] = {**held, **case["cells"], name: cell}
            shown, begun = content["cases"], content["begun"]
            if case is begun.get(key) and len(case["cells"]) >= case.get("wanted", 1):
                shown[key] = begun.pop(key)

    def save(self) -> None:
        """Write the file; a reader never sees half of it."""
        with self._alone() as content:
            for key, (_, _, before) in self._opened.items():
                if _pair(content, key) == before:
                    self._placed(content, key)

    @contextmanager
    def _alone(self) -> Iterator[dict[str, Any]]:
        """What is in the file now, with what this process changed beside the cells; written at the end."""
        with writing(self.path):
            content = _checked(self.path, self.kind) if self.path.exists() else self.content
            for name, now in _beside(self.content).items():
                there, before = content.setdefault(name, {}), self._before.get(name, {})
                there.update({key: now[key] for key in now if now[key] != before.get(key)})
                for key in before.keys() - now.keys():
                    there.pop(key, None)
            yield content
            write_atomically(self.path, (json.dumps(content, indent=1) + "\n").encode())
            self.content, self._before = content, _beside(content)

    def _placed(self, content: dict[str, Any], key: str) -> dict[str, Any]:
        """The case under the settings it was opened with, begun if there is none."""
        settings, about, _ = self._opened[key]
        shown, begun = content["cases"], content.setdefault("begun", {})
        found = _under(content, key, settings)
        if found is None:
            place = begun if shown.get(key, {"cells": {}})["cells"] else shown
            found = place[key] = {"settings": settings, **about, "cells": {}}
        return found


_Pair = tuple[dict[str, Any] | None, ...]
"""Settings of the case that is shown and of the one that has begun in its place; none without a cell."""


def _pair(content: Mapping[str, Any], key: str) -> _Pair:
    cases = [content.get(place, {}).get(key) for place in ("cases", "begun")]
    return tuple(case["settings"] if case and case["cells"] else None for case in cases)


def _under(
    content: Mapping[str, Any], key: str, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The case under these settings, shown or begun."""
    cases = [content.get(place, {}).get(key) for place in ("cases", "begun")]
    return next((case for case in cases if case and case["settings"] == settings), None)


def _beside(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: dict(content[name]) for name in _BESIDE if name in content}


def _checked(path: Path, kind: Kind) -> dict[str, Any]:
    """The content of a file, if it is one of ours and whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        whole = (
            content["schema"] == SCHEMA
            and isinstance(content["networks"], dict)
            and all(isinstance(content.get(name, {}), dict) for name in ("begun", *_BESIDE))
        )
        cases = [*content["cases"].items(), *content.get("begun", {}).items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise not_whole(path, SCHEMA)
    for key, case in cases:
        if why := kind.doubt(key, case):
            raise not_whole(path, SCHEMA, f"{key!r} ({why})")
    for name in kind.beside if cases else ():
        if name not in content:
            raise not_whole(path, SCHEMA, f"{name!r}")
    return dict(content)


def _no_number(text: str) -> float:
    raise ValueError(text)
