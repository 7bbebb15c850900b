"""The comparison with other libraries: what is counted, stored, skipped and written; no peer is run here."""

from __future__ import annotations

import json
import math
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import __main__ as benchmarks_command
from benchmarks import ceiling, leaving, overheads, precision, quick
from benchmarks.kept import FILE, keep, read, section
from benchmarks.peers import __main__ as command
from benchmarks.peers import machine, page, projections
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.cells import Store
from benchmarks.peers.lines import lines
from benchmarks.peers.measure import in_turn, measure, parts
from benchmarks.peers.methods import METHODS, MeanLogits, Method, Work
from benchmarks.stores import StoreError
from benchmarks.timing import Figure, SkippedError, at_least, at_most, unbounded
from torch import Tensor, nn

import oracles
import saddlepoint as sp
from folders import ROOT

ABOUT = {
    "begun": "2026-01-01 00:00",
    "cores": 2,
    "load": 0.5,
    "commit": "abc",
    "methods": ["ours", "theirs"],
    "peers": ["theirs"],
    "rules": {"theirs": "step = 1"},
    "missing": {},
    "wanted": 4,
}
SETTINGS = {
    "images": 100,
    "evaluations": 5,
    "seed": 0,
    "threads": 1,
    "cpu": "chip",
    "code": "123",
    "versions": {"torch": "2"},
}

ONE = at_most("one", 1.0, 1.03)


def cell(fooled: int, seconds: float, **others: float) -> dict[str, Any]:
    plain = {"images": 50, "outside": 0, "unusable": 0, "evaluations": 5.0}
    return {**plain, "fooled": fooled, "seconds": seconds, **others}


def stored(room: str = "a") -> dict[str, Any]:
    cells = {
        "ours/0": cell(40, 1.0),
        "theirs/0": cell(20, 3.0, outside=2),
        "theirs/1": cell(10, 5.0, unusable=1, evaluations=7.0),
        "ours/1": cell(20, 1.0),
    }
    case = {"settings": SETTINGS, **ABOUT, "cells": cells}
    return {"schema": 1, "networks": {}, "skipped": {}, "cases": {f"{room}: nets": case}}


# ------------------------------------------------------------------------------- measuring


def test_only_candidates_in_ball_and_box_that_fool_every_model_count() -> None:
    # Class 0 while the first entry is larger; the second model asks for 0.1 more.
    first, second = nn.Identity(), nn.Linear(2, 2)
    with torch.no_grad():
        second.weight.copy_(torch.eye(2))
        second.bias.copy_(torch.tensor([0.1, 0.0]))
    x = torch.tensor([[0.6, 0.5]]).repeat(6, 1)
    candidates = torch.tensor(
        [
            [0.45, 0.65],  # fools both inside 0.2
            [0.55, 0.56],  # fools the first only
            [0.60, 0.50],  # fools none
            [0.10, 0.90],  # fools both, outside the ball
            [0.50, math.nan],
            [0.40 - 1e-6, 0.70],  # outside by rounding: counts
        ]
    )

    def run(work: Work) -> Tensor:
        with torch.no_grad():
            work.model(work.x)
            work.models[0](work.x[:3])
        return candidates

    work = Work([first, second.eval()], x, torch.zeros(6, dtype=torch.long), sp.linf(0.2), 5, 0)
    found = measure(Method("mine", "torch", run, ""), work)
    assert found.pop("seconds") > 0
    assert found == {
        "images": 6,
        "fooled": 2,
        "outside": 1,
        "unusable": 1,
        "evaluations": (2 * 6 + 3) / (2 * 6),
    }


def test_the_mean_of_logits_is_what_libraries_of_one_model_attack() -> None:
    mean = MeanLogits([nn.Identity(), nn.Flatten()])
    assert mean(torch.tensor([[1.0, 3.0]])).tolist() == [[1.0, 3.0]]
    assert not mean.training


OURS = [m for m in (*METHODS["a"], METHODS["d"][0]) if m.library == "saddlepoint"]


@pytest.mark.parametrize("method", OURS, ids=lambda method: method.name)
def test_methods_of_ours_run(method: Method) -> None:
    network = nn.Linear(2, 2, bias=False).eval()
    network.weight.data = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    x, y = torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0])
    found = method.run(Work([network], x, y, sp.linf(0.2), 10, 0))
    # The margins 2 x0 - x1 are 1.7 and 0.2: 0.2 each way takes 0.6 off them.
    assert ((network(found)[:, 0] < network(found)[:, 1]) == torch.tensor([False, True])).all()
    assert ((found - x).abs() <= 0.2 + 1e-6).all()


@pytest.mark.parametrize("method", OURS, ids=lambda method: method.name)
def test_half_an_attack_is_no_cell(method: Method) -> None:
    class Stopped(nn.Module):
        calls = 0

        def forward(self, images: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 26:  # once, after the first looks at the model
                raise KeyboardInterrupt
            return images * torch.tensor([2.0, 1.0])

    x, y = torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0])
    work = Work([Stopped().eval()], x, y, sp.linf(0.1), 50, 0)
    with pytest.raises(KeyboardInterrupt):
        measure(method, work)


