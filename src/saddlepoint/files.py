"""Files that are either whole or not there, and tensor files that notice a single changed byte."""

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DamagedFileError",
    "TensorFile",
    "read_about",
    "read_tensors",
    "remove_unfinished",
    "write_atomically",
    "write_tensors",
]

_ENTRY, _DIGEST = "about", "sha256"


class DamagedFileError(ValueError):
    """A file is there, and its content is not what was written."""


class TensorFile(NamedTuple):
    """What a tensor file holds: tensors by name, and short texts about them."""

    tensors: "dict[str, Tensor]"
    about: dict[str, str]


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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            # A full disk does not say which file there was no room for.
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def remove_unfinished(path: Path) -> None:
    """Removes what processes that were killed inside `write_atomically` have left beside `path`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> half, other = folder / f".run.json.{uuid.uuid4().hex}", folder / ".run.json.mine"
        >>> _ = half.write_text("{"), other.write_text("{}")
        >>> remove_unfinished(folder / "run.json")
        >>> half.exists(), other.exists()
        (False, True)
    """
    for unfinished in path.parent.glob(f".{path.name}.{'[0-9a-f]' * 32}"):
        unfinished.unlink(missing_ok=True)


def write_tensors(
    path: Path, tensors: "Mapping[str, Tensor]", about: Mapping[str, str] | None = None
) -> str:
    """Writes a safetensors file with a digest of everything in it, whole or not at all.

    Args:
        path: Where to.
        tensors: By name; copied to the CPU.
        about: Short texts to keep with them.

    Returns:
        The SHA-256 of names, types, shapes, bytes and texts, which is also in the file.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "some.safetensors"
        >>> digest = write_tensors(path, {"x": torch.ones(2)}, {"key": "rows 0 to 2"})
        >>> read_tensors(path).tensors["x"], read_tensors(path).about["key"]
        (tensor([1., 1.]), 'rows 0 to 2')
    """
    from safetensors.torch import save

    # Copies: safetensors refuses views that share memory.
    owned = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    texts = dict(about or {})
    digest = _digest(owned, texts)
    # One entry: safetensors writes several in any order, and equal content shall be equal bytes.
    entry = json.dumps({**texts, _DIGEST: digest}, sort_keys=True)
    write_atomically(path, save(owned, metadata={_ENTRY: entry}))
    return digest


def read_tensors(path: Path) -> TensorFile:
    """Reads what `write_tensors` wrote and checks its digest.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFileError: The content is not what was written; the message names the file.
        KeyboardInterrupt: It was stopped while it read.
    """
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` must be a file, got none.")
    before = path.stat()
    try:
        return _checked(path)
    except DamagedFileError:
        # safetensors opens a file twice: a process at work may have put a newer one in its place in between.
        after = path.stat()
        if (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns):
            _checked(path)  # raises again
            # torch swallows a signal that comes while it makes a tensor, and complains of something else.
            raise KeyboardInterrupt from None
    return read_tensors(path)


def _checked(path: Path) -> TensorFile:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, str] = json.loads((file.metadata() or {}).get(_ENTRY, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFileError(f"`{path}` must be a whole tensor file, got {error}.") from error
    expected = about.pop(_DIGEST, None)
    if expected is None or _digest(tensors, about) != expected:
        raise DamagedFileError(
            f"`{path}` must hold what was written, got content of another digest: the file is damaged."
        )
    return TensorFile(tensors, about)


def read_about(path: Path) -> dict[str, str] | None:
    """Reads the texts that `write_tensors` kept, from the head of the file alone; None if there are none.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "some.safetensors"
        >>> _ = write_tensors(path, {"x": torch.ones(2)}, {"key": "rows 0 to 2"})
        >>> read_about(path)["key"], read_about(path.parent / "none")
        ('rows 0 to 2', None)
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_ENTRY, "null"))
    except (SafetensorError, OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def _digest(tensors: "Mapping[str, Tensor]", about: Mapping[str, str]) -> str:
    import torch

    digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
