"""Training against threats: every method, validation, what an interruption leaves, and the command."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import typing

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import saddlepoint
from folders import ROOT
from saddlepoint import LpBall, MinMax, WorstCase, ampgd_step, cli, data, models, training
from saddlepoint.files import read_tensors
from saddlepoint.training import (
    METHODS,
    Batches,
    RandomStart,
    Recipe,
    Threat,
    ZeroStart,
    perturb,
    recipe_for,
    train,
    validate,
)
from saddlepoint.training.session import BEST, HISTORY
from small_training import assert_equal_bits, bits, network

THREATS = {"linf": LpBall(math.inf, 0.1), "l2": LpBall(2, 1.0)}
SGD = Recipe("test", "sgd", 0.05, epochs=3)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def loader(limit=100):
    return Batches(*data.sample("mnist", limit=limit), size=32, flip=True)


def numbered(limit=100):
    return Batches(*data.sample("mnist", limit=limit), size=32, numbered=True)


def watch_sizes(monkeypatch, seen):
    """Appends to `seen` how large the ball of p = 2 is in which each inner attack begins, in radii."""

    def spy(self, delta, gradient, weight, lower, upper, number, plan):
        if self.ball.p == 2 and number == 0:
            seen.append(plan.ball(LpBall(2, 1.0), 0).eps)
        return ascend(self, delta, gradient, weight, lower, upper, number, plan)

    ascend = Threat.ascend
    monkeypatch.setattr(Threat, "ascend", spy)


def held_out():
    x, y = data.sample("mnist")
    return x[500:560], y[500:560]


def fit(model, method="ampgd", **arguments):
    arguments = {"recipe": SGD, "steps": 2, "seed": 3} | arguments
    if method == "clean":
        arguments.pop("steps")
    threats = None if method == "clean" else THREATS
    return train(model, arguments.pop("loader", loader()), threats, method=method, **arguments)


class TestMethods:
    def test_names(self):
        assert (
            *("ampgd", "ampgd-paper", "avg", "max", "msd", "eat", "linf", "l2", "l1", "clean"),
        ) == METHODS

    def test_without_a_name_it_is_ampgd_with_threats_and_clean_without(self):
        for threats, method in ((THREATS, "ampgd"), (None, "clean")):
            model, expected = network(), network()
            history = train(model, loader(), threats, recipe=SGD, epochs=1)
            assert history == train(
                expected, loader(), threats, method=method, recipe=SGD, epochs=1
            )
            assert_equal_bits(bits(model), bits(expected))

    def test_a_ball_is_the_threat_with_its_default_steps(self, tmp_path):
        model, expected = network(), network()
        named = {name: Threat(ball) for name, ball in THREATS.items()}
        options = {"recipe": SGD, "epochs": 1, "steps": 2, "validation": held_out()}
        history = train(model, loader(), THREATS, out=tmp_path, **options)
        assert train(expected, loader(), named, **options) == history
        assert_equal_bits(bits(model), bits(expected))
        # It is the same run, too.
        assert train(network(), loader(), named, out=tmp_path, resume=True, **options) == history

    @pytest.mark.parametrize("method", ["ampgd", "avg", "max", "msd"])
    def test_reports_losses_accuracies_and_weights_of_every_threat(self, method):
        history = fit(network(), method, epochs=1)
        stats = history[0].stats
        for kind in ("loss", "accuracy", "weight"):
            assert {f"{kind}/linf", f"{kind}/l2"} <= set(stats)
        assert stats["weight/linf"] + stats["weight/l2"] == pytest.approx(1)

    def test_each_method_is_its_step_function(self):
        """One batch, one epoch: `train` does what a loop of one's own would do."""
        x, y = data.sample("mnist", limit=16)
        steps = {
            "avg": (training.avg_step, THREATS, {}),
            "max": (training.max_step, THREATS, {}),
            "msd": (training.msd_step, THREATS, {}),
            "ampgd": (training.ampgd_step, THREATS, {"rule": MinMax(2.0, 0.1)}),
            "l2": (training.avg_step, {"l2": THREATS["l2"]}, {}),
            "linf": (training.avg_step, {"linf": THREATS["linf"]}, {}),
        }
        for method, (step, threats, options) in steps.items():
            model, expected = network(), network()
            for each in (model, expected):
                each[4].p = 0.0
            rate = SGD.learning_rate_at(0)
            optimizer = torch.optim.SGD(expected.parameters(), rate, 0.9, nesterov=True)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3 * 2**20)
                ((x_, y_),) = Batches(x, y, 16)
            options |= {"steps": 2, "mix": 0.7}
            step(expected.train(), optimizer, x_, y_, threats, iteration=0, **options)
            fit(model, method, loader=Batches(x, y, 16), epochs=1, **options)
            assert_equal_bits(bits(model), bits(expected))

    def test_radii_rise_during_the_ramp(self, monkeypatch):
        seen = []

        def spy(model, optimizer, x, y, threats, **options):
            seen.append(threats["l2"].ball.eps)
            return ampgd_step(model, optimizer, x, y, threats, **options)

        monkeypatch.setattr(training.methods, "ampgd_step", spy)
        fit(network(), epochs=3, ramp=2.0)
        assert seen == pytest.approx([i / 8 for i in range(1, 9)] + [1.0] * 4)

    @pytest.mark.parametrize("method", ["ampgd", "avg", "max", "msd", "l2"])
    def test_balls_have_three_sizes_in_turn_whatever_the_epoch(self, monkeypatch, method):
        seen = []

        watch_sizes(monkeypatch, seen)
        fit(network(), method, epochs=2, ramp=1.0)
        assert seen == [3, 6, 12, 3, 6, 12, 3, 6]  # four steps per epoch

    def test_a_step_of_ones_own_is_told_the_iteration_also_when_resumed(self, tmp_path):
        seen = []

        def step(model, optimizer, x, y, iteration):
            seen.append(iteration)
            if len(seen) == 7:
                raise KeyboardInterrupt
            return {"loss": 0.0}

        options = {"method": step, "recipe": SGD, "out": tmp_path, "checkpoint_every": 1}
        with pytest.raises(KeyboardInterrupt):
            train(network(), loader(), **options)
        train(network(), loader(), resume=True, **options)
        assert seen == [*range(7), *range(6, 12)]

    def test_a_random_start_is_another_one_at_every_step(self, monkeypatch):
        seen = []

        def spy(*arguments, start, **options):
            seen.append(start.seed)
            return ampgd_step(*arguments, start=start, **options)

        monkeypatch.setattr(training.methods, "ampgd_step", spy)
        fit(network(), epochs=2, start="random")
        assert len(set(seen)) == 8
        again = list(seen)
        seen.clear()
        fit(network(), epochs=2, start="random")
        assert seen == again

    def test_a_warm_start_goes_on_from_where_the_image_was_left(self, monkeypatch):
        x, y = data.sample("mnist", limit=5)
        starts, ends = [], []

        def spy(model, optimizer, images, labels, threats, *, start, **options):
            rows = [next(i for i in range(5) if torch.equal(x[i], image)) for image in images]
            threats = {name: Threat(ball) for name, ball in THREATS.items()}
            box = -images, 1 - images
            delta = start.delta(list(threats.values()), *box).transpose(0, 1)
            weights = start.weights(torch.full((len(rows), 2), 0.5))
            starts.append({n: (delta[b], weights[b]) for b, n in enumerate(rows)})
            stats = ampgd_step(model, optimizer, images, labels, threats, start=start, **options)
            found = zip(rows, stats.perturbations, stats.row_weights, strict=True)
            ends.append({n: (delta, w) for n, delta, w in found})
            return stats

        monkeypatch.setattr(training.methods, "ampgd_step", spy)
        batches = Batches(x, y, 2, numbered=True)
        fit(network(), loader=batches, epochs=2, start="warm", steps=4, rule=MinMax(3.0, 0.1))
        first, second = (
            {k: v for part in starts[i : i + 3] for k, v in part.items()} for i in (0, 3)
        )
        left = {k: v for part in ends[:3] for k, v in part.items()}
        for n in range(5):
            assert not first[n][0].any()
            assert first[n][1].tolist() == [0.5, 0.5]
            torch.testing.assert_close(second[n][0], left[n][0])
            torch.testing.assert_close(second[n][1], left[n][1])
            assert left[n][0].abs().max() > 0.05
        assert any((w - 0.5).abs().max() > 0.01 for _, w in left.values())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"threats": None}, "`threats` must name at least one threat for method 'ampgd'"),
            ({"threats": {}}, "`threats` must name at least one threat for method 'ampgd'"),
            ({"method": "magic"}, "`method` must be one of ampgd, ampgd-paper, avg,"),
            ({"method": 3}, "`method` must be one of ampgd, .*, or a step function, got 3"),
            ({"method": "l1"}, "exactly one threat of norm p = 1"),
            ({"method": "avg", "rule": WorstCase()}, "`rule` must be None unless"),
            ({"method": "clean"}, "`threats` must be None for method 'clean'"),
            ({"method": "clean", "threats": None, "steps": 3}, "`steps` is an option of ampgd"),
            ({"start": "hot"}, "`start` must be 'zero', 'random' or 'warm'"),
            ({"ramp": -1.0}, "`ramp` must be >= 0"),
            ({"checkpoint_every": 0}, "`checkpoint_every` must be >= 1"),
            ({"validation": (torch.zeros(0, 1), torch.zeros(0))}, "`validation` must be images"),
        ],
    )
    def test_wrong_arguments(self, arguments, message):
        arguments = {"method": "ampgd", "threats": THREATS} | arguments
        with pytest.raises(ValueError, match=message):
            train(network(), loader(), **arguments)


