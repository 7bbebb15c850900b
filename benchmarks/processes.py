"""Two processes over one: how much sooner the same folder is finished, without the time that imports take.

Every process has one thread, so that two of them have two cores and one has one. The clock is that of process 0
from the command's first instruction to its last: what every process repeats (reading models and images, hashing
them, what torch sets up at its first gradient), what process 0 does alone (tensors, record, page), and waiting
for each other are all part of it. Both commands are of 1,024 images in batches of 64, and the evaluation is the
whole of suite "quick": its later attacks have fewer images, in batches that may not divide evenly.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .timing import Figure, at_least

DATA = ("--data", "mnist", "--batch-size", "64")
NETWORKS = ("--models", "A,C,D", "--eps", "0.1", "--limit", "1024")
THREAT = ("--threat", "linf:0.3", "--limit", "1024", "--no-doctor")
COMMANDS = {
    "attack": ("attack", "ensemble", *DATA, *NETWORKS),
    "evaluate": ("evaluate", "mnist-ampgd", *DATA, *THREAT),
}
ROUNDS = 3


def figures() -> Iterator[Figure]:
    for name in COMMANDS:
        ratios = []
        for turn in range(ROUNDS):
            counts = (1, 2) if turn % 2 else (2, 1)
            spent = {count: _seconds(name, count) for count in counts}
            ratios.append(spent[1] / spent[2])
        yield at_least(f"{name}: throughput of two processes over one", ratios, 1.8)


def _seconds(name: str, processes: int) -> float:
    """Seconds of one command in so many processes, as the first of them measures it."""
    launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.run(
            [sys.executable, "-m", *launcher, "-m", "benchmarks.processes", name, f"{folder}/out"],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if job.returncode:
        raise RuntimeError(job.stderr)
    return float(job.stdout)


def _work(name: str, folder: str) -> None:
    """What each process does: import, then run the command with a clock."""
    from saddlepoint import cli, report, runs, training  # noqa: F401  (so that they are imported now)

    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        cli.main([*COMMANDS[name], "--out", folder, "--quiet"])
    spent = time.perf_counter() - began
    if os.environ["RANK"] == "0":
        if runs.Run.read(Path(folder)).status != "complete":
            raise SystemExit(f"{name} must finish, got {folder} incomplete.")
        print(spent)


if __name__ == "__main__":
    _work(*sys.argv[1:])
