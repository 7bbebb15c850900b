"""Nothing that is not finite, and no model that answers by chance or by its company, passes for a result."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint import transforms as T
from saddlepoint.solver import watch

SOLVERS = [sp.attack, sp.apgda]
BALL = sp.LpBall(math.inf, 0.1)


@pytest.fixture(scope="module")
def digits(network: nn.Module) -> tuple[Tensor, Tensor]:
    """Twelve images that the network has right."""
    x, y = sp.data.sample("mnist", limit=60)
    right = (network(x).argmax(dim=1) == y).nonzero().flatten()[:12]
    return x[right], y[right]


def linear(images: Tensor) -> Tensor:
    """Right about label 0 wherever the images are dark; with a gradient everywhere."""
    total = images.flatten(1).sum(dim=1)
    return torch.stack([2 - total, total], dim=1)


X = torch.linspace(0.05, 0.2, 7).unsqueeze(1).expand(7, 4).contiguous()
Y = torch.zeros(7, dtype=torch.long)


def at_row(row: int, images: Tensor) -> Tensor:
    """Where an image belongs to that row of X, whatever was added to it, (n, 1)."""
    return ((images.detach()[:, :1] - X[row, 0]).abs() < 1e-3).to(images)


def root_beyond(limit: float, images: Tensor) -> Tensor:
    """A root of zero where the sum of an image is above the limit: finite, without a gradient, (n, 1)."""
    total = images.sum(dim=1, keepdim=True)
    return (total * (total.detach() < limit)).sqrt()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
class TestFinite:
    def test_a_root_at_zero_has_no_gradient_and_is_refused(
        self, solver: Callable, accumulate: bool, network: nn.Module, digits: tuple[Tensor, Tensor]
    ) -> None:
        # On [0, 1] the root of the square is the image; its gradient at a black pixel is not a number.
        problem = sp.Ensemble([network, lambda v: network((v * v).sqrt())], *digits)
        with pytest.raises(
            ValueError,
            match=r"gradients must be finite, .* in row 0, domain 1 \(model 2\), at the start; .*clamp_min",
        ):
            solver(problem, BALL, accumulate=accumulate)
        mended = sp.Ensemble([lambda v: network((v * v).clamp_min(1e-12).sqrt())], *digits)
        assert solver(mended, BALL, steps=20, accumulate=accumulate).fooled.any()

    def test_a_gradient_beyond_the_first_rows_is_seen(
        self, solver: Callable, accumulate: bool
    ) -> None:
        # Only row 5 meets the root of zero.
        def model(images: Tensor) -> Tensor:
            root = (images[:, 0] - X[5, 0]).square().sqrt()
            return linear(images) + 0 * root.unsqueeze(1)

        problem = sp.Ensemble([linear, model], X, Y, names=["a", "b"])
        with pytest.raises(ValueError, match=r"gradients .* row 5, domain 1 \(b\), at the start"):
            solver(problem, BALL, accumulate=accumulate)
        part = problem.take(torch.tensor([6, 5, 0]))  # rows keep their numbers
        with pytest.raises(ValueError, match=r"gradients .* row 5, domain 1 \(b\)"):
            solver(part, BALL, accumulate=accumulate, batch_size=1)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_logits_of_every_row_are_finite_at_the_start(
        self, solver: Callable, accumulate: bool, bad: float
    ) -> None:
        def model(images: Tensor) -> Tensor:
            return torch.where(at_row(6, images) > 0, bad, linear(images))

        problem = sp.Ensemble([linear, model], X, Y)
        for batch_size in (None, 2):
            with pytest.raises(
                ValueError,
                match=r"logits and losses .* row 6, domain 1 \(model 2\), at the start; look at",
            ):
                solver(problem, sp.LpBall(2, 1e-4), accumulate=accumulate, batch_size=batch_size)

    def test_a_hidden_class_is_no_reason_to_be_fooled(
        self, solver: Callable, accumulate: bool
    ) -> None:
        # The margin is finite although a logit is not.
        def model(images: Tensor) -> Tensor:
            return torch.cat([linear(images), torch.full_like(images[:, :1], -math.inf)], dim=1)

        with pytest.raises(ValueError, match="logits and losses must be finite"):
            solver(sp.Ensemble([model], X, Y), BALL, accumulate=accumulate)

    def test_losses_of_every_row_are_finite_at_the_start(
        self, solver: Callable, accumulate: bool
    ) -> None:
        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            margin = sp.cw_margin(logits, labels)
            return torch.where(logits[..., 1].detach() > 0.75, math.nan, margin)  # rows 6 and on

        with pytest.raises(ValueError, match=r"logits and losses .* row 6, domain 0"):
            solver(sp.Ensemble([linear], X, Y), BALL, loss=loss, accumulate=accumulate)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_what_becomes_infinite_on_the_way_is_refused(
        self, solver: Callable, accumulate: bool, bad: float
    ) -> None:
        def model(images: Tensor) -> Tensor:
            margin = 10 * linear(images)  # a long way to go, so that no row is fooled before
            return torch.where(images.sum(dim=1, keepdim=True) > 0.9, bad, margin)

        problem = sp.Ensemble([linear, model], X[:6], Y[:6])
        with pytest.raises(ValueError, match=r"logits .* domain 1 .*after [1-9]\d* steps"):
            solver(problem, sp.LpBall(math.inf, 0.12), steps=20, accumulate=accumulate)

    def test_a_gradient_that_breaks_on_the_way_is_refused(
        self, solver: Callable, accumulate: bool
    ) -> None:
        def model(images: Tensor) -> Tensor:
            return 10 * linear(images) + 0 * root_beyond(0.9, images)

        problem = sp.Ensemble([linear, model], X[:6], Y[:6])
        with pytest.raises(ValueError, match=r"gradients .* domain 1 .*after [1-9]\d* steps"):
            solver(problem, sp.LpBall(math.inf, 0.12), steps=20, accumulate=accumulate)


def test_rows_that_need_no_gradient_are_not_asked_for_one() -> None:
    # Misclassified from the start: nothing is followed, and nothing claimed that is not so.
    def model(images: Tensor) -> Tensor:
        return linear(images) + 0 * (images[:, :1] - images[:, :1].detach()).square().sqrt()

    result = sp.attack(sp.Ensemble([model], X, torch.ones_like(Y)), BALL, steps=5)
    assert result.fooled.all()
    assert not result.delta.any()


def test_draws_that_no_attack_has_seen_must_be_finite_too() -> None:
    # One rotation in a few hundred leaves a corner black.
    def model(images: Tensor) -> Tensor:
        answer = linear(images)
        if not torch.is_grad_enabled() and len(images) == 7:  # when results are judged
            answer = answer * math.nan
        return answer

    x = X.reshape(7, 1, 2, 2)
    problem = sp.Transformed(model, [T.random_rotate(-5, 5)], x, Y)
    for solver in SOLVERS:
        with pytest.raises(ValueError, match="logits and losses must be finite"):
            solver(problem, BALL, steps=2, accumulate=False)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", ["logits", "gradients"])
def test_where_looks_are_rare_the_error_still_comes_before_the_result(
    solver: Callable, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(watch._PATIENCE, "cpu", 1000)  # as on an accelerator
    calls = 0

    def model(images: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        total = images.sum(dim=1, keepdim=True)
        if kind == "logits":
            return torch.where(total > 0.9, math.nan, 10 * linear(images))
        return 10 * linear(images) + 0 * root_beyond(0.9, images)

    problem = sp.Ensemble([model], X[:6], Y[:6])
    with pytest.raises(ValueError, match=f"{kind} .* row .* domain 0 .*after"):
        solver(problem, sp.LpBall(math.inf, 0.12), steps=20)
    assert calls >= 4 + 21 if solver is sp.apgda else calls > 4

    def stop(progress: sp.Progress) -> None:
        if progress.step == 19:
            raise KeyboardInterrupt

    if solver is sp.attack and kind == "gradients":
        with pytest.raises(ValueError, match="gradients must be finite"):
            sp.attack(problem, sp.LpBall(math.inf, 0.12), steps=20, callback=stop)


class Noisy(nn.Module):
    def __init__(self, network: nn.Module, size: float) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, images: Tensor) -> Tensor:
        logits = self.network(images)
        return logits + self.size * torch.randn_like(logits)


def functional_dropout(network: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda images: network(F.dropout(images, 0.5))


def functional_batch_norm(network: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda images: network(F.batch_norm(images, None, None, training=True))


@pytest.mark.parametrize("solver", SOLVERS)
class TestAnswers:
    @pytest.mark.parametrize("size", [0.2, 3.0])
    def test_noise_is_refused(self, solver: Callable, size: float, network, digits) -> None:
        problem = sp.Ensemble([network, Noisy(network, size).eval()], *digits)
        match = (
            r"domain 1 \(model 2\) must answer the same when asked twice.*saddlepoint\.Transformed"
        )
        with pytest.raises(ValueError, match=match):
            solver(problem, BALL)

    def test_functional_dropout_is_refused(self, solver: Callable, network, digits) -> None:
        with pytest.raises(ValueError, match=r"asked twice.*dropout into evaluation mode"):
            solver(sp.Ensemble([functional_dropout(network)], *digits), BALL)

    def test_answers_that_depend_on_other_images_are_refused(
        self, solver: Callable, network, digits
    ) -> None:
        problem = sp.Ensemble([functional_batch_norm(network)], *digits)
        with pytest.raises(ValueError, match=r"answer every image by itself.*model\.eval\(\)"):
            solver(problem, BALL)
        groups = sp.Universal(functional_batch_norm(network), *sp.data.group(*digits, size=3))
        with pytest.raises(ValueError, match="answer every image by itself"):
            solver(groups, BALL)

    @pytest.mark.parametrize("size", [1, 7])
    def test_one_batch_size_only_is_refused_whatever_the_model_says(
        self, solver: Callable, network, digits, size: int
    ) -> None:
        """Told by asking for other numbers of images, not by the words of the error."""

        def fixed(images: Tensor) -> Tensor:
            if len(images) != size:
                raise KeyError("compiled")
            return network(images)

        problem = sp.Ensemble([fixed], digits[0][:7], digits[1][:7])
        match = (
            f"must take any number of images.* an answer for {size} and KeyError for 4: 'compiled'"
        )
        with pytest.raises(ValueError, match=match):
            solver(problem, BALL)

    def test_what_else_a_model_raises_is_its_own(self, solver: Callable, digits) -> None:
        def broken(images: Tensor) -> Tensor:
            raise RuntimeError("shape '[7, 784]' is invalid for input of size 3136")

        with pytest.raises(RuntimeError, match="is invalid for input of size"):
            solver(sp.Ensemble([broken], digits[0][:7], digits[1][:7]), BALL)

    def test_one_batch_size_only_is_refused(self, solver: Callable, network, digits) -> None:
        def fixed(images: Tensor) -> Tensor:
            assert len(images) == 4, "this program takes 4 images"
            return network(images)

        problem = sp.Ensemble([fixed], digits[0][:4], digits[1][:4])
        match = "must take any number of images, got AssertionError for a single one: this program"
        with pytest.raises(ValueError, match=match):
            solver(problem, BALL)

    def test_an_axis_that_one_image_loses_is_noticed(
        self, solver: Callable, network, digits
    ) -> None:
        problem = sp.Ensemble([lambda images: network(images).squeeze()], *digits)
        with pytest.raises(ValueError, match=r"single one: .*one row for each of 1 images"):
            solver(problem, BALL)

    def test_random_transforms_where_they_belong_are_welcome(
        self, solver: Callable, network, digits
    ) -> None:
        problem = sp.Transformed(network, [T.random_rotate(-20, 20), T.identity], *digits)
        assert solver(problem, BALL, steps=2).fooled.shape == (12, 2)

    def test_low_precision_is_no_chance(self, solver: Callable, network, digits) -> None:
        def rounded(images: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return network(images)

        convolutional = sp.models.load("mnist-c").to(torch.bfloat16)
        assert solver(sp.Ensemble([rounded, convolutional], *digits), BALL, steps=2).delta.any()

    def test_no_more_than_four_rows_are_asked(self, solver: Callable, network, digits) -> None:
        sizes: list[int] = []

        def watched(images: Tensor) -> Tensor:
            sizes.append(len(images))
            return network(images)

        solver(sp.Ensemble([watched], *digits), BALL, steps=0)
        assert sizes == [4, 4, 1, 4, 12, 12]  # the last one asks again for the verdict


def masked(logits: Tensor) -> Tensor:
    """One class more that nothing is ever taken for, as in models that mask classes."""
    return torch.cat([logits, torch.full((len(logits), 1), -1e9)], dim=1)


BY_CHANCE = {
    "beside a hidden class": lambda net, v: masked(net(v) + 3 * torch.randn(len(v), 10)),
    "above a common offset": lambda net, v: net(v) + 1e4 + 3 * torch.randn(len(v), 10),
}
BY_COMPANY = {
    "beside a hidden class": lambda net, v: masked(net(v - v.mean(0) + 0.1)),
    "above a common offset": lambda net, v: net(v - v.mean(0) + 0.1) + 1e4,
    "by little": lambda net, v: (
        net(v) + (v.mean((1, 2, 3)) - v.mean()).sign()[:, None] * torch.tensor([1.0, -1.0] * 5)
    ),
}
BY_THEMSELVES = {
    "a hidden class": lambda net, v: masked(net(v)),
    "most classes hidden": lambda net, v: torch.cat([net(v), torch.full((len(v), 90), -1e9)], 1),
    "a common offset": lambda net, v: net(v) + 1e4,
    "an offset of each image": lambda net, v: net(v) + 1e3 * v.mean((1, 2, 3))[:, None],
    "huge logits": lambda net, v: 1e6 * net(v),
    "tiny logits": lambda net, v: 1e-6 * net(v),
    "two classes": lambda net, v: net(v)[:, :2],
    "rounding": lambda net, v: net(v) * (1 + 1e-5 * torch.randn(len(v), 10)),
}


@pytest.mark.parametrize("solver", SOLVERS)
class TestScale:
    """What matters is the differences among the classes that can be answered, whatever their size."""

    @pytest.mark.parametrize("kind", BY_CHANCE)
    def test_chance_is_seen(self, solver: Callable, kind: str, network, digits) -> None:
        problem = sp.Ensemble([lambda v: BY_CHANCE[kind](network, v)], *digits)
        with pytest.raises(ValueError, match="must answer the same when asked twice"):
            solver(problem, BALL, steps=2)

    @pytest.mark.parametrize("kind", BY_COMPANY)
    def test_company_is_seen(self, solver: Callable, kind: str, network, digits) -> None:
        problem = sp.Ensemble([lambda v: BY_COMPANY[kind](network, v)], *digits)
        with pytest.raises(ValueError, match="must answer every image by itself"):
            solver(problem, BALL, steps=2)

    @pytest.mark.parametrize("kind", BY_THEMSELVES)
    def test_the_others_pass(self, solver: Callable, kind: str, network, digits) -> None:
        labels = digits[1].clamp_max(1) if kind == "two classes" else digits[1]
        problem = sp.Ensemble([lambda v: BY_THEMSELVES[kind](network, v)], digits[0], labels)
        result = solver(problem, BALL, steps=2)
        said = BY_THEMSELVES[kind](network, result.adversarial).argmax(dim=1)
        assert torch.equal(result.fooled[:, 0], said != labels)


def test_how_far_answers_moved_is_measured_among_the_classes_that_count() -> None:
    before = torch.tensor([[4.0, 2.0, 0.0, -1e9], [4.0, 2.0, 0.0, -1e9]])
    after = torch.tensor([[104.0, 102.0, 100.0, -1e9], [4.0, 2.5, 0.0, -1e9]])
    # The gaps to the largest logit are 0, 2, 4 and 1e9, the (upper) median of those that count is 4: the
    # second row moved by 0.5 in a gap of 2, which is held against 2 + 4.
    moves = watch.moved(before, after)
    assert moves[0] < 1e-6
    assert moves[1].item() == pytest.approx(0.5 / 6, rel=1e-3)
    assert watch.moved(before, before * math.nan).isnan().all()


class TestAskedAgain:
    """A verdict is what the model answers when asked again, not what it once said on the way."""

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_chance_that_slips_through_the_first_look_is_no_success(
        self, solver: Callable, network, digits
    ) -> None:
        calls: list[int] = []
        draw = torch.Generator().manual_seed(0)

        def sometimes(images: Tensor) -> Tensor:
            calls.append(len(images))
            # After five looks there are three evaluations: noise meets the first and the last.
            noise = 30 * torch.randn(len(images), 10, generator=draw) if len(calls) in (6, 8) else 0
            return network(images) + noise

        problem = sp.Ensemble([sometimes], *digits)
        match = r"domain 0 \(model 1\) must answer the same when asked again.*Transformed"
        with pytest.raises(ValueError, match=match):
            solver(problem, sp.linf(0.01), steps=2)

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_at_a_tie_the_answer_when_asked_again_counts(self, solver: Callable) -> None:
        def rounding(images: Tensor) -> Tensor:
            last = -1e-6 if torch.is_grad_enabled() else 1e-6  # verdicts are asked for without
            flat = images.flatten(1)
            tie = torch.stack([flat[:, 0], flat[:, 1] + last], dim=1)
            return torch.cat([tie, flat[:, 2:3] - 5], dim=1)

        problem = sp.Ensemble([rounding], torch.full((3, 4), 0.5), torch.zeros(3, dtype=torch.long))
        result = solver(problem, sp.linf(0.0), steps=0)
        assert result.fooled.all()

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_verdicts_of_sound_models_stay_and_no_evaluation_is_counted_for_them(
        self, solver: Callable, network, digits
    ) -> None:
        problem = sp.Ensemble([network], *digits)
        result = solver(problem, BALL, steps=3)
        assert torch.equal(result.fooled, sp.success_rates(problem, result.delta).fooled)
        assert int(result.num_forwards.max()) <= 4