class TestRecipes:
    def test_the_papers_two_schedules(self):
        mnist = recipe_for("paper", "mnist", "mnist_cnn", adversarial=True)
        rates = [mnist.learning_rate_at(t) for t in (0, 3, 6, 10.5, 15)]
        assert rates == pytest.approx([0, 5e-4, 1e-3, 5e-4, 0])
        assert (mnist.optimizer, mnist.epochs) == ("adam", 15)
        cifar = recipe_for("paper", "cifar10", "preact_resnet18", adversarial=True)
        rates = [cifar.learning_rate_at(t) for t in (0, 10, 20, 30, 40, 45, 50)]
        assert rates == pytest.approx([0, 0.05, 0.1, 0.0525, 0.005, 0.0025, 0])
        assert (cifar.epochs, cifar.momentum, cifar.weight_decay) == (50, 0.9, 5e-4)
        optimizer = cifar.make_optimizer(nn.Linear(1, 1))
        assert isinstance(optimizer, torch.optim.SGD)
        assert not optimizer.defaults["nesterov"]

    @pytest.mark.parametrize("points", [(), ((0, 1.0),), ((0, 1.0), (0.5, 1.0)), ((1, 0), (0, 1))])
    def test_wrong_points(self, points):
        with pytest.raises(ValueError, match="`points` must have times that rise from 0 to 1"):
            Recipe("x", "sgd", 0.1, 2, schedule="linear", points=points)

    def test_fast_recipes(self):
        assert recipe_for("fast", "mnist", "A", adversarial=True).epochs <= 10
        # Measured: the small network of the results table learns faster with more.
        rates = [
            recipe_for("fast", "mnist", name, adversarial=True).learning_rate
            for name in ("mnist_cnn", "mnist_cnn_small")
        ]
        assert rates == [0.002, 0.005]

    @pytest.mark.parametrize("recipe", ["fast", "paper"])
    @pytest.mark.parametrize("model", ["C", "preact_resnet18", "preact_resnet_small"])
    def test_cifar10_is_padded_cropped_and_mirrored_as_in_the_cited_code(self, recipe, model):
        found = recipe_for(recipe, "cifar10", model, adversarial=True)
        assert (found.flip, found.shift, found.border) == (True, 4, "mirrored")
        digits = recipe_for(recipe, "mnist", "mnist_cnn_small", adversarial=True)
        assert (digits.flip, digits.shift) == (False, 0)

    def test_unknown_recipes(self):
        with pytest.raises(ValueError, match="`recipe` must be 'fast' or 'paper'"):
            recipe_for("slow", "mnist", "A", adversarial=True)


