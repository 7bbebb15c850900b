"""What `reproduce` refuses before it works, so that nothing that was run is lost."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_stored_results import QUIET, own_parameters, pair

import saddlepoint as sp
from commands import inside
from saddlepoint import experiments
from saddlepoint.experiments import block_parts
from saddlepoint.experiments.plan import Experiment, Measurement
from saddlepoint.models import loading
from saddlepoint.runs import TENSORS, hash_model

# ------------------------------------------------------------------------------- networks


def two_settings() -> Experiment:
    """The same rows under two keys, the second ones with network D."""
    one = pair(limit=2, steps=1)
    other = replace(one.blocks[0].but(models=["cifar10-a", "cifar10-d"]), key="b", label="b")
    return replace(one, blocks=(replace(one.blocks[0], key="a", label="a"), other))


def measured(name: str) -> Measurement:
    """The accuracy of a network, under a key of its own."""
    (found,) = (m for m in experiments.EXPERIMENTS["networks"].measurements if m.key == name)
    return replace(found, key="accuracy", label="accuracy")


def test_networks_have_to_fit_rows_of_settings_that_are_not_run(tmp_path: Path) -> None:
    whole, out = two_settings(), tmp_path / "out"
    own = replace(QUIET, parameters=own_parameters(tmp_path / "own", "cifar10-a"))
    experiments.reproduce(experiments.settings(whole, ["a"]), out, own)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="got another cifar10-a than its results are of"):
        experiments.reproduce(experiments.settings(whole, ["b"]), out, QUIET, resume=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("last", ["block", "measurement"])
def test_networks_are_compared_before_the_first_row(last: str, tmp_path: Path) -> None:
    whole, out = two_settings(), tmp_path / "out"
    own = replace(QUIET, parameters=own_parameters(tmp_path / "own", "cifar10-d"))
    experiments.reproduce(replace(whole, blocks=whole.blocks[1:]), out, QUIET)
    asked = whole  # whose first setting is not about network D
    if last == "measurement":
        asked = replace(whole, blocks=whole.blocks[:1], measurements=(measured("cifar10-d"),))
    with pytest.raises(ValueError, match="got another cifar10-d than its results are of"):
        experiments.reproduce(asked, out, own, resume=True)
    assert not (out / "true" / "apgda" / "a").exists()


@pytest.mark.parametrize("where", ["run", "folder"])
def test_a_store_with_other_networks_is_refused_before_anything_is_run(
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, store = tmp_path / "out", tmp_path / "store"
    (block,) = pair(limit=2, steps=1).blocks
    blocks = tuple(replace(block, key=key, label=key) for key in "ab")
    whole = replace(pair(limit=2, steps=1), blocks=blocks)
    monkeypatch.setattr(experiments, "find", lambda _: whole)
    words = ("reproduce", "ensemble-cifar10", "--quiet", "--only")
    own = own_parameters(tmp_path / "own", "cifar10-c")
    keep = ("--store", store)
    assert inside(*words, "a", *keep, "--out", tmp_path / "first") == 0
    if where == "run":
        assert inside(*words, "a", *keep, "--out", out, "--parameters", own) == 2
    else:  # what the folder has is to be written, too
        assert inside(*words, "a", "--out", out, "--parameters", own) == 0
        assert inside(*words, "b", *keep, "--out", out, "--resume") == 2
    error = capsys.readouterr().err
    assert "`--store` must hold a summary of the same networks, got another cifar10-c" in error
    assert "continue with" not in error
    assert out.exists() == (where == "folder")
    assert not (out / "true" / "apgda" / "b").exists()
    content = json.loads((store / "ensemble-cifar10.json").read_text())
    assert content["networks"]["cifar10-c"] == sp.models.card("cifar10-c").sha256
    assert inside(*words, "b", *keep, "--out", tmp_path / "first", "--resume") == 0


# ------------------------------------------------------------------------------- architectures


def kept(folder: Path, name: str, source: str, *, card: bool = True) -> Path:
    """A folder with a shipped network under a name."""
    folder.mkdir(exist_ok=True)
    for suffix in (".safetensors", ".json") if card else (".safetensors",):
        (folder / f"{name}{suffix}").write_bytes(
            (loading._folder() / f"{source}{suffix}").read_bytes()
        )
    return folder


@pytest.mark.parametrize("name", ["mnist-a", "mnist-paper-a", "mnist-paper-c"])
def test_without_a_card_networks_of_the_papers_recipe_have_no_shift(
    name: str, tmp_path: Path
) -> None:
    network = block_parts.load_network(name, kept(tmp_path, name, name, card=False))
    assert hash_model(network) == hash_model(block_parts.load_network(name))


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        (
            "mnist-paper-a",
            "mnist-paper-d",
            "network A_unshifted for mnist as mnist-paper-a.safetensors, got",
        ),
        ("mnist-c", "cifar10-c", "network C for mnist as mnist-c.safetensors, got"),
        ("mnist-c", "mnist-d", "network C for mnist as mnist-c.safetensors, got"),
    ],
)
def test_a_card_of_another_architecture_than_the_name_says_is_refused(
    name: str,
    source: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = kept(tmp_path / "own", name, source)
    card = sp.models.card(source)
    found = f"{card.architecture} for {card.data} in the card `{own / f'{name}.json'}`"
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        block_parts.load_network(name, own)
    assert found in str(error.value)
    block = pair("mnist", limit=2, steps=1).blocks[0].but(models=[name, "mnist-b"])
    experiment = replace(pair("mnist", limit=2, steps=1), blocks=(block,))
    monkeypatch.setattr(experiments, "find", lambda _: experiment)
    out = tmp_path / "out"
    assert inside("reproduce", "ensemble-mnist", "--parameters", own, "--out", out) == 2
    line = capsys.readouterr().err
    assert f"`--parameters` must have {said} {found}" in line
    assert not out.exists()


def test_networks_with_and_without_shift_may_stand_for_each_other(tmp_path: Path) -> None:
    own = kept(tmp_path, "mnist-a", "mnist-paper-a")  # the card says which one it is
    found = hash_model(block_parts.load_network("mnist-a", own))
    assert found == hash_model(block_parts.load_network("mnist-paper-a"))


@pytest.mark.parametrize("lost", [True, False])
def test_a_damaged_row_is_deleted_and_run_again(lost: bool, tmp_path: Path) -> None:
    experiment = pair(limit=2, steps=1)
    experiments.reproduce(experiment, tmp_path, QUIET)
    row = tmp_path / "true" / "apgda" / experiment.blocks[0].key / "avg"
    if lost:
        (row / TENSORS).unlink()
    else:
        (row / TENSORS).write_bytes(b"")
    line = f"saddlepoint reproduce {experiment.name} --method apgda --out {tmp_path} --resume"
    with pytest.raises(ValueError, match=re.escape(f"delete `{row}` and continue with: {line}")):
        experiments.reproduce(experiment, tmp_path, QUIET, resume=True)
    shutil.rmtree(row)
    experiments.reproduce(experiment, tmp_path, QUIET, resume=True)
    assert len(experiments.collect(experiment, tmp_path).attacks) == 2
