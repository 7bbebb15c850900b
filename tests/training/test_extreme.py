"""E-AT: draws by running errors, and the whole method beside a loop that follows the paper."""

from __future__ import annotations

import pytest
import torch

import saddlepoint as sp
from saddlepoint import data, streams
from saddlepoint.training import Batches, Recipe, avg_step, train
from saddlepoint.training.extreme import Drawn, RunningErrors
from small_training import assert_equal_bits, bits, network

THREATS = {"linf": sp.linf(0.1), "l2": sp.l2(1.0), "l1": sp.l1(5.0)}
RECIPE = Recipe("test", "sgd", 0.05, epochs=2, weight_decay=0.001)


def loader() -> Batches:
    return Batches(*data.sample("mnist", limit=100), size=32)


def test_threats_are_drawn_in_proportion_to_their_errors() -> None:
    errors = RunningErrors(THREATS)
    errors.errors = {"linf": 0.6, "l2": 0.1, "l1": 0.3}
    drawn = [errors.draw(number) for number in range(4000)]
    for name, chance in {"linf": 0.6, "l2": 0.1, "l1": 0.3}.items():
        spread = (chance * (1 - chance) / 4000) ** 0.5
        assert drawn.count(name) / 4000 == pytest.approx(chance, abs=4 * spread)
    assert drawn[:50] == [errors.draw(number) for number in range(50)]


def test_epochs_and_seeds_have_draws_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    draw = RunningErrors.draw

    def noted(self: RunningErrors, number: int) -> str:
        self.errors = dict.fromkeys(THREATS, 1.0)
        drawn.append(draw(self, number))
        return drawn[-1]

    monkeypatch.setattr(RunningErrors, "draw", noted)
    few, slow = Batches(*data.sample("mnist", limit=60), size=3), Recipe("slow", "sgd", 1e-6, 2)
    for seed in (0, 1):
        train(network(), few, THREATS, method="eat", recipe=slow, steps=1, seed=seed)
    parts = [tuple(drawn[start : start + 20]) for start in range(0, 80, 20)]
    assert len(drawn) == 80
    assert len(set(parts)) == 4


def test_a_threat_that_never_fails_is_not_drawn_beside_one_that_does() -> None:
    errors = RunningErrors(THREATS)
    errors.errors = {"linf": 0.0, "l2": 0.4, "l1": 0.0}
    assert {errors.draw(number) for number in range(200)} == {"l2"}


def test_errors_move_by_what_was_seen_of_the_drawn_threat_alone() -> None:
    errors = RunningErrors(THREATS, memory=0.75)
    assert errors.chances() == pytest.approx(dict.fromkeys(THREATS, 1 / 3))
    errors.update(Drawn("l2", 3.0, 6), Drawn("l2", 0.0, 2))  # 3 of 8, in two processes
    expected = 0.75 + 0.25 * 3 / 8
    assert errors.errors == {"linf": 1.0, "l2": expected, "l1": 1.0}
    assert errors.chances()["l2"] == pytest.approx(expected / (2 + expected))
    errors.update()  # no process had rows
    assert errors.errors["l2"] == expected
    again = RunningErrors(THREATS, memory=0.75)
    again.restore(errors.state())
    assert again.errors == errors.errors


def test_threats_that_never_fail_are_as_likely_as_each_other() -> None:
    errors = RunningErrors(THREATS, memory=0.0)
    for name in THREATS:
        errors.update(Drawn(name, 0.0, 4))
    assert errors.chances() == pytest.approx(dict.fromkeys(THREATS, 1 / 3))


def test_the_method_is_a_loop_of_single_threats() -> None:
    """Errors, chances and steps written out; only the random number itself comes from the same place."""
    model, expected = network(), network()
    for each in (model, expected):
        each[4].p = 0.0  # no dropout, whose numbers a loop of one's own would draw at other times
    history = train(
        model, loader(), THREATS, method="eat", recipe=RECIPE, epochs=1, steps=3, seed=3
    )
    optimizer = torch.optim.SGD(expected.parameters(), 0.05, 0.9, nesterov=True, weight_decay=0.001)
    error, names, counts, count = [1.0, 1.0, 1.0], list(THREATS), [0, 0, 0], 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3 * 2**20)
        batches = list(loader())
    recipe = Recipe("test", "sgd", 0.05, epochs=1, weight_decay=0.001)
    for n, (x, y) in enumerate(batches):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(n / len(batches))
        u = streams.uniform(3 * 2**20 * 2**32 + n, torch.zeros(1, dtype=torch.int64), 0, 1).item()
        i = 0 if u * sum(error) < error[0] else 1 if u * sum(error) < error[0] + error[1] else 2
        alone = {names[i]: THREATS[names[i]]}
        stats = avg_step(expected.train(), optimizer, x, y, alone, steps=3, iteration=n)
        error[i] = 0.9 * error[i] + 0.1 * (1 - stats.accuracy)
        counts[i] += len(x)
        count += len(x)
    assert_equal_bits(bits(model), bits(expected))
    shares = [history[0].stats[f"weight/{name}"] for name in names]
    assert shares == pytest.approx([each / count for each in counts])


def test_a_stopped_training_goes_on_with_the_same_draws(tmp_path) -> None:
    def fit(model, **options):
        options |= {"method": "eat", "recipe": RECIPE, "steps": 2, "seed": 3}
        return train(model, loader(), THREATS, **options)

    whole, parts = network(), network()
    history = fit(whole)

    def stop(progress) -> None:
        if (progress.epoch, progress.step) == (2, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(parts, out=tmp_path, checkpoint_every=1, callback=stop)
    resumed = network()
    assert fit(resumed, out=tmp_path, checkpoint_every=1, resume=True) == history
    assert_equal_bits(bits(resumed), bits(whole))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunningErrors({}), "`threats` must name at least one"),
        (lambda: RunningErrors(THREATS, memory=1.0), r"`memory` must be in \[0, 1\), got 1.0"),
        (
            lambda: train(network(), loader(), THREATS, method="eat", start="warm"),
            "`start` must be 'zero' or 'random' for method 'eat', got 'warm'",
        ),
        (
            lambda: train(network(), loader(), THREATS, method="eat", rule=sp.MinMax()),
            "`rule` must be None unless",
        ),
    ],
)
def test_wrong_arguments(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()
