"""Stored summaries whose parts contradict each other are refused, and rows of other images are not compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_experiments import fake
from test_stored_results import EXPERIMENTS, STORE

from saddlepoint import experiments
from saddlepoint.experiments.finished import Results
from saddlepoint.experiments.stored import read_summary


def refused(tmp_path: Path, name: str, content: dict[str, Any]) -> str:
    """Why a summary is not read."""
    (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"; (move it away|run .* again)\.$") as caught:
        read_summary(EXPERIMENTS[name], tmp_path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "block", "source", "strategies"),
    [
        ("ensemble-mnist", "l0-30", ("apgda", "true"), ("avg", "minmax")),
        ("ensemble-mnist", "l0-30", ("attack", "true"), ("avg", "minmax")),
        ("ensemble-mnist-heuristics", "linf-0.2", ("apgda", "true"), ("own-2", "own-3")),
        ("ensemble-mnist-heuristics", "linf-0.2", ("apgda", "true"), ("avg", "static")),
        ("ensemble-mnist-heuristics", "linf-0.2", ("apgda", "true"), ("own-2", "static")),
    ],
)
def test_a_row_is_of_the_strategy_that_it_names(
    name: str, block: str, source: tuple[str, str], strategies: tuple[str, str], tmp_path: Path
) -> None:
    content = json.loads((STORE / f"{name}.json").read_text())
    one, other = (
        row
        for row in content["rows"]
        if (row["block"], row["method"], row["labels"]) == (block, *source)
        and row["strategy"] in strategies
    )
    one["strategy"], other["strategy"] = other["strategy"], one["strategy"]
    assert f"must hold numbers of the present settings, got others for {block}" in refused(
        tmp_path, name, content
    )


def path_of(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: changes.get(name, means) for name, means in row["path"].items()}


def test_groups_of_other_images_are_not_compared() -> None:
    """Of 600 and of 601 images there are 150 groups of four: of other images, though as many."""
    experiment = EXPERIMENTS["universal-mnist"]
    block = next(block for block in experiment.blocks if block.key == "a-k4")
    one, other = (
        replace(fake(block, key, "apgda", rate), images=600, limit=600)
        for key, rate in (("avg", 50.0), ("minmax", 75.0))
    )
    assert Results(experiment, (one, other)).lift(other) == 50.0
    assert Results(experiment, (replace(one, limit=601), other)).lift(other) is None
    # Without groups, images are the first of the data set, whatever was asked for.
    block = EXPERIMENTS["ensemble-mnist"].blocks[0]
    few, many = (replace(fake(block, "avg", "apgda", 1.0), limit=n) for n in (200, 300))
    assert few.same_images(many)


def test_a_row_has_the_number_of_images_that_was_asked_for(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["ensemble-mnist"]
    small = replace(experiment, blocks=experiment.blocks[-1:], limit=2)
    setup = experiments.Setup(reports=False)
    experiments.reproduce(small, tmp_path / "runs", setup)
    assert [i.limit for i in experiments.collect(small, tmp_path / "runs").attacks] == [2, 2]
    experiments.write_summary(small, tmp_path / "runs", tmp_path)
    assert [item.limit for item in read_summary(small, tmp_path).attacks] == [2, 2]


@pytest.mark.parametrize(
    ("key", "change", "got"),
    [
        ("limit", lambda row: 999, "1000 as `images`"),
        ("asr_all_interval", lambda row: [0.0, 100.0], "[0.0, 100.0] as `asr_all_interval`"),
        ("weights", lambda row: dict.fromkeys("ABCD", 1.0), "'D': 1.0} as `weights`"),
        ("weights", lambda row: dict.fromkeys("ABCD", 0.2), "'D': 0.2} as `weights`"),
        ("asr_avg", lambda row: row["asr_avg"] - 0.01, " as `asr_avg`"),
        ("path", lambda row: path_of(row, A=[]), " as `path`"),
        ("path", lambda row: path_of(row, A=row["path"]["A"][:-1]), " as `path`"),
        ("path", lambda row: {n: means[:-1] for n, means in row["path"].items()}, " as `path`"),
        ("path", lambda row: {n: means for n, means in row["path"].items() if n != "D"}, "`path`"),
        ("path", lambda row: {n.lower(): means for n, means in row["path"].items()}, "`path`"),
        ("path", lambda row: {n: means[::-1] for n, means in row["path"].items()}, "`path`"),
        ("path", lambda row: path_of(row, A=[0.0, *row["path"]["A"][1:]]), " as `path`"),
        ("path", lambda row: {}, "{} as `path`"),
    ],
)
def test_what_contradicts_the_rest_of_a_row_is_refused(
    key: str, change: Any, got: str, tmp_path: Path
) -> None:
    content = json.loads((STORE / "steps-mnist.json").read_text())
    row = next(row for row in content["rows"] if "path" in row and row["method"] == "apgda")
    row[key] = change(row)
    message = refused(tmp_path, "steps-mnist", content)
    assert got in message
    assert re.search(r" of linf-0.2, minmax; move it away", message)


@pytest.mark.parametrize("accuracy", [100.0, 45.0, 0.0])
def test_accuracies_have_to_allow_the_success_rate(accuracy: float, tmp_path: Path) -> None:
    """A rate of 60.8 % leaves 39.2 % for the hardest network at most, and for all together at least."""
    content = json.loads((STORE / "steps-mnist.json").read_text())
    row = content["rows"][0]
    assert (row["strategy"], row["asr_all"]) == ("avg", 60.8)
    row["accuracy"] = dict.fromkeys("ABCD", accuracy)
    row["asr_avg"] = 100 - accuracy
    got = "asr_avg" if accuracy > 39.2 else "accuracy"
    assert f"as `{got}` of linf-0.2, avg" in refused(tmp_path, "steps-mnist", content)
    row["accuracy"] = {"A": 40.0, "B": 0.0, "C": 0.0, "D": 0.0}
    row["asr_avg"] = 90.0
    assert "as `accuracy` of linf-0.2, avg" in refused(tmp_path, "steps-mnist", content)


def test_no_more_groups_are_fooled_than_images(tmp_path: Path) -> None:
    content = json.loads((STORE / "universal-mnist.json").read_text())
    row = next(row for row in content["rows"] if row["asr_all"] > 1)
    row["asr_avg"] = row["asr_all"] - 1
    assert f"as `asr_avg` of {row['block']}" in refused(tmp_path, "universal-mnist", content)


LINES = {  # the first line of ours, by what is wrong with it
    "cost": [
        (2, 99999, " among its lines"),
        (2, None, " among its lines"),
        (0, "MNIST Z, linf 0.2", " among its lines"),
        (1, "attack-5", " among its lines"),
        (3, "fast", "'fast' as 'average, us per evaluation' of MNIST A, linf 0.2, apgda"),
        (5, -3.0, "-3.0 as 'min-max / average' of MNIST A"),
        (5, None, "None as 'min-max / average' of MNIST A"),
        (6, [9, 1], " as 'smallest and largest' of MNIST A"),
        (6, [2.0, 3.0], "as 'smallest and largest' of MNIST A"),
    ],
    "networks": [
        (2, "theirs", " among its lines"),
        (4, 250.0, "250.0 as 'Clean' of mnist, A, ours"),
        (3, 999, " among its lines"),
    ],
    "convergence": [
        (3, -1.0, "-1.0 as 'S(1)' of l2, alpha 1/10"),
        (8, "steep", "'steep' as 'Slope' of l2"),
    ],
    "image-robustness": [
        (0, "l7", " among its lines"),
        (2, 195, " among its lines"),
        (3, 1.5, "1.5 as 'rank correlation with C&W l2 distance' of l0, apgda"),
        (6, [0.9, 0.95], " as '95 % of that' of l0, apgda"),
    ],
}


@pytest.mark.parametrize(
    ("name", "cell", "value", "got"),
    [(name, *each) for name, several in LINES.items() for each in several],
)
def test_lines_that_no_measurement_can_come_to_are_refused(
    name: str, cell: int, value: Any, got: str, tmp_path: Path
) -> None:
    content = json.loads((STORE / f"{name}.json").read_text())
    line = next(line for line in content["lines"] if "paper" not in line)
    line[cell] = value
    assert got in refused(tmp_path, name, content)


@pytest.mark.parametrize("name", LINES)
def test_lines_and_measurements_belong_to_each_other(name: str, tmp_path: Path) -> None:
    content = json.loads((STORE / f"{name}.json").read_text())
    (first, *others), lines = content["measured"], content["lines"]
    assert "among its lines" in refused(tmp_path, name, content | {"measured": []})
    assert "among its lines" in refused(tmp_path, name, content | {"measured": others})
    assert "among its lines" in refused(tmp_path, name, content | {"lines": [*lines, lines[-1]]})
    wrong = content | {"measured": [first | {"key": "other"}, *others]}
    assert "'other' as `key` of a measurement" in refused(tmp_path, name, wrong)
    if name != "image-robustness":
        assert "no line of " in refused(tmp_path, name, content | {"lines": lines[:-1]})


@pytest.mark.parametrize("evaluations", [1.0, 50.0, 50.5])
def test_apgda_takes_all_of_its_steps(evaluations: float, tmp_path: Path) -> None:
    content = json.loads((STORE / "ensemble-mnist.json").read_text())
    row = content["rows"][0]
    assert (row["method"], row["evaluations"]) == ("apgda", 51.0)
    row["evaluations"] = evaluations
    message = refused(tmp_path, "ensemble-mnist", content)
    assert "must hold numbers of the present settings, got others for l0-30, avg" in message
