"""Robust accuracy: attacks that lie, crash and tamper, and exact distances to planes."""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles import distance_to_plane
from saddlepoint import LpBall, RobustAccuracy, robust_accuracy
from saddlepoint.evaluation import (
    AbstractAttack,
    AttackFailedError,
    EvaluationProgress,
    OurAttack,
    Outcome,
    Page,
    Suite,
    Target,
    judge,
    wilson,
)
from saddlepoint.evaluation.streamed import joined
from saddlepoint.evaluation.verdicts import is_right
from stand_ins import Memory

NORMS = [math.inf, 2.0, 1.0, 0.0]
LINF = {"linf": LpBall(math.inf, 0.2)}


class Plane(nn.Module):
    """Two classes; the margin of class 0 is w @ x + b."""

    def __init__(self, w: list[float] | Tensor, b: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(w, dtype=torch.float64))
        self.b = b
        self.eval()

    def margin(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.w.to(x.dtype) + self.b

    def forward(self, x: Tensor) -> Tensor:
        margin = self.margin(x)
        return torch.stack([margin, -margin], dim=1)


# Right (class 0) as long as the first number is above 0.5; distances 0.1, 0.3, 0.15, 0.4 in every norm.
LINE = Plane([1.0, 0.0], -0.5)
X = torch.tensor([[0.6, 0.9], [0.8, 0.9], [0.65, 0.9], [0.9, 0.9]], dtype=torch.float64)
Y = torch.zeros(4, dtype=torch.long)
DISTANCE = torch.tensor([0.1, 0.3, 0.15, 0.4], dtype=torch.float64)


@dataclass
class Fake(AbstractAttack):
    """An attack that does what it is told."""

    act: Callable[[Target], Tensor]
    name: str = "fake"
    calls: int = 1
    minimal: bool = False
    rows: list[list[int]] = field(default_factory=list)

    def run(self, target: Target) -> Tensor:
        self.rows.append(target.rows.tolist())
        return self.act(target)


def move(target: Target, shift: float) -> Tensor:
    """The first number lower by so much."""
    images = target.x.clone()
    images[:, 0] -= shift
    return images


def across(target: Target) -> Tensor:
    """The nearest misclassified image of LINE, whatever the radius."""
    images = target.x.clone()
    images[:, 0] = 0.5 - 1e-9
    return images


def honest(name: str = "honest") -> Fake:
    return Fake(across, name, minimal=True)


def suite(*attacks: AbstractAttack, p: float = math.inf) -> Mapping[float, list[AbstractAttack]]:
    return {p: list(attacks)}


def evaluate(
    *attacks: AbstractAttack, threats: Mapping[str, LpBall] = LINF, **options
) -> RobustAccuracy:
    return robust_accuracy(LINE, X, Y, threats, suite(*attacks), **options)


def same(one: Outcome, other: Outcome) -> bool:
    tables = ("attacked", "broken", "distance")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in tables)


# ------------------------------------------------------------------------------------------ liars


def raises(error: BaseException) -> Callable[[Target], Tensor]:
    def act(target: Target) -> Tensor:
        raise error

    return act


def constant(value: float) -> Callable[[Target], Tensor]:
    return lambda target: torch.full_like(target.x, value)


LIARS: dict[str, tuple[Callable[[Target], object], str, str]] = {
    "out of the ball": (lambda t: move(t, 0.45), "complete", "4 candidates outside ball or box"),
    "out of the box": (lambda t: move(t, 5.0), "complete", "4 candidates outside ball or box"),
    "barely out of the box": (
        lambda t: torch.stack([t.x[:, 0] - 0.2, t.x[:, 1] + 0.102], dim=1),
        "complete",
        "2 candidates outside ball or box",
    ),
    "black": (constant(0.0), "complete", "4 candidates outside ball or box"),
    "enormous": (constant(-1e300), "complete", "4 candidates outside ball or box"),
    "integers": (lambda t: torch.zeros_like(t.x).long(), "complete", "4 candidates outside"),
    "nan": (constant(math.nan), "complete", "4 candidates were not numbers"),
    "one nan": (
        lambda t: across(t).index_fill(1, torch.tensor([1]), math.nan),
        "complete",
        "4 candidates were not numbers",
    ),
    "inf": (constant(math.inf), "complete", "4 candidates were not numbers"),
    "minus inf": (constant(-math.inf), "complete", "4 candidates were not numbers"),
    "unchanged": (lambda t: t.x, "complete", ""),
    "still right": (lambda t: move(t, 0.05), "complete", ""),
    "too few": (
        lambda t: across(t)[:-1],
        "failed",
        "failed on 4 images: ValueError: `candidates` must have",
    ),
    "too many": (lambda t: across(t).repeat(2, 1), "failed", "failed on 4 images: ValueError"),
    "another shape": (lambda t: across(t)[:, None], "failed", "failed on 4 images: ValueError"),
    "a scalar": (lambda t: torch.tensor(0.0), "failed", "failed on 4 images: ValueError"),
    "none": (lambda t: None, "failed", "failed on 4 images: ValueError"),
    "a list": (lambda t: across(t).tolist(), "failed", "failed on 4 images: ValueError"),
    "a pair": (lambda t: (across(t), t.y), "failed", "failed on 4 images: ValueError"),
    "numpy": (lambda t: across(t).numpy(), "failed", "failed on 4 images: ValueError"),
    "on no device": (lambda t: across(t).to("meta"), "failed", "failed on 4 images: "),
    "crash": (
        raises(RuntimeError("boom\nbang")),
        "failed",
        "failed on 4 images: RuntimeError: boom bang",
    ),
    "assertion": (raises(AssertionError()), "failed", "failed on 4 images: AssertionError"),
    "memory": (
        raises(MemoryError("no more")),
        "failed",
        "failed on 4 images: MemoryError: no more",
    ),
}


