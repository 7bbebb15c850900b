"""Rows in which `attack` is below `apgda`, or min-max not above the average, are listed, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_experiments import EXPERIMENTS, fake

from saddlepoint.experiments import Results
from saddlepoint.experiments.not_ahead import behind_table, level_table

EXPERIMENT = EXPERIMENTS["ensemble-mnist"]
BLOCK = EXPERIMENT.blocks[-1]


def _results(*items):
    return [Results(EXPERIMENT, items)]


def _row(method, rate, strategy="avg", **changed):
    return replace(fake(BLOCK, strategy, method, rate), **changed)


def test_a_row_below_is_listed_and_a_row_level_or_above_is_not() -> None:
    below = _row("apgda", 75.0), _row("attack", 50.0)
    level = _row("apgda", 75.0, "minmax"), _row("attack", 75.0, "minmax")
    table, said = behind_table(_results(*below, *level))
    assert said == "`attack` is at or above `apgda` in 1 of 2 cases, and below it in 1"
    (line,) = table.lines
    assert line[:3] == (EXPERIMENT.source, f"`{EXPERIMENT.name}`", BLOCK.label)
    assert line[3] == below[0].row.strategy.label
    assert line[6:] == (75.0, 50.0, None)
    assert table.notes == ("The interval holds zero in 0 of 1 lines; it is not stored of 1.",)


def test_the_interval_is_that_of_the_difference_of_the_same_rows() -> None:
    both = (True,) * 60, (True,) * 20 + (False,) * 40
    items = [_row(m, sum(v), success=v) for m, v in zip(("apgda", "attack"), both, strict=True)]
    table, _ = behind_table(_results(*items))
    low, high = table.lines[0][-1]
    assert low < -100 * 40 / 60 + 5 < high < 0
    assert table.notes[0].startswith(
        "The interval holds zero in 0 of 1 lines, and lies below zero in 1: "
    )
    assert table.notes[0].endswith(f", {BLOCK.label}, {items[0].row.strategy.label}, true labels.")


def test_rows_of_other_images_or_with_more_restarts_are_not_beside_it() -> None:
    one = _row("apgda", 75.0)
    for other in (
        _row("attack", 50.0, images=one.images + 1),
        _row("attack", 50.0, precision="bfloat16"),
        _row("attack-5", 50.0),
    ):
        assert "in 0 of 0 cases" in behind_table(_results(one, other))[1]
    table, said = behind_table(_results(_row("attack", 50.0)))
    assert "in 0 of 0 cases" in said
    assert (table.lines, table.notes) == ((), ())


@pytest.mark.parametrize(
    ("base", "item", "said"),
    [
        (
            75.0,
            80.0,
            "in 1 of 1 cases, level with it in 0 (in 0 both fool all, in 0 nothing), and below it in 0",
        ),
        (
            75.0,
            75.0,
            "in 0 of 1 cases, level with it in 1 (in 0 both fool all, in 0 nothing), and below it in 0",
        ),
        (100.0, 100.0, "level with it in 1 (in 1 both fool all, in 0 nothing), and below it in 0"),
        (0.0, 0.0, "level with it in 1 (in 0 both fool all, in 1 nothing), and below it in 0"),
        (75.0, 70.0, "level with it in 0 (in 0 both fool all, in 0 nothing), and below it in 1"),
    ],
)
def test_min_max_is_listed_where_it_is_not_above_the_average(
    base: float, item: float, said: str
) -> None:
    table, clause = level_table(_results(_row("apgda", base), _row("apgda", item, "minmax")))
    assert clause.endswith(said)
    assert [line[6:8] for line in table.lines] == ([] if item > base else [(base, item)])


def test_other_strategies_and_averages_of_other_images_are_not_counted() -> None:
    one, other = _row("apgda", 75.0), _row("apgda", 75.0, "minmax", images=1)
    assert "in 0 of 0 cases" in level_table(_results(one, other))[1]
    assert "in 0 of 0 cases" in level_table(_results(one))[1]
