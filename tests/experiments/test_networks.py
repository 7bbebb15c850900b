"""Table A2, the sweep of beta, and the correlation of weights across norms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats
import torch
from test_experiments import EXPERIMENTS, fake
from test_stored_results import QUIET
from torch.nn.functional import cross_entropy

import saddlepoint as sp
from saddlepoint import experiments
from saddlepoint.experiments import building
from saddlepoint.experiments.figures import sheets
from saddlepoint.experiments.finished import Results
from saddlepoint.experiments.image_groups import IMAGE_GROUPS
from saddlepoint.experiments.measurements import NetworkAccuracy
from saddlepoint.experiments.networks import NETWORKS, REPORTED_NETWORKS
from saddlepoint.experiments.summary import summarise


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
    (table,) = summarise(experiments.collect(experiment, tmp_path))
    assert ("cifar10", "C", "paper", 10_000, 64.95, 14.45, None) in table.lines
    line = next(line for line in table.lines if line[:3] == ("cifar10", "C", "ours"))
    assert line[3:5] == (60, found["cifar10-c"].clean)


def test_networks_without_parameters_do_not_keep_others_from_being_measured() -> None:
    gone = set(experiments.skipped(NETWORKS))
    assert not {"mnist-a", "mnist-paper-a"} & gone
    assert "cifar10-g" in gone
    assert "train --data mnist --model B --recipe paper" in building.explain_missing(
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


def test_weights_are_correlated_across_norms_as_scipy_says() -> None:
    table = summarise(Results(EXPERIMENTS["image-robustness"], ()))[0]
    line = next(line for line in table.lines if line[:2] == ("l1", "paper"))
    names = [column.name for column in table.columns]
    values = dict(zip(names, line, strict=True))
    assert values["with weights in l1"] is None
    for other in ("l0", "l2", "linf"):
        pairs = [(group.l1, getattr(group, other)) for group in IMAGE_GROUPS]
        told = [(a, b) for a, b in pairs if len(set(a)) > 1 and len(set(b)) > 1]
        kept = [scipy.stats.spearmanr(a, b).statistic for a, b in told]
        assert values[f"with weights in {other}"] == pytest.approx(sum(kept) / len(kept))
