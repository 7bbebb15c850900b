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
        assert float(one) == pytest.approx(float(other), abs=0.02, rel=0.05)


def test_the_table_is_made_of_the_stored_results(tools) -> None:
    table = tools("readme_table")
    text = README.read_text(encoding="utf-8")
    assert table.written(text, table.block()) == text, "run: python tools/readme_table.py"


def test_the_table_has_the_best_peer_of_finished_cases_with_enough_images(tools, tmp_path) -> None:
    table = tools("readme_table")
    cell = {"images": 50, "evaluations": 4.0, "seconds": 2.0, "outside": 0, "unusable": 0}
    cells = {
        "`attack`, min-max/0": {**cell, "fooled": 45},
        "`attack`, min-max/1": {**cell, "fooled": 40, "evaluations": 8.0},
        "PGD/0": {**cell, "fooled": 30, "seconds": 3.0},
        "APGD/0": {**cell, "fooled": 30},
    }
    peers = ["PGD", "APGD"]
    case = {"methods": ["`attack`, min-max", *peers], "peers": peers, "wanted": 4, "cells": cells}
    settings = {"versions": {"saddlepoint": "0.2.0"}, "evaluations": 7, "images": 50}
    case |= {"begun": "2026-01-01 10:00", "settings": settings}
    few = {name: {**each, "images": 10} for name, each in cells.items()}
    cases = {
        "a: M": case,
        "a: unfinished": {**case, "wanted": 5},
        "a: few": {**case, "cells": few},
        "b: N": case,
        "b: even": {**case, "cells": {**cells, "APGD/0": {**cell, "fooled": 45, "seconds": 1.0}}},
        "b: few": {**case, "settings": {**settings, "images": 24}},
    }
    (tmp_path / "peers.json").write_text(json.dumps({"cases": cases}))
    said, *tables = table.block(tmp_path).split("| ---: |\n")
    assert "(100 images, `python -m benchmarks.peers`, version 0.2.0, 2026-01-01, [full" in said
    assert "Each may compute 7 gradients;" in said
    together, alone = (rows.strip().splitlines() for rows in tables)
    assert together[0] == "| M | 85.0 % with 6.0 | 60.0 % with 4.0 | APGD | apart |"
    assert alone == [
        "| `sp.attack` beside the strongest with as many gradients | 2 | 1 (1) | 0 | 1 | 0.5 to 1 |"
    ]


def test_the_picture_shows_what_its_text_says(tools) -> None:
    said = re.search(r"!\[.*? on (\d+) % .*? on (\d+) % .*?\]", README.read_text(encoding="utf-8"))
    page = (tools("gallery").SHOWN / "demo.html").read_text(encoding="utf-8")
    row = re.search(r"ASR among correct.*?([\d.]+)<.*?([\d.]+)<", page, re.DOTALL)
    assert said is not None
    assert row is not None
    average, minmax = (round(float(number)) for number in row.groups())
    assert (minmax, average) == tuple(map(int, said.groups()))


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
    assert len(re.findall(r"[\w'-]+", text)) <= 300  # 150 words a minute, tables and code aside


def test_every_link_leads_to_a_file() -> None:
    text = README.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
