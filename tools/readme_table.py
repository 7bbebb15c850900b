"""Writes README's table of what other attacks miss, from stored results: `python tools/readme_table.py`.

As soon as docs/results/peers.json has a finished comparison of several models (`python -m benchmarks.peers`),
the table is made of it; until then of docs/results/quick.json, our suite beside AutoAttack on single models.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
STORES = ROOT / "docs" / "results"
_BLOCK = re.compile(r"(<!-- peers: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
ROWS = 6
"""Of the table from quick.json: those where the suites differ most, whoever is ahead."""


def block(stores: Path = STORES) -> str:
    """The text between the markers."""
    peers = stores / "peers.json"
    if peers.exists():
        written = _several_models(json.loads(peers.read_text(encoding="utf-8")))
        if written:
            return written
    return _single_models(json.loads((stores / "quick.json").read_text(encoding="utf-8")))


def _several_models(content: Mapping[str, Any]) -> str:
    """Ours beside the best of the other libraries, per finished case; nothing without one."""
    rows, images = [], set()
    for key, case in content["cases"].items():
        if not key.startswith("a: ") or len(case["cells"]) < case["wanted"] or not case["peers"]:
            continue
        found = {method: _share(case, method) for method in case["methods"]}
        ours = case["methods"][0]
        best = max(case["peers"], key=lambda method: found[method][0])
        images.add(found[ours][2])
        numbers = [f"{found[m][0]:.1f} % with {found[m][1]:.1f}" for m in (ours, best)]
        rows.append([key[3:], numbers[0], numbers[1], best])
    if not rows:
        return ""
    count = " to ".join(str(each) for each in sorted({min(images), max(images)}))
    said = (
        "Images that fool *all* models, and evaluations per image, of at most as many gradients for everyone; "
        f"other libraries attack the mean of the logits, and one judge counts every success ({count} images, "
        "`python -m benchmarks.peers`, [all of it](docs/BENCHMARKS.md)):"
    )
    head = ["Models and radius", "`sp.attack`", "best of the others", "which is"]
    return f"\n{said}\n\n{_table(head, rows)}\n"


def _share(case: Mapping[str, Any], method: str) -> tuple[float, float, int]:
    """Percent fooled, evaluations per image, images."""
    cells = [cell for name, cell in case["cells"].items() if name.rpartition("/")[0] == method]
    images = sum(cell["images"] for cell in cells)
    asked = sum(cell["evaluations"] * cell["images"] for cell in cells) / images
    return 100 * sum(cell["fooled"] for cell in cells) / images, asked, images


def _single_models(content: Mapping[str, Any]) -> str:
    rows, behind = [], []
    for key, case in content["cases"].items():
        cells = case["cells"].values()
        found = {
            (suite, what): sum(cell[suite][what] for cell in cells)
            for suite in ("quick", "autoattack")
            for what in ("left", "only")
        }
        spent = [sum(cell[suite]["queries"] for cell in cells) for suite in ("quick", "autoattack")]
        images = sum(cell["images"] for cell in cells)
        differ = found["quick", "only"] + found["autoattack", "only"]
        left = [f"{100 * found[s, 'left'] / images:.1f} %" for s in ("quick", "autoattack")]
        only = [str(found[s, "only"]) for s in ("quick", "autoattack")]
        rows.append((differ, [key, *left, *only, f"{spent[0] / spent[1]:.2f}"]))
        behind.append(100 * (found["quick", "left"] - found["autoattack", "left"]) / images)
    rows.sort(key=lambda row: -row[0])
    ahead = [points for points in behind if points > 0]
    said = (
        "Accuracy left by our suite `quick` and by AutoAttack on the same 200 MNIST images, and the images "
        f"that only one of them breaks: the {ROWS} of {len(rows)} cases where they differ most "
        "([all](docs/RESULTS.md#quick-beside-autoattack), `python -m benchmarks.quick`). AutoAttack leaves "
        f"less in {len(ahead)} cases, by at most {max(ahead, default=0):.1f} points. Names are what a network "
        "was trained against, and the threat:"
    )
    head = ["Network, threat", "`quick` leaves", "AutoAttack leaves", "only `quick` breaks"]
    head += ["only AutoAttack", "images shown, ratio"]
    return f"\n{said}\n\n{_table(head, [row for _, row in rows[:ROWS]])}\n"


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
