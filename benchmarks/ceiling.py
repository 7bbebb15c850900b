"""`attack` beside its own ceiling, ten restarts of 200 steps, and beside other weight rules, row by row.

``python -m benchmarks.ceiling`` measures what is not stored for the present code, stores every part of the rows
as soon as it is done, and writes docs/CEILING.md; called again, it goes on where it was stopped. Images are
test images on which no number of `attack` was chosen: single images from number 2000 on, groups from number
4000 on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import saddlepoint as sp
from saddlepoint.files import write_atomically
from saddlepoint.precision import is_native
from saddlepoint.runs import build
from saddlepoint.runs.settings import ATTACKS, AttackSettings

from . import one_domain
from .ceiling_page import WANTED, Lines, Made, Outcome, render
from .peers import machine, sound
from .peers.cells import Store
from .stores import StoreError, exit_with
from .timing import Figure, at_least

STORE = Path("docs/results/ceiling.json")
IDEAS = (
    Path(__file__).parents[1] / "docs/results/ceiling-ideas.json"
)  # whatever the folder one is in
PAGE = Path("docs/CEILING.md")
PART = 50
"""Rows that are stored at once."""
FIRST = {"ensemble": 2000, "universal": 4000, "transform": 2000}
"""Number of the first test image."""

KIND = sound.rows(PART)
LONGER = 600
"""Rows of the case that was looked at longer, of which the page says why."""

_PROBLEM = {"kind", "data", "models", "norm", "eps", "transforms", "group_size", "seed"}

TABLES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "rules": {
        "default": {},
        "ceiling": {"steps": 200, "restarts": 10},
        "worst": {"rule": sp.WorstCase()},
        "entropic": {"rule": sp.Entropic()},
    },
    "budgets": {str(number): {"evaluations": number} for number in (25, 50, 100, 250)},
}
"""Options of `attack` by table and by the name of the method."""


@dataclass(frozen=True)
class Case:
    """One line of every table: a problem with the paper's radius."""

    title: str
    settings: AttackSettings
    rows: int

    def problem(self, count: int) -> sp.AbstractProblem:
        settings, first = self.settings, FIRST[self.settings.kind]
        images = count * getattr(settings, "group_size", 1)
        x, y = sp.data.load(settings.data, split="test")
        if first + images > len(x):
            raise ValueError(
                f"`rows` must be at most {len(x) - first} images from number {first} on, got {images}."
            )
        models = {name: sp.models.load(name) for name in settings.models}
        few = slice(first, first + images)
        return build.problem_of(settings, x[few], y[few], models)

    @property
    def precision(self) -> list[str]:
        """bfloat16 for network B, the slowest, where the processor has it; verdicts are always in float32."""
        native = is_native(torch.device("cpu"))
        return [
            "bfloat16" if native and name.endswith("-b") else "float32"
            for name in self.settings.models
        ]


def _case(
    kind: str, data: str, networks: str, norm: str = "linf", rows: int = 200, **more: Any
) -> Case:
    names = [f"{data}-{letter.lower()}" for letter in networks]
    flags = {"data": data, "models": names, "norm": norm, **more}
    settings = ATTACKS[kind].load(flags)
    shown = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[data]
    size = f"groups of {more['group_size']}, " if "group_size" in more else ""
    views = "six transformations, " if kind == "transform" else ""
    title = f"{shown} {{{', '.join(networks)}}}, {size}{views}{norm} {settings.eps:g}"
    return Case(title, settings, rows)


CASES = (
    _case("ensemble", "mnist", "ACD"),
    _case("ensemble", "mnist", "ABCD"),
    _case("ensemble", "cifar10", "ABCD"),
    _case("ensemble", "cifar10", "ABCD", "l2"),
    _case("ensemble", "cifar10", "ABCD", "l1", rows=60),
    _case("ensemble", "cifar10", "ABCD", "l0"),
    *(_case("universal", "cifar10", name, rows=100, group_size=10, eps=0.05) for name in "ACD"),
    _case("universal", "cifar10", "B", rows=60, group_size=10),
    _case("transform", "cifar10", "A"),
    _case("transform", "cifar10", "B", rows=40),
    _case("transform", "cifar10", "C"),
    _case("transform", "cifar10", "D", rows=LONGER),
)


def measure(table: str, case: Case, store: Store, rows: int) -> None:
    """Add the cells that are missing: every method of the table on the first rows, then on the next."""
    networks = {name: sp.models.card(name).sha256 for name in case.settings.models}
    store.content["networks"].update(networks)
    settings = {
        "rows": rows,
        "first": FIRST[case.settings.kind],
        "problem": case.settings.model_dump(include=_PROBLEM),
        "precision": case.precision,
        "networks": networks,
        "options": machine.told(TABLES[table]),
        "code": machine.code_of("ceiling"),
    }
    wanted = len(TABLES[table]) * len(range(0, rows, PART))
    about = {"begun": machine.now(), "cpu": machine.cpu(), "wanted": wanted}
    key = _key(table, case)
    done = store.open(key, settings, about)
    missing = [
        (method, number)
        for number in range(0, rows, PART)
        for method in TABLES[table]
        if f"{method}/{number}" not in done
    ]
    if not missing:
        return
    problem, ball = case.problem(rows), build.ball_of(case.settings)
    for method, number in missing:
        few = torch.arange(number, min(number + PART, rows))
        began = time.perf_counter()
        options: dict[str, Any] = {"precision": case.precision, **TABLES[table][method]}
        result = sp.attack(problem.take(few), ball, **options)
        cell: dict[str, Any] = {
            "fooled": "".join("1" if each else "0" for each in result.success.tolist()),
            "evaluations": " ".join(map(str, result.num_forwards.tolist())),
            "seconds": round(time.perf_counter() - began, 1),
        }
        store.add(key, f"{method}/{number}", cell)
        count = cell["fooled"].count("1")
        print(
            f"{key}, {method}, rows from {number}: {count} fooled, {cell['seconds']} s", flush=True
        )


