"""Suite `quick`: its restarts and its search find what fewer leave; the table that holds it to that."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import quick, quick_page
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.evaluation import AbstractAttack, OurAttack, Target, robust_accuracy
from saddlepoint.evaluation.ledger import batches_of
from saddlepoint.evaluation.ours import RandomSearch
from saddlepoint.evaluation.suites import attacks_for
from saddlepoint.solver.search import random_search

ROOT = Path(__file__).parent.parent.parent
NETWORK = pytest.mark.skipif(
    importlib.util.find_spec("pyautoattack") is None or importlib.util.find_spec("h5py") is None,
    reason="the network is inside pyautoattack, stored as HDF5",
)


def test_rows_whose_margin_does_not_halve_are_given_up() -> None:
    """The margin is the mean of the image: within 0.1 that of 0.12 can fall by half, that of 0.8 cannot."""
    asked: list[list[float]] = []

    def brightness(images: Tensor) -> Tensor:
        mean = images.flatten(1).mean(dim=1)
        asked.append(mean.tolist())
        return torch.stack([mean, torch.zeros_like(mean)], dim=1)

    x = torch.stack([torch.full((1, 8, 8), 0.8), torch.full((1, 8, 8), 0.12)])
    y, rows = torch.tensor([0, 0]), torch.arange(2)
    patience = ((60, 0.5), (120, 0.25))
    found = random_search(brightness, x, y, 0.1, queries=90, seed=1, rows=rows, patience=patience)
    assert [len(means) for means in asked] == [2] * 60 + [1] * 30
    assert all(means[0] < 0.3 for means in asked[60:])  # the one that was bright is not asked again
    assert found[1].mean() < 0.06
    asked.clear()
    random_search(brightness, x, y, 0.1, queries=90, seed=1, rows=rows)
    assert [len(means) for means in asked] == [2] * 90
    asked.clear()  # within 0.08 the margin of 0.12 can halve, and not again
    few = {"seed": 1, "rows": rows[1:], "patience": patience}
    random_search(brightness, x[1:], y[1:], 0.08, queries=200, **few)
    assert len(asked) == 120


@pytest.mark.parametrize(
    ("p", "entropy", "margin"), [(1, 4, 13), (2, 4, 13), (math.inf, 2, 1), (0, 2, 3)]
)
def test_restarts_of_l1_and_l2_go_round_the_sizes_of_balls(
    p: float, entropy: int, margin: int
) -> None:
    ours = [each for each in attacks_for("quick", p) if isinstance(each, OurAttack)]
    assert [each.restarts for each in ours] == [entropy, margin]


def line_of_classes(classes: int) -> sp.Model:
    """On images of one entry, label 0 at 0.5: the margin leads down, where none wins; class 2 wins above."""

    def model(images: Tensor) -> Tensor:
        value = images.flatten(1)[:, :1]
        scores = [1.0 + 0 * value, 0.9 + 0.1 * (0.5 - value), 0.2 + 3 * (value - 0.5)]
        return torch.cat([*scores, *(0 * value - 9.0 for _ in range(3, classes))][:classes], dim=1)

    return model


@pytest.mark.parametrize(
    ("classes", "aimed", "broken"), [(4, 0, 0), (4, 1, 3), (3, 3, 3), (2, 3, 0)]
)
def test_aimed_restarts_find_the_class_that_the_margin_does_not_follow(
    classes: int, aimed: int, broken: int
) -> None:
    x, y = torch.full((3, 1, 1, 1), 0.5), torch.zeros(3, dtype=torch.long)
    attack, model = {math.inf: [OurAttack(steps=20, aimed=aimed)]}, line_of_classes(classes)
    result = robust_accuracy(model, x, y, {"linf": sp.linf(0.3)}, attack)
    assert int((~result.still_right("linf")).sum()) == broken
    if broken:
        assert (result.nearest["linf"] > 0.26).all()


def test_an_aimed_restart_counts_whatever_wrong_class_it_meets() -> None:
    """The margin to class 1 leads down, and it wins above: on the way to class 2, which never does."""

    def model(images: Tensor) -> Tensor:
        mean = images.flatten(1).mean(dim=1, keepdim=True)
        surprise = torch.where(mean > 0.6, 1.0, -0.05 - 0.1 * mean)
        return torch.cat([0 * mean, surprise, 0.5 * mean - 0.75, 0 * mean - 9], dim=1)

    x, y = torch.full((3, 1, 2, 2), 0.5), torch.zeros(3, dtype=torch.long)
    for aimed, broken in ((0, 0), (1, 3)):
        suite = {math.inf: [OurAttack(steps=10, aimed=aimed)]}
        result = robust_accuracy(model, x, y, {"linf": sp.linf(0.15)}, suite)
        assert int((~result.still_right("linf")).sum()) == broken


def test_aimed_restarts_lose_nothing_and_do_not_depend_on_the_batch() -> None:
    x, y = sp.data.sample("mnist", 48)
    model, threat = sp.models.load("mnist-eat"), {"linf": sp.linf(0.3)}
    few, more = ({math.inf: [OurAttack(steps=10, aimed=number)]} for number in (0, 3))
    without, aimed = (robust_accuracy(model, x, y, threat, each) for each in (few, more))
    assert (without.still_right("linf") | ~aimed.still_right("linf")).all()
    parts = robust_accuracy(model, x, y, threat, more, batch_size=5)
    assert torch.equal(parts.still_right("linf"), aimed.still_right("linf"))


@NETWORK
def test_quick_breaks_what_two_rounds_leave() -> None:
    """An image that often withstood 2 + 7 restarts, five times: every row has random starts of its own."""
    from examples.pyautoattack_networks import mnist

    x, y = sp.data.sample("mnist")
    rows, threat = torch.tensor([13]).repeat(5), {"l2": sp.l2(2.0)}
    before = [
        OurAttack("attack-ce", sp.neg_cross_entropy, restarts=2),
        OurAttack("attack", restarts=7),
    ]
    model = mnist()
    old = robust_accuracy(model, x[rows], y[rows], threat, {2: before})
    new = robust_accuracy(model, x[rows], y[rows], threat)
    assert old.union >= 0.2
    assert new.union <= old.union / 2


# --------------------------------------------------------------------------------- the table


def cell(left: int, other: int, seconds: float) -> dict[str, object]:
    one = {"seconds": seconds, "queries": 10, "broken": {}, "left": left, "only": 1}
    two = {"seconds": 10.0, "queries": 40, "broken": {}, "left": other, "only": 2}
    return {"images": 50, "clean": 49, "quick": one, "autoattack": two}


def test_the_table_adds_parts_and_leaves_out_what_is_unfinished() -> None:
    cells = {"part 0": cell(20, 19, 1.0), "part 1": cell(22, 20, 2.0)}
    made: dict[str, Any] = {
        "wanted": 2,
        "settings": {"code": "1a2b", "versions": {"saddlepoint": "0.2.0"}},
    }
    unfinished = {**made, "cells": {"part 0": cells["part 0"]}}
    cases = {"net, l1 10": {**made, "cells": cells}, "other, l2 2": unfinished}
    (line,) = quick_page.lines(cases)
    assert (line.images, line.clean, line.behind) == (100, 98, 3.0)
    assert line.time_ratio == pytest.approx(0.15)
    row = "| net, l1 10 | 100 | 98.0 | 42.0 | 39.0 | +3.0 | 2 | 4 | 0.15 | 0.25 |\n"
    table, _, said = quick_page.render({"cases": cases}).partition("\n\n")
    assert f"{table}\n".endswith(row)
    assert said.startswith("At most one point weaker: 0 of 1 cases, not in: net, l1 10.\n")
    assert "At most a fifth of the time: 1 of 1 cases.\n" in said
    assert "Run with saddlepoint 0.2.0, code 1a2b (day not recorded).\n" in said
    assert "which need not be the present ones" in said


def test_a_case_in_which_one_image_is_more_than_a_point_decides_nothing() -> None:
    def case(code: str, day: str, **cells: object) -> dict[str, Any]:
        versions = {"saddlepoint": "0.2.0"}
        settings = {"code": code, "versions": versions}
        return {"wanted": len(cells), "settings": settings, "begun": f"{day} 10:00", "cells": cells}

    few = case("1a2b", "2026-01-01", one=cell(20, 20, 1.0))
    many = case("3c4d", "2026-01-02", one=cell(20, 20, 1.0), two=cell(20, 20, 5.0))
    more = case("3c4d", "2026-01-03", one=cell(20, 20, 1.0), two=cell(20, 20, 1.0))
    text = quick_page.render(
        {"cases": {"deep, linf 1": few, "net, l1 10": many, "net, l2 2": more}}
    )
    assert "At most one point weaker: 2 of 2 cases.\n" in text
    assert "At most a fifth of the time: 1 of 2 cases, not in: net, l1 10.\n" in text
    assert "deep, linf 1 decides neither: one of its 50 images is 2.0 points.\n" in text
    assert "Run with saddlepoint 0.2.0, code 1a2b (2026-01-01): deep, linf 1.\n" in text
    both = "code 3c4d (2026-01-02, 2026-01-03): net, l1 10; net, l2 2.\n"
    assert both in text


def test_a_case_in_which_nothing_is_left_is_named_as_deciding_nothing() -> None:
    made = {"wanted": 2, "settings": {"code": "1a2b", "versions": {"saddlepoint": "0.2.0"}}}
    even, empty = (
        {**made, "cells": {name: cell(left, left, 1.0) for name in ("one", "two")}}
        for left in (20, 0)
    )
    text = quick_page.render({"cases": {"net, l1 10": even, "weak, linf 1": empty}})
    said = "At most one point weaker: 2 of 2 cases. In 1 of them neither suite leaves an image, "
    assert f"{said}which tells nothing about which is stronger: weak, linf 1.\n" in text
    assert "In 1 of them" not in text.partition("At most a fifth")[2]
    assert "neither suite" not in quick_page.render({"cases": {"net, l1 10": even}})


def test_what_the_results_say_of_the_network_that_was_trained_again_is_stored() -> None:
    content = json.loads((ROOT / quick.STORE).read_text(encoding="utf-8"))
    again = "linf, 20000 images, "
    found = {
        line.key.removeprefix(again): line
        for line in quick_page.lines(content["cases"])
        if line.key.startswith(again)
    }
    left = " / ".join(
        f"{100 * found[threat].left['autoattack'] / found[threat].images:.1f}"
        for threat in ("l2 2", "l1 10")
    )
    text = " ".join((ROOT / quick.PAGE).read_text(encoding="utf-8").split())
    assert text.count(f"came out different (l2 and l1 {left} under AutoAttack") == 2


def test_the_suites_are_compared_image_by_image(monkeypatch: pytest.MonkeyPatch) -> None:
    # Five images, the last one wrong from the start; the first attack of AutoAttack breaks two, the second one.
    broken = {"quick": ["10010"], "autoattack": ["01010", "00100"]}
    asked = []

    def suite_of(model: object, x: Tensor, y: Tensor, threats: object, suite: str, seed: int):  # type: ignore[no-untyped-def]
        asked.append((suite, seed))
        masks = [torch.tensor([mark == "1" for mark in marks]) for marks in broken[suite]]
        outcomes = [
            SimpleNamespace(attack=str(number), broken=mask, queries=7)
            for number, mask in enumerate(masks)
        ]
        correct = torch.tensor([True, True, True, True, False])
        return SimpleNamespace(correct=correct, outcomes=outcomes)

    monkeypatch.setattr(quick, "robust_accuracy", suite_of)
    x, y = torch.rand(5, 2), torch.zeros(5, dtype=torch.long)
    found = quick.measure(torch.nn.Identity(), x, y, sp.linf(0.1), 3, turned=True)
    assert asked == [("autoattack", 3), ("quick", 3)]
    assert (found["images"], found["clean"]) == (5, 4)
    ours, theirs = found["quick"], found["autoattack"]
    assert (ours["left"], ours["only"], ours["queries"]) == (2, 1, 7)
    assert (theirs["left"], theirs["only"], theirs["queries"]) == (1, 2, 14)
    assert theirs["broken"] == {"0": 2, "1": 1}


def test_the_results_have_the_table_of_the_store() -> None:
    content = json.loads((ROOT / quick.STORE).read_text(encoding="utf-8"))
    text = (ROOT / quick.PAGE).read_text(encoding="utf-8")
    assert quick_page.render(content) in text, "write it again: python -m benchmarks.quick --render"


def test_the_benchmark_loads_models_as_the_command_line_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []

    def measured(model: Any, x: Any, y: Any, ball: Any, seed: int, *, turned: bool) -> Any:
        assert model(x).shape == (len(x), 10)
        asked.append((len(x), turned))
        cell = {"seconds": 1.0, "queries": 1, "broken": {}, "left": 0, "only": 0}
        return {"images": len(x), "clean": len(x), "quick": cell, "autoattack": cell}

    monkeypatch.setattr(quick, "measure", measured)
    page = tmp_path / "page.md"
    page.write_text("<!-- quick beside autoattack -->\n<!-- end -->\n", encoding="utf-8")
    store = tmp_path / "store.json"
    words = ["A=mnist-a", "--data", "mnist-sample", "--images", "6", "--threat", "linf:0.1"]
    quick.main([*words, "--store", str(store), "--page", str(page)])
    assert asked == [(2, False), (3, False), (3, True)]  # the first is not kept
    assert "| A, linf 0.1 | 6 |" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [1, 2, 7, 64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 20, 65, 128, 279])
def test_even_batches_hold_every_row_once_and_none_is_empty(count: int, size: int) -> None:
    batches = batches_of(torch.arange(count), size, even=True)
    lengths = [len(batch) for batch in batches]
    assert [row for batch in batches for row in batch.tolist()] == list(range(count))
    assert all(0 < length <= size for length in lengths)
    assert not lengths or max(lengths) - min(lengths) <= 1
    assert len(lengths) <= 1 or len(lengths) % 2 == 0 or len(lengths) == count


def test_random_search_takes_more_images_at_once_than_attacks_that_keep_graphs() -> None:
    shown: dict[str, list[int]] = {"attack": [], "search": []}
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()

    def noted(attack: OurAttack | RandomSearch) -> AbstractAttack:
        class Noted(AbstractAttack):
            name, independent, at_once = attack.name, attack.independent, attack.at_once

            def run(self, target: Target) -> Tensor:
                shown[self.name].append(len(target.x))
                return target.x

        return Noted()

    x = torch.rand(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    y, suite = model(x).argmax(dim=1), {math.inf: [noted(OurAttack()), noted(RandomSearch())]}
    robust_accuracy(model, x, y, {"linf": sp.linf(0.1)}, suite, batch_size=8)
    assert shown == {"attack": [7, 7, 7, 7, 6, 6], "search": [20, 20]}
