"""The page of claims: groups of images, lifts over next to nothing, and what `attack` would say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_claims import RADII, STORE, changed
from test_claims_missing import kept

from saddlepoint.experiments import claim_checks as checks
from saddlepoint.experiments import claim_ensembles as ensembles
from saddlepoint.experiments import claim_groups as groups
from saddlepoint.experiments import claims
from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.claim_checks import ATTACK, Summaries

GROUPS = ("universal-cifar10", "universal-mnist", "universal-mnist-digits")
EVERY = [f"{network}-k5" for network in "abcd"]


def lift(summaries: Summaries) -> checks.Finding:
    return checks.mean_lift(summaries, name="universal-mnist", reported=42.63, only="k5")


def said(part: str) -> claims.Claim:
    (claim,) = (each for each in claims.CLAIMS if part in each.says)
    return claim


# ------------------------------------------------------------------------------- lifts over next to nothing


@pytest.mark.parametrize(
    ("least", "verdict"), [(0.0, "holds in part"), (4.5, "holds in part"), (5.0, "holds")]
)
def test_a_lift_over_fewer_than_ten_rows_holds_at_most_in_part(
    least: float, verdict: str, tmp_path: Path
) -> None:
    """Of 200 groups 5 % are ten."""
    rates = {(block, "avg"): 50.0 for block in EVERY} | {(b, "minmax"): 90.0 for b in EVERY}
    rates |= {("d-k5", "avg"): least, ("b-k5", "avg"): least}
    found = lift(changed(tmp_path, "universal-mnist", rates))
    assert found.verdict == verdict
    count = round(2 * least)
    named = f"B, eps 0.2, K = 5 ({count} of 200), D, eps 0.25, K = 5 ({count} of 200)"
    few = f"the average fools fewer than 10 groups in {named}, so in part at most"
    assert (few in found.why) == (verdict != "holds")
    assert (", 2 of 4 settings" in found.ours.partition(";")[0]) == (least == 0)


def test_the_lift_of_random_groups_rests_on_two_settings_of_four() -> None:
    found = lift(Summaries(STORE))
    assert found.verdict == "holds in part"
    assert found.ours.startswith("+118.7 % (apgda, 2 of 4 settings; ")
    assert "with attack the average fools fewer than 10 groups in B" in found.why


# ------------------------------------------------------------------------------- hard images


def shares(tmp_path: Path, cifar10: float, mnist: float) -> Summaries:
    """The average fools half of the groups of every setting; min-max these and so many of the others."""
    for name in GROUPS:
        share = cifar10 if name == "universal-cifar10" else mnist
        blocks = find(name).blocks
        rates = {(block.key, "avg"): 50.0 for block in blocks}
        rates |= {(block.key, "minmax"): 50 + share / 2 for block in blocks}
        # 400 groups or more, of whose half these shares are whole numbers.
        changed(tmp_path, name, rates, images=4000)
    return Summaries(tmp_path)


@pytest.mark.parametrize(
    ("cifar10", "mnist", "verdict"),
    [
        (50.0, 50.0, "holds"),
        (49.0, 50.0, "holds in part"),
        (50.0, 1.0, "holds in part"),
        (50.0, 0.0, "does not hold"),
    ],
)
def test_groups_that_only_min_max_fools_are_counted(
    cifar10: float, mnist: float, verdict: str, tmp_path: Path
) -> None:
    found = groups.hard_images(shares(tmp_path, cifar10, mnist))
    assert found.verdict == verdict
    assert f"CIFAR-10 {cifar10:.1f} %" in found.ours
    assert f"MNIST, random groups {mnist:.1f} %" in found.ours
    assert "0 that only the average fools" in found.why


def test_hard_images_are_counted_in_the_stored_groups(tmp_path: Path) -> None:
    found = groups.hard_images(Summaries(STORE))
    assert found.ours.startswith("CIFAR-10 68.7 % (704 of 1025)")
    shutil.copy(STORE / "universal-cifar10.json", tmp_path)
    found = groups.hard_images(Summaries(tmp_path))
    assert found.verdict == "holds in part"
    assert "not stored: rows of MNIST, random groups, rows of MNIST, groups of one" in found.why
    found = groups.hard_images(kept(tmp_path, GROUPS[0], lambda row: row["block"] != "b-k2"))
    assert "not stored: 1 of 28 settings of CIFAR-10, " in found.why


def test_bold_letters_are_a_claim_that_nothing_stored_can_judge() -> None:
    found = said("bold").check(Summaries(STORE))
    assert found.verdict == "not measured"
    assert "weights of single images are not stored" in found.why


# ------------------------------------------------------------------------------- what `attack` would say


def test_where_attack_would_say_otherwise_is_told() -> None:
    for part, text in (
        ("moderate radii", "; by attack it holds in part: mnist A, B, C, D: "),
        ("across norms", "; by attack it holds in part: mean rank correlations 0.44 to 0.69"),
    ):
        claim = said(part)
        found = claims.judged_twice(claim, Summaries(STORE))
        assert found.verdict == claim.check(Summaries(STORE)).verdict == "holds"
        assert text in found.why


def test_attack_is_not_told_of_where_it_agrees_or_rests_on_less(tmp_path: Path) -> None:
    for name in RADII:
        shutil.copy(STORE / f"{name}.json", tmp_path)
    claim = said("moderate radii")
    for name in ("eps-cifar10", "eps-cifar10-abc"):
        content = json.loads((tmp_path / f"{name}.json").read_text())
        rows = [row for row in content["rows"] if row["method"] != "attack"]
        (tmp_path / f"{name}.json").write_text(json.dumps({**content, "rows": rows}))
    other = claim.check(Summaries(tmp_path, ATTACK))
    assert (other.verdict, "not stored: 7 of 7 radii of cifar10" in other.why) == (
        "holds in part",
        True,
    )
    assert "by attack" not in claims.judged_twice(claim, Summaries(tmp_path)).why
    assert ensembles.radii(Summaries(STORE, ATTACK)).ours.endswith("(attack)")
    assert "by attack" not in claims.judged_twice(said("radius varies"), Summaries(STORE)).why
