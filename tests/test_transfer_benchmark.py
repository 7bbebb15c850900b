"""The measurement of transfer: what methods may ask, how rows are counted, and what the page says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks import transfer
from benchmarks.transfer_page import COMPARED, Outcome, outcomes, render
from torch import Tensor, nn

import saddlepoint as sp

OURS = [name for name in transfer.METHODS if not name.startswith("torchattacks")]


class Differentiated(nn.Module):
    """Counts the rows that are differentiated."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        self.rows = 0
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return logits

    def _count(self, gradient: Tensor) -> None:
        self.rows += len(gradient)


def work(models: list[nn.Module]) -> transfer.Work:
    generator = torch.Generator().manual_seed(3)
    x = (torch.rand(6, 1, 8, 8, generator=generator) * 255).round() / 255
    with torch.no_grad():
        y = torch.stack([model(x) for model in models]).mean(dim=0).argmax(dim=1)
    return transfer.Work(models, x, y, 0.1, 0)


@pytest.mark.parametrize("name", OURS)
def test_every_method_takes_the_same_gradients_of_every_surrogate(name: str) -> None:
    models = [Differentiated(seed) for seed in range(3)]
    asked = work(list(models))
    found = transfer.METHODS[name](asked)
    assert float((found.images - asked.x).abs().max()) <= 0.1 + 1e-6
    looked = 4  # rows that the look before every attack differentiates
    spent = {model.rows - looked for model in models}
    if "stops" in name:
        assert max(spent) <= transfer.STEPS * 6
        assert found.gradients <= transfer.STEPS * 6
    else:
        assert spent == {transfer.STEPS * 6}
        assert found.gradients == transfer.STEPS * 6


def test_the_judge_refuses_what_has_left_the_ball() -> None:
    models: list[nn.Module] = [Differentiated(seed) for seed in range(4)]
    asked = work(models[1:])
    moved = transfer.Found((asked.x + 0.05).clamp(0, 1), 60)
    cell = transfer.judged(moved, asked, models[0], models[1:])
    rates = sp.success_rates(sp.Ensemble(models, asked.x, asked.y), moved.images - asked.x)
    assert cell["victim"] == "".join(str(int(each)) for each in rates.fooled[:, 0])
    assert cell["surrogates"] == "".join(str(int(each)) for each in rates.fooled[:, 1:].all(dim=1))
    with pytest.raises(ValueError, match=r"`images` must be within 0\.1, got 0\.2"):
        transfer.judged(
            transfer.Found((asked.x + 0.2).clamp(0, 1.2), 60), asked, models[0], models[1:]
        )


def cell(victim: str, surrogates: str = "") -> dict[str, object]:
    gradients = 10 * len(victim)
    return {
        "victim": victim,
        "surrogates": surrogates or victim,
        "gradients": gradients,
        "seconds": 1.0,
    }


def content(rows: dict[str, str]) -> dict[str, object]:
    """One victim, a part of ten images of every method, and one of some methods that is under way."""
    cells = {f"{name}/0": cell(rows.get(name, "1" * 5 + "0" * 5)) for name in OURS}
    cells["attack, min-max/50"] = cell("1" * 10)
    cells["a method of the past/0"] = cell("1" * 10)
    settings = {"first": 6000, "eps": 0.2, "steps": 10, "seed": 0, "torchattacks": "3"}
    case = {"settings": settings, "cpu": "a machine", "cells": cells}
    half = {"settings": settings, "cpu": "a machine", "cells": {"signs, average/0": cell("1" * 10)}}
    return {"cases": {"mnist A": case, "mnist B": half}}


def test_only_images_that_all_methods_have_are_counted() -> None:
    found = outcomes(content({"signs, average": "1000000000"}), transfer.METHODS)
    assert set(found) == {"mnist A"}
    assert set(found["mnist A"]) == set(OURS)
    assert {len(each.victim) for each in found["mnist A"].values()} == {10}
    average, other = found["mnist A"]["signs, average"], found["mnist A"]["signs, min-max"]
    assert (average.rate, other.rate) == (0.1, 0.5)
    assert other.beside(average) == (4, 0)


def test_the_page_says_which_pairs_are_separable_and_which_are_not() -> None:
    many = "0" * 40
    clear = {name: "1" * 40 if "min-max" in name else many for name in OURS}
    page = render(content(clear), "store.json", transfer.METHODS)
    assert "min-max instead of average, signs: helps on MNIST A." in page
    assert "**40, 0 (1.8e-12)**" in page
    same = render(content(dict.fromkeys(OURS, "10" * 20)), "store.json", transfer.METHODS)
    assert "No pair is separable" in same
    assert "of 40 images" in same


def test_every_comparison_is_of_methods_that_are_measured() -> None:
    for _, one, other in COMPARED:
        assert {one, other} <= set(transfer.METHODS)
        if other.startswith("torchattacks"):  # which descends the loss of the mean logits
            assert "mean logits" in one


def test_an_outcome_joins_its_parts() -> None:
    found = Outcome.joined([cell("10"), cell("011")])
    assert found.victim == (True, False, False, True, True)
    assert found.gradients == 10


def test_the_stored_page_is_that_of_the_stored_rows() -> None:
    if not transfer.STORE.exists():
        pytest.skip("nothing is measured")
    store = transfer.Store(transfer.STORE)
    page = render(store.content, transfer.STORE.as_posix(), transfer.METHODS)
    assert Path(transfer.PAGE).read_text(encoding="utf-8") == page
