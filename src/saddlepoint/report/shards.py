"""Results on disk: one shard per chunk of rows while a run is under way, one file when it is done."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from saddlepoint.data.files import write_atomically

__all__ = ["TENSORS", "Shards", "fooled_rows", "plain_tensors", "read_tensors", "write_tensors"]

TENSORS = "tensors.safetensors"
_HISTORY = "history."  # these have the steps as first axis and the rows as second


class Shards:
    """The chunks of rows that are already done, in the folder `shards` of a run.

    A shard appears under its final name only when it is complete, so that whatever is there counts.

    Example:
        >>> import tempfile
        >>> shards = Shards(Path(tempfile.mkdtemp()))
        >>> shards.put(0, 4, {"weights": torch.ones(4, 2)}, seconds=0.5)
        >>> shards.has(0, 4), shards.has(4, 8), shards.seconds()
        (True, False, 0.5)
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "shards"

    def has(self, start: int, stop: int) -> bool:
        """Whether rows [start, stop) are done."""
        return self._path(start, stop).is_file()

    def put(self, start: int, stop: int, tensors: Mapping[str, Tensor], *, seconds: float) -> None:
        """Keep the results of rows [start, stop)."""
        content = save(plain_tensors(tensors), metadata={"seconds": repr(seconds)})
        write_atomically(self._path(start, stop), content)

    def seconds(self) -> float:
        """Time spent on all shards."""
        total = 0.0
        for path in self._paths():
            with safe_open(path, framework="pt") as file:
                total += float((file.metadata() or {}).get("seconds", "0"))
        return total

    def merged(self) -> dict[str, Tensor]:
        """All rows, in order; empty if there is no shard."""
        parts = [read_tensors(path) for path in self._paths()]
        return _concatenate(parts) if parts else {}

    def fooled(self) -> int:
        """Rows done that every domain had right, and that fool every domain."""
        total = 0
        for path in self._paths():
            with safe_open(path, framework="pt") as file:
                total += fooled_rows(file.get_tensor("fooled"), file.get_tensor("clean_fooled"))
        return total

    def clear(self) -> None:
        """Remove all shards."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, start: int, stop: int) -> Path:
        return self.folder / f"{start:08d}-{stop:08d}.safetensors"

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*-[0-9]*.safetensors"))


def fooled_rows(fooled: Tensor, before: Tensor) -> int:
    """How many rows were right in every domain and are wrong in every one now, of two tables (B, K).

    Example:
        >>> now = torch.tensor([[True, True], [True, True]])
        >>> fooled_rows(now, torch.tensor([[False, False], [True, False]]))
        1
    """
    return int((fooled.all(dim=1) & ~before.any(dim=1)).sum())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    write_atomically(path, save(plain_tensors(tensors)))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        ValueError: Missing or damaged.
    """
    if not path.is_file():
        raise ValueError(
            f"`{path}` must exist; the run is not finished, continue it with --resume."
        )
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"`{path}` must be a safetensors file, got {error}.") from error


def _concatenate(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: torch.cat([part[name] for part in parts], dim=1 if name.startswith(_HISTORY) else 0)
        for name in parts[0]
    }


def plain_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU: safetensors refuses views that share memory."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