class TestValidation:
    def test_counts_by_hand(self):
        # Logits (x_0, x_1): the margin of a row is |x_0 - x_1|, and linf eps moves it by at most 2 eps.
        model = nn.Linear(2, 2, bias=False)
        nn.init.eye_(model.weight)
        x = torch.tensor([[0.9, 0.1], [0.6, 0.5], [0.5, 0.45], [0.2, 0.7]])
        y = torch.tensor([0, 0, 0, 0])
        threats = {"small": Threat(LpBall(math.inf, 0.04)), "large": Threat(LpBall(2, 0.5))}
        found = validate(model, x, y, threats, batch_size=3)
        assert found == {"clean": 0.75, "small": 0.5, "large": 0.25, "union": 0.25}

    def test_restarts_only_find_more_and_do_not_depend_on_the_batches(self):
        model = models.load("mnist-a")
        x, y = (t[:200] for t in data.sample("mnist"))
        # One short step: from zero it stays near, from a random point it can reach the boundary.
        threats = {
            "linf": Threat(LpBall(math.inf, 0.1), 0.02),
            "l2": Threat(LpBall(2, torch.linspace(0.5, 1.5, 200)), 0.3),
        }
        starts = [ZeroStart(), *(RandomStart(seed) for seed in (1, 2, 3))]
        not_fooled = torch.ones(200, 2, dtype=torch.bool)
        for start in starts:
            delta = perturb(model, x, y, threats, steps=1, start=start, iteration=0)
            logits = model((x[:, None] + delta).flatten(0, 1))
            not_fooled &= logits.argmax(dim=1).view(200, 2) == y[:, None]
        clean = model(x).argmax(dim=1) == y
        found = validate(model, x, y, threats, steps=1, restarts=4, batch_size=200)
        assert found["linf"] == pytest.approx(not_fooled[:, 0].float().mean().item())
        assert found["l2"] == pytest.approx(not_fooled[:, 1].float().mean().item())
        union = (not_fooled.all(dim=1) & clean).float().mean().item()
        assert found["union"] == pytest.approx(union)
        assert union < validate(model, x, y, threats, steps=1, batch_size=200)["union"]
        assert validate(model, x, y, threats, steps=1, restarts=4, batch_size=33) == found
        with pytest.raises(ValueError, match="`restarts` must be >= 1"):
            validate(model, x, y, THREATS, restarts=0)

    def test_an_answer_that_is_not_a_number_is_wrong(self):
        class Broken(nn.Module):
            """Right, but for bright images, about which it says nothing."""

            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.eye(2))

            def forward(self, x):
                return (x @ self.weight).masked_fill(x.sum(dim=1, keepdim=True) > 1.2, math.nan)

        x = torch.tensor([[0.9, 0.1], [0.9, 0.5], [0.9, 0.29]])
        found = validate(Broken(), x, torch.tensor([0, 0, 0]), {"linf": LpBall(math.inf, 0.01)})
        assert found == pytest.approx({"clean": 2 / 3, "linf": 2 / 3, "union": 2 / 3})

    def test_the_model_is_left_alone(self):
        model = network().train()
        before = bits(model)
        validate(model, *held_out(), THREATS, steps=2)
        assert all(module.training for module in model.modules())
        assert_equal_bits(bits(model), before)
        assert all(p.grad is None for p in model.parameters())

    def test_every_epoch_is_validated_and_the_best_is_kept(self, tmp_path, monkeypatch):
        scores = iter([0.2, 0.5, 0.5, 0.3])
        seen = []

        def validation(model, *arguments, **options):
            seen.append(bits(model))
            return {"clean": 0.9, "linf": 0.6, "l2": 0.7, "union": next(scores)}

        monkeypatch.setattr(training.session, "validate", validation)
        model = network()
        history = fit(model, epochs=4, validation=held_out(), out=tmp_path)
        assert [each.validation["union"] for each in history] == [0.2, 0.5, 0.5, 0.3]
        assert_equal_bits(bits(model), seen[1])  # the first of equals
        best = training.checkpoints.read_model(tmp_path / BEST).tensors
        assert_equal_bits(best, seen[1])
        lines = [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()]
        assert [line["validation"]["union"] for line in lines] == [0.2, 0.5, 0.5, 0.3]
        assert lines[0]["stats"] == history[0].stats

    def test_of_epochs_that_withstand_nothing_the_most_accurate_is_kept(self, monkeypatch):
        accuracies, seen = iter([0.8, 0.95, 0.9]), []

        def validation(model, *arguments, **options):
            seen.append(bits(model))
            return {"clean": next(accuracies), "linf": 0.0, "l2": 0.1, "union": 0.0}

        monkeypatch.setattr(training.session, "validate", validation)
        model = network()
        fit(model, epochs=3, validation=held_out())
        assert_equal_bits(bits(model), seen[1])

    @pytest.mark.parametrize(("method", "best"), [("linf", 2), ("l2", 0), ("avg", 1)])
    def test_the_best_epoch_is_best_at_what_the_method_trains_for(self, monkeypatch, method, best):
        found = [
            {"clean": 0.9, "linf": linf, "l2": l2, "union": union}
            for linf, l2, union in ((0.1, 0.5, 0.0), (0.2, 0.3, 0.2), (0.4, 0.1, 0.1))
        ]
        scores, seen = iter(found), []

        def validation(model, *arguments, **options):
            seen.append(bits(model))
            return next(scores)

        monkeypatch.setattr(training.session, "validate", validation)
        model = network()
        fit(model, method, epochs=3, validation=held_out())
        assert_equal_bits(bits(model), seen[best])

    def test_the_last_call_of_an_epoch_knows_the_accuracy(self):
        calls = []
        fit(network(), epochs=2, validation=held_out(), callback=calls.append)
        assert [(c.epoch, c.step) for c in calls] == [(e, s) for e in (1, 2) for s in (1, 2, 3, 4)]
        assert [c.validation is not None for c in calls] == [False, False, False, True] * 2
        assert set(calls[-1].validation) == {"clean", "linf", "l2", "union"}

    def test_clean_training_can_be_validated_against_threats(self):
        history = train(
            *(network(), loader(), THREATS),
            **{"method": "clean", "recipe": SGD, "validation": held_out(), "epochs": 1},
        )
        assert set(history[0].validation) == {"clean", "linf", "l2", "union"}


