"""Every run goes through here: open its folder, continue or refuse, keep what is done, finish.

A run folder is either complete, resumable or refused. Nothing in it is used that was written under other
settings, models or data, and nothing is deleted that we did not write.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint.evaluation import Page
from saddlepoint.files import read_tensors, remove_unfinished, write_tensors
from saddlepoint.runs.drawn import DRAWN, not_drawn
from saddlepoint.runs.metrics import Metrics
from saddlepoint.runs.reading import digest_of, finished
from saddlepoint.runs.record import EVALUATE, RECORD, ROW_NOUNS, SEEN, TENSORS, Run, Status
from saddlepoint.runs.refusals import (
    ANSWERS,
    check_foreign,
    check_free,
    check_same,
    check_same_answers,
    other_versions,
)
from saddlepoint.runs.signals import RunInterrupted, end_undisturbed, stop_on_signals
from saddlepoint.runs.store import Store, locked
from saddlepoint.training.checkpoints import read_epochs
from saddlepoint.training.distributed import World
from saddlepoint.training.session import CHECKPOINT

__all__ = ["VICTIMS", "Execution", "RunInterrupted", "in_pages", "opened", "saved_text"]

_ROWS = "rows {} to {}"  # the name of a page of rows
VICTIMS = "victims of rows {} to {}"
"""The name of a page of what victims say to the perturbations of rows."""
_HISTORY = "history."  # these tensors have the steps as first axis and the rows as second


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
        answers: What the models say to some images, kept until the run goes on, and in its results; None if
            nobody asked.
    """

    run: Run
    folder: Path
    store: Store
    resumed: bool
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    answers: Tensor | None = None

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
        return round(self.store.seconds() or self.run.seconds + time.monotonic() - self.began, 3)

    def said(self) -> tuple[str, ...]:
        """What this process knows of what the library had to say, in all parts of the run."""
        damaged = (f"the page {n} was damaged and was computed again." for n in self.store.damaged)
        return tuple(dict.fromkeys((*self.run.warnings, *self.notes, *damaged)))

    def update(self, **changes: Any) -> Run:
        """Change the record, in the folder too."""
        new = self.run.but(**changes)
        if self.world.rank == 0:
            new.write(self.folder)
        self.run = new  # not before it is on disk: what could not be written is not so
        return self.run

    def finish(
        self,
        metrics: Metrics | None,
        tensors: Mapping[str, Tensor] | None = None,
        *,
        seconds: float,
    ) -> Run:
        """Write results and the complete record, in this order; only process 0 has to know the metrics."""
        # What any process had to say is said once. From here on none of them needs the pages.
        said = dict.fromkeys(line for own in self.world.gather(self.said()) for line in own)
        about: dict[str, Any] = {}
        if self.world.rank == 0:
            if tensors is not None:
                asked = {} if self.answers is None else {ANSWERS: self.answers}
                write_tensors(self.folder / TENSORS, {**tensors, **asked})
            there = [self.folder / name for name in self.run.results]
            about["digests"] = {path.name: digest_of(path) for path in there if path.is_file()}
        if metrics is not None:
            about["metrics"] = metrics.noted(self.run).metrics
        about |= {"done": self.run.rows, "seconds": round(seconds, 3), "warnings": tuple(said)}
        self.update(status="complete", **about)
        if self.world.rank == 0:
            self.store.clear()
        self.world.wait()  # whoever goes on finds the record complete
        return self.run


@contextmanager
def opened(
    run: Run,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    ask: Callable[[], Tensor | None] | None = None,
) -> Iterator[Execution]:
    """Open a run folder for this run, and leave it complete or resumable, whatever happens within.

    Within, this process alone writes into the folder, and SIGTERM and SIGHUP stop the work as Ctrl-C does.
    Where `torch.distributed` has been initialised all processes call this together, and process 0 writes.

    Args:
        run: The new record.
        folder: Where it goes; made if it is not there.
        resume: Continue the run in the folder, if there is one.
        overwrite: Replace the run in the folder, if there is one.
        ask: What the models say to some images (`refusals.answers`); it must be what they said before, also
            where the run is complete.

    Yields:
        The execution. If it is `complete` already there is nothing to do; otherwise call `finish` in the end.

    Raises:
        ValueError: The folder is in use, holds another run, or files that are not ours.
        RunInterrupted: The work was stopped. The record says so, and everything finished is on disk.
    """
    world, made = World.current(), not folder.exists()
    try:
        with ExitStack() as lock:
            execution = _open_together(world, lock, run, folder, resume, overwrite, ask)
            if execution.complete:
                yield execution
            else:
                with _watched(execution):
                    yield execution
    finally:
        if made and world.rank == 0 and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # a start that was refused leaves nothing behind


