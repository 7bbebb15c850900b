"""The page of claims: what is stored gives it, and verdicts change with the numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_stored_results import QUIET, pair

from folders import ROOT
from saddlepoint import experiments
from saddlepoint.experiments import claim_checks as checks
from saddlepoint.experiments import claim_measures as measures
from saddlepoint.experiments.claim_checks import Summaries
from saddlepoint.experiments.claims import CLAIMS, claims_table

PAGE = ROOT / "docs" / "CLAIMS.md"
STORE = ROOT / "docs" / "results"


def test_the_page_of_claims_is_what_the_stored_summaries_give() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "<!-- claims -->\n|" in text
    assert experiments.write_tables(text, STORE) == text, (
        "write the claims again: saddlepoint reproduce --summary docs"
    )


def test_every_number_of_the_issue_is_a_claim() -> None:
    said = " ".join(claim.says for claim in CLAIMS)
    numbers = "40.79 17.48 35.21 42.63 9.39 15.69 4.31 31.47 0.86 1.31 1.15 O(1/T) gamma beta"
    assert [word for word in numbers.split() if word not in said] == []


def test_without_summaries_nothing_is_measured(tmp_path: Path) -> None:
    table = claims_table(tmp_path)
    assert {line[3] for line in table.lines} == {"not measured"}
    assert all(line[4] for line in table.lines)


def changed(tmp_path: Path, name: str, rates: dict[tuple[str, str], float]) -> Summaries:
    """The stored summary of an experiment with other success rates of `apgda` and true labels."""
    content: dict[str, Any] = json.loads((STORE / f"{name}.json").read_text())
    for row in content["rows"]:
        key = (row["block"], row["strategy"])
        if key in rates and (row["method"], row["labels"]) == ("apgda", "true"):
            row["asr_all"] = rates[key]
    (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return Summaries(tmp_path)


@pytest.mark.parametrize(
    ("worst", "verdict"),
    [(90.0, "holds"), (60.0, "holds in part"), (40.0, "does not hold")],
)
def test_a_mean_lift_is_judged_by_its_rule(worst: float, verdict: str, tmp_path: Path) -> None:
    blocks = ("l0-30", "l1-20", "l2-3", "linf-0.2")
    rates = {(block, "avg"): 50.0 for block in blocks} | {(b, "minmax"): worst for b in blocks}
    summaries = changed(tmp_path, "ensemble-mnist", rates)
    found = checks.mean_lift(summaries, name="ensemble-mnist", reported=40.79, only="")
    assert found.verdict == verdict
    assert found.ours.startswith(f"{100 * (worst / 50 - 1):+.1f} % (apgda")
    assert "our average fools 50.0 %, the paper's 67.7 %" in found.why


def test_one_setting_below_the_average_is_named(tmp_path: Path) -> None:
    rates = {("l0-30", "avg"): 50.0, ("l0-30", "minmax"): 49.0}
    rates |= {("linf-0.2", "avg"): 1.0, ("linf-0.2", "minmax"): 99.0}
    summaries = changed(tmp_path, "ensemble-mnist", rates)
    found = checks.mean_lift(summaries, name="ensemble-mnist", reported=40.79, only="")
    assert found.verdict == "holds in part"
    assert "min-max is below in l0, eps 30" in found.why


def test_a_heuristic_that_is_level_or_ahead_is_named(tmp_path: Path) -> None:
    block = "linf-0.2"
    summaries = changed(tmp_path, "ensemble-mnist-heuristics", {(block, "minmax"): 99.0})
    assert checks.above_heuristics(summaries).verdict == "holds"
    summaries = changed(tmp_path, "ensemble-mnist-heuristics", {(block, "clip"): 100.0})
    found = checks.above_heuristics(summaries)
    assert found.verdict == "does not hold"
    assert "w_clip 40 (MNIST)" in found.why


def test_gamma_and_static_weights_follow_the_numbers(tmp_path: Path) -> None:
    block = "linf-0.2"
    summaries = changed(tmp_path, "gamma-mnist", {(block, "gamma-4"): 99.0})
    assert measures.gammas(summaries).verdict == "holds"
    summaries = changed(tmp_path, "gamma-mnist", {(block, "gamma-10"): 1.0})
    assert measures.gammas(summaries).verdict == "does not hold"
    summaries = changed(tmp_path, "ensemble-mnist-heuristics", {(block, "static"): 99.0})
    assert checks.static_weights(summaries).verdict == "does not hold"


@pytest.mark.parametrize(("ratio", "verdict"), [(1.03, "holds"), (1.5, "does not hold")])
def test_the_cost_of_training_is_that_of_the_benchmarks(
    ratio: float, verdict: str, tmp_path: Path
) -> None:
    assert measures.training_cost(Summaries(tmp_path)).verdict == "not measured"
    figure = {"name": "AMPGD step over AVG step, K = 3", "value": ratio}
    room = {"figures": [figure], "begun_and_ended_with_load": [0.5, 1], "cores": 2}
    (tmp_path / "figures.json").write_text(json.dumps({"training": room}))
    found = measures.training_cost(Summaries(tmp_path))
    assert (found.verdict, found.ours) == (verdict, f"{ratio:.2f} over the average")
    assert "a load of 0.5 and 1 on 2 cores" in found.why


def test_the_step_at_which_weights_settle_is_stored(tmp_path: Path) -> None:
    experiment = pair(limit=6, steps=5)
    experiments.reproduce(experiment, tmp_path / "runs", QUIET)
    item = experiments.collect(experiment, tmp_path / "runs").attacks[1]
    weights = item.tensors()["history.weights"]
    distance = [float((w - weights[-1]).abs().sum(1).mean()) for w in weights.double()]
    expected = next(t for t in range(6) if all(d < 0.1 for d in distance[t:]))
    assert item.settles() == expected
    experiments.write_summary(experiment, tmp_path / "runs", tmp_path)
    average, stored = experiments.read_summary(experiment, tmp_path).attacks
    assert stored.settles() == expected
    assert average.settles() is None
    assert torch.isfinite(weights).all()
    assert replace(stored, settled=None).settles() is None
