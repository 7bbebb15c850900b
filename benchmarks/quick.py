"""Suite `quick` beside AutoAttack on given networks: who breaks more, image by image, and in what time.

``python -m benchmarks.quick linf=runs/linf/model.safetensors:mnist_cnn_small ...`` measures and stores each
network under each threat; every success is counted by one judge. Then it writes the table of docs/RESULTS.md
from the store (``--render`` does only that). ``python -m benchmarks quick`` holds the stored table against what
`quick` promises: never weaker by more than one point, in at most a fifth of the time. By default data are
mnist, threats linf:0.3, l2:2 and l1:10 (``--threat`` can be given several times), images 200 from number 0 on,
the seed 0, the store docs/results/quick.json and the page docs/RESULTS.md.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import saddlepoint as sp
from saddlepoint.calls import Model
from saddlepoint.evaluation import robust_accuracy
from saddlepoint.runs import texts
from saddlepoint.runs.materials import load_images, load_models

from .peers import machine
from .peers.cells import Store, exit_with
from .quick_page import POINTS, SUITES, TIME, decided, lines, write
from .timing import Figure, at_most

STORE, PAGE = Path("docs/results/quick.json"), Path("docs/RESULTS.md")
_PARTS = 2


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


def figures() -> Iterator[Figure]:
    for line in filter(decided, lines(Store(STORE, read_only=True).content["cases"])):
        yield at_most(f"{line.key}: quick is weaker by, points", line.behind, POINTS)
        yield at_most(f"{line.key}: time over AutoAttack's", line.time_ratio, TIME)


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
                "code": machine.code_of("quick"),
                "versions": machine.versions(),
            }
            about = {
                **machine.machine(torch.get_num_threads()),
                "begun": machine.now(),
                "others": machine.others(),
                "wanted": _PARTS,
            }
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
    exit_with(main)
