"""Runs under torchrun: join the other processes, and say so where one of them is lost."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from saddlepoint.runs.signals import unheard

from .errors import LibraryError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["first", "joined", "launcher", "processes", "together"]


@contextmanager
def joined() -> Iterator[int]:
    """Within, the processes that torchrun started work together; yields the number of this one.

    Without torchrun there is one process, number 0. The backend is nccl where every process, on every machine,
    has a GPU of its own, else gloo. Only process 0 shows progress and results; errors come from every process
    that has one.
    """
    if processes() == 1:
        yield 0
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    local = int(os.environ.get("LOCAL_RANK", "0"))
    # Shares of the work may take hours longer in one process than in another. A process that has died is
    # noticed at once all the same: its connections are closed.
    patience = timedelta(days=7)
    store, rank, size = next(rendezvous("env://", timeout=patience))
    gpu = _all_have(store, rank, size, torch.cuda.device_count() > local)
    if gpu:
        torch.cuda.set_device(local)
    met = {"store": store, "rank": rank, "world_size": size}
    dist.init_process_group("nccl" if gpu else "gloo", timeout=patience, **met)
    try:
        yield rank
    except ConnectionError as error:  # says which process has lost which
        raise LibraryError(str(error)) from error
    finally:
        if sys.exc_info()[0] is None:  # waiting for a lost process would take forever
            dist.destroy_process_group()


def _all_have(store: "Store", rank: int, size: int, has: bool) -> bool:
    """Whether all processes have what this one says it has: the same answer in each of them."""
    store.set(f"gpu of {rank}", str(int(has)))
    return all(store.get(f"gpu of {other}") == b"1" for other in range(size))  # waits for it


def processes() -> int:
    """How many processes torchrun has started, on all machines; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def launcher() -> str:
    """What a line that is started as this process was has before "saddlepoint": words of torchrun, or nothing.

    Of several machines each has options of its own, which only their user knows.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or processes() == 1:
        return ""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes()))
    nodes = processes() // local
    return f"torchrun {f'--nnodes {nodes} ' if nodes > 1 else ''}--nproc-per-node {local} -m "


def first() -> bool:
    """Whether this process is the one that speaks, before they have met."""
    return processes() == 1 or os.environ["RANK"] == "0"


def together(jobs: int, line: str, again: str) -> int:
    """Run a command with so many processes on this machine, which share its work as under torchrun.

    Every Ctrl-C is passed on to them; they write what they have, and process 0 says how to go on. If one fails,
    the others are told to stop.

    Args:
        jobs: How many.
        line: The command, beginning with "saddlepoint".
        again: The one that continues it.

    Returns:
        The highest exit code; 1 if a process was killed, 130 after a Ctrl-C.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // jobs))
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(jobs), "OMP_NUM_THREADS": threads}
    command = [sys.executable, "-m", "saddlepoint", *shlex.split(line)[1:]]
    children: list[subprocess.Popen[bytes]] = []
    with _passing_on(children) as stops:
        for rank in range(jobs):
            if not stops:
                # Sessions of their own: a Ctrl-C in the terminal reaches this process only.
                own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                children.append(subprocess.Popen(command, env=own, start_new_session=True))
        told = bool(stops) and _tell(children)  # the last one may have been too young to be told
        while any(child.poll() is None for child in children):
            if not told and any(child.poll() for child in children):
                told = _tell(children)
            time.sleep(0.1)
    # A process that was stopped before it could listen was ended by the signal.
    codes = [130 if (code := child.wait()) == -signal.SIGINT else code for child in children]
    killed = [rank for rank, code in enumerate(codes) if code < 0]
    for rank in killed:
        print(
            f"process {rank} was ended by signal {-codes[rank]} (out of memory?); continue with: {again}",
            file=sys.stderr,
        )
    if stops and (any(codes) or len(codes) < jobs):
        return 130
    return 1 if killed else max(codes)


@contextmanager
def _passing_on(children: list[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Within, Ctrl-C, SIGTERM and SIGHUP go to the children that are there, and into the list it yields.

    The children hear SIGINT, by which they are told, even where this process was started to ignore it, as a
    job in the background of a script is: what is ignored is inherited, and a handler is not.
    """
    stops: list[int] = []

    def pass_on(number: int, _: object) -> None:
        stops.append(number)
        _tell(children)

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in (signal.Signals[n] for n in names)}
    before = {number: known for number, known in handlers.items() if known is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, pass_on)
    if handlers[signal.SIGINT] is signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, unheard)
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(children: list[subprocess.Popen[bytes]]) -> bool:
    """Interrupt those that are still at work."""
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
    return True
