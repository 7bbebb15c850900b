"""The page of claims: how much a verdict has to rest on, and what has to be said beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_claims import STORE, changed, fit

from saddlepoint.experiments import claim_checks as checks
from saddlepoint.experiments import claim_ensembles as ensembles
from saddlepoint.experiments import claim_groups as groups
from saddlepoint.experiments import claim_heuristics as heuristics
from saddlepoint.experiments import claim_measures as measures
from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.claim_checks import Summaries
from saddlepoint.experiments.claims import CLAIMS
from saddlepoint.experiments.truths import packed

LINF = "linf-0.2"
MNIST = ("l0-30", "l1-20", "l2-3", LINF)


def lift(summaries: Summaries) -> checks.Finding:
    return checks.mean_lift(summaries, name="ensemble-mnist", reported=40.79, only="")


# ------------------------------------------------------------------------------- few rows


@pytest.mark.parametrize(("images", "verdict"), [(99, "holds in part"), (100, "holds")])
def test_a_lift_with_few_images_in_one_setting_holds_at_most_in_part(
    images: int, verdict: str, tmp_path: Path
) -> None:
    rates = {("l0-30", "avg"): 50.0, ("l0-30", "minmax"): 90.0}
    found = lift(changed(tmp_path, "ensemble-mnist", rates, images=images))
    assert found.verdict == verdict
    said = "fewer than 100 images in a setting, so in part at most"
    assert (said in found.why) == (images == 99)


@pytest.mark.parametrize(("images", "verdict"), [(495, "holds in part"), (500, "holds")])
def test_a_group_counts_once_however_many_images_it_has(
    images: int, verdict: str, tmp_path: Path
) -> None:
    rates = {(f"{n}-k5", "avg"): 50.0 for n in "bdeh"}
    rates |= {(f"{n}-k5", "minmax"): 90.0 for n in "bdeh"}
    summaries = changed(tmp_path, "universal-cifar10", rates, images=images)
    found = checks.mean_lift(summaries, name="universal-cifar10", reported=35.21, only="k5")
    assert found.verdict == verdict
    assert ("fewer than 100 groups in a setting" in found.why) == (images == 495)


def test_other_claims_on_success_rates_need_as_many_images(tmp_path: Path) -> None:
    rates = {(LINF, "minmax"): 90.0, (LINF, "gamma-4"): 99.0}
    for images, verdict in ((99, "holds in part"), (1000, "holds")):
        summaries = changed(tmp_path, "steps-mnist", rates, images=images, settled=10)
        assert ensembles.settling(summaries).verdict == verdict
        shutil.copy(STORE / "ensemble-cifar10-heuristics.json", tmp_path)
        first = {(LINF, "minmax"): 99.0}
        name = "ensemble-mnist-heuristics"
        raw = json.loads((STORE / f"{name}.json").read_text())
        every = {(row["block"], row["strategy"]): row["asr_all"] for row in raw["rows"]}
        few = changed(tmp_path, name, dict.fromkeys(every, 50.0) | first, images=images)
        assert heuristics.above_heuristics(few).verdict == verdict


# ------------------------------------------------------------------------------- two conventions of labels


def universal(tmp_path: Path, true: float, predicted: float, images: int = 1000) -> Summaries:
    """Min-max at 60 % everywhere but for one setting, each with true and with predicted labels."""
    content: dict[str, Any] = json.loads((STORE / "universal-cifar10.json").read_text())
    rows = [row for row in content["rows"] if row["method"] == "apgda"]
    for row in rows:
        odd = {"true": true, "predicted": predicted}[row["labels"]]
        rate = odd if row["block"] == "b-k2" else 60.0
        row["asr_all"] = 50.0 if row["strategy"] == "avg" else rate
        fit(row, {"images": images}, "universal-cifar10")
    (tmp_path / "universal-cifar10.json").write_text(json.dumps({**content, "rows": rows}))
    return Summaries(tmp_path)


@pytest.mark.parametrize(
    ("true", "predicted", "images", "verdict"),
    [
        (60.0, 60.0, 1000, "holds"),
        (60.0, 60.0, 990, "holds in part"),
        (60.0, 40.0, 1000, "holds in part"),
        (40.0, 60.0, 1000, "holds in part"),
        (60.0, 50.0, 1000, "holds in part"),  # level is not higher
    ],
)
def test_every_size_of_groups_is_judged_with_both_labels(
    true: float, predicted: float, images: int, verdict: str, tmp_path: Path
) -> None:
    found = groups.every_group_size(universal(tmp_path, true, predicted, images))
    assert found.verdict == verdict
    for labels, rate, total in (("true", true, 28), ("predicted", predicted, 24)):
        above, level, below = total - (rate <= 50), rate == 50, rate < 50
        counts = (
            f"{labels} labels: above in {above}, level in {level:d}, below in {below:d} of {total}"
        )
        assert counts in found.ours
        assert (f"with {labels} labels below in B, eps 0.02, K = 2 (-10.0 points" in found.why) == (
            rate < 50
        )


def test_without_predicted_labels_the_true_ones_are_judged_alone(tmp_path: Path) -> None:
    summaries = universal(tmp_path, 60.0, 40.0)
    content = json.loads((tmp_path / "universal-cifar10.json").read_text())
    content["rows"] = [row for row in content["rows"] if row["labels"] == "true"]
    (tmp_path / "universal-cifar10.json").write_text(json.dumps(content))
    found = groups.every_group_size(Summaries(summaries.store))
    assert (found.verdict, "predicted" in found.ours) == ("holds", False)


def test_where_a_lift_loses_with_predicted_labels_is_said(tmp_path: Path) -> None:
    rates = {("l0-30", "avg"): 91.0, ("l0-30", "minmax"): 90.0}
    changed(tmp_path, "ensemble-mnist", rates, "predicted")
    path = tmp_path / "ensemble-mnist.json"
    content = json.loads(path.read_text())
    pair = {
        row["strategy"]: row
        for row in content["rows"]
        if (row["block"], row["method"], row["labels"]) == ("l0-30", "apgda", "predicted")
    }
    for name, count in (("avg", 910), ("minmax", 900)):
        fooled = [i < count for i in range(1000)]
        pair[name]["verdicts"] = packed(fooled, filled="before")
    path.write_text(json.dumps(content))
    said = "with predicted labels min-max is below in l0, eps 30 (-1.0 points"
    assert f"{said} [-1.7, -0.3])" in lift(Summaries(tmp_path)).why
    for row in pair.values():
        del row["verdicts"]
    path.write_text(json.dumps(content))
    why = lift(Summaries(tmp_path)).why
    assert f"{said})" in why


# ------------------------------------------------------------------------------- hard and easy networks


@pytest.mark.parametrize(
    ("easy", "verdict"),
    [
        ({"A": 2.0, "C": 2.0}, "holds"),
        ({"A": 8.0, "C": -4.0}, "holds"),
        ({"A": 2.2, "C": 2.2}, "holds in part"),
    ],
)
def test_easy_networks_may_lose_a_tenth_and_each_is_named(
    easy: dict[str, float], verdict: str, tmp_path: Path
) -> None:
    changed(tmp_path, "ensemble-mnist", {})
    path = tmp_path / "ensemble-mnist.json"
    content = json.loads(path.read_text())
    before = {"A": 10.0, "B": 60.0, "C": 10.0, "D": 60.0}
    after = {"B": 40.0, "D": 40.0} | {name: 10.0 + loss for name, loss in easy.items()}
    for row in content["rows"]:
        if row["block"] == LINF:
            fit(row, {"accuracy": before if row["strategy"] == "avg" else after}, "ensemble-mnist")
    path.write_text(json.dumps(content))
    found = ensembles.hard_against_easy(Summaries(tmp_path))
    assert found.verdict == verdict
    named = ", ".join(f"{name} {-loss:+.1f}" for name, loss in easy.items())
    assert f"network by network B +20.0, D +20.0, {named} points" in found.why


# ------------------------------------------------------------------------------- weights over the steps


@pytest.mark.parametrize(
    ("settled", "verdict"),
    [(10, "holds"), (11, "holds in part"), (25, "holds in part"), (26, "does not hold")],
)
def test_weights_that_settle_in_the_second_half_do_not_settle_early(
    settled: int, verdict: str, tmp_path: Path
) -> None:
    rates = {(LINF, "minmax"): 64.5}
    weights = {"A": 0.7, "B": 0.1, "C": 0.1, "D": 0.1}
    path = {name: [0.25, *[weight] * 50] for name, weight in weights.items()}
    more: dict[str, Any] = {"settled": settled, "path": path, "weights": weights}
    found = ensembles.settling(changed(tmp_path, "steps-mnist", rates, **more))
    assert found.verdict == verdict
    assert f"from step {settled} of 50 on, the mean weights from step 1 on" in found.ours
    assert "the weights of each image decide" in found.why
    without = changed(tmp_path, "steps-mnist", rates, settled=settled, path=None)
    assert "the mean weights" not in ensembles.settling(without).ours


# ------------------------------------------------------------------------------- Theorem 1


@pytest.mark.parametrize(
    ("own", "small", "verdict"),
    [
        ((-2.0, -2.1), (-0.1, -0.1), "holds"),
        ((-2.0, -1.0), (-0.1, -0.1), "holds in part"),
        ((-0.9, -2.0), (-1.0, -1.5), "holds in part"),
        ((-0.9, -2.0), (-0.9, -1.5), "does not hold"),
        ((-0.9, -0.2), (), "does not hold"),
    ],
)
def test_the_rate_holds_by_the_papers_step_sizes_and_in_part_by_smaller_ones_too(
    own: tuple[float, ...], small: tuple[float, ...], verdict: str, tmp_path: Path
) -> None:
    content = json.loads((STORE / "convergence.json").read_text())
    lines = [line for line in content["lines"] if line[1] == "apgda"]
    kept = []
    for named, slopes in ((True, own), (False, small)):
        those = [line for line in lines if ("(Table 1)" in line[0]) == named]
        kept += [[*line[:8], slope] for line, slope in zip(those, slopes, strict=False)]
    content["lines"], labels = kept, {line[0] for line in kept}
    gone = {each.key for each in find("convergence").measurements if each.label not in labels}
    content["measured"] = [each for each in content["measured"] if each["key"] not in gone]
    (tmp_path / "convergence.json").write_text(json.dumps(content))
    found = measures.rate(Summaries(tmp_path))
    assert found.verdict == verdict
    usual = (sum(slope <= -1 for slope in slopes) for slopes in (own, small))
    for count, slopes, whose in zip(
        usual, (own, small), ("the paper's step sizes", "smaller ones"), strict=True
    ):
        assert (f"{count} of {len(slopes)} of {whose}" in found.why) == bool(slopes)


def test_the_papers_step_sizes_are_half_of_those_measured() -> None:
    labels = [each.label for each in find("convergence").measurements]
    assert sum("(Table 1)" in label for label in labels) == len(labels) / 2 == 2


# ------------------------------------------------------------------------------- gamma, beta, alpha


def test_every_gamma_that_is_best_is_named(tmp_path: Path) -> None:
    rates = {(LINF, f"gamma-{g}"): 99.0 if g in (3, 10) else 90.0 for g in range(11)}
    assert "best at gamma 3, 10;" in measures.gammas(changed(tmp_path, "gamma-mnist", rates)).ours


@pytest.mark.parametrize(
    ("gamma", "beta", "alpha", "verdict"),
    [
        (90.0, 90.0, 90.0, "holds"),
        (90.0, 90.0, 89.0, "holds in part"),
        (90.0, 89.0, 89.0, "holds in part"),
        (89.0, 89.0, 89.0, "does not hold"),
    ],
)
def test_what_the_numbers_of_the_attack_change_is_judged_by_ten_points(
    gamma: float, beta: float, alpha: float, verdict: str, tmp_path: Path
) -> None:
    for name, lowest in (("gamma", gamma), ("beta", beta)):
        (block,) = find(f"{name}-mnist").blocks
        keys = [row.strategy.key for row in block.rows if row.strategy.key.startswith(name)]
        rates = {(LINF, key): 100.0 for key in keys} | {(LINF, keys[-1]): lowest}
        changed(tmp_path, f"{name}-mnist", rates)
    blocks = [block.key for block in find("alpha-mnist").blocks]
    rates = {(key, "minmax"): 100.0 for key in blocks} | {(blocks[-1], "minmax"): alpha}
    summaries = changed(tmp_path, "alpha-mnist", rates)
    found = measures.sensitivity(summaries)
    assert found.verdict == verdict
    assert f"gamma 0 to 10: {gamma:.1f} to 100.0 %" in found.ours
    assert f"beta 0.1/T to 10/T: {beta:.1f} to 100.0 %" in found.ours
    assert f"alpha 0.025 to 2.5: {alpha:.1f} to 100.0 %" in found.ours


def test_without_a_sweep_of_alpha_nothing_is_said_of_the_three(tmp_path: Path) -> None:
    changed(tmp_path, "gamma-mnist", {})
    found = measures.sensitivity(changed(tmp_path, "beta-mnist", {}))
    assert (found.verdict, found.why) == ("not measured", "no summary of alpha-mnist is stored")


@pytest.mark.parametrize(
    ("level", "verdict"), [(0, "holds in part"), (3, "holds in part"), (4, "does not hold")]
)
def test_min_max_has_to_be_above_the_average_of_the_same_alpha(
    level: int, verdict: str, tmp_path: Path
) -> None:
    blocks = [block.key for block in find("alpha-mnist").blocks]
    rates = {(key, "avg"): 50.0 for key in blocks}
    rates |= {(key, "minmax"): 50.0 if i < level else 80.0 for i, key in enumerate(blocks)}
    found = measures.same_alpha(changed(tmp_path, "alpha-mnist", rates, images=99))
    assert found.verdict == verdict  # fewer than a hundred images
    assert found.ours.startswith(f"above at {7 - level} of 7 values; alpha 0.025 +")
    whole = measures.same_alpha(changed(tmp_path, "alpha-mnist", rates, images=200))
    assert whole.verdict == ("holds" if level == 0 else verdict)
    assert ("the interval holds zero at alpha 0.025 [" in whole.why) == (level > 0)


# ------------------------------------------------------------------------------- what is on the page


@pytest.mark.parametrize(
    "part",
    [
        *("alpha, beta, gamma", "single threat", "more than MSD", "8.22 %"),
        *("here MAX", "here AVG", "same alpha", "stabilize"),
    ],
)
def test_claims_that_were_left_out_are_on_the_page(part: str) -> None:
    assert sum(part in claim.says for claim in CLAIMS) == 1
