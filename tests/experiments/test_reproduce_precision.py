"""`reproduce --precision`: attacks in fewer bits, verdicts in full, and a record that says so everywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_stored_results import pair

from saddlepoint import experiments, models
from saddlepoint.experiments import Setup, document
from saddlepoint.experiments.block_parts import load_images
from saddlepoint.experiments.finished import Source, lowered
from saddlepoint.losses import fooled
from saddlepoint.runs import Run, read_results

LOW = Setup(limit=6, precision="bfloat16", reports=False)
ROW = Path("true") / "apgda"


def rows_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / ROW).glob("*/*/run.json"))


@pytest.fixture(scope="module")
def low(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("low")
    experiments.reproduce(pair(steps=4), folder, LOW)
    return folder


def test_networks_compute_in_bfloat16_and_are_judged_in_float32(low: Path, tmp_path: Path) -> None:
    experiment = pair(steps=4)
    experiments.reproduce(experiment, tmp_path, replace(LOW, precision="float32"))
    images = load_images("cifar10", 6)
    differs = False
    for one, other in zip(rows_in(low), rows_in(tmp_path), strict=True):
        run, tensors = read_results(one)
        assert run.settings["precision"] == ["bfloat16"]
        assert "--precision bfloat16" in run.command
        full = Run.read(other)
        assert "precision" not in full.settings
        assert "--precision" not in full.command
        differs |= not torch.equal(tensors["losses"], read_results(other)[1]["losses"])
        for k, name in enumerate(experiment.blocks[0].networks):
            with torch.no_grad():
                logits = models.load(name)(images.x + tensors["delta"])
            assert torch.equal(fooled(logits, images.y), tensors["fooled"][:, k])
    assert differs  # the attack did compute in fewer bits


def test_another_precision_does_not_go_on(low: Path) -> None:
    with pytest.raises(ValueError, match="precision: bfloat16 there, float32 here"):
        experiments.reproduce(pair(steps=4), low, replace(LOW, precision="float32"), resume=True)
    experiments.reproduce(pair(steps=4), low, LOW, resume=True)  # all is there


def test_tables_and_summaries_say_so(
    low: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(steps=4)
    tables, _ = experiments.publish(experiment, low)
    sentence = "All of our rows were attacked with networks computing in bfloat16"
    assert len(tables) == 2  # the second one is that of pairs
    assert all(any(note.startswith(sentence) for note in table.notes) for table in tables)
    path = experiments.write_summary(experiment, low, tmp_path)
    stored = json.loads(path.read_text())
    assert {row["precision"] for row in stored["rows"]} == {"bfloat16"}
    results = experiments.read_summary(experiment, tmp_path)
    assert {item.precision for item in results.attacks} == {"bfloat16"}
    monkeypatch.setattr(document, "find", lambda _: experiment)
    for form in ("", ", details", ", paired"):
        marked = f"<!-- table: {experiment.name}{form} -->\n<!-- end -->"
        assert sentence in document.write_tables(marked, tmp_path)
    # A row that claims to be in full precision has other settings than it was run with.
    del stored["rows"][0]["precision"]
    path.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="numbers of the present settings"):
        experiments.read_summary(experiment, tmp_path)


def test_a_source_of_which_all_rows_are_lowered_is_named_once(low: Path) -> None:
    results = experiments.collect(pair(steps=4), low)
    one, two = results.attacks
    others = [replace(item, source=Source("attack"), precision="float32") for item in (one, two)]
    (said,) = lowered(replace(results, attacks=(one, two, *others)))
    assert said.startswith(f"Of our rows all of {one.source.name} were attacked")
    partly = replace(two, precision="float32")
    (said,) = lowered(replace(results, attacks=(one, partly)))
    name = f"{one.block.label}, {one.row.strategy.label}, {one.source.name}"
    assert said.startswith(f"Of our rows {name} were attacked")


def test_every_way_of_computing_has_its_own_sentence(low: Path) -> None:
    results = experiments.collect(pair(steps=4), low)
    one, two = results.attacks
    last = replace(two, precision="bfloat16+channels_last")
    said = lowered(replace(results, attacks=(one, last)))
    assert [each.split(" computing in ")[1].split(";")[0] for each in said] == [
        "bfloat16",
        "bfloat16+channels_last",
    ]
    assert two.row.strategy.label not in said[0]
    assert one.row.strategy.label not in said[1]


def test_networks_compute_with_channels_last(tmp_path: Path) -> None:
    setup = replace(LOW, precision="float32+channels_last")
    experiments.reproduce(pair(steps=4), tmp_path, setup)
    for row in rows_in(tmp_path):
        run = Run.read(row)
        assert run.settings["precision"] == ["float32+channels_last"]
        assert "--precision float32+channels_last" in run.command


def test_measurements_are_in_float32_and_say_so(tmp_path: Path) -> None:
    experiment = experiments.find("convergence")
    one = experiments.settings(experiment, [experiment.measurements[0].label])
    short = replace(one.measurements[0], block=one.measurements[0].block.but(steps=2))
    measured = replace(one, measurements=(short,))
    experiments.reproduce(measured, tmp_path, replace(LOW, limit=2))
    (record,) = (tmp_path / ROW).glob("*/run.json")
    assert "--precision" not in Run.read(record.parent).command


def test_rows_in_another_precision_give_no_lift(low: Path) -> None:
    results = experiments.collect(pair(steps=4), low)
    average, minmax = results.attacks
    assert results.lift(minmax) is not None or average.asr_all == 0
    mixed = replace(results, attacks=(replace(average, precision="float32"), minmax))
    assert mixed.lift(minmax) is None


def test_other_words_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"`precision` must be one of float32, bfloat16, .*, got 'auto'"
    ):
        Setup(precision="auto")  # type: ignore[arg-type]