def test_every_part_runs_every_method_and_the_order_is_turned_round() -> None:
    assert parts(10) == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]
    assert parts(2) == [slice(0, 1), slice(1, 2)]
    for room in "abd":
        methods = list(METHODS[room])
        orders = [in_turn(methods, part) for part in range(4)]
        assert orders == [methods, methods[::-1], methods, methods[::-1]]


def test_cases_are_named_and_unique() -> None:
    keys = [case.key for case in CASES]
    assert len(set(keys)) == len(keys)
    assert keys[0] == "a: MNIST {A, C, D}, linf 0.2"
    case = next(case for case in CASES if case.deep)
    assert case.key == "a: CIFAR-10 {ResNet-18, A, C, D}, linf 1/255"
    assert case.ball.eps == pytest.approx(1 / 255)
    with pytest.raises(ValueError, match=r"`--images` must be from 1 to 200 for cifar10, got 201"):
        case.images(201)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_the_optimum_of_projections_is_that_of_an_independent_bisection(p: float) -> None:
    onto = projections.problem("mnist", p, 3, 0)
    best = projections.optimum(onto)
    for row in range(3):
        v, lower, upper = (t[row].double().numpy() for t in (onto.v, onto.lower, onto.upper))
        expected = oracles.project_by_bisection(v, p, onto.eps, lower, upper)
        assert np.abs(best[row].numpy() - expected.astype(float)).max() < 1e-12
    inside = replace(onto, v=torch.zeros_like(onto.v))
    assert not projections.optimum(inside).any()


def test_a_projection_that_forgets_the_box_is_found_out() -> None:
    onto = projections.problem("mnist", 2.0, 4, 0)

    def rescaled(onto: projections.Onto) -> Tensor:
        return onto.v / onto.v.norm(dim=1, keepdim=True) * onto.eps

    wrong = projections.compare(projections.Projector("x", "torch", rescaled, (2.0,)), onto)
    right = projections.compare(projections.PROJECTORS[0], onto)
    assert wrong["error"] > 0.05
    assert right["error"] == right["ours"] < 1e-6
    assert abs(right["farther"]) < 1e-6
    assert (wrong["rows"], wrong["entries"]) == (4, 784)


# ------------------------------------------------------------------------------- skipping and storing


def tiny(monkeypatch: pytest.MonkeyPatch, methods: tuple[Method, ...]) -> Case:
    case = Case("b", "mnist", ("mnist-a",), sp.linf(0.1), "0.1")
    monkeypatch.setattr(command, "CASES", (case,))
    monkeypatch.setattr(command, "METHODS", {"b": methods})
    return case


def test_a_run_skips_what_is_missing_keeps_what_is_done_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def shifted(work: Work) -> Tensor:
        ran.append(work.evaluations)
        return (work.x + 0.05).clamp(0, 1)

    ours = Method("ours", "saddlepoint", shifted, "")
    gone = Method("PGD", "a_library_nobody_has", shifted, "")
    case = tiny(monkeypatch, (ours, gone))
    store, out = tmp_path / "deep" / "peers.json", tmp_path / "PAGE.md"
    words = ["--images", "3", "--rooms", "b", "--store", str(store), "--out", str(out)]
    assert command.main(words) == 0
    reason = "PGD (ModuleNotFoundError: No module named 'a_library_nobody_has')"
    assert f"{case.key}  skipped {reason}" in capsys.readouterr().out
    assert ran == [50] * 4  # once to warm up, and once for each part
    page_text = out.read_text(encoding="utf-8")
    assert f"Skipped: {reason}." in page_text
    assert "**A run of 3 images at most" in page_text
    content = json.loads(store.read_text(encoding="utf-8"))
    assert content["networks"] == {"mnist-a": sp.models.card("mnist-a").sha256}
    cells = content["cases"][case.key]["cells"]
    assert list(cells) == ["ours/0", "ours/1", "ours/2"]
    assert [each["images"] for each in cells.values()] == [1, 1, 1]
    assert command.main(words) == 0
    assert len(ran) == 4  # nothing again under the same settings
    assert command.main([*words, "--evaluations", "7", "--only", "l2"]) == 0
    assert len(ran) == 4  # no table has this in its title
    assert command.main([*words, "--evaluations", "7"]) == 0
    assert ran[4:] == [7] * 4
    out.unlink()
    assert command.main([*words, "--render"]) == 0
    assert len(ran) == 8
    assert "at most 7 gradients each" in out.read_text(encoding="utf-8")
    assert command.main(["--rooms", "x"]) == 2


def test_finished_cells_survive_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = Method("fine", "saddlepoint", lambda work: work.x, "")
    calls: list[int] = []

    def stop(work: Work) -> Tensor:
        calls.append(len(work.x))
        if len(calls) > 1:
            raise KeyboardInterrupt
        return work.x

    case = tiny(monkeypatch, (fine, Method("stops", "torch", stop, "")))
    store = tmp_path / "peers.json"
    words = ["--images", "2", "--rooms", "b", "--store", str(store), "--out", str(tmp_path / "p")]
    with pytest.raises(KeyboardInterrupt):
        command.main(words)
    assert list(Store(store).content["cases"][case.key]["cells"]) == ["fine/0"]
    assert calls == [2, 1]


