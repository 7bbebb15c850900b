"""docs/TRANSFER_RESULTS.md from the stored rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saddlepoint.evaluation import wilson
from saddlepoint.runs.ranking import LEVEL, mcnemar

from .peers.page import table

LETTERS = "ABCD"
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}

_INTRODUCTION = """# What helps transfer

Written by `python -m benchmarks transfer` from `{store}`; edit neither by hand. Guide:
[transfer.md](transfer.md).

Each shipped network A to D is once the victim, and the other three are the surrogates that attacks may ask.
Success is the share of images about which the victim is wrong, of {counts}: the first test images from
number {first} on that all four networks have right. Radii in linf: {radii}. Every method gets
{steps} gradients per image and surrogate and uses all of them, but for `stops`, which is `attack` as it is by
default: it lets go of an image as soon as it fools all three surrogates, after {spent} gradients in the
mean of a victim. Seed {seed}. Network B computes in bfloat16 while attacks search, for all methods alike;
verdicts are in float32, by one judge. The networks are small and were trained on the same images: nothing here
says how far a perturbation gets with other data or larger networks.

* `attack` is `sp.attack(..., keep_going=True)`; `signs` is `sp.apgda` with signed steps of a quarter of the
  radius, the step size of torchattacks' defaults. Both descend the C&W margin.
* `min-max` and `average` weigh the surrogates' losses; `mean logits` is one domain, the mean of their logits.
* `momentum` is `apgda(momentum=1)`; `diverse` shows each surrogate a random crop of 80 to 100 % of the image in
  every step (`Product`); `8 bits` is `quantize=256`.
* torchattacks {version}: MI-FGSM (decay 1) and DI-FGSM (its defaults), cross-entropy of the mean logits.
  DI-FGSM differs from `diverse` in more than the loss: no momentum, and with probability 1/2 in each step
  all images are resized and padded alike.
"""
_PAIRS = """## Pair by pair

Images that only the first of two methods fools the victim with, and those that only the second does, with p of
the exact McNemar test; **bold** where p is below {level} after Bonferroni over all {count} tests of the table.
The images of a data set are the same for all its victims, so that columns are not independent of each other,
and the sums in the last one have no p.
"""

COMPARED: tuple[tuple[str, str, str], ...] = (
    ("min-max instead of average, `attack`", "attack, min-max", "attack, average"),
    ("min-max instead of average, signs", "signs, min-max", "signs, average"),
    (
        "min-max instead of average, momentum",
        "signs, min-max, momentum",
        "signs, average, momentum",
    ),
    (
        "min-max instead of average, diverse",
        "signs, min-max, diverse, momentum",
        "signs, average, diverse, momentum",
    ),
    ("mean logits instead of average", "signs, mean logits", "signs, average"),
    ("momentum instead of none, average", "signs, average, momentum", "signs, average"),
    ("momentum instead of none, min-max", "signs, min-max, momentum", "signs, min-max"),
    (
        "diverse instead of plain, average",
        "signs, average, diverse, momentum",
        "signs, average, momentum",
    ),
    (
        "diverse instead of plain, min-max",
        "signs, min-max, diverse, momentum",
        "signs, min-max, momentum",
    ),
    ("keeps going instead of stops", "attack, min-max", "attack, min-max, stops"),
    ("8 bits instead of floats", "attack, min-max, 8 bits", "attack, min-max"),
    (
        "mean logits with momentum instead of MI-FGSM",
        "signs, mean logits, momentum",
        "torchattacks MI-FGSM",
    ),
    (
        "mean logits, diverse, instead of DI-FGSM",
        "signs, mean logits, diverse, momentum",
        "torchattacks DI-FGSM",
    ),
)
"""What is asked, and the two methods that answer it."""


@dataclass(frozen=True)
class Outcome:
    """What a method did to one victim: of every image whether the victim, and all surrogates, are wrong."""

    victim: tuple[bool, ...]
    surrogates: tuple[bool, ...]
    gradients: float

    @staticmethod
    def joined(cells: Sequence[Mapping[str, Any]]) -> Outcome:
        marks = (
            tuple(mark == "1" for cell in cells for mark in cell[name])
            for name in ("victim", "surrogates")
        )
        victim, surrogates = marks
        spent = sum(cell["gradients"] for cell in cells) / len(victim)
        return Outcome(victim, surrogates, spent)

    @property
    def rate(self) -> float:
        return sum(self.victim) / len(self.victim)

    def beside(self, other: Outcome) -> tuple[int, int]:
        """Images that only this one fools the victim with, and those that only the other does."""
        pairs = list(zip(self.victim, other.victim, strict=True))
        return pairs.count((True, False)), pairs.count((False, True))


Lines = dict[str, dict[str, Outcome]]
"""Outcomes by victim, such as "mnist A", and by method."""


def outcomes(content: Mapping[str, Any], methods: Collection[str]) -> Lines:
    """Of every victim and method, on the images that all methods have; a part under way is left out."""
    found: Lines = {}
    for key, case in content["cases"].items():
        parts: dict[str, dict[int, Any]] = {}
        for name, cell in case["cells"].items():
            method, _, number = name.rpartition("/")
            if method in methods:
                parts.setdefault(method, {})[int(number)] = cell
        whole = sorted(set.intersection(*map(set, parts.values()))) if parts else []
        ours = {each for each in methods if not each.startswith("torchattacks")}
        if whole and ours <= parts.keys():
            found[key] = {
                method: Outcome.joined([parts[method][number] for number in whole])
                for method in methods
                if method in parts
            }
    return found


def render(content: Mapping[str, Any], store: str, methods: Collection[str]) -> str:
    """The page."""
    lines = outcomes(content, methods)
    if not lines:
        return (
            "# What helps transfer\n\nNothing is measured yet: `python -m benchmarks transfer`.\n"
        )
    cases = [content["cases"][key] for key in lines]
    settings = cases[0]["settings"]
    stops = [each["attack, min-max, stops"].gradients for each in lines.values()]
    text = _INTRODUCTION.format(
        store=store,
        counts=_counts(lines),
        first=settings["first"],
        radii=", ".join(
            f"{TITLES[data]} {next(iter(_of(content, data)))['settings']['eps']:.4g}"
            for data in TITLES
            if _of(content, data)
        ),
        steps=settings["steps"],
        spent=f"{min(stops):.1f} to {max(stops):.1f}",
        seed=settings["seed"],
        version=settings["torchattacks"],
    )
    parts = [text]
    for data, title in TITLES.items():
        own = {key.split()[1]: each for key, each in lines.items() if key.startswith(f"{data} ")}
        if own:
            parts += [f"## {title}: success on the victim, per cent, with its 95 % interval\n"]
            parts += [_rates(own), _verdict(own)]
    return "\n".join([*parts, _paired(lines), _cost(cases, methods)])


def _of(content: Mapping[str, Any], data: str) -> list[Mapping[str, Any]]:
    return [case for key, case in content["cases"].items() if key.startswith(f"{data} ")]


def _counts(lines: Lines) -> str:
    sizes = sorted({len(next(iter(each.values())).victim) for each in lines.values()})
    return f"{sizes[0]} images" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} images"


def _rates(own: Mapping[str, Mapping[str, Outcome]]) -> str:
    names = list(dict.fromkeys(name for each in own.values() for name in each))
    best = {letter: max(each.rate for each in methods.values()) for letter, methods in own.items()}
    rows = []
    for name in names:
        cells = []
        for letter, methods in own.items():
            found = methods.get(name)
            cells.append("-" if found is None else _cell(found, best=best[letter]))
        there = [methods[name] for methods in own.values() if name in methods]
        mean = sum(each.rate for each in there) / len(there)
        white = sum(sum(each.surrogates) / len(each.surrogates) for each in there) / len(there)
        rows.append([name, *cells, f"{100 * mean:.1f}", f"{100 * white:.1f}"])
    head = ["Method", *(f"victim {letter}" for letter in own), "mean", "all surrogates"]
    return table(head, rows)


def _cell(found: Outcome, *, best: float) -> str:
    low, high = wilson(sum(found.victim), len(found.victim))
    value = f"{100 * found.rate:.1f}"
    value = f"**{value}**" if found.rate == best else value
    return f"{value} ({100 * low:.0f}-{100 * high:.0f})"


def _verdict(own: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Which method has the highest rate on each victim, and how many are not separable from it."""
    told = []
    for letter, methods in own.items():
        first = max(methods.values(), key=lambda each: each.rate)
        name = " and ".join(n for n, each in methods.items() if each.rate == first.rate)
        others = [each for each in methods.values() if each is not first]
        tests = [(first.beside(each), each) for each in others]
        near = sum(mcnemar(*pair) * len(others) > LEVEL for pair, _ in tests)
        told.append(
            f"* Victim {letter}: highest is {name}; {near} of the {len(others)} others are not separable from "
            f"the first (McNemar, 5 % for all {len(others)} together)."
        )
    return "\n".join([*told, ""])


