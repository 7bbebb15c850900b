"""Every run goes through here: open its folder, continue or refuse, keep what is done, finish.

A run folder is either complete, resumable or refused. Nothing in it is used that was written under other
settings, models or data, and nothing is deleted that we did not write.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint.evaluation import Page
from saddlepoint.files import DamagedFileError, read_tensors, remove_unfinished, write_tensors
from saddlepoint.runs.record import RECORD, TENSORS, Run
from saddlepoint.runs.signals import stop_on_signals
from saddlepoint.runs.store import Store, locked
from saddlepoint.training.distributed import World

__all__ = ["Execution", "RunInterrupted", "in_pages", "opened", "read_results"]

_HISTORY = "history."  # these tensors have the steps as first axis and the rows as second


class RunInterrupted(KeyboardInterrupt):
    """The run was stopped by Ctrl-C or a signal; `run` is its record so far, in `folder`."""

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(f"stopped after {run.done} of {run.rows} rows")
        self.run = run
        self.folder = folder


@final
@dataclass
class Execution:
    """A run whose folder is open.

    Attributes:
        run: The record, as it is in `run.json`.
        folder: Where everything goes.
        store: Pages of what is finished.
        resumed: Whether an earlier part of the run is there.
        notes: What the library has to say, for the record.
    """

    run: Run
    folder: Path
    store: Store
    resumed: bool
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def world(self) -> World:
        """The processes that share the work."""
        return self.store.world

    @property
    def complete(self) -> bool:
        """Whether the run was finished before, and nothing is left to do."""
        return self.run.status == "complete"

    def seconds(self) -> float:
        """Time of the work: that of the pages, or of all parts of the run where there are none."""
        pages = self.store.seconds()
        return round(pages or self.run.seconds + time.monotonic() - self.began, 3)

    def update(self, **changes: Any) -> Run:
        """Change the record, in the folder too."""
        self.run = self.run.but(**changes)
        if self.world.rank == 0:
            self.run.write(self.folder)
        return self.run

    def finish(self, tensors: Mapping[str, Tensor] | None = None, **changes: Any) -> Run:
        """Write the results and the complete record, in this order, and remove the pages."""
        # What any process had to say is said once. From here on none of them needs the pages.
        said = self.world.gather((self.notes, self.store.damaged))
        again = "the page {} was damaged and was computed again."
        damaged = [again.format(name) for _, names in said for name in names]
        notes = dict.fromkeys((*self.run.warnings, *(n for own, _ in said for n in own), *damaged))
        if self.world.rank == 0 and tensors is not None:
            about = {"fingerprint": self.run.hashes.fingerprint}
            write_tensors(self.folder / TENSORS, tensors, about)
        self.update(status="complete", warnings=tuple(notes), **changes)
        if self.world.rank == 0:
            self.store.clear()
        self.world.wait()  # whoever goes on finds the record complete
        return self.run


@contextmanager
def opened(
    run: Run, folder: Path, *, resume: bool = False, overwrite: bool = False
) -> Iterator[Execution]:
    """Open a run folder for this run, and leave it complete or resumable, whatever happens within.

    Within, this process alone writes into the folder, and SIGTERM and SIGHUP stop the work as Ctrl-C does.
    Where `torch.distributed` has been initialised all processes call this together, and process 0 writes.

    Args:
        run: The new record.
        folder: Where it goes; made if it is not there.
        resume: Continue the run in the folder, if there is one.
        overwrite: Replace the run in the folder, if there is one.

    Yields:
        The execution. If it is `complete` already there is nothing to do; otherwise call `finish` in the end.

    Raises:
        ValueError: The folder is in use, holds another run, or files that are not ours.
        RunInterrupted: The work was stopped. The record says so, and everything finished is on disk.
    """
    world, made = World.current(), not folder.exists()
    try:
        with ExitStack() as lock:
            execution = _open_together(world, lock, run, folder, resume, overwrite)
            if execution.complete:
                yield execution
            else:
                with _watched(execution):
                    yield execution
    finally:
        if made and world.rank == 0 and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # a start that was refused leaves nothing behind


def read_results(folder: Path) -> tuple[Run, dict[str, Tensor]]:
    """The record and the tensors of a finished run.

    Raises:
        ValueError: Not a run folder, not finished, or a file in it is damaged or of another run.
    """
    run = Run.read(folder)
    if run.status != "complete":
        raise ValueError(
            f"`{folder}` must be a finished run, got one that is {run.status} after {run.done} of {run.rows} "
            "rows; continue it with --resume."
        )
    try:
        found = read_tensors(folder / TENSORS)
    except FileNotFoundError as error:
        raise ValueError(f"`{folder}` must hold {TENSORS}, got none; repeat the run.") from error
    if found.about.get("fingerprint") != run.hashes.fingerprint:
        raise ValueError(
            f"`{folder / TENSORS}` must belong to the run in {RECORD}, got one of other settings, models or "
            "data; repeat the run."
        )
    return run, found.tensors


def in_pages(
    execution: Execution,
    total: int,
    size: int,
    compute: Callable[[int, int], Page],
    tell: Callable[[int, Mapping[str, Tensor]], None] | None = None,
) -> tuple[dict[str, Tensor], float]:
    """All rows, page after page of `size` rows, each computed once and kept.

    Pages are the same however often the run was stopped and however many processes share them, so that the
    result is the same to the bit.

    Args:
        execution: The open run.
        total: How many rows there are.
        size: Rows per page.
        compute: Gives the page of rows [start, stop).
        tell: Called with the number of rows done and the tensors of the page, kept or new.

    Returns:
        The tensors of all rows, in order, and the seconds of all pages.
    """
    spans = [(start, min(start + size, total)) for start in range(0, total, size)]
    keys, store = [f"rows {start} to {stop}" for start, stop in spans], execution.store

    def page_of(number: int) -> Page:
        page = store.get(keys[number])
        if page is None:
            page = compute(*spans[number])
            store.put(keys[number], page)
        return page

    try:
        for number in store.share(len(spans)):
            page = page_of(number)
            if tell is not None:
                tell(spans[number][1], page.tensors)
    except BaseException:
        there = zip(keys, spans, strict=True)
        done = sum(stop - start for key, (start, stop) in there if store.get(key) is not None)
        execution.run = execution.run.but(done=done)
        raise
    store.gather(None)
    # Read back: what was deleted or damaged since is computed again, so that no row can be missing.
    pages = [page_of(number) for number in range(len(spans))]
    seconds = sum(page.seconds for page in pages)
    return _joined([page.tensors for page in pages]), seconds


def _joined(parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: torch.cat([part[name] for part in parts], dim=1 if name.startswith(_HISTORY) else 0)
        for name in parts[0]
    }


def _open_together(
    world: World, lock: ExitStack, run: Run, folder: Path, resume: bool, overwrite: bool
) -> Execution:
    """The run as process 0 finds it, which locks the folder for all; a refusal reaches every process."""

    def first() -> Execution | None:
        if world.rank:
            return None
        lock.enter_context(locked(folder))
        return _open(run, folder, resume, overwrite)

    execution = world.agree(first)
    opened = execution and (execution.run, execution.resumed)
    found, others = world.gather(opened)[0], world.gather(run.hashes)
    strangers = [rank for rank, hashes in enumerate(others) if hashes != others[0]]
    if strangers:
        raise ValueError(
            "`saddlepoint` must have the same settings, models and data in all processes, got others in "
            f"process {strangers[0]} than in process 0; give all machines the same files."
        )
    assert found is not None  # process 0 has opened it
    return execution or Execution(found[0], folder, Store(folder, run.hashes.fingerprint), found[1])


def _open(run: Run, folder: Path, resume: bool, overwrite: bool) -> Execution:
    """What is in the folder, continued, replaced or refused."""
    store = Store(folder, run.hashes.fingerprint)
    store.check()
    for name in run.files:
        remove_unfinished(folder / name)
    if not (folder / RECORD).is_file():
        foreign = [name for name in run.files if (folder / name).exists()]
        if foreign:
            raise ValueError(
                f"`--out` must not hold files that a run would write over, got {foreign[0]!r} in "
                f"{str(folder)!r} and no {RECORD}; choose another folder."
            )
        return Execution(run, folder, store, resumed=False)
    if resume:
        old = Run.read(folder)
        _check_same(old, run, folder)
        _check_results(old, folder)
        changed = _other_versions(old, run)
        if old.status == "complete":
            store.clear()  # a process that was killed after its last word may have left some
            return Execution(old, folder, store, resumed=True)
        same = run.but(
            created=old.created,
            done=old.done,
            seconds=old.seconds,
            metrics={**old.metrics, **run.metrics},
            warnings=(*run.warnings, *changed),
        )
        return Execution(same, folder, store, resumed=True)
    if not overwrite:
        raise ValueError(
            f"`--out` must not hold a run yet, got {str(folder)!r}; add --resume to continue it, "
            "--overwrite to replace it, or choose another folder."
        )
    old = Run.read(folder)
    for name in old.files:
        (folder / name).unlink(missing_ok=True)
    store.clear()
    return Execution(run, folder, store, resumed=False)


def _check_results(old: Run, folder: Path) -> None:
    """A complete run whose results are damaged is not complete."""
    if old.status == "complete" and TENSORS in old.files:
        try:
            read_results(folder)
        except DamagedFileError as error:
            raise ValueError(f"{error} Repeat the run with --overwrite.") from error


def _check_same(old: Run, new: Run, folder: Path) -> None:
    """Refuse to continue a run of another kind, other settings, models or data."""
    what, got = "", ""
    names = sorted(set(old.hashes.models) | set(new.hashes.models))
    other = [n for n in names if old.hashes.models.get(n) != new.hashes.models.get(n)]
    unknown = [n for n in names if not new.hashes.models.get(n)]
    if old.kind != new.kind:
        what, got = "kind of run", f"{new.kind} for a run of kind {old.kind}"
    elif old.hashes.settings != new.hashes.settings:
        there, here = old.settings, new.settings
        differing = [k for k in sorted({*there, *here}) if there.get(k) != here.get(k)]
        shown = [f"{k}: {there.get(k)} there, {here.get(k)} here" for k in differing]
        what, got = "configuration", "; ".join(shown) or "other settings"
    elif old.hashes.data != new.hashes.data:
        what, got = "data", "images or labels with another hash"
    elif unknown:
        what = "models"
        got = f"{', '.join(unknown)}, of which nobody can say whether it has changed"
    elif other:
        what, got = "models", f"other parameters or code for {', '.join(other)}"
    if what:
        raise ValueError(
            f"`--resume` must continue with the same {what} as the run in {folder}, got {got}; choose another "
            "--out."
        )


def _other_versions(old: Run, new: Run) -> tuple[str, ...]:
    """A remark where the first rows were made by other versions: they may round differently."""
    pairs = [(name, old.versions.get(name), now) for name, now in new.versions.items()]
    changed = [f"{name} {then} and {now}" for name, then, now in pairs if then != now]
    return (f"the run was continued with other versions: {', '.join(changed)}.",) if changed else ()


@contextmanager
def _watched(execution: Execution) -> Iterator[None]:
    """Keeps the record true while the work goes on."""
    with stop_on_signals():
        try:
            execution.update(status="running")
            yield
        except KeyboardInterrupt as stop:
            if threading.current_thread() is threading.main_thread():
                # A second Ctrl-C does not keep the record from being written; the handler is restored below.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not execution.complete:
                execution.update(status="interrupted", seconds=execution.seconds())
            raise RunInterrupted(execution.run, execution.folder) from stop
        except BaseException:
            # What is complete on disk stays so, whatever happens while its pages are removed.
            if execution.world.rank or execution.complete:
                raise
            results = [name for name in execution.run.files if name != RECORD]
            if execution.store.any() or any((execution.folder / name).exists() for name in results):
                execution.update(status="failed", seconds=execution.seconds())
            else:
                (execution.folder / RECORD).unlink(missing_ok=True)
            raise