@pytest.fixture(scope="module")
def uninterrupted():
    model = network()
    history = fit(model, start="warm", loader=numbered(), validation=held_out())
    return bits(model), history


class TestResume:
    @pytest.mark.parametrize("where", [(2, 1), (2, 3), (3, 2)])
    @pytest.mark.parametrize("every", [None, 1])
    def test_equals_an_uninterrupted_run(self, uninterrupted, tmp_path, where, every):
        class Stop(Exception):  # noqa: N818
            pass

        def stop(progress):
            if (progress.epoch, progress.step) == where:
                raise Stop

        same = {"start": "warm", "validation": held_out(), "out": tmp_path}
        same["loader"] = numbered()
        with pytest.raises(Stop):
            fit(network(), callback=stop, checkpoint_every=every, **same)
        model, calls = network(seed=9), []
        history = fit(model, resume=True, callback=calls.append, **same)
        epoch, step = where
        # The callback of a step comes before its checkpoint.
        assert (calls[0].epoch, calls[0].step) == ((epoch, step) if every else (epoch, 1))
        assert history == uninterrupted[1]
        assert_equal_bits(bits(model), uninterrupted[0])

    def test_a_changed_threat_or_option_is_another_run(self, tmp_path):
        fit(network(), epochs=1, out=tmp_path)
        with pytest.raises(ValueError, match="`options` must be as in"):
            fit(network(), epochs=1, out=tmp_path, resume=True, steps=3)
        other = {"linf": THREATS["linf"], "l2": Threat(LpBall(2, 1.5))}
        with pytest.raises(ValueError, match="`threats` must be as in"):
            train(
                *(network(), loader(), other),
                **{"method": "ampgd", "recipe": SGD, "epochs": 1, "steps": 2, "seed": 3},
                out=tmp_path,
                resume=True,
            )

    def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(self, tmp_path):
        model = network()

        def poison(progress):
            if (progress.epoch, progress.step) == (2, 1):
                with torch.no_grad():
                    model[5].bias[0] = math.inf

        with pytest.raises(FloatingPointError, match="`loss` must be finite"):
            fit(model, out=tmp_path, callback=poison)
        again = network(seed=9)
        history = fit(again, out=tmp_path, resume=True)
        expected = network()
        assert fit(expected) == history
        assert_equal_bits(bits(again), bits(expected))


