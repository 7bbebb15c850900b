"""What `keep_memory` brings, and the memory it costs: the same work in processes with and without it.

Every process has one thread, and runs the work once before it is measured. Times are those of the processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import saddlepoint as sp

from .timing import Figure, at_least, at_most, seconds

ROUNDS = 3


def figures() -> Iterator[Figure]:
    for name, least in (("attack", 0.95), ("evaluate", 0.95), ("train", 1.2)):
        gains, peaks = [], []
        for turn in range(ROUNDS):
            order = (False, True) if turn % 2 else (True, False)
            found = {kept: _child(name, kept) for kept in order}
            gains.append(found[False]["seconds"] / found[True]["seconds"])
            peaks.append(found[True]["peak"] / found[False]["peak"])
        told = _ABOUT[name]
        yield at_least(f"{told}: time, without `keep_memory` over with", gains, least)
        yield at_most(f"{told}: peak memory, with over without", peaks, 1.25)


def _child(name: str, kept: bool) -> dict[str, float]:
    environment = {key: value for key, value in os.environ.items() if "MALLOC_" not in key}
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.allocation", name, *(["kept"] if kept else [])],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(run.stderr)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def _attack() -> Callable[[], object]:
    x, y = sp.data.sample("mnist", 128)
    problem = sp.Ensemble([sp.models.load("mnist-b")], x, y)
    return lambda: sp.attack(problem, sp.linf(1e-3), steps=4, batch_size=128)


def _evaluate() -> Callable[[], object]:
    x, y = sp.data.sample("mnist", 32)
    model, threats = sp.models.load("mnist-ampgd"), {"linf": sp.linf(0.3)}
    return lambda: sp.robust_accuracy(model, x, y, threats, suite="quick")


def _train() -> Callable[[], object]:
    x, y = sp.data.sample("mnist", 128)
    model = sp.models.build("mnist_cnn_small", channels=1, size=28).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    threats = {"linf": sp.linf(0.3), "l2": sp.l2(2.0), "l1": sp.l1(10.0)}
    return lambda: sp.ampgd_step(model, optimizer, x, y, threats, steps=5, iteration=0)


_WORK = {"attack": _attack, "evaluate": _evaluate, "train": _train}
_ABOUT = {
    "attack": "attack on MNIST B, 128 images",
    "evaluate": "evaluation of mnist-ampgd, linf, 32 images",
    "train": "AMPGD step of mnist_cnn_small, 128 images, K = 3",
}


def _work(name: str, *words: str) -> None:
    """What each process does."""
    if words and not sp.keep_memory():
        raise SystemExit("memory must be kept here, which needs Linux with glibc.")
    torch.set_num_threads(1)
    run = _WORK[name]()
    run()
    spent = seconds(run, time.process_time)
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    print(json.dumps({"seconds": spent, "peak": peak}))


if __name__ == "__main__":
    _work(*sys.argv[1:])
