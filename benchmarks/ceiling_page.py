"""docs/CEILING.md from the stored rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import saddlepoint as sp
from saddlepoint.runs.ranking import mcnemar

from .ceiling_left import section
from .peers import sound
from .peers.cells import Store
from .peers.said import margins
from .stores import StoreError

_INTRODUCTION = """# `attack` beside its own ceiling

Written by `python -m benchmarks.ceiling` from `docs/results/{store}`; edit neither by hand. ASR_all in per
cent: the share of rows, images or groups of images, of which every domain is fooled. The default is
`sp.attack(problem, ball)`, one restart of 50 steps; the ceiling is ten restarts of 200 steps. Evaluations of
all domains are means per row: rows that are fooled stop. Networks are the shipped ones{other} and radii those
of the paper's tables, for groups of A and C, which the paper has not, that of D. Images are test images on
which no number of `attack` was chosen (but see "One domain"): from number 2000 on, groups from number 4000 on;
the length of a restart was looked at on CIFAR-10 groups of images 1000 to 3999, among them single images here.
In lines that have B{low} it computes in bfloat16 during the search; verdicts are in float32. Share is what the
default fools over what the ceiling fools, which tells little where the ceiling is near 100 %; only ceiling and
only default are rows that one of them alone fools, and p is that of the exact McNemar test.

Every line says by which code and on which day (UTC) it was begun. The code is a digest of the programs that it
depended on when it was measured: **a line need not be of the present code**, whose digest
`python -m benchmarks --codes` prints as that of `ceiling` or, for one domain, of `one_domain`. The processor
was {cpu}.
"""
_RULES = """## Other weight rules at the same steps

Won and lost are the rows that only the default and only the other rule fools.
"""
_LONGER = """{title} has {rows} rows and not {usual} because the default was one row behind `WorstCase()` on the
first {usual}: of those the default fools {default} in what is stored, `WorstCase()` {worst} and `Entropic()`
{entropic}. A sample that was made larger because of what it showed tells less than the others.
"""
_AGAIN = """{title} has {fewer} rows here and {rows} in the tables above.{why}
"""
_BECAUSE = """ Those were measured again on more because with an
earlier code ({code}, {day}) the default fooled {default} of the first {before} and the
ceiling {ceiling}, less than {wanted:.0f} % of it; in what is stored they fool {default_now} and {ceiling_now}
of these. A sample that was made larger because of what it showed tells less than the others."""
_USUAL = 200
_BUDGETS = """## A budget of evaluations

`attack(problem, ball, evaluations=...)`: the most that a row may take. ASR_all, and in parentheses the mean
that rows took. The ceiling is what ten restarts found, not a bound: a budget may fool a row more.
"""
_IDEAS = """## What was tried and not kept

Ideas to come closer to the ceiling, at the same number of evaluations, on other test images (from number 1000
on) and at smaller radii, where more rows are left: rows fooled by the idea and by what it would replace, rows
that only the idea fools and those that it loses. They were variants of the loop that are not in the library;
the counts are in `{ideas}`, all of 2026-11-17 or before and of codes that are not recorded, and a few more
that did no better are not listed. With so many comparisons p below 0.05 is to be expected now and then; in
favour of an idea it is found once, for two restarts of 24 steps on one problem of three.
What looked like a gain on 200 groups (weights carried over, longer first steps) was none when the images were
grouped anew. Groups here are of images 1000 to 3999, some of which are in the tables above as single images.
"""
_ALONE = """## One domain

Where there is one domain, `attack` takes two restarts on `soft_margin`: of 25 steps by default, and of 24 with
`evaluations=50`, as here, for the start of a restart is an evaluation too. Beside it are what it took before,
one restart of 49 steps on `cw_margin`, the two restarts alone, and APGD-CE of AutoAttack with as many
evaluations, in larger balls that shrink for l1 (every row takes all of them). The ceiling is `attack` with ten
restarts of 200 steps, and the share what 50 evaluations reach of it. Rows fooled, and in parentheses the
evaluations that rows took; won and lost are the rows that only the present way fools and only the one to their
left: beside 2 x 24 what the soft margin does, beside 1 x 49 what it does together with the second restart.
MNIST and CIFAR-10 test images from number 6000 on, on which this was chosen; docs/BENCHMARKS.md has
others. The robust CNN is the MNIST network inside pyautoattack. Rows: `docs/results/one-domain.json`, measured
by `python -m benchmarks.ceiling --tables alone`.
"""
_KEPT = """## What was tried and kept

