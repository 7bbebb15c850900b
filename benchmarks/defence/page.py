"""The tables of docs/RESULTS.md from the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from benchmarks import marks
from benchmarks.peers.page import table as markdown
from saddlepoint.evaluation.rates import wilson
from saddlepoint.experiments.defences import PUBLISHED
from saddlepoint.experiments.pairs import mean_of
from saddlepoint.experiments.truths import unpacked

from . import unseen
from .plan import TABLES, Table

SUITES = {
    "quick": "`quick`",
    "autoattack": "AutoAttack",
    "autoattack+": "AutoAttack+",
    "paper": "suite `paper`",
    unseen.SUITE: "`quick`, on training images that no row has seen",
}
_MARKS = "<!-- defence -->", "<!-- end of defence -->"
_INTRODUCTION = """\
Written by `python -m benchmarks.defence` from `docs/results/defence.json`; the network is `mnist_cnn_small`
with radii (0.3, 2, 10), for CIFAR-10 `preact_resnet_small` with (0.03, 0.5, 12). Accuracy in percent on the
first test images, or where something is chosen by it on training images that no row has seen, under every
attack of a suite; clean accuracy is that of all test images. With several seeds numbers are means over
them, and the smallest and largest follow in brackets; **one seed has no spread, and says little about
a method**. "Minus it" is the union of the first row minus that of this row, image by image on the same
images and averaged over the seeds that both have, which are named where they are fewer than either has,
with a 95 % interval over images; what another seed would change is not in it. The same by threat follows.
Where the paper publishes a number under the same suite, that of its own, larger network follows. E-AT
draws among all three threats, the original between linf and l1, so that these rows are no verdict on it.
All of E-AT here drew by the same random numbers in every epoch and with every seed, which is mended since:
the spread over its seeds may be too small, and it has to be trained again.
"""


@dataclass(frozen=True)
class Line:
    """A row of a table under one suite.

    Attributes:
        row: Its name.
        seeds: Those that were judged.
        right: Who was right under each threat, and under all ("union"), seed by seed: (seeds, images).
        clean: Accuracy on all test images, by seed.
        weights: Mean weights of the threats in the last epoch, by seed.
    """

    row: str
    seeds: tuple[int, ...]
    right: Mapping[str, Tensor]
    clean: tuple[float, ...]
    weights: tuple[Mapping[str, float], ...] = ()

    @property
    def threats(self) -> list[str]:
        return [name for name in self.right if name not in ("clean", "union")]

    def share(self, name: str) -> float:
        """Mean accuracy in percent over the seeds."""
        return 100 * self.right[name].double().mean().item()

    def by_seed(self, name: str = "union") -> list[float]:
        """Accuracy in percent, seed by seed."""
        return [100 * each.double().mean().item() for each in self.right[name]]

    def truths(self, seeds: Collection[int], name: str = "union") -> list[list[bool]]:
        """Who was right under a threat, or under all, for some of its seeds."""
        found: list[list[bool]] = [
            self.right[name][self.seeds.index(seed)].tolist() for seed in seeds
        ]
        return found

    def minus(self, other: Line, name: str = "union") -> tuple[float, float, float] | None:
        """The accuracy of this row minus that of another in points, and its interval over images."""
        common = shared_seeds([self, other])
        if not common:
            return None
        pairs = list(zip(other.truths(common, name), self.truths(common, name), strict=True))
        middle, (low, high) = mean_of(pairs, same_rows=True)
        return middle, low, high


def shared_seeds(rows: Iterable[Line]) -> list[int]:
    """The seeds that all rows have."""
    return sorted(set.intersection(*(set(row.seeds) for row in rows)))


def lines(table: Table, suite: str, networks: Mapping[str, Any]) -> list[Line]:
    """Rows of which at least one seed was judged by the suite, in the order of the table."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for training in table.trainings():
        network = networks.get(training.key, {})
        judged = network.get("suites", {}).get(suite)
        # What was judged on fewer images, or trained otherwise, is not of this table.
        if judged is None or judged["images"] < table.suites[suite]:
            continue
        if network["command"] == training.settings.command():
            found.setdefault(training.row, []).append((training.seed, network))
    count = table.suites[suite]
    return [line_of(row, judged, suite, count) for row, judged in found.items()]


