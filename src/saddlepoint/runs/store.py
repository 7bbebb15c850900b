"""What a run keeps on disk while it is under way: pages of tensors under a key, and a lock on the folder.

A page is read only if its digest is right, its key is the one asked for, and it was written under the same
settings, models and data (the fingerprint). Anything else counts as not there, and is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar, final

from torch import Tensor

from saddlepoint.evaluation import Page
from saddlepoint.files import (
    DamagedFileError,
    TensorFile,
    read_about,
    read_tensors,
    write_tensors,
)
from saddlepoint.runs.refusals import ANSWERS
from saddlepoint.training.distributed import World

if sys.platform != "win32":
    import fcntl

__all__ = ["LOCK", "PAGES", "Store", "locked"]

PAGES = "pages"
"""The folder of pages inside a run folder."""
LOCK = "run.lock"
"""The file that says who is writing into a run folder."""

_FORMAT = "saddlepoint page"
_SILENT = 1.0  # seconds that are waited for a lock without a word
_NAME = r"[A-Za-z0-9_+.-]*-[0-9a-f]{16}\.safetensors"
_UNFINISHED = re.compile(rf"\.{_NAME}\.[0-9a-f]{{32}}")  # what a killed process did not rename
_OURS = re.compile(rf"{_NAME}|{_UNFINISHED.pattern}")
T = TypeVar("T")


@final
class Store:
    """Pages in the folder `pages` of a run; it is the ledger of an evaluation too.

    Several processes divide the work by pages: each writes those of its `share`, and all read all of them
    after they have met in `gather`. Which process writes a page changes nothing in it, so that a run can be
    continued by any number of processes.

    Args:
        folder: The run folder.
        fingerprint: Of settings, models and data. Pages written under another one are never read.

    Attributes:
        damaged: Names of pages that were there and could not be trusted, now or in an earlier part of the run;
            each is computed again.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp())
        >>> store = Store(folder, "settings 1")
        >>> store.put("linf/pgd/0", Page({"broken": torch.tensor([True])}, seconds=0.5))
        >>> store.get("linf/pgd/0").tensors["broken"], store.get("l2/pgd/0"), len(store)
        (tensor([True]), None, 1)
        >>> Store(folder, "settings 2").get("linf/pgd/0") is None
        True
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder / PAGES
        self.fingerprint = fingerprint
        self.damaged: list[str] = []
        self.world = World.current()
        self._checked = False

    def share(self, count: int) -> range:
        """Of `count` pages, numbered from 0, those that this process computes."""
        return range(self.world.rank, count, self.world.size)

    def gather(self, value: T) -> list[T]:
        """What every process gives here, in their order; none goes on before all have come."""
        return self.world.gather(value)

    def get(self, key: str) -> Page | None:
        """What was kept under the key, or None."""
        path = self._path(key)
        found = self._read(path)
        if found is None or found.about.get("key") != key:
            return None
        return Page(found.tensors, float(found.about["seconds"]))

    def put(self, key: str, page: Page) -> None:
        """Keep it, whole or not at all."""
        if not self._checked:
            self.check()
        path = self._path(key)
        about = {"format": _FORMAT, "key": key, "fingerprint": self.fingerprint}
        # Kept with the page, so that a killed process forgets nothing.
        if path.name in self.damaged:
            about["instead of"] = "a damaged page"
        write_tensors(path, page.tensors, {**about, "seconds": repr(page.seconds)})

    def any(self) -> bool:
        """Whether there is any page of this run."""
        return any(True for _ in self._pages())

    def seconds(self) -> float:
        """Time spent on all pages."""
        return sum(float(page.about["seconds"]) for page in self._pages())

    def clear(self) -> None:
        """Remove all pages, those of other settings too; nothing that is not a page is touched.

        A file with the name of a page that does not say that it is one stays: it may be somebody else's.
        """
        self.check()
        for path in self.folder.glob("*"):
            if (
                _UNFINISHED.fullmatch(path.name)
                or (read_about(path) or {}).get("format") == _FORMAT
            ):
                path.unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def check(self) -> None:
        """Refuse a folder of pages that is somebody else's; done once before the first page is written.

        Raises:
            ValueError: It is a link, a file, or holds files that are no pages.
        """
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise ValueError(
                f"`{self.folder}` must be a folder of this run, got a link or a file; choose another --out."
            )
        there = self.folder.iterdir() if self.folder.is_dir() else ()
        foreign = [path.name for path in there if not _OURS.fullmatch(path.name)]
        if foreign:
            raise ValueError(
                f"`{self.folder}` must hold nothing but pages of this run, got {sorted(foreign)[0]!r}, which "
                "saddlepoint did not write; choose another --out."
            )
        self._checked = True

    def keep_answers(self, logits: Tensor | None) -> None:
        """Keep what the models say to some images, unless it is kept already or nobody asked."""
        if logits is not None and self.get(ANSWERS) is None:
            self.put(ANSWERS, Page({"logits": logits}, seconds=0.0))

    def kept_answers(self) -> Tensor | None:
        """What the models said when the pages that are there were written, if it was kept."""
        page = self.get(ANSWERS)
        return None if page is None else page.tensors["logits"]

    def __len__(self) -> int:
        return sum(1 for _ in self._pages())

    def names(self) -> list[str]:
        """What the pages of this run are kept under."""
        return [page.about["key"] for page in self._pages()]

    def _pages(self) -> Iterator[TensorFile]:
        """All pages of this run but the answers, which are no work that is done."""
        for path in self._paths():
            found = self._read(path)
            if found is not None and found.about.get("key") != ANSWERS:
                yield found

    def _read(self, path: Path) -> TensorFile | None:
        """A page of this run, or None."""
        try:
            found = read_tensors(path)
        except FileNotFoundError:
            return None
        except DamagedFileError:
            self._note(path)
            return None
        same = found.about.get("fingerprint") == self.fingerprint
        if not same or found.about.get("format") != _FORMAT:
            return None
        if "instead of" in found.about:
            self._note(path)
        return found

    def _note(self, path: Path) -> None:
        if path.name not in self.damaged:
            self.damaged.append(path.name)

    def _path(self, key: str) -> Path:
        # Keys hold names of models, which may hold anything; the hash tells apart what reads alike.
        readable = re.sub(r"[^A-Za-z0-9+.-]+", "_", key)[:80].strip(".")
        name = f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
        return self.folder / name

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("[!.]*.safetensors"))