# ------------------------------------------------------------------------------------------ the command


class TestCommand:
    def run(self, *words):
        with pytest.raises(SystemExit) as caught:
            cli.main([str(word) for word in words])
        return caught.value.code

    def test_leaves_weights_history_report_and_true_figures(self, tmp_path, capsys):
        words = (
            "train --data mnist-sample --model C --method ampgd --threat linf:0.1 --threat l2:1.0"
        )
        words += " --limit 100 --epochs 2 --steps 2 --rule minmax:gamma=0.3,step_size=2 --mix 0.8"
        words += " --test-images 40 --test-steps 10"
        assert self.run(*words.split(), "--out", tmp_path) == 0
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert len(lines) == 2
        assert lines[0].startswith("mnist-sample C ampgd  epoch 1/2  loss ")
        assert "weights linf 0." in lines[0]
        assert "held out clean " in lines[0]
        run = json.loads((tmp_path / "run.json").read_text())
        assert run["command"].startswith("saddlepoint train --method ampgd --data mnist-sample")
        assert "--threat linf:0.1 --threat l2:1.0" in run["command"]
        assert "--mix 0.8" in run["command"]
        robust = run["metrics"]["robust_accuracy"]
        assert f"union {robust['union']:.2f} %" in out
        model = models.load(tmp_path / "model.safetensors")
        x, y = (t[800:840] for t in data.sample("mnist"))
        accuracy = validate(model, x, y, THREATS, steps=10)
        assert robust == {name: round(100 * value, 2) for name, value in accuracy.items()}
        assert (
            len(run["metrics"]["history"])
            == len((tmp_path / HISTORY).read_text().splitlines())
            == 2
        )
        page = (tmp_path / "report.html").read_text()
        assert page.count("<g><title>") == 4 + 2  # lines over the epochs
        assert "classified correctly under every threat" in page
        (tmp_path / "report.html").unlink()
        assert self.run("report", tmp_path) == 0
        assert (tmp_path / "report.html").read_text() == page

    def test_the_report_names_the_epoch_that_is_kept(self, tmp_path, monkeypatch):
        found = iter([(0.5, 0.8), (0.5, 0.9), (0.5, 0.9), (0.4, 1.0)])

        def validation(model, *arguments, **options):
            union, clean = next(found, (0.0, 0.0))
            return {"clean": clean, "linf": union, "union": union}

        monkeypatch.setattr(training.session, "validate", validation)
        words = (
            "train --data mnist-sample --model C --threat linf:0.1 --limit 40 --epochs 4 --steps 1"
        )
        assert self.run(*words.split(), "--test-images", 10, "--out", tmp_path) == 0
        assert json.loads(read_tensors(tmp_path / BEST).about["saddlepoint"])["epoch"] == 2
        assert "The parameters kept are those of epoch 2," in (tmp_path / "report.html").read_text()

    def test_without_a_method_it_is_ampgd_with_threats_and_clean_without(self, tmp_path):
        words = [
            "train",
            "--data",
            "mnist-sample",
            "--model",
            "C",
            "--limit",
            "40",
            "--epochs",
            "1",
            "--test-images",
            "10",
        ]
        assert self.run(*words, "--threat", "l2:1", "--steps", 1, "--out", tmp_path / "a") == 0
        assert self.run(*words, "--out", tmp_path / "b") == 0
        for folder, method in (("a", "ampgd"), ("b", "clean")):
            run = json.loads((tmp_path / folder / "run.json").read_text())
            assert run["settings"]["method"] == method
            assert run["command"].startswith(f"saddlepoint train --method {method} ")

    def test_algorithm_2_to_the_letter(self, tmp_path):
        words = "train --data mnist-sample --model C --method ampgd-paper --threat linf:0.1 --threat l2:1"
        words += " --limit 60 --held-out 20 --epochs 2 --steps 3 --test-images 10"
        assert self.run(*words.split(), "--out", tmp_path) == 0
        x, y = (t[:40] for t in data.sample("mnist"))
        recipe = recipe_for("fast", "mnist", "C", adversarial=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = models.build("C").to(memory_format=torch.channels_last)
        loader = Batches(x, y, recipe.batch_size, numbered=True)
        held = tuple(t[40:60] for t in data.sample("mnist"))
        options = {"steps": 3, "validation": held, "epochs": 2, "recipe": recipe}
        train(model, loader, THREATS, method="ampgd-paper", rule=MinMax(1 / 3, 1.0), **options)
        found = load_file(tmp_path / "model.safetensors")
        assert_equal_bits(found, {k: v.contiguous() for k, v in bits(model).items()})

    @pytest.mark.parametrize(
        ("words", "remedy"),
        [("--method ampgd-paper", "--method ampgd"), ("--start warm", "--start zero")],
    )
    def test_a_warm_start_with_mirrored_images_names_the_flags(
        self, tmp_path, capsys, words, remedy
    ):
        start = f"train --data cifar10-sample --model C --threat linf:0.1 --out {tmp_path} {words}"
        assert self.run(*start.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "`--start warm`" in line
        assert line.endswith(
            f"got --recipe fast, which does that with those of cifar10-sample; take --plain-images or {remedy}."
        )

    @pytest.mark.parametrize("recipe", ["fast", "paper"])
    def test_a_warm_start_on_plain_images(self, tmp_path, recipe):
        words = "train --data cifar10-sample --model C --threat linf:0.1 --limit 60 --held-out 0"
        words += f" --method ampgd-paper --steps 1 --epochs 1 --recipe {recipe} --plain-images"
        words += " --test-images 2 --test-steps 1"
        assert self.run(*words.split(), "--out", tmp_path) == 0
        run = json.loads((tmp_path / "run.json").read_text())
        assert (run["settings"]["recipe"]["flip"], run["settings"]["recipe"]["shift"]) == (False, 0)
        assert "--plain-images" in run["command"]

    def test_a_limit_above_all_images_and_a_radius_that_bounds_nothing_are_said(
        self, tmp_path, capsys
    ):
        words = "train --data cifar10-sample --model C --threat l2:800 --limit 5000 --epochs 1"
        words += f" --steps 1 --ramp 1 --test-images 2 --test-steps 1 --out {tmp_path}"
        assert self.run(*words.split()) == 0
        lines = capsys.readouterr().err.splitlines()
        assert "--limit 5000: there are 160 images; using all of them" in lines
        (warned,) = [line for line in lines if "bounds nothing" in line]
        assert warned.startswith("saddlepoint: warning: `eps` of an l2 ball is 800, but no two")

    def test_a_negative_radius_names_the_flag(self, tmp_path, capsys):
        words = ("train", "--data", "mnist-sample", "--model", "C", "--threat", "linf:-1")
        assert self.run(*words, "--out", tmp_path) == 2
        line = capsys.readouterr().err
        assert "`--threat` must have a radius >= 0, got 'linf:-1'." in line

    def test_refuses_to_start_without_a_threat(self, tmp_path, capsys):
        words = ("train", "--data", "mnist-sample", "--model", "A", "--out", tmp_path)
        for method in METHODS[:-1]:
            assert self.run(*words, "--method", method) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert f"`--threat` must be given for --method {method}" in line
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--method avg --threat linf", "`--threat` must be norm:radius"),
            ("--method avg --threat l3:1", "`--threat` must be norm:radius"),
            ("--method avg --threat l2:one", "`--threat` must be a number"),
            ("--method avg --threat l2:1 --threat l2:2", "`--threat` must name every norm once"),
            ("--method l1 --threat l2:1", "exactly one threat of norm p = 1"),
            ("--method avg --threat l2:1 --held-out 800", "`--held-out` must leave images"),
            ("--method clean --threat l2:1", "`--threat` needs --held-out"),
        ],
    )
    def test_errors_are_one_line_and_exit_2(self, tmp_path, capsys, words, message):
        start = ("train", "--data", "mnist-sample", "--model", "A", "--out", tmp_path)
        assert self.run(*start, *words.split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line

    def test_tensorboard_scalars_where_it_is_installed(self, tmp_path):
        board = training.TensorBoard(tmp_path)
        fit(network(), epochs=2, validation=held_out(), callback=board)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path))
        events.Reload()
        names = events.Tags()["scalars"]
        assert {"training/loss", "training/weight/l2", "validation/union"} <= set(names)
        assert [event.step for event in events.Scalars("validation/union")] == [1, 2]


