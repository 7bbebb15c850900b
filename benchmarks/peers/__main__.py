"""Measure, store and write the page: ``python -m benchmarks.peers --images 200``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import saddlepoint as sp
from benchmarks.kept import FILE
from benchmarks.stores import exit_with
from saddlepoint.files import write_atomically

from . import machine, projections
from .cases import CASES, THIRD_PARTY, Case
from .cells import Store
from .measure import attacked, parts
from .methods import METHODS, OURS, Method, missing
from .page import HEADINGS, render
from .sound import COMPARED


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    rooms = options.rooms.split(",")
    if set(rooms) - set(HEADINGS):
        print(f"`--rooms` must be among {','.join(HEADINGS)}, got {options.rooms}", file=sys.stderr)
        return 2
    if min(options.images, 1 if options.deep_images is None else options.deep_images) < 1:
        print("`--images` and `--deep-images` must be at least 1", file=sys.stderr)
        return 2
    store = Store(options.store, read_only=options.render, kind=COMPARED)
    if not options.render:
        torch.set_num_threads(options.threads)
        run = _Run(store, options)
        for case in CASES:
            if case.room in rooms and options.only in case.title:
                run.attacks(case)
        if "c" in rooms:
            run.projections(options.only)
        store.save()
    page = render(store.content, options.store.as_posix(), options.store.with_name(FILE.name))
    write_atomically(options.out, page.encode())
    print(f"wrote {options.out}")
    return 0


_ROOMS = """which, separated by commas: a, one perturbation against several models; b, one model; c,
projections; d, robust accuracy by quick and AutoAttack; all by default"""
_PAGE = "page to write; %(default)s by default, which is replaced"
_KEPT = "what is measured, kept from one call to the next; %(default)s by default"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--images", type=int, default=200, help="per table")
    parser.add_argument("--deep-images", type=int, help="with ResNet-18; a quarter by default")
    parser.add_argument("--evaluations", type=int, default=50, help="gradients, in rooms a and b")
    parser.add_argument("--rooms", default="a,b,c,d", help=_ROOMS)
    parser.add_argument("--only", default="", help="tables whose title has this text in it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/BENCHMARKS.md"), help=_PAGE)
    parser.add_argument("--store", type=Path, default=Path("docs/results/peers.json"), help=_KEPT)
    parser.add_argument("--render", action="store_true", help="write the page again, run nothing")
    return parser


def available(
    methods: Sequence[Method] | Sequence[projections.Projector],
) -> tuple[list[Any], dict[str, str]]:
    """Those whose library is there, and why the others are not."""
    reasons = {method.name: missing(method.library) for method in methods}
    return (
        [method for method in methods if reasons[method.name] is None],
        {name: why for name, why in reasons.items() if why is not None},
    )


class _Run:
    """What all cases of a run share."""

    def __init__(self, store: Store, options: argparse.Namespace) -> None:
        self.store = store
        self.options = options
        self.store.content.setdefault("skipped", {})
        self.shared = {
            "seed": options.seed,
            "threads": options.threads,
            "cpu": machine.cpu(),
            "code": machine.code(),
            "versions": machine.versions(),
        }

    def attacks(self, case: Case) -> None:
        if self._unusable(case):
            return
        options = self.options
        count = options.images
        if case.deep:
            count = options.deep_images or max(count // 4, 1)
        able = [each for each in METHODS[case.room] if case.ball.p in each.norms]
        methods, gone = available(able)
        shipped = {
            name: sp.models.card(name).sha256 for name in case.networks if name not in THIRD_PARTY
        }
        self.store.content["networks"].update(shipped)
        asked = 0 if case.room == "d" else options.evaluations
        settings = {**self.shared, "images": count, "evaluations": asked, "networks": shipped}
        done = self._open(case.key, settings, methods, gone, len(methods) * len(parts(count)))
        for name, cell in attacked(case, methods, count, asked, options.seed, set(done)):
            self.store.add(case.key, name, cell)
            print(
                f"{case.key}  {name}: {cell['fooled']} of {cell['images']}, "
                f"{cell['evaluations']:.1f} evaluations, {cell['seconds']:.1f} s",
                flush=True,
            )

    def projections(self, only: str) -> None:
        for key, data, p in projections.problems():
            if only not in key:
                continue
            able = [each for each in projections.PROJECTORS if p in each.norms]
            methods, gone = available(able)
            settings = {**self.shared, "images": self.options.images}
            done = self._open(key, settings, methods, gone, len(methods))
            for method in methods:
                if method.name in done:
                    continue
                onto = projections.problem(
                    data, p, self.options.images, self.options.seed, box=method.box
                )
                cell = projections.compare(method, onto)
                self.store.add(key, method.name, cell)
                print(f"{key}  {method.name}: {cell['ratio']:.2f} x, error {cell['error']:.1e}")

    def _open(
        self,
        key: str,
        settings: dict[str, Any],
        methods: Sequence[Any],
        gone: dict[str, str],
        wanted: int,
    ) -> dict[str, Any]:
        for name, why in gone.items():
            print(f"{key}  skipped {name} ({why})", flush=True)
        here = machine.machine(self.options.threads)
        about = {
            "begun": machine.now(),
            "cores": here["cores"],
            "load": here["load"],
            "others": machine.others(),
            "commit": _commit(),
            "methods": [method.name for method in methods],
            "peers": [method.name for method in methods if method.library != OURS],
            "rules": {m.name: m.rule for m in methods if isinstance(m, Method) and m.rule},
            "missing": gone,
            "wanted": wanted,
        }
        return self.store.open(key, settings, about)

    def _unusable(self, case: Case) -> bool:
        """Whether a network of the case cannot be had, which the page says."""
        skipped = self.store.content["skipped"]
        skipped.pop(case.key, None)
        needs = ["pyautoattack", "examples.pyautoattack_networks"]
        needs += ["h5py"] if "mnist" in case.networks else []
        for need in needs if set(case.networks) & set(THIRD_PARTY) else []:
            why = missing(need)
            if why is not None:
                skipped[case.key] = why
                print(f"{case.key}  skipped ({why})", flush=True)
                return True
        return False


def _commit() -> str:
    """The commit that is checked out here, with "+" if files differ from it."""
    try:
        shown = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(shown, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no commit"


if __name__ == "__main__":
    exit_with(main)