@pytest.mark.parametrize("lie", LIARS)
@pytest.mark.parametrize("minimal", [False, True])
def test_no_lie_changes_a_number_and_the_others_go_on(lie: str, minimal: bool) -> None:
    act, status, note = LIARS[lie]
    liar = Fake(act, "liar", minimal=minimal)  # type: ignore[arg-type]
    result, alone = evaluate(liar, honest(), on_failure="note"), evaluate(honest())
    told, truth = result.outcomes
    assert not told.broken.any()
    assert told.status == status
    if status == "failed":
        assert any(line.startswith(f"linf liar {note}") for line in result.notes)
        assert result.at_most == {"union", "robust.linf"}
        with pytest.raises(AttackFailedError, match="linf liar failed on 4 images"):
            evaluate(liar, honest())
    else:
        assert result.at_most == frozenset()
        discarded = note and not (minimal and "outside" in note)
        assert [line[: len(note)] for line in told.notes] == ([note] if discarded else [])
    assert same(truth, alone.outcomes[0])
    assert truth.notes == ()
    assert result.per_threat == alone.per_threat == {"linf": 0.5}
    assert result.union == 0.5
    assert result.still_right().tolist() == [False, True, False, True]
    torch.testing.assert_close(result.distance("linf"), DISTANCE, atol=1e-7, rtol=0)
    torch.testing.assert_close(result.nearest["linf"][:, 0], -DISTANCE, atol=1e-7, rtol=0)


def test_a_lie_outside_the_ball_leaves_its_distance_and_one_outside_the_box_nothing() -> None:
    far = evaluate(Fake(lambda t: move(t, 0.45), minimal=True))
    torch.testing.assert_close(far.distance("linf"), torch.full((4,), 0.45).double())
    assert far.union == 1.0
    out = evaluate(Fake(lambda t: move(t, 1.0)))
    assert out.distance("linf").isinf().all()
    assert not out.nearest["linf"].any()


def test_a_crash_keeps_the_batches_before_it() -> None:
    def act(target: Target) -> Tensor:
        if 2 in target.rows:
            raise OSError("disk")
        return across(target)

    result = evaluate(Fake(act, minimal=True), batch_size=2, on_failure="note")
    (outcome,) = result.outcomes
    assert outcome.status == "failed"
    assert outcome.attacked.tolist() == [True, True, False, False]
    assert outcome.broken.tolist() == [True, False, False, False]
    assert result.notes == ("linf fake failed on 2 images: OSError: disk",)
    assert repr(result) == (
        "RobustAccuracy(4 images: clean 100.0 %, linf at most 75.0 %, union at most 75.0 %: linf fake failed "
        "on 2 images)"
    )


def test_images_that_fell_or_that_were_attacked_to_the_end_are_not_counted_as_missed() -> None:
    def fails_in(restart: int) -> Fake:
        def act(target: Target) -> Tensor:
            if target.restart == restart and 3 in target.rows:
                raise OSError("disk")
            return across(target)

        return Fake(act, minimal=True, calls=3)

    # Images 0 and 2 are fooled; image 1 is not, and comes before image 3.
    for restart, missed in ((1, 2), (2, 1)):
        result = evaluate(fails_in(restart), batch_size=1, on_failure="note")
        assert result.failures[0].images == missed


