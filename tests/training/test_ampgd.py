"""AMPGD and its baselines: literal oracles, reductions to known methods, and a model that is left alone."""

from __future__ import annotations

import copy
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import oracles
from saddlepoint import LpBall, MinMax, WorstCase, data, directions, models
from saddlepoint.rules import AbstractWeightRule, Average, Fixed
from saddlepoint.solver.schedule import Schedule
from saddlepoint.training import (
    Batches,
    RandomStart,
    Recipe,
    Threat,
    WarmStart,
    ampgd_step,
    avg_step,
    max_step,
    msd_step,
    perturb,
    train,
    validate,
)
from small_training import bits
from small_training import network as convnet

THREATS = {
    "linf": Threat(LpBall(math.inf, 0.2), direction=directions.sign),
    "l2": Threat(LpBall(2, 0.5), direction=directions.unit_l2),
    "l1": Threat(LpBall(1, 0.8), direction=directions.SparseL1(2)),
}
BALLS = {name: threat.ball for name, threat in THREATS.items()}
# By default the ball shrinks and the steps shorten.
SCHEDULED = {name: Threat(ball) for name, ball in BALLS.items()}
RAW = {
    "linf": Threat(LpBall(math.inf, 0.2), 0.3, directions.raw),
    "l2": Threat(LpBall(2, 0.5), 0.7, directions.raw),
}
STEPS = {"ampgd": ampgd_step, "avg": avg_step, "max": max_step, "msd": msd_step}


def network(seed=0, size=6, classes=4):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, classes)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def batch(rows=7, size=6, classes=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, size, generator=generator, dtype=torch.float64)
    # Some pixels at the ends of the box, as in real images.
    x = torch.where(x < 0.2, 0.0, torch.where(x > 0.9, 1.0, x))
    return x, torch.randint(classes, (rows,), generator=generator)


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr)


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# ------------------------------------------------------------------------------------ slow and obvious


def literal_project(z, threat, x, growth=1.0):
    ball = threat.ball
    eps = ball.eps * growth
    z = oracles.project_by_bisection(z.numpy(), ball.p, eps, -x.numpy(), 1 - x.numpy())
    return torch.from_numpy(np.asarray(z, dtype=np.float64))


def literal_growth(threat, r, steps, iteration):
    """How many times as large as the true ball the one of iterate r >= 1 is."""
    if threat.step_size is not None or threat.direction is not None:
        return 1.0
    sizes = {math.inf: [1.0], 2: [3.0, 6.0, 12.0], 1: [5.0, 10.0, 20.0]}[threat.ball.p]
    most = sizes[iteration % len(sizes)]
    return 1 + (most - 1) * max(0.0, 1 - r / (2 * steps / 3))


