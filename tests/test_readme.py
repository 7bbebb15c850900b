"""README is true: its Python prints what it shows, its table is that of the results, and it is short."""

from __future__ import annotations

import importlib
import json
import re

import pytest

from folders import ROOT

README = ROOT / "README.md"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch):
    """A module of the folder tools by its name."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module


def test_the_python_blocks_run_in_order_and_print_what_is_shown(
    tools, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = tools("pages")
    namespace: dict[str, object] = {"__name__": "readme"}
    blocks = pages.blocks(README, "python")
    assert blocks
    for line, text in blocks:
        # So that errors name the line of README.
        exec(compile("\n" * line + text, str(README), "exec"), namespace)
    shown = "".join(text for _, text in pages.blocks(README, "text"))
    number = re.compile(r"\d+(?:\.\d+)?")
    printed = capsys.readouterr().out
    assert number.sub("#", printed) == number.sub("#", shown)
    # Another processor rounds otherwise, which may move an image or two.
    for one, other in zip(number.findall(printed), number.findall(shown), strict=True):
        assert float(one) == pytest.approx(float(other), abs=0.05, rel=0.05)


def test_the_table_is_made_of_the_stored_results(tools) -> None:
    table = tools("readme_table")
    text = README.read_text(encoding="utf-8")
    assert table.written(text, table.block()) == text, "run: python tools/readme_table.py"


def test_the_table_is_that_of_the_peers_as_soon_as_one_case_is_finished(tools, tmp_path) -> None:
    table = tools("readme_table")
    (tmp_path / "quick.json").write_text('{"cases": {}}')
    cell = {"images": 50, "evaluations": 4.0}
    case = {
        "methods": ["`attack`, min-max", "PGD", "APGD"],
        "peers": ["PGD", "APGD"],
        "wanted": 4,
        "cells": {
            "`attack`, min-max/0": {**cell, "fooled": 45},
            "`attack`, min-max/1": {**cell, "fooled": 40, "evaluations": 8.0},
            "PGD/0": {**cell, "fooled": 20},
            "APGD/0": {**cell, "fooled": 30},
        },
    }
    for wanted, expected in (
        (5, "AutoAttack leaves"),
        (4, "| M | 85.0 % with 6.0 | 60.0 % with 4.0 | APGD |"),
    ):
        cases = {"a: M": {**case, "wanted": wanted}, "b: N": case}
        (tmp_path / "peers.json").write_text(json.dumps({"cases": cases}))
        assert expected in table.block(tmp_path)


def test_it_is_read_in_two_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    for left_out in (
        r"^```.*?^```",
        r"^\|[^\n]*$",
        r"!\[.*?\]\(.*?\)",
        r"\]\([^)]*\)",
        r"<!--.*?-->",
    ):
        text = re.sub(left_out, "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"[\w'-]+", text)) <= 400  # 200 words a minute, tables and code aside


def test_every_link_leads_to_a_file() -> None:
    text = README.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