Rows fooled within 50 evaluations, in parentheses those that rows took, by `attack` with the idea and without,
measured on 2026-11-17, when it was taken over; the code is not recorded. MNIST and CIFAR-10 test images from
number 7000 on; the numbers of the idea were chosen on the first thousand of all test images.
"""
_WHY = """It was kept because of {problems}. On the other problems, {others} of {all}, it fools
neither more nor fewer rows beyond chance (p >= {chance})."""
_CHANCE = 0.05
_HEADS = (
    ("rows", "default", "evaluations", "ceiling", "evaluations", "share", "only ceiling", "only default", "p"),
    ("default", "`WorstCase()`", "won, lost", "p", "`Entropic()`", "won, lost", "p"),
    ("rows", "25", "50", "100", "250"),
    ("Problem", "rows", "fooled", "Instead of", "fooled", "won, lost", "p"),
    ("rows", "now", "`cw_margin`, 2 x 24", "won, lost", "p", "`cw_margin`, 1 x 49", "won, lost", "p",
     "APGD-CE", "ceiling", "share"),
)  # fmt: skip


_ORIGIN = ("code", "day")
WANTED = 0.95  # of what the ceiling fools


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


@dataclass(frozen=True)
class Made:
    """Where a line is from."""

    code: str
    day: str
    cpu: str
    precision: tuple[str, ...] = ()
    rows: int = 0
    """As many as were wanted."""
    others: tuple[str, ...] = ()
    """Networks whose parameters were not those that are shipped now."""

    @staticmethod
    def of(stored: Mapping[str, Any]) -> Made:
        settings, day = stored["settings"], stored["begun"].partition(" ")[0]
        precision, networks = tuple(settings.get("precision", ())), settings["networks"]
        others = tuple(name for name, digest in networks.items() if _shipped(name) != digest)
        return Made(settings["code"], day, stored["cpu"], precision, settings["rows"], others)

    def titled(self, title: str, found: Mapping[str, Outcome]) -> str:
        """The title of a line, and what is not as it should be with it."""
        done = min(len(each.fooled) for each in found.values())
        said = [f"unfinished: {done} of {self.rows} rows"] if done < self.rows else []
        if self.others:
            said.append(f"other parameters than the shipped ones: {', '.join(self.others)}")
        return f"{title} ({'; '.join(said)})" if said else title

    @property
    def cells(self) -> tuple[str, str]:
        return self.code, self.day


def _shipped(name: str) -> str | None:
    """The hash of a network's parameters; None if none of this name is shipped."""
    return sp.models.card(name).sha256 if name in sp.models.shipped() else None


def _but_in_full(made: Mapping[str, Mapping[str, Made]]) -> str:
    """The lines with network B that were measured on a processor without bfloat16, as an exception."""
    found = {
        f"{title} ({table})"
        for table, lines in made.items()
        for title, each in lines.items()
        if re.search(r"\bB\b", title) and "bfloat16" not in each.precision
    }
    return f", but {'; '.join(sorted(found))}," if found else ""


Lines = dict[str, dict[str, Outcome]]
"""Outcomes by problem and by the name of the method; of a problem that was not measured, none."""


def render(
    tables: Mapping[str, Lines],
    made: Mapping[str, Mapping[str, Made]],
    alone: Iterable[tuple[str, Made, Mapping[str, Outcome]]],
    store: str,
    ideas: Path,
) -> str:
    """The whole page.

    Args:
        tables: Outcomes of "rules" and "budgets".
        made: Code and day of their lines.
        alone: Title, origin and outcomes of the lines of one domain.
        store: The name of the file, for the page.
        ideas: The file of what was tried; the comparisons with other libraries are beside it.
    """
    single, content = list(alone), _ideas(ideas)
    origins = [each for table in made.values() for each in table.values()]
    origins += [origin for _, origin, _ in single]
    cpus = ", ".join(sorted({each.cpu for each in origins}))
    other = " unless a line says otherwise," if any(each.others for each in origins) else ""
    introduction = _INTRODUCTION.format(store=store, cpu=cpus, low=_but_in_full(made), other=other)
    parts = (
        ("rules", introduction, _HEADS[0], _ceiling),
        ("rules", _RULES, _HEADS[1], _rules),
        ("budgets", _BUDGETS, _HEADS[2], _budgets),
    )
    lines: list[str] = []
    for table, text, head, line in parts:
        found, of = tables[table], made[table]
        lines += _head(text, head)
        lines += [
            _line([of[title].titled(title, each), *line(each), *of[title].cells])
            for title, each in found.items()
            if each
        ]
        missing = [title for title, each in found.items() if not each]
        lines += ["", f"Not measured yet: {'; '.join(missing)}."] if missing else []
        lines += ["", *(_verdict(found) if text is _RULES else [])]
        lines += _measured_again(tables, content.get("before", [])) if text is _BUDGETS else []
        if text is introduction:
            whole = [(t, each["default"], each["ceiling"]) for t, each in found.items() if each]
            lines += [short_of(whole)]
    if single:
        lines += [*_head(_ALONE, _HEADS[4]), *(_single(*each) for each in single), ""]
        lines += [
            _parts_of_the_gain([(title, ways) for title, _, ways in single], _elsewhere(ideas))
        ]
        lines += [short_of((t, ways["now"], ways["ceiling"]) for t, _, ways in single)]
    if kept := content.get("kept"):
        lines += [_KEPT, _line(["Idea", *_HEADS[3]])]
        lines += ["|:---|:---|---:|---:|:---|---:|---:|---:|", *map(_idea, kept), "", *_why(kept)]
    tried = content["ideas"]
    lines += [_IDEAS.format(ideas=ideas.name), _line(["Idea", *_HEADS[3]])]
    lines += ["|:---|:---|---:|---:|:---|---:|---:|---:|", *map(_idea, tried), ""]
    if left := content.get("left"):
        lines += section(left, ideas.name)
    return "\n".join(lines)