def literal_move(threat, g, delta, x, r, steps, iteration=0):
    """Step r = 0, 1, ... of a threat: of one length, or as the schedule says."""
    growth, length, count = 1.0, threat.step_size or 2.5 * threat.ball.eps / steps, None
    if threat.step_size is None and threat.direction is None:
        growth = literal_growth(threat, r + 1, steps, iteration)
        radius = threat.ball.eps * growth
        length = radius * (1 + math.cos(math.pi * r / steps))
        few = math.ceil(threat.ball.eps / 2)
        many = max(few, len(g) // 10)
        count = round(many * (few / many) ** (r / (steps - 1)))
    direction = literal_direction(threat, g, delta, x, count)
    return literal_project(delta + length * direction, threat, x, growth)


def literal_direction(threat, g, delta, x, count=None):
    if threat.direction is directions.raw:
        return g
    if count is not None:  # the schedule never moves against the box
        g = g.clone()
        g[[i for i in range(len(g)) if _stopped(delta[i], x[i], g[i])]] = 0.0
    if threat.ball.p == math.inf:
        return torch.tensor([1.0 if v > 0 else -1.0 if v < 0 else 0.0 for v in g]).double()
    if threat.ball.p == 2:
        return g / math.sqrt(sum(v.item() ** 2 for v in g))
    count, step = count or threat.direction.count, torch.zeros_like(g)
    free = [i for i in range(len(g)) if g[i] != 0 and not _stopped(delta[i], x[i], g[i])]
    for i in sorted(free, key=lambda i: -abs(g[i].item()))[:count]:
        step[i] = math.copysign(1 / count, g[i].item())
    return step


def _stopped(delta, x, gradient):
    image = x + delta
    return (image <= 1e-14 and gradient < 0) or (image >= 1 - 1e-14 and gradient > 0)


def literal_loss(model, image, label):
    z = model(image[None])[0]
    return z.exp().sum().log() - z[label]


def literal_attack(model, x, label, threats, update, w, steps, iteration):
    """Algorithm 2, step 4, for one image: both players move from (w_{r-1}, delta_{r-1})."""
    deltas = [torch.zeros_like(x) for _ in threats]
    for r in range(steps):
        losses, moved = [], []
        for i, threat in enumerate(threats):
            point = deltas[i].clone().requires_grad_()
            f = literal_loss(model, x + point, label)
            (g,) = torch.autograd.grad(f, point)
            losses.append(f.detach())
            g = w[i] * g if threat.direction is directions.raw else g
            moved.append(literal_move(threat, g, deltas[i], x, r, steps, iteration))
        # Losses outside the balls are not those the weights are about.
        if r == 0 or all(literal_growth(threat, r, steps, iteration) == 1 for threat in threats):
            w = update(w, torch.stack(losses))
        deltas = moved
    return deltas, w


def literal_ampgd(model, x, y, threats, update, *, steps, lr, mix=1.0, iteration=0):
    """The parameters after one step of plain SGD, the attacks found row by row, threat by threat."""
    model = copy.deepcopy(model)
    total = 0.0
    for b in range(len(x)):
        w = torch.full((len(threats),), 1 / len(threats), dtype=torch.float64)
        deltas, w = literal_attack(model, x[b], y[b], threats, update, w, steps, iteration)
        for i, delta in enumerate(deltas):
            total = total + mix * w[i] * literal_loss(model, x[b] + delta, y[b]) / len(x)
        total = total + (1 - mix) * literal_loss(model, x[b], y[b]) / len(x)
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return torch.cat(
        [
            (p - lr * g).detach().flatten()
            for p, g in zip(model.parameters(), gradients, strict=True)
        ]
    )


def minmax(step_size, gamma):
    return lambda w, f: oracles.minmax_update(w, f, step_size=step_size, gamma=gamma)


class TestStep:
    @pytest.mark.parametrize(
        ("threats", "iteration"),
        [(THREATS, 0), (RAW, 0), (SCHEDULED, 0), (SCHEDULED, 4), (SCHEDULED, 2)],
        ids=["steepest", "plain gradient", "first size", "second size", "third size"],
    )
    @pytest.mark.parametrize(("beta", "gamma"), [(0.3, 0.5), (0.1, 0.0), (4.0, 1.0)])
    @pytest.mark.parametrize("mix", [1.0, 0.5])
    def test_equals_the_literal_step(self, threats, iteration, beta, gamma, mix):
        model, (x, y) = network(), batch()
        literal = {"steps": 7, "lr": 0.1, "mix": mix, "iteration": iteration}
        expected = literal_ampgd(
            model, x, y, list(threats.values()), minmax(beta, gamma), **literal
        )
        before = parameters(model)
        rule = MinMax(beta, gamma)
        ampgd_step(
            *(model, sgd(model), x, y, threats), rule=rule, steps=7, mix=mix, iteration=iteration
        )
        torch.testing.assert_close(parameters(model), expected, rtol=0, atol=1e-9)
        assert (parameters(model) - before).abs().max() > 1e-3

    def test_the_weights_of_the_last_step_see_the_iterate_before(self):
        model, (x, y) = network(), batch()
        rule = MinMax(0.5, 0.2)
        stats = ampgd_step(
            copy.deepcopy(model), sgd(network()), x, y, THREATS, rule=rule, steps=1, iteration=0
        )
        # With one step from zero every threat still has the clean loss: the weights stay equal.
        assert torch.allclose(stats.row_weights, torch.full((7, 3), 1 / 3, dtype=torch.float64))
        assert (stats.losses - stats.losses[0]).abs().max() > 0.01

    def test_harder_threats_get_more_weight_and_losses_rise(self):
        model, (x, y) = network(), batch(rows=40)
        weak = {"weak": Threat(LpBall(math.inf, 0.01)), "strong": Threat(LpBall(math.inf, 0.3))}
        clean = F.cross_entropy(model(x), y)
        stats = ampgd_step(model, sgd(model, 1e-9), x, y, weak, iteration=0)
        assert (stats.losses > clean).all()
        assert stats.weights[1] > 0.7

    def test_reports_what_the_update_saw(self):
        model, (x, y) = network(), batch()
        before = copy.deepcopy(model)
        stats = ampgd_step(model, sgd(model), x, y, THREATS, rule=MinMax(0.5, 0.2), iteration=0)
        images = x.unsqueeze(1) + stats.perturbations
        logits = before(images)
        f = F.cross_entropy(logits.flatten(0, 1), y.repeat_interleave(3), reduction="none")
        f, right = f.view(7, 3), logits.argmax(dim=-1) == y[:, None]
        torch.testing.assert_close(stats.losses, f.mean(dim=0).detach())
        torch.testing.assert_close(stats.accuracies, right.double().mean(dim=0))
        assert stats.accuracy == right.all(dim=1).double().mean().item()
        assert stats.loss == pytest.approx((stats.row_weights * f).sum(dim=1).mean().item())
        torch.testing.assert_close(stats.weights, stats.row_weights.mean(dim=0))
        scalars = stats.scalars()
        assert scalars["weight/l2"] == stats.weights[1].item()
        assert len(scalars) == 2 + 3 * 3


class TestIteration:
    """The loop's count comes from the loop, and no step can do without it."""

    @pytest.mark.parametrize("method", STEPS)
    def test_has_no_default(self, method):
        model = network()
        with pytest.raises(TypeError, match="'iteration'"):
            STEPS[method](model, sgd(model), *batch(), SCHEDULED)
        with pytest.raises(TypeError, match="'iteration'"):
            perturb(model, *batch(), SCHEDULED)

    def test_a_threat_holds_no_state_of_the_loop(self):
        assert [field.name for field in fields(Threat)] == ["ball", "step_size", "direction"]
        assert not hasattr(Threat, "turned")

    @pytest.mark.parametrize("method", STEPS)
    def test_three_sizes_of_balls_in_turn(self, method):
        """Each iteration is another attack, and the fourth is the first again, bit for bit."""
        ends = []
        for iteration in range(4):
            model = network()
            options = {"steps": 7, "iteration": iteration}
            STEPS[method](model, sgd(model), *batch(), SCHEDULED, **options)
            ends.append(parameters(model))
        assert torch.equal(ends[0], ends[3])
        assert not torch.equal(ends[0], ends[1])
        assert not torch.equal(ends[1], ends[2])
        assert not torch.equal(ends[0], ends[2])

    def test_plain_threats_have_one_size(self):
        a, b = (perturb(network(), *batch(), THREATS, iteration=n) for n in (0, 1))
        assert torch.equal(a, b)


class TestAlgorithm2:
    """To the letter: plain gradients times w_i, one beta, w and delta both from the last iterate."""

    BETA, GAMMA, R, RATE = 0.4, 0.7, 3, 0.1

    def literal(self, x, y, batches):
        def f(theta, image, label):
            names = [name for name, _ in network().named_parameters()]
            values = dict(zip(names, theta, strict=True))
            z = torch.func.functional_call(network(), values, (image[None],))[0]
            return z.exp().sum().log() - z[label]

        def onto(ball):
            return lambda point, image: literal_project(point, Threat(ball), image)

        options = {"steps": self.R, "beta": self.BETA, "gamma": self.GAMMA, "rate": self.RATE}
        start = [p.detach() for p in network().parameters()]
        projections = [onto(ball) for ball in BALLS.values()]
        found = oracles.algorithm_2(f, start, x, y.tolist(), projections, batches, **options)
        return [torch.cat([p.flatten() for p in theta]) for theta in found]

    def test_a_loop_of_warm_starts_on_the_same_images(self):
        x, y = batch(rows=3)
        model, start = network(), None
        optimizer = sgd(model, self.RATE)
        threats = {k: Threat(ball, self.BETA, directions.raw) for k, ball in BALLS.items()}
        rule = MinMax(self.BETA, self.GAMMA)
        for t, theta in enumerate(self.literal(x, y, [range(3)] * 4)):
            stats = ampgd_step(
                *(model, optimizer, x, y, threats),
                **{"rule": rule, "steps": self.R, "start": start, "iteration": t},
            )
            start = WarmStart(stats.perturbations, stats.row_weights)
            torch.testing.assert_close(parameters(model), theta, rtol=0, atol=1e-9)
        # All of it took part: weights that moved, and perturbations on the boundary of their balls.
        assert (stats.row_weights - 1 / 3).abs().max() > 0.1
        for k, ball in enumerate(BALLS.values()):
            assert ball.norm(stats.perturbations[:, k]).max() > 0.99 * ball.eps

    def train(self, x, y, threats=BALLS, **arguments):
        recipe = Recipe("sgd", "sgd", self.RATE, 3, "constant", momentum=0.0, nesterov=False)
        model, ends = network(), []
        options = {"method": "ampgd-paper", "rule": MinMax(self.BETA, self.GAMMA), "steps": self.R}
        train(
            *(model, Batches(x, y, 2, numbered=True), threats),
            recipe=recipe,
            seed=5,
            callback=lambda _: ends.append(parameters(model)),
            **(options | arguments),
        )
        return ends

    def test_train_lets_every_image_go_on_from_where_it_was_left(self):
        x, y = batch(rows=5)
        order = []
        for epoch in range(3):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5 * 2**20 + epoch)
                order += [n.tolist() for _, _, n in Batches(x, y, 2, numbered=True)]
        assert order[0] != order[3]
        expected = self.literal(x, y, order)
        for found, theta in zip(self.train(x, y), expected, strict=True):
            torch.testing.assert_close(found, theta, rtol=0, atol=1e-9)
        # From the second epoch on it matters where an image goes on from.
        raw = {k: Threat(ball, self.BETA, directions.raw) for k, ball in BALLS.items()}
        cold = self.train(x, y, method="ampgd", start="zero", threats=raw)
        torch.testing.assert_close(cold[2], expected[2], rtol=0, atol=1e-9)
        assert (cold[3] - expected[3]).abs().max() > 1e-3

    def test_beta_is_one_over_the_number_of_steps_by_default(self):
        x, y = batch(rows=5)
        given = self.train(x, y, rule=MinMax(1 / self.R, 1.0))
        assert torch.equal(self.train(x, y, rule=None)[-1], given[-1])

    def test_a_step_size_of_its_own_for_delta(self):
        x, y = batch(rows=5)
        same = {k: Threat(ball, self.BETA, directions.raw) for k, ball in BALLS.items()}
        other = {k: Threat(ball, 2 * self.BETA, directions.raw) for k, ball in BALLS.items()}
        whole = self.train(x, y)[-1]
        assert torch.equal(self.train(x, y, threats=same)[-1], whole)
        assert not torch.equal(self.train(x, y, threats=other)[-1], whole)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"rule": WorstCase()}, "`rule` must be a MinMax with step_size <= 1 / gamma"),
            ({"rule": MinMax(1.0, 2.0)}, "`rule` must be a MinMax with step_size <= 1 / gamma"),
            ({"start": "zero"}, "`start` must be 'warm' and `ramp` 0"),
            ({"ramp": 1.0}, "`start` must be 'warm' and `ramp` 0"),
            ({"threats": THREATS}, r"`threats\['linf'\]` must be a ball, or have direction=raw"),
            ({"threats": {"l2": Threat(LpBall(2, 1.0), 0.1)}}, "must be a ball, or have direct"),
        ],
    )
    def test_what_is_not_to_the_letter_is_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            self.train(*batch(rows=5), **arguments)

    def test_images_without_numbers_are_refused(self):
        model = network()
        with pytest.raises(ValueError, match=r"`loader` must give \(x, y, numbers of the images"):
            train(model, Batches(*batch(), 2), BALLS, method="ampgd-paper", epochs=1)
        assert torch.equal(parameters(model), parameters(network()))


