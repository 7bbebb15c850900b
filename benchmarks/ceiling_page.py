"""docs/CEILING.md from the stored rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddlepoint.runs.ranking import mcnemar

_INTRODUCTION = """# `attack` beside its own ceiling

Written by `python -m benchmarks.ceiling` from `{store}`; edit neither by hand. ASR_all in per
cent: the share of rows, images or groups of images, of which every domain is fooled. The default is
`sp.attack(problem, ball)`, one restart of 50 steps; the ceiling is ten restarts of 200 steps. Evaluations of
all domains are means per row: rows that are fooled stop. Networks are the shipped ones and radii those of the
paper's tables. Images are test images on which no number of `attack` was chosen: from number 2000 on, groups
from number 4000 on. Network B computes in bfloat16 during the search; verdicts are in float32. p is that of the
exact McNemar test.
"""
_RULES = """## Other weight rules at the same steps

Won and lost are the rows that only the default and only the other rule fools.
"""
_BUDGETS = """## A budget of evaluations

`attack(problem, ball, evaluations=...)`: the most that a row may take. ASR_all, and in parentheses the mean
that rows took.
"""
_IDEAS = """## What was tried and not kept

Ideas to come closer to the ceiling, at the same number of evaluations, on other test images (from number 1000
on) and at smaller radii, where more rows are left: rows fooled by the idea and by what it would replace, rows
that only the idea fools and those that it loses. They were variants of the loop that are not in the library;
the counts are in `{ideas}`, and a few more that did no better are not listed. With so many
comparisons one p below 0.05 is to be expected; two restarts of 24 steps have one, on one problem of three.
What looked like a gain on 200 groups (weights carried over, longer first steps) was none when the images were
grouped anew. Groups here are of images 1000 to 3999, some of which are in the tables above as single images.
"""
_ALONE = """## One domain

Where there is one domain, `attack` takes two restarts of 24 steps on `soft_margin` for 50 evaluations. Beside
it are what it took before, one restart of 49 steps on `cw_margin`, the two restarts alone, and APGD-CE of
AutoAttack with as many evaluations, in larger balls that shrink for l1 (every row takes all of them). Rows
fooled, and in parentheses the evaluations that rows took; won and lost are the rows that only the present way
fools and only the one before. MNIST and CIFAR-10 test images from number 6000 on, on which this was chosen;
docs/BENCHMARKS.md has others. The robust CNN is the MNIST network inside pyautoattack. Counts: `{ideas}`.
"""
_KEPT = """## What was tried and kept

Rows fooled within 50 evaluations, in parentheses those that rows took, by `attack` as it is and as it was.
MNIST and CIFAR-10 test images from number 7000 on; the numbers of the idea were chosen on the first thousand.
"""
_HEADS = (
    ("rows", "default", "evaluations", "ceiling", "evaluations", "share", "only ceiling", "only default", "p"),
    ("default", "`WorstCase()`", "won, lost", "p", "`Entropic()`", "won, lost", "p"),
    ("25", "50", "100", "250"),
    ("Problem", "rows", "fooled", "Instead of", "fooled", "won, lost", "p"),
    ("rows", "now", "`cw_margin`, 2 x 24", "`cw_margin`, 1 x 49", "APGD-CE", "won, lost", "p"),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a method found: of every row whether it is fooled, and evaluations."""

    fooled: tuple[bool, ...]
    evaluations: tuple[int, ...]

    @staticmethod
    def joined(cells: Sequence[Mapping[str, Any]]) -> Outcome:
        return Outcome(
            tuple(mark == "1" for cell in cells for mark in cell["fooled"]),
            tuple(int(word) for cell in cells for word in cell["evaluations"].split()),
        )

    @property
    def rate(self) -> float:
        return sum(self.fooled) / len(self.fooled)

    @property
    def mean(self) -> float:
        return sum(self.evaluations) / len(self.evaluations)

    def beside(self, other: Outcome) -> tuple[int, int]:
        """Rows that only this one fools, and rows that only the other fools."""
        pairs = list(zip(self.fooled, other.fooled, strict=True))
        return pairs.count((True, False)), pairs.count((False, True))


