"""Batches of an evaluation: kept when they are finished, counted against a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from saddlepoint.evaluation.attacks import OutOfTimeError

__all__ = ["Ledger", "Page", "Part", "Stage", "Status", "batches_of", "part_of"]

Status = Literal["complete", "cut short", "failed", "not needed"]
_CLOCK = 1e-6  # seconds that sums of times may be off by


@final
@dataclass(frozen=True)
class Page:
    """What one batch of one attack gave: tensors by name, and the seconds it took."""

    tensors: Mapping[str, Tensor]
    seconds: float


class Ledger(Protocol):
    """Where finished batches are kept; a folder on disk makes an evaluation resumable.

    A ledger belongs to one evaluation: a page is taken for what its key says if it is about the same images.
    Models, radii, seeds and numbers of steps are not compared.
    """

    def get(self, key: str) -> Page | None:
        """What was kept under the key, or None."""
        ...

    def put(self, key: str, page: Page) -> None:
        """Keep it, whole or not at all."""
        ...


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


def part_of(ledger: Ledger | None, prefix: str) -> Ledger | None:
    """A part of a ledger, if there is one."""
    return None if ledger is None else Part(ledger, prefix)


@final
@dataclass
class Stage:
    """One attack under one threat: its batches are run one by one until its time is over or it fails.

    Args:
        ledger: Keeps batches.
        budget: Seconds for all batches together.

    Attributes:
        seconds: Spent so far, also by batches that were kept.
        queries: Images shown to the model so far.
        status: "complete" until something stops it.
        error: What it raised, if it failed.

    Example:
        >>> stage = Stage(None, None)
        >>> page = stage.page("linf/pgd/0/0", torch.tensor([3]), lambda deadline: {"found": torch.ones(1)})
        >>> stage.status, page.tensors["found"]
        ('complete', tensor([1.]))
    """

    ledger: Ledger | None
    budget: float | None
    seconds: float = field(default=0.0, init=False)
    queries: int = field(default=0, init=False)
    status: Status = field(default="complete", init=False)
    error: Exception | None = field(default=None, init=False)

    def page(
        self, key: str, rows: Tensor, run: Callable[[float | None], Mapping[str, Tensor]]
    ) -> Page | None:
        """A batch, kept or run now.

        Args:
            key: Its name in the ledger.
            rows: Its images, (n,). What is kept about others is not used.
            run: Gives its tensors, or raises. It is told when its time is over, on the clock `time.monotonic`.

        Returns:
            What it gave; None if it was stopped, and then `status` says why.
        """
        page = self._kept(key, rows)
        if page is None:
            try:
                page = self._run(rows, run)
            except Exception as error:  # other libraries may raise anything
                self.status, self.error = "failed", error
                return None
            if self.ledger is not None:
                self.ledger.put(key, page)
        self.seconds += page.seconds
        self.queries += int(page.tensors["queries"])
        if not bool(page.tensors["finished"]):
            self.status = "cut short"
            return None
        return page

    def cut_short(self, done: int, total: int, again: str = "") -> str:
        """That the time was over, and how far it got."""
        return f"cut short by the budget of {self.budget:g} s ({done} of {total} images attacked{again})"

    def _run(self, rows: Tensor, run: Callable[[float | None], Mapping[str, Tensor]]) -> Page:
        began = time.monotonic()
        tensors = {"rows": rows.clone(), "queries": torch.tensor(0), "finished": torch.tensor(True)}
        deadline = None if self.budget is None else began + self.budget - self.seconds
        try:
            if deadline is not None and deadline <= began:
                raise OutOfTimeError
            tensors |= run(deadline)
        except OutOfTimeError as stop:
            tensors |= {
                "queries": torch.tensor(stop.queries),
                "finished": torch.tensor(False),
            }
        return Page(tensors, time.monotonic() - began)

    def _kept(self, key: str, rows: Tensor) -> Page | None:
        """What the ledger has of a batch, if it is about the same images and there is no time to go on."""
        page = None if self.ledger is None else self.ledger.get(key)
        if page is None or not {"rows", "finished", "queries"} <= set(page.tensors):
            return None
        if not torch.equal(page.tensors["rows"], rows):
            return None
        enough = self.budget is None or self.seconds + page.seconds < self.budget - _CLOCK
        return None if enough and not bool(page.tensors["finished"]) else page


def batches_of(rows: Tensor, size: int) -> tuple[Tensor, ...]:
    """Rows in batches; none if there are no rows.

    Example:
        >>> [batch.tolist() for batch in batches_of(torch.arange(5), 2)], batches_of(torch.arange(0), 2)
        ([[0, 1], [2, 3], [4]], ())
    """
    return tuple(rows.split(size)) if len(rows) else ()