def line_of(row: str, judged: list[tuple[int, Any]], suite: str, images: int) -> Line:
    """A row out of seeds and networks of the store that a suite has judged, on the first images."""
    by_threat: dict[str, list[Tensor]] = {}
    for _, network in judged:
        verdict = network["suites"][suite]
        right = {
            name: torch.tensor(unpacked(digits, verdict["images"], filled="after")[:images])
            for name, digits in verdict.items()
            if name != "images"
        }
        right["union"] = torch.stack(list(right.values())).all(dim=0)
        for name, each in right.items():
            by_threat.setdefault(name, []).append(each)
    return Line(
        row,
        tuple(seed for seed, _ in judged),
        {name: torch.stack(each) for name, each in by_threat.items()},
        tuple(network["accuracy"] for _, network in judged),
        tuple(network.get("weights", {}) for _, network in judged),
    )


def rendered(table: Table, suite: str, networks: Mapping[str, Any]) -> str:
    """One table in Markdown with a sentence about it; empty without rows."""
    rows = lines(table, suite, networks)
    if not rows:
        return ""
    if table.weights:
        return _weights(table, rows)
    names = rows[0].threats
    head = ["Method", "seeds", "clean", *names, "**union**", f"{rows[0].row} minus it"]
    cells = [
        [row.row, str(len(row.seeds)), f"{mean(row.clean):.1f}"]
        + [spread_of(row, name) for name in names]
        + [union_of(row), difference(rows[0], row)]
        for row in rows
    ]
    published = PUBLISHED.get((table.shared["data"], suite), {})
    if any(row.row in published for row in rows):
        head.append("the paper's network: " + " / ".join([*names, "union"]))
        for row, cell in zip(rows, cells, strict=True):
            cell.append(" / ".join(f"{each:.1f}" for each in published.get(row.row, ())))
    images = table.suites[suite]
    parts = [f"{SUITES[suite]}, {images:,} images:\n", markdown(head, cells), _said(table, rows)]
    parts += [*_by_threat(rows), *_better(table, suite, rows, networks)]
    return "\n".join(parts) + "\n"


def _by_threat(rows: list[Line]) -> Iterator[str]:
    """The first row minus each of the others, threat by threat."""
    first, *others = rows
    cells = [
        [row.row, *(difference(first, row, name) for name in first.threats)]
        for row in others
        if shared_seeds([first, row])
    ]
    if cells:
        yield f"{first.row} minus each row, threat by threat:\n"
        yield markdown(["Method", *first.threats], cells)


def _better(
    table: Table, suite: str, rows: list[Line], networks: Mapping[str, Any]
) -> Iterator[str]:
    """Every row of the table, or of the one beside it if it has more there, minus the best of that one.

    Only where all of them have the same seeds, and several.
    """
    beside = lines(TABLES[table.beside], suite, networks) if table.beside else []
    every = {row.seeds for row in (*beside, *rows)}
    if not beside or len(every) > 1 or len(rows[0].seeds) < 2:
        return
    places = [(f"`{table.beside}`", beside), (f"`{table.name}`", rows)]
    best = max(beside, key=lambda row: row.share("union"))
    cells = []
    for name in (row.row for row in rows):
        found = [(row, place) for place, each in places for row in each if row.row == name]
        row, place = max(found, key=lambda pair: pair[0].share("union"))
        pairs = zip(row.by_seed(), best.by_seed(), strict=True)
        seeds = "" if row is best else ", ".join(f"{one - other:+.1f}" for one, other in pairs)
        cells.append([name, place, union_of(row), difference(row, best), seeds])
    head = ["Method", "table", "**union**", f"minus {best.row} of `{table.beside}`", "seed by seed"]
    yield f"Each method as it is better, here or in `{table.beside}`, chosen on these images:\n"
    yield markdown(head, cells)


def _weights(table: Table, rows: list[Line]) -> str:
    """Mean weights of the last epoch: over seeds, the smallest and the largest in brackets."""
    names = list(rows[0].weights[0])
    cells = []
    for row in rows:
        found = [[each[name] for each in row.weights] for name in names]
        shown = [f"{mean(one):.2f} [{min(one):.2f}, {max(one):.2f}]" for one in found]
        cells.append([row.row, str(len(row.seeds)), *shown])
    head = ["Method", "seeds", *(f"weight of {name}" for name in names)]
    done, wanted = sum(len(row.seeds) for row in rows), sum(1 for _ in table.trainings())
    return f"{markdown(head, cells)}\n{done} of {wanted} networks of this table are there.\n"


