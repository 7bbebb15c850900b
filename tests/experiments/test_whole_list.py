"""`reproduce all`, `--jobs`, and the time that is told before a run starts."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_stored_results import QUIET, own_parameters, pair

from commands import inside
from saddlepoint import experiments
from saddlepoint.cli.cluster import together
from saddlepoint.experiments import EXPERIMENTS, pilot
from saddlepoint.experiments.block_parts import load_images
from saddlepoint.experiments.group_needs import least_images
from saddlepoint.experiments.plan import Experiment
from saddlepoint.runs import Run
from saddlepoint.runs.signals import stop_on_signals


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    """Three experiments: two that run, and one whose networks have no parameters."""
    one, two = pair(limit=3, steps=2), pair("mnist", limit=3, steps=2)
    block = one.blocks[0].but(models=["cifar10-a", "cifar10-g"])
    deep = replace(one, name="deep", blocks=(block,))
    only = replace(two, name="literal", methods=("apgda",), labels=("true",))
    found = {each.name: each for each in (one, deep, only)}
    monkeypatch.setattr(experiments, "EXPERIMENTS", found)
    monkeypatch.setattr(experiments, "find", found.__getitem__)
    return found


def test_all_runs_every_experiment_that_can_be_run(
    few: dict[str, Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("reproduce", "all", "--out", tmp_path, "--method", "both", "--labels", "both")
    assert inside(*words) == 0
    said = capsys.readouterr().err
    assert "deep is left out: no parameters for cifar10-g" in said
    places = {
        str(path.parent.relative_to(tmp_path)) for path in tmp_path.glob("*/*/*/*/*/run.json")
    }
    ours = {
        f"ensemble-cifar10/{labels}/{m}"
        for labels in ("true", "predicted")
        for m in ("apgda", "attack")
    }
    blocks = {place.rpartition("/")[0] for place in places}
    assert {block.rpartition("/")[0] for block in blocks} == ours | {"literal/true/apgda"}
    assert (tmp_path / "ensemble-cifar10" / "table.md").is_file()
    assert (tmp_path / "literal" / "table.md").is_file()
    assert inside(*words) == 2  # it holds results
    assert ": already there" not in said
    gone = tmp_path / "ensemble-cifar10" / "true" / "attack"
    (again,) = {file.parent for file in gone.glob("*/minmax/run.json")}
    shutil.rmtree(again)
    capsys.readouterr()
    assert inside(*words, "--resume") == 0
    told = [
        line for line in capsys.readouterr().err.splitlines() if re.search(r" \[\d/\d\] ", line)
    ]
    assert len(told) == len(places)
    (run,) = (line for line in told if not line.endswith(": already there"))
    assert re.search(r"attack .*min-max: [\d.]+ s$", run)
    assert inside("reproduce", "all", "--only", "A", "--out", tmp_path) == 2
    assert "`--only` must be left out with all" in capsys.readouterr().err
    assert few


def test_all_can_be_stopped_and_goes_on(
    few: dict[str, Experiment],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = experiments.reproduce

    def stopping(experiment: Experiment, *args: object, **flags: object) -> None:
        if experiment.name == "literal":
            raise KeyboardInterrupt
        run(experiment, *args, **flags)  # type: ignore[arg-type]

    monkeypatch.setattr(experiments, "reproduce", stopping)
    assert inside("reproduce", "all", "--out", tmp_path) == 130
    said = capsys.readouterr().err
    assert (
        f"stopped; continue with: saddlepoint reproduce all --method apgda --out {tmp_path}" in said
    )
    assert "--resume" in said
    done = tmp_path / "ensemble-cifar10" / "true" / "apgda"
    before = {path: path.stat().st_mtime_ns for path in done.glob("*/*/run.json")}
    assert len(before) == 2
    monkeypatch.setattr(experiments, "reproduce", run)
    assert inside("reproduce", "all", "--out", tmp_path, "--resume") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (tmp_path / "literal" / "table.md").is_file()
    assert few


def test_two_jobs_give_the_rows_of_one(tmp_path: Path) -> None:
    words = ("universal-mnist", "--only", "A, eps 0.2, K = 2", "--limit", "300", "--quiet")
    for jobs in (1, 2):
        out = ("--jobs", str(jobs), "--out", str(tmp_path / str(jobs)))
        subprocess.run([sys.executable, "-m", "saddlepoint", "reproduce", *words, *out], check=True)
    for key in ("avg", "minmax"):
        one, two = (tmp_path / n / "true" / "apgda" / "a-k2" / key for n in ("1", "2"))
        a, b = (json.loads((folder / "run.json").read_text()) for folder in (one, two))
        assert a["metrics"]["asr_all"] == b["metrics"]["asr_all"]
        assert a["hashes"] == b["hashes"]
        tensors = [load_file(folder / "tensors.safetensors") for folder in (one, two)]
        assert torch.equal(tensors[0]["fooled"], tensors[1]["fooled"])
    assert inside("reproduce", "universal-mnist", "--jobs", 0) == 2


def test_a_killed_process_is_named_with_the_line_that_continues_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "python"
    # Process 0 is at work when the other one dies, and stops when it is told to.
    waits = 'trap "exit 130" INT\nsleep 5 &\nwait\n'
    script.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && kill -9 $$\n{waits}exit 130\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert inside("reproduce", "universal-mnist", "--jobs", 2, "--out", "o") == 1
    told = capfd.readouterr().err
    assert "process 1 was ended by signal 9 (out of memory?); continue with: saddlepoint" in told
    assert "--out o" in told
    assert "--jobs 2" in told
    assert "--resume" in told


@pytest.mark.parametrize(
    ("first", "name", "known"),
    [
        (0, "INT", signal.default_int_handler),
        (1, "INT", signal.default_int_handler),
        (1, "TERM", signal.default_int_handler),
        (1, "TERM", signal.SIG_IGN),  # as in a background job of a script
    ],
)
def test_ctrl_c_while_the_processes_start_exits_130(
    first: int, name: str, known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that have not come to listen are ended by the signal, and do not exit with 130 themselves."""
    script = tmp_path / "python"
    stop = f'[ "$RANK" = {first} ] && kill -{name} $PPID\n'
    script.write_text(f"#!/bin/sh\n{stop}exec sleep 5\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    before = signal.signal(signal.SIGINT, known)
    try:
        with stop_on_signals():
            assert together(2, "saddlepoint reproduce steps-mnist", "the line again") == 130
        assert signal.getsignal(signal.SIGINT) is known
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_forecast_counts_images_rows_methods_and_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(limit=60, steps=2)
    tried: list[tuple[str, int]] = []

    def seconds(
        block: object,
        row: object,
        setup: experiments.Setup,
        part: object,
        clock: object,
        steps: int,
    ) -> float:
        assert steps == 2
        tried.append((setup.method, len(part)))  # type: ignore[arg-type]
        return 0.01 * len(part) * (2 if setup.method == "attack" else 1)  # type: ignore[arg-type]

    monkeypatch.setattr(pilot, "_seconds", seconds)
    monkeypatch.setattr(pilot, "seconds_per_gradient", lambda *_: 0.01)  # 13 images take 0.8 s
    true = experiments.Setup(limit=60, reports=False)
    once = experiments.forecast(experiment, tmp_path, [true])
    assert once == pytest.approx(2 * (60 * 0.01 + 0.2))
    assert {count for _, count in tried} == {13}
    twice = experiments.forecast(experiment, tmp_path, [true, replace(true, method="attack")])
    assert twice == pytest.approx(once + 2 * (60 * 0.02 + 0.2))
    both = experiments.forecast(experiment, tmp_path, [true, replace(true, labels="predicted")])
    assert once < both < 2 * once  # rows that were right are not attacked again
    pages = experiments.forecast(experiment, tmp_path, [replace(true, reports=True)])
    assert pages == pytest.approx(once + 2 * 0.5)


def test_the_forecast_of_slow_networks_tries_few_images_and_steps_and_counts_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pilot of eight groups of ten images took longer than the run."""
    tried: list[tuple[int, int]] = []

    def seconds(
        block: object, row: object, setup: object, part: object, clock: object, steps: int
    ) -> float:
        tried.append((len(part), steps))  # type: ignore[arg-type]
        return 0.01 * len(part) * (steps + 1)  # type: ignore[arg-type]

    monkeypatch.setattr(pilot, "_seconds", seconds)
    for slow, steps in ((0.1, 1), (0.01, 15), (0.001, 20)):
        tried.clear()
        monkeypatch.setattr(pilot, "seconds_per_gradient", lambda *_, found=slow: found)
        groups = experiments.settings(experiments.find("universal-mnist"), ["A, eps 0.2, K = 5"])
        setup = experiments.Setup(limit=60, reports=False)
        told = experiments.forecast(groups, tmp_path, [setup])
        assert told == pytest.approx(2 * (12 * 0.01 * 21 + 0.2))
        count = 8 if slow == 0.001 else 2
        assert set(tried) == {(count, steps)}


def test_rows_with_true_labels_that_are_there_are_taken_over_in_the_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, out = pair(limit=60, steps=1), tmp_path / "out"
    (block,) = experiment.blocks
    monkeypatch.setattr(pilot, "_seconds", lambda *_: 1.0)  # for 13 images
    monkeypatch.setattr(pilot, "seconds_per_gradient", lambda *_: 0.01)
    setup = replace(QUIET, labels="predicted")

    def told(*, method: str = "apgda", folder: Path = out, **changed: object) -> float:
        return experiments.forecast(experiment, folder, [replace(setup, method=method, **changed)])

    alone = told()
    both = experiments.forecast(experiment, out, [QUIET, setup])
    assert both < 2 * alone
    one = replace(experiment, blocks=(replace(block, rows=block.rows[:1]),))
    experiments.reproduce(one, out, QUIET)
    half = told()
    experiments.reproduce(experiment, out, QUIET, resume=True)
    assert told() == pytest.approx(both - alone)
    assert alone - half == pytest.approx(half - told())  # row by row
    others = [{"method": "attack"}, {"limit": 50}, {"seed": 1}, {"precision": "bfloat16"}]
    others.append({"parameters": own_parameters(tmp_path / "own", "cifar10-c")})
    for changed in others:  # those rows are not taken over
        assert told(**changed) == told(folder=tmp_path / "empty", **changed)  # type: ignore[arg-type]


def test_images_of_a_stopped_row_take_no_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(limit=60, steps=1)
    monkeypatch.setattr(pilot, "_seconds", lambda *_: 1.0)  # for 13 images
    monkeypatch.setattr(pilot, "seconds_per_gradient", lambda *_: 0.01)
    before = experiments.forecast(experiment, tmp_path, [QUIET])
    experiments.reproduce(experiment, tmp_path, QUIET)
    for file in tmp_path.rglob("run.json"):
        run = Run.read(file.parent)
        assert (run.done, run.rows) == (60, 60)
        run.but(status="interrupted", done=15).write(file.parent)
    overhead = 2 * 0.2
    after = experiments.forecast(experiment, tmp_path, [QUIET])
    assert after - overhead == pytest.approx((before - overhead) * 45 / 60)


def test_what_is_finished_takes_no_more_time(tmp_path: Path) -> None:
    experiment = pair(limit=3, steps=2)
    assert experiments.forecast(experiment, tmp_path, [QUIET]) > 0
    experiments.reproduce(experiment, tmp_path, QUIET)
    assert experiments.forecast(experiment, tmp_path, [QUIET]) == 0


def test_the_time_is_told_where_it_is_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(limit=3, steps=2)
    monkeypatch.setattr(experiments, "find", lambda name: replace(experiment, name=name))
    monkeypatch.setattr(experiments, "at_most", lambda *_: 600.0)
    monkeypatch.setattr(experiments, "forecast", lambda *_, **__: 150.0)
    assert inside("reproduce", "ensemble-cifar10", "--out", tmp_path / "a") == 0
    assert "ensemble-cifar10: about 2.5 minutes" in capsys.readouterr().err
    assert inside("reproduce", "ensemble-cifar10", "--out", tmp_path / "b", "--quiet") == 0
    assert "minutes" not in capsys.readouterr().err


def test_what_is_left_is_an_experiment_with_the_rest(tmp_path: Path) -> None:
    experiment = pair(limit=3, steps=2)
    (block,) = experiment.blocks
    one = replace(experiment, blocks=(replace(block, rows=block.rows[:1]),))
    experiments.reproduce(one, tmp_path, QUIET)
    rest = experiments.left(experiment, tmp_path, QUIET)
    assert [row for each in rest.blocks for row in each.rows] == [block.rows[1]]
    other = experiments.left(experiment, tmp_path, replace(QUIET, method="attack"))
    assert other == experiment
    deep = replace(experiment, blocks=(block.but(models=["cifar10-g"]),))
    assert not experiments.left(deep, tmp_path, QUIET).blocks
    measured = experiments.find("convergence")
    assert experiments.left(measured, tmp_path, QUIET) == measured


def test_measurements_are_counted_once_whatever_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saddlepoint.experiments.costs.seconds_per_gradient", lambda *_: 1e-3)
    setup = replace(QUIET, limit=100)
    # 100 images x networks x 1 ms and 5 ms, for every step
    for name, count in (("convergence", 4 * 401 * 305), ("cost", (105 + 305 + 405) * 51 * 2 * 6)):
        for jobs in (1, 4):
            told = experiments.forecast(experiments.find(name), tmp_path, [setup], jobs=jobs)
            assert told == pytest.approx(1e-3 * count, rel=0.01)
    rows = pair(limit=100, steps=9)
    one, four = (experiments.at_most(rows, setup, jobs) for jobs in (1, 4))
    assert one == pytest.approx(2 * (10 * (100 * 2 * 1e-3 + 0.005) + 0.2))
    assert four < one
    groups = experiments.settings(experiments.find("universal-mnist"), ["A, eps 0.2, K = 5"])
    told = experiments.at_most(groups, setup)
    assert told == pytest.approx(2 * (21 * (100 * 1e-3 + 0.005) + 0.2))


def test_all_tells_a_total_before_and_after(
    few: dict[str, Experiment],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {name: len(each.blocks) for name, each in few.items() if name != "deep"}
    monkeypatch.setattr(experiments, "at_most", lambda part, *_: 600.0 * len(part.blocks))
    monkeypatch.setattr(experiments, "forecast", lambda *_, **__: 150.0)
    assert inside("reproduce", "all", "--out", tmp_path) == 0
    said = capsys.readouterr().err
    assert f"all: {10 * sum(rows.values()):.1f} minutes at most" in said
    for name in rows:
        assert f"\n{name}: about 2.5 minutes\n" in said
        assert re.search(rf"\n{name}: forecast 2\.5 min, took \d+ s\n", said)
        (kept,) = json.loads((tmp_path / name / "times.json").read_text())
        assert kept["command"] == f"saddlepoint reproduce {name} --method apgda"
        assert (kept["forecast"], kept["took"] > 0) == (150.0, True)
    assert re.search(r"\nall: forecast 5\.0 min, took \d+ s\n$", said)
    assert inside("reproduce", "all", "--out", tmp_path, "--resume") == 0
    assert not re.search("measuring|minutes|took", capsys.readouterr().err)  # nothing was run
    assert len(json.loads((tmp_path / name / "times.json").read_text())) == 1
    (tmp_path / name / "times.json").write_text("{}")
    shutil.rmtree(tmp_path / name / "true" / "apgda" / few[name].blocks[0].key / "avg")
    assert inside("reproduce", "all", "--out", tmp_path, "--resume") == 2
    assert "times.json` must be the list of forecasts of a folder" in capsys.readouterr().err


def test_what_is_not_tried_has_no_forecast_but_a_bound(
    few: dict[str, Experiment],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = {"ensemble-cifar10": 12.0, "deep": 0.0, "literal": 90.0}
    monkeypatch.setattr(experiments, "at_most", lambda part, *_: short[part.name])
    monkeypatch.setattr(experiments, "forecast", lambda *_, **__: 70.0)
    assert inside("reproduce", "all", "--out", tmp_path) == 0
    said = capsys.readouterr().err
    assert re.search(r"\nensemble-cifar10: at most 12 s, took \d+ s\n", said)
    assert re.search(r"\nliteral: forecast 1\.2 min, took \d+ s\n", said)
    assert re.search(r"\nall: forecast 1\.2 min and at most 12 s, took \d+ s\n$", said)
    kept = json.loads((tmp_path / "ensemble-cifar10" / "times.json").read_text())
    assert [(each.get("forecast"), each["at_most"]) for each in kept] == [(None, 12.0)]
    assert few


def test_too_few_images_for_a_group_are_told_before_the_first_row(tmp_path, capsys):
    """With the number that suffices for all settings which are run."""
    cases = (
        ("image-robustness", 10, (), "5 images of one class for a group of l0, eps 30", 21),
        ("universal-mnist", 4, (), "10 images for a group of A, eps 0.2, K = 10", 10),
        ("universal-mnist", 4, ("--only", "B, eps 0.2, K = 5"), "5 images for a group of B", 5),
    )
    for name, limit, only, told, need in cases:
        words = ("reproduce", name, "--limit", limit, *only, "--out", tmp_path / "r")
        assert inside(*words) == 2
        said = capsys.readouterr().err
        assert f"`--limit` must leave {told}" in said
        assert f"got {limit}; take {need} or more, or other settings." in said
        assert not (tmp_path / "r").exists()


def test_groups_of_one_class_need_as_many_images_as_stand_before_the_first_of_them() -> None:
    block = EXPERIMENTS["image-robustness"].blocks[0]
    need = least_images(block)
    counts = [int(load_images("mnist", n).y.bincount().max()) for n in (need - 1, need)]
    assert counts == [4, 5]


def test_all_leaves_out_settings_for_whose_groups_there_are_too_few_images(
    few: dict[str, Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = EXPERIMENTS["universal-mnist"]
    few.clear()
    small, large = (
        experiments.settings(groups, [f"A, eps 0.2, K = {size}" for size in sizes])
        for sizes in ((2, 5, 10), (5, 10))
    )
    few |= {"groups": replace(small, name="groups"), "large": replace(large, name="large")}
    for more in ((), ("--resume",)):
        assert inside("reproduce", "all", "--limit", 4, "--out", tmp_path, *more) == 0
        said = capsys.readouterr().err
        assert "groups: without A, eps 0.2, K = 5: groups of 5 images need 5, got 4\n" in said
        assert "large is left out: groups of 5 images need 5, got 4\n" in said
    rows = {path.parent.parent.name for path in tmp_path.glob("*/*/*/*/*/run.json")}
    assert rows == {"a-k2"}
    table = (tmp_path / "groups" / "table.md").read_text()
    assert "groups of 10 images need 10, got 4" in table


def test_a_folder_in_the_way_of_the_last_experiment_is_told_before_the_first(tmp_path, capsys):
    last = list(experiments.EXPERIMENTS)[-1]
    (tmp_path / last).mkdir()
    (tmp_path / last / "table.md").write_text("mine")
    assert inside("reproduce", "all", "--limit", "1", "--out", tmp_path) == 2
    assert "must not hold files that an experiment would write over" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [last]
