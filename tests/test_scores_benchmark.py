"""`python -m benchmarks scores`: one judge for all methods."""

from __future__ import annotations

import pytest
import torch
from benchmarks import scores

import saddlepoint as sp


def problem() -> sp.Ensemble:
    x, y = sp.data.sample("mnist", 6)
    return sp.Ensemble([sp.models.load("mnist-a"), sp.models.load("mnist-c")], x, y)


def test_a_row_counts_where_all_networks_are_wrong() -> None:
    asked = problem()
    result = sp.attack(asked, sp.linf(scores.EPS), steps=8)
    assert bool(result.success.any())
    assert torch.equal(scores.judged(asked, result.delta), result.success)
    assert not scores.judged(asked, torch.zeros_like(asked.x)).any()


def test_what_leaves_the_ball_is_refused() -> None:
    asked = problem()
    with pytest.raises(ValueError, match="`delta` must be within"):
        scores.judged(asked, torch.full_like(asked.x, scores.EPS + 1e-3))


@pytest.mark.parametrize("name", ["white box: attack", "searched()", "estimated()"])
def test_methods_answer_perturbations_and_queries(name: str) -> None:
    asked = problem()
    method = {
        "white box: attack": scores.white,
        "searched()": scores.blind(sp.searched(20)),
        "estimated()": scores.blind(sp.estimated(60)),
    }[name]
    delta, queries = method(asked, 0)
    assert delta.shape == asked.x.shape
    assert queries.shape == (6,)
    assert scores.judged(asked, delta).shape == (6,)
