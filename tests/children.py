"""Child processes that run the command line: forked from a process that has imported everything once.

A new interpreter takes seconds to import torch. `Nursery` starts one, which imports the library and computes
nothing, and forks it for every command: a child is a process of its own, ready at once, and may be killed.
One serves all tests of a process (`shared`).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

__all__ = ["SHORT", "Child", "Nursery", "Started", "shared"]

SHORT = "import shortened; shortened.everything()\n"
"""A patch: suites of a few steps with a restart, experiments of a few steps with many pages."""

_PATIENCE = 300  # seconds after which what hangs is ended, on a machine that may be busy
_CHANGES = ("replace", "unlink", "rmdir")  # what changes the files of a run that is under way


class Child(NamedTuple):
    """How a child ended: its exit code (negative: the signal), what it printed, and its changes to the disk."""

    code: int
    out: str
    err: str
    changes: int


class Started:
    """A child under way, to be used as a `subprocess.Popen`."""

    def __init__(self, ask: Callable[[dict[str, Any]], Any], pid: int, files: tuple[Path, Path]):
        self._ask, self.pid, self._files = ask, pid, files
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code (negative: the signal); None while it runs."""
        if self.returncode is None:
            self.returncode = self._ask({"poll": self.pid})
        return self.returncode

    def said(self) -> str:
        """What it has printed so far."""
        return self._files[0].read_text(encoding="utf-8")

    def complained(self) -> str:
        """What it has written to the error stream so far."""
        return self._files[1].read_text(encoding="utf-8")

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait_until(self, there: Callable[[], bool]) -> None:
        """Go on when it has brought something about; it has to be at work, or to wait, until then."""
        deadline = time.monotonic() + _PATIENCE
        while not there():
            assert self.poll() is None, self.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        deadline = time.monotonic() + _PATIENCE
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return code

    def communicate(self) -> tuple[str, str]:
        """What it printed and complained of, when it has ended."""
        self.wait()
        return self.said(), self.complained()

    def kill(self) -> None:
        """End it, if it has not ended, and wait for that."""
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
        self.wait()


class Nursery:
    """Runs commands in forked children; a context, which ends with the process that forks them."""

    def __enter__(self) -> Nursery:
        self._scratch = tempfile.TemporaryDirectory()
        src = Path(__file__).parents[1] / "src"
        paths = [str(src), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
        self._scratch.cleanup()

    def run(
        self,
        *words: object,
        cwd: Path,
        processes: int = 1,
        die_at: int | None = None,
        patch: str = SHORT,
        end_others: bool = True,
    ) -> list[Child]:
        """Run one command of `saddlepoint` in one process, or in several that work together.

        Args:
            words: The command line.
            cwd: Where.
            processes: How many; more than one find each other as under torchrun.
            die_at: The first process kills itself just before its change to the disk of this number, from 1.
            patch: Python to run in every process before; the command is not run if it exits.
            end_others: Whether the end of a process that failed ends the others, as under torchrun.
        """
        wanted = {"words": [str(word) for word in words], "cwd": str(cwd), "processes": processes}
        wanted |= {"die_at": die_at, "patch": patch, "end_others": end_others}
        return [Child(**each) for each in self._ask(wanted)]

    def start(self, *words: object, cwd: Path, patch: str = "") -> Started:
        """Begin one command of `saddlepoint`, or Python of the test (`patch`) that exits, and go on."""
        folder = Path(tempfile.mkdtemp(dir=self._scratch.name))
        files = folder / "out", folder / "err"
        wanted: dict[str, Any] = {"start": [str(file) for file in files], "cwd": str(cwd)}
        wanted |= {"words": [str(word) for word in words], "patch": patch, "die_at": None}
        return Started(self._ask, self._ask(wanted), files)

    def _ask(self, wanted: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@functools.cache
def shared() -> Nursery:
    """The one of this process, which ends with it."""
    nursery = Nursery()
    atexit.register(nursery.__exit__)
    return nursery.__enter__()


def _serve(requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        wanted = json.loads(line)
        if "poll" in wanted:
            done, status = os.waitpid(wanted["poll"], os.WNOHANG)
            answer: Any = os.waitstatus_to_exitcode(status) if done else None
        elif "start" in wanted:
            answer = _begin(wanted)
        else:
            answer = _together(wanted)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _begin(wanted: dict[str, Any]) -> int:
    files = [os.open(file, os.O_WRONLY | os.O_CREAT) for file in (*wanted["start"], os.devnull)]
    pid = os.fork()
    if pid == 0:
        _child(wanted, files, {}, None)
    for file in files:
        os.close(file)
    return pid


def _together(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    count = wanted["processes"]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    files = [[os.memfd_create(name) for name in ("out", "err", "changes")] for _ in range(count)]
    pids: list[int] = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} | shared if count > 1 else {}
            _child(wanted, files[rank], own, wanted["die_at"] if rank == 0 else None)
        pids.append(pid)
    codes = _ends(pids, wanted["end_others"])
    texts = [[_text(file) for file in each] for each in files]
    return [
        {"code": code, "out": out, "err": err, "changes": len(changes)}
        for code, (out, err, changes) in zip(codes, texts, strict=True)
    ]


def _ends(pids: Sequence[int], end_others: bool) -> list[int]:
    """Exit codes, when all have ended."""
    codes: dict[int, int] = {}
    deadline, told = time.monotonic() + _PATIENCE, not end_others
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        late = time.monotonic() > deadline
        if late or (any(codes.values()) and not told):
            told = True
            for pid in set(pids) - set(codes):
                os.kill(pid, 9 if late else 15)
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def _child(
    wanted: dict[str, Any], files: Sequence[int], own: dict[str, str], die_at: int | None
) -> None:
    code = 99
    try:
        os.environ.update(own)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job ignores
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
        os.chdir(wanted["cwd"])
        sys.path.insert(0, wanted["cwd"])
        null = os.open(os.devnull, os.O_RDONLY)
        for file, target in zip((null, *files[:2]), (0, 1, 2), strict=True):
            os.dup2(file, target)
        _count_changes(files[2], die_at)

        from saddlepoint import cli

        try:
            exec(wanted["patch"], {})
            cli.main(wanted["words"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 98
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def _count_changes(file: int, die_at: int | None) -> None:
    count = 0

    def counting(change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == die_at:
                os.kill(os.getpid(), 9)
            os.write(file, b".")
            return change(*args, **kwargs)

        return counted

    for name in _CHANGES:
        setattr(os, name, counting(getattr(os, name)))


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _text(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(file) as stream:
        return stream.read()


def _import_all() -> None:
    import importlib

    for name in ("attack", "demo", "evaluate", "reproduce", "train", "runs_shown", "printing"):
        importlib.import_module(f"saddlepoint.cli.{name}")
    for name in ("data", "doctor", "experiments", "models", "report", "runs", "training"):
        importlib.import_module(f"saddlepoint.{name}")
    later = ["torch.distributed", "torch._dynamo"]  # the second by optimisers at their first step
    later += [
        "matplotlib.backends.backend_svg",
        "matplotlib.backends.backend_agg",
        "PIL.PngImagePlugin",
    ]
    later += ["rich.progress", "rich.table", "torch.utils.tensorboard"]
    for name in later:
        with suppress(ImportError):  # of an extra
            importlib.import_module(name)


if __name__ == "__main__":
    own_stdout = os.fdopen(os.dup(1), "w")
    _import_all()
    _serve(sys.stdin, own_stdout)