class TestReductions:
    @pytest.mark.parametrize(
        "threats", [THREATS, RAW, SCHEDULED], ids=["steepest", "plain gradient", "scheduled"]
    )
    def test_infinite_gamma_is_avg_step_for_step(self, threats):
        first, second = network(), network()
        optimizers = sgd(first), sgd(second)
        for seed in range(3):
            x, y = batch(seed=seed)
            options = {"steps": 5, "iteration": seed}
            rule = MinMax(gamma=math.inf)
            ampgd_step(first, optimizers[0], x, y, threats, rule=rule, **options)
            avg_step(second, optimizers[1], x, y, threats, **options)
            torch.testing.assert_close(parameters(first), parameters(second), rtol=0, atol=1e-10)

    @pytest.mark.parametrize("method", ["avg", "max"])
    @pytest.mark.parametrize(
        ("named", "iteration"),
        [(THREATS, 0), (SCHEDULED, 0), (SCHEDULED, 1)],
        ids=["plain", "first size", "second size"],
    )
    def test_avg_and_max_equal_the_literal_methods(self, method, named, iteration):
        """Every threat attacks alone, image by image; theta moves on the mean of the losses, or the largest."""
        model, (x, y), steps = network(), batch(), 4
        expected, threats = copy.deepcopy(model), list(named.values())
        total = 0.0
        for image, label in zip(x, y, strict=True):
            deltas, _ = literal_attack(
                *(expected, image, label, threats, lambda w, _: w, [1.0] * 3, steps, iteration)
            )
            losses = [literal_loss(expected, image + delta, label) for delta in deltas]
            total = total + (sum(losses) / 3 if method == "avg" else max(losses)) / len(x)
        total.backward()
        sgd(expected).step()
        options = {"steps": steps, "iteration": iteration}
        stats = STEPS[method](model, sgd(model), x, y, named, **options)
        torch.testing.assert_close(parameters(model), parameters(expected), rtol=0, atol=1e-9)
        assert stats.loss == pytest.approx(total.item())

    def test_large_gamma_tends_to_avg(self):
        gaps = []
        for gamma in (1.0, 1e2, 1e4):
            first, second = network(), network()
            ampgd_step(first, sgd(first), *batch(), THREATS, rule=MinMax(1.0, gamma), iteration=0)
            avg_step(second, sgd(second), *batch(), THREATS, iteration=0)
            gaps.append((parameters(first) - parameters(second)).abs().max().item())
        assert gaps[0] > 10 * gaps[1] > 100 * gaps[2]

    def test_one_hot_weights_are_max(self):
        class OneHot(AbstractWeightRule):
            """gamma = 0 and an infinite step: everything on the largest loss."""

            def init(self, losses):
                return torch.full_like(losses, 1 / losses.shape[1])

            def update(self, weights, losses):
                return F.one_hot(losses.argmax(dim=1), losses.shape[1]).to(losses.dtype)

        # Once the perturbations have converged the last two iterates rank the threats alike.
        first, second, third = network(), network(), network()
        ampgd_step(first, sgd(first), *batch(), THREATS, rule=OneHot(), steps=20, iteration=0)
        max_step(second, sgd(second), *batch(), THREATS, steps=20, iteration=0)
        ampgd_step(third, sgd(third), *batch(), THREATS, rule=WorstCase(), steps=20, iteration=0)
        torch.testing.assert_close(parameters(first), parameters(second), rtol=0, atol=1e-10)
        assert torch.equal(parameters(second), parameters(third))

    @pytest.mark.parametrize("steps", [1, 3])
    def test_max_descends_on_the_worst_of_the_final_perturbations(self, steps):
        model, (x, y) = network(), batch()
        expected = copy.deepcopy(model)
        delta = perturb(expected, x, y, THREATS, steps=steps, iteration=0)
        logits = expected((x[:, None] + delta).flatten(0, 1))
        f = F.cross_entropy(logits, y.repeat_interleave(3), reduction="none").view(7, 3)
        f.amax(dim=1).mean().backward()
        sgd(expected).step()
        stats = max_step(model, sgd(model), x, y, THREATS, steps=steps, iteration=0)
        torch.testing.assert_close(parameters(model), parameters(expected), rtol=0, atol=1e-12)
        assert (stats.row_weights.amax(dim=1) == 1).all()

    @pytest.mark.parametrize("method", ["ampgd", "avg", "max", "msd"])
    def test_one_threat_is_pgd_training(self, method):
        model, (x, y) = network(), batch()
        expected, eps, steps = copy.deepcopy(model), 0.2, 5
        delta = torch.zeros_like(x)
        for _ in range(steps):
            delta.requires_grad_()
            (g,) = torch.autograd.grad(F.cross_entropy(expected(x + delta), y), delta)
            delta = (delta.detach() + 2.5 * eps / steps * g.sign()).clamp(-eps, eps)
            delta = (x + delta).clamp(0, 1) - x
        F.cross_entropy(expected(x + delta), y).backward()
        sgd(expected).step()
        STEPS[method](model, sgd(model), x, y, {"linf": THREATS["linf"]}, steps=steps, iteration=0)
        torch.testing.assert_close(parameters(model), parameters(expected), rtol=0, atol=1e-12)

    def test_permuting_the_threats_permutes_the_weights(self):
        first, second = network(), network()
        a = ampgd_step(first, sgd(first), *batch(), THREATS, iteration=0)
        b = ampgd_step(second, sgd(second), *batch(), dict(reversed(THREATS.items())), iteration=0)
        torch.testing.assert_close(a.row_weights, b.row_weights.flip(1))
        torch.testing.assert_close(parameters(first), parameters(second))

    def test_fixed_weights_ignore_the_threats_of_weight_zero(self):
        first, second = network(), network()
        ampgd_step(first, sgd(first), *batch(), THREATS, rule=Fixed((0, 1, 0)), iteration=0)
        avg_step(second, sgd(second), *batch(), {"l2": THREATS["l2"]}, iteration=0)
        torch.testing.assert_close(parameters(first), parameters(second))

    def test_a_threat_of_weight_zero_keeps_attacking(self):
        model = network()
        stats = ampgd_step(
            model, sgd(model), *batch(), THREATS, rule=Fixed((1, 0, 0)), steps=5, iteration=0
        )
        delta = perturb(network(), *batch(), THREATS, steps=5, iteration=0)
        torch.testing.assert_close(stats.perturbations, delta)

    def test_no_share_of_adversarial_loss_is_clean_training(self):
        model, expected, (x, y) = network(), network(), batch()
        F.cross_entropy(expected(x), y).backward()
        sgd(expected).step()
        avg_step(model, sgd(model), x, y, THREATS, mix=0.0, iteration=0)
        torch.testing.assert_close(parameters(model), parameters(expected))


