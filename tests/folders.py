"""Where the project is, and run folders side by side: what is in them, but for the clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from saddlepoint import runs

__all__ = ["ROOT", "assert_same_folders", "without_time"]

ROOT = Path(__file__).parents[1]

_CLOCK = {"seconds", "created", "digest", "command"}  # a command names its folder


def without_time(value: Any) -> Any:
    """Metrics or a whole record as they would be on another day."""
    if isinstance(value, dict):
        return {k: without_time(v) for k, v in value.items() if k not in _CLOCK}
    return [without_time(each) for each in value] if isinstance(value, list) else value


def assert_same_folders(one: Path, two: Path) -> None:
    """The same files, with the same tensors, histories, tables and figures, and records but for times."""
    files = _files(one)
    assert files == _files(two)
    assert any(name.endswith(runs.RECORD) for name in files)
    for name in files:
        if name.endswith((".safetensors", ".jsonl", ".csv", ".png", ".svg")):
            assert (one / name).read_bytes() == (two / name).read_bytes(), name
        elif name.endswith(runs.RECORD):
            records = [without_time(json.loads((f / name).read_text())) for f in (one, two)]
            assert records[0] == records[1], name


def _files(folder: Path) -> list[str]:
    """All files but those of the clock, and, outside run folders, what a killed process was writing."""
    found = [
        path
        for path in folder.rglob("*")
        if (path.parent / runs.RECORD).is_file()
        or not path.name.startswith((".", "events.", "times.json"))
    ]
    return sorted(str(path.relative_to(folder)) for path in found)
