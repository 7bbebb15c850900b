"""What networks say about images as they are: asked once for all experiments, and never taken for others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_stored_results import QUIET, own_parameters, pair
from torch import Tensor

from commands import inside
from saddlepoint import experiments
from saddlepoint.experiments.plan import Block, Experiment
from saddlepoint.problems import AbstractProblem
from saddlepoint.runs import RECORD, TENSORS, Run, rows
from saddlepoint.runs.rows import CLEAN


@contextmanager
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Within, of every time that images are judged without a perturbation, the number of their domains."""
    found, verdict = list[int](), rows._verdict

    def judging(part: AbstractProblem, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not delta.any():
            found.append(part.num_domains)
        return verdict(part, delta)

    with monkeypatch.context() as patch:
        patch.setattr(rows, "_verdict", judging)
        yield found


def of_networks(block: Block, letters: str, key: str = "") -> Block:
    """The block with other networks of the same data."""
    data = block.settings.data
    names = [f"{data}-{letter}" for letter in letters]
    return replace(block.but(models=names), key=key or letters, label=key or letters)


def several() -> Experiment:
    """Two radii for networks A and C, then A, C and D, then C and A, then D."""
    whole = pair(limit=5, steps=2)
    (block,) = whole.blocks
    wide = replace(block.but(eps=0.1), key="wide", label="wide")
    others = [of_networks(block, letters) for letters in ("acd", "ca", "d")]
    return replace(whole, blocks=(block, wide, *others))


def tensors(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Those of every row, by its place."""
    places = sorted(folder.glob(f"**/{TENSORS}"))
    return {str(place.parent.relative_to(folder)): load_file(place) for place in places}


def test_blocks_share_answers_network_by_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = several()
    with asked(monkeypatch) as found:
        experiments.reproduce(experiment, tmp_path / "shared", QUIET)
    # A and C once, for both radii and strategies; D is not known yet; all later ones are.
    assert found == [2, 3]
    for number, block in enumerate(experiment.blocks):  # each in a folder of its own
        alone = replace(experiment, blocks=(block,))
        experiments.reproduce(alone, tmp_path / str(number), QUIET)
        there = tensors(tmp_path / str(number))
        assert len(there) == 2
        for place, mine in there.items():
            shared = tensors(tmp_path / "shared")[place]
            assert mine.keys() == shared.keys()
            assert all(torch.equal(mine[name], shared[name]) for name in mine)


def test_methods_labels_and_precisions_share_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(limit=5, steps=2)
    more = (
        {"method": "attack"},
        {"labels": "predicted"},
        {"labels": "predicted", "method": "attack"},
    )
    with asked(monkeypatch) as found:
        experiments.reproduce(experiment, tmp_path, QUIET)
        for changed in more:
            setup = replace(QUIET, precision="bfloat16", **changed)
            experiments.reproduce(experiment, tmp_path, setup)
    assert found == [2]


def test_groups_share_answers_where_they_are_the_same_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [experiments.find(name) for name in ("universal-mnist", "universal-mnist-clip")]
    labels = ["A, eps 0.2, K = 2", "A, eps 0.2, K = 4"]
    folders = [tmp_path / each.name for each in both]
    answers = experiments.Answers([*folders, tmp_path / "seed"])
    with asked(monkeypatch) as found:
        for each, folder in zip(both, folders, strict=True):
            part = experiments.settings(each, labels)
            setup = replace(QUIET, limit=12)
            experiments.reproduce(part, folder, setup, answers=answers)
        assert found == [2, 4]  # the box plays no part in images as they are
        other = replace(QUIET, limit=12, seed=1)
        experiments.reproduce(part, tmp_path / "seed", other, answers=answers)
        assert found == [2, 4, 2, 4]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    """Two experiments about the same networks and images, the second also about others."""
    first = pair(limit=5, steps=2)
    wide = replace(first.blocks[0].but(eps=0.1), key="wide", label="wide")
    found = {first.name: first, "second": replace(first, name="second", blocks=(wide,))}
    monkeypatch.setattr(experiments, "EXPERIMENTS", found)
    monkeypatch.setattr(experiments, "find", found.__getitem__)
    return found


def test_all_asks_once_for_all_experiments(
    two: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked(monkeypatch) as found:
        assert inside("reproduce", "all", "--out", tmp_path / "all", "--quiet") == 0
    assert found == [2]
    with asked(monkeypatch) as found:
        for name in two:
            assert inside("reproduce", name, "--out", tmp_path / name / name, "--quiet") == 0
    assert found == [2, 2]
    for name in two:
        alone, shared = (tensors(tmp_path / place / name) for place in (name, "all"))
        assert alone.keys() == shared.keys()
        for place, mine in alone.items():
            assert all(torch.equal(mine[n], shared[place][n]) for n in mine)


def test_a_stopped_list_goes_on_with_what_was_asked(
    two: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _) = two
    assert inside("reproduce", first, "--out", tmp_path / first, "--quiet") == 0
    with asked(monkeypatch) as found:
        assert inside("reproduce", "all", "--out", tmp_path, "--resume", "--quiet") == 0
    assert found == []


@pytest.mark.parametrize("changed", ["networks", "images", "order"])
def test_answers_of_other_networks_or_images_are_not_taken(
    changed: str, two: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two.values()
    folders = [tmp_path / name for name in two]
    answers = experiments.Answers(folders)
    experiments.reproduce(first, folders[0], QUIET, answers=answers)
    setup = QUIET
    if changed == "networks":  # of the same name
        setup = replace(QUIET, parameters=own_parameters(tmp_path / "own", "cifar10-c"))
    if changed == "images":
        setup = replace(QUIET, limit=4)
    if changed == "order":  # of the networks: each has its own answers
        second = replace(second, blocks=(of_networks(second.blocks[0], "ca", "wide"),))
    with asked(monkeypatch) as found:
        experiments.reproduce(second, folders[1], setup, answers=answers)
    assert found == ([] if changed == "order" else [2])
    experiments.reproduce(second, tmp_path / "alone", setup)
    one, other = (tensors(folder) for folder in (folders[1], tmp_path / "alone"))
    for place, mine in one.items():
        assert all(torch.equal(mine[name], other[place][name]) for name in CLEAN)


def test_a_network_without_a_hash_is_asked(tmp_path: Path) -> None:
    experiment = pair(limit=5, steps=2)
    experiments.reproduce(experiment, tmp_path, QUIET)
    (place, _) = sorted(tmp_path.glob("*/*/*/*"))
    run, answers = Run.read(place), experiments.Answers([tmp_path])
    known = answers.to(run)
    assert known is not None
    assert known.keys() == set(CLEAN)
    unknown = replace(run.hashes, models=dict.fromkeys(run.hashes.models, ""))
    assert answers.to(run.but(hashes=unknown)) is None


@pytest.mark.parametrize("file", [RECORD, TENSORS])
def test_damaged_rows_are_no_answers(
    file: str, two: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two.values()
    folders = [tmp_path / name for name in two]
    answers = experiments.Answers(folders)
    experiments.reproduce(first, folders[0], QUIET, answers=answers)
    for place in folders[0].glob(f"*/*/*/*/{file}"):
        place.write_bytes(place.read_bytes()[:-8])
    with asked(monkeypatch) as found:
        experiments.reproduce(second, folders[1], QUIET, answers=answers)
    assert found == [2]  # once, for both rows


def test_rows_that_were_moved_away_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(limit=5, steps=2)
    experiments.reproduce(experiment, tmp_path, QUIET)
    (tmp_path / "true").rename(tmp_path / "old")
    with asked(monkeypatch) as found:
        experiments.reproduce(experiment, tmp_path, QUIET)
    assert found == [2]
    (record, _) = sorted((tmp_path / "old").glob(f"*/*/*/{RECORD}"))
    record.write_text("{")
    again = replace(QUIET, method="attack")
    with asked(monkeypatch) as found:
        experiments.reproduce(experiment, tmp_path, again)
    assert found == []
