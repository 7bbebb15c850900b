"""The guide to patches: its Python runs, and its table is that of the stored cells."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from benchmarks import patches

from folders import ROOT

sys.path.insert(0, str(ROOT / "tools"))
pages = importlib.import_module("pages")

PAGE = ROOT / "docs" / "patches.md"


def test_the_python_of_the_guide_runs() -> None:
    ((line, code),) = pages.blocks(PAGE, "python")
    found: dict[str, object] = {"__name__": "guide"}
    exec(compile("\n" * line + code, str(PAGE), "exec"), found)
    assert found["rates"].fooled.shape == (2, 2, 3, 50)
    assert found["problem"].num_domains == 80


def test_the_table_is_that_of_the_stored_cells() -> None:
    cells = json.loads((ROOT / patches.STORE).read_text(encoding="utf-8"))["cells"]
    rows = sum(len(patches.rules_of(family)) for family in patches.FAMILIES)
    assert len(cells) == rows * len(patches.SEEDS)
    assert patches.table(cells) in PAGE.read_text(encoding="utf-8")


def test_a_cell_says_which_view_is_hardest(tmp_path) -> None:
    cell = {
        **{"family": "turned", "rule": "average", "seed": 0, "success": [0.5, 0.25, 0.4, 0.45]},
        **{"intervals": [[0, 1], [0.2, 0.3], [0, 1], [0, 1]], "plain": [0.1, 0.0, 0.1, 0.0]},
    }
    line = patches.table([cell]).splitlines()[-1]
    assert line == (
        "| turned | 0 | average | `anywhere+rotate:90` | 25.0 | 20.0 to 30.0 | 40.0 | 5.0 |"
    )
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: patches -->\nold\n<!-- end -->\nafter\n")
    patches.write_page([cell], page)
    assert page.read_text() == (
        "before\n<!-- table: patches -->\n" + patches.table([cell]) + "<!-- end -->\nafter\n"
    )


def test_a_cell_is_measured_on_images_that_were_held_out(monkeypatch) -> None:
    monkeypatch.setattr(patches, "MADE", (0, 8))
    monkeypatch.setattr(patches, "HELD_OUT", (10, 14))
    monkeypatch.setattr(patches, "IMAGES", 4)
    monkeypatch.setattr(patches, "STEPS", 1)
    x, y = patches.sp.data.sample("cifar10", 14)
    cell = patches.measure("turned", "min-max", 0, x, y)
    assert (cell["patches"], len(cell["success"]), sum(cell["weights"])) == (2, 4, 1.0)
    assert cell["trials"] % 2 == 0
    assert cell["trials"] <= 8


def test_cells_of_other_settings_are_neither_kept_nor_written_over(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert len(patches._stored()) > 0
    monkeypatch.setattr(patches, "STEPS", patches.STEPS + 1)
    with pytest.raises(ValueError, match="must be of these settings"):
        patches.main()
