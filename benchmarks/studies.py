"""A command that measures several variants once each, keeps what it found, and writes a table of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddlepoint.files import write_atomically

from . import marks
from .stores import StoreError, not_whole, nothing_in, writing

Content = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What differs between such commands.

    Attributes:
        name: Of the module: python -m benchmarks.NAME.
        about: What --help says.
        store: JSON file for what is measured: "settings", and under `key` what was found.
        key: Of the findings in the file.
        page: Has the marks of the table.
        mark: The first of them.
        settings: What can be asked for, with defaults. A store is of one choice.
        measure: Adds to the content what is missing; calls its second argument, which keeps it, after each.
        render: Of the content, the table in Markdown; raises where the content is not whole.
    """

    name: str
    about: str | None
    store: Path
    key: str
    page: Path
    mark: str
    settings: Mapping[str, int | str]
    measure: Callable[[Content, Callable[[str], None]], None]
    render: Callable[[Mapping[str, Any]], str]

    def main(self, words: list[str], say: Callable[[str], None] = print) -> int:
        """Measure the variants that the file does not hold yet, then write the table."""
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}", description=self.about
        )
        parser.add_argument("--store", type=Path, default=self.store, help="JSON file of findings")
        parser.add_argument("--page", type=Path, default=self.page, help="has the table's marks")
        parser.add_argument("--render", action="store_true", help="only write the table")
        for name, default in self.settings.items():
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=type(default),
                default=default,
                help=f"default {default}",
            )
        options = parser.parse_args(words)
        given = {name: getattr(options, name) for name in self.settings}
        content = self._read(options.store)
        if not options.render:
            if content.setdefault("settings", given) != given:
                say(f"{options.store} must hold numbers of {given}, got {content['settings']}.")
                return 2

            def keep(said: str) -> None:
                with writing(options.store):
                    there = self._read(options.store)
                    if there.get("settings", given) != given:
                        raise StoreError(
                            f"`--store` must hold numbers of {given}, got {there['settings']}."
                        )
                    _add(content, there)  # another process may have put something there
                    write_atomically(options.store, (json.dumps(content, indent=2) + "\n").encode())
                say(said)

            self.measure(content, keep)
        if not content.get(self.key):
            raise nothing_in(options.store)
        marks.put(options.page, self.render(content), self.mark)
        return 0

    def _read(self, path: Path) -> Content:
        """What was measured before; nothing where there is no file."""
        if not path.is_file():
            return {}
        try:
            content = dict(json.loads(path.read_text(encoding="utf-8")))
            self.render(content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise not_whole(path) from error
        return content


def _add(ours: Content, theirs: Mapping[str, Any]) -> None:
    """What only the other has, at any depth.

    >>> ours = {"a": {"b": 1}}
    >>> _add(ours, {"a": {"b": 2, "c": 3}, "d": 4})
    >>> ours
    {'a': {'b': 1, 'c': 3}, 'd': 4}
    """
    for name, value in theirs.items():
        if isinstance(value, Mapping) and isinstance(ours.get(name), dict):
            _add(ours[name], value)
        else:
            ours.setdefault(name, value)