def test_a_table_stays_until_the_one_in_its_place_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    about, old, new = {**ABOUT, "wanted": 2}, SETTINGS, {**SETTINGS, "code": "456"}
    store = Store(path)
    for name in ("ours/0", "theirs/0"):
        store.open("a: nets", old, about)
        store.add("a: nets", name, cell(40, 1.0))
    again = Store(path)
    assert again.open("a: nets", new, about) == {}
    again.save()
    assert again.content["cases"]["a: nets"]["settings"]["code"] == "123"  # nothing is measured yet
    again.add("a: nets", "ours/0", cell(30, 1.0))
    resumed = Store(path)
    assert len(resumed.content["cases"]["a: nets"]["cells"]) == 2
    assert list(resumed.open("a: nets", new, about)) == ["ours/0"]
    resumed.add("a: nets", "theirs/0", cell(20, 1.0))
    done = Store(path).content
    assert done["cases"]["a: nets"]["settings"]["code"] == "456"
    assert [each["fooled"] for each in done["cases"]["a: nets"]["cells"].values()] == [30, 20]
    assert done["begun"] == {}


def test_a_table_is_not_replaced_by_one_of_fewer_images(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    store = Store(path)
    store.open("a: nets", SETTINGS, ABOUT)
    store.add("a: nets", "ours/0", cell(40, 1.0))
    fewer = {**SETTINGS, "images": SETTINGS["images"] - 1, "code": "456"}
    with pytest.raises(StoreError, match=f"`--images` must be at least {SETTINGS['images']}"):
        Store(path).open("a: nets", fewer, ABOUT)
    Store(path).open("a: nets", {**SETTINGS, "images": SETTINGS["images"] + 1}, ABOUT)


def test_a_table_is_not_replaced_by_one_without_a_library_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Method("ours", "saddlepoint", lambda work: work.x, "")
    theirs = Method("theirs", "torch", lambda work: work.x, "")
    case = tiny(monkeypatch, (ours, theirs))
    path = tmp_path / "peers.json"
    words = ["--images", "2", "--rooms", "b", "--store", str(path), "--out", str(tmp_path / "p")]
    assert command.main(words) == 0
    whole = path.read_bytes()
    monkeypatch.setattr(
        command, "METHODS", {"b": (ours, replace(theirs, library="a_library_nobody_has"))}
    )
    with pytest.raises(StoreError, match=r"libraries of theirs must be installed, .*nobody_has'"):
        command.main([*words, "--evaluations", "7"])
    assert path.read_bytes() == whole
    assert command.main(words) == 0  # the same settings: what is there stays
    assert json.loads(path.read_bytes())["cases"] == json.loads(whole)["cases"]
    monkeypatch.setattr(command, "METHODS", {"b": (ours,)})  # no longer compared
    assert command.main([*words, "--evaluations", "7"]) == 0
    assert json.loads(path.read_bytes())["cases"][case.key]["methods"] == ["ours"]


def test_what_another_process_has_stored_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    about = {**ABOUT, "wanted": 2}
    one, two = Store(path), Store(path)
    for store, name in ((one, "a: one"), (two, "a: two")):
        store.content["networks"][name] = "hash"
        store.content.setdefault("skipped", {})[f"{name}, gone"] = "why"
        store.open(name, SETTINGS, about)
    for part in ("ours/0", "theirs/0"):
        one.add("a: one", part, cell(40, 1.0))
        two.add("a: two", part, cell(20, 1.0))
    found = Store(path).content
    assert {key: list(case["cells"]) for key, case in found["cases"].items()} == {
        "a: one": ["ours/0", "theirs/0"],
        "a: two": ["ours/0", "theirs/0"],
    }
    assert set(found["networks"]) == {"a: one", "a: two"}
    assert set(found["skipped"]) == {"a: one, gone", "a: two, gone"}
    assert two.content == found
    one.save()  # of what is older
    assert Store(path).content == found
    assert [file.name for file in tmp_path.iterdir()] == ["peers.json"]


def test_two_processes_share_a_case_under_the_same_settings_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    about, new = {**ABOUT, "wanted": 3}, {**SETTINGS, "code": "456"}
    one, two, other = Store(path), Store(path), Store(path)
    for store, settings in ((one, SETTINGS), (two, SETTINGS), (other, new)):
        store.open("a: nets", settings, about)
    one.add("a: nets", "ours/0", cell(40, 1.0))
    two.add("a: nets", "theirs/0", cell(20, 1.0))
    with pytest.raises(StoreError, match=r"`a: nets` .* other settings") as refused:
        other.add("a: nets", "ours/0", cell(30, 1.0))
    assert str(path) in str(refused.value)
    one.add("a: nets", "ours/1", cell(40, 1.0))
    case = Store(path).content["cases"]["a: nets"]
    assert case["settings"] == SETTINGS
    assert list(case["cells"]) == ["ours/0", "theirs/0", "ours/1"]


def test_a_table_begun_by_another_process_under_other_settings_is_not_dropped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "peers.json"
    about, new = {**ABOUT, "wanted": 2}, {**SETTINGS, "code": "456"}
    Store(path).open("a: nets", SETTINGS, about)
    old = Store(path)
    old.open("a: nets", SETTINGS, about)
    old.add("a: nets", "ours/0", cell(40, 1.0))
    later = Store(path)
    later.open("a: nets", new, about)
    later.add("a: nets", "ours/0", cell(30, 1.0))
    old.add("a: nets", "theirs/0", cell(40, 1.0))
    content = Store(path).content
    assert list(content["cases"]["a: nets"]["cells"]) == ["ours/0", "theirs/0"]
    assert list(content["begun"]["a: nets"]["cells"]) == ["ours/0"]
    later.add("a: nets", "theirs/0", cell(30, 1.0))
    done = Store(path).content
    assert done["cases"]["a: nets"]["settings"] == new
    assert done["begun"] == {}


def test_a_store_that_another_machine_has_locked_is_refused_in_a_sentence(tmp_path: Path) -> None:
    store = Store(tmp_path / "peers.json")
    store.open("a: nets", SETTINGS, ABOUT)
    owner = {"host": "another one", "pid": 1, "since": "2026-01-01T00:00:00+00:00"}
    (tmp_path / "run.lock").write_text(json.dumps(owner))
    with pytest.raises(StoreError, match="must be used by one process at a time"):
        store.add("a: nets", "ours/0", cell(40, 1.0))


def test_networks_that_cannot_be_had_are_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = Case("b", "cifar10", ("resnet18",), sp.linf(0.1), "0.1")
    monkeypatch.setattr(command, "CASES", (third,))
    monkeypatch.setattr(command, "missing", lambda name: "gone" if "auto" in name else None)
    store, out = tmp_path / "peers.json", tmp_path / "PAGE.md"
    words = ["--images", "2", "--rooms", "b", "--store", str(store), "--out", str(out)]
    assert command.main(words) == 0
    assert "Skipped: CIFAR-10 {ResNet-18}, linf 0.1 (gone)." in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content",
    [
        '{"schema": 7}',
        "",
        "{",
        "null",
        "[]",
        '{"schema": 1}',
        '{"schema": 1, "cases": {"a": {"cells": 1}}}',
    ],
)
def test_a_store_of_something_else_or_half_of_one_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(ValueError, match=r"s\.json` must be a whole file of measurements"):
        Store(tmp_path / "s.json")