def _ideas(path: Path) -> dict[str, Any]:
    """What was tried, by hand: lists of it, and what was found before samples were made larger.

    Raises:
        StoreError: There is no such file, or another one.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        lists = [content["ideas"], content.get("kept", []), content.get("before", [])]
        whole = all(isinstance(each, list) for each in lists)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise StoreError(
            f"the ideas of the page must be a whole file, got {path}; check it out again."
        )
    return dict(content)


def _elsewhere(ideas: Path) -> list[str]:
    """Where `cw_margin` fools more than the default with one domain, of the comparisons on other images."""
    store = Store(ideas.with_name("peers.json"), kind=sound.COMPARED)
    return margins(store.content["cases"])


def _head(text: str, names: Sequence[str]) -> list[str]:
    return [text, _line(["Problem", *names, *_ORIGIN]), "|:---|" + "---:|" * (len(names) + 2)]


def losses(found: Lines) -> Iterator[tuple[str, str, int, int]]:
    """Where another rule fools more rows than the default: problem, rule, rows won and lost."""
    for title, each in found.items():
        for rule in ("worst", "entropic") if each else ():
            won, lost = each["default"].beside(each[rule])
            if lost > won:
                yield title, rule, won, lost


def _verdict(found: Lines) -> list[str]:
    """Whether the default fools at least as many rows everywhere, and which case was looked at longer."""
    names = {"worst": "`WorstCase()`", "entropic": "`Entropic()`"}
    said = [
        f"**Missed**: {title}: {names[rule]} fools {lost - won} more (p = {mcnemar(won, lost):.2g}).\n"
        for title, rule, won, lost in losses(found)
    ]
    said = said or ["In every line the default fools at least as many rows as either of them.\n"]
    for title, each in found.items():
        if each and len(each["default"].fooled) > _USUAL:
            first = {rule: sum(each[rule].fooled[:_USUAL]) for rule in ("default", *names)}
            rows = len(each["default"].fooled)
            said.append(_LONGER.format(title=title, rows=rows, usual=_USUAL, **first))
    return said


def _measured_again(tables: Mapping[str, Lines], before: Iterable[Mapping[str, Any]]) -> list[str]:
    """Which problems have more rows in the other tables than in that of budgets, and why.

    Args:
        tables: Outcomes of both.
        before: What was found on fewer rows, for which reason there are more now.
    """
    counts = {
        table: {t: max(len(o.fooled) for o in each.values()) for t, each in found.items() if each}
        for table, found in tables.items()
    }
    reasons = {each["problem"]: _because(each, tables["rules"]) for each in before}
    return [
        _AGAIN.format(title=title, fewer=fewer, rows=rows, why=reasons.get(title, ""))
        for title, fewer in counts["budgets"].items()
        if (rows := counts["rules"].get(title, 0)) > fewer
    ]


def _because(before: Mapping[str, Any], found: Lines) -> str:
    """What was found on fewer rows, beside what is stored of the same ones; nothing if they are not stored."""
    ways = found.get(before["problem"])
    if not ways:
        return ""
    now = {f"{way}_now": sum(ways[way].fooled[: before["rows"]]) for way in ("default", "ceiling")}
    told = {name: before[name] for name in ("default", "ceiling", "code", "day")}
    return _BECAUSE.format(before=before["rows"], wanted=100 * WANTED, **told, **now)


def short_of(found: Iterable[tuple[str, Outcome, Outcome]]) -> str:
    """Names the problems (title, reached, ceiling) that miss the wanted share of their ceiling."""
    said = [
        f"{title} ({_share(reached, ceiling)} of {sum(ceiling.fooled)} rows)"
        for title, reached, ceiling in found
        if reached.rate < WANTED * ceiling.rate
    ]
    if not said:
        return f"Every line reaches at least {100 * WANTED:.0f} % of its ceiling.\n"
    return f"**Less than {100 * WANTED:.0f} % of the ceiling**: {'; '.join(said)}.\n"


def _share(reached: Outcome, ceiling: Outcome) -> str:
    return f"{100 * reached.rate / ceiling.rate:.1f} %" if ceiling.rate else "-"


def _ceiling(found: Mapping[str, Outcome]) -> list[str]:
    default, ceiling = found["default"], found["ceiling"]
    ours, theirs = default.beside(ceiling)
    share = _share(default, ceiling)
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
    rows = max(len(each.fooled) for each in found.values())
    return [str(rows), *(f"{_percent(each)} ({each.mean:.1f})" for each in found.values())]


def _idea(tried: Mapping[str, Any]) -> str:
    won, lost = tried["won"], tried["lost"]
    cells = [tried[name] for name in ("idea", "problem", "rows", "fooled", "instead", "reference")]
    if "evaluations" in tried:
        cells[3] = f"{cells[3]} ({tried['evaluations']})"
        cells[5] = f"{cells[5]} ({tried['reference_evaluations']})"
    return _line([*map(str, cells), f"{won}, {lost}", f"{mcnemar(won, lost):.2g}"])


def _why(kept: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the one idea that was kept fools more rows beyond chance; nothing if it does so nowhere."""
    gains = [each for each in kept if mcnemar(each["won"], each["lost"]) < _CHANCE]
    one = len({each["idea"] for each in kept}) == 1
    if not gains or not one or any(each["won"] < each["lost"] for each in gains):
        return []
    said = [
        f"{each['problem']}: {each['fooled']} rows of {each['rows']} and not {each['reference']}, with "
        f"{each['evaluations']} evaluations and not {each['reference_evaluations']}"
        for each in gains
    ]
    others = len(kept) - len(gains)
    text = _WHY.format(problems="; ".join(said), others=others, all=len(kept), chance=_CHANCE)
    return [text, ""]


