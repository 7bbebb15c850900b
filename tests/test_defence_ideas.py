"""The study of ideas for a stronger inner attack: each does what it says, and the table is what is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.defence import ideas
from benchmarks.stores import StoreError
from benchmarks.studies import Study
from torch import nn

import saddlepoint as sp
from saddlepoint.evaluation import OurAttack, robust_accuracy
from saddlepoint.training.ampgd import perturb

THREATS = {
    "linf": sp.Threat(sp.linf(0.1)),
    "l2": sp.Threat(sp.l2(1.0)),
    "l1": sp.Threat(sp.l1(3.0)),
}
TINY = {"limit": 220, "held_out": 20, "epochs": 1, "steps": 2, "ramp": 1}


@pytest.fixture
def batch() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = sp.models.build("mnist_cnn_small", channels=1, size=28)
    return model, *sp.data.sample("mnist", limit=6)


def attacked(batch: Any, idea: ideas.Idea, iteration: int = 1) -> torch.Tensor:
    return ideas.attacked(*batch, THREATS, idea, 4, iteration)


def test_the_attack_as_it_is_is_that_of_a_training_step(batch: Any) -> None:
    found = attacked(batch, ideas.Idea())
    whole = perturb(*batch, THREATS, iteration=1, steps=4).transpose(0, 1)
    assert torch.allclose(found, whole, atol=1e-6)


def test_the_attack_of_msd_is_that_of_its_training_step(batch: Any) -> None:
    model, x, y = batch
    found = ideas.attacked_as_one(model, x, y, THREATS, ideas.Idea(), 4, 1)
    loss = nn.functional.cross_entropy(model(x + found[0]), y).item()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    stats = sp.msd_step(model, optimizer, x, y, THREATS, steps=4, iteration=1)
    assert found.shape == (1, *x.shape)
    assert stats.loss == pytest.approx(loss, rel=1e-5)
    proposed = stats.perturbations.transpose(0, 1)
    assert bool((proposed == found).flatten(2).all(dim=2).any(dim=0).all())
    for idea in (ideas.Idea(margin=True), ideas.Idea(random=True)):
        other = ideas.attacked_as_one(model, x, y, THREATS, idea, 4, 1)
        assert not torch.equal(other, found)


def test_ideas_are_given_to_every_method_that_can_have_them() -> None:
    for idea in ideas.IDEAS.values():
        alone = idea.sizes or bool(idea.shares)  # threats that attack each for itself
        assert ("MSD" in idea.methods) == (not alone and not idea.early)
        assert ({"MAX", "AVG"} <= set(idea.methods)) == (not idea.early)
        assert "AMPGD" in idea.methods


def test_an_idea_changes_what_it_says_and_nothing_else(batch: Any) -> None:
    plain = attacked(batch, ideas.Idea())
    for idea, changed in (
        (ideas.Idea(random=True), {"linf", "l2", "l1"}),
        (ideas.Idea(margin=True), {"linf", "l2", "l1"}),
        (ideas.Idea(sizes=True), {"l1"}),
        (ideas.Idea(shares=(("linf", 0.5), ("l1", 1.5))), {"linf", "l1"}),
    ):
        found = attacked(batch, idea)
        for k, (name, threat) in enumerate(THREATS.items()):
            assert torch.equal(found[k], plain[k]) == (name not in changed), (idea, name)
            inside = threat.ball.project(found[k], -batch[1], 1 - batch[1])
            assert torch.allclose(found[k], inside, atol=1e-5)


def test_of_three_sizes_the_worst_of_every_image_is_kept(batch: Any) -> None:
    model, x, y = batch
    alone = [attacked(batch, ideas.Idea(), iteration=i)[2] for i in range(3)]
    losses = nn.functional.cross_entropy
    each = torch.stack([losses(model(x + d), y, reduction="none") for d in alone])
    kept = attacked(batch, ideas.Idea(sizes=True))[2]
    assert torch.allclose(losses(model(x + kept), y, reduction="none"), each.amax(dim=0), atol=1e-5)


def test_random_starts_differ_from_step_to_step(batch: Any) -> None:
    idea = ideas.Idea(random=True)
    assert not torch.equal(attacked(batch, idea, 1)[0], attacked(batch, idea, 4)[0])
    assert torch.equal(attacked(batch, idea, 1), attacked(batch, idea, 1))


def test_the_margin_is_large_where_it_is_hard() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    assert ideas.margin(logits, torch.tensor([0, 1])).tolist() == [-1.0, 2.0]
    assert ideas.margin(1000 * logits, torch.tensor([0, 1])).tolist() == [-1000.0, 2000.0]


def test_weights_are_those_of_the_method() -> None:
    losses = torch.tensor([[1.0, 0.2], [1.2, 0.2], [0.1, 0.2]])
    assert torch.allclose(ideas.weighed("AVG", losses, 5), torch.full((3, 2), 1 / 3))
    assert ideas.weighed("MAX", losses, 5)[:, 0].tolist() == [0.0, 1.0, 0.0]
    found = ideas.weighed("AMPGD", losses, 5)
    assert torch.allclose(found.sum(dim=0), torch.ones(2))
    assert torch.allclose(found[:, 1], torch.full((3,), 1 / 3))
    # In the end w maximises sum w_i f_i - gamma/2 ||w - 1/K||^2: the projection of 1/K + f / gamma.
    limit = sp.project_simplex(1 / 3 + losses.T / 0.5)
    assert torch.allclose(ideas.weighed("AMPGD", losses, 60).T, limit, atol=1e-5)


def test_what_an_idea_costs_is_counted_in_gradients(
    monkeypatch: pytest.MonkeyPatch, batch: Any
) -> None:
    counts: list[int] = []

    def counting(*given: Any, steps: int, **more: Any) -> torch.Tensor:
        counts.append(steps)
        return perturb(*given, steps=steps, **more)

    monkeypatch.setattr(ideas, "perturb", counting)
    for idea in ideas.IDEAS.values():
        counts.clear()
        ideas.attacked(*batch, THREATS, idea, 6, 1)
        assert sum(counts) / (3 * 6) == pytest.approx(idea.cost)


def test_what_is_measured_is_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ideas, "LIKE", replace(ideas.LIKE, shared={**ideas.LIKE.shared, **TINY}))
    monkeypatch.setattr(ideas, "METHODS", ("AMPGD", "MAX"))
    names = ("as it is", "l1 radius 12")
    monkeypatch.setattr(ideas, "IDEAS", {name: ideas.IDEAS[name] for name in names})
    monkeypatch.setattr(
        sp.data, "load", lambda _, __, limit=300: sp.data.sample("mnist", limit=limit)
    )
    seen: list[dict[str, float]] = []

    def short(*given: Any) -> sp.RobustAccuracy:
        _, _, _, balls, _ = given
        seen.append({name: float(ball.eps) for name, ball in balls.items()})
        weak = {p: [OurAttack(steps=2)] for p in (torch.inf, 2, 1)}
        return robust_accuracy(*given[:4], weak)

    shown, store = tmp_path / "page.md", tmp_path / "store.json"
    shown.write_text("before\n<!-- ideas -->\n<!-- end -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(ideas.sp, "robust_accuracy", short)
    words = ["--store", str(store), "--page", str(shown), "--seeds", "1", "--images", "30"]
    assert ideas.STUDY.main(words, lambda _: None) == 0
    text = shown.read_text(encoding="utf-8")
    assert text.count("AMPGD") == text.count("MAX") == 2
    assert "l1 radius 12 | 1.00" in text
    assert all(each["l1"] == 10 for each in seen)  # tested with the true radius
    monkeypatch.setattr(ideas, "trained", None)  # nothing is trained twice
    assert ideas.STUDY.main(words, lambda _: None) == 0
    assert shown.read_text(encoding="utf-8") == text
    changed = {"as it is": ideas.Idea(), "l1 radius 12": ideas.Idea(radii=(("l1", 13.0),))}
    monkeypatch.setattr(ideas, "IDEAS", changed)
    with pytest.raises(StoreError, match="must hold l1 radius 12 as it is now"):
        ideas.STUDY.main(words, lambda _: None)


def test_random_starts_are_those_of_the_training(batch: Any) -> None:
    idea = ideas.Idea(random=True)
    first, again, other = (ideas.attacked(*batch, THREATS, idea, 4, 1, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_what_two_processes_find_is_all_kept(tmp_path: Path) -> None:
    """The second wrote what it had read before the first had written."""
    store, shown = tmp_path / "store.json", tmp_path / "page.md"
    shown.write_text("<!-- m -->\n<!-- end -->\n")

    def study(name: str, inside: Any) -> Study:
        def measure(content: dict[str, Any], keep: Any) -> None:
            found = content.setdefault("found", {})
            inside()
            for number in (1, 2):
                found[f"{name}{number}"] = {"deep": {name: number}}
                keep("")

        fixed: dict[str, Any] = {"about": "", "key": "found", "page": shown, "mark": "<!-- m -->"}
        return Study(
            **{"name": "n", "store": store, "settings": {"seeds": 1}, **fixed},
            measure=measure,
            render=lambda content: " ".join(content["found"]) + "\n",
        )

    words = ["--store", str(store), "--page", str(shown)]
    inner = study("b", lambda: None)
    study("a", lambda: inner.main(words, lambda _: None)).main(words, lambda _: None)
    assert set(json.loads(store.read_text())["found"]) == {"a1", "a2", "b1", "b2"}
    assert shown.read_text().split()[3:7] == ["a1", "b1", "b2", "a2"]