def blocks(name):
    """The Python of a page, block by block."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


class TestGuides:
    def test_the_python_of_the_guide_runs_and_takes_all_three_sizes(self, monkeypatch, capsys):
        seen = []
        watch_sizes(monkeypatch, seen)
        namespace = {}
        for block in blocks("docs/training.md"):
            exec(compile(block, "docs/training.md", "exec"), namespace)
            if "ampgd_step" in block and "raw" not in block:
                assert set(seen) == {3, 6, 12}
        assert "tensor(" in capsys.readouterr().out


def parts(hint):
    """A type and everything it is made of."""
    yield hint
    inner = hint if isinstance(hint, list) else typing.get_args(hint)
    if typing.is_typeddict(hint):
        inner = typing.get_type_hints(hint).values()
    for each in inner:
        yield from parts(each)


def test_everything_that_training_takes_or_gives_has_a_public_name():
    functions = ("ampgd_step", "avg_step", "max_step", "msd_step", "train")
    hints = [typing.get_type_hints(getattr(saddlepoint, name)).values() for name in functions]
    classes = {
        part.__name__
        for hint in itertools.chain(*hints)
        for part in parts(hint)
        if inspect.isclass(part) and part.__module__.startswith("saddlepoint.")
        # Shapes of arguments, which nobody has to name.
        if not typing.is_typeddict(part) and not getattr(part, "_is_protocol", False)
    }
    assert {"StepStats", "Recipe", "TrainingProgress", "LpBall", "AbstractStart"} <= classes
    assert classes <= set(saddlepoint.__all__)
    assert {"ZeroStart", "RandomStart", "WarmStart"} <= set(saddlepoint.__all__)
