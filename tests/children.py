"""Child processes that run the command line: forked from a process that has imported everything once.

A new interpreter takes seconds to import torch. `Nursery` starts one, which imports the library and computes
nothing, and forks it for every command: a child is a process of its own, ready at once, and may be killed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

__all__ = ["SHORT", "Child", "Nursery"]

SHORT = """
import math
from dataclasses import replace
from saddlepoint.evaluation import OurAttack, domains, suites
from saddlepoint.evaluation.ours import RandomSearch
from saddlepoint.experiments import catalogue, runner
from saddlepoint.losses import neg_cross_entropy

def named(suite, p):
    ours = OurAttack("attack-ce", neg_cross_entropy, steps=3), OurAttack("attack", steps=3)
    return (*ours, RandomSearch(queries=20)) if p == math.inf else ours

suites._named = named
OurAttack.calls = 2
domains.domains_unchecked.__kwdefaults__.update(steps=3, searches=2)
runner._CHUNK = 2

def quick(experiment):
    blocks = tuple(block.but(steps=2) for block in experiment.blocks)
    measured = tuple(replace(m, block=m.block.but(steps=12)) for m in experiment.measurements)
    return replace(experiment, blocks=blocks, measurements=measured)

catalogue.EXPERIMENTS = {name: quick(each) for name, each in catalogue.EXPERIMENTS.items()}
"""
"""A patch: suites of a few steps with a restart, experiments of a few steps with many pages."""

_CHANGES = ("replace", "unlink", "rmdir")  # what changes the files of a run that is under way


class Child(NamedTuple):
    """How a child ended: its exit code (negative: the signal), what it printed, and its changes to the disk."""

    code: int
    out: str
    err: str
    changes: int


class Nursery:
    """Runs commands in forked children; a context, which ends with the process that forks them."""

    def __enter__(self) -> Nursery:
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

    def run(
        self,
        *words: object,
        cwd: Path,
        processes: int = 1,
        die_at: int | None = None,
        patch: str = SHORT,
        end_others: bool = True,
        timeout: float = 300,
    ) -> list[Child]:
        """Run one command of `saddlepoint` in one process, or in several that work together.

        Args:
            words: The command line.
            cwd: Where.
            processes: How many; more than one find each other as under torchrun.
            die_at: The first process kills itself just before its change to the disk of this number, from 1.
            patch: Python to run in every process before; the command is not run if it exits.
            end_others: Whether the end of a process that failed ends the others, as under torchrun.
            timeout: Seconds after which all are killed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wanted = {"words": [str(word) for word in words], "cwd": str(cwd), "processes": processes}
        wanted |= {"die_at": die_at, "patch": patch, "timeout": timeout, "end_others": end_others}
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return [Child(**each) for each in json.loads(self._process.stdout.readline())]


def _serve(requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        answers.write(json.dumps(_together(json.loads(line))) + "\n")
        answers.flush()


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
    codes = _ends(pids, wanted["timeout"], wanted["end_others"])
    texts = [[_text(file) for file in each] for each in files]
    return [
        {"code": code, "out": out, "err": err, "changes": len(changes)}
        for code, (out, err, changes) in zip(codes, texts, strict=True)
    ]


def _ends(pids: Sequence[int], timeout: float, end_others: bool) -> list[int]:
    """Exit codes, when all have ended."""
    codes: dict[int, int] = {}
    deadline, told = time.monotonic() + timeout, not end_others
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

    for name in ("attack", "demo", "evaluate", "reproduce", "train", "folders", "show"):
        importlib.import_module(f"saddlepoint.cli.{name}")
    for name in ("data", "doctor", "experiments", "models", "report", "runs", "training"):
        importlib.import_module(f"saddlepoint.{name}")
    importlib.import_module("torch.distributed")
    importlib.import_module("torch._dynamo")  # what optimisers import at their first step


if __name__ == "__main__":
    own_stdout = os.fdopen(os.dup(1), "w")
    _import_all()
    _serve(sys.stdin, own_stdout)
