"""Whole tables in a line each: means over settings that both methods have, beside the paper's means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_experiments import EXPERIMENTS, fake

from saddlepoint import experiments
from saddlepoint.experiments import Results
from saddlepoint.experiments.finished import Attacked, Source
from saddlepoint.experiments.glance import glance_table
from saddlepoint.experiments.plan import UNREPORTED

EXPERIMENT = EXPERIMENTS["ensemble-mnist"]
FIRST, SECOND = EXPERIMENT.blocks[:2]


def _both(block: Any, method: str, base: int, item: int, **changed: Any) -> list[Attacked]:
    """The average and min-max of a setting, which fool the first so many of ten images."""
    labels = changed.pop("labels", "true")
    return [
        replace(
            fake(block, strategy, method, 10.0 * count),
            source=Source(method, labels),
            **{"images": 10, "success": (True,) * count + (False,) * (10 - count), **changed},
        )
        for strategy, count in (("avg", base), ("minmax", item))
    ]


def _lines(*several: list[Attacked], experiment: Any = EXPERIMENT) -> list[tuple[Any, ...]]:
    return list(glance_table([Results(experiment, [i for each in several for i in each])]).lines)


def test_means_are_over_the_settings_that_both_methods_have() -> None:
    (line,) = _lines(
        _both(FIRST, "apgda", 2, 6), _both(SECOND, "apgda", 4, 5), _both(FIRST, "attack", 3, 9)
    )
    papers = [r.paper.asr_all for r in FIRST.rows if r.strategy.key in ("avg", "minmax")]
    assert line[:5] == (EXPERIMENT.source, "`ensemble-mnist`", "true", "1 of 2", "10")
    assert line[5] == f"{papers[0]:.1f} -> {papers[1]:.1f}"
    assert line[6] == f"{papers[1] - papers[0]:+.1f}"
    assert (line[7], line[10]) == ("20.0 -> 60.0", "30.0 -> 90.0")
    assert line[8].startswith("+40.0 [")
    assert line[11].startswith("+60.0 [")
    gaps = [ours - paper for ours, paper in zip((20.0, 60.0), papers, strict=True)]
    assert line[9] == f"{max(gaps, key=abs):+.1f}"


def test_a_method_alone_counts_all_of_its_settings() -> None:
    (line,) = _lines(_both(FIRST, "apgda", 2, 6), _both(SECOND, "apgda", 4, 5))
    assert (line[3], line[7], line[10:]) == ("2", "30.0 -> 55.0", (None, None))
    assert line[8].startswith("+25.0 [")


@pytest.mark.parametrize(
    "attacked",
    [
        _both(SECOND, "attack", 3, 9),
        _both(FIRST, "attack", 3, 9, images=4, success=(True,) * 4),
        _both(FIRST, "attack", 3, 9, precision="bfloat16"),
    ],
    ids=["settings", "images", "precision"],
)
def test_methods_with_nothing_in_common_have_lines_of_their_own(attacked: list[Attacked]) -> None:
    paper, ours = _lines(_both(FIRST, "apgda", 2, 6), attacked)
    assert (paper[7], paper[10:]) == ("20.0 -> 60.0", (None, None))
    assert (ours[7:10], ours[10]) == ((None, None, None), "30.0 -> 90.0")
    (item,) = (each for each in attacked if each.row.strategy.key == "minmax")
    assert (paper[4], ours[4]) == ("10", str(item.images))
    assert paper[3] == ours[3] == ("1 of 2" if item.block is SECOND else "1")


def test_settings_of_other_images_are_left_out_where_there_are_others() -> None:
    few = _both(SECOND, "attack", 3, 9, images=4, success=(True,) * 4)
    both = [_both(FIRST, "apgda", 2, 6), _both(FIRST, "attack", 3, 9)]
    (line,) = _lines(*both, _both(SECOND, "apgda", 4, 5), few)
    (alone,) = _lines(*both)
    assert line == (*alone[:3], "1 of 2", *alone[4:])


def test_attack_with_restarts_alone_has_no_line() -> None:
    assert _lines(_both(FIRST, "attack-5", 3, 9)) == []


def test_labels_and_seeds_have_lines_of_their_own() -> None:
    lines = _lines(
        _both(FIRST, "apgda", 2, 6),
        _both(FIRST, "apgda", 1, 2, labels="predicted"),
        _both(SECOND, "apgda", 4, 5, seed=1),
    )
    assert [(line[2], line[7]) for line in lines] == [
        ("true", "20.0 -> 60.0"),
        ("true", "40.0 -> 50.0"),
        ("predicted", "10.0 -> 20.0"),
    ]


def test_other_strategies_and_averages_of_other_images_are_not_counted() -> None:
    one = _both(FIRST, "apgda", 2, 6)
    other = replace(fake(SECOND, "avg", "apgda", 40.0), images=11, success=(True,) * 11)
    alone = [replace(one[1], block=SECOND), other]
    assert _lines(one, alone) == _lines(one)


def test_settings_without_numbers_of_the_paper_count_only_where_it_has_none() -> None:
    rows = (replace(row, paper=UNREPORTED) for row in SECOND.rows)
    items = _both(replace(SECOND, rows=tuple(rows)), "apgda", 4, 5)
    (line,) = _lines(_both(FIRST, "apgda", 2, 6), items)
    assert (line[3], line[7]) == ("1 of 2", "20.0 -> 60.0")
    (line,) = _lines(items)
    assert line[3:10] == ("1", "10", None, None, "40.0 -> 50.0", line[8], None)


@pytest.mark.parametrize("marker", ["<!-- glance: cost; networks -->", "<!-- Glance: cost -->"])
def test_almost_markers_are_refused(marker: str) -> None:
    with pytest.raises(ValueError, match="must be written `<!-- glance: NAME, NAME -->`"):
        experiments.write_tables(f"{marker}\n<!-- end -->\n", Path())
