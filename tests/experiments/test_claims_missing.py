"""The page of claims: what is not stored makes no verdict better, and ties are no matter of rounding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_claims import RADII, STORE, changed

from saddlepoint.experiments import claim_checks as checks
from saddlepoint.experiments import claim_ensembles as ensembles
from saddlepoint.experiments import claim_groups as groups
from saddlepoint.experiments import claim_heuristics as heuristics
from saddlepoint.experiments import claim_measures as measures
from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.claim_checks import Finding, Summaries
from saddlepoint.experiments.claims import claims_table

LINF = "linf-0.2"
MNIST, CIFAR10 = "ensemble-mnist-heuristics", "ensemble-cifar10-heuristics"
LIFT = partial(checks.mean_lift, name="ensemble-mnist", reported=40.79, only="")


def kept(tmp_path: Path, name: str, keep: Callable[[dict[str, Any]], bool]) -> Summaries:
    """The summary of an experiment with these of its rows of `apgda`, or lines, alone; others whole."""
    file = tmp_path / f"{name}.json"
    content = json.loads((file if file.is_file() else STORE / file.name).read_text())
    content["rows"] = [row for row in content["rows"] if row["method"] != "apgda" or keep(row)]
    file.write_text(json.dumps(content))
    return Summaries(tmp_path)


def without_lines(tmp_path: Path, name: str, label: str) -> Summaries:
    """The summary of a measurement without our lines of one label, and without what they are of."""
    content = json.loads((STORE / f"{name}.json").read_text())
    lines = content["lines"]
    content["lines"] = [line for line in lines if line[0] != label or line[1] == "paper"]
    assert len(content["lines"]) < len(lines)
    gone = {each.key for each in find(name).measurements if each.label == label}
    content["measured"] = [each for each in content["measured"] if each["key"] not in gone]
    (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return Summaries(tmp_path)


# ------------------------------------------------------------------------------- missing rows


def test_a_lift_without_one_of_the_papers_settings_holds_in_part(tmp_path: Path) -> None:
    assert LIFT(Summaries(STORE)).verdict == "holds"
    found = LIFT(kept(tmp_path, "ensemble-mnist", lambda row: row["block"] != "l0-30"))
    assert found.verdict == "holds in part"
    assert "; not stored: l0, eps 30, so in part at most" in found.why


def test_every_size_of_groups_needs_true_labels(tmp_path: Path) -> None:
    name = "universal-cifar10"
    rates = {
        (row.key, s): r for row in find(name).blocks for s, r in (("avg", 50.0), ("minmax", 60.0))
    }
    for labels in ("true", "predicted"):
        store = STORE if labels == "true" else tmp_path
        summaries = changed(tmp_path, name, rates, labels, store, images=1000)
    assert groups.every_group_size(summaries).verdict == "holds"
    summaries = kept(tmp_path, name, lambda row: (row["block"], row["labels"]) != ("b-k2", "true"))
    found = groups.every_group_size(summaries)
    assert found.verdict == "holds in part"
    assert "not stored: 1 of 28 settings with true labels, so in part at most" in found.why
    found = groups.every_group_size(kept(tmp_path, name, lambda row: row["labels"] != "true"))
    assert found.verdict == "holds in part"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (None, "rows of CIFAR-10"),
        (("minmax", "static"), "avg. (CIFAR-10), "),
        (("minmax", "static"), "w_clip 40 (CIFAR-10)"),
    ],
)
def test_min_max_is_above_the_heuristics_that_are_stored(
    there: tuple[str, ...] | None, said: str, tmp_path: Path
) -> None:
    shutil.copy(STORE / f"{MNIST}.json", tmp_path)
    assert heuristics.above_heuristics(Summaries(STORE)).verdict == "holds"
    if there is not None:
        kept(tmp_path, CIFAR10, lambda row: row["strategy"] in there)
    found = heuristics.above_heuristics(Summaries(tmp_path))
    assert found.verdict == "holds in part"
    assert said in found.why.partition("; not stored: ")[2]


def test_predicted_labels_do_not_stand_for_true_ones_that_are_gone(tmp_path: Path) -> None:
    shutil.copy(STORE / f"{MNIST}.json", tmp_path)
    rates = {("linf-0.05", "minmax"): 99.9}
    changed(tmp_path, CIFAR10, rates, "predicted")
    found = heuristics.above_heuristics(kept(tmp_path, CIFAR10, lambda r: r["labels"] != "true"))
    assert found.verdict == "holds in part"
    assert "min-max (CIFAR-10, true labels)" in found.why


def test_radii_that_are_not_stored_are_counted(tmp_path: Path) -> None:
    for name in RADII:
        shutil.copy(STORE / f"{name}.json", tmp_path)
    for check in (ensembles.radii, ensembles.moderate_radii):
        assert check(Summaries(tmp_path)).verdict == "holds"
    summaries = kept(tmp_path, "eps-mnist", lambda row: row["block"] != "linf-0.3")
    for check in (ensembles.radii, ensembles.moderate_radii):
        found = check(summaries)
        assert found.verdict == "holds in part"
        assert "not stored: 1 of 7 radii of mnist A, B, C, D, so in part at most" in found.why


def test_beta_is_that_of_the_paper_and_beside_all_others(tmp_path: Path) -> None:
    name = "beta-mnist"
    unit = 1 / find(name).blocks[0].settings.steps
    (block,) = find(name).blocks
    keys = {row.strategy.key: float(row.strategy.key[5:]) / unit for row in block.rows[1:]}
    best = dict.fromkeys(((LINF, key) for key in keys), 96.0)
    assert measures.betas(changed(tmp_path, name, best)).verdict == "holds"
    large = [key for key, times in keys.items() if times > 1.5]
    found = measures.betas(kept(tmp_path, name, lambda row: row["strategy"] not in large))
    assert found.verdict == "holds in part"
    assert "; not stored: beta 2/T, beta 5/T, beta 10/T, so in part at most" in found.why
    low = [key for key, times in keys.items() if times > 0.9]
    found = measures.betas(kept(tmp_path, name, lambda row: row["strategy"] not in low))
    assert (found.verdict, found.why) == ("not measured", "no row of beta-mnist with 1/T is stored")


def test_gamma_is_judged_by_all_of_its_values(tmp_path: Path) -> None:
    changed(tmp_path, "gamma-mnist", {(LINF, "gamma-4"): 99.0})
    found = measures.gammas(kept(tmp_path, "gamma-mnist", lambda row: row["strategy"] != "gamma-2"))
    assert found.verdict == "holds in part"
    assert "not stored: gamma 2, so in part at most" in found.why


@pytest.mark.parametrize(
    ("check", "name", "label", "said"),
    [
        (groups.distances, "image-robustness", "l0", "l0 with both correlations"),
        (measures.cost, "cost", "MNIST A, linf 0.2", "MNIST A, linf 0.2"),
        (measures.rate, "convergence", "l2, alpha 1/10 (Table 1)", "l2, alpha 1/10 (Table 1)"),
    ],
)
def test_measurements_that_are_not_stored_are_named(
    check: Callable[[Summaries], Finding], name: str, label: str, said: str, tmp_path: Path
) -> None:
    found = check(without_lines(tmp_path, name, label))
    assert found.verdict == "holds in part"
    assert f"; not stored: {said}, so in part at most" in found.why


def test_pairs_of_norms_that_are_not_stored_are_named(tmp_path: Path) -> None:
    content = json.loads((STORE / "image-robustness.json").read_text())
    content["lines"] = [line for line in content["lines"] if line[0] == "l0" or line[1] == "paper"]
    (tmp_path / "image-robustness.json").write_text(json.dumps(content))
    found = groups.across_norms(Summaries(tmp_path))
    assert found.verdict == "holds in part"
    assert found.why.startswith("3 pairs of norms")
    assert "not stored: l1 with l2, l1 with linf, l2 with linf, so in part" in found.why
    assert groups.distances(Summaries(tmp_path)).why.startswith("norms l0, C&W")


# ------------------------------------------------------------------------------- alpha


def sweeps(tmp_path: Path) -> None:
    for name in ("gamma-mnist", "beta-mnist", "alpha-mnist"):
        shutil.copy(STORE / f"{name}.json", tmp_path)


def test_one_value_of_alpha_is_compared_with_none(tmp_path: Path) -> None:
    sweeps(tmp_path)
    blocks = find("alpha-mnist").blocks
    keep = [block.key for block in blocks[:1]]
    found = measures.sensitivity(kept(tmp_path, "alpha-mnist", lambda row: row["block"] in keep))
    told = f"of alpha-mnist nothing but alpha = {blocks[0].value:g} is stored"
    assert (found.verdict, found.why) == ("not measured", told)
    assert "4.1" in {line[0] for line in claims_table(tmp_path)[0].lines}


def test_alphas_of_other_images_are_not_compared(tmp_path: Path) -> None:
    sweeps(tmp_path)
    key = find("alpha-mnist").blocks[0].key
    rates = {(key, "avg"): 50.0, (key, "minmax"): 90.0}
    found = measures.sensitivity(changed(tmp_path, "alpha-mnist", rates, images=100))
    told = "the rows of alpha-mnist are of different images"
    assert (found.verdict, found.why) == ("not measured", told)


def test_values_that_are_left_out_make_no_verdict_better(tmp_path: Path) -> None:
    for name in ("gamma", "beta", "alpha"):
        blocks = find(f"{name}-mnist").blocks
        rates = {(b.key, row.strategy.key): 90.0 for b in blocks for row in b.rows}
        changed(tmp_path, f"{name}-mnist", rates)
    assert measures.sensitivity(Summaries(tmp_path)).verdict == "holds"
    last = find("alpha-mnist").blocks[-1]
    found = measures.sensitivity(
        kept(tmp_path, "alpha-mnist", lambda row: row["block"] != last.key)
    )
    assert found.verdict == "holds in part"
    assert f"; not stored: alpha {last.value:g}, so in part at most" in found.why


# ------------------------------------------------------------------------------- ties


def test_two_points_are_two_points_wherever_they_are(tmp_path: Path) -> None:
    """2.3 - 0.3 is less than 2 in floating-point numbers, and 97.1 - 95.1 is not."""
    for high, low in ((2.3, 0.3), (97.1, 95.1), (64.2, 62.2)):
        for name, block in ((MNIST, LINF), (CIFAR10, "linf-0.05")):
            rates = {(block, "minmax"): high, (block, "static"): low, (block, "clip"): low}
            rates |= {(block, "clip-50"): low}
            summaries = changed(tmp_path, name, rates)
        assert heuristics.static_weights(summaries).verdict == "holds"
        assert heuristics.tuned_clipping(summaries).verdict == "does not hold"
        assert f"w_clip 40 {low} % (MNIST)" in heuristics.above_heuristics(summaries).why
        name = "gamma-mnist"
        rates = dict.fromkeys(((LINF, f"gamma-{g}") for g in range(11)), low)
        summaries = changed(tmp_path, name, rates | {(LINF, "gamma-7"): high})
        assert "gamma 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10;" in measures.gammas(summaries).why
