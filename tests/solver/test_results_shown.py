"""What results and problems say of themselves: one line at a prompt, a small table in a notebook."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
import torch

import saddlepoint as sp
from saddlepoint import models
from saddlepoint.evaluation.suites import attacks_for


@pytest.fixture(scope="module")
def problem() -> sp.Ensemble:
    x, y = sp.data.sample("mnist", 8)
    return sp.Ensemble([models.load("mnist-a"), models.load("mnist-c")], x, y, names=["A", "<C>"])


@pytest.fixture(scope="module")
def result(problem: sp.Ensemble) -> sp.AttackResult:
    return sp.attack(problem, sp.linf(0.12), steps=8)


def test_everything_public_prints_in_one_short_line(
    problem: sp.Ensemble, result: sp.AttackResult
) -> None:
    x, y = problem.x, problem.labels[:, 0]
    group = sp.Universal(problem.models[0], x.reshape(2, 4, 1, 28, 28), y.reshape(2, 4))
    views = sp.Transformed(problem.models[0], [sp.transforms.hflip, sp.transforms.vflip], x, y)
    rates = sp.success_rates(problem, result.delta)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    stats = sp.ampgd_step(network, optimizer, x, y, {"linf": sp.linf(0.1)}, steps=1, iteration=0)
    shown = [
        *(problem, group, views, result, result.history, result.asked, rates, stats),
        sp.linf(torch.rand(64)),
        sp.Page({"fooled": torch.zeros(500, 3)}, 1.5),
        sp.WarmStart(stats.perturbations, stats.row_weights),
        sp.RandomStart(0, torch.arange(500)),
        sp.Target(problem.models[0], x, y, torch.arange(8), sp.linf(0.1), seed=0),
    ]
    for each in shown:
        assert "\n" not in repr(each), repr(each)
        assert len(repr(each)) < 300, repr(each)
        assert repr(each).startswith(type(each).__name__ + "(")
    assert repr(problem) == "Ensemble(8 rows of 1x28x28, 2 domains: A, <C>)"
    assert (
        repr(group) == "Universal(2 rows of 1x28x28, 4 domains: image 1, image 2, image 3, image 4)"
    )
    assert repr(result.history) == "History(9 iterates, 8 rows, 2 domains)"
    assert repr(sp.linf(torch.tensor([0.1, 0.3]))) == (
        "LpBall(p=inf, eps=float32 tensor (2,) from 0.1 to 0.3, unit='entry')"
    )
    assert repr(sp.l2(3.0)) == "LpBall(p=2, eps=3.0, unit='entry')"
    alone = sp.attack(sp.Ensemble([problem.models[0]], x, y), sp.linf(0.1), steps=1)
    assert repr(alone.history) == "History(2 iterates, 8 rows, 1 domain)"
    assert "8 rows, 1 domain: " in repr(sp.success_rates(alone.asked.problem, alone))


def test_data_and_what_is_known_of_networks_print_in_one_line() -> None:
    x, y = sp.data.sample("mnist", 20)
    images = sp.data.LabelledImages(x, y, sp.data.class_names("mnist"))
    assert repr(images) == "LabelledImages(20 images of 1x28x28, 10 classes: 0, 1, 2, ...)"
    found, labels, names = images  # still a tuple
    assert found is x
    assert labels is y
    assert len(names) == 10
    one = sp.data.from_dataset([(torch.full((3, 4, 5), 0.5), 0)], classes=["<cat>"])
    assert repr(one) == "LabelledImages(1 image of 3x4x5, 1 class: <cat>)"
    assert repr(models.card("mnist-a")) == (
        "Card(A for mnist 1x28x28, 10 classes: 98.2 % right, 12.2 % under FGSM 0.2)"
    )
    done = sp.TrainingProgress(1, 2, 4, 4, {"loss": 2.68431735, "accuracy": 0.375}, {"union": 0.25})
    assert repr(done) == (
        "TrainingProgress(epoch 1/2, step 4/4: loss 2.684, accuracy 0.375; held out union 0.25)"
    )


def test_functions_print_by_name_and_nothing_by_its_address() -> None:
    views = [*sp.transforms.paper_family(), *sp.transforms.paper_random_family()]
    threat = sp.Threat(sp.linf(0.3), 0.1, sp.directions.sign)
    for each in [*views, threat, *attacks_for("quick", math.inf)]:
        assert " at 0x" not in repr(each), repr(each)
    assert repr(threat) == (
        "Threat(ball=LpBall(p=inf, eps=0.3, unit='entry'), step_size=0.1, direction=sign)"
    )


def test_many_domains_are_not_all_named() -> None:
    many = [torch.nn.Identity().eval()] * 9
    problem = sp.Ensemble(many, torch.rand(2, 3), torch.tensor([0, 1]))
    assert repr(problem) == "Ensemble(2 rows of 3, 9 domains: model 1, model 2, model 3, ...)"


def test_rates_say_the_rate_among_correct_rows_first() -> None:
    fooled = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    right = torch.tensor([[True, True], [True, True], [False, True], [True, True]])
    rates = sp.SuccessRates(fooled, right, names=("A", "B"))
    assert repr(rates) == (
        "SuccessRates(4 rows, 2 domains: among correct 33.3 %, all 50.0 %, mean 62.5 %)"
    )
    assert repr(sp.SuccessRates(fooled, ~right & False)).endswith(
        "(4 rows, 2 domains: among correct -, all 50.0 %, mean 62.5 %)"
    )


def test_a_result_is_a_small_table_in_a_notebook(
    problem: sp.Ensemble, result: sp.AttackResult
) -> None:
    html = result._repr_html_()
    assert html.startswith("<table")
    assert html.count("<tr>") == 4
    assert "&lt;C&gt;" in html
    assert "<C>" not in html
    for k, name in enumerate(("A", "&lt;C&gt;")):
        fooled = int(result.fooled[:, k].sum())
        weight = result.weights[:, k].mean().item()
        assert f"<td>{name}</td><td>{fooled} of 8</td><td>{weight:.2f}</td>" in html
    assert f"<td>all at once</td><td>{int(result.success.sum())} of 8</td>" in html
    held = result.fooled.sum(dim=0)
    hardest = problem.names[int(held.argmin())] if held[0] != held[1] else None
    assert hardest is not None  # else the test says nothing
    assert f"hardest: {hardest}".replace("<C>", "&lt;C&gt;") in html


def test_ties_and_places_in_a_group_are_not_the_hardest(problem: sp.Ensemble) -> None:
    tied = sp.Ensemble([problem.models[0]] * 2, problem.x, problem.labels[:, 0])
    assert "hardest" not in sp.attack(tied, sp.linf(0.1), steps=2)._repr_html_()
    x, y = problem.x, problem.labels[:, 0]
    group = sp.Universal(problem.models[0], x.reshape(2, 4, 1, 28, 28), y.reshape(2, 4))
    result = sp.attack(group, sp.linf(0.1), steps=2)
    assert "hardest" not in result._repr_html_()
    # One place is fooled less often than the others, and that still means nothing.
    one_less = torch.tensor([[True, True, True, False]]).expand(2, 4)
    rates = sp.success_rates(group, result)
    assert rates.grouped
    assert not sp.success_rates(problem, problem.zeros()).grouped
    assert "hardest" not in dataclasses.replace(rates, fooled=one_less)._repr_html_()
    assert "hardest" in dataclasses.replace(rates, fooled=one_less, grouped=False)._repr_html_()
    html = dataclasses.replace(rates, fooled=one_less)._repr_html_()
    assert "image 1" not in html
    assert "<td>images of the groups</td>" in html
    assert "<td>75.0 %</td><td>-</td>" in html


def test_rates_and_accuracies_are_tables_too(problem: sp.Ensemble) -> None:
    rates = sp.success_rates(problem, problem.zeros())
    assert rates.names == ("A", "<C>")
    low, high = (100 * end for end in rates.intervals()[0])
    html = rates._repr_html_()
    assert f"<td>A</td><td>100.0 %</td><td>0.0 %</td><td>{low:.1f} to {high:.1f} %</td>" in html
    correct, broken = torch.tensor([True, True, True, False]), torch.tensor([1, 0, 0, 0]).bool()
    balls = {"linf": sp.linf(0.3), "l2": sp.l2(1.0)}
    outcome = sp.Outcome("linf", "pgd", correct, broken, torch.full((4,), 0.1))
    robust = sp.RobustAccuracy(balls, correct, (outcome,))
    html = robust._repr_html_()
    assert "<td>linf</td><td>50.0 %</td><td>15.0 to 85.0 %</td>" in html
    assert "<td>union</td><td>50.0 %</td>" in html
    assert "hardest: linf" in html


def test_a_result_knows_what_was_asked_and_leaves_the_models_behind_when_pickled(
    problem: sp.Ensemble, result: sp.AttackResult
) -> None:
    assert result.asked is not None
    assert result.asked.problem is problem
    assert result.asked.ball == sp.linf(0.12)
    assert isinstance(result.asked.rule, sp.MinMax)
    again = pickle.loads(pickle.dumps(result))
    assert again.asked is None
    assert torch.equal(again.delta, result.delta)
    assert "domain 1" in again._repr_html_()
    assert dataclasses.replace(result, precision=("x",)).asked is result.asked
    grid = sp.attack(problem, sp.linf(0.12), steps=2, quantize=256, batch_size=3)
    assert grid.asked is not None
    assert grid.asked.problem.levels == 256


@pytest.mark.parametrize("batch_size", [3, 8])
def test_a_callback_hears_of_rows_as_they_are_fooled(problem: sp.Ensemble, batch_size: int) -> None:
    seen: list[sp.Progress] = []
    options = {"steps": 8, "restarts": 2, "batch_size": batch_size}
    result = sp.attack(problem, sp.linf(0.12), callback=seen.append, **options)
    fooled, fractions = [p.fooled for p in seen], [p.fraction for p in seen]
    assert fooled == sorted(fooled)
    assert fooled[-1] == int(result.success.sum()) > 0
    first = next(p for p in seen if p.fooled)
    assert first.done < 8, "told before its batch was done"
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    # What is told in the middle is what the iterates had: rows whose evaluations are spent by then.
    spent = result.num_forwards[:batch_size][result.success[:batch_size]]
    for progress in seen:
        if progress.done == 0 and progress.restart == 0:
            assert progress.fooled == int((spent <= progress.step + 1).sum())


def test_apgda_tells_what_its_last_iterate_fools(problem: sp.Ensemble) -> None:
    seen: list[sp.Progress] = []
    result = sp.apgda(problem, sp.linf(0.2), steps=5, callback=seen.append)
    assert [p.step for p in seen] == [1, 2, 3, 4, 5, 5]
    margins = result.history.losses[1:].amax(dim=2) < 0
    assert [p.fooled for p in seen[:-1]] == margins.sum(dim=1).tolist()
    assert math.isclose(seen[1].fraction, 2 / 6)