Lines = dict[str, dict[str, Outcome]]
"""Outcomes by problem and by the name of the method; of a problem that was not measured, none."""


def render(tables: Mapping[str, Lines], store: str, ideas: Path) -> str:
    parts = (
        (_INTRODUCTION.format(store=store), _HEADS[0], _ceiling, tables["rules"]),
        (_RULES, _HEADS[1], _rules, tables["rules"]),
        (_BUDGETS, _HEADS[2], _budgets, tables["budgets"]),
    )
    lines: list[str] = []
    for text, head, line, found in parts:
        lines += [text, _line(["Problem", *head]), "|:---|" + "---:|" * len(head)]
        lines += [*(_line([title, *line(each)]) for title, each in found.items() if each), ""]
        missing = [title for title, each in found.items() if not each]
        lines += [f"Not measured yet: {'; '.join(missing)}.", ""] if missing else []
    content = json.loads(ideas.read_text(encoding="utf-8"))
    if alone := content.get("one domain"):
        lines += [_ALONE.format(ideas=ideas.name), _line(["Problem", *_HEADS[4]])]
        lines += ["|:---|" + "---:|" * len(_HEADS[4]), *map(_single, alone), ""]
    if kept := content.get("kept"):
        lines += [_KEPT, _line(["Idea", *_HEADS[3]])]
        lines += ["|:---|:---|---:|---:|:---|---:|---:|---:|", *map(_idea, kept), ""]
    tried = content["ideas"]
    lines += [_IDEAS.format(ideas=ideas.name), _line(["Idea", *_HEADS[3]])]
    lines += ["|:---|:---|---:|---:|:---|---:|---:|---:|", *map(_idea, tried), ""]
    return "\n".join(lines)


def _ceiling(found: Mapping[str, Outcome]) -> list[str]:
    default, ceiling = found["default"], found["ceiling"]
    ours, theirs = default.beside(ceiling)
    share = f"{100 * default.rate / ceiling.rate:.1f} %" if ceiling.rate else "-"
    cells = [_percent(default), f"{default.mean:.1f}", _percent(ceiling), f"{ceiling.mean:.1f}"]
    counts = [str(theirs), str(ours), f"{mcnemar(ours, theirs):.2g}"]
    return [str(len(default.fooled)), *cells, share, *counts]


def _rules(found: Mapping[str, Outcome]) -> list[str]:
    default = found["default"]
    cells = [_percent(default)]
    for rule in ("worst", "entropic"):
        won, lost = default.beside(found[rule])
        cells += [_percent(found[rule]), f"{won}, {lost}", f"{mcnemar(won, lost):.2g}"]
    return cells


def _budgets(found: Mapping[str, Outcome]) -> list[str]:
    return [f"{_percent(each)} ({each.mean:.1f})" for each in found.values()]


def _idea(tried: Mapping[str, Any]) -> str:
    won, lost = tried["won"], tried["lost"]
    cells = [tried[name] for name in ("idea", "problem", "rows", "fooled", "instead", "reference")]
    if "evaluations" in tried:
        cells[3] = f"{cells[3]} ({tried['evaluations']})"
        cells[5] = f"{cells[5]} ({tried['reference_evaluations']})"
    return _line([*map(str, cells), f"{won}, {lost}", f"{mcnemar(won, lost):.2g}"])


def _single(found: Mapping[str, Any]) -> str:
    won, lost = found["won"], found["lost"]
    ours = [f"{found[way]} ({found[f'{way}_evaluations']})" for way in ("soft", "short", "long")]
    cells = [found["problem"], str(found["rows"]), *ours, str(found["apgd"])]
    return _line([*cells, f"{won}, {lost}", f"{mcnemar(won, lost):.2g}"])


def _percent(outcome: Outcome) -> str:
    return f"{100 * outcome.rate:.1f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
