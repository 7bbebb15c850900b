"""What several tests put in the place of something else: a ledger in memory, a file that runs code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saddlepoint.evaluation import Page

__all__ = ["Memory", "Trap"]


class Memory(dict[str, Page]):
    """A ledger that remembers what was put into it."""

    def put(self, key: str, page: Page) -> None:
        self[key] = page


class Trap:
    """Unpickling an instance creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))
