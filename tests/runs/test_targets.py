"""Attacks that have to reach a class: which one, what counts, and what the command line says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import saddlepoint as sp
from commands import inside
from saddlepoint import models, runs
from saddlepoint.runs.settings import EnsembleSettings
from saddlepoint.runs.targets import aimed


@pytest.fixture(scope="module")
def problem() -> sp.Ensemble:
    x, y = sp.data.sample("mnist", 12)
    return sp.Ensemble([models.load("mnist-a"), models.load("mnist-c")], x, y, names=["A", "C"])


def test_targets(problem: sp.Ensemble) -> None:
    truth = problem.truth
    assert torch.equal(aimed(problem, "next", ()).labels, (truth + 1) % 10)
    likely = problem.logits(problem.zeros()).softmax(dim=-1).mean(dim=1)
    least = aimed(problem, "least-likely", ())
    assert torch.equal(least.labels, likely.argmin(dim=1, keepdim=True).expand(-1, 2))
    assert torch.equal(least.truth, truth)
    names = [f"digit {n}" for n in range(10)]
    kept = (truth[:, 0] != 7).nonzero().flatten()
    assert 0 < len(kept) < 12
    for text in ("7", "digit 7"):
        with pytest.warns(UserWarning, match=f"{12 - len(kept)} of 12 rows are left out"):
            seven = aimed(problem, text, names)
        assert torch.equal(seven.rows, kept)
        assert bool((seven.labels == 7).all())
        assert torch.equal(seven.truth, truth[kept])
    with pytest.raises(ValueError, match=r"a class, from 0 to 9 or by its name .* got '10'"):
        aimed(problem, "10", names)
    with pytest.raises(ValueError, match="that all have it"):
        aimed(problem.take((truth[:, 0] == 7).nonzero().flatten()), "7", ())


def test_every_image_of_a_group_has_its_own_least_likely_class(problem: sp.Ensemble) -> None:
    x, y = problem.x.reshape(3, 4, 1, 28, 28), problem.labels[:, 0].reshape(3, 4)
    group = sp.Universal(problem.models[0], x, y)
    logits = problem.models[0](problem.x)
    found = aimed(group, "least-likely", ()).labels
    assert torch.equal(found, logits.argmin(dim=1).reshape(3, 4))


def test_an_aimed_problem_knows_targets_and_true_classes(problem: sp.Ensemble) -> None:
    aim = problem.aim_at((problem.truth + 1) % 10)
    result = sp.attack(aim, sp.linf(0.3), steps=20, targeted=True)
    says = aim.logits(result.delta).argmax(dim=-1)
    assert torch.equal(result.fooled, says == aim.labels)
    assert int(result.success.sum()) > 0
    rates = sp.success_rates(aim, result.delta, targeted=True)
    assert torch.equal(rates.fooled, result.fooled)
    with pytest.raises(ValueError, match="`targeted` must be True for a problem that aims"):
        sp.attack(aim, sp.linf(0.3))
    with pytest.raises(ValueError, match=r"`targets` must have shape \(12, 2\), got \(12,\)"):
        problem.aim_at(aim.labels[:, 0])


def test_the_page_of_an_aimed_result(problem: sp.Ensemble, tmp_path: Path) -> None:
    aim = problem.aim_at((problem.truth + 1) % 10)
    result = sp.attack(aim, sp.linf(0.3), steps=5, targeted=True)
    page = result.report(tmp_path / "aimed.html").read_text(encoding="utf-8")
    assert "The attack was targeted (the class to reach)" in page
    cards = re.findall(r'<li class="card" [^>]*data-row="(\d+)".*?<template>', page, re.S)
    heads = re.findall(r"image (\d+) · <b>(\d+)</b>, aimed at <b>(\d+)</b>", page)
    assert sorted(heads) == sorted(
        (str(row), str(label), str((label + 1) % 10))
        for row, label in enumerate(problem.truth[:, 0].tolist())
    )
    assert len(heads) == len(cards)


def test_every_image_of_a_group_says_its_own_class(problem: sp.Ensemble, tmp_path: Path) -> None:
    x, y = problem.x.reshape(3, 4, 1, 28, 28), problem.labels[:, 0].reshape(3, 4)
    group = aimed(sp.Universal(problem.models[0], x, y), "least-likely", ())
    result = sp.attack(group, sp.linf(0.3), steps=3, targeted=True)
    page = result.report(tmp_path / "group.html").read_text(encoding="utf-8")
    gallery = page.partition('<section id="gallery">')[2]
    shown = re.findall(r"<small>aimed at (\d+)</small>", gallery)
    assert sorted(shown) == sorted(str(each) for each in group.labels.flatten().tolist())


def test_the_command_line_reaches_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], problem: sp.Ensemble
) -> None:
    words = ["attack", "ensemble", "--models", "A,C", "--eps", "0.3", "--limit", "12"]
    words += ["--steps", "12", "--targeted"]
    out = ["--out", tmp_path / "run", "--save-images", tmp_path / "images"]
    assert inside(*words, "3", *out) == 0
    said = capsys.readouterr()
    count = int((problem.truth[:, 0] == 3).sum())
    if count:
        assert f"{count} of 12 rows are left out: their class is 3" in said.err
    told = " ".join(said.out.split())
    assert "The attack was targeted (3)" in told
    assert "makes both models answer 3 at once" in told
    assert "answers 3" in told.partition("ASR among")[0]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "models had right make them both answer 3" in page
    run, tensors = runs.read_results(tmp_path / "run")
    rows = (problem.truth[:, 0] != 3).nonzero().flatten()
    part = problem.take(rows)
    assert run.rows == len(rows)
    assert torch.equal(tensors["labels"], part.truth)
    says = part.logits(tensors["delta"]).argmax(dim=-1)
    assert torch.equal(tensors["fooled"], says == 3)
    assert torch.equal(tensors["wrong"], says != part.truth)
    assert bool((tensors["wrong"] & ~tensors["fooled"]).any()), "else the test says nothing"
    metrics = run.metrics
    assert metrics["asr_all"] == round(100 * (says == 3).all(dim=1).double().mean().item(), 4)
    for k, name in enumerate(("A", "C")):
        right = 100 * (says[:, k] == part.truth[:, k]).double().mean().item()
        assert metrics["accuracy"][name] == round(right, 4)
        assert metrics["reached"][name] == round(100 * (says[:, k] == 3).double().mean().item(), 4)
    assert "--targeted 3" in run.command
    told = json.loads((tmp_path / "images" / "verdicts.json").read_text())
    assert [each["labels"] for each in told] == part.truth.tolist()
    assert inside(*words, "lest-likely", "--out", tmp_path / "x") == 2
    assert "did you mean least-likely?" in capsys.readouterr().err


def test_targets_and_predicted_labels_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="`--labels` must be true with --targeted"):
        EnsembleSettings.load(
            {"models": "A", "eps": 0.1, "targeted": "next", "labels": "predicted"}
        )