@contextmanager
def locked(
    folder: Path, *, wait: float = 0.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Within, this process alone writes into the folder, that of a run or one that several runs publish into.

    The lock is the operating system's, on the file `run.lock`: it ends with the process, however that dies,
    so that a lock left by a killed process on this machine is no obstacle. What a process on another
    machine has left is not ours to judge: it is refused at once, and the message names the file to delete.

    Args:
        folder: Made if it is not there.
        wait: Seconds to wait for whoever is writing there.
        waiting: Told once who that is, where it takes more than a moment.

    Raises:
        ValueError: Another process is writing there; the message says which.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with locked(folder):
        ...     (folder / "run.lock").is_file()
        True
        >>> (folder / "run.lock").exists()
        False
    """
    for link in (folder, *folder.parents):
        if link.is_symlink() and not link.exists():
            raise ValueError(
                f"`{link}` must be a folder, got a link to nothing; choose another folder."
            )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    file = _acquire(path, wait, waiting)
    try:
        _write(file, path)
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _write(file: IO[str], path: Path) -> None:
    """Write who holds the lock, past the buffer: nothing is left to write where the disk is full."""
    try:
        file.seek(0)
        file.truncate()
        os.write(file.fileno(), json.dumps(_this_process()).encode())
    except OSError as error:  # which does not say which file there was no room for
        raise OSError(error.errno, error.strerror, str(path)) from error


def _acquire(path: Path, wait: float, waiting: Callable[[str], None] | None) -> IO[str]:
    """The opened lock file, locked by this process."""
    begun = time.monotonic()
    while True:
        file = _opened(path)
        try:
            free = _try_lock(file)
            file.seek(0)
            text = file.read()
            owner = _owner(text)
            if free and text and not owner:
                raise ValueError(
                    f"`{path}` must be a lock of saddlepoint, got another file; choose another folder."
                )
            elsewhere = bool(owner) and owner["host"] != platform.node()
            if not free or elsewhere:
                waited = time.monotonic() - begun
                if waited >= wait or (free and elsewhere):
                    raise ValueError(_refusal(path, owner))
                if waiting is not None and waited >= _SILENT:
                    waiting(f"waiting for {_who(owner)}, which is writing into {path.parent}")
                    waiting = None
                time.sleep(0.05)
            # Whoever held the lock before us may have removed the file after we had opened it.
            elif path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _opened(path: Path) -> IO[str]:
    """The lock file, which is no link: what it leads to is not ours to write."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.fdopen(os.open(path, flags, 0o666), "r+", encoding="utf-8", errors="replace")
    except OSError as error:
        if path.is_symlink() or path.is_dir():
            got = "a link" if path.is_symlink() else "a folder"
            raise ValueError(
                f"`{path}` must be a lock of saddlepoint, got {got}; choose another folder."
            ) from error
        raise


def _try_lock(file: IO[str]) -> bool:
    if sys.platform == "win32":  # no flock there: the text of the lock alone decides
        file.seek(0)
        return not file.read()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _this_process() -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"host": platform.node(), "pid": os.getpid(), "since": now}


def _owner(text: str) -> dict[str, Any]:
    """Who holds the lock; empty where the text is not one of ours or not written yet."""
    try:
        owner = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) and {"host", "pid", "since"} <= set(owner) else {}


def _who(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"


def _refusal(path: Path, owner: dict[str, Any]) -> str:
    return (
        f"`{path.parent}` must be used by one process at a time, got {_who(owner)} writing there; wait for it, "
        f"choose another folder, or, if you know that it is dead, delete {path}."
    )
