"""Batches of an evaluation: kept when they are finished, counted against a budget of time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, final, runtime_checkable

import torch
from torch import Tensor

from saddlepoint.display import Brief
from saddlepoint.evaluation.attacks import OutOfTimeError
from saddlepoint.evaluation.failures import OnFailure, reason

__all__ = [
    "Batch",
    "Ledger",
    "Page",
    "Part",
    "SharedLedger",
    "Stage",
    "Status",
    "batches_of",
    "gather_of",
    "part_of",
]

T = TypeVar("T")
Status = Literal["complete", "cut short", "failed", "not needed"]
_CLOCK = 1e-6  # seconds that sums of times may be off by


@final
@dataclass(frozen=True, repr=False)
class Page(Brief):
    """What one batch of one attack gave: tensors by name, and the seconds it took.

    Example:
        >>> Page({"broken": torch.tensor([True, False])}, seconds=0.5).seconds
        0.5
    """

    tensors: Mapping[str, Tensor]
    seconds: float


class Ledger(Protocol):
    """Where finished batches are kept; a folder on disk makes an evaluation resumable.

    A ledger belongs to one evaluation: a page is taken for what its key says if it is about the same images.
    Models, radii, seeds and numbers of steps are not compared.

    Example:
        >>> import saddlepoint as sp
        >>> class InMemory(dict):
        ...     put = dict.__setitem__  # `get` is that of a dictionary
        >>> ledger: sp.Ledger = InMemory()
        >>> ledger.put("linf/pgd/0", sp.Page({}, seconds=0.5))
        >>> ledger.get("linf/pgd/0").seconds, ledger.get("linf/pgd/1")
        (0.5, None)
    """

    def get(self, key: str) -> Page | None:
        """What was kept under the key, or None."""
        ...

    def put(self, key: str, page: Page) -> None:
        """Keep it, whole or not at all."""
        ...


@runtime_checkable
class SharedLedger(Ledger, Protocol):
    """A ledger that several processes fill, all of which go through the same evaluation together."""

    def share(self, count: int) -> range:
        """Of `count` batches, numbered from 0, those that this process runs: every so many-th of them."""
        ...

    def gather(self, value: T) -> list[T]:
        """What every process gives here, in their order; none goes on before all have come."""
        ...


@final
@dataclass(frozen=True)
class Batch:
    """One batch of one attack.

    Attributes:
        key: Its name in the ledger.
        rows: Its images, (n,). What is kept about others is not used.
        run: Gives its tensors, or raises. It is told when its time is over, on the clock `time.monotonic`.
    """

    key: str
    rows: Tensor
    run: Callable[[float | None], Mapping[str, Tensor]]


@final
@dataclass(frozen=True)
class Part:
    """A part of a ledger: all of its keys begin with a prefix.

    Example:
        >>> class Memory(dict):
        ...     def put(self, key, page):
        ...         self[key] = page
        >>> memory = Memory()
        >>> Part(memory, "model 1").put("linf/pgd/0/0", Page({}, 0.0))
        >>> list(memory)
        ['model 1/linf/pgd/0/0']
    """

    ledger: Ledger
    prefix: str

    def get(self, key: str) -> Page | None:
        """What was kept under the key, or None."""
        return self.ledger.get(f"{self.prefix}/{key}")

    def put(self, key: str, page: Page) -> None:
        """Keep it, whole or not at all."""
        self.ledger.put(f"{self.prefix}/{key}", page)


def gather_of(ledger: Ledger | None) -> Callable[[T], list[T]] | None:
    """How the processes that share a ledger learn what each of them has; None where there is but one."""
    return ledger.gather if isinstance(ledger, SharedLedger) else None


def part_of(ledger: Ledger | None, prefix: str) -> Ledger | None:
    """A part of a ledger, if there is one."""
    return None if ledger is None else Part(ledger, prefix)


@final
@dataclass
class Stage:
    """One attack under one threat: its batches are run one by one until its time is over or it fails.

    Args:
        ledger: Keeps batches. Where several processes share it, each runs its share first.
        budget: Seconds for all batches together, of all processes.
        on_failure: With "note" all processes end where the first batch failed; with "raise" a process whose
            batch fails does not wait for the others.

    Attributes:
        seconds: Spent so far, also by batches that were kept.
        queries: Images shown to the model so far.
        status: "complete" until something stops it.
        error: What it raised, if it failed in this process.
        why: The same in one line, whichever process it was.

    Example:
        >>> stage = Stage(None, None)
        >>> batch = Batch("linf/pgd/0/0", torch.tensor([3]), lambda deadline: {"found": torch.ones(1)})
        >>> [page.tensors["found"] for _, page in stage.pages([batch])], stage.status
        ([tensor([1.])], 'complete')
    """

    ledger: Ledger | None
    budget: float | None
    on_failure: OnFailure = "raise"
    seconds: float = field(default=0.0, init=False)
    queries: int = field(default=0, init=False)
    status: Status = field(default="complete", init=False)
    error: Exception | None = field(default=None, init=False)
    why: str = field(default="", init=False)

    def pages(
        self, batches: Sequence[Batch], tick: Callable[[int], None] = lambda _: None
    ) -> Iterator[tuple[Batch, Page]]:
        """Batches in order with what they gave, each kept or run now, until one is stopped; see `status`.

        Args:
            batches: Independent of each other.
            tick: Called before every batch with the number of images that are done, but not given out yet.
        """
        shared = _shared(self.ledger)
        failed = {} if shared is None else self._run_share(batches, shared, tick)
        for number, batch in enumerate(batches):
            if self.status != "complete":
                return
            tick(0)
            if number in failed:
                self.status, self.why = "failed", failed[number]
                return
            page = self._page(batch, final=shared is not None)
            if page is None:
                return
            yield batch, page

    def _run_share(
        self, batches: Sequence[Batch], shared: SharedLedger, tick: Callable[[int], None]
    ) -> dict[int, str]:
        """Run this process's batches, and wait for the others; which batches failed, and why."""
        mine = shared.share(len(batches))
        own = Stage(self.ledger, None)
        if self.budget is not None:
            own.budget = (self.budget - self.seconds) / mine.step
        failed, done = {}, 0
        for number in mine:
            tick(done)
            if own._page(batches[number]) is None:
                if own.error is not None:
                    failed[number] = own.why
                break
            done += len(batches[number].rows)
        if failed and self.on_failure == "raise":
            self.status, self.error, self.why = "failed", own.error, own.why
            return failed
        return {number: why for each in shared.gather(failed) for number, why in each.items()}

    def _page(self, batch: Batch, *, final: bool = False) -> Page | None:
        """A batch, kept or run now; None if it was stopped. What is kept is not continued if it is `final`."""
        page = self._kept(batch, final)
        if page is None:
            try:
                page = self._run(batch, None if final else self.budget)
            except Exception as error:  # other libraries may raise anything
                self.status, self.error, self.why = "failed", error, reason(error)
                return None
            if self.ledger is not None:
                self.ledger.put(batch.key, page)
        self.seconds += page.seconds
        self.queries += int(page.tensors["queries"])
        if not bool(page.tensors["finished"]):
            self.status = "cut short"
            return None
        return page

    def cut_short(self, done: int, total: int, again: str = "") -> str:
        """That the time was over, and how far it got."""
        return f"cut short by the budget of {self.budget:g} s ({done} of {total} images attacked{again})"

    def _run(self, batch: Batch, budget: float | None) -> Page:
        began = time.monotonic()
        tensors = {"rows": batch.rows.clone(), "queries": torch.tensor(0)}
        tensors["finished"] = torch.tensor(True)
        deadline = None if budget is None else began + budget - self.seconds
        try:
            if deadline is not None and deadline <= began:
                raise OutOfTimeError
            tensors |= batch.run(deadline)
        except OutOfTimeError as stop:
            tensors |= {
                "queries": torch.tensor(stop.queries),
                "finished": torch.tensor(False),
            }
        return Page(tensors, time.monotonic() - began)

    def _kept(self, batch: Batch, final: bool) -> Page | None:
        """What the ledger has of a batch, if it is about the same images and there is no time to go on."""
        page = None if self.ledger is None else self.ledger.get(batch.key)
        if page is None or not {"rows", "finished", "queries"} <= set(page.tensors):
            return None
        if not torch.equal(page.tensors["rows"], batch.rows):
            return None
        enough = self.budget is None or self.seconds + page.seconds < self.budget - _CLOCK
        return None if enough and not final and not bool(page.tensors["finished"]) else page


def _shared(ledger: Ledger | None) -> SharedLedger | None:
    """The ledger, or that of which it is a part, if several processes fill it."""
    while isinstance(ledger, Part):
        ledger = ledger.ledger
    if isinstance(ledger, SharedLedger) and ledger.share(0).step > 1:
        return ledger
    return None


def batches_of(rows: Tensor, size: int, *, even: bool = False) -> tuple[Tensor, ...]:
    """Rows in batches; none if there are no rows.

    Args:
        rows: (n,).
        size: The most in a batch.
        even: Whether batches are as large as each other, and an even number of them if there are several: two
            processes, or four, are done at the same time. They are the same for any number of processes.

    Example:
        >>> [batch.tolist() for batch in batches_of(torch.arange(5), 2)], batches_of(torch.arange(0), 2)
        ([[0, 1], [2, 3], [4]], ())
        >>> [len(batch) for batch in batches_of(torch.arange(279), 64, even=True)]
        [47, 47, 47, 46, 46, 46]
    """
    if not len(rows):
        return ()
    count = math.ceil(len(rows) / size)
    if not even or count == 1:
        return tuple(rows.split(size))
    return tuple(rows.tensor_split(min(count + count % 2, len(rows))))
