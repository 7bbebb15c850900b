"""`reproduce --published`: the numbers of images, methods, labels and precision of the published tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_stored_results import DOCUMENT, STORE, pair

from commands import inside
from saddlepoint import experiments
from saddlepoint.experiments import costs
from saddlepoint.experiments.catalogue import published_parts
from saddlepoint.experiments.plan import Experiment, Published

EXPERIMENTS = experiments.EXPERIMENTS
Key = tuple[str, ...]
Weight = tuple[int, str]


def declared(experiment: Experiment) -> Iterator[tuple[Key, Weight]]:
    """Of every row and measurement that is published, the images and the precision it is declared with."""
    for part, weight in published_parts(experiment):
        for method in (m for m in weight.methods if m in experiment.methods):
            for labels in (c for c in weight.labels if c in experiment.labels):
                for block in part.blocks:
                    for row in block.rows:
                        key = block.key, row.strategy.key, method, labels
                        yield key, (weight.images, weight.precision)
            for each in part.measurements:
                yield (each.key, method), (weight.images, "float32")


def stored(name: str) -> Iterator[tuple[Key, Weight]]:
    """The same of every row and measurement in the stored summary; those of five restarts are others."""
    content = json.loads((STORE / f"{name}.json").read_text(encoding="utf-8"))
    for row in (row for row in content["rows"] if row["method"] != "attack-5"):
        key = row["block"], row["strategy"], row["method"], row["labels"]
        yield key, (row["limit"], row.get("precision", "float32"))
    for each in content["measured"]:
        yield (each["key"], each["method"]), (each["images"], "float32")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stored_summaries_have_the_weight_that_the_catalogue_declares(name: str) -> None:
    there, said = dict(stored(name)), dict(declared(EXPERIMENTS[name]))
    other = {
        ", ".join(key): f"declared {said.get(key)}, stored {there.get(key)}"
        for key in there | said
        # The one network without parameters cannot be there.
        if said.get(key) != there.get(key) and key[0] != "cifar10-g"
    }
    assert not other, f"{name}.json is not what --published makes: {other}"


def test_the_lines_above_tables_ask_for_what_the_catalogue_declares() -> None:
    lines = re.findall(
        r"^\$ (saddlepoint reproduce [\w-]+ .*)$", DOCUMENT.read_text(), re.MULTILINE
    )
    checked = []
    for words in (line.split() for line in lines if "attack-5" not in line and "$" not in line):
        if words[2] in EXPERIMENTS and "--published" not in words:
            flags = dict(zip(words[3::2], words[4::2], strict=False))
            experiment = EXPERIMENTS[words[2]]
            own = experiment.published
            limit = int(flags.get("--limit", experiment.limit))
            assert limit == own.images, words
            assert flags.get("--precision", "float32") == own.precision, words
            assert flags.get("--labels", "true") == ("both" if own.labels[1:] else "true"), words
            checked.append(words[2])
    assert len(set(checked)) > 12


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_parts_are_the_whole_experiment(name: str) -> None:
    experiment = EXPERIMENTS[name]
    parts = published_parts(experiment)
    keys = [block.key for part, _ in parts for block in part.blocks]
    assert sorted(keys) == sorted(block.key for block in experiment.blocks)
    assert [m for part, _ in parts for m in part.measurements] == list(experiment.measurements)
    apart = {key for keys in experiment.published.blocks for key in keys}
    assert apart <= set(keys)


def test_parts_are_those_of_the_settings_that_are_left() -> None:
    some = experiments.settings(EXPERIMENTS["universal-cifar10"], ["H, eps 0.02, K = 4"])
    ((part, weight),) = published_parts(some)
    assert [block.key for block in part.blocks] == ["h-k4"]
    assert weight.images == 100


@pytest.mark.parametrize(
    "more",
    [
        ("--limit", 5),
        ("--full",),
        ("--method", "apgda"),
        ("--labels", "true"),
        ("--precision", "float32"),
    ],
)
@pytest.mark.parametrize("name", ["all", "cost"])
def test_what_the_catalogue_says_is_not_said_again(
    name: str, more: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside("reproduce", name, "--published", *more, "--out", tmp_path / "r") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"`{more[0]}` must be left out with --published, which has its own, got" in line
    assert not (tmp_path / "r").exists()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Two blocks: one published on three images with both labels, one on two with true ones."""
    whole = pair(limit=9, steps=2)
    (block,) = whole.blocks
    few = Published(2, "float32", ("true",), ("apgda",))
    weight = Published(3, "bfloat16", ("true", "predicted"), blocks={("other",): few})
    other = replace(block, key="other", label="other")
    found = replace(whole, blocks=(block, other), published=weight)
    monkeypatch.setattr(experiments, "EXPERIMENTS", {found.name: found})
    monkeypatch.setattr(experiments, "find", {found.name: found}.__getitem__)
    return found


def test_every_block_is_run_as_it_is_published(
    apart: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, store = tmp_path / "out", tmp_path / "store"
    words = ("reproduce", "all", "--published", "--out", out, "--store", store)
    assert inside(*words) == 0
    content = json.loads((store / f"{apart.name}.json").read_text())
    both = [(m, c) for m in ("apgda", "attack") for c in ("true", "predicted")]
    expected = {(apart.blocks[0].key, *each, 3, "bfloat16") for each in both}
    expected |= {("other", "apgda", "true", 2, "float32")}
    assert expected == {
        (r["block"], r["method"], r["labels"], r["images"], r.get("precision", "float32"))
        for r in content["rows"]
    }
    commands = {json.loads(path.read_text())["command"] for path in out.glob("*/*/*/*/*/run.json")}
    assert commands == {f"saddlepoint reproduce {apart.name} --published"}
    assert inside(*words) == 2  # it holds results
    capsys.readouterr()
    assert inside(*words, "--resume") == 0
    rows = [line for line in capsys.readouterr().err.splitlines() if "min-max" in line]
    assert rows
    assert all(line.endswith(": already there") for line in rows)


def test_plain_lines_and_published_ones_make_the_same_rows(
    apart: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("reproduce", apart.name, "--out", tmp_path, "--only", "other")
    assert inside(*words, "--limit", 2) == 0
    capsys.readouterr()
    assert inside(*words, "--published", "--resume") == 0
    said = capsys.readouterr().err
    assert said.count(": already there") == 2


def test_the_list_has_the_published_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(costs, "seconds_per_gradient", lambda *_: 1e-3)
    assert inside("reproduce", "--list", "--published", "--quiet") == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert "as published" in first
    images = {line.split()[0]: line.split()[1] for line in lines if not line.startswith(" ")}
    assert images["universal-cifar10"] == "100-1000"
    assert images["ensemble-cifar10-deep"] == "100"
    assert images["transform-random"] == "400-1000"
    assert images["gamma-mnist"] == "200"
    assert inside("reproduce", "ensemble-mnist", "--list", "--published", "--quiet") == 0
    line = capsys.readouterr().out.splitlines()[2].split()
    # 4 balls x 2 strategies x 1,000 images x 51 steps x 4 networks x 1 ms, 2 methods and 2 labels
    assert float(line[2]) == pytest.approx(4 * (27.2 + 0.4), rel=0.01)
