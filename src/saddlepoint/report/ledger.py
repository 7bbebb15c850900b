"""Finished batches of an evaluation on disk, one file each, so that a killed one can be continued."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import final

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from saddlepoint.data.files import write_atomically
from saddlepoint.evaluation import Page
from saddlepoint.report.shards import plain_tensors, read_tensors

__all__ = ["DiskLedger"]


@final
class DiskLedger:
    """Pages in the folder `batches` of a run.

    A page appears under its final name only when it is whole. One that cannot be read, or belongs to another
    key, is not there: its batch is run again.

    Args:
        run: The run directory.

    Example:
        >>> import tempfile, torch
        >>> ledger = DiskLedger(Path(tempfile.mkdtemp()))
        >>> ledger.put("linf/pgd/0/0", Page({"broken": torch.tensor([True])}, seconds=0.5))
        >>> ledger.get("linf/pgd/0/0").tensors["broken"], ledger.get("l2/pgd/0/0"), len(ledger)
        (tensor([True]), None, 1)
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "batches"

    def get(self, key: str) -> Page | None:
        """What was kept under the key, or None."""
        path = self._path(key)
        about = _about(path)
        if about.get("key") != key:
            return None
        try:
            return Page(read_tensors(path), float(about["seconds"]))
        except ValueError:
            return None

    def put(self, key: str, page: Page) -> None:
        """Keep it, whole or not at all."""
        about = {"key": key, "seconds": repr(page.seconds)}
        write_atomically(self._path(key), save(plain_tensors(page.tensors), metadata=about))

    def seconds(self) -> float:
        """Time spent on all pages."""
        return sum(float(_about(path).get("seconds", "0")) for path in self._paths())

    def clear(self) -> None:
        """Remove all pages."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __len__(self) -> int:
        return len(self._paths())

    def _path(self, key: str) -> Path:
        # Keys hold names of models, which may hold anything; the hash tells apart what reads alike.
        readable = re.sub(r"[^A-Za-z0-9+.-]+", "_", key)[:80].strip(".")
        return (
            self.folder / f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
        )

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("[!.]*.safetensors"))


def _about(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError):
        return {}
