"""Claims on defences: what trainings kept by `python -m benchmarks.defence` say, by seeds and images."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.defence.plan import TABLES
from benchmarks.defence.work import Store

from saddlepoint.experiments import claim_defence as defence
from saddlepoint.experiments.claim_checks import Summaries
from saddlepoint.experiments.defences import DEFENCE_SCHEMA, PUBLISHED
from saddlepoint.experiments.truths import packed

IMAGES = 100


def training(
    method: str, seed: int, right: dict[str, int], images: int = IMAGES, **more: Any
) -> dict[str, Any]:
    """As the benchmarks keep it; the last images are those that a network gets wrong."""

    counts = {"clean": images, **right}
    judged = {n: packed([i < c for i in range(images)], filled="after") for n, c in counts.items()}
    threats = "".join(f" --threat {name}:1" for name in right)
    command = f"saddlepoint train --method {method.lower()} --data mnist{threats} --seed {seed}"
    suites = {"quick": {"images": images, **judged}}
    return {"command": command, "suites": suites, "weights": {}, **more}


def stored(tmp_path: Path, trainings: dict[str, Any]) -> Summaries:
    content = {"schema": DEFENCE_SCHEMA, "trainings": trainings}
    (tmp_path / "defence.json").write_text(json.dumps(content))
    return Summaries(tmp_path)


def race(ours: dict[str, int], theirs: dict[str, int], seeds: int) -> dict[str, Any]:
    return {
        f"race/{method}/{seed}": training(method, seed, right)
        for method, right in (("AMPGD", ours), ("MSD", theirs))
        for seed in range(seeds)
    }


AHEAD = {"linf": 70, "l2": 68, "l1": 69}
MSD = {"linf": 60, "l2": 75, "l1": 70}


@pytest.mark.parametrize(
    ("ours", "seeds", "verdict"),
    [
        (AHEAD, 2, "holds"),
        (AHEAD, 1, "holds in part"),
        (AHEAD | {"l2": 61}, 2, "holds in part"),
        (AHEAD | {"l2": 59}, 2, "does not hold"),
    ],
)
def test_ampgd_is_compared_with_msd_on_the_union(
    ours: dict[str, int], seeds: int, verdict: str, tmp_path: Path
) -> None:
    summaries = stored(tmp_path, race(ours, MSD, seeds))
    found = defence.ahead_of(summaries, table="race", reported=4.0)
    assert found.verdict == verdict
    assert found.ours.startswith(f"quick: {min(ours.values()) - 60:+.1f} points")
    assert ("one seed" in found.why) == (seeds == 1)


def test_it_is_told_with_how_many_seeds_a_method_is_ahead(tmp_path: Path) -> None:
    trainings = race(AHEAD, MSD, 3)
    trainings["race/AMPGD/1"] = training("AMPGD", 1, MSD | {"linf": 50})
    trainings["race/AMPGD/2"] = training("AMPGD", 2, MSD)  # level, which is not ahead
    found = defence.ahead_of(stored(tmp_path, trainings), table="race", reported=4.0)
    assert found.ours.endswith("], ahead with 1 of 3 seeds")
    linf = defence.emphasis_on_linf(stored(tmp_path, trainings), table="race")
    assert linf.ours.endswith("], ahead with 1 of 3 seeds")
    alone = defence.ahead_of(stored(tmp_path, race(AHEAD, MSD, 1)), table="race", reported=4.0)
    assert "ahead with" not in alone.ours


def test_one_suite_with_one_seed_is_enough_to_hold_in_part_only(tmp_path: Path) -> None:
    trainings = race(AHEAD, MSD, 2)
    for method in ("AMPGD", "MSD"):
        suites = trainings[f"race/{method}/0"]["suites"]
        suites["autoattack"] = suites["quick"]
    summaries = stored(tmp_path, trainings)
    for found in (
        defence.ahead_of(summaries, table="race", reported=4.0),
        defence.gap_of_threats(summaries, table="race"),
    ):
        assert found.verdict == "holds in part"
        assert "quick, 100 images, 2 seeds; autoattack, 100 images, one seed" in found.why


@pytest.mark.parametrize("table", ["race", "cifar10"])
def test_the_trainings_of_the_benchmarks_differ_in_their_method_alone(table: str) -> None:
    commands = {t.row: t.settings.command() for t in TABLES[table].trainings() if t.seed == 0}
    for other in ("MSD", "MAX", "AVG"):
        words = [defence._without_method(commands[row]) for row in ("AMPGD", other)]
        assert words[0] == words[1]
        assert commands["AMPGD"] != commands[other]


def test_the_rows_of_radii_are_those_of_the_benchmarks() -> None:
    assert list(TABLES["weights"].rows) == [f"l2 {radius}" for radius in defence._RADII]


def test_other_seeds_images_or_commands_are_not_compared(tmp_path: Path) -> None:
    whole = race(AHEAD, MSD, 1)
    command = whole["race/MSD/0"]["command"]
    assert defence.ahead_of(stored(tmp_path, whole), table="race", reported=4).ours != "-"
    for change in (
        {"race/MSD/1": whole["race/MSD/0"]},
        {"race/MSD/0": training("MSD", 0, MSD) | {"command": f"{command} --steps 9"}},
        {"small/MSD/0": whole["race/MSD/0"]},
    ):
        other = {"race/AMPGD/0": whole["race/AMPGD/0"], **change}
        for check in (
            defence.ahead_of(stored(tmp_path, other), table="race", reported=4),
            defence.gap_of_threats(stored(tmp_path, other), table="race"),
        ):
            assert check.verdict == "not stored"
            assert check.why.startswith(
                "one seed by hand, see RESULTS; needs trainings of AMPGD and MSD "
            )
            assert "python -m benchmarks.defence race" in check.why


def test_with_more_images_of_one_method_the_first_that_both_have_are_compared(
    tmp_path: Path,
) -> None:
    trainings = race(AHEAD, MSD, 2)
    trainings["race/MSD/0"] = training("MSD", 0, MSD, images=200)
    found = defence.ahead_of(stored(tmp_path, trainings), table="race", reported=4)
    assert found.ours.startswith("quick: +8.0 points")
    assert "quick, 100 images, 2 seeds" in found.why


@pytest.mark.parametrize(
    ("ours", "seeds", "verdict"),
    [
        (61, 2, "holds in part"),
        (70, 2, "holds"),
        (70, 1, "holds in part"),
        (60, 2, "does not hold"),
    ],
)
@pytest.mark.parametrize("other", ["MAX", "AVG"])
def test_ampgd_is_compared_with_other_methods_alike(
    other: str, ours: int, seeds: int, verdict: str, tmp_path: Path
) -> None:
    trainings = race(dict.fromkeys(MSD, ours), MSD, seeds)
    named = {key.replace("MSD", other): each for key, each in trainings.items()}
    summaries = stored(tmp_path, named)
    found = defence.ahead_of(summaries, table="race", other=other)
    assert found.verdict == verdict
    assert found.ours.startswith(f"quick: {ours - 60:+.1f} points")
    assert f"AMPGD minus {other}; table race of RESULTS" in found.why
    printed = PUBLISHED["mnist", "autoattack"]
    assert f"autoattack {printed['AMPGD'][-1] - printed[other][-1]:+.1f}" in found.why
    absent = defence.ahead_of(summaries, table="race")
    assert (absent.verdict, "AMPGD and MSD" in absent.why) == ("not stored", True)


def test_rows_of_a_new_table_are_named_and_change_no_verdict(tmp_path: Path) -> None:
    trainings = race(AHEAD, MSD, 2)
    checks = (
        partial(defence.ahead_of, table="race", reported=4),
        partial(defence.emphasis_on_linf, table="race"),
        partial(defence.gap_of_threats, table="race"),
    )
    before = [check(stored(tmp_path, trainings)) for check in checks]
    trainings["race-l1-12/AMPGD/0"] = training("AMPGD", 0, MSD)
    trainings["race-l1-12/MSD/0"] = training("MSD", 0, AHEAD)
    for check, old in zip(checks, before, strict=True):
        new = check(stored(tmp_path, trainings))
        assert new[:2] == old[:2]
        assert "table race of RESULTS" in new.why
        assert "; in other tables: race-l1-12, quick, 100 images, one seed" in new.why


def test_other_tables_of_the_same_data_are_named_beside_the_one_that_decides(
    tmp_path: Path,
) -> None:
    trainings = race(MSD, AHEAD, 2)
    for method, right in (("AMPGD", AHEAD), ("MSD", MSD)):
        trainings[f"small/{method}/0"] = training(method, 0, right)
        colour = training(method, 0, right)
        colour["command"] = colour["command"].replace("mnist", "cifar10")
        trainings[f"cifar10/{method}/0"] = colour
    found = defence.ahead_of(stored(tmp_path, trainings), table="race", reported=4)
    assert found.verdict == "does not hold"
    assert "; in other tables: small, quick, 100 images, one seed, which says little" in found.why
    assert "about a method: +8.0 points [" in found.why
    assert "cifar10" not in found.why
    linf = defence.emphasis_on_linf(stored(tmp_path, trainings), table="race")
    assert linf.ours.startswith("quick: -10.0 points")
    assert "about a method: +10.0 points [" in linf.why
    alone = defence.ahead_of(stored(tmp_path, race(MSD, AHEAD, 2)), table="race", reported=4)
    assert "in other tables" not in alone.why


@pytest.mark.parametrize(
    ("linf", "seeds", "verdict"),
    [
        (70, 2, "holds"),
        (70, 1, "holds in part"),
        (61, 2, "holds in part"),
        (60, 2, "does not hold"),
    ],
)
def test_linf_is_stressed_where_more_stays_right_under_it(
    linf: int, seeds: int, verdict: str, tmp_path: Path
) -> None:
    trainings = race(AHEAD | {"linf": linf}, MSD, seeds)
    for key, each in trainings.items():
        each["weights"] = {"linf": 0.4 if "AMPGD" in key else 0.6, "l2": 0.3, "l1": 0.3}
    found = defence.emphasis_on_linf(stored(tmp_path, trainings), table="race")
    assert found.verdict == verdict
    assert found.ours.startswith(f"quick: {linf - 60:+.1f} points")
    assert "weight of linf in the last epoch AMPGD 0.40, MSD 0.60" in found.why


@pytest.mark.parametrize(
    ("union", "seeds", "verdict"),
    [
        (60, 2, "holds"),
        (60, 1, "holds in part"),
        (41, 2, "holds in part"),
        (40, 2, "does not hold"),
    ],
)
def test_training_against_all_threats_is_compared_with_the_best_against_one(
    union: int, seeds: int, verdict: str, tmp_path: Path
) -> None:
    trainings = {
        f"cifar10/{row}/{seed}": training(row, seed, {"linf": right, "l2": right + 5})
        for row, right in {"AMPGD": union, "linf": 10, "l2": 40}.items()
        for seed in range(seeds)
    }
    missing = defence.ahead_of_one_threat(stored(tmp_path, trainings), table="cifar10")
    assert missing.verdict == "not stored"  # the best could be the third
    assert "python -m benchmarks.defence cifar10" in missing.why
    trainings |= {
        f"cifar10/l1/{seed}": training("l1", seed, {"linf": 0, "l2": 0}) for seed in range(seeds)
    }
    found = defence.ahead_of_one_threat(stored(tmp_path, trainings), table="cifar10")
    assert found.verdict == verdict
    assert found.ours.startswith(f"quick: {union - 40:+.1f} points")
    assert found.ours.endswith("over l2")


def test_the_rows_against_one_threat_are_those_of_the_benchmarks() -> None:
    assert set(defence._ALONE) <= set(TABLES["cifar10"].rows)


def test_what_was_run_by_hand_is_not_called_unmeasured(tmp_path: Path) -> None:
    nothing = stored(tmp_path, {})
    assert defence.weight_of_l2(nothing).verdict == "not stored"
    assert defence.ahead_of(nothing, table="race", reported=4).verdict == "not stored"
    assert defence.ahead_of(nothing, table="cifar10", reported=2).verdict == "not measured"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (AHEAD, "holds"),
        (AHEAD | {"l2": 60}, "holds in part"),
        (AHEAD | {"l2": 50}, "does not hold"),
    ],
)
def test_the_gap_is_between_the_best_and_the_worst_threat(
    ours: dict[str, int], verdict: str, tmp_path: Path
) -> None:
    found = defence.gap_of_threats(stored(tmp_path, race(ours, MSD, 2)), table="race")
    assert found.verdict == verdict
    gap = max(ours.values()) - min(ours.values())
    assert found.ours == f"quick: AMPGD {gap:.1f}, MSD 15.0 points"
    assert "mean over seeds of the gap of each" in found.why


@pytest.mark.parametrize(
    ("weights", "seeds", "verdict"),
    [
        ((0.1, 0.2, 0.4, 0.6), 2, "holds"),
        ((0.1, 0.2, 0.4, 0.6), 1, "holds in part"),
        ((0.2, 0.1, 0.4, 0.6), 2, "holds in part"),
        ((0.6, 0.4, 0.2, 0.1), 2, "does not hold"),
    ],
)
def test_the_weight_of_l2_is_followed_over_its_radius(
    weights: tuple[float, ...], seeds: int, verdict: str, tmp_path: Path
) -> None:
    trainings = {
        f"weights/l2 {radius}/{seed}": training(
            "AMPGD", seed, AHEAD, weights={"linf": 1 - weight, "l2": weight}
        )
        for radius, weight in enumerate(weights, start=1)
        for seed in range(seeds)
    }
    assert defence.weight_of_l2(stored(tmp_path, trainings)).verdict == verdict
    del trainings["weights/l2 3/0"]
    found = defence.weight_of_l2(stored(tmp_path, trainings))
    assert (found.verdict == "not stored") == (seeds == 1)


WHOLE = training("AMPGD", 0, AHEAD)
NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ('{"schema": 7, "trainings": {}}', "with schema 1, got 7"),
        ("[]", "with schema 1, got None"),
        ('{"trainings": ', "got a file that holds none"),
        ("[" * 100_000, "got a file that holds none"),
        (json.dumps({"schema": 1, "trainings": {"race": WHOLE}}), "got a training called 'race'"),
        (
            json.dumps({"schema": 1, "trainings": {"race/MSD/0": {"command": "", "suites": {}}}}),
            r"got no `trainings.race/MSD/0.weights`",
        ),
        *(
            (
                json.dumps(
                    {
                        "schema": 1,
                        "trainings": {"race/MSD/0": {**WHOLE, "suites": {"quick": quick}}},
                    }
                ),
                "got other verdicts of race/MSD/0",
            )
            for quick in (
                {"images": 8},
                {"images": 8, "clean": "ff", "linf": "f"},
                {"clean": "f"},
                {"images": 0, "clean": "", "linf": ""},
                {"images": -5, "clean": "", "linf": ""},
            )
        ),
        (json.dumps({"schema": 1, "trainings": {"race/MSD/00": WHOLE}}), "called 'race/MSD/00'"),
        (json.dumps({"schema": 1, "trainings": {"race/MSD/٣": WHOLE}}), "called 'race/MSD/٣'"),
        (
            json.dumps(
                {"schema": 1, "trainings": {"race/MSD/0": {**WHOLE, "weights": {"l2": NAN}}}}
            ),
            "got {'l2': nan} as weights of race/MSD/0",
        ),
    ],
    ids=[
        *("schema", "list", "brace", "deep", "key", "field", "no threat", "short", "no images"),
        *("none", "fewer", "zeros", "other digits", "weights"),
    ],
)
def test_a_damaged_file_of_trainings_is_named_with_what_to_do(
    text: str, got: str, tmp_path: Path
) -> None:
    (tmp_path / "defence.json").write_text(text)
    said = (
        rf"defence.json` must be as `python -m benchmarks.defence` writes it.*{got}; take it from"
    )
    with pytest.raises(ValueError, match=said):
        defence.weight_of_l2(Summaries(tmp_path))
    with pytest.raises(ValueError, match=said):
        Store(tmp_path / "defence.json")
