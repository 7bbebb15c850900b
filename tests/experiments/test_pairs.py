"""Paired differences: against exact coverage, and in the tables of runs and stored summaries."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from test_experiments import fake
from test_stored_results import EXPERIMENTS, QUIET, pair

from saddlepoint import experiments
from saddlepoint.experiments.finished import Results
from saddlepoint.experiments.pairs import mean_gain, mean_of, pair_table, paired, verdict_pairs
from saddlepoint.experiments.summary import tables_of


def rows(both: int, gained: int, lost: int, neither: int) -> tuple[list[bool], list[bool]]:
    counts = {(1, 1): both, (0, 1): gained, (1, 0): lost, (0, 0): neither}
    cells = [cell for cell, count in counts.items() for _ in range(count)]
    return [bool(a) for a, _ in cells], [bool(b) for _, b in cells]


@pytest.mark.parametrize("gain", [0.05, 0.2, 0.4])
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.2])
def test_the_interval_covers_the_truth_as_often_as_it_says(gain: float, loss: float) -> None:
    size, covered = 40, 0.0
    for gained, lost in product(range(size + 1), repeat=2):
        same = size - gained - lost
        if same < 0:
            continue
        ways = math.comb(size, gained) * math.comb(size - gained, lost)
        chance = ways * gain**gained * loss**lost * (1 - gain - loss) ** same
        low, high = paired(*rows(same, gained, lost, 0)).interval
        covered += chance * (low <= 100 * (gain - loss) <= high)
    assert covered > 0.93


def test_a_difference_counts_the_rows_that_differ() -> None:
    found = paired(*rows(50, 12, 2, 36))
    assert (found.difference, found.gained, found.lost) == (10.0, 12, 2)
    assert found.interval[0] > 0  # McNemar's exact test says 0.013
    low, high = paired(*rows(0, 0, 0, 100)).interval
    assert low < 0 < high  # nothing was seen to differ, which is not proof of that
    assert paired(*rows(0, 1, 0, 0)).interval[1] == 100.0
    with pytest.raises(ValueError, match="must have rows"):
        paired([], [])


def test_settings_on_the_same_images_are_one_sample_of_images() -> None:
    one, other = rows(50, 20, 4, 26), rows(60, 10, 0, 30)
    mean, (low, high) = mean_of([one, other], same_rows=True)
    assert mean == pytest.approx(13.0)
    wide_low, wide_high = mean_of([one, other], same_rows=False)[1]
    assert wide_low < low < 13.0 < high < wide_high
    # The same setting twice is no more evidence than once.
    twice, once = (mean_of(pairs, same_rows=True) for pairs in ([one, one], [one]))
    assert (twice[0], *twice[1]) == pytest.approx((once[0], *once[1]))
    assert mean_of([one, one], same_rows=False)[1] == pytest.approx(paired(*one).interval)


def test_the_table_of_pairs_is_that_of_the_verdicts(tmp_path: Path) -> None:
    experiment = pair(limit=12, steps=2)
    block = experiment.blocks[0]
    small = replace(block.but(eps=0.01), key="small", label="small")
    experiment = replace(experiment, blocks=(block, small))
    experiments.reproduce(experiment, tmp_path / "runs", QUIET)
    results = experiments.collect(experiment, tmp_path / "runs")
    table = tables_of(results)[1]
    assert [line[0] for line in table.lines] == [block.label, "small", "mean of 2 settings"]
    items = {(i.block.key, i.row.strategy.key): i for i in results.attacks}
    pairs = []
    for line, key in zip(table.lines, (block.key, "small"), strict=False):
        fooled = [items[key, s].tensors()["fooled"].all(dim=1).tolist() for s in ("avg", "minmax")]
        found = paired(*fooled)
        ours = items[key, "minmax"].asr_all - items[key, "avg"].asr_all
        assert found.difference == pytest.approx(ours, abs=1e-3)
        assert line[-4:] == (found.difference, found.interval, found.gained, found.lost)
        pairs.append(tuple(fooled))
    mean = mean_of(pairs, same_rows=True)  # type: ignore[arg-type]
    assert table.lines[2][-4:-2] == mean
    experiments.write_summary(experiment, tmp_path / "runs", tmp_path)
    assert tables_of(experiments.read_summary(experiment, tmp_path))[1] == table


def test_a_document_shows_the_pairs_and_says_where_there_are_none(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["ensemble-cifar10"]
    block = experiment.blocks[-1]
    small = replace(experiment, blocks=(block,), limit=2)
    experiments.reproduce(small, tmp_path / "runs", QUIET)
    experiments.write_summary(small, tmp_path / "runs", tmp_path)
    text = "<!-- table: ensemble-cifar10, paired -->\n<!-- end -->\n"
    written = experiments.write_tables(text, tmp_path)
    assert "| linf, eps 0.05 | min-max | apgda | true | 2 |" in written
    path = tmp_path / "ensemble-cifar10.json"
    content = json.loads(path.read_text())
    for row in content["rows"]:
        del row["verdicts"]
    path.write_text(json.dumps(content))
    written = experiments.write_tables(text, tmp_path)
    assert "The stored runs were made before verdicts were kept" in written
    assert "|" not in written


def test_rows_without_verdicts_or_of_other_images_are_not_paired(tmp_path: Path) -> None:
    experiment = pair(limit=4, steps=2)
    experiments.reproduce(experiment, tmp_path / "runs", QUIET)
    results = experiments.collect(experiment, tmp_path / "runs")
    bare = tuple(replace(item, folder=None) for item in results.attacks)
    assert len(tables_of(replace(results, attacks=bare))) == 1
    average, worst = results.attacks
    other = replace(worst, folder=None, success=(True, False, True))
    assert len(tables_of(replace(results, attacks=(average, other)))) == 1


@pytest.mark.parametrize("change", [{"images": 1000}, {"seed": 1}])
def test_rows_of_other_images_have_no_lift_and_no_pair(change: dict[str, int]) -> None:
    experiment = EXPERIMENTS["ensemble-mnist"]
    block = experiment.blocks[-1]
    one = replace(fake(block, "avg", "apgda", 50.0), success=(True, False))
    other = replace(fake(block, "minmax", "apgda", 75.0), success=(True, True))
    results = Results(experiment, (one, other))
    assert results.lift(other) == 50.0
    assert len(verdict_pairs(results)) == 1
    moved = Results(experiment, (replace(one, **change), other))  # type: ignore[arg-type]
    assert moved.lift(other) is None
    assert verdict_pairs(moved) == []


def test_means_join_rows_of_one_seed_and_say_which_are_left_out() -> None:
    experiment = EXPERIMENTS["ensemble-mnist"]
    seeds, attacks = {0: 0, 1: 7, 2: 0, 3: 5}, []
    for number, seed in seeds.items():
        block = experiment.blocks[number]
        one = replace(fake(block, "avg", "apgda", 50.0), success=(True, False), seed=seed)
        other = fake(block, "minmax", "apgda", 100.0 if seed == 0 else 50.0)
        success = (True, True) if seed == 0 else (True, False)
        attacks += [one, replace(other, success=success, seed=seed)]
    results = Results(experiment, tuple(attacks))
    pairs = verdict_pairs(results)
    with pytest.raises(ValueError, match="`pairs` must be of one seed, got 0, 5, 7"):
        mean_gain(pairs)
    (table,) = pair_table(results)
    (mean,) = (line for line in table.lines if str(line[0]).startswith("mean"))
    assert mean[0] == "mean of 2 settings, seed 0"
    assert mean[7] == 50.0
    (said,) = table.notes
    one, other = (experiment.blocks[number].label for number in (1, 3))
    assert said == (
        "A mean is over settings of one seed; of min-max, apgda, in none: "
        f"{one} (seed 7), {other} (seed 5)."
    )
    same = Results(experiment, tuple(replace(item, seed=0) for item in attacks))
    assert pair_table(same)[0].lines[-1][0] == "mean of 4 settings"
    assert pair_table(same)[0].notes == ()
