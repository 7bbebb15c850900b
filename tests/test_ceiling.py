"""The benchmark of `attack` beside its own ceiling: what is stored, joined, compared and written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import __main__ as command
from benchmarks import ceiling, one_domain
from benchmarks.ceiling_left import section
from benchmarks.ceiling_page import (
    Made,
    Outcome,
    _but_in_full,
    _parts_of_the_gain,
    _why,
    losses,
    render,
    short_of,
)
from benchmarks.peers import machine
from benchmarks.peers.cells import Store
from benchmarks.stores import StoreError

import saddlepoint as sp
from saddlepoint.runs.ranking import mcnemar

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
    alone = {
        "now": outcome("1" * 8 + "0", "9 " * 8 + "14"),
        "short": outcome("1" * 7 + "00", "9 " * 9),
        "long": outcome("1" * 2 + "0" * 7, "12 " * 9),
        "apgd": outcome("1" * 4 + "0" * 5, "50 " * 9),
        "ceiling": outcome("1" * 9, "9 " * 8 + "900"),
    }
    rows = [{**tried, "reference": 3, "won": 6, "lost": 1}]
    ideas.write_text(json.dumps({"ideas": rows}))
    found = {"rules": {"toy": rules}, "budgets": {"toy": budgets, "one": {}, "two": {}}}
    old, new = Made("0ld", "2026-01-01", "chip"), Made("4ew", "2026-01-02", "chip")
    made = {"rules": {"toy": old}, "budgets": {"toy": new}}
    page = render(found, made, [("lone", new, alone)], "store.json", ideas)
    assert "Not measured yet: one; two." in page
    lone = "| lone | 9 | 8 (9.6) | 7 (9.0) | 1, 0 | 1 | 2 (12.0) | 6, 0 | 0.031 | 4 | 9 (108.0) |"
    assert f"{lone} 88.9 % | 4ew | 2026-01-02 |" in page
    said = " ".join(page.split())
    assert "+6 rows beside 1 x 49: +5 by two restarts in place of one, +1 by the soft" in said
    assert "the soft margin gains on: no line; it loses on: no line." in said
    gain = [("more", alone | {"short": alone["long"]}), ("less", alone | {"now": alone["long"]})]
    gain[1][1]["short"] = alone["ceiling"]
    said = _parts_of_the_gain(gain)
    assert "the soft margin gains on: more; it loses on: less." in said
    assert "Within chance" not in said
    gain[1][1]["short"] = outcome("1" * 3 + "0" * 6, "9 " * 9)
    said = _parts_of_the_gain(gain, ["one (5 and not 4 of 6 images, intervals overlap)"])
    assert (
        "it loses on: no line.\nWithin chance it fools fewer rows on: less (1 of 9 rows)." in said
    )
    assert "on other images, `cw_margin` fools more on: one (5 and not 4 of 6 images, inter" in said
    assert "| more | toy | 9 | 8 | less | 3 | 6, 1 | 0.12 |" in page
    assert (
        "| toy | 10 | 80.0 | 11.8 | 90.0 | 232.6 | 88.9 % | 1 | 0 | 1 | 0ld | 2026-01-01 |" in page
    )
    assert "| toy | 80.0 | 20.0 | 6, 0 | 0.031 | 80.0 | 1, 1 | 1 | 0ld | 2026-01-01 |" in page
    assert "| toy | 10 | 70.0 (2.0) | 100.0 (3.0) | 4ew | 2026-01-02 |" in page
    assert "**Less than 95 % of the ceiling**: toy (88.9 % of 9 rows)." in page
    assert "**Less than 95 % of the ceiling**: lone (88.9 % of 9 rows)." in page
    assert "was chip." in page
    assert "that have B it computes in bfloat16" in page
    assert "In every line the default fools at least as many rows as either of them." in page


def test_a_rule_that_fools_more_is_named_and_so_is_a_sample_that_was_made_larger(
    tmp_path: Path,
) -> None:
    ahead, behind = "1" * 200 + "0" * 100, "0" + "1" * 199 + "1" * 2 + "0" * 98
    rules = {
        name: outcome(marks, "9 " * 300)
        for name, marks in (
            ("default", behind),
            ("ceiling", ahead),
            ("worst", ahead),
            ("entropic", ahead[:100] + "0" * 200),
        )
    }
    assert list(losses({"toy": rules})) == []  # 201 rows to 200
    rules["worst"] = outcome("1" * 203 + "0" * 97, "9 " * 300)
    assert list(losses({"toy": rules, "none": {}})) == [("toy", "worst", 0, 2)]
    ideas = tmp_path / "ideas.json"
    ideas.write_text(json.dumps({"ideas": []}))
    made = {"rules": {"toy": Made("c", "2026-01-01", "chip")}, "budgets": {}}
    page = render({"rules": {"toy": rules}, "budgets": {}}, made, [], "s", ideas)
    assert "**Missed**: toy: `WorstCase()` fools 2 more (p = 0.5)." in page
    assert "In every line" not in page
    said = " ".join(page.split())
    assert "toy has 300 rows and not 200 because the default was one row behind" in said
    assert (
        "the default fools 199 in what is stored, `WorstCase()` 200 and `Entropic()` 100." in said
    )


def test_a_problem_with_fewer_rows_in_the_table_of_budgets_is_named(tmp_path: Path) -> None:
    ideas = tmp_path / "ideas.json"
    ideas.write_text(json.dumps({"ideas": []}))
    rules = {
        name: outcome("1" * 6, "9 " * 6) for name in ("default", "ceiling", "worst", "entropic")
    }
    made = {table: {"toy": Made("c", "2026-01-01", "chip")} for table in ("rules", "budgets")}
    for rows, told in ((4, True), (6, False)):
        budgets = {str(number): outcome("1" * rows, "9 " * rows) for number in (25, 50, 100, 250)}
        page = render({"rules": {"toy": rules}, "budgets": {"toy": budgets}}, made, [], "s", ideas)
        assert (f"toy has {rows} rows here and 6 in the tables above." in page) == told
        assert "measured again" not in page


def test_why_a_sample_was_made_larger_is_what_was_found_then_beside_what_is_stored(
    tmp_path: Path,
) -> None:
    before = {"problem": "toy", "rows": 4, "default": 2, "ceiling": 3, "code": "0ld"}
    ideas = tmp_path / "ideas.json"
    ideas.write_text(json.dumps({"ideas": [], "before": [{**before, "day": "2026-01-01"}]}))
    rules = {
        name: outcome("110" * 2, "9 " * 6) for name in ("default", "ceiling", "worst", "entropic")
    }
    budgets = {str(number): outcome("1" * 4, "9 " * 4) for number in (25, 50, 100, 250)}
    made = {table: {"toy": Made("c", "2026-01-01", "chip")} for table in ("rules", "budgets")}
    page = render({"rules": {"toy": rules}, "budgets": {"toy": budgets}}, made, [], "s", ideas)
    said = " ".join(page.split())
    assert "(0ld, 2026-01-01) the default fooled 2 of the first 4 and the ceiling 3, less" in said
    assert "less than 95 % of it; in what is stored they fool 3 and 3 of these." in said


def test_what_was_found_before_was_less_than_is_wanted_of_fewer_rows() -> None:
    rows = {case.title: case.rows for case in ceiling.CASES}
    for each in json.loads((ROOT / ceiling.IDEAS).read_text(encoding="utf-8"))["before"]:
        assert each["default"] < ceiling.WANTED * each["ceiling"]
        assert each["rows"] < rows[each["problem"]]


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
    stored = store.content["cases"][f"budgets: {CASE.title}"]["settings"]
    assert stored["options"]["25"] == {"evaluations": 25}
    assert run(2)[1] == 0
    assert run(1)[1] == lines
    budgets = {name: {**each, "seed": 1} for name, each in ceiling.TABLES["budgets"].items()}
    monkeypatch.setattr(ceiling, "TABLES", {"budgets": budgets})
    assert run(1)[1] == lines  # other options of `attack`


def test_stored_rows_are_not_replaced_by_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    path.write_bytes((ROOT / ceiling.STORE).read_bytes())
    measured: list[tuple[str, int]] = []
    monkeypatch.setattr(
        ceiling, "measure", lambda table, case, store, rows: measured.append((table, rows))
    )
    words = ["--store", str(path), "--out", str(tmp_path / "page.md"), "--tables", "rules,budgets"]
    with pytest.raises(StoreError, match=r"`--rows` must be at least 200 .* got 4") as refused:
        ceiling.main([*words, "--rows", "4", "--only", "six"])
    assert str(path) in str(refused.value)
    assert measured == []
    whole, content = path.read_bytes(), json.loads(path.read_text(encoding="utf-8"))
    key = f"rules: {ceiling.CASES[0].title}"
    content["begun"][key] = content["cases"].pop(key)  # in the place of one that was smaller
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"`--rows` must be at least 200 .* got 4"):
        ceiling.main([*words, "--rows", "4", "--only", ceiling.CASES[0].title, "--tables", "rules"])
    assert measured == []
    path.write_bytes(whole)
    ceiling.main(words)  # as many as are stored, or more
    assert len(measured) == 2 * len(ceiling.CASES)
    words[1] = str(tmp_path / "other.json")
    with pytest.raises(StoreError, match="must have something"):  # for the page: all is stubbed
        ceiling.main([*words, "--rows", "4"])
    assert measured[-1] == ("budgets", 4)
    with pytest.raises(SystemExit):
        ceiling.main([*words, "--rows", "-1"])


def _page_of(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """The page of the stored rows with a change in the first case of the budgets."""
    content = json.loads((ROOT / ceiling.STORE).read_text(encoding="utf-8"))
    change(content["cases"]["budgets: MNIST {A, C, D}, linf 0.2"])
    path = tmp_path / "ceiling.json"
    path.write_text(json.dumps(content))
    return ceiling.page(path, ROOT / one_domain.STORE, ROOT / ceiling.IDEAS)


def test_a_line_without_all_of_its_rows_says_so(tmp_path: Path) -> None:
    page = _page_of(tmp_path, lambda case: case["cells"].pop("50/100"))
    line = "| MNIST {A, C, D}, linf 0.2 (unfinished: 150 of 200 rows) | 150 | "
    assert page.count(line) == 1
    kept = (ROOT / ceiling.PAGE).read_text(encoding="utf-8")
    assert "unfinished" not in kept  # every line of the stored page has all of its rows
    for case in ceiling.CASES:
        found = ceiling.outcomes(Store(ROOT / ceiling.STORE).content, "rules")[case.title]
        assert len(found["default"].fooled) == case.rows


def test_a_line_of_other_parameters_than_the_shipped_ones_says_so(tmp_path: Path) -> None:
    changed = {"mnist-a": "0" * 64, "mnist-zz": "1" * 64}
    page = _page_of(tmp_path, lambda case: case["settings"]["networks"].update(changed))
    title = "MNIST {A, C, D}, linf 0.2 (other parameters than the shipped ones: mnist-a, mnist-zz)"
    assert page.count(title) == page.count("other parameters") == 1
    assert "Networks are the shipped ones unless a line says otherwise" in " ".join(page.split())
    assert "unless a line" not in (ROOT / ceiling.PAGE).read_text(encoding="utf-8")
    alone = json.loads((ROOT / one_domain.STORE).read_text(encoding="utf-8"))
    alone["cases"]["MNIST {A}, l1 8"]["settings"]["networks"] = {"mnist-a": "0" * 64}
    (tmp_path / "alone.json").write_text(json.dumps(alone))
    page = ceiling.page(ROOT / ceiling.STORE, tmp_path / "alone.json", ROOT / ceiling.IDEAS)
    assert page.count("| MNIST {A}, l1 8 (other parameters than the shipped ones: mnist-a) |") == 1
    assert "unless a line says otherwise" in " ".join(page.split())


def test_one_domain_keeps_every_row_of_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sp.data, "load", lambda name, split: sp.data.sample(name))
    monkeypatch.setattr(one_domain, "FIRST", 0)
    monkeypatch.setattr(one_domain, "missing", lambda name: None)
    still = replace(one_domain.APGD_CE, run=lambda work: work.x)
    monkeypatch.setattr(one_domain, "APGD_CE", still)
    lone = next(each for each in one_domain.CASES if each.case.title == "MNIST {A}, linf 0.1")
    monkeypatch.setattr(one_domain, "CASES", (replace(lone, rows=6),))
    path = tmp_path / "one.json"
    one_domain.measure(Store(path))
    ((title, made, found),) = ceiling.single(Store(path).content)
    assert (title, made.code) == (lone.case.title, machine.code_of("one_domain"))
    assert not any(found["apgd"].fooled)  # the images as they are
    assert found["apgd"].evaluations == (50,) * 6
    x, y = sp.data.sample("mnist", 6)
    problem = sp.Ensemble(lone.case.models(), x, y)
    now = sp.attack(problem, lone.case.ball, evaluations=50)
    assert found["now"].fooled == tuple(now.success.tolist())
    assert found["now"].evaluations == tuple(now.num_forwards.tolist())
    before = path.stat().st_mtime_ns
    one_domain.measure(Store(path))
    assert path.stat().st_mtime_ns == before
    monkeypatch.setattr(one_domain, "missing", lambda name: "gone")
    one_domain.measure(Store(tmp_path / "none.json"))
    assert not (tmp_path / "none.json").exists()


def test_lines_that_miss_their_ceiling_are_named() -> None:
    few, all_but_one, every = (outcome("1" * n + "0" * (20 - n), "9 " * 20) for n in (10, 19, 20))
    assert short_of([("near", all_but_one, every), ("nothing", few, few)]).startswith("Every line")
    said = short_of(
        [("near", all_but_one, every), ("far", few, every), ("farther", few, all_but_one)]
    )
    assert said.startswith(
        "**Less than 95 % of the ceiling**: far (50.0 % of 20 rows); farther (52.6 %"
    )


def test_the_page_names_the_lines_of_network_b_that_were_searched_in_full_precision() -> None:
    lines = {
        "MNIST {A, B}, linf 0.2": Made("c", "d", "chip", ("float32", "bfloat16")),
        "CIFAR-10 {B}, groups of 10, linf 0.02": Made("c", "d", "chip", ("float32",)),
        "MNIST {A, C}, linf 0.2": Made("c", "d", "chip", ("float32", "float32")),
    }
    assert _but_in_full({"rules": lines}) == ", but CIFAR-10 {B}, groups of 10, linf 0.02 (rules),"


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


def test_what_misses_its_ceiling_or_loses_to_another_rule_is_within_chance_and_named_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the stored rows, which nothing is measured for here."""
    monkeypatch.setattr(ceiling, "main", lambda words: None)
    monkeypatch.setattr(ceiling, "STORE", ROOT / ceiling.STORE)
    figures = list(ceiling.figures())
    assert len(figures) >= 3 * 8
    found = ceiling.outcomes(Store(ROOT / ceiling.STORE).content, "rules")
    lost = list(losses(found))
    missed = [figure.name for figure in figures if not figure.passed]
    shares = [name.removesuffix(": share of the ceiling") for name in missed if ": share" in name]
    rules = [name for name in missed if ": share" not in name]
    assert rules == [f"{title}: rows fooled, default minus {rule}" for title, rule, _, _ in lost]
    assert all(mcnemar(won, more) >= 0.05 for _, _, won, more in lost)
    page = (ROOT / ceiling.PAGE).read_text(encoding="utf-8")
    assert page.count("**Missed**") == len(lost)
    assert len(shares) <= 1
    (named,) = [line for line in page.splitlines() if "its ceiling." in line or "**Less" in line][
        :1
    ]
    for title in shares:
        ours, more = found[title]["default"].beside(found[title]["ceiling"])
        assert mcnemar(ours, more) >= 0.05
        assert title in named


