"""Random search, and the schedule of a restart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from saddlepoint import data, models, streams
from saddlepoint.evaluation import robust_accuracy
from saddlepoint.evaluation.ours import OurAttack, RandomSearch
from saddlepoint.problems import Ensemble
from saddlepoint.projections import LpBall
from saddlepoint.solver.proposals import squares
from saddlepoint.solver.schedule import Schedule
from saddlepoint.solver.search import random_search


class Steps(nn.Module):
    """A network behind a staircase: right almost everywhere, gradient zero everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.network = models.load("mnist-a")

    def forward(self, x: Tensor) -> Tensor:
        return self.network((x * 6).round() / 6 + 0 * x)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    return data.sample("mnist", limit=40)


def _by_hand(
    problem: Ensemble, ball: LpBall, delta: Tensor, share: float, seed: int, stream: int
) -> Tensor:
    """A proposal for p = inf or 2, row by row and entry by entry."""
    images = delta if delta.dim() > 2 else delta.reshape(len(delta), 1, 1, -1)
    low, high = problem.lower.reshape(images.shape), problem.upper.reshape(images.shape)
    found = images.clone()
    for number, row in enumerate(problem.rows):
        draws = streams.uniform(seed, row[None], stream, 3 + images.shape[1])[0]
        lines, columns = (
            (high[number] > low[number]).any(dim=0).any(dim=axis).nonzero().flatten().tolist()
            for axis in (1, 0)
        )
        tall, wide = lines[-1] - lines[0] + 1, columns[-1] - columns[0] + 1
        area = share * tall * wide
        side = max(1, round(math.sqrt(area) if tall > 1 else area))
        side_tall, side_wide = min(side, tall), min(side, wide)
        top = lines[0] + int(draws[0] * (tall - side_tall + 1))
        left = columns[0] + int(draws[1] * (wide - side_wide + 1))
        square = torch.zeros_like(images[0], dtype=torch.bool)
        square[:, top : top + side_tall, left : left + side_wide] = True
        signs = torch.where(draws[3:] > 0.5, 1.0, -1.0).reshape(-1, 1, 1)
        eps = float(torch.as_tensor(ball.eps).expand(len(delta))[number])
        if ball.p == math.inf:
            for sign in (1, -1):
                end = (sign * signs * eps).expand_as(images[number])
                end = end.maximum(low[number]).minimum(high[number])
                found[number] = torch.where(square, end, images[number])
                if not torch.equal(found[number], images[number]):
                    break
        else:
            push = square * signs
            moved = images[number] + push * (draws[2] ** 2 / push.norm()) * eps
            bounds = (low[number][None], high[number][None])
            found[number] = LpBall(2, eps).project(moved[None], *bounds)[0]
    return found.reshape(delta.shape)