class TestMsd:
    @pytest.mark.parametrize("named", [THREATS, SCHEDULED], ids=["plain", "scheduled"])
    def test_equals_the_literal_method(self, named):
        model, (x, y) = network(), batch()
        expected, threats, steps = copy.deepcopy(model), list(named.values()), 4
        total = 0.0
        for b in range(len(x)):
            delta = torch.zeros_like(x[b])
            for r in range(steps):
                point = delta.clone().requires_grad_()
                (g,) = torch.autograd.grad(literal_loss(expected, x[b] + point, y[b]), point)
                proposals = [literal_move(t, g, delta, x[b], r, steps) for t in threats]
                losses = [literal_loss(expected, x[b] + d, y[b]).item() for d in proposals]
                delta = proposals[int(np.argmax(losses))]
            total = total + literal_loss(expected, x[b] + delta, y[b]) / len(x)
        total.backward()
        sgd(expected).step()
        stats = msd_step(model, sgd(model), x, y, named, steps=steps, iteration=0)
        torch.testing.assert_close(parameters(model), parameters(expected), rtol=0, atol=1e-9)
        assert stats.loss == pytest.approx(total.item())
        assert stats.weights.sum().item() == pytest.approx(1.0)

    def test_the_kept_perturbation_is_in_the_ball_of_the_threat_that_proposed_it(self):
        model, (x, y) = network(), batch(rows=30)
        stats = msd_step(model, sgd(model), x, y, THREATS, iteration=0)
        for k, threat in enumerate(THREATS.values()):
            assert (threat.ball.norm(stats.perturbations[:, k]) <= threat.ball.eps + 1e-9).all()
        assert (stats.row_weights.sum(dim=1) == 1).all()


