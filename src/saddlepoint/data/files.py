"""Files that are either whole or not there."""

import os
import uuid
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Writes beside `path`, flushes to the disk, then renames: readers see the old or the new file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "new folder" / "file"
        >>> write_atomically(path, b"content")
        >>> path.read_bytes()
        b'content'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
