"""docs/BENCHMARKS.md from the stored cells: the ratio to ours comes first in every table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import kept
from saddlepoint.evaluation.rates import wilson

from . import ahead, machine, said
from .lines import SMALL, Line, finished, large, lines, missed, number, ours_and_best, table

HEADINGS = {
    "a": "One perturbation against all models",
    "b": "One model, equal evaluations",
    "c": "Projections",
    "d": "Robust accuracy: suite `quick` beside AutoAttack",
}
_INTRODUCTION = """# Beside other libraries

Written by `python -m benchmarks.peers` from `{store}`; edit neither by hand. Ratios come first and compare
what ran in the same run on the same machine: images are divided into parts, on each part every method runs in
turn, and the ratio of times is the median over the parts, at most four; the summaries that come first have the
lowest and the highest in parentheses. Times are seconds that the processor worked for the process, so that
others who want the machine count little.

Every success is counted by our judge: the candidate is in the box, in the ball up to rounding (1e-4 of the
radius), and misclassified by all models when they are asked again. "Not counted" are candidates that all models
misclassify but that are outside ball or box, and candidates that are not numbers. Evaluations are images shown
to a model, per image and model, counted by the same wrapper for all, with a gradient or without. So they may be
more than the gradients that a table allows: ours looks at the model on a few images of each part before it
begins and asks once more at the end, foolbox and APGD ask once more without a gradient; in balls that shrink
(l1) APGD takes two gradients more, at the starts of its later balls. Other libraries attack several models by
the mean of their logits. They ask the networks themselves: the cheaper gradients of grey images that the
library has since 2026-11-18 05:00 (`image_gradients`, below) are on our side only, and in no table begun
before. The robust CNN for MNIST and ResNet-18 for CIFAR-10, which is not robust at all, are the networks inside
pyautoattack.

Images are test images, in tables of attacks of MNIST from number 300 on and of CIFAR-10 the first. Step lengths
of `attack` and the numbers of `MinMax()` were chosen on the first 300 test images, and how many entries move in
l1 balls on the first thousand (docs/RESULTS.md, docs/CEILING.md): the lines of CIFAR-10 and the l1 lines of
MNIST may flatter ours. Only the other lines of MNIST are on other images.

Peers: `pip install -e .[peers]`, then `pip install --no-deps torchattacks adv-lib`. These two are not in the
extra, for what they name among their needs: torchvision, which breaks other libraries where it does not fit the
installed torch; torchattacks 3.5.1 also requests 2.25, of 2020, which takes back other packages; adv-lib 0.2.8
visdom, whose source does not build with the present setuptools. What is used of them here needs none of these.
A stored table is not replaced where a library of its lines is missing.

Every table says by which code and on which day (UTC) it was begun. The code is a digest of the library's
programs and of these comparisons when it was measured: **a table need not be of the present code**, whose
digest `python -m benchmarks --codes` prints as that of `peers`, for the tables of projections too, with how
many tables are of it; what it prints as `projections` is of a room of `python -m benchmarks`. A "+" behind a
commit means that files of the checkout differed from it, be it a page only; the digest is of the programs as
they ran.
"""
_SHORT = """## In short

**Networks are small ones of MNIST, one of them robust, and networks of CIFAR-10 that are not robust**: no
robust network of CIFAR-10 and no network of ImageNet was compared. Ours is beside the method of another library
that breaks most, of several that break as many the one in the least time. Intervals are of 95 % for each method
alone: where they overlap, the difference in images broken may be chance.

