"""Run every benchmark and say which figures hold: ``python -m benchmarks [room ...]``."""

from __future__ import annotations

import importlib
import sys

import torch

ROOMS = ("projections", "solver", "training", "precision", "processes", "parity")
LONG = ("ceiling", "quick", "scores")
"""Take hours, so that they have to be named."""


def main(rooms: list[str]) -> int:
    known = (*ROOMS, *LONG)
    unknown = set(rooms) - set(known)
    if unknown:
        print(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        return 2
    failures = 0
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; every figure is a ratio in one run"
    )
    for room in rooms or ROOMS:
        for figure in importlib.import_module(f"benchmarks.{room}").figures():
            mark = "ok  " if figure.passed else "MISS"
            print(
                f"{mark} {figure.name:<60} {figure.value:8.3f}   wanted {figure.bound}", flush=True
            )
            failures += not figure.passed
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