def test_the_page_in_the_documentation_is_that_of_the_stored_rows() -> None:
    stores = (ceiling.STORE, one_domain.STORE, ceiling.IDEAS)
    page = ceiling.page(*(ROOT / path for path in stores))
    assert (ROOT / ceiling.PAGE).read_text(encoding="utf-8") == page


def test_why_an_idea_was_kept_follows_from_its_counts() -> None:
    one: dict[str, Any] = {"idea": "i", "rows": 60, "fooled": 51, "reference": 43}
    one |= {"problem": "deep", "evaluations": 14.2, "reference_evaluations": 29.4}
    clear, chance = one | {"won": 8, "lost": 0}, one | {"won": 2, "lost": 1, "problem": "other"}
    said = " ".join(_why([chance, clear])[0].split())
    assert "because of deep: 51 rows of 60 and not 43, with 14.2 evaluations and not 29.4." in said
    assert "On the other problems, 1 of 2, it fools neither more nor fewer rows" in said
    assert _why([chance]) == []
    assert _why([clear, one | {"won": 0, "lost": 8}]) == []


def test_rows_that_the_default_leaves_are_compared_with_it_one_by_one(tmp_path: Path) -> None:
    way = {"way": "other", "evaluations": 50.5, "fooled": "100", "worst": [-0.25, 1.0, 2.5]}
    left: dict[str, Any] = {"problem": "toy", "rows": 9, "first": 10, "last": 99, "fooled": 6}
    left |= {"evaluations": 39.5, "day": "2026-01-01", "code": "c0de", "precision": "bfloat16"}
    left |= {"worst": [0.5, 1.0, 2.0], "ways": [way]}
    said = " ".join("\n".join(section(left, "ideas.json")).split())
    assert "on 9 groups of images 10 to 99" in said
    assert "fools 6 (39.5 evaluations). These are the 3 that it leaves." in said
    assert "ends at 0.50 to 2.00, median 1.00." in said
    assert "| other | 50.5 | 1 | 1 | 1 | -0.08 |" in said
    ideas = tmp_path / "ideas.json"
    ideas.write_text(json.dumps({"ideas": [], "left": left}))
    assert "| other | 50.5 |" in render(
        {"rules": {}, "budgets": {}}, {"rules": {}, "budgets": {}}, [], "s", ideas
    )
    with pytest.raises(ValueError, match="zip"):
        section(left | {"worst": [0.5, 1.0, 2.0, 3.0]}, "ideas.json")


def test_stored_rows_that_the_default_leaves_agree_with_their_counts() -> None:
    left = json.loads((ROOT / ceiling.IDEAS).read_text(encoding="utf-8"))["left"]
    assert left["rows"] - left["fooled"] == len(left["worst"])
    assert 10 * left["rows"] == left["last"] - left["first"] + 1
    assert left["last"] < ceiling.FIRST["universal"]
    for way in left["ways"]:
        assert len(way["fooled"]) == len(way["worst"]) == len(left["worst"])
        assert all(
            mark == "0" or worst < 0
            for mark, worst in zip(way["fooled"], way["worst"], strict=True)
        )
