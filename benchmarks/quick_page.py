"""The table of `quick` beside AutoAttack in docs/RESULTS.md, from the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import marks
from .peers.page import table

SUITES = ("quick", "autoattack")
POINTS, TIME = 1.0, 0.2  # what `quick` promises
_MARK = "<!-- quick beside autoattack -->"
_CODE = """The code is a digest of programs when the lines were measured, which need not be the present ones:
`python -m benchmarks --codes` prints the digest of these as that of `quick`.
"""
_EARLIER = {
    "cac2b6d479a3": "This digest is of the library and equals none that is printed; its lines are of "
    "2026-11-17 or 2026-11-18, before an aimed restart counted whatever wrong class it met, and not only the "
    "one that it was aimed at"
}
"""What is known of code that had no digest of its own."""


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
    return f"{table(head, rows)}\n{_verdict(content['cases'])}\n{_origins(content['cases'])}"


def decided(line: Line) -> bool:
    """Whether there are so many images that one of them is no more than the point that is promised."""
    return 100 / line.images <= POINTS


def _verdict(cases: Mapping[str, Any]) -> str:
    """In which cases `quick` keeps what it promises, and which have too few images to say so."""
    found = list(lines(cases))
    large = [line for line in found if decided(line)]
    kept = {
        "at most one point weaker": [line for line in large if line.behind <= POINTS],
        "at most a fifth of the time": [line for line in large if line.time_ratio <= TIME],
    }
    empty = [line.key for line in large if not any(line.left.values())]
    nothing = {
        "at most one point weaker": f" In {len(empty)} of them neither suite leaves an image, which tells "
        f"nothing about which is stronger: {'; '.join(empty)}."
        if empty
        else ""
    }
    said = []
    for words, those in kept.items():
        missed = [line.key for line in large if line not in those]
        where = f", not in: {'; '.join(missed)}" if missed else ""
        verdict = f"{words[0].upper()}{words[1:]}: {len(those)} of {len(large)} cases{where}."
        said.append(f"{verdict}{nothing.get(words, '')}\n")
    for line in found:
        if not decided(line):
            point = f"one of its {line.images} images is {100 / line.images:.1f} points"
            said.append(f"{line.key} decides neither: {point}.\n")
    return "\n".join(said)


def _origins(cases: Mapping[str, Any]) -> str:
    """Version, code and days of the lines, with their names where there are several."""
    made: dict[str, list[tuple[str, str]]] = {}
    for key, case in cases.items():
        settings = case["settings"]
        code = f"saddlepoint {settings['versions']['saddlepoint']}, code {settings['code']}"
        day = case.get("begun", "").partition(" ")[0] or "day not recorded"
        made.setdefault(code, []).append((day, key))
    said = []
    for code, those in made.items():
        days = ", ".join(sorted({day for day, _ in those}))
        names = f": {'; '.join(key for _, key in those)}" if len(made) > 1 else ""
        about = "".join(f" {text}." for digest, text in _EARLIER.items() if digest in code)
        said.append(f"Run with {code} ({days}){names}.{about}\n")
    return "\n".join([*said, _CODE])


def write(page: Path, content: Mapping[str, Any]) -> None:
    """Put the table between its marks."""
    marks.put(page, render(content), _MARK)
