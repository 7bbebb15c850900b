"""Writes README's table of what other attacks miss, from stored results: `python tools/readme_table.py`."""

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
FEWEST = 100
"""Images of a case that is shown: fewer tell little."""


def block(stores: Path = STORES) -> str:
    """The text between the markers: ours beside the best of the other libraries, per finished case."""
    content = json.loads((stores / "peers.json").read_text(encoding="utf-8"))
    rows, counts, made, budgets = [], set(), set(), set()
    for key, case in content["cases"].items():
        if not key.startswith("a: ") or len(case["cells"]) < case["wanted"] or not case["peers"]:
            continue
        found = {method: _share(case, method) for method in case["methods"]}
        ours = case["methods"][0]
        if found[ours][2] < FEWEST:
            continue
        best = max(case["peers"], key=lambda method: found[method][0])
        counts.add(found[ours][2])
        budgets.add(case["settings"]["evaluations"])
        made.add((case["settings"]["versions"]["saddlepoint"], case["begun"].partition(" ")[0]))
        numbers = [f"{found[m][0]:.1f} % with {found[m][1]:.1f}" for m in (ours, best)]
        rows.append([key[3:], numbers[0], numbers[1], best])
    count = " to ".join(str(each) for each in sorted({min(counts), max(counts)}))
    of = "; ".join(f"version {version}, {day}" for version, day in sorted(made))
    said = (
        "Share of images on which *all* models are fooled, and evaluations per image. Each may "
        f"compute {' or '.join(map(str, sorted(budgets)))} gradients; others attack the mean of the logits "
        f"({count} images, `python -m benchmarks.peers`, {of}, [full tables](docs/BENCHMARKS.md)). "
        "Settings of `attack` were chosen on other images of MNIST, on these of CIFAR-10. "
        "In some cases [others are ahead](docs/BENCHMARKS.md#where-others-are-ahead)."
    )
    head = ["Models and radius", "`sp.attack`", "best of the others", "which is"]
    return f"\n{said}\n\n{_table(head, rows)}\n"


def _share(case: Mapping[str, Any], method: str) -> tuple[float, float, int]:
    """Percent fooled, evaluations per image, images."""
    cells = [cell for name, cell in case["cells"].items() if name.rpartition("/")[0] == method]
    images = sum(cell["images"] for cell in cells)
    asked = sum(cell["evaluations"] * cell["images"] for cell in cells) / images
    return 100 * sum(cell["fooled"] for cell in cells) / images, asked, images


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
