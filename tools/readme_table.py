"""Writes README's table of what other attacks miss, from stored results: `python tools/readme_table.py`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.defence import page, plan  # noqa: E402
from benchmarks.peers.lines import finished, large, ours_and_best  # noqa: E402

README = ROOT / "README.md"
STORES = ROOT / "docs" / "results"
_BLOCK = re.compile(r"(<!-- peers: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
FEWEST = 100
"""Images of a case that is shown: fewer tell little."""
ALONE = {
    "b": "`sp.attack` beside the strongest with as many gradients",
    "d": "suite `quick` beside AutoAttack",
}
"""Rooms of the comparisons on one model."""
TRAINED = {"race": "trained against the same", "race-l1-12": "trained with l1 12"}
"""Tables of trainings that differ in a radius, and what is said of it."""


def block(stores: Path = STORES) -> str:
    """The text between the markers: ours beside the best of the other libraries, per finished case."""
    cases = json.loads((stores / "peers.json").read_text(encoding="utf-8"))["cases"]
    rows, counts, made, budgets = [], set(), set(), set()
    for key, case in finished(cases):
        pair = ours_and_best(case) if key.startswith("a: ") else None
        if pair is None or pair[0].images < FEWEST:
            continue
        ours, best = pair
        counts.add(ours.images)
        budgets.add(case["settings"]["evaluations"])
        made.add((case["settings"]["versions"]["saddlepoint"], case["begun"].partition(" ")[0]))
        numbers = [f"{line.percent} % with {line.evaluations:.1f}" for line in pair]
        rows.append([key[3:], *numbers, best.method, ours.beside(best)])
    count = " to ".join(str(each) for each in sorted({min(counts), max(counts)}))
    of = "; ".join(f"version {version}, {day}" for version, day in sorted(made))
    said = (
        "Share of images on which *all* models are fooled, and evaluations per image. Each may "
        f"compute {' or '.join(map(str, sorted(budgets)))} gradients; others attack the mean of the logits "
        f"({count} images, `python -m benchmarks.peers`, {of}, [full tables](docs/BENCHMARKS.md)). "
        "Settings of `attack` were chosen on other images of MNIST, on these of CIFAR-10. "
        "In some cases [others are ahead](docs/BENCHMARKS.md#where-others-are-ahead)."
    )
    head = ["Models and radius", "`sp.attack`", "best of the others", "which is", "95 % intervals"]
    parts = [said, _table(head, rows)]
    alone = [_alone(cases, room, name) for room, name in ALONE.items()]
    head = ["One model", "cases", "ours breaks more (intervals apart)", "as many", "fewer"]
    if any(alone):
        parts.append(_table([*head, "time, theirs / ours"], [row for row in alone if row]))
    parts += _trained(stores / "defence.json")
    return "\n" + "\n\n".join(parts) + "\n"


def _trained(store: Path) -> list[str]:
    """Accuracy under all threats, by method and the l1 radius of training; the highest of a row is bold."""
    if not store.is_file():
        return []
    networks = json.loads(store.read_text(encoding="utf-8"))["trainings"]
    rows = []
    for name, radius in TRAINED.items():
        found = {each.row: each for each in page.lines(plan.TABLES[name], "quick", networks)}
        shares = [found[method].share("union") for method in plan.METHODS]
        shown = [f"**{each:.1f} %**" if each == max(shares) else f"{each:.1f} %" for each in shares]
        rows.append([radius, *shown])
    page_of = "docs/RESULTS.md#training-against-linf-03-l2-2-and-l1-10-on-mnist"
    head = f"MNIST, right under linf 0.3, l2 2 and l1 10 ([mean of seeds]({page_of}))"
    return [_table([head, *plan.METHODS], rows)]


def _alone(cases: Mapping[str, Any], room: str, name: str) -> list[str]:
    """How often ours breaks more, as many and fewer than the best of the others, on one model."""
    pairs = [pair for _, case in large(cases, f"{room}: ") if (pair := ours_and_best(case))]
    if not pairs:
        return []
    gains = [ours.share - best.share for ours, best in pairs]
    more = [ours.beside(best) for ours, best in pairs if ours.share > best.share]
    times = [best.time_ratio for _, best in pairs]
    counts = [str(len(pairs)), f"{len(more)} ({more.count('apart')})", str(gains.count(0))]
    fewer = str(sum(gain < 0 for gain in gains))
    return [name, *counts, fewer, f"{min(times):.2g} to {max(times):.2g}"]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(text: str, new: str) -> str:
    """A README with the block in its place."""
    if not _BLOCK.search(text):
        raise ValueError("`README.md` must have the lines <!-- peers: ... --> and <!-- end -->")
    return _BLOCK.sub(lambda found: f"{found[1]}{new}{found[2]}", text)


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8"), block()), encoding="utf-8")
    sys.stdout.write(f"wrote {README.name}\n")
