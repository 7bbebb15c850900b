"""Run every benchmark and say which figures hold: ``python -m benchmarks [room ...] [--store [FILE]]``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

import torch

from .kept import FILE, keep, read
from .peers import machine
from .peers.cells import Store
from .stores import exit_with
from .timing import Figure, SkippedError

ROOMS = (
    "projections",
    "overheads",
    "image_gradients",
    "solver",
    "training",
    "allocation",
    "precision",
    "processes",
)
LONG = ("ceiling", "quick", "scores", "transfer")
"""Take hours, so that they have to be named."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "rooms",
        nargs="*",
        metavar="room",
        help=f"{', '.join(ROOMS)}: all of these if none is named; {', '.join(LONG)}: take hours and run only "
        "if they are named",
    )
    parser.add_argument(
        "--store",
        type=Path,
        nargs="?",
        const=FILE,
        help=f"keep the figures in this file, by default {FILE}; of that one docs/BENCHMARKS.md is written "
        "anew",
    )
    parser.add_argument(
        "--codes",
        action="store_true",
        help="print the digests of the present code, measure nothing",
    )
    options = parser.parse_args(words)
    if options.codes:
        print("digests of the present code, as stores and pages name it, and what is stored of it:")
        for name, code in machine.codes((*ROOMS, "ceiling", "one_domain", "quick")).items():
            print(f"{name:<15} {code}  {_stored(name, code)}")
        return 0
    rooms: list[str] = options.rooms
    known = (*ROOMS, *LONG)
    unknown = set(rooms) - set(known)
    if unknown:
        print(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        return 2
    if options.store is not None:
        read(options.store)  # refuses what is damaged before anything is measured
    failures = 0
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads; every figure is a ratio in one run")
    for room in rooms or ROOMS:
        load, others = round(os.getloadavg()[0], 2), machine.others()
        print(f"{room}: {load} processes wanted a core in the last minute; {machine.said(others)}")
        try:
            found = _measured(room)
        except SkippedError as why:
            print(f"skipped: {why}")
            continue
        if not found:
            print(f"{room}: nothing was measured or stored")
        elif options.store is not None:
            keep(options.store, room, found, load, threads, others)
        failures += not found or not all(figure.passed for figure in found)
    if options.store == FILE:
        importlib.import_module("benchmarks.peers.__main__").main(["--render"])
    return 1 if failures else 0


def _measured(room: str) -> list[Figure]:
    """The figures of a room, each printed as soon as it is there."""
    found = []
    for figure in importlib.import_module(f"benchmarks.{room}").figures():
        found.append(figure)
        mark = "ok  " if figure.passed else "MISS"
        rounds = (
            "" if figure.rounds is None else "   rounds {:.3f} to {:.3f}".format(*figure.rounds)
        )
        print(
            f"{mark} {figure.name:<60} {figure.value:8.3f}   wanted {figure.bound}{rounds}",
            flush=True,
        )
    return found


def _stored(name: str, code: str) -> str:
    """How many tables of a store, or whether the figures of a room, are of a code."""
    if name in ROOMS:
        content = read(FILE)
        if name not in content:
            return "nothing stored"
        return "stored" if content[name]["code"] == code else "stored of another code"
    cases = Store(FILE.with_name(f"{name.replace('_', '-')}.json")).content["cases"]
    made = [case["settings"].get("code") == code for case in cases.values()]
    return f"{sum(made)} of {len(made)} stored tables"


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