@pytest.mark.parametrize("content", [None, '{"schema": 1, "networks": {}, "cases": {}}'])
def test_no_page_is_written_from_nothing(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "s.json").write_text(content)
    page = tmp_path / "page.md"
    page.write_text("<!-- quick beside autoattack -->\nnumbers\n<!-- end -->\n")
    words = ["--render", "--store", str(tmp_path / "s.json")]
    for run, flag in ((command.main, "--out"), (quick.main, "--page"), (ceiling.main, "--out")):
        with pytest.raises(ValueError, match="must have something to go by"):
            run([*words, flag, str(page)])
    assert "numbers" in page.read_text()


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    "name",
    [
        *("peers", "quick", "ceiling", "scores", "transfer", "network_b", "authors_protocol"),
        "defence",
    ],
)
def test_commands_say_in_one_sentence_that_there_is_nothing_to_write_from(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "page.md"
    page.write_text("as it is")
    flag = "--page" if name in ("quick", "network_b", "authors_protocol", "defence") else "--out"
    store = tmp_path / "none.json"
    words = ["--render", "--store", str(store), flag, str(page)]
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert f"`{store}` must have something to go by, got nothing; measure first." in said
    assert page.read_text() == "as it is"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "null",
        '{"schema": 1, "trainings": {"race/AMPGD/0": {"command": "", "weights": {}, "suites": {}}}}',
        '{"settings": {"images": 1}, "variants": {}}',
        '{"settings": {"images": 1, "epochs": 1, "test_images": 1, "seed": 0}, "variants": {"a": {}}}',
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        *("peers", "quick", "ceiling", "scores", "transfer", "network_b", "authors_protocol"),
        "defence",
    ],
)
def test_commands_say_in_one_sentence_that_a_store_is_broken(
    name: str,
    content: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page, store = tmp_path / "page.md", tmp_path / "store.json"
    page.write_text("as it is")
    store.write_text(content)
    flag = "--page" if name in ("quick", "network_b", "authors_protocol", "defence") else "--out"
    monkeypatch.setattr(sys, "argv", [name, "--render", "--store", str(store), flag, str(page)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{store}" in line
    assert page.read_text() == "as it is"


@pytest.mark.parametrize("words", ["--images 0", "--deep-images 0"])
def test_no_images_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words.split()) == 2
    assert "must be at least 1" in capsys.readouterr().err


def test_comments_do_not_make_numbers_stale() -> None:
    commented = 'def f(x):  # why\n    """What."""\n    return  x'
    assert machine._instructions(commented) == machine._instructions("def f(x):\n    return x")
    assert machine._instructions(commented) != machine._instructions("def f(x):\n    return -x")
    assert len(machine.code()) == 12


def test_figures_of_training_depend_on_the_code_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(machine, "digest", lambda files: read.extend(files) or "")
    rooms: list[tuple[str, set[str]]] = [(room, set()) for room in ("solver", "ceiling", "quick")]
    for room, rooms_read in (*rooms, ("training", {"training"})):
        read.clear()
        machine.code_of(room)
        parents = {path.parent.name for path in read}
        assert parents & {"training", "cli", "report"} == rooms_read
        assert {"solver", "problems"} <= parents
        assert f"{room}.py" in {path.name for path in read if path.parent.name == "benchmarks"}


# ------------------------------------------------------------------------------- the page


def test_ratios_come_first() -> None:
    ours, theirs = lines(stored()["cases"]["a: nets"]["cells"], "ours")
    assert (ours.share, theirs.share) == (0.6, 0.3)
    assert (theirs.time_ratio, theirs.lost, theirs.evaluations) == (4.0, 3, 6.0)
    text = page.render(stored(), "peers.json")
    assert "| ASR_all, ours / theirs | Time, theirs / ours | Method |" in text
    assert "| 2 | 4 | theirs | 30.0 [21.9, 39.6] | 6.0 | 8.0 | 3 |" in text
    assert "| 4 (3 to 5) | +30.0 | apart | 1.2 | nets | ours | theirs | 123 | 2026-01-01 |" in text
    assert "Step sizes: theirs: step = 1." in text
    assert "compares nothing" not in text
    assert "| CPU | chip |" in text
    assert "torch 2" in text


def test_nothing_over_nothing_is_no_ratio() -> None:
    content = stored()
    for name, each in content["cases"]["a: nets"]["cells"].items():
        each["fooled"] = 0 if "theirs" in name else each["fooled"]
    assert "| 60 : 0 | 4 | theirs | 0.0 [0.0, 3.7] |" in page.render(content, "peers.json")
    for each in content["cases"]["a: nets"]["cells"].values():
        each["fooled"] = 0
    assert "| - | 4 | theirs | 0.0 [0.0, 3.7] |" in page.render(content, "peers.json")


def test_robust_accuracy_is_what_is_left() -> None:
    text = page.render(stored("d"), "peers.json")
    assert "| 4 | -30.0 | theirs | 70.0 [60.4, 78.1] | 6.0 | 8.0 | 3 |" in text


def test_quick_is_held_against_a_fifth_of_the_time_and_a_point() -> None:
    assert "**Missed**: beside theirs, `quick` takes 0.25 of the time." in page.render(
        stored("d"), "p"
    )
    content = stored("d")
    for name, each in content["cases"]["d: nets"]["cells"].items():
        each["seconds"] *= 2 if "theirs" in name else 1
    assert "**Missed**" not in page.render(content, "p")
    content["cases"]["d: nets"]["cells"]["ours/0"]["fooled"] = 8
    text = page.render(content, "p")
    assert "**Missed**: beside theirs, `quick` breaks 2.0 points less." in text
    assert "**Missed**" not in page.render(stored("a"), "p")


def test_what_is_in_short_is_large_enough_and_says_which_code_it_is_of() -> None:
    content = stored()
    one = content["cases"]["a: nets"]
    earlier = {**one, "begun": "2025-12-31 00:00", "settings": {**SETTINGS, "code": "999"}}
    small = {**one, "settings": {**SETTINGS, "images": 24}}
    content["cases"] |= {"a: earlier": earlier, "a: small": small}
    text = page.render(content, "peers.json").partition("## One perturbation")[0]
    assert "| 4 (3 to 5) | +30.0 | apart | 1.2 | nets | ours | theirs | 123 | 2026-01-01 |" in text
    assert (
        "| 4 (3 to 5) | +30.0 | apart | 1.2 | earlier | ours | theirs | 999 | 2025-12-31 |" in text
    )
    assert "a table need not be of the present code" in text
    assert "| Code (commit, day) | 123 (abc, 2026-01-01); 999 (abc, 2025-12-31) |" in text
    assert "Left out, with fewer than 50 images: small." in text
    assert "| small |" not in text


def test_where_others_break_more_or_take_less_time_is_collected_with_small_cases() -> None:
    content = stored()
    text = page.render(content, "peers.json")
    assert "In no finished table of attacks does a method of another library break more" in text
    one = content["cases"]["a: nets"]
    lead = {name: {**each, "images": 12} for name, each in one["cells"].items()}
    fooled = {"ours/0": 6, "ours/1": 7, "theirs/0": 9, "theirs/1": 10}
    for name, count in fooled.items():
        lead[name]["fooled"] = count
    fast = {name: {**each, "seconds": 1 / each["seconds"]} for name, each in one["cells"].items()}
    quick_misses = {**one, "methods": ["ours", "theirs"]}
    unfinished = {**one, "cells": fast, "wanted": 5}
    content["cases"] |= {
        "b: small": {**one, "cells": lead, "settings": {**SETTINGS, "images": 24}},
        "b: fast": {**one, "cells": fast},
        "b: unfinished": unfinished,
        "d: missed": quick_misses,
    }
    text = page.render(content, "peers.json")
    text = text.partition("## Where others are ahead")[2].partition("\n## ")[0]
    assert "| +25.0 | 4 (3 to 5) | small | 24 | ours | theirs | overlap |" in text
    assert "| -30.0 | 0.267 (0.2 to 0.333) | fast | 100 | ours | theirs | apart |" in text
    assert "| nets |" not in text
    assert "unfinished |" not in text
    assert "misses here: missed: beside theirs, `quick` takes 0.25 of the time." in text


def test_of_several_that_break_most_the_one_in_the_least_time_is_the_best() -> None:
    content = stored()
    one = content["cases"]["a: nets"]
    slower = {"slower/0": cell(20, 9.0), "slower/1": cell(10, 9.0)}
    one |= {"cells": slower | one["cells"], "peers": ["slower", "theirs"]}
    one |= {"methods": ["ours", "slower", "theirs"], "wanted": 6}
    assert "| nets | ours | theirs | 123 |" in page.render(content, "p")


def test_the_page_says_where_ours_is_no_stronger_and_where_another_loss_is() -> None:
    assert "With equal weights" not in page.render(stored(), "p")
    assert "C&W margin breaks more" not in page.render(stored("b"), "p")
    content = stored() | {"cases": stored()["cases"] | stored("b")["cases"]}
    average, margin = "`attack`, average", "`attack`, margin"
    for key, method, counts in (("a: nets", average, (12, 20)), ("b: nets", margin, (40, 22))):
        case = content["cases"][key]
        case |= {"methods": ["ours", method, "theirs"], "wanted": 6}
        case["cells"] |= {f"{method}/{k}": cell(n, 1.0) for k, n in enumerate(counts)}
    text = " ".join(page.render(content, "p").split())
    assert "not stronger**, as far as intervals tell. Points that `attack`, average, fools" in text
    assert "fools most: +2.0 on nets (theirs)." in text
    assert "in 1 of 1 tables: nets (62 and not 60 of 100 images, intervals overlap)." in text
    content["cases"]["a: nets"]["cells"][f"{average}/0"]["fooled"] = 40
    text = " ".join(page.render(content, "p").split())
    assert "not stronger" not in text
    assert "fools most: +30.0 on nets (theirs)." in text


def test_names_of_other_processes_are_explained_where_there_are_some(tmp_path: Path) -> None:
    content = stored()
    assert "names of other processes" not in page.render(content, "peers.json")
    content["cases"]["a: nets"]["others"] = ["make 0.9"]
    assert "names of other processes" in page.render(content, "peers.json")
    path = tmp_path / "figures.json"
    for room in ("solver", "training"):
        keep(path, room, [at_most("one", 1.0, 1.03)], 0.5, 1, [])
    text = section(path)
    assert "names of other processes" not in text
    assert "share here" not in text
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept["solver"] |= {"others": ["make 0.9"], "code": kept["training"]["code"]}
    path.write_text(json.dumps(kept), encoding="utf-8")
    text = section(path)
    assert "names of other processes" in text
    assert "share here (solver, training)" in text


def test_the_page_says_for_which_networks_norms_and_data_a_step_is_below_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "figures.json"
    c, b, a = "MNIST {C}, linf", "MNIST {A, B}, linf", "CIFAR-10 {A}, l1"
    names = {c: ([0.6, 0.7, 0.8], [1.1]), b: ([0.9, 0.97, 1.02], [0.97, 0.98, 1.03])}
    names[a] = ([1.4, 1.5, 1.6], [1.2, 1.3])
    figures = []
    for name, (bare, own) in names.items():
        figures.append(
            at_most(f"step of attack on {name}, over bare forward + backward", bare, 1.05)
        )
        figures.append(
            at_most(f"step of attack on {name}, over the library's own forward, margin", own, 9)
        )
    keep(path, "overheads", figures, 0.5, 1, [])
    text = " ".join(section(path).split())
    assert "**Steps are measured in linf on MNIST {C}, {A, B}; in l1 on CIFAR-10 {A}," in text
    assert (
        f"A step is below bare passes in every round on {c}. On {b} its median is below, but"
        in text
    )
    assert f"a step on {b} can only be by noise: of 2.0 % here." in text
    assert f"a step on {a}" not in text
    assert f"Over the library's own passes a step takes: {c} 1.100; {b} 0.980; {a} 1.250." in text
    assert (
        f"**Missed, 1 of 6 bounds of these rooms**: step of attack on {a}, over bare forward + backward: "
        "1.500, wanted at most 1.05." in text
    )
    keep(path, "overheads", figures[-2:], 0.5, 1, [])
    assert "below bare passes in" not in section(path)
    assert "by noise" not in section(path)
    keep(path, "overheads", figures[-1:], 0.5, 1, [])
    assert "No bound of 1 of these rooms is missed." in section(path)
    assert "Steps are measured" not in section(path)


def test_min_max_over_average_stands_beside_what_reproduce_found_of_it(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    keep(path, "overheads", [at_most("one", 1.0, 1.03)], 0.5, 1, [])
    assert "reproduce cost" not in section(path)
    rows = [["paper", "paper", None, None, None, 1.31, None]]
    rows += [[f"M, {how}", how, 64, 1.0, 2.0, 1.2, [1.1, 1.3]] for how in ("apgda", "attack")]
    (tmp_path / "cost.json").write_text(json.dumps({"lines": rows}), encoding="utf-8")
    assert "as they are fooled: M, attack 1.200 (1.100 to 1.300)." in " ".join(
        section(path).split()
    )


def test_the_page_tells_of_loops_that_are_measured_and_of_no_others(tmp_path: Path) -> None:
    path, where = tmp_path / "figures.json", "MNIST {A}, linf, over bare forward + backward"
    short, least = (
        unbounded(f"{name} loop on {where}", [value])
        for name, value in (("a short", 1.4), ("the least", 1.2))
    )
    keep(path, "overheads", [short], 0.5, 1, [])
    text = " ".join(section(path).split())
    assert "history: on MNIST {A}, linf, it takes 1.400 of bare passes." in text
    assert "east loop" not in text
    keep(path, "overheads", [short, least], 0.5, 1, [])
    text = " ".join(section(path).split())
    assert "no best iterate: on MNIST {A}, linf, it takes 1.200 of bare passes." in text


def test_what_is_missed_outside_of_the_rooms_is_named_beside_their_count(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    keep(path, "solver", [at_most("one", 1.0, 1.03)], 0.5, 1, [])
    assert "`quick` misses" not in section(path)
    content = stored("d")
    content["cases"]["d: nets"]["methods"] = ["ours", "theirs"]
    text = page.render(content, "peers.json", path)
    (said,) = [line for line in text.splitlines() if line.startswith("No bound of 1 of these")]
    assert "`quick` misses what is wanted of it above: nets: beside theirs, `quick` takes" in said
    assert "docs/CEILING.md" in said


def test_steps_are_measured_in_several_norms_and_on_several_data() -> None:
    shown = [case.shown for case in overheads.CASES]
    assert len(set(shown)) == len(shown)
    wanted = {f"MNIST {{A, C, D}}, {norm}" for norm in ("linf", "l2", "l1")}
    assert wanted | {"CIFAR-10 {C}, linf", "CIFAR-10 {C}, l1"} <= set(shown)
    case = overheads.Case("mnist", "a", "l1", 2, 1)
    step, own = overheads._overheads(case)
    assert step.name == "step of attack on MNIST {A}, l1, over bare forward + backward"
    assert (step.bound, own.bound) == ("<= 1.05", "-")
    loops = list(overheads._loops(replace(case, norm="linf")))
    assert [each.name.partition(" loop on MNIST {A}, linf, over bare")[0] for each in loops] == [
        "a short",
        "the least",
    ]


def test_where_rows_leave_the_passes_of_the_attack_are_made_again() -> None:
    side = leaving.Side(sp.MinMax())
    models = side.problem.models
    of_first = [rows for model, rows, _ in side.passes if model is models[0]]
    assert len(side.passes) == 3 * len(of_first)
    assert max(of_first) == leaving.IMAGES > min(of_first[len(of_first) // 2 :])
    assert side.evaluations <= sum(of_first)
    again, hooks = (
        [],
        [
            model.register_forward_hook(lambda m, i, _: again.append((m, len(i[0]))))
            for model in models
        ],
    )
    side.replay()
    assert again == [(model, rows) for model, rows, _ in side.passes]
    for hook in hooks:
        hook.remove()
    evaluations, time, per, bare = leaving.figures(rounds=1)
    assert 0.5 < evaluations.value < 1.0
    assert per.value == pytest.approx(time.value / evaluations.value)
    assert bare.value > 0


def test_the_versions_of_tables_that_have_others_are_named_with_them() -> None:
    content = stored()
    assert "| Versions | torch 2 |" in page.render(content, "peers.json")
    old = {**SETTINGS, "versions": {"torch": "1"}}
    content["cases"]["a: more"] = content["cases"]["a: nets"]
    content["cases"]["b: nets"] = {**content["cases"]["a: nets"], "settings": old}
    text = page.render(content, "peers.json")
    named = 'torch 1 (under "One model, equal evaluations" nets)'
    assert f"| Versions | torch 2 (all tables but these); {named} |" in text


def test_the_commands_say_their_rooms_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    for main in (benchmarks_command.main, quick.main):
        with pytest.raises(SystemExit):
            main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for room in (*benchmarks_command.ROOMS, *benchmarks_command.LONG):
        assert room in said
    assert "linf:0.3, l2:2 and l1:10 (``--threat`` can be given several times)" in said
    assert f"images {quick_default('images')} from number {quick_default('first')} on" in said


def quick_default(name: str) -> object:
    found = re.search(rf'"--{name}", type=int, default=(\d+)', Path(quick.__file__).read_text())
    assert found is not None
    return found[1]


def test_an_unfinished_table_says_so() -> None:
    content = stored()
    del content["cases"]["a: nets"]["cells"]["ours/1"]
    text = page.render(content, "peers.json")
    assert "**Unfinished: 3 of 4 cells.**" in text
    assert "In short" in page.render(stored(), "peers.json")
    assert "In short" not in text  # methods would be compared on other images


@pytest.mark.skipif(
    not (ROOT / "docs" / "BENCHMARKS.md").exists(), reason="the page is not written yet"
)
def test_the_page_is_that_of_the_stored_cells() -> None:
    path = Path("docs/results/peers.json")
    content = json.loads((ROOT / path).read_text(encoding="utf-8"))
    written = (ROOT / "docs" / "BENCHMARKS.md").read_text(encoding="utf-8")
    again = page.render(content, path.as_posix(), ROOT / FILE)
    assert again == written, "python -m benchmarks.peers --render"


def test_own_figures_are_kept_by_room_and_shown_last(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert section(path) == ""
    keep(path, "solver", [at_most("one over another", 1.5, 1.03)], 0.5, 1, [])
    keep(path, "training", [at_least("more", [3.0, 2.0, 1.5], 1.6)], 0.25, 1, [])
    keep(path, "solver", [at_most("one over another", 1.01, 1.03)], 0.5, 1, ["make 0.9"])
    text = page.render(stored(), "peers.json", path)
    assert text.count("one over another") == 1
    solver, training = text.splitlines()[-2:]
    assert solver == "| solver | one over another | 1.010 | at most 1.03 | kept |"
    assert training == "| training | more | 2.000 (1.500 to 3.000) | at least 1.6 | kept |"
    code = machine.code_of("solver")
    rooms = [line for line in text.splitlines() if code in line]
    assert len(rooms) == 1
    assert rooms[0].startswith("| solver | 0.5 to ")
    assert time.strftime("%Y-%m-%d", time.gmtime()) in rooms[0]
    assert machine.cpu() in rooms[0]
    assert "| make 0.9 |" in rooms[0]
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["training"]["others"]  # as it was kept before
    path.write_text(json.dumps(content), encoding="utf-8")
    (room,) = [line for line in section(path).splitlines() if line.startswith("| training | 0.2")]
    assert "| not recorded |" in room


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_what_else_runs_is_named_without_a_path_and_not_this_process() -> None:
    busy = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            name = machine._ticks()[other.pid][0]
            found = machine.others(1.0)
        finally:
            other.kill()
    assert any(each.startswith(f"{name} ") for each in found)
    assert not any("/" in each for each in found)
    assert all(float(each.rpartition(" ")[2]) >= 0.1 for each in found)
    assert machine.said([]) == "no other process used more than a tenth of a core"


def test_every_digest_of_the_present_code_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks_command.main(["--codes"]) == 0
    heading, *printed = capsys.readouterr().out.splitlines()
    assert heading.startswith("digests of the present code")
    found = dict(line.split()[:2] for line in printed)
    assert found["peers"] == machine.code()
    assert found["ceiling"] == machine.code_of("ceiling")
    assert {"one_domain", "quick", *benchmarks_command.ROOMS} <= set(found)


def test_beside_a_digest_stands_what_is_stored_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks_command, "FILE", tmp_path / "figures.json")
    told = benchmarks_command._stored
    assert [told("peers", "123"), told("solver", "1")] == ["0 of 0 stored tables", "nothing stored"]
    keep(tmp_path / "figures.json", "solver", [at_most("one", 1.0, 1.03)], 0.5, 1, [])
    (tmp_path / "peers.json").write_text(json.dumps(stored()), encoding="utf-8")
    assert [told("peers", "123"), told("peers", "4")] == [
        "1 of 1 stored tables",
        "0 of 1 stored tables",
    ]
    assert told("solver", machine.code_of("solver")) == "stored"
    assert told("solver", "1") == "stored of another code"


def _room(*figures: Figure, why: str = "") -> Any:
    def found() -> Iterator[Figure]:
        if why:
            raise SkippedError(why)
        yield from figures

    return SimpleNamespace(figures=found)


def test_a_room_without_a_figure_is_no_success_unless_it_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rooms = {"empty": _room(), "skipped": _room(why="no such CPU"), "full": _room(ONE)}
    monkeypatch.setattr(benchmarks_command, "ROOMS", tuple(rooms))
    for name, room in rooms.items():
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", room)
    codes = {name: benchmarks_command.main([name]) for name in rooms}
    assert codes == {"empty": 1, "skipped": 0, "full": 0}
    said = capsys.readouterr().out
    assert "empty: nothing was measured or stored" in said
    assert "skipped: no such CPU" in said


def test_the_figures_of_quick_are_those_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"quick\.json` must have something to go by"):
        benchmarks_command.main(["quick"])


def test_precision_says_that_this_cpu_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "is_native", lambda device: False)
    with pytest.raises(SkippedError, match="bfloat16"):
        next(precision.figures())


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    "content",
    ["", '{"a": {"x"', "[1]", "[" * 100_000, '{"solver": 3}', '{"solver": {"code": "3"}}'],
)
@pytest.mark.parametrize(
    ("name", "words"),
    [("__main__", ["solver", "--store"]), ("__main__", ["--codes"]), ("peers", ["--render"])],
)
def test_damaged_figures_are_one_sentence_before_anything_is_measured(
    name: str,
    words: list[str],
    content: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_text(content)
    file.with_name("peers.json").write_text(json.dumps(stored()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "benchmarks.solver", SimpleNamespace(figures=pytest.fail))
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"`{FILE}` must be a whole file of measurements" in line
    assert file.read_text() == content


def test_rooms_that_are_stored_at_once_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python 3.11 cannot parse code, which the digest needs, in several threads at once; processes are meant.
    monkeypatch.setattr("benchmarks.kept.machine.code_of", lambda *_: "code")
    path, rooms = tmp_path / "figures.json", ("solver", "training", "overheads", "precision")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda room: keep(path, room, [ONE], 0.5, 1, []), rooms))
    assert set(read(path)) == set(rooms)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
