"""Records that somebody changed, with a digest that fits: read, or refused in one sentence, by every reader."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands import inside
from run_factory import make_evaluation, make_run
from saddlepoint import report, runs
from saddlepoint.experiments import Setup, collect, find, reproduce
from saddlepoint.experiments.summary import tables_of
from saddlepoint.files import read_tensors, write_tensors
from saddlepoint.runs.reading import _whole, digest_of
from saddlepoint.runs.record import RECORD, _digest

TRAIN = "train --data mnist-sample --model C --limit 10 --epochs 2 --steps 1 --test-steps 1 --test-images 4"
REPLACED: tuple[Any, ...] = (None, "x", -1, [], {}, math.inf, math.nan, True, [["x"]])
Path_ = tuple[str | int, ...]


def _places(value: Any, here: Path_ = ()) -> Iterator[Path_]:
    """Where values are, of a list the first and the last."""
    if here:
        yield here
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _places(each, (*here, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1}) if value else []:
            yield from _places(value[index], (*here, index))


def _damaged(raw: dict[str, Any], place: Path_, change: Callable[[Any, Any], None]) -> str:
    copy = json.loads(json.dumps(raw))
    holder = copy
    for key in place[:-1]:
        holder = holder[key]
    change(holder, place[-1])
    return json.dumps({**copy, "digest": _digest(copy)})


def _changes() -> dict[str, Callable[[Any, Any], None]]:
    def put(value: Any) -> Callable[[Any, Any], None]:
        return lambda holder, key: holder.__setitem__(key, value)

    named = {f"put {value!r}": put(value) for value in REPLACED}
    return {"delete": lambda holder, key: holder.__delitem__(key), **named}


CHANGES = _changes()


def harms(folder: Path, every: int) -> Iterator[tuple[str, str]]:
    """Records with one change each, and what it is: all places, with one of `every` changes in turn."""
    raw = json.loads((folder / RECORD).read_text())
    del raw["digest"]
    number = 0
    for place in _places(raw):
        for name, change in CHANGES.items():
            number += 1
            if number % every == 0:
                yield f"{name} at {place}", _damaged(raw, place, change)


def check(read: Callable[[], object], what: str) -> bool:
    """It succeeds or is refused in our own words; whether it was refused."""
    try:
        read()
    except ValueError as error:
        text = str(error)
        assert text.startswith("`"), f"{what}: {text}"
        assert "must" in text, f"{what}: {text}"
        assert "validation error" not in text, f"{what}: {text}"
        assert len(text) < 800, f"{what}: {text}"
        return True
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return False


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("forged")
    make_run(home / "ensemble", rows=6, domains=2)
    make_run(home / "universal", "universal", rows=6, domains=2, baseline=False)
    make_evaluation(home / "evaluate", rows=4)
    make_evaluation(home / "evaluate-several", rows=4, domains=2)
    assert (
        inside(
            *TRAIN.split(), "--threat", "linf:0.1", "--test-restarts", "1", "--out", home / "train"
        )
        == 0
    )
    assert inside(*TRAIN.split(), "--out", home / "train-clean") == 0
    return {path.name: path for path in home.iterdir()}


MEASURED = {"convergence": {}, "cost": {"repeats": 1}}


@pytest.mark.parametrize("name", MEASURED)
def test_a_forged_measurement_is_shown_or_refused_in_one_sentence(
    name: str, tmp_path: Path
) -> None:
    first = find(name).measurements[0]
    short = replace(first, block=first.block.but(steps=12), **MEASURED[name])
    experiment = replace(find(name), blocks=(), measurements=(short,))
    reproduce(experiment, tmp_path, Setup(limit=4))
    folder = tmp_path / "true" / "apgda" / short.key
    assert not check(lambda: tables_of(collect(experiment, tmp_path)), "as it is")
    refused = 0
    for what, text in harms(folder, every=23):
        (folder / RECORD).write_text(text)
        refused += check(lambda: tables_of(collect(experiment, tmp_path)), what)
        check(lambda: reproduce(experiment, tmp_path, Setup(limit=4), resume=True), what)
        check(lambda: runs.rank_runs([tmp_path]), what)
        assert check(lambda: report.write_report(folder), what)
    assert refused > 5


KINDS = ["ensemble", "universal", "evaluate", "evaluate-several", "train", "train-clean"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_record_is_drawn_or_refused_in_one_sentence(
    folders: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / "run")
    run, refused = runs.finished(folder), 0

    def resume() -> None:
        with runs.opened(run, folder, resume=True) as execution:
            assert execution.complete

    for what, text in harms(folder, every=37):
        (folder / RECORD).write_text(text)
        refused += check(lambda: report.write_report(folder), what)
        check(resume, what)
        check(
            lambda: report.write_comparison(runs.rank_runs([tmp_path]), tmp_path / "b.html"), what
        )
    assert refused > 5


NUMBERS: dict[str, Path_] = {
    "ensemble": ("metrics", "asr_all_among_correct"),
    "universal": ("metrics", "intervals", "accuracy", "net 0"),
    "evaluate": ("metrics", "union"),
    "evaluate-several": ("metrics", "joint", "linf"),
    "train": ("metrics", "history", 0, "validation", "union"),
}


def _forge(folder: Path, place: Path_, change: Callable[[Any, Any], None]) -> None:
    raw = json.loads((folder / RECORD).read_text())
    del raw["digest"]
    (folder / RECORD).write_text(_damaged(raw, place, change))


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_that_the_rows_do_not_come_to_is_named_and_the_other_runs_are_ranked(
    folders: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    honest = shutil.copytree(folders[kind], tmp_path / "honest")
    forged = shutil.copytree(folders[kind], tmp_path / "forged")

    def better(holder: Any, key: Any) -> None:
        old = holder[key]
        holder[key] = [old[0], 99.9] if isinstance(old, list) else old + 0.5

    _forge(forged, NUMBERS[kind], better)
    last = str(NUMBERS[kind][-1])
    with pytest.raises(
        ValueError, match=rf"must say in run\.json what its rows come to, got .*{last}"
    ):
        report.write_report(forged)
    board = runs.rank_runs([tmp_path])
    assert [entry.folder for entry in board.entries] == [honest]
    assert [each.folder for each in board.left_out] == [forged]


def test_an_attack_that_was_cut_short_cannot_be_forged_to_be_whole(tmp_path: Path) -> None:
    make_evaluation(tmp_path / "run", rows=4, budget=1e-9)
    assert "union" in json.loads((tmp_path / "run" / RECORD).read_text())["metrics"]["at_most"]
    _forge(tmp_path / "run", ("metrics", "at_most"), lambda holder, key: holder[key].clear())
    with pytest.raises(ValueError, match="at_most"):
        runs.finished(tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "place", "value", "told"),
    [
        ("ensemble", ("settings", "eps"), 0.01, "a hash of its settings"),
        ("train", ("settings", "test_steps"), 1000, "a hash of its settings"),
        ("train", ("seed",), 7, "`seed` 0, got 7"),
        ("evaluate", ("metrics", "domains", 0, "attacks", 0, "status"), "zzz", "zzz"),
    ],
)
def test_settings_of_another_hash_and_unknown_words_are_refused(
    folders: dict[str, Path], kind: str, place: Path_, value: Any, told: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / "run")
    raw = json.loads((folder / RECORD).read_text())
    if "domains" in place:
        place = (*place[:2], next(iter(raw["metrics"]["domains"])), *place[3:])
    _forge(folder, place, lambda holder, key: holder.__setitem__(key, value))
    with pytest.raises(ValueError, match=told):
        runs.finished(folder)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("metrics", "accuracy"), 100.0, r"accuracy 100\.0 there and .* by model\.json"),
        (("metrics", "fgsm_eps"), 0.3, r"fgsm_eps 0\.3 there and 0\.1 by model\.json"),
        (("metrics", "robust_accuracy", "linf"), 33.3, "percents of whole images"),
        (("metrics", "robust_accuracy", "union"), 100.0, "a union below each"),
        (("metrics", "rows_attacked"), 10**6, "attacked rows among its test images"),
    ],
)
def test_numbers_that_no_training_can_have_or_its_card_has_otherwise_are_refused(
    folders: dict[str, Path], place: Path_, value: Any, told: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["train"], tmp_path / "run")
    _forge(folder, place, lambda holder, key: holder.__setitem__(key, value))
    with pytest.raises(ValueError, match=told):
        runs.finished(folder)


@pytest.mark.parametrize("kind", ["ensemble", "evaluate", "evaluate-several"])
@pytest.mark.parametrize("harm", ["lost", "short", "other"])
def test_tables_that_are_none_of_such_a_run_are_refused_in_one_sentence(
    folders: dict[str, Path], kind: str, harm: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / "run")
    tensors = read_tensors(folder / runs.TENSORS).tensors
    name = "fooled" if kind == "ensemble" else next(n for n in tensors if n.endswith("/broken"))
    changed = {"short": tensors[name][:-1], "other": tensors[name][..., None].float()}
    tensors = {**tensors, name: changed[harm]} if harm in changed else tensors
    if harm == "lost":
        del tensors[name]
    write_tensors(folder / runs.TENSORS, tensors)
    digest = digest_of(folder / runs.TENSORS)
    _forge(folder, ("digests", runs.TENSORS), lambda holder, key: holder.__setitem__(key, digest))
    assert check(lambda: report.write_report(folder), harm)
    assert runs.rank_runs([tmp_path]).left_out


def test_runs_that_name_the_same_images_and_have_other_rows_end_no_leaderboard(
    tmp_path: Path,
) -> None:
    for rows in (6, 8):
        make_run(tmp_path / str(rows), rows=rows, domains=2)
    data = runs.Run.read(tmp_path / "6").hashes.data
    _forge(tmp_path / "8", ("hashes", "data"), lambda holder, key: holder.__setitem__(key, data))
    (ranking,) = runs.rank_runs([tmp_path]).rankings
    assert [pair.rows for pair in ranking.pairs] == [None]


@pytest.mark.parametrize("rows", [1, 3, 160, 320, 1_000, 10_000])
def test_percents_as_trainings_round_them_are_of_whole_images(rows: int) -> None:
    shares = [round(100 * (right / rows), 2) for right in range(rows + 1)]
    assert [share for share in shares if not _whole(share, rows)] == []
    assert not _whole(shares[1] + 0.001, rows)
    assert not _whole(-0.01, rows)
    assert rows > 1_000 or not _whole(shares[0] + 0.02, rows)