def _paired(lines: Lines) -> str:
    known = [
        (what, one, other)
        for what, one, other in COMPARED
        if any(one in each and other in each for each in lines.values())
    ]
    count = len(known) * len(lines)
    rows, won = [], []
    for what, one, other in known:
        cells, better, worse, sums = [], [], [], (0, 0)
        for key, methods in lines.items():
            if one not in methods or other not in methods:
                cells.append("-")
                continue
            first, second = methods[one].beside(methods[other])
            sums = (sums[0] + first, sums[1] + second)
            p = mcnemar(first, second)
            sure = p * count <= LEVEL
            text = f"{first}, {second} ({p:.2g})"
            cells.append(f"**{text}**" if sure else text)
            (better if first > second else worse).extend([_named(key)] if sure else [])
        rows.append([what, *cells, f"{sums[0]}, {sums[1]}"])
        if better or worse:
            won.append(f"* {what}:{_said(better, 'helps on')}{_said(worse, 'harms on')}.")
    head = ["Case", *(_named(key) for key in lines), "sum"]
    text = _PAIRS.format(level=LEVEL, count=count)
    conclusion = (
        "Separable, all tests together:\n\n" + "\n".join(won)
        if won
        else "No pair is separable when all tests are taken together."
    )
    return f"{text}\n{table(head, rows)}\n{conclusion}\n"


def _named(key: str) -> str:
    data, letter = key.split()
    return f"{TITLES[data]} {letter}"


def _said(victims: Sequence[str], verb: str) -> str:
    return f" {verb} {', '.join(victims)}" if victims else ""


def _cost(cases: Sequence[Mapping[str, Any]], methods: Collection[str]) -> str:
    cells = (item for case in cases for item in case["cells"].items())
    seconds = sum(cell["seconds"] for name, cell in cells if name.rpartition("/")[0] in methods)
    cpus = ", ".join(sorted({case["cpu"] for case in cases}))
    return f"Attacks took {seconds / 60:.0f} minutes of one core in all ({cpus}).\n"
