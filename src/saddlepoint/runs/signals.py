"""Signals that ask a process to end: a run stops as after Ctrl-C, with its record written."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.runs.record import Run

__all__ = ["RunInterrupted", "end_undisturbed", "stop_on_signals", "unheard"]

_heard: tuple[int, ...] = ()  # by the outermost block of `stop_on_signals`


class RunInterrupted(KeyboardInterrupt):
    """The run was stopped by Ctrl-C or a signal; `run` is its record so far, in `folder`."""

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(f"stopped after {run.done} of {run.rows} rows")
        self.run = run
        self.folder = folder


def unheard(number: int, frame: FrameType | None) -> None:
    """Handles a signal by doing nothing.

    Unlike SIG_IGN no process that is started meanwhile inherits it, and Python does not complain of a signal
    that came just before it was set.
    """
    del number, frame


def end_undisturbed() -> None:
    """The work has been stopped, or has failed: no signal takes from what is left to write and to say of it.

    Until the outermost block of `stop_on_signals` has been left, which restores what was. After it a command
    that was stopped has only to exit: Ctrl-C is ignored for good, by the system, since Python gives up handlers
    of its own before it has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _heard:
        signal.signal(number, unheard)
    if not _heard:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise KeyboardInterrupt, so that the work ends as after Ctrl-C.

    A signal that the process was started to ignore, as SIGHUP under nohup, stays ignored.
    Once is enough: further ones are ignored until the outermost of these blocks has been left.
    """
    global _heard
    if _heard or threading.current_thread() is not threading.main_thread():
        yield
        return
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        if isinstance(sys.exception(), KeyboardInterrupt):
            return  # after Ctrl-C the work is being stopped already
        # A second one must not interrupt the writing of the record.
        for each in numbers:
            signal.signal(each, unheard)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in (*numbers, signal.SIGINT)}
    for number in numbers:
        signal.signal(number, stop)
    _heard = tuple(before)
    try:
        yield
    finally:
        _heard = ()
        for number, handler in before.items():
            signal.signal(number, handler)
