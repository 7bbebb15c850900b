"""Suite `quick` beside AutoAttack on given networks: who breaks more, image by image, and in what time.

``python -m benchmarks.quick linf=runs/linf/model.safetensors:mnist_cnn_small ...`` measures and stores each
network under each threat; every success is counted by one judge. Then it writes the table of docs/RESULTS.md
from the store (``--render`` does only that). ``python -m benchmarks quick`` holds the stored table against what
`quick` promises: never weaker by more than one point, in at most a fifth of the time.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import saddlepoint as sp
from saddlepoint.calls import Model
from saddlepoint.evaluation import robust_accuracy
from saddlepoint.files import write_atomically
from saddlepoint.runs import texts
from saddlepoint.runs.materials import load_images, load_models

from .peers import machine
from .peers.cells import Store
from .peers.page import table
from .timing import Figure, at_most

STORE, PAGE = Path("docs/results/quick.json"), Path("docs/RESULTS.md")
SUITES = ("quick", "autoattack")
POINTS, TIME = 1.0, 0.2  # what `quick` promises
_PARTS = 2
_MARKED = re.compile(r"(<!-- quick beside autoattack -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Line:
    """One network under one threat, all parts together.

    Attributes:
        images, clean: How many there are, and are right without attack.
        left: Those that each suite does not break.
        only: Those that only this suite breaks.
        seconds, queries: Of each suite; processor time, images shown to the network.
    """

    key: str
    images: int
    clean: int
    left: dict[str, int]
    only: dict[str, int]
    seconds: dict[str, float]
    queries: dict[str, int]

    @property
    def behind(self) -> float:
        """By how many points `quick` is weaker; negative where it is stronger."""
        return 100 * (self.left["quick"] - self.left["autoattack"]) / self.images

    @property
    def time_ratio(self) -> float:
        return self.seconds["quick"] / self.seconds["autoattack"]


def measure(
    model: Model, x: Tensor, y: Tensor, ball: sp.LpBall, seed: int, *, turned: bool
) -> dict[str, Any]:
    """Both suites on the same images, one after the other, in this order or turned round.

    Time is that of the processor: what else a machine does counts for neither.
    """
    found: dict[str, Any] = {"images": len(x)}
    broken: dict[str, Tensor] = {}
    for suite in SUITES[::-1] if turned else SUITES:
        begun = time.process_time()
        result = robust_accuracy(model, x, y, {"threat": ball}, suite, seed=seed)  # type: ignore[arg-type]
        found[suite] = {
            "seconds": time.process_time() - begun,
            "queries": sum(each.queries for each in result.outcomes),
            "broken": {each.attack: int(each.broken.sum()) for each in result.outcomes},
        }
        broken[suite] = torch.stack([each.broken for each in result.outcomes]).any(dim=0)
        found["clean"] = int(result.correct.sum())
    for suite, other in (SUITES, SUITES[::-1]):
        found[suite]["left"] = found["clean"] - int(broken[suite].sum())
        found[suite]["only"] = int((broken[suite] & ~broken[other]).sum())
    return found


def lines(cases: Mapping[str, Any]) -> Iterator[Line]:
    """Of the cases that are complete."""
    for key, case in cases.items():
        cells = list(case["cells"].values())
        if len(cells) == case["wanted"]:
            sums = {
                what: {suite: sum(cell[suite][what] for cell in cells) for suite in SUITES}
                for what in ("left", "only", "seconds", "queries")
            }
            images, clean = (sum(cell[what] for cell in cells) for what in ("images", "clean"))
            yield Line(key, images, clean, **sums)


def render(content: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    head = ["Case", "Images", "Clean", "`quick`", "AutoAttack", "`quick` is weaker by"]
    head += ["Only `quick` breaks", "Only AutoAttack", "Time, `quick` / AutoAttack"]
    head += ["Images shown, `quick` / AutoAttack"]
    rows = []
    for line in lines(content["cases"]):
        shares = [line.clean, line.left["quick"], line.left["autoattack"]]
        rows.append(
            [line.key, str(line.images)]
            + [f"{100 * share / line.images:.1f}" for share in shares]
            + [f"{line.behind:+.1f}", str(line.only["quick"]), str(line.only["autoattack"])]
            + [f"{line.time_ratio:.2f}"]
            + [f"{line.queries['quick'] / max(1, line.queries['autoattack']):.2f}"]
        )
    made = [case["settings"] for case in content["cases"].values()]
    said = sorted({f"{each['versions']['saddlepoint']} (code {each['code']})" for each in made})
    return f"{table(head, rows)}\nRun with saddlepoint {', '.join(said)}.\n"


def figures() -> Iterator[Figure]:
    for line in lines(Store(STORE).content["cases"]):
        yield at_most(f"{line.key}: quick is weaker by, points", line.behind, POINTS)
        yield at_most(f"{line.key}: time over AutoAttack's", line.time_ratio, TIME)


def write(page: Path, content: Mapping[str, Any]) -> None:
    """Put the table between its marks, once they are there."""
    text = page.read_text(encoding="utf-8")
    if not _MARKED.search(text):
        raise ValueError(f"`--page` must have the marks of the table, got {page} without.")
    whole = _MARKED.sub(lambda marks: marks[1] + render(content) + marks[2], text)
    write_atomically(page, whole.encode())


def run(store: Store, options: argparse.Namespace) -> None:
    data = load_images(options.data, "test", options.first + options.images)
    x, y = data.x[options.first :], data.y[options.first :]
    ends = [len(x) * index // _PARTS for index in range(_PARTS + 1)]
    for named in options.networks:
        name, _, spec = named.partition("=")
        (model,) = load_models([spec], data).values()
        for text in options.threat:
            ((_, threat),) = texts.threats([text]).items()
            # What a process imports and sets up when it is first asked is nobody's time.
            measure(model, x[:2], y[:2], threat.ball, options.seed, turned=False)
            settings = {
                "network": _digest(spec),
                **{key: getattr(options, key) for key in ("data", "first", "images", "seed")},
                "code": machine.code(),
                "versions": machine.versions(),
            }
            about = {**machine.machine(torch.get_num_threads()), "wanted": _PARTS}
            key = f"{name}, {text.replace(':', ' ')}"
            done = store.open(key, settings, about)
            for part, (begin, end) in enumerate(pairwise(ends)):
                if f"part {part}" in done:
                    continue
                part_x, part_y = x[begin:end], y[begin:end]
                cell = measure(
                    model, part_x, part_y, threat.ball, options.seed, turned=bool(part % 2)
                )
                store.add(key, f"part {part}", cell)
                print(key, cell, flush=True)


def _digest(spec: str) -> str:
    """What a network is known by: the hash of its file, or its name where its code is asked."""
    path = Path(spec.partition(":")[0])
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else spec


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    parser.add_argument("networks", nargs="*", help="NAME=MODEL, models as in saddlepoint evaluate")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--threat", action="append", help="linf:0.3, l2:2 and l1:10 by default")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first test image")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--render", action="store_true", help="write the table, measure nothing")
    options = parser.parse_args(words)
    options.threat = options.threat or ["linf:0.3", "l2:2", "l1:10"]
    if options.images < _PARTS:
        parser.error(f"`--images` must be at least {_PARTS}, got {options.images}")
    torch.set_num_threads(1)
    store = Store(options.store, read_only=options.render)
    if not options.render:
        run(store, options)
    write(options.page, store.content)
    print(f"wrote {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