"""
_ROOMS = {
    "a": "ASR_all is the share of images that all models misclassify. Above 1, the first ratio says that ours "
    "fools more, the second that ours takes less time. On CIFAR-10, too, `apgda` takes the step 1/4 that the "
    "paper has for MNIST; for CIFAR-10 the paper has 1/5.",
    "b": "ASR is the share of images that are misclassified. Every method may take as many gradients; ours "
    "divides them into two restarts and stops asking for fooled images. Above 1, the first ratio says that "
    "ours fools more, the second that ours takes less time.",
    "c": "The worst error is the largest distance of an entry from the optimum, a bisection in float64. "
    "Farther is how much farther than the optimum the returned point is from the given one, at worst; "
    "negative if it is outside ball or box. The ratio of our own line to itself is the noise of the "
    "measurement. Ratios of times are medians of 31 repeats, of cvxpy of 3, in each of which both run; ms is "
    "one further run, so that its quotients are not the ratios. Points are normal perturbations, of deviation "
    "0.5, of the first test images of both data sets; cvxpy is compared on three of them. Of adv-lib there is "
    "no l2 projection. AutoAttack rescales and clamps for l2, which is not the projection onto ball and box "
    "together; what is timed there are these two steps as we wrote them, not a function of the package.",
    "d": "Robust accuracy is the share of images that are right after everything; lower is the stronger "
    "attack. Above 1, the ratio says that ours takes less time; negative points say that ours breaks more. "
    "Wanted are a fifth of the time at most, and one point weaker at most; a line says where that is missed. "
    "docs/RESULTS.md compares the two on more networks, and the robust CNN on other images, from the first on: "
    "its shares are others there.",
}
_NAMES = (
    " What ran beside a case are the names of other processes that used more than a tenth of a core when it "
    "began, and how much of one."
)
_EARLIER = "`attack`, cross-entropy"
"""A line that only cases have which were measured before `attack` with one domain took two restarts."""


def render(content: Mapping[str, Any], store: str, figures: Path | None = None) -> str:
    """The whole page.

    Args:
        content: What is stored.
        store: The name of the file, for the page.
        figures: Own figures, which come last.
    """
    cases: Mapping[str, Any] = content["cases"]
    blocks = [_INTRODUCTION.format(store=store)]
    counts = [case["settings"]["images"] for case in cases.values()]
    if counts and max(counts) < SMALL:
        blocks.append(
            f"**A run of {max(counts)} images at most: it shows that the command works, no more.**\n"
        )
    blocks += [_machine(cases), _summary(cases), ahead.section(cases)]
    for room, heading in HEADINGS.items():
        chosen = {key: case for key, case in cases.items() if key.startswith(f"{room}: ")}
        skipped = {
            key: why for key, why in content["skipped"].items() if key.startswith(f"{room}: ")
        }
        if not chosen and not skipped:
            continue
        blocks.append(f"## {heading}\n\n{_ROOMS[room]}\n")
        blocks += [_rules(chosen)] if room in "ab" else []
        blocks += [said.OF[room](chosen)] if room in said.OF else []
        for key, case in chosen.items():
            table = _projections(case) if room == "c" else _attacks(case, room)
            misses = [f"\n**Missed**: {said}." for said in missed(case)] if room == "d" else []
            blocks.append(f"### {key[3:]}\n\n{table}{_about(case)}{''.join(misses)}\n")
        blocks += [f"Skipped: {key[3:]} ({why}).\n" for key, why in skipped.items()]
    blocks += [kept.section(figures, ahead.misses(cases))] if figures is not None else []
    return "\n".join(block for block in blocks if block).rstrip() + "\n"


def _attacks(case: Mapping[str, Any], room: str) -> str:
    found = _in_order(lines(case["cells"], case["methods"][0]), case["methods"])
    ours = next((line for line in found if line.method == case["methods"][0]), None)
    name = {"a": "ASR_all", "b": "ASR", "d": "Robust accuracy"}[room]
    ratios = [f"{name}, ours / theirs", "Time, theirs / ours"]
    if room == "d":
        ratios = ["Time, theirs / ours", f"{name}, ours - theirs"]
    head = [*ratios, "Method", f"{name}, %", "Evaluations", "Seconds", "Not counted"]
    rows = []
    for line in found:
        time = number(line.time_ratio)
        if ours is None:
            first = ["-", "-"]
        elif room == "d":
            first = [time, f"{100 * (line.share - ours.share):+.1f}"]
        else:
            first = [_over_theirs(ours, line), time]
        right = line.images - line.fooled if room == "d" else line.fooled
        low, high = wilson(right, line.images)
        share = f"{100 * right / line.images:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        numbers = [f"{line.evaluations:.1f}", f"{line.seconds:.1f}", str(line.lost)]
        rows.append([*first, line.method, share, *numbers])
    return table(head, rows)


def _projections(case: Mapping[str, Any]) -> str:
    head = ["Time, theirs / ours", "Worst error, theirs / ours", "Method", "Worst error"]
    head += ["Farther", "Shape", "ms"]
    rows = [
        [
            number(cell["ratio"]),
            number(_over(cell["error"], cell["ours"])),
            name,
            f"{cell['error']:.1e}",
            f"{cell['farther']:+.1e}",
            f"{cell['rows']} x {cell['entries']}",
            f"{1000 * cell['seconds']:.2f}",
        ]
        for name, cell in case["cells"].items()
    ]
    return table(head, rows)


def _summary(cases: Mapping[str, Any]) -> str:
    rows = []
    for key, case in large(cases):
        if (pair := ours_and_best(case)) is None:
            continue
        ours, best = pair
        gain = f"{100 * (ours.share - best.share):+.1f}"
        asked = number(_over(best.evaluations, ours.evaluations))
        made = [case["settings"]["code"], case["begun"].partition(" ")[0]]
        names = [key[3:], ours.method, best.method]
        rows.append([best.time, gain, best.beside(ours), asked, *names, *made])
    if not rows:
        return ""
    head = ["Time, theirs / ours", "Broken by ours - by theirs, points", "Intervals"]
    head += ["Evaluations, theirs / ours", "Case", "Ours", "Best of the others", "Code", "Day"]
    text = _SHORT + table(head, rows)
    small = [key[3:] for key, case in finished(cases) if case["settings"]["images"] < SMALL]
    notes = []
    if small:
        notes.append(f"Left out, with fewer than {SMALL} images: {'; '.join(small)}.\n")
    return "\n".join([text, *notes])


def _in_order(found: list[Line], methods: Sequence[str]) -> list[Line]:
    return sorted(found, key=lambda line: methods.index(line.method))


def _rules(cases: Mapping[str, Any]) -> str:
    rules = {name: rule for case in cases.values() for name, rule in case["rules"].items()}
    return "Step sizes: " + "; ".join(f"{name}: {rule}" for name, rule in rules.items()) + ".\n"


def _about(case: Mapping[str, Any]) -> str:
    settings = case["settings"]
    words = [f"{settings['images']} images"]
    if settings.get("evaluations"):
        words.append(f"at most {settings['evaluations']} gradients each")
    words += [f"seed {settings['seed']}", f"begun {case['begun']}", f"load average {case['load']}"]
    if "others" in case:
        words.append(f"beside it: {machine.said(case['others'])}")
    words.append(f"code {settings['code']}")
    notes = ["", ", ".join(words) + "."]
    notes += [f"Skipped: {name} ({why})." for name, why in case["missing"].items()]
    if _EARLIER in case.get("methods", ()):
        notes.append("`attack` is that of an earlier code here: one restart, on the margin.")
    done, wanted = len(case["cells"]), case["wanted"]
    if done < wanted:
        notes.append(f"**Unfinished: {done} of {wanted} cells.**")
    return "\n".join(notes)


def _machine(cases: Mapping[str, Any]) -> str:
    def values(read: Any) -> str:
        return "; ".join(dict.fromkeys(str(read(case)) for case in cases.values()))

    loads = [case["load"] for case in cases.values()] or [0.0]
    rows: Iterator[tuple[str, str]] = iter(
        [
            ("CPU", values(lambda case: case["settings"]["cpu"])),
            ("Cores", values(lambda case: case["cores"])),
            ("Threads used", values(lambda case: case["settings"]["threads"])),
            ("Load average when cases began", f"{min(loads)} to {max(loads)}"),
            ("Code (commit, day)", values(_code)),
            ("Versions", _versions(cases)),
        ]
    )
    body = "".join(f"| {name} | {value} |\n" for name, value in rows)
    named = any(case.get("others") for case in cases.values())
    return (
        "The load average counts processes that wanted a core when a case began, "
        f"a benchmark that already ran among them.{_NAMES if named else ''}\n\n| Machine | |\n|---|---|\n"
        + body
    )


def _code(case: Mapping[str, Any]) -> str:
    return f"{case['settings']['code']} ({case['commit']}, {case['begun'].partition(' ')[0]})"


def _versions(cases: Mapping[str, Any]) -> str:
    """Of the most tables first; where there are others, those tables are named, by their headings."""
    tables: dict[str, list[str]] = {}
    for key, case in cases.items():
        tables.setdefault(_pairs(case["settings"]["versions"]), []).append(key)
    usual, *others = sorted(tables, key=lambda words: -len(tables[words])) or [""]
    if not others:
        return usual
    return "; ".join([f"{usual} (all tables but these)", *(_of(tables[o], o) for o in others)])


def _of(keys: Sequence[str], versions: str) -> str:
    rooms: dict[str, list[str]] = {}
    for key in keys:
        rooms.setdefault(HEADINGS[key[0]], []).append(key[3:])
    named = "; ".join(f'under "{room}" {" and ".join(titles)}' for room, titles in rooms.items())
    return f"{versions} ({named})"


def _pairs(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _over(one: float, other: float) -> float:
    """The ratio; nothing over nothing is none."""
    return one / other if other else float("inf") if one else float("nan")


def _over_theirs(ours: Line, theirs: Line) -> str:
    """The ratio of shares; the counts themselves where theirs is zero."""
    if ours.fooled and not theirs.fooled:
        return f"{ours.fooled} : 0"
    return number(_over(ours.share, theirs.share))