def test_a_failure_concerns_its_threat_and_the_union() -> None:
    def act(target: Target) -> Tensor:
        if target.ball.p == 2:
            raise OSError("disk")
        return across(target)

    threats = {"linf": LpBall(math.inf, 0.2), "l2": LpBall(2, 0.2)}
    attacks = {math.inf: [Fake(act)], 2.0: [Fake(act)]}
    result = robust_accuracy(LINE, X, Y, threats, attacks, on_failure="note")
    assert result.at_most == {"union", "robust.l2"}
    assert repr(result) == (
        "RobustAccuracy(4 images: clean 100.0 %, linf 50.0 %, l2 at most 100.0 %, union at most 50.0 %: l2 "
        "fake failed on 4 images)"
    )
    assert result.interval("linf") == wilson(2, 4)
    assert result.interval("l2") == (0.0, wilson(4, 4)[1])
    assert result.interval() == (0.0, wilson(2, 4)[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_candidates_of_any_type_and_with_a_graph_are_judged(dtype: torch.dtype) -> None:
    def act(target: Target) -> Tensor:
        images = target.x.clone()
        images[:, 0] = 0.4375  # exact in every type; the second number stays within rounding
        return nn.Parameter(images.to(dtype))

    result = evaluate(Fake(act), threats={"linf": LpBall(math.inf, 0.25)})
    assert result.outcomes[0].broken.tolist() == [True, False, True, False]
    assert not result.nearest["linf"].requires_grad
    assert result.nearest["linf"].dtype == torch.float64


# --------------------------------------------------------------------------------------- the verdict


@pytest.mark.parametrize("p", NORMS)
def test_a_candidate_counts_up_to_the_distance_to_the_plane_and_not_below(p: float) -> None:
    w, x, margin, distance = plane_and_point(p)
    model = Plane(torch.tensor(w), margin - float(w @ x))
    images, label = torch.tensor(x)[None], torch.tensor([0])
    nearest = nearest_across(w, x, p, distance)

    def verdict(eps: float):
        return judge(model, images, label, nearest[None], LpBall(p, eps))

    beyond, short = (distance, distance - 1) if p == 0 else (distance * 1.01, distance * 0.99)
    assert verdict(beyond).broken.tolist() == [True]
    assert verdict(short).broken.tolist() == [False]
    assert verdict(short).outside.tolist() == [True]
    for eps in (beyond, short):
        assert verdict(eps).distance.item() == pytest.approx(distance, rel=1e-6)
        assert verdict(eps).distance.dtype == torch.float64


@pytest.mark.parametrize("p", NORMS)
def test_attacks_that_look_for_the_nearest_image_are_judged_by_their_distance(p: float) -> None:
    w, x, margin, distance = plane_and_point(p)
    model = Plane(torch.tensor(w), margin - float(w @ x))
    nearest = nearest_across(w, x, p, distance)
    attack = Fake(lambda t: nearest.expand_as(t.x).clone(), minimal=True)
    radii = {"a": 0.5 * distance, "b": distance + 1e-9, "c": 2 * distance}
    result = robust_accuracy(
        model,
        torch.tensor(x)[None],
        torch.tensor([0]),
        {name: LpBall(p, eps) for name, eps in radii.items()},
        suite(attack, p=p),
    )
    assert result.per_threat == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert [each.minimal for each in result.outcomes] == [True] * 3
    for name in radii:
        assert result.distance(name).item() == pytest.approx(distance, rel=1e-6)
    assert result.notes == ()


@pytest.mark.parametrize("p", NORMS)
def test_our_attack_breaks_just_beyond_the_distance_and_never_below(p: float) -> None:
    rng = np.random.default_rng(5)
    w, x = rng.normal(size=6), rng.uniform(0.3, 0.7, size=(8, 6))
    margins = rng.uniform(0.1, 0.5, size=8)
    # One plane, so that the margins are set by moving the images along w.
    x += np.outer((margins - x @ w + 0.2) / (w @ w), w)
    keep = ((x > 0) & (x < 1)).all(axis=1)
    x, margins = x[keep], margins[keep]
    assert len(x) >= 4
    exact = torch.tensor(
        [distance_to_plane(w, m, row, p) for m, row in zip(margins, x, strict=True)]
    )
    model, label = Plane(torch.tensor(w), 0.2 - 0.4 + 0.0), torch.zeros(len(x), dtype=torch.long)
    torch.testing.assert_close(model.margin(torch.tensor(x)), torch.tensor(margins))
    attacks = suite(OurAttack(steps=40), p=p)
    for row, radius in enumerate(exact.tolist()):
        above, below = (radius, radius - 1) if p == 0 else (radius * 1.02, radius * 0.98)
        some = torch.tensor(x[row : row + 1]), label[:1]
        assert robust_accuracy(model, *some, {"a": LpBall(p, above)}, attacks).union == 0.0
        if p or below:  # a count of no entries is refused
            assert robust_accuracy(model, *some, {"b": LpBall(p, below)}, attacks).union == 1.0


def plane_and_point(p: float) -> tuple[np.ndarray, np.ndarray, float, float]:
    w = np.array([0.5, -1.0, 0.25, 2.0])
    x = np.array([0.5, 0.6, 0.5, 0.3])  # the box stops the steepest entry
    margin = 0.75
    return w, x, margin, distance_to_plane(w, margin, x, p)


def nearest_across(w: np.ndarray, x: np.ndarray, p: float, distance: float) -> Tensor:
    """The best point at a distance, by another way than the oracle, and a hair beyond."""
    room, slope = np.where(w > 0, x, 1 - x), np.abs(w)
    if p == math.inf:
        moved = np.minimum(distance, room)
    elif p == 2:
        moved = np.minimum(room, _water(slope, room, distance))
    elif p == 1:
        moved, left = np.zeros_like(x), distance
        for i in np.argsort(-slope):
            moved[i] = min(room[i], left)
            left -= moved[i]
    else:
        moved = np.where(np.isin(np.arange(4), np.argsort(-slope * room)[: int(distance)]), room, 0)
    return torch.tensor((x - np.sign(w) * moved * (1 + 1e-9)).clip(0, 1))


def _water(slope: np.ndarray, room: np.ndarray, distance: float) -> np.ndarray:
    """Lengths proportional to the slopes, filled up to the room, with the given l2 norm."""
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        short = np.linalg.norm(np.minimum(middle * slope, room)) < distance
        low, high = (middle, high) if short else (low, middle)
    return high * slope


@pytest.mark.parametrize(
    ("excess", "broken"), [(0.0, True), (5e-5, True), (2e-4, False), (1e-2, False)]
)
@pytest.mark.parametrize("p", [math.inf, 2.0, 1.0])
def test_what_misses_the_ball_by_rounding_is_projected_and_by_more_discarded(
    p: float, excess: float, broken: bool
) -> None:
    ball = LpBall(p, 0.2)
    x = X[:1]  # 0.1 from the line
    candidate = x - torch.tensor([[0.2 * (1 + excess), 0.0]], dtype=torch.float64)
    verdict = judge(LINE, x, Y[:1], candidate, ball)
    assert verdict.broken.item() is broken
    assert verdict.outside.item() is not broken
    expected = 0.2 if broken else 0.2 * (1 + excess)
    assert verdict.distance.item() == pytest.approx(expected, rel=1e-9)
    assert ball.norm(verdict.delta).item() == pytest.approx(expected, rel=1e-9)


def test_what_is_wrong_only_beyond_the_ball_is_right_after_projection() -> None:
    ball = LpBall(math.inf, 0.1 * (1 - 2e-5))  # ends just before the line
    verdict = judge(LINE, X[:1], Y[:1], X[:1] - torch.tensor([[0.1 * (1 + 2e-5), 0.0]]), ball)
    assert not verdict.broken
    assert verdict.distance.isinf()
    assert not verdict.delta.any()


@pytest.mark.parametrize(("excess", "broken"), [(5e-6, True), (1e-4, False), (0.01, False)])
@pytest.mark.parametrize("end", [0.0, 1.0])
def test_what_misses_the_box_by_rounding_is_projected_and_by_more_discarded(
    end: float, excess: float, broken: bool
) -> None:
    ball = LpBall(math.inf, 0.2)
    x = torch.tensor([[0.6, end]], dtype=torch.float64)
    candidate = torch.tensor([[0.45, end + (excess if end else -excess)]], dtype=torch.float64)
    verdict = judge(LINE, x, Y[:1], candidate, ball)
    assert verdict.broken.item() is broken
    assert verdict.distance.item() == (pytest.approx(0.15) if broken else math.inf)
    assert bool(((x + verdict.delta >= 0) & (x + verdict.delta <= 1)).all())


def test_a_count_is_not_rounded_up() -> None:
    x = torch.full((1, 3), 0.6, dtype=torch.float64)
    model = Plane([1.0, 1.0, 1.0], -1.5)
    candidate = torch.tensor([[0.0, 0.0, 0.6]], dtype=torch.float64)
    assert judge(model, x, Y[:1], candidate, LpBall(0, 2)).broken
    verdict = judge(model, x, Y[:1], candidate, LpBall(0, 1.9))
    assert not verdict.broken
    assert verdict.distance == 2


def test_entries_that_changed_by_rounding_are_not_counted() -> None:
    x = torch.full((1, 3), 0.6, dtype=torch.float64)
    model, ball = Plane([1.0, 1.0, 1.0], -1.0), LpBall(0, 2)
    verdict = judge(model, x, Y[:1], torch.tensor([[0.0, 0.0, 0.6]]), ball)  # 0.6 in float32
    assert verdict.broken
    assert verdict.distance == 2
    assert verdict.delta.tolist() == [[-0.6, -0.6, 0.0]]
    more = torch.tensor([[0.0, 0.0, 0.6001]], dtype=torch.float64)
    assert judge(model, x, Y[:1], more, ball).distance == 3


def test_pixels_of_several_channels_are_counted_once() -> None:
    x = torch.full((1, 3, 2), 0.6, dtype=torch.float64)  # two pixels of three channels
    candidate = x.clone()
    candidate[:, :, 0] = 0.0
    model = Plane([1.0] * 6, -3.0)
    assert judge(model, x, Y[:1], candidate, LpBall(0, 1, "pixel")).broken
    assert not judge(model, x, Y[:1], candidate, LpBall(0, 2, "entry")).broken
    with pytest.raises(ValueError, match=r"counts pixels and needs images \(N, C, ...\)"):
        robust_accuracy(LINE, X, Y, {"l0": LpBall(0, 1, "pixel")})


def test_logits_that_are_not_numbers_are_wrong_under_attack_and_an_error_without() -> None:
    def below(edge: float) -> Callable[[Tensor], Tensor]:
        return lambda images: torch.where(images[:, :1] < edge, math.nan, LINE(images))

    with pytest.raises(ValueError, match="for 2 of 4 images, the first of which is image 0"):
        robust_accuracy(below(0.7), X, Y, LINF, suite(honest()))
    # 0.6 - 0.05 gives NaN, 0.65 - 0.05 does not; LINE itself has all of them right.
    result = robust_accuracy(below(0.58), X, Y, LINF, suite(Fake(lambda t: move(t, 0.05))))
    assert result.correct.all()
    assert result.outcomes[0].broken.tolist() == [True, False, False, False]


# ------------------------------------------------------------------------------------ counts by hand


def script(name: str, hits: Mapping[int, float], **options) -> Fake:
    """Breaks the images named, at distances given; leaves others."""

    def act(target: Target) -> Tensor:
        images = target.x.clone()
        for place, row in enumerate(target.rows.tolist()):
            if row in hits:
                images[place, 0] -= hits[row]
        return images

    return Fake(act, name, **{"minimal": True, **options})


def test_the_union_by_hand() -> None:
    #        distance: 0.1  0.3  0.15  0.4  wrong  0.05
    first = torch.tensor([0.6, 0.8, 0.65, 0.9, 0.3, 0.55], dtype=torch.float64)
    x = torch.stack([first, torch.full_like(first, 0.9)], dim=1)
    y = torch.zeros(6, dtype=torch.long)
    big, small = LpBall(math.inf, 0.35), LpBall(math.inf, 0.12)
    a = script("a", {0: 0.11, 4: 0.2})
    b = script("b", {0: 0.1001, 1: 0.32, 5: 0.06})
    c = script("c", {2: 0.16, 3: 0.41, 5: 0.07})
    seen: list[EvaluationProgress] = []
    result = robust_accuracy(
        LINE, x, y, {"big": big, "small": small}, suite(a, b, c), callback=seen.append
    )
    assert result.count == 6
    assert result.clean == pytest.approx(5 / 6)
    broken = {(o.threat, o.attack): o.broken.nonzero().flatten().tolist() for o in result.outcomes}
    assert broken == {
        ("big", "a"): [0],
        ("big", "b"): [1, 5],
        ("big", "c"): [2],
        ("small", "a"): [0],
        ("small", "b"): [5],
        ("small", "c"): [],
    }
    attacked = [o.attacked.nonzero().flatten().tolist() for o in result.outcomes]
    assert attacked == [
        [0, 1, 2, 3, 5],
        [1, 2, 3, 5],
        [2, 3],
        [0, 1, 2, 3, 5],
        [1, 2, 3, 5],
        [1, 2, 3],
    ]
    assert result.per_threat == {"big": pytest.approx(1 / 6), "small": pytest.approx(3 / 6)}
    assert result.union == pytest.approx(1 / 6)
    assert result.still_right("small").tolist() == [False, True, True, True, False, False]
    assert result.still_right().tolist() == [False, False, False, True, False, False]
    assert result.interval() == wilson(1, 6)
    assert result.interval("small", 0.8) == wilson(3, 6, 0.8)
    distance = result.distance("big")
    assert distance.tolist() == pytest.approx([0.11, 0.32, 0.16, 0.41, 0.0, 0.06])
    assert (-result.nearest["big"][:, 0]).tolist() == pytest.approx(
        [0.11, 0.32, 0.16, 0.41, 0.0, 0.06]
    )
    assert [(p.index, p.attacks) for p in seen[::2]] == [(i, 6) for i in range(6)]


def test_every_attack_on_every_image_changes_no_accuracy() -> None:
    a, b = script("a", {0: 0.11}), script("b", {0: 0.101, 2: 0.16})
    seen: list[EvaluationProgress] = []
    result = evaluate(a, b, every_attack=True, callback=seen.append)
    assert a.rows == b.rows == [[0, 1, 2, 3]]
    assert [o.broken.tolist() for o in result.outcomes] == [
        [True, False, False, False],
        [True, False, True, False],
    ]
    assert (
        result.union
        == evaluate(script("a", {0: 0.11}), script("b", {0: 0.101, 2: 0.16})).union
        == 0.5
    )
    assert result.distance("linf").tolist() == pytest.approx([0.101, math.inf, 0.16, math.inf])
    assert [p.not_fooled for p in seen] == [4, 3, 3, 2]


def test_restarts_attack_what_is_not_fooled_yet_and_stop_when_there_is_nothing() -> None:
    plan = iter([{0: 0.11}, {2: 0.16}, {1: 0.31, 3: 0.41}])
    attack = Fake(lambda t: script("", next(plan)).act(t), calls=5)
    result = evaluate(attack, threats={"linf": LpBall(math.inf, 0.5)})
    assert attack.rows == [[0, 1, 2, 3], [1, 2, 3], [1, 3]]  # and never an empty batch
    assert result.outcomes[0].status == "complete"
    assert result.union == 0.0


def test_restarts_are_numbered_and_keep_the_nearest() -> None:
    seen: list[int] = []

    def act(target: Target) -> Tensor:
        seen.append(target.restart)
        return move(target, [0.45, 0.42, 0.44][target.restart])

    result = evaluate(Fake(act, calls=3, minimal=True))
    assert seen == [0, 1, 2]
    torch.testing.assert_close(result.distance("linf"), torch.full((4,), 0.42).double())
    torch.testing.assert_close(result.nearest["linf"][:, 0], torch.full((4,), -0.42).double())


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_what_an_attack_in_a_ball_found_is_pulled_back_to_the_boundary(p: float) -> None:
    # The first number is 0.1 above the boundary in the first image, 0.15 in the third.
    ball = {"t": LpBall(p, 0.2)}
    result = robust_accuracy(LINE, X, Y, ball, suite(Fake(lambda t: move(t, 0.19)), p=p))
    assert result.outcomes[0].broken.tolist() == [True, False, True, False]
    expected = [0.1, math.inf, 0.15, math.inf]
    assert result.distance("t").tolist() == pytest.approx(expected, abs=0.001)
    assert is_right(LINE, X + result.nearest["t"], Y).tolist() == [False, True, False, True]
    assert result.distance("t")[0] >= 0.1  # a misclassified image, not the boundary itself


def test_counts_are_not_pulled_back() -> None:
    ball = {"t": LpBall(0, 1.0)}
    result = robust_accuracy(LINE, X, Y, ball, suite(Fake(lambda t: move(t, 0.19)), p=0.0))
    assert result.distance("t")[0] == 1
    assert result.nearest["t"][0, 0] == pytest.approx(-0.19)


def test_images_that_are_all_wrong_are_not_attacked() -> None:
    attack = honest()
    result = robust_accuracy(LINE, X, 1 - Y, LINF, suite(attack))
    assert (result.clean, result.union) == (0.0, 0.0)
    assert attack.rows == []
    assert result.outcomes[0].status == "not needed"
    assert not result.outcomes[0].attacked.any()
    assert result.distance("linf").tolist() == [0.0] * 4


def test_a_second_threat_starts_afresh() -> None:
    attack = honest()
    evaluate(attack, threats={"a": LpBall(math.inf, 0.5), "b": LpBall(math.inf, 0.12)})
    assert attack.rows == [[0, 1, 2, 3]] * 2


def test_queries_and_progress_are_counted() -> None:
    def act(target: Target) -> Tensor:
        target.model(target.x)
        return script("", {0: 0.11}).act(target)

    seen: list[EvaluationProgress] = []
    result = evaluate(Fake(act, calls=2), batch_size=2, callback=seen.append)
    assert result.outcomes[0].queries == 4 + 3
    assert [p.done for p in seen] == [0, 2, 5, 7, 8]
    assert {p.total for p in seen} == {8}
    assert [p.not_fooled for p in seen] == [4, 3, 3, 3, 3]
    assert {p.domain for p in seen} == {""}


# ------------------------------------------------------------------------------------------ tampering


def test_what_an_attack_writes_into_its_target_changes_nothing() -> None:
    x, y, eps = X.clone(), Y.clone(), torch.tensor(0.2)

    def act(target: Target) -> Tensor:
        images = across(target)
        target.x.zero_()
        target.y.fill_(1)
        target.rows.fill_(3)
        if isinstance(target.ball.eps, Tensor):
            target.ball.eps.fill_(9.0)
        return images

    ledger = Memory()
    result = robust_accuracy(
        LINE, x, y, {"linf": LpBall(math.inf, eps)}, suite(Fake(act), honest()), ledger=ledger
    )
    for outcome, truth in zip(
        result.outcomes, evaluate(honest("a"), honest("b")).outcomes, strict=True
    ):
        assert same(outcome, truth)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert eps == torch.tensor(0.2)
    assert [page.tensors["rows"].tolist() for page in ledger.values()] == [[0, 1, 2, 3], [1, 3]]


class Noisy(nn.Module):
    """LINE with a layer that makes everything wrong in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = Plane([1.0, 0.0], -0.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return -self.plane(x) if self.training else self.plane(x)


def test_the_model_keeps_its_mode_its_gradients_and_its_flags() -> None:
    model = Noisy()
    model.plane.w.grad = torch.tensor([1.0, 2.0], dtype=torch.float64)
    kept = model.plane.w.grad

    def act(target: Target) -> Tensor:
        model.train()
        target.model.train()
        target.model(target.x).sum().backward()
        model.requires_grad_(False)
        return target.x

    def late(target: Target) -> Tensor:
        act(target)
        raise RuntimeError("late")

    for attack in (Fake(act), Fake(late)):
        result = robust_accuracy(model, X, Y, LINF, suite(attack, honest()), on_failure="note")
        assert not result.outcomes[0].broken.any()
        assert same(result.outcomes[1], evaluate(honest()).outcomes[0])
        assert not any(module.training for module in model.modules())
        assert model.plane.w.grad is kept
        assert kept.tolist() == [1.0, 2.0]
        assert model.plane.w.requires_grad


@pytest.mark.parametrize("hidden", [False, True], ids=["a network", "behind a function"])
def test_the_model_keeps_its_buffers(hidden: bool) -> None:
    network = nn.Sequential(nn.BatchNorm1d(2).double(), Plane([1.0, 0.0], -0.5)).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}

    def act(target: Target) -> Tensor:
        network.train()(target.x)
        return target.x

    model = (lambda images: network(images)) if hidden else network
    robust_accuracy(model, X, Y, LINF, suite(Fake(act)))
    assert not network.training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_random_states_and_warnings_of_the_process_are_left_alone() -> None:
    def act(target: Target) -> Tensor:
        draws.append((torch.rand(1).item(), float(np.random.rand()), random.random()))
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        warnings.warn("noise", UserWarning, stacklevel=1)
        torch.set_grad_enabled(False)
        return target.x

    draws: list[tuple[float, ...]] = []
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    for _ in range(2):
        evaluate(Fake(act, calls=2), batch_size=2)
    evaluate(Fake(act), seed=1)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert torch.is_grad_enabled()
    assert draws[:4] == draws[4:8]  # an evaluation can be repeated
    assert len(set(draws[:4])) == 4  # and its batches and restarts differ
    assert draws[8] not in draws[:8]


class TestModelsThatHide:
    """Gradient attacks on these say nothing, whoever calls from Python has no doctor, and hears of it once."""

    @staticmethod
    def saturated(images: Tensor) -> Tensor:
        return (1e4 * LINE(images)).tanh() * 50

    @staticmethod
    def probabilities(images: Tensor) -> Tensor:
        return LINE(images).softmax(dim=1)

    @staticmethod
    def detached(images: Tensor) -> Tensor:
        return LINE(images.detach()).detach()

    @pytest.mark.parametrize("chosen", ["quick", {math.inf: [OurAttack(steps=3)]}])
    def test_one_warning_for_a_fault(self, chosen: Suite) -> None:
        for model, fault in (
            (self.saturated, "gradient is zero in all"),
            (self.detached, "lets no gradient through"),
            (self.probabilities, "look like probabilities"),
        ):
            with pytest.warns(UserWarning, match=fault) as caught:
                result = robust_accuracy(model, X[:2], Y[:2], LINF, chosen, batch_size=1)
            assert len(caught) == 1
            assert caught[0].filename == __file__  # where the caller can do something about it
            assert result.clean == 1.0

    def test_none_if_no_attack_of_ours_needs_a_gradient(self) -> None:
        result = robust_accuracy(self.saturated, X, Y, LINF, suite(honest()))
        assert result.union < 1.0

    def test_none_if_no_image_is_right(self) -> None:
        assert robust_accuracy(self.saturated, X, 1 - Y, LINF).clean == 0.0

    def test_a_model_that_breaks_on_the_way_back_is_left_to_the_attacks(self) -> None:
        def brittle(images: Tensor) -> Tensor:
            logits = LINE(images)
            if logits.requires_grad:
                logits.register_hook(lambda _: 1 / 0)
            return logits

        with pytest.raises(AttackFailedError, match="linf attack-ce failed on 4 images"):
            robust_accuracy(brittle, X, Y, LINF)
        result = robust_accuracy(brittle, X, Y, LINF, on_failure="note")
        status = {each.attack: each.status for each in result.outcomes}
        assert status == {"attack-ce": "failed", "attack": "failed", "search": "complete"}
        assert "ZeroDivisionError" in " ".join(result.notes)


def test_an_attack_gets_gradients_whatever_mode_the_caller_is_in() -> None:
    def act(target: Target) -> Tensor:
        leaf = target.x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(target.model(leaf)[:, 0].sum(), leaf)
        return (target.x - 0.2 * gradient.sign()).clamp(0, 1)

    expected = evaluate(Fake(act), OurAttack(steps=10), every_attack=True)
    assert expected.union == 0.5
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            x, y = X.clone(), Y.clone()
            result = robust_accuracy(
                LINE, x, y, LINF, suite(Fake(act), OurAttack(steps=10)), every_attack=True
            )
        assert result.notes == ()
        for one, other in zip(result.outcomes, expected.outcomes, strict=True):
            assert same(one, other)
        result.correct.logical_not_()  # plain tensors, also after inference mode


def test_a_plain_function_is_a_model_and_training_mode_is_refused() -> None:
    result = robust_accuracy(lambda images: LINE(images), X, Y, LINF, suite(OurAttack(steps=10)))
    assert result.union == 0.5
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        robust_accuracy(Noisy().train(), X, Y, LINF)


# --------------------------------------------------------------------------------------------- ledger


def test_ctrl_c_ends_the_evaluation_and_the_ledger_has_what_was_done() -> None:
    def act(target: Target) -> Tensor:
        if angry and 2 in target.rows:
            raise KeyboardInterrupt
        return across(target)

    angry, ledger = True, Memory()
    with pytest.raises(KeyboardInterrupt):
        evaluate(Fake(act), batch_size=2, ledger=ledger)
    assert list(ledger) == ["linf/fake/0/0"]
    angry = False
    again = Fake(act)
    result = evaluate(again, batch_size=2, ledger=ledger)
    assert again.rows == [[2, 3]]
    assert same(result.outcomes[0], evaluate(honest()).outcomes[0])


def test_ctrl_c_inside_our_attack_is_not_half_an_answer() -> None:
    calls = []

    def model(images: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return LINE(images)

    with pytest.raises(KeyboardInterrupt):
        robust_accuracy(model, X, Y, {"linf": LpBall(math.inf, 0.05)}, suite(OurAttack(steps=10)))


@pytest.mark.parametrize("every_attack", [False, True])
def test_resuming_gives_identical_tensors_without_running_anything(every_attack: bool) -> None:
    ledger, options = Memory(), {"batch_size": 3, "every_attack": every_attack}
    attacks = OurAttack(steps=6), script("b", {1: 0.19}, calls=2)
    result = evaluate(*attacks, ledger=ledger, **options)
    lazy = [Fake(raises(AssertionError()), a.name, calls=a.calls) for a in attacks]
    for one, other in zip(lazy, attacks, strict=True):
        one.independent = other.independent  # so that it is asked about the same batches
    again = evaluate(*lazy, ledger=ledger, **options)
    for one, other in zip(result.outcomes, again.outcomes, strict=True):
        assert same(one, other)
        assert (one.seconds, one.queries, one.status) == (
            other.seconds,
            other.queries,
            other.status,
        )
    assert torch.equal(result.nearest["linf"], again.nearest["linf"])
    assert result.notes == again.notes == ()


def test_pages_about_other_images_or_without_their_tensors_are_not_used() -> None:
    ledger = Memory()
    evaluate(honest(), ledger=ledger)
    (page,) = ledger.values()
    for other in (torch.arange(4) + 1, torch.arange(3), torch.tensor([], dtype=torch.long)):
        ledger["linf/honest/0/0"] = Page({**page.tensors, "rows": other}, 1e6)
        attack = honest()
        result = evaluate(attack, ledger=ledger)
        assert attack.rows == [[0, 1, 2, 3]]
        assert result.outcomes[0].seconds < 1e6
        assert torch.equal(ledger["linf/honest/0/0"].tensors["rows"], torch.arange(4))
    ledger["linf/honest/0/0"] = Page({}, 0.0)
    assert evaluate(honest(), ledger=ledger).union == 0.5


def test_a_failed_batch_is_not_kept() -> None:
    ledger = Memory()
    evaluate(Fake(raises(OSError())), ledger=ledger, on_failure="note")
    assert ledger == {}


def test_an_error_of_the_ledger_or_the_callback_is_not_blamed_on_the_attack() -> None:
    class Full(Memory):
        def put(self, key: str, page: Page) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        evaluate(honest(), ledger=Full())

    def callback(progress: EvaluationProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate(honest(), callback=callback)


# --------------------------------------------------------------------------------------------- budget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that passes only when it is told to."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def endless(target: Target, clock: Clock) -> Tensor:
    for _ in range(1000):
        target.model(target.x)
        clock.sleep(0.01)
    raise AssertionError("nobody stopped it")


def slow_from(row: int, clock: Clock) -> Fake:
    """Finds everything at once, but never ends from some row on."""
    return Fake(lambda t: endless(t, clock) if row in t.rows else across(t), "slow", minimal=True)


def test_the_budget_stops_an_attack_inside_a_batch_and_the_others_go_on(clock: Clock) -> None:
    result = evaluate(slow_from(2, clock), honest(), batch_size=2, budget=0.3)
    slow, other = result.outcomes
    assert slow.status == "cut short"
    assert slow.attacked.tolist() == [True, True, False, False]
    assert slow.broken.tolist() == [True, False, False, False]
    assert slow.notes == ("cut short by the budget of 0.3 s (2 of 4 images attacked)",)
    assert 0.3 <= slow.seconds < 0.33
    assert 58 <= slow.queries <= 64
    assert other.status == "complete"
    assert result.union == 0.5


def test_an_attack_that_never_asks_the_model_is_stopped_between_batches(clock: Clock) -> None:
    def act(target: Target) -> Tensor:
        clock.sleep(0.1)
        return across(target)

    attack = Fake(act)
    outcome = evaluate(attack, batch_size=1, budget=0.15).outcomes[0]
    assert attack.rows == [[0], [1]]
    assert outcome.status == "cut short"
    assert outcome.attacked.tolist() == [True, True, False, False]


def test_every_attack_has_a_budget_of_its_own(clock: Clock) -> None:
    def act(target: Target) -> Tensor:
        clock.sleep(0.1)
        target.model(target.x)
        return target.x

    result = evaluate(Fake(act, "a"), Fake(act, "b"), budget=0.15)
    assert [outcome.status for outcome in result.outcomes] == ["complete", "complete"]
    assert [outcome.seconds for outcome in result.outcomes] == pytest.approx([0.1, 0.1])


class TestImagesThatAnAttackNeverReached:
    def test_make_the_number_an_upper_bound_that_says_why(self, clock: Clock) -> None:
        result = evaluate(slow_from(2, clock), batch_size=2, budget=0.3)
        assert result.still_right().tolist() == [False, True, True, True]
        assert result.unreached("linf").tolist() == [False, False, True, True]
        assert result.unreached().tolist() == [False, False, True, True]
        assert result.at_most == {"union", "robust.linf"}
        assert result.because == ("linf slow was cut short by the budget before 2 images",)
        assert repr(result) == (
            "RobustAccuracy(4 images: clean 100.0 %, linf at most 75.0 %, union at most 75.0 %: linf slow was "
            "cut short by the budget before 2 images)"
        )
        assert result.interval()[0] == result.interval("linf")[0] == 0
        assert result._repr_html_().count("at most 75.0 %") == 2

    def test_do_not_if_another_attack_broke_them(self, clock: Clock) -> None:
        everything = Fake(lambda t: move(t, t.eps), "all")
        threats = {"linf": LpBall(math.inf, 0.45)}
        result = evaluate(
            slow_from(0, clock), everything, threats=threats, batch_size=2, budget=0.3
        )
        assert result.outcomes[0].status == "cut short"
        assert (result.union, result.at_most, result.because) == (0.0, frozenset(), ())

    def test_do_not_concern_another_threat(self, clock: Clock) -> None:
        threats = LINF | {"other": LpBall(math.inf, 0.19)}
        attack = Fake(lambda t: across(t) if t.eps == 0.2 else endless(t, clock), minimal=True)
        result = evaluate(attack, threats=threats, budget=0.3)
        assert result.at_most == {"union", "robust.other"}
        assert result.interval("linf")[0] > 0

    def test_are_those_without_a_single_restart(self, clock: Clock) -> None:
        attack = Fake(lambda t: endless(t, clock) if t.restart else t.x, calls=3)
        result = evaluate(attack, budget=0.1)
        assert result.outcomes[0].status == "cut short"
        assert result.at_most == frozenset()

    def test_are_joined_over_the_parts_of_a_loader(self, clock: Clock) -> None:
        parts = [evaluate(slow_from(row, clock), batch_size=2, budget=0.3) for row in (9, 2)]
        result = joined(parts)
        assert result.unreached().tolist() == [False] * 6 + [True, True]
        assert result.because == ("linf slow was cut short by the budget before 2 images",)


def test_a_cut_in_a_later_restart_says_so(clock: Clock) -> None:
    attack = Fake(lambda t: endless(t, clock) if t.restart else t.x, calls=3)
    outcome = evaluate(attack, budget=0.1).outcomes[0]
    assert outcome.notes == (
        "cut short by the budget of 0.1 s (4 of 4 images attacked, restart 2 of 3)",
    )


def test_resuming_repeats_a_cut_and_a_larger_budget_goes_on_from_it(clock: Clock) -> None:
    ledger = Memory()
    first = evaluate(slow_from(2, clock), batch_size=2, budget=0.2, ledger=ledger)
    assert list(ledger) == ["linf/slow/0/0", "linf/slow/0/1"]
    again = evaluate(slow_from(9, clock), batch_size=2, budget=0.2, ledger=ledger)
    assert same(first.outcomes[0], again.outcomes[0])
    assert first.notes == again.notes
    for budget in (100.0, None):
        attack = slow_from(9, clock)
        more = evaluate(attack, batch_size=2, budget=budget, ledger=Memory(ledger))
        assert attack.rows == [[2, 3]]
        assert more.outcomes[0].status == "complete"
        assert more.union == 0.5


# ----------------------------------------------------------------------------------------- invariance


@pytest.mark.parametrize("p", NORMS)
def test_the_batch_size_changes_nothing_of_our_attack(
    p: float, generator: torch.Generator, networks: list[nn.Module]
) -> None:
    x = torch.rand(7, 6, generator=generator, dtype=torch.float64)
    y = networks[0](x).argmax(dim=1)
    threats = {"some": LpBall(p, {math.inf: 0.03, 2.0: 0.08, 1.0: 0.15, 0.0: 1}[p])}
    attacks = suite(OurAttack(steps=6, restarts=2), p=p)
    results = [
        robust_accuracy(networks[0], x, y, threats, attacks, batch_size=size) for size in (7, 3, 1)
    ]
    assert 0 < results[0].union < 1
    for result in results[1:]:
        assert torch.equal(result.outcomes[0].broken, results[0].outcomes[0].broken)
        torch.testing.assert_close(result.nearest["some"], results[0].nearest["some"])
    ball = threats["some"]
    delta = results[0].nearest["some"]
    broken = results[0].outcomes[0].broken
    assert bool((ball.norm(delta)[broken] <= float(ball.eps) * (1 + 1e-6)).all())
    assert bool(((x + delta >= 0) & (x + delta <= 1)).all())
    wrong = networks[0](x + delta).argmax(dim=1) != y
    assert bool(wrong[broken].all())
    torch.testing.assert_close(ball.norm(delta)[broken], results[0].distance("some")[broken])


# ------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be >= 1, got 0"),
        ({"budget": 0.0}, "`budget` must be positive seconds, or None, got 0.0"),
        ({"budget": math.nan}, "`budget` must be positive"),
        ({"threats": {}}, "`threats` must name at least one threat"),
        ({"threats": [LpBall(2, 1.0)]}, "mapping from names to balls such as .*, got a list"),
        ({"threats": {"a": LpBall(2, torch.ones(4))}}, "must have one radius"),
        ({"threats": {"a": LpBall(2, 1.0)}}, "must have an attack for l2"),
    ],
)
def test_unusable_arguments_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(honest(), **options)


def test_unusable_suites_models_and_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        evaluate(honest(), honest())
    with pytest.raises(ValueError, match="`calls` of attack 'fake' must be >= 1, got 0"):
        evaluate(Fake(across, calls=0))
    with pytest.raises(TypeError, match=r"`threats\['a'\]` must be an LpBall or a Threat"):
        evaluate(honest(), threats={"a": 0.3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="`suite` must be one of"):
        robust_accuracy(LINE, X, Y, LINF, "slow")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"models must return logits \(B, C\)"):
        robust_accuracy(lambda images: images[:, 0], X, Y, LINF)
    with pytest.raises(ValueError, match=r"models must return logits \(B, C\)"):
        robust_accuracy(lambda images: images.repeat(2, 1), X, Y, LINF)
    with pytest.raises(ValueError, match="`y` must be below the number of classes, 2, got 2"):
        robust_accuracy(LINE, X, Y + 2, LINF)
    with pytest.raises(ValueError, match="`x` must be finite and in"):
        robust_accuracy(LINE, X * 255, Y, LINF)
    with pytest.raises(ValueError, match="`y` must have shape"):
        robust_accuracy(LINE, X, Y[:2], LINF)
