"""The benchmark of `attack` beside its own ceiling: what is stored, joined, compared and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import __main__ as command
from benchmarks import ceiling
from benchmarks.ceiling_page import Outcome, render
from benchmarks.peers.cells import Store

import saddlepoint as sp

ROOT = Path(__file__).parent.parent
CASE = next(case for case in ceiling.CASES if case.title.startswith("CIFAR-10 {A}, groups"))


def outcome(fooled: str, evaluations: str) -> Outcome:
    return Outcome.joined([{"fooled": fooled, "evaluations": evaluations}])


def test_parts_are_joined_in_order_and_compared_row_by_row() -> None:
    parts = [
        {"fooled": "10", "evaluations": "3 51"},
        {"fooled": "1", "evaluations": "6"},
    ]
    found = Outcome.joined(parts)
    assert found == Outcome((True, False, True), (3, 51, 6))
    assert (found.rate, found.mean) == (2 / 3, 20)
    assert found.beside(outcome("011", "1 1 1")) == (1, 1)


def test_the_page_says_what_was_found_and_what_chance_would_do(tmp_path: Path) -> None:
    rules = {
        "default": outcome("1" * 8 + "00", "2 " * 8 + "51 51"),
        "ceiling": outcome("1" * 9 + "0", "2 " * 8 + "300 2010"),
        "worst": outcome("1" * 2 + "0" * 8, "9 " * 10),
        "entropic": outcome("0" * 1 + "1" * 8 + "0", "9 " * 10),
    }
    budgets = {"25": outcome("1" * 7 + "000", "2 " * 10), "50": outcome("1" * 10, "3 " * 10)}
    tried = {"idea": "more", "problem": "toy", "rows": 9, "fooled": 8, "instead": "less"}
    ideas = tmp_path / "ideas.json"
    alone = {"problem": "lone", "rows": 9, "apgd": 4, "won": 6, "lost": 0}
    alone |= {"soft": 8, "soft_evaluations": 9.5, "short": 7, "short_evaluations": 9.0}
    alone |= {"long": 2, "long_evaluations": 12.0}
    rows = [{**tried, "reference": 3, "won": 6, "lost": 1}]
    ideas.write_text(json.dumps({"ideas": rows, "one domain": [alone]}))
    found = {"rules": {"toy": rules}, "budgets": {"toy": budgets, "one": {}, "two": {}}}
    page = render(found, "store.json", ideas)
    assert "Not measured yet: one; two." in page
    assert "| lone | 9 | 8 (9.5) | 7 (9.0) | 2 (12.0) | 4 | 6, 0 | 0.031 |" in page
    assert "| more | toy | 9 | 8 | less | 3 | 6, 1 | 0.12 |" in page
    assert "| toy | 10 | 80.0 | 11.8 | 90.0 | 232.6 | 88.9 % | 1 | 0 | 1 |" in page
    assert "| toy | 80.0 | 20.0 | 6, 0 | 0.031 | 80.0 | 1, 1 | 1 |" in page
    assert "| toy | 70.0 (2.0) | 100.0 (3.0) |" in page


def test_what_is_stored_is_not_run_again_and_other_settings_begin_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sp.data, "load", lambda name, split: sp.data.sample(name))
    monkeypatch.setattr(ceiling, "FIRST", {"universal": 0})

    def run(rows: int) -> tuple[Store, int]:
        store = Store(tmp_path / "c.json")
        ceiling.measure("budgets", CASE, store, rows)
        return store, len(capsys.readouterr().out.splitlines())

    store, lines = run(2)
    cells: dict[str, Any] = store.content["cases"][f"budgets: {CASE.title}"]["cells"]
    assert lines == len(cells) == len(ceiling.TABLES["budgets"])
    assert cells["25/0"]["fooled"] == "11"
    assert ceiling.outcomes(store.content, "budgets")[CASE.title]["25"].rate == 1
    assert run(2)[1] == 0
    assert run(1)[1] == lines


def test_images_are_those_that_nothing_was_chosen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.arange(10_000)
    x = torch.zeros(10_000, 1, 1, 1)
    monkeypatch.setattr(sp.data, "load", lambda name, split: (x, numbers))
    assert sorted(CASE.problem(3).truth.flatten().tolist()) == list(range(4000, 4030))
    with pytest.raises(ValueError, match="`rows` must be at most 6000 images from number 4000 on"):
        CASE.problem(601)


def test_a_long_benchmark_is_run_by_name_alone() -> None:
    assert "ceiling" in command.LONG
    assert "ceiling" not in command.ROOMS


def test_the_default_is_within_a_twentieth_of_its_ceiling_and_loses_to_no_rule_beyond_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the stored rows, which nothing is measured for here."""
    monkeypatch.setattr(ceiling, "main", lambda words: None)
    monkeypatch.setattr(ceiling, "STORE", ROOT / ceiling.STORE)
    figures = list(ceiling.figures())
    assert len(figures) >= 3 * 8
    assert [figure.name for figure in figures if not figure.passed] == []


def test_the_page_in_the_documentation_is_that_of_the_stored_rows() -> None:
    store = Store(ROOT / ceiling.STORE)
    page = render(ceiling.tables(store), ceiling.STORE.as_posix(), ROOT / ceiling.IDEAS)
    assert (ROOT / ceiling.PAGE).read_text(encoding="utf-8") == page