@pytest.mark.parametrize("p", [2, math.inf])
@pytest.mark.parametrize("shape", [(5, 3, 7, 9), (5, 8)])
def test_squares_are_what_they_are_by_hand(shape: tuple[int, ...], p: float) -> None:
    """Also where a part of an image cannot move, rows have radii of their own, and some have left."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(shape, generator=generator)
    problem = Ensemble([nn.Identity()], x, torch.zeros(5, dtype=torch.long))
    problem.lower[1, ..., :4] = problem.upper[1, ..., :4] = 0.0
    ball = LpBall(p, torch.linspace(0.1, 0.5, 5))
    shares, numbers = [0.4, 0.1, 0.02, 0.4], [11, 12, 13, 1 << 44]
    drawn = squares(problem, ball, shares, 3, numbers)
    delta = torch.zeros(shape)
    for number, share in enumerate(shares):
        if number == 2:
            few = torch.tensor([0, 1, 4])
            problem, ball, delta = problem.take(few), ball.take(few), delta[few]
            drawn = drawn.take(few)
        moved = drawn.propose(number, problem, ball, delta)
        expected = _by_hand(problem, ball, delta, share, 3, numbers[number])
        assert (moved - expected).abs().max() <= (0 if p == math.inf else 1e-6)
        assert (moved != delta).flatten(1).any(dim=1).all()
        again = drawn.propose(number, problem, ball, moved)  # to where it is: to the other end
        assert p == 2 or (again != moved).flatten(1).any(dim=1).all()
        delta = moved


class TestRandomSearch:
    def test_stays_in_ball_and_box_and_lowers_the_margin(self, digits):
        x, y = digits
        network, rows, margins = models.load("mnist-a"), torch.arange(40), []
        for queries in (
            1,
            60,
        ):  # with one query there is nothing but the start, which is the same for both
            seen = []

            def watched(images, seen=seen):
                seen.append(len(images))
                return network(images)

            found = random_search(watched, x, y, 0.03, queries=queries, seed=1, rows=rows)
            assert len(seen) == queries
            assert (found - x).abs().max() <= 0.03 + 1e-6
            assert found.min() >= 0
            assert found.max() <= 1
            logits = network(found).detach()
            others = logits.scatter(1, y[:, None], -math.inf).amax(dim=1)
            margins.append(logits[rows, y] - others)
        assert (margins[1] <= margins[0]).all()
        assert (margins[1] < margins[0]).float().mean() > 0.9

    def test_an_answer_that_is_not_a_number_is_wrong_and_ends_the_search(self):
        asked = []

        def broken(images):
            asked.append(len(images))
            return torch.tensor([[math.nan, 1.0], [2.0, 1.0]])[: len(images)]

        x, y = torch.full((2, 1, 4, 4), 0.5), torch.tensor([0, 0])
        random_search(broken, x, y, 0.1, queries=3, seed=0, rows=torch.arange(2))
        assert asked == [2, 1]  # whoever is asked first answers NaN and is done

    def test_a_row_does_not_depend_on_the_others(self, digits):
        x, y = digits
        network = models.load("mnist-a").double()
        whole = random_search(
            network, x.double(), y, 0.1, queries=40, seed=2, rows=torch.arange(40)
        )
        few = torch.tensor([31, 4, 17])
        part = random_search(network, x[few].double(), y[few], 0.1, queries=40, seed=2, rows=few)
        assert torch.equal(part, whole[few])
        other = random_search(network, x[few].double(), y[few], 0.1, queries=40, seed=3, rows=few)
        assert not torch.equal(other, part)

    def test_stops_at_the_first_misclassified_image(self, digits):
        x, y = digits
        shown = torch.zeros(len(x), dtype=torch.long)
        first: dict[int, Tensor] = {}
        network = models.load("mnist-a")

        def watched(images):
            logits = network(images)
            # Rows that are not fooled yet come in order, all of them.
            left = [row for row in range(len(x)) if row not in first]
            assert len(images) == len(left)
            for row, image, said in zip(left, images, logits.argmax(dim=1), strict=True):
                shown[row] += 1
                if said != y[row]:
                    first[row] = image.clone()
            return logits

        found = random_search(watched, x, y, 0.25, queries=50, seed=0, rows=torch.arange(40))
        assert 5 < len(first) < 40
        for row, image in first.items():
            assert torch.equal(found[row], image)
        assert shown.max() == 50

    def test_colour_images_get_a_sign_per_channel_and_vectors_stretches(self):
        def bright(images: Tensor) -> Tensor:
            red = (
                images.flatten(2)[:, 0].mean(dim=1) if images.dim() == 4 else images[:, :3].mean(1)
            )
            blue = (
                images.flatten(2)[:, 2].mean(dim=1) if images.dim() == 4 else images[:, 3:].mean(1)
            )
            return torch.stack([red, blue], dim=1)

        rows, y = torch.arange(6), torch.zeros(6, dtype=torch.long)
        for shape in ((6, 3, 8, 8), (6, 6)):
            x = torch.full(shape, 0.5)
            x[:, 0] += 0.05  # the first class, but not for long
            found = random_search(bright, x, y, 0.2, queries=200, seed=0, rows=rows)
            assert (bright(found).argmax(dim=1) == 1).all()

    def test_finds_what_gradients_cannot(self, digits):
        x, y = digits
        model = Steps().eval()
        threats = {"linf": LpBall(math.inf, 0.2)}
        with pytest.warns(UserWarning, match="gradient is zero"):
            blind = robust_accuracy(model, x, y, threats, {math.inf: [OurAttack(steps=10)]})
        with pytest.warns(UserWarning, match="gradient is zero"):
            quick = robust_accuracy(model, x, y, threats)
        broken = {each.attack: int(each.broken.sum()) for each in quick.outcomes}
        assert broken["search"] > 10
        assert quick.union < blind.union - 0.25

    def test_queries_are_counted(self, digits):
        x, y = digits
        suite = {math.inf: [RandomSearch(queries=7)]}
        result = robust_accuracy(
            models.load("mnist-a"), x, y, {"linf": LpBall(math.inf, 1e-4)}, suite
        )
        # Seven for every image that is classified correctly.
        assert result.outcomes[0].queries == 7 * int(result.correct.sum())


class TestSchedule:
    @pytest.mark.parametrize("steps", [1, 2, 7, 50])
    @pytest.mark.parametrize(("p", "most"), [(0, 1), (1, 5), (2, 3), (math.inf, 1)])
    @pytest.mark.parametrize(("restart", "larger"), [(1, 1), (2, 2), (3, 4), (4, 1), (9, 4)])
    def test_the_ball_shrinks_to_the_true_one(self, steps, p, most, restart, larger):
        most = most if most == 1 else most * larger
        ball, plan = LpBall(p, 4.0), Schedule(steps, restart)
        radii = [plan.ball(ball, number).eps for number in range(steps + 1)]
        assert radii == sorted(radii, reverse=True)
        assert radii[0] == 4.0 * most
        late = [number for number in range(steps + 1) if number >= max(1, 2 * steps / 3)]
        assert all(plan.ball(ball, number) is ball for number in late)
        assert all(Schedule(steps, restart=0).ball(ball, n) is ball for n in range(steps + 1))

    def test_every_row_has_its_own_radius(self):
        plan = Schedule(9, restart=1)
        eps = torch.tensor([1.0, 40.0])
        torch.testing.assert_close(plan.ball(LpBall(1, eps), 3).eps, 3 * eps)
        delta = torch.zeros(2, 784)
        assert plan.entries(LpBall(1, eps), delta, 0).tolist() == [78, 78]
        assert plan.entries(LpBall(1, eps), delta, 8).tolist() == [1, 20]
        for row in range(2):
            alone = [plan.entries(LpBall(1, eps[row].item()), delta, n) for n in range(9)]
            assert alone == [plan.entries(LpBall(1, eps), delta, n)[row].item() for n in range(9)]

    @pytest.mark.parametrize("each", [False, True], ids=["one radius", "radii"])
    def test_the_first_restart_moves_two_thirds_of_what_the_projection_left(self, each):
        plan, eps = Schedule(9, restart=0), torch.tensor([8.0, 8.0, 8.0, 8.0])
        ball = LpBall(1, eps if each else 8.0)
        delta = torch.zeros(4, 1, 28, 28)
        for row, count in enumerate((0, 12, 31, 784)):
            delta[row].view(-1)[:count] = -0.1
        first = torch.as_tensor(plan.entries(ball, delta, 0))
        assert first.unique().tolist() == [39]  # a twentieth of 784
        # Half as many as the radius at least, a twentieth at most.
        assert plan.entries(ball, delta, 1).tolist() == [4, 8, 20, 39]
        assert plan.most_entries(8.0, 784, 1) == 39

    def test_entries_only_for_p_1_and_never_more_than_there_are(self):
        plan = Schedule(9, restart=1)
        assert plan.entries(LpBall(2, 2.0), torch.zeros(1, 784), 3) is None
        assert plan.entries(LpBall(1, 500.0), torch.zeros(1, 12), 0) == 12
        assert Schedule(9, restart=0).entries(LpBall(1, 500.0), torch.ones(1, 12), 3).tolist() == [
            12
        ]
        assert Schedule(1, restart=1).entries(LpBall(1, 10.0), torch.zeros(1, 784), 0) == 78