def in_pages(
    execution: Execution,
    total: int,
    size: int,
    compute: Callable[[int, int], Page],
    tell: Callable[[int, Mapping[str, Tensor]], None] | None = None,
    *,
    name: str = _ROWS,
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
        name: Of a page, with its first row and the one after its last.

    Returns:
        The tensors of all rows, in order, and the seconds of all pages.
    """
    spans = [(start, min(start + size, total)) for start in range(0, total, size)]
    keys, store = [name.format(*span) for span in spans], execution.store

    def page_of(number: int) -> Page:
        page = store.get(keys[number])
        if page is None:
            page = compute(*spans[number])
            store.put(keys[number], page)
        return page

    for number in store.share(len(spans)):
        page = page_of(number)
        if tell is not None:
            tell(spans[number][1], page.tensors)
    store.gather(None)
    # Read back: what was deleted or damaged since is computed again, so that no row can be missing.
    pages = [page_of(number) for number in range(len(spans))]
    seconds = sum(page.seconds for page in pages)
    return _joined([page.tensors for page in pages]), seconds


def saved_text(run: Run, folder: Path) -> str:
    """How much of a run is on disk, in words."""
    if run.kind == EVALUATE:
        return f"{len(Store(folder, run.hashes.fingerprint))} finished batches"
    return f"{_done(run, folder)} of {run.rows} {ROW_NOUNS.get(run.kind, 'images')}"


def _done(run: Run, folder: Path) -> int:
    """How many rows, or epochs of a training, are on disk: rows that are attacked, whatever is asked later."""
    if run.kind == "train":
        return read_epochs(folder / CHECKPOINT)
    names = Store(folder, run.hashes.fingerprint).names()
    spans = (re.fullmatch(_ROWS.format(r"(\d+)", r"(\d+)"), name) for name in names)
    return sum(int(found[2]) - int(found[1]) for found in spans if found)


def _joined(parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: torch.cat([part[name] for part in parts], dim=1 if name.startswith(_HISTORY) else 0)
        for name in parts[0]
    }


def _open_together(
    world: World,
    lock: ExitStack,
    run: Run,
    folder: Path,
    resume: bool,
    overwrite: bool,
    ask: Callable[[], Tensor | None] | None,
) -> Execution:
    """The run as process 0 finds it, which locks the folder for all; a refusal reaches every process."""

    def first() -> Execution | None:
        if world.rank:
            return None
        lock.enter_context(locked(folder))
        execution = _open(run, folder, resume, overwrite)
        if ask is not None:
            execution.answers = ask()
            check_same_answers(_kept_answers(execution), execution.answers, folder)
        return execution

    others = world.gather(run.hashes)  # before anything in the folder is replaced
    strangers = [rank for rank, hashes in enumerate(others) if hashes != others[0]]
    if strangers:
        raise ValueError(
            "`saddlepoint` must have the same settings, models and data in all processes, got others in "
            f"process {strangers[0]} than in process 0; give all machines the same files."
        )
    execution = world.agree(first)
    found = world.gather(execution and (execution.run, execution.resumed))[0]
    assert found is not None  # process 0 has opened it
    return execution or Execution(found[0], folder, Store(folder, run.hashes.fingerprint), found[1])


def _open(run: Run, folder: Path, resume: bool, overwrite: bool) -> Execution:
    """What is in the folder, continued, replaced or refused."""
    store = Store(folder, run.hashes.fingerprint)
    store.check()
    for name in run.files:
        remove_unfinished(folder / name)
    if not (folder / RECORD).is_file():
        check_foreign(run.files, folder)
        return Execution(run, folder, store, resumed=False)
    if resume:
        old = Run.read(folder)
        check_same(old, run, folder)
        if old.status == "complete":
            finished(folder)
            store.clear()  # a process that was killed after its last word may have left some
            return Execution(old, folder, store, resumed=True)
        check_foreign(old.drawn, folder)  # only what is complete is drawn
        same = run.but(
            created=old.created,
            asked={**run.asked, **old.asked},
            done=old.done,
            seconds=old.seconds,
            metrics={**old.metrics, **run.metrics},
            warnings=(*run.warnings, *old.warnings, *other_versions(old, run)),
        )
        return Execution(same, folder, store, resumed=True)
    check_free(folder, overwrite=overwrite)
    old = Run.read(folder)
    complete = old.status == "complete"  # only what is complete is drawn
    foreign = not_drawn(folder, old.drawn) if complete else old.drawn
    check_foreign(foreign, folder, early=complete and not (folder / DRAWN).exists())
    check_foreign([name for name in run.files if name not in old.files], folder)
    old.remove(folder)
    store.clear()
    return Execution(run, folder, store, resumed=False)


def _kept_answers(execution: Execution) -> Tensor | None:
    """What the models said when the run began, if it was kept: in the results, or until then in a page."""
    file = SEEN if execution.run.kind == "train" else TENSORS
    if execution.complete and file in execution.run.digests:
        return read_tensors(execution.folder / file).tensors.get(ANSWERS)
    return execution.store.kept_answers()


@contextmanager
def _watched(execution: Execution) -> Iterator[None]:
    """Keeps the record true while the work goes on."""
    with stop_on_signals():
        try:
            try:
                execution.update(status="running")
                execution.store.keep_answers(execution.answers)
                yield
            except BaseException:
                end_undisturbed()  # a signal that comes before it has stops the run, of whatever it was failing
                raise
        except KeyboardInterrupt as stop:
            end_undisturbed()
            if not execution.complete:
                _leave(execution, "interrupted")
            raise RunInterrupted(execution.run, execution.folder) from stop
        except BaseException:
            # What is complete on disk stays so, whatever happens while its pages are removed.
            if execution.world.rank or execution.complete:
                raise
            results = [name for name in execution.run.files if name != RECORD]
            if execution.store.any() or any((execution.folder / name).exists() for name in results):
                _leave(execution, "failed")
            else:
                (execution.folder / RECORD).unlink(missing_ok=True)
                execution.store.clear()
            raise


def _leave(execution: Execution, status: Status) -> None:
    with suppress(ValueError):  # a checkpoint that is damaged does not say what is done
        execution.run = execution.run.but(done=_done(execution.run, execution.folder))
    # The seconds first: they read all pages, of which there may be something to say.
    execution.update(status=status, seconds=execution.seconds(), warnings=execution.said())