class TestModelIsLeftAlone:
    @pytest.mark.parametrize("method", STEPS)
    def test_the_attack_touches_neither_parameters_nor_gradients_nor_flags(self, method):
        model = convnet(dropout=0.3)
        model[5].bias.requires_grad_(False)
        model[0].weight.grad = torch.full_like(model[0].weight, 3.0)
        x, y = data.sample("mnist", limit=16)
        seen = []

        def watch(module, arguments):
            gradient = model[0].weight.grad
            seen.append(
                (
                    len(arguments[0]),
                    {key: torch.equal(value, start[key]) for key, value in bits(model).items()},
                    gradient is not None and bool((gradient == 3.0).all()),
                    [p.requires_grad for p in model.parameters()],
                    [m.training for m in model.modules()],
                )
            )

        start = bits(model)
        flags = [p.requires_grad for p in model.parameters()]
        model.train()
        hook = model.register_forward_pre_hook(watch)
        STEPS[method](model, sgd(model, 0.01), x, y, THREATS, steps=3, iteration=0)
        hook.remove()
        for _, same, gradient_kept, requires, modes in seen[:-1]:
            assert all(same.values())
            assert gradient_kept
            assert requires == flags
            assert not any(modes)
        assert all(seen[-1][4])  # the update runs in training mode
        assert [p.requires_grad for p in model.parameters()] == flags
        assert model[5].bias.grad is None

    def test_all_perturbed_batches_go_through_the_network_in_one_forward(self):
        model, (x, y) = network(), batch()
        sizes = []
        model.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0])))
        ampgd_step(model, sgd(model), x, y, THREATS, steps=4, iteration=0)
        assert sizes == [21] * 5
        sizes.clear()
        ampgd_step(model, sgd(model), x, y, THREATS, steps=4, mix=0.5, iteration=0)
        assert sizes == [21] * 4 + [28]

    @pytest.mark.parametrize("mix", [1.0, 0.5])
    def test_running_statistics_see_the_training_pass_once(self, mix):
        model = convnet(dropout=0.3).train()
        x, y = data.sample("mnist", limit=16)
        expected = copy.deepcopy(model)
        stats = ampgd_step(model, sgd(model, 0.01), x, y, THREATS, steps=3, mix=mix, iteration=0)
        images = (x[:, None] + stats.perturbations).transpose(0, 1).flatten(0, 1)
        expected(images if mix == 1 else torch.cat([images, x]))
        assert model[1].num_batches_tracked == 1
        torch.testing.assert_close(model[1].running_mean, expected[1].running_mean)
        torch.testing.assert_close(model[1].running_var, expected[1].running_var)

    def test_frozen_batch_norm_stays_frozen(self):
        model = convnet(dropout=0.3).train()
        model[1].eval()
        mean = model[1].running_mean.clone()
        ampgd_step(
            model, sgd(model, 0.01), *data.sample("mnist", limit=8), THREATS, steps=2, iteration=0
        )
        assert torch.equal(model[1].running_mean, mean)
        assert [m.training for m in model] == [True, False, True, True, True, True]

    def test_modes_are_restored_after_an_error(self):
        model = convnet(dropout=0.3).train()

        def broken(logits, labels):
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            ampgd_step(
                model, sgd(model), *data.sample("mnist", limit=4), THREATS, loss=broken, iteration=0
            )
        assert all(m.training for m in model.modules())

    def test_the_global_generator_is_left_alone(self):
        model, state = network(), torch.get_rng_state()
        ampgd_step(model, sgd(model), *batch(), THREATS, start=RandomStart(0), iteration=0)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("method", STEPS)
    def test_works_where_gradients_are_off(self, method, context):
        expected, model = network(), network()
        STEPS[method](expected, sgd(expected), *batch(), THREATS, steps=2, iteration=0)
        with context():
            STEPS[method](model, sgd(model), *batch(), THREATS, steps=2, iteration=0)
        assert torch.equal(parameters(model), parameters(expected))

    @pytest.mark.parametrize("method", STEPS)
    def test_autocast_around_a_step_changes_nothing(self, method):
        model, expected = network().float(), network().float()
        x, y = batch()
        options = {"steps": 3, "iteration": 1}
        STEPS[method](expected, sgd(expected), x.float(), y, SCHEDULED, **options)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            STEPS[method](model, sgd(model), x.float(), y, SCHEDULED, **options)
        assert torch.equal(parameters(model), parameters(expected))

    @pytest.mark.parametrize("wrap", [lambda z: (z, None), lambda z: {"logits": z, "hidden": 0}])
    def test_models_may_return_their_logits_among_other_things(self, wrap):
        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = network()

            def forward(self, x):
                return wrap(self.inner(x.mul_(2).div_(2)))  # in place, too

        model, expected, (x, y) = Wrapped(), network(), batch()
        kept = x.clone()
        ampgd_step(model, sgd(model), x, y, THREATS, steps=3, iteration=0)
        ampgd_step(expected, sgd(expected), x, y, THREATS, steps=3, iteration=0)
        assert torch.equal(parameters(model), parameters(expected))
        assert torch.equal(x, kept)

    def test_images_of_another_dtype_than_the_parameters(self):
        model, (x, y) = network().float(), batch()
        start = parameters(model)
        stats = ampgd_step(model, sgd(model), x, y, THREATS, steps=3, iteration=0)
        assert stats.perturbations.dtype == torch.float64
        expected = network()
        ampgd_step(expected, sgd(expected), x, y, THREATS, steps=3, iteration=0)
        moved = (parameters(expected).float() - start).abs().max()
        assert (parameters(model) - parameters(expected)).abs().max() < 1e-3 * moved

    @pytest.mark.parametrize("p", [0, 1, 2, math.inf])
    def test_gradients_that_are_not_finite_are_an_error(self, p):
        """sqrt(v * v) is v on [0, 1], and its gradient at 0 is NaN: an attack would not move."""

        class Root(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = models.load("mnist-a")

            def forward(self, v):
                return self.inner((v * v).sqrt())

        model, threats = Root(), {"one": LpBall(p, 4 if p == 0 else 0.5)}
        start = parameters(model)
        x, y = data.sample("mnist", limit=5)
        for step in STEPS.values():
            with pytest.raises(FloatingPointError, match=r"gradients must be finite, .* 5 of 5"):
                step(model, sgd(model), x, y, threats, iteration=0)
        with pytest.raises(FloatingPointError, match=r"gradients must be finite, .* 5 of 5"):
            validate(model, x, y, threats)
        assert torch.equal(parameters(model), start)

    def test_a_loss_that_is_not_finite_changes_nothing(self):
        model, (x, y) = network(), batch()
        with torch.no_grad():
            model[2].bias[0] = math.nan
        before = bits(model)
        for step in STEPS.values():
            with pytest.raises(FloatingPointError, match="`loss` must be finite, got nan"):
                step(model, sgd(model), x, y, THREATS, iteration=0)
        assert all(
            torch.equal(v.nan_to_num(), before[k].nan_to_num()) for k, v in bits(model).items()
        )


class TestPerturbations:
    @pytest.mark.parametrize("method", STEPS)
    @pytest.mark.parametrize("start", [None, RandomStart(5)], ids=["zero", "random"])
    def test_feasible_on_real_images(self, method, start):
        x, y = data.sample("mnist", limit=20)
        threats = {
            "linf": Threat(LpBall(math.inf, 0.3)),
            "l2": Threat(LpBall(2, 2.0)),
            "l1": Threat(LpBall(1, 10.0)),
            "l0": Threat(LpBall(0, 15)),
        }
        model = convnet(dropout=0.3)
        stats = STEPS[method](model, sgd(model), x, y, threats, steps=3, start=start, iteration=0)
        for k, threat in enumerate(threats.values()):
            delta = stats.perturbations[:, k]
            assert (threat.ball.norm(delta) <= threat.ball.eps * (1 + 1e-6)).all()
            assert (threat.ball.norm(delta) >= 0.5 * threat.ball.eps).float().mean() > 0.9
            assert ((x + delta >= 0) & (x + delta <= 1)).all()

    def test_rows_are_independent(self):
        model, (x, y) = network(), batch()
        rule, options = MinMax(0.5, 0.3), {"steps": 6}
        whole = ampgd_step(network(), sgd(model), x, y, THREATS, rule=rule, **options, iteration=0)
        for b in range(len(x)):
            one = slice(b, b + 1)
            alone = ampgd_step(
                network(), sgd(model), x[one], y[one], THREATS, rule=rule, **options, iteration=0
            )
            torch.testing.assert_close(alone.perturbations[0], whole.perturbations[b])
            torch.testing.assert_close(alone.row_weights[0], whole.row_weights[b])

    def test_a_random_start_belongs_to_the_row_and_changes_with_the_seed(self):
        x, y = batch()
        whole = perturb(network(), x, y, THREATS, steps=1, start=RandomStart(3), iteration=0)
        rows = torch.tensor([4, 2])
        part = perturb(
            network(), x[rows], y[rows], THREATS, steps=1, start=RandomStart(3, rows), iteration=0
        )
        torch.testing.assert_close(part, whole[rows])
        other = perturb(network(), x, y, THREATS, steps=1, start=RandomStart(4), iteration=0)
        assert (other - whole).abs().max() > 0.01

    def test_a_warm_start_continues(self):
        x, y = batch()
        rule = MinMax(0.2, 0.3)
        threats = {k: Threat(t.ball, 0.1, t.direction) for k, t in THREATS.items()}
        still = torch.optim.SGD(network().parameters(), 0.1)
        whole = ampgd_step(network(), still, x, y, threats, rule=rule, steps=5, iteration=0)
        half = ampgd_step(network(), still, x, y, threats, rule=rule, steps=3, iteration=0)
        start = WarmStart(half.perturbations, half.row_weights)
        rest = ampgd_step(
            network(), still, x, y, threats, rule=rule, steps=2, start=start, iteration=0
        )
        torch.testing.assert_close(rest.perturbations, whole.perturbations)
        torch.testing.assert_close(rest.row_weights, whole.row_weights)

    def test_warm_weights_for_all_rows(self):
        model, w = network(), torch.tensor([0.7, 0.2, 0.1])
        stats = ampgd_step(
            *(model, sgd(model), *batch(), THREATS),
            rule=Average(),
            start=WarmStart(row_weights=w),
            iteration=0,
        )
        torch.testing.assert_close(stats.row_weights, w.double().expand(7, 3))

    def test_plain_steps_are_steepest_and_cross_the_ball(self):
        assert Threat(LpBall(2, 2.0)).step_length(10) == 0.5
        assert Threat(LpBall(0, 30)).step_length(10) == 0.25
        gradient = torch.tensor([[3.0, -4.0]])
        box = torch.full((1, 2), 9.0)
        for p, expected in ((math.inf, [1.0, -1.0]), (2, [0.6, -0.8]), (1, [0.5, -0.5])):
            threat = Threat(LpBall(p, 5.0), 1.0)
            moved = threat.ascend(
                torch.zeros(1, 2), gradient, torch.ones(1), -box, box, 0, Schedule(1, 1)
            )
            torch.testing.assert_close(moved, torch.tensor([expected]))

    def test_sparse_steps_do_not_waste_entries_on_the_box(self):
        threat = Threat(LpBall(1, 5.0), 1.0, directions.SparseL1(1))
        lower, upper = torch.tensor([[0.0, -1.0]]), torch.ones(1, 2)
        gradient = torch.tensor([[-9.0, -1.0]])
        moved = threat.ascend(
            torch.zeros(1, 2), gradient, torch.ones(1), lower, upper, 0, Schedule(1, 1)
        )
        assert moved.tolist() == [[0.0, -1.0]]

    def test_a_radius_for_every_row(self):
        x, y = batch()
        eps = torch.linspace(0.05, 0.35, 7, dtype=torch.float64)
        delta = perturb(
            network(), x, y, {"linf": Threat(LpBall(math.inf, eps))}, steps=8, iteration=0
        )
        for b in range(7):
            one = {"linf": Threat(LpBall(math.inf, eps[b].item()))}
            alone = perturb(network(), x[b : b + 1], y[b : b + 1], one, steps=8, iteration=0)
            torch.testing.assert_close(alone[0], delta[b])

    def test_scaled(self):
        assert Threat(LpBall(2, 2.0), 0.5).scaled(0.5) == Threat(LpBall(2, 1.0), 0.25)
        assert Threat(LpBall(0, 5)).scaled(0.5).ball.eps == 3.0


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"threats": {}}, ValueError, "`threats` must name at least one threat"),
            (
                {"threats": [LpBall(2, 1.0)]},
                ValueError,
                "mapping from names to balls such as .* got a list",
            ),
            ({"threats": {"a": 0.3}}, TypeError, r"`threats\['a'\]` must be an LpBall or a Threat"),
            ({"steps": 0}, ValueError, "`steps` must be a whole number >= 1, got 0"),
            ({"iteration": -1}, ValueError, "`iteration` must be a whole number >= 0, got -1"),
            ({"iteration": None}, ValueError, "`iteration` must be a whole number >= 0, got None"),
            ({"iteration": 1.5}, ValueError, "`iteration` must be a whole number >= 0, got 1.5"),
            ({"mix": 1.5}, ValueError, r"`mix` must be in \[0, 1\], got 1.5"),
            ({"x": torch.full((7, 6), 2.0)}, ValueError, r"`x` must be finite and in \[0, 1\]"),
            (
                {"x": torch.full((7, 6), math.nan)},
                ValueError,
                r"`x` must be finite and in \[0, 1\]",
            ),
            ({"x": batch()[0].half()}, TypeError, r"got torch.float16; write x.float\(\)"),
            ({"x": batch()[0].byte()}, TypeError, "got torch.uint8; divide 8-bit images by 255"),
            ({"y": torch.zeros(3, dtype=torch.long)}, ValueError, r"`y` must have shape \(7,\)"),
            ({"y": torch.zeros(7, dtype=torch.bool)}, TypeError, "`y` must be integer class numb"),
            ({"y": torch.zeros(7)}, TypeError, "`y` must be integer class numbers"),
            ({"y": torch.arange(7)}, ValueError, "`y` must be in 0 ... 3, as the model has 4"),
            ({"y": torch.arange(7) - 5}, ValueError, "`y` must be >= 0, got a minimum of -5"),
            ({"loss": F.cross_entropy}, ValueError, 'reduction="none"'),
            ({"start": WarmStart(torch.zeros(7, 2, 6))}, ValueError, "`perturbations` must have"),
            (
                {"start": WarmStart(None, torch.ones(7, 3))},
                ValueError,
                "`row_weights` must be >= 0",
            ),
            (
                {"start": WarmStart(None, torch.ones(2))},
                ValueError,
                "`row_weights` must have shape",
            ),
            ({"start": RandomStart(0, torch.arange(3))}, ValueError, "`rows` must have shape"),
            ({"rule": "minmax"}, TypeError, r"`rule` must be .*, got 'minmax'; write MinMax\(\)"),
            ({"rule": MinMax}, TypeError, r"`rule` must be .*MinMax.*; write MinMax\(\)"),
            ({"threats": {"a": LpBall(math.inf, 8)}}, ValueError, "linf ball must be at most 1"),
            ({"threats": {"a": LpBall(0, 0.5)}}, ValueError, "l0 ball must be at least 1"),
        ],
    )
    def test_step(self, change, error, message):
        x, y = batch()
        arguments = {"x": x, "y": y, "threats": THREATS, "iteration": 0} | change
        model = network()
        before = parameters(model)
        with pytest.raises(error, match=message):
            ampgd_step(model, sgd(model), **arguments)
        assert torch.equal(parameters(model), before)

    @pytest.mark.parametrize("method", STEPS)
    def test_radii_that_cannot_be_meant_or_bound_nothing(self, method):
        x, y = batch()
        model = network()
        with pytest.raises(ValueError, match=r"linf ball must be at most 1, .* got 8"):
            STEPS[method](model, sgd(model), x, y, {"a": LpBall(math.inf, 8)}, iteration=0)
        # No two points of a cube of six sides are further apart than the root of 6.
        with pytest.warns(UserWarning, match=r"l2 ball is 500, .* \(6,\) .* than 2\.449"):
            STEPS[method](model, sgd(model), x, y, {"a": LpBall(2, 500)}, iteration=0, steps=1)

    def test_validate_and_perturb_look_at_radii_too(self):
        x, y = batch()
        wide = {"a": LpBall(math.inf, 8)}
        with pytest.raises(ValueError, match="linf ball must be at most 1"):
            validate(network(), x, y, wide)
        with pytest.raises(ValueError, match="linf ball must be at most 1"):
            perturb(network(), x, y, wide, iteration=0)

    @pytest.mark.parametrize("method", STEPS)
    def test_a_model_that_hides_its_gradient_is_said(self, method):
        class Hidden(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = network()

            def forward(self, v):
                return self.inner(v.detach())

        model, (x, y) = Hidden(), batch()
        with pytest.warns(UserWarning, match="the gradient is zero in all 7 images"):
            STEPS[method](model, sgd(model), x, y, BALLS, iteration=0, steps=3)

    @pytest.mark.parametrize("method", STEPS)
    def test_parameters_of_half_precision_are_refused(self, method):
        # Adam divides by its 1e-8, which is zero in float16: one step makes every parameter NaN.
        model, (x, y) = network().half(), batch()
        before = parameters(model)
        adam = torch.optim.Adam(model.parameters())
        with pytest.raises(TypeError, match=r"`model` .*float16.*; train in float32"):
            STEPS[method](model, adam, x.float(), y, BALLS, iteration=0, steps=1)
        assert torch.equal(parameters(model), before)

    @pytest.mark.parametrize("method", STEPS)
    def test_a_function_is_no_model_to_train(self, method):
        model, (x, y) = network(), batch()
        with pytest.raises(TypeError, match=r"`model` must be an nn\.Module, got function"):
            STEPS[method](lambda v: model(v), sgd(model), x, y, BALLS, iteration=0)

    def test_threat(self):
        with pytest.raises(ValueError, match="`step_size` must be positive"):
            Threat(LpBall(2, 1.0), step_size=0)
        with pytest.raises(ValueError, match="`step_size` must be given with direction=raw"):
            Threat(LpBall(2, 1.0), direction=directions.raw)


def test_adversarial_training_makes_a_network_robust():
    """On real digits: the union accuracy of AMPGD is far above that of clean training."""
    x, y = data.sample("mnist")
    threats = {"linf": Threat(LpBall(math.inf, 0.1)), "l2": Threat(LpBall(2, 1.0))}

    def union(model):
        delta = perturb(model, x[800:], y[800:], threats, steps=10, iteration=0)
        images = (x[800:, None] + delta).flatten(0, 1)
        right = model.eval()(images).argmax(dim=1) == y[800:].repeat_interleave(2)
        return right.view(-1, 2).all(dim=1).float().mean().item()

    def train(adversarial):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.Adam(model.parameters(), 0.003)
        for epoch in range(12):
            for n, i in enumerate(range(0, 800, 50), 16 * epoch):
                images, labels = x[i : i + 50], y[i : i + 50]
                if adversarial:
                    ampgd_step(model, optimizer, images, labels, threats, steps=4, iteration=n)
                else:
                    optimizer.zero_grad()
                    F.cross_entropy(model(images), labels).backward()
                    optimizer.step()
        return union(model)

    assert train(adversarial=True) > train(adversarial=False) + 0.2