def union_of(row: Line) -> str:
    """The union, with the smallest and the largest over the seeds, or an interval over images for one."""
    unions = row.right["union"]
    if len(unions) == 1:
        low, high = wilson(int(unions.sum()), unions.numel())
        return f"**{row.share('union'):.1f}** (interval over images {100 * low:.1f} to {100 * high:.1f})"
    share, _, spread = spread_of(row, "union").partition(" ")
    return f"**{share}** {spread}"


def spread_of(row: Line, name: str) -> str:
    """The accuracy under a threat, with the smallest and the largest over the seeds where there are several."""
    each = row.by_seed(name)
    spread = f" [{min(each):.1f}, {max(each):.1f}]" if len(each) > 1 else ""
    return f"{row.share(name):.1f}{spread}"


def difference(first: Line, row: Line, name: str = "union") -> str:
    """The accuracy of the first minus that of a row, with its interval; empty for one and the same."""
    found = None if row is first else first.minus(row, name)
    if found is None:
        return ""
    common = shared_seeds([first, row])
    fewer = len(common) < max(len(first.seeds), len(row.seeds))
    seeds = f", seed {', '.join(map(str, common))}" if fewer else ""
    return f"{found[0]:+.1f} ({found[1]:+.1f} to {found[2]:+.1f}{seeds})"


def _said(table: Table, rows: list[Line]) -> str:
    """What the numbers say by themselves: who has the highest union, and how many networks are missing.

    Rows are compared over the seeds that all of them have.
    """
    common = shared_seeds(rows)
    done, wanted = sum(len(row.seeds) for row in rows), sum(1 for _ in table.trainings())
    said = []
    if len(rows) > 1 and common:
        means = {row.row: mean(map(mean, row.truths(common))) for row in rows}
        best = max(means, key=means.__getitem__)
        number = f"{best}, {100 * means[best]:.1f}"
        whole = all(list(row.seeds) == common for row in rows)
        said.append(
            f"Highest mean union: {number}."
            if whole and len(common) > 1
            else f"Highest union over {_named(common)}, which all of these rows have: {number}."
        )
    if done < wanted:
        said.append(
            f"Judged so far: {done} of the {wanted} networks of this table; missing: {_missing(table, rows)}."
        )
    return " ".join(said) + "\n"


def _missing(table: Table, rows: list[Line]) -> str:
    """The networks that a suite has not judged, by row and seed."""
    there = {(row.row, seed) for row in rows for seed in row.seeds}
    seeds: dict[str, list[int]] = {row: [] for row in table.rows}
    for each in table.trainings():
        if (each.row, each.seed) not in there:
            seeds[each.row].append(each.seed)
    return "; ".join(f"{row}, {_named(each)}" for row, each in seeds.items() if each)


def _named(seeds: Collection[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def sections(networks: Mapping[str, Any]) -> Iterator[str]:
    """A section for every table that has rows, and one that names the others."""
    none = []
    for table in TABLES.values():
        parts = {suite: rendered(table, suite, networks) for suite in table.suites}
        if not any(parts.values()):
            none.append(f"* `{table.name}`: {table.title}. {table.note}".rstrip())
            continue
        title = table.title[0].upper() + table.title[1:]
        line = f"`python -m benchmarks.defence {table.name}`. {table.note}".rstrip()
        texts = [text or f"{SUITES[suite]}: not run yet.\n" for suite, text in parts.items()]
        yield "\n".join([f"### {title}\n", f"{line}\n", *texts])
    if none:
        yield "\n".join(["### Tables of which nothing has been run yet\n", *none]) + "\n"


def document(content: Mapping[str, Any]) -> str:
    """All that stands between the marks of the page."""
    return "\n".join([_INTRODUCTION, *sections(content["trainings"])])


def write(page: Path, content: Mapping[str, Any]) -> None:
    """Put the tables into the page.

    Raises:
        ValueError: The page has no marks.
    """
    marks.put(page, document(content), *_MARKS)