def outcomes(content: Mapping[str, Any], table: str) -> Lines:
    """What the methods of a table found in every case, on the rows that all of them have done."""
    return {case.title: _outcomes(content["cases"], table, case) for case in CASES}


def _outcomes(cases: Mapping[str, Any], table: str, case: Case) -> dict[str, Outcome]:
    stored = cases.get(_key(table, case), {"cells": {}, "settings": {"rows": 0}})
    cells, numbers = stored["cells"], range(0, stored["settings"]["rows"], PART)
    methods = TABLES[table]
    whole = [n for n in numbers if all(f"{method}/{n}" in cells for method in methods)]
    return {
        method: Outcome.joined([cells[f"{method}/{n}"] for n in whole])
        for method in methods
        if whole
    }


def refuse_fewer(store: Store, asked: Iterable[tuple[str, Case]], rows: int | None) -> None:
    """See that no case that is to be measured takes the place of one with more rows.

    Raises:
        StoreError: One does.
    """
    for table, case in asked:
        wanted = rows or case.rows
        found = [
            each
            for cases in (store.content["cases"], store.content.get("begun", {}))
            for each in _outcomes(cases, table, case).values()
        ]
        there = max((len(each.fooled) for each in found), default=0)
        if wanted < there:
            raise StoreError(
                f"`--rows` must be at least {there} for {_key(table, case)}, as many as are in {store.path}, "
                f"got {wanted}; name another `--store`."
            )


def made(content: Mapping[str, Any], table: str) -> dict[str, Made]:
    """Code and day of every case that is stored."""
    found = {case.title: content["cases"].get(_key(table, case)) for case in CASES}
    return {title: Made.of(stored) for title, stored in found.items() if stored}


def page(store: Path = STORE, alone: Path = one_domain.STORE, ideas: Path = IDEAS) -> str:
    """The page of what is stored.

    Args:
        store: The file of the tables.
        alone: That of one domain.
        ideas: That of what was tried.
    """
    content = Store(store, read_only=True, kind=KIND).content
    found = {table: outcomes(content, table) for table in TABLES}
    origins = {table: made(content, table) for table in TABLES}
    return render(
        found, origins, single(Store(alone, kind=one_domain.KIND).content), store.name, ideas
    )


def single(content: Mapping[str, Any]) -> Iterator[tuple[str, Made, dict[str, Outcome]]]:
    """Title, origin, and outcomes by way, of the lines of one domain that are complete."""
    for lone in one_domain.CASES:
        stored = content["cases"].get(lone.case.title, {"cells": {}})
        if set(one_domain.WAYS) <= stored["cells"].keys():
            ways = {way: Outcome.joined([stored["cells"][way]]) for way in one_domain.WAYS}
            yield lone.case.title, Made.of(stored), ways


def _key(table: str, case: Case) -> str:
    return f"{table}: {case.title}"


def figures() -> Iterator[Figure]:
    """Measure what is not stored yet, write the page, and compare."""
    main([])
    for title, found in outcomes(Store(STORE, kind=KIND).content, "rules").items():
        if not found:
            continue
        default, ceiling = found["default"], found["ceiling"]
        yield at_least(f"{title}: share of the ceiling", default.rate / ceiling.rate, WANTED)
        for rule in ("worst", "entropic"):
            won, lost = default.beside(found[rule])
            yield at_least(f"{title}: rows fooled, default minus {rule}", won - lost, 0)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ceiling")
    parser.add_argument("--rows", type=int, help="per problem; by default as many as CASES says")
    parser.add_argument("--only", default="", help="problems whose title has this in it")
    known = (*TABLES, "alone")
    parser.add_argument("--tables", default=",".join(known), help="which, separated by commas")
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--render", action="store_true", help="write the page again, run nothing")
    options = parser.parse_args(words)
    if options.rows is not None and options.rows < 1:
        parser.error(f"`--rows` must be at least 1, got {options.rows}")
    torch.set_num_threads(1)
    asked = options.tables.split(",") if not options.render else []
    cases = [case for case in CASES if options.only in case.title]
    tables = [(table, case) for case in cases for table in TABLES if table in asked]
    refuse_fewer(Store(options.store, kind=KIND), tables, options.rows)
    for table, case in tables:
        measure(table, case, Store(options.store, kind=KIND), options.rows or case.rows)
    alone = options.store.with_name(one_domain.STORE.name)
    if "alone" in asked:
        one_domain.measure(Store(alone, kind=one_domain.KIND), options.only)
    write_atomically(options.out, page(options.store, alone).encode())
    print(f"wrote {options.out}")


if __name__ == "__main__":
    exit_with(main)
