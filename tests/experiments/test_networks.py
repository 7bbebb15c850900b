"""Table A2, the sweep of beta, and the correlation of weights across norms."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats
import torch
from test_experiments import EXPERIMENTS, fake, tiny
from test_stored_results import QUIET, STORE
from torch.nn.functional import cross_entropy

import saddlepoint as sp
from folders import ROOT
from saddlepoint import experiments
from saddlepoint.evaluation.other_libraries import MissingLibraryError
from saddlepoint.experiments import block_parts
from saddlepoint.experiments.claim_checks import Summaries
from saddlepoint.experiments.claim_groups import distances
from saddlepoint.experiments.figures import sheets
from saddlepoint.experiments.finished import Results
from saddlepoint.experiments.image_groups import IMAGE_GROUPS
from saddlepoint.experiments.measurements import NetworkAccuracy
from saddlepoint.experiments.networks import NETWORKS, REPORTED_NETWORKS
from saddlepoint.experiments.plan import Experiment
from saddlepoint.experiments.stored import read_summary
from saddlepoint.experiments.summary import tables_of
from saddlepoint.models import loading
from saddlepoint.report.tables import to_markdown


def test_the_papers_accuracies_are_those_of_a_second_transcription() -> None:
    sums = [sum(both) for both in REPORTED_NETWORKS.values()]
    assert sums == pytest.approx(
        [117.12, 150.44, 162.48, 155.69, 66.61, 94.07, 79.40, 84.66, 98.40, 98.84, 107.45, 100.83]
    )


def test_accuracies_are_those_of_a_step_written_out(tmp_path: Path) -> None:
    kept = tuple(m for m in NETWORKS.measurements if m.key in ("cifar10-c", "mnist-a"))
    experiment = replace(NETWORKS, measurements=kept, limit=60)
    experiments.reproduce(experiment, tmp_path, QUIET)
    found = {
        item.measurement.key: result
        for item, result in experiments.collect(experiment, tmp_path).having(NetworkAccuracy)
    }
    assert set(found) == {"cifar10-c", "mnist-a"}
    for name, result in found.items():
        network = sp.models.load(name)
        x, y = sp.data.sample(name[:-2], 60)
        x.requires_grad_()
        guesses = network(x).argmax(dim=1)
        rates = []
        for labels in (y, guesses):
            (slope,) = torch.autograd.grad(cross_entropy(network(x), labels), x)
            moved = (x + 0.2 * slope.sign()).clamp(0, 1)
            rates.append(100 * (network(moved).argmax(dim=1) == y).double().mean().item())
        clean = 100 * (guesses == y).double().mean().item()
        assert (result.clean, result.fgsm) == pytest.approx((clean, rates[0]), abs=1e-3)
        assert result.fgsm_predicted == pytest.approx(rates[1], abs=1e-3)
    # An image that was wrong can become right, but not by a step away from the true class.
    assert found["cifar10-c"].fgsm_predicted > found["cifar10-c"].fgsm
    (table,) = tables_of(experiments.collect(experiment, tmp_path))
    assert ("cifar10", "C", "paper", None, 64.95, 14.45, None) in table.lines
    line = next(line for line in table.lines if line[:3] == ("cifar10", "C", "ours"))
    assert line[3:5] == (60, found["cifar10-c"].clean)


def test_networks_without_parameters_do_not_keep_others_from_being_measured() -> None:
    gone = set(experiments.skipped(NETWORKS))
    assert not {"mnist-a", "mnist-paper-a"} & gone
    assert "cifar10-g" in gone
    assert "train --data mnist --model B_unshifted --recipe paper" in block_parts.explain_missing(
        ["mnist-paper-b"]
    )


def test_beta_goes_from_a_tenth_to_ten_times_one_over_t() -> None:
    experiment = EXPERIMENTS["beta-mnist"]
    (block,) = experiment.blocks
    rules = [str(row.strategy.rule) for row in block.rows[1:]]
    betas = [0.002, 0.004, 0.01, 0.02, 0.04, 0.1, 0.2]
    assert rules == [f"minmax:gamma=3,step_size={beta:g}" for beta in betas]
    attacks = tuple(
        fake(block, row.strategy.key, "apgda", 50.0 + number)
        for number, row in enumerate(block.rows)
    )
    (sheet,) = sheets(Results(experiment, attacks, ()))
    (panel,) = sheet.panels
    assert panel.log_x
    assert not panel.log
    curve, level = panel.curves
    assert list(curve.x) == pytest.approx(betas)
    assert list(curve.y) == [51.0, 52.0, 53.0, 54.0, 55.0, 56.0, 57.0]
    assert set(level.y) == {50.0}


def test_alpha_goes_from_a_tenth_to_ten_times_the_papers_and_nothing_else_moves() -> None:
    experiment = EXPERIMENTS["alpha-mnist"]
    steps = [block.settings.step_size for block in experiment.blocks]
    alphas = [0.025, 0.05, 0.125, 0.25, 0.5, 1.25, 2.5]
    assert steps == pytest.approx(alphas)
    usual = next(b for b in EXPERIMENTS["eps-mnist"].blocks if b.settings.eps == 0.2)
    for block in experiment.blocks:
        assert block.settings.model_copy(update={"step_size": 0.25}) == usual.settings
    attacks = tuple(
        fake(block, row.strategy.key, "apgda", 10.0 * number + len(row.strategy.key))
        for number, block in enumerate(experiment.blocks)
        for row in block.rows
    )
    (sheet,) = sheets(Results(experiment, attacks, ()))
    (panel,) = sheet.panels
    assert (panel.x_label, panel.log_x) == ("step size alpha", True)
    average, minmax = panel.curves
    assert (average.label, minmax.label) == ("avg.", "min-max")
    assert list(minmax.x) == pytest.approx(alphas)
    assert [average.y[0], average.y[-1], minmax.y[0]] == [3.0, 63.0, 6.0]


def test_weights_are_correlated_across_norms_as_scipy_says() -> None:
    table = tables_of(Results(EXPERIMENTS["image-robustness"], ()))[0]
    line = next(line for line in table.lines if line[:2] == ("l1", "paper"))
    names = [column.name for column in table.columns]
    values = dict(zip(names, line, strict=True))
    assert values["with weights in l1"] is None
    for other in ("l0", "l2", "linf"):
        pairs = [(group.l1, getattr(group, other)) for group in IMAGE_GROUPS]
        told = [(a, b) for a, b in pairs if len(set(a)) > 1 and len(set(b)) > 1]
        kept = [scipy.stats.spearmanr(a, b).statistic for a, b in told]
        assert values[f"with weights in {other}"] == pytest.approx(sum(kept) / len(kept))


def test_lines_of_rows_that_are_no_longer_compared_are_not_kept(tmp_path: Path) -> None:
    experiment, store = quick_robustness(), tmp_path / "store"
    experiments.reproduce(experiment, tmp_path / "one", QUIET)
    experiments.write_summary(experiment, tmp_path / "one", store)
    assert len(ours_in(experiment, store)) == 2
    for blocks, limit in ((experiment.blocks[:1], 50), (experiment.blocks[1:], 60)):
        part = replace(
            experiment, blocks=blocks, measurements=experiment.measurements * (limit > 50)
        )
        setup = replace(QUIET, limit=limit)
        experiments.reproduce(part, tmp_path / "other", setup, resume=limit > 50)
    experiments.write_summary(experiment, tmp_path / "other", store)
    assert ours_in(experiment, store) == ["linf"]


def ours_in(experiment: Experiment, store: Path) -> list[object]:
    """The norms of which a summary has a line of ours."""
    return [line[0] for line in read_summary(experiment, store).lines if line[1] != "paper"]


def test_a_summary_of_some_networks_keeps_the_others(tmp_path: Path) -> None:
    parts = {
        name: replace(
            NETWORKS, measurements=tuple(m for m in NETWORKS.measurements if m.key == name), limit=4
        )
        for name in ("mnist-c", "mnist-a", "mnist-paper-a")
    }
    for name, part in parts.items():
        experiments.reproduce(part, tmp_path / name, QUIET)
        experiments.write_summary(NETWORKS, tmp_path / name, tmp_path)
    lines = read_summary(NETWORKS, tmp_path).lines
    ours = [line[:3] for line in lines if line[2] != "paper"]
    recipe = "ours, the paper's recipe"
    assert ours == [("mnist", "A", "ours"), ("mnist", "A", recipe), ("mnist", "C", "ours")]
    assert [line[:3] for line in lines][:3] == [("mnist", "A", "paper"), *ours[:2]]
    assert sum(line[2] == "paper" for line in lines) == len(REPORTED_NETWORKS)
    content = json.loads((tmp_path / "networks.json").read_text())
    keys = [entry["key"] for entry in content["measured"]]
    assert keys == ["mnist-a", "mnist-c", "mnist-paper-a"]
    assert content["networks"] == {name: sp.models.card(name).sha256 for name in keys}


@pytest.mark.parametrize("name", ["convergence", "cost", "image-robustness"])
def test_a_summary_of_a_measurement_has_the_hashes_of_its_networks(
    name: str, tmp_path: Path
) -> None:
    experiment = tiny(EXPERIMENTS[name])
    experiments.reproduce(experiment, tmp_path / "runs", QUIET)
    content = json.loads(
        experiments.write_summary(experiment, tmp_path / "runs", tmp_path).read_text()
    )
    every = {n for m in experiment.measurements for n in m.block.networks}
    assert every
    assert content["networks"] == {n: sp.models.card(n).sha256 for n in every}


def test_the_papers_lines_are_those_of_the_code_and_not_of_the_store(tmp_path: Path) -> None:
    stored = json.loads((STORE / "convergence.json").read_text())
    stored["lines"][0] = ["any", "paper", *[None] * 6, -7.0]
    (tmp_path / "convergence.json").write_text(json.dumps(stored))
    lines = read_summary(EXPERIMENTS["convergence"], tmp_path).lines
    assert [line[8] for line in lines if line[1] == "paper"] == [-1.0, -2.0]
    assert len(lines) == 6


def test_lines_that_compare_rows_need_all_of_them(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["image-robustness"]
    shutil.copy(STORE / "image-robustness.json", tmp_path)
    before = (tmp_path / "image-robustness.json").read_text()
    part = replace(experiment, blocks=experiment.blocks[-1:], measurements=(), limit=41)
    experiments.reproduce(part, tmp_path / "runs", QUIET)
    with pytest.raises(ValueError, match=r"with apgda, .* got nothing of distances, l0, l1, l2"):
        experiments.write_summary(experiment, tmp_path / "runs", tmp_path)
    assert (tmp_path / "image-robustness.json").read_text() == before


def test_groups_of_images_have_the_papers_radii_of_network_c() -> None:
    radii = {block.key: block.settings.eps for block in EXPERIMENTS["image-robustness"].blocks}
    assert radii == {"l0": 30, "l1": 20.0, "l2": 3.0, "linf": 0.3}


def quick_robustness() -> Experiment:
    """Image robustness under two norms, with few steps."""
    whole = EXPERIMENTS["image-robustness"]
    blocks = tuple(block.but(steps=2) for block in whole.blocks[-2:])
    (distances,) = whole.measurements
    short = replace(distances, block=distances.block.but(steps=2), searches=1, inner_steps=1)
    return replace(whole, blocks=blocks, measurements=(short,), limit=50)


def other_network(folder: Path) -> Path:
    """Parameters of network C without the shift of its images, under the name of the one with it."""
    folder.mkdir()
    for suffix in ("json", "safetensors"):
        content = (loading._folder() / f"mnist-paper-c.{suffix}").read_bytes()
        (folder / f"mnist-c.{suffix}").write_bytes(content)
    return folder


@pytest.mark.parametrize("other", ["seed", "images"])
def test_weights_are_compared_with_distances_of_the_same_groups_only(
    other: str, tmp_path: Path
) -> None:
    experiment = quick_robustness()
    l2, linf = (replace(experiment, blocks=(b,), measurements=()) for b in experiment.blocks)
    measured = replace(experiment, blocks=())
    changed = replace(QUIET, seed=1) if other == "seed" else replace(QUIET, limit=60)
    runs = tmp_path / "runs"
    experiments.reproduce(l2, runs, QUIET)
    experiments.reproduce(linf, runs, changed, resume=True)
    experiments.reproduce(measured, runs, changed, resume=True)
    results = experiments.collect(experiment, runs)
    correlated, images = tables_of(results)
    ours = [line for line in correlated.lines if line[1] == "apgda"]
    assert [line[0] for line in ours] == ["linf"]
    assert ours[0][-4:] == (None, None, None, None)  # nor with the weights in l2
    sentence = (
        "Weights in l2 by apgda are compared with nothing, because the minimum distortion was measured with "
        f"other {other}; run both with the same flags."
    )
    assert sentence in correlated.notes
    weights = [line[4:8] for line in images.lines if line[0] == "apgda"]
    assert weights
    assert all(each[:3] == (None, None, None) and each[3] is not None for each in weights)
    (sheet,) = [each for each in sheets(results) if not each.name.endswith("digits")]
    assert [panel.title.partition(":")[0] for panel in sheet.panels] == ["linf"]


def test_weights_and_distances_of_other_networks_are_refused(tmp_path: Path) -> None:
    experiment = quick_robustness()
    experiments.reproduce(replace(experiment, measurements=()), tmp_path / "runs", QUIET)
    changed = replace(QUIET, parameters=other_network(tmp_path / "other"))
    measured = replace(experiment, blocks=())
    with pytest.raises(ValueError, match="must hold results of the same networks, got another"):
        experiments.reproduce(experiment, tmp_path / "runs", changed, resume=True)
    experiments.reproduce(measured, tmp_path / "elsewhere", changed)
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "runs", dirs_exist_ok=True)
    with pytest.raises(ValueError, match="must hold results of the same networks, got another"):
        experiments.collect(experiment, tmp_path / "runs")


def test_weights_of_the_same_groups_are_compared(tmp_path: Path) -> None:
    experiment = quick_robustness()
    experiments.reproduce(replace(experiment, measurements=()), tmp_path, QUIET)
    experiments.reproduce(replace(experiment, blocks=()), tmp_path, QUIET, resume=True)
    table = tables_of(experiments.collect(experiment, tmp_path))[0]
    assert [line[0] for line in table.lines if line[1] == "apgda"] == ["l2", "linf"]
    assert not [note for note in table.notes if "compared with nothing" in note]


def test_a_correlation_that_does_not_exist_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise MissingLibraryError("no foolbox")

    monkeypatch.setattr("saddlepoint.experiments.measurements.carlini_wagner_distance", missing)
    experiment = tiny(EXPERIMENTS["image-robustness"])
    experiments.reproduce(experiment, tmp_path / "runs", QUIET)
    for _ in range(2):  # the second time it is read before it is written
        experiments.write_summary(experiment, tmp_path / "runs", tmp_path)
    assert "NaN" not in (tmp_path / "image-robustness.json").read_text()
    lines = read_summary(experiment, tmp_path).lines
    ours = [line for line in lines if line[1] == "apgda"]
    assert len(ours) == 4
    assert all(line[3:5] == (None, None) for line in ours)
    assert "nan" not in to_markdown(
        tables_of(experiments.collect(experiment, tmp_path / "runs"))[0]
    )
    full = EXPERIMENTS["image-robustness"]
    content = json.loads((STORE / "image-robustness.json").read_text())
    for line in content["lines"]:
        line[3:7] = [None] * 4 if line[1] == "apgda" else line[3:7]
    (tmp_path / "image-robustness.json").write_text(json.dumps(content))
    assert read_summary(full, tmp_path).lines
    assert distances(Summaries(tmp_path)).verdict == "not measured"


def test_what_cannot_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = replace(NETWORKS, measurements=NETWORKS.measurements[:1], limit=2)
    experiments.reproduce(part, tmp_path / "runs", QUIET)
    experiments.write_summary(NETWORKS, tmp_path / "runs", tmp_path)
    before = (tmp_path / "networks.json").read_text()
    nan = NetworkAccuracy(clean=float("nan"), fgsm=0.0, fgsm_predicted=0.0)
    found = experiments.collect(NETWORKS, tmp_path / "runs")
    found = replace(found, measured=(replace(found.measured[0], result=nan),))
    monkeypatch.setattr("saddlepoint.experiments.stored.collect", lambda *_: found)
    said = r"`.*runs` must hold numbers that a summary can have, got nan as 'Clean' of .*; "
    with pytest.raises(ValueError, match=said):
        experiments.write_summary(NETWORKS, tmp_path / "runs", tmp_path)
    assert (tmp_path / "networks.json").read_text() == before


@pytest.mark.parametrize("letter", "EFH")
def test_the_prose_has_the_numbers_of_the_cards(letter: str) -> None:
    card = sp.models.card(f"cifar10-{letter.lower()}")
    text = " ".join((ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8").split())
    kept = re.search(rf"{letter} \(\w+\) (\d+\.\d+) and \d", text.replace("**", ""))
    assert kept is not None, f"RESULTS says no longer how many images {letter} has right"
    assert float(kept[1]) == card.accuracy
