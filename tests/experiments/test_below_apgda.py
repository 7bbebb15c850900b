"""Rows in which `attack` is below `apgda` are listed, all of them and no others."""

from __future__ import annotations

from dataclasses import replace

from test_experiments import EXPERIMENTS, fake

from saddlepoint.experiments import Results
from saddlepoint.experiments.below_apgda import behind_table

EXPERIMENT = EXPERIMENTS["ensemble-mnist"]
BLOCK = EXPERIMENT.blocks[-1]


def _results(*items):
    return [Results(EXPERIMENT, items)]


def _row(method, rate, strategy="avg", **changed):
    return replace(fake(BLOCK, strategy, method, rate), **changed)


def test_a_row_below_is_listed_and_a_row_level_or_above_is_not() -> None:
    below = _row("apgda", 75.0), _row("attack", 50.0)
    level = _row("apgda", 75.0, "minmax"), _row("attack", 75.0, "minmax")
    table, rows = behind_table(_results(*below, *level))
    assert rows == 2
    (line,) = table.lines
    assert line[:3] == (EXPERIMENT.source, BLOCK.label, below[0].row.strategy.label)
    assert line[5:] == (75.0, 50.0, None)  # no verdicts are stored


def test_the_interval_is_that_of_the_difference_of_the_same_rows() -> None:
    both = (True,) * 60, (True,) * 20 + (False,) * 40
    items = [_row(m, sum(v), success=v) for m, v in zip(("apgda", "attack"), both, strict=True)]
    table, _ = behind_table(_results(*items))
    low, high = table.lines[0][-1]
    assert low < -100 * 40 / 60 + 5 < high < 0


def test_rows_of_other_images_or_with_more_restarts_are_not_beside_it() -> None:
    one = _row("apgda", 75.0)
    assert behind_table(_results(one, _row("attack", 50.0, images=one.images + 1)))[1] == 0
    assert behind_table(_results(one, _row("attack", 50.0, precision="bfloat16")))[1] == 0
    assert behind_table(_results(one, _row("attack-5", 50.0)))[1] == 0
    assert behind_table(_results(_row("attack", 50.0)))[1] == 0