def _single(title: str, made: Made, found: Mapping[str, Outcome]) -> str:
    now, best = found["now"], found["ceiling"]
    cells = [made.titled(title, found), str(len(now.fooled)), _counted(now)]
    for way in ("short", "long"):
        won, lost = now.beside(found[way])
        cells += [_counted(found[way]), f"{won}, {lost}", f"{mcnemar(won, lost):.2g}"]
    cells += [str(sum(found["apgd"].fooled)), _counted(best), _share(now, best)]
    return _line([*cells, *made.cells])


def _counted(outcome: Outcome) -> str:
    return f"{sum(outcome.fooled)} ({outcome.mean:.1f})"


def _parts_of_the_gain(
    found: Sequence[tuple[str, Mapping[str, Outcome]]], elsewhere: Sequence[str] = ()
) -> str:
    """What the second restart and what the soft margin brings, and where the latter does beyond chance."""
    now, short, long = (
        sum(sum(ways[way].fooled) for _, ways in found) for way in ("now", "short", "long")
    )
    where: dict[bool, list[str]] = {True: [], False: []}
    fewer = []
    for title, ways in found:
        won, lost = ways["now"].beside(ways["short"])
        if mcnemar(won, lost) < _CHANCE:
            where[won > lost].append(title)
        elif lost > won:
            fewer.append(f"{title} ({lost - won} of {len(ways['now'].fooled)} rows)")
    most = " Most of it comes from the restarts." if 2 * (short - long) > now - long > 0 else ""
    within = f"\nWithin chance it fools fewer rows on: {'; '.join(fewer)}." if fewer else ""
    also = ""
    if elsewhere:
        also = f"\nIn docs/BENCHMARKS.md, on other images, `cw_margin` fools more on: {'; '.join(elsewhere)}."
    gains, losses = ("; ".join(where[better]) or "no line" for better in (True, False))
    return (
        f"All lines together, the present way fools {now - long:+d} rows beside 1 x 49: {short - long:+d} by "
        f"two restarts in place of one,\n{now - short:+d} by the soft margin in place of `cw_margin`.{most} "
        f"Beyond chance (p < {_CHANCE}) the soft margin gains on: {gains}; it loses on: {losses}."
        f"{within}{also}\n"
    )


def _percent(outcome: Outcome) -> str:
    return f"{100 * outcome.rate:.1f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
