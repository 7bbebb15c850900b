"""``python -m benchmarks.defence [--list | --render] [TABLE ...]``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stores import exit_with, nothing_in
from saddlepoint.runs.signals import stop_on_signals

from . import __doc__ as about
from .figures import draw
from .networks import KEPT
from .page import write
from .plan import TABLES
from .ship import ship
from .work import Part, Store, carry_out, lines

STORE, PAGE = Path("docs/results/defence.json"), Path("docs/RESULTS.md")
_NOTHING_MISSING = (
    "nothing of this is missing; another --store judges it again, and --networks with a folder that is empty "
    "trains it again, too"
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defence", description=about)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/defence"), help="folder of the runs"
    )
    parser.add_argument(
        "--networks",
        type=Path,
        default=KEPT,
        help="folder of trained networks that come with a checkout; those are not trained again",
    )
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--figures", type=Path, help="folder for figures, such as docs/figures")
    parser.add_argument(
        "--only",
        action="append",
        metavar="TABLE/ROW[/SEED]",
        help="these networks of the tables, in this order; may be given several times",
    )
    suites = sorted({suite for table in TABLES.values() for suite in table.suites})
    parser.add_argument(
        "--suite",
        action="append",
        choices=suites,
        help="these judges only; may be given several times",
    )
    parser.add_argument("--list", action="store_true", help="print the commands that are missing")
    parser.add_argument("--render", action="store_true", help="write the tables, run nothing")
    parser.add_argument(
        "--ship",
        action="append",
        default=[],
        help="NAME=TABLE/ROW/SEED comes with the package then",
    )
    options = parser.parse_args(words)
    unknown = [name for name in options.tables if name not in TABLES]
    if unknown:
        parser.error(f"`TABLE` must be one of {', '.join(TABLES)}, got {unknown[0]}")
    tables = [TABLES[name] for name in options.tables or TABLES]
    store, part = Store(options.store), Part(options.only, options.suite)
    try:
        list(part.trainings(tables))
    except ValueError as error:
        parser.error(str(error))
    if options.ship:
        for name, _, key in (text.partition("=") for text in options.ship):
            card = ship(name, key, store, options.runs, kept=options.networks)
            print(f"{name}: {card.robust}")
        return 0
    if options.list:
        found = list(lines(tables, store, options.runs, part, options.networks))
        if found:
            print(*found, sep="\n")
        else:
            print(_NOTHING_MISSING, file=sys.stderr)
        return 0
    if not options.render:
        if not options.tables:
            parser.error(f"name a table, such as small; all would take days: {', '.join(TABLES)}")
        # More threads than one change the bits of a training, and make such small networks no faster.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        try:
            with stop_on_signals():
                carry_out(tables, store, options.runs, part, options.networks)
        except subprocess.CalledProcessError as error:
            print(f"stopped with exit code {error.returncode}; the same line goes on from here")
            return 1
        except KeyboardInterrupt:
            print("stopped; the same line goes on from here")
            return 130
    if not store.networks:
        raise nothing_in(options.store)
    write(options.page, store.content)
    drawn = draw(store.content, options.figures) if options.figures else []
    print("wrote", *(str(file) for file in (options.page, *drawn)))
    return 0


if __name__ == "__main__":
    exit_with(main)
