"""What several tests put in the place of something else: a ledger in memory, a file that runs code, a
measurement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from saddlepoint.evaluation import Page

__all__ = ["Memory", "Trap", "passes_of"]


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


def passes_of(seconds: Mapping[str, float]) -> Any:
    """What `saddlepoint.solver.lowering` would measure of a model that answers alike in all these ways."""
    from saddlepoint.solver.lowering import _Pass

    return {way: _Pass(number, torch.eye(3)) for way, number in seconds.items()}
