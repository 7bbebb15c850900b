"""Several domains at once: unions, joint perturbations and smallest radii, by hand and on planes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from saddlepoint import (
    AttackResult,
    Ensemble,
    LpBall,
    Product,
    Transformed,
    Universal,
    attack,
    robust_accuracy,
)
from saddlepoint import transforms as T
from saddlepoint.evaluation import (
    AbstractAttack,
    AttackFailedError,
    DomainAccuracy,
    EvaluationProgress,
    OurAttack,
    RobustAccuracy,
    Target,
    joint,
    radii,
    robust_domains,
    smallest_radius,
    wilson,
)
from saddlepoint.evaluation.suites import attacks_for
from saddlepoint.solver import attack_unchecked
from stand_ins import Memory

NORMS = [math.inf, 2.0, 1.0, 0.0]


def above(entry: int, scale: float = 40.0) -> Callable[[Tensor], Tensor]:
    """A model that is right (class 0) as long as an entry is above 0.25.

    Losses of the size of networks': next to small ones the regulariser of the weights is all that counts.
    """

    def model(images: Tensor) -> Tensor:
        margin = scale * (images.flatten(1)[:, entry] - 0.25)
        return torch.stack([margin, -margin], dim=1)

    return model


FIRST, SECOND = above(0), above(1)
#  distances to the planes: (0.1, 0.3), (0.05, 0.05), (0.5, 0.1), (wrong, 0.2), (wrong, wrong)
X = torch.tensor(
    [[0.35, 0.55], [0.3, 0.3], [0.75, 0.35], [0.1, 0.45], [0.0, 0.2]], dtype=torch.float64
)
Y = torch.zeros(5, dtype=torch.long)
NAMES = ["A", "B"]
BOTH = Ensemble([FIRST, SECOND], X, Y, names=NAMES)
RADII = {
    math.inf: [0.3, 0.05, 0.5, 0.2, 0.0],
    2.0: [math.hypot(0.1, 0.3), math.hypot(0.05, 0.05), math.hypot(0.5, 0.1), 0.2, 0.0],
    1.0: [0.4, 0.1, 0.6, 0.2, 0.0],
    0.0: [2, 2, 2, 1, 0],
}
LINF = {"linf": LpBall(math.inf, 0.22)}


@dataclass
class Fake(AbstractAttack):
    act: Callable[[Target], Tensor]
    name: str = "fake"
    minimal: bool = False

    def run(self, target: Target) -> Tensor:
        return self.act(target)


def every_norm(*attacks: AbstractAttack) -> Mapping[float, list[AbstractAttack]]:
    return {p: list(attacks) for p in NORMS}


OURS = every_norm(OurAttack(steps=10))
LAZY = every_norm(Fake(lambda target: target.x, "lazy"))


def equal(one: DomainAccuracy, other: DomainAccuracy) -> bool:
    tables = ("fooled", "broken", "weights", "eps_min", "nearest")
    return all(
        torch.equal(getattr(one, table)[name], getattr(other, table)[name])
        for table in tables
        for name in one.balls
    ) and torch.equal(one.still_right(), other.still_right())


# ------------------------------------------------------------------------------------- on planes


@pytest.mark.parametrize("p", NORMS)
def test_the_smallest_radius_of_two_planes_is_the_distance_to_their_corner(p: float) -> None:
    radii = smallest_radius(BOTH, p, searches=9)
    assert radii.dtype == torch.float64
    # from above, and to 2 ** -9 of the radius of the box (and what the attack itself leaves)
    top = {math.inf: 1.0, 2.0: math.sqrt(2), 1.0: 2.0, 0.0: 0.0}[p]
    for found, exact in zip(radii.tolist(), RADII[p], strict=True):
        assert exact - 1e-6 <= found <= exact * (1.1 if p == 1 else 1.01) + top * 2**-9
    assert radii[4] == 0


@pytest.mark.parametrize("p", NORMS)
def test_domains_on_planes(p: float) -> None:
    eps = {math.inf: 0.22, 2.0: 0.25, 1.0: 0.25, 0.0: 1}[p]
    result = robust_domains(BOTH, {"some": LpBall(p, eps)}, OURS, steps=20, searches=8)
    assert result.count == 5
    assert result.clean == pytest.approx(3 / 5)
    assert result.correct.tolist() == [True, True, True, False, False]
    exact = torch.tensor(RADII[p], dtype=torch.float64)
    assert result.fooled["some"].tolist() == (exact <= eps).tolist()
    assert result.joint == {"some": pytest.approx((exact > eps).double().mean().item())}
    radii = result.eps_min["some"]
    assert torch.equal(radii <= eps, result.fooled["some"])
    assert bool((radii >= exact - 1e-6).all())
    torch.testing.assert_close(radii, exact, atol=0.01, rtol=0.1 if p == 1 else 0.01)
    alone = {name: each.still_right() for name, each in result.per_domain.items()}
    first, second = torch.tensor([0.1, 0.05, 0.5, 0, 0]), torch.tensor([0.3, 0.05, 0.1, 0.2, 0])
    reach = 1.0 if p == 0 else eps
    assert alone["A"].tolist() == (first > reach).tolist()
    assert alone["B"].tolist() == (second > reach).tolist()
    assert result.still_right().tolist() == (alone["A"] & alone["B"]).tolist()
    assert result.union == result.still_right().double().mean()
    assert result.interval() == wilson(int(result.still_right().sum()), 5)
    assert result.notes == ()


def test_perturbations_that_fool_all_domains_do() -> None:
    threats = {"linf": LpBall(math.inf, 0.22), "l2": LpBall(2, 0.35), "l0": LpBall(0, 2)}
    result = robust_domains(BOTH, threats, OURS, steps=20, searches=0)
    for name, ball in threats.items():
        delta, fooled = result.nearest[name], result.fooled[name]
        assert fooled.any()
        images = X + delta
        assert bool((ball.norm(delta) <= ball.eps * (1 + 1e-6)).all())
        assert bool(((images >= 0) & (images <= 1)).all())
        wrong = (FIRST(images).argmax(1) != Y) & (SECOND(images).argmax(1) != Y)
        assert bool(wrong[fooled].all())
        assert not delta[~fooled].any()
        assert bool((result.eps_min[name][fooled] <= ball.norm(delta)[fooled] + 1e-12).all())


def test_weights_are_on_the_simplex_and_say_which_domain_is_hard() -> None:
    result = robust_domains(BOTH, LINF, OURS, steps=20, searches=0)
    weights = result.weights["linf"]
    assert weights.shape == (5, 2)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(5).double())
    assert weights[0, 1] > weights[0, 0]  # 0.3 from the second plane, 0.1 from the first
    assert weights[2, 0] > weights[2, 1]
    assert weights[4].tolist() == [0.5, 0.5]  # not attacked


def test_what_no_radius_can_do_is_infinite() -> None:
    def below(images: Tensor) -> Tensor:
        return -2 * FIRST(images)  # right where FIRST is wrong

    problem = Ensemble([FIRST, below], X[:1], Y[:1])
    assert smallest_radius(problem, math.inf, searches=3, first=0.1).tolist() == [math.inf]
    result = robust_domains(problem, LINF, OURS, steps=5, searches=3)
    assert result.eps_min["linf"].tolist() == [math.inf]
    assert result.joint == {"linf": 1.0}
    assert result.clean == 0.0


def test_one_domain_is_the_model_alone() -> None:
    problem = Ensemble([FIRST], X, Y, names=["A"])
    result = robust_domains(problem, LINF, OURS, steps=10)
    alone = robust_accuracy(FIRST, X, Y, LINF, OURS)
    assert result.union == alone.union == result.joint["linf"] == 0.2
    torch.testing.assert_close(
        result.eps_min["linf"], torch.tensor([0.1, 0.05, 0.5, 0.0, 0.0]).double(), atol=2e-3, rtol=0
    )


# --------------------------------------------------------------------------------- counts by hand


def test_the_union_by_hand() -> None:
    balls = {"a": LpBall(math.inf, 0.1), "b": LpBall(2, 0.1)}
    one_hot = torch.eye(5, dtype=torch.bool)
    result = DomainAccuracy(
        balls,
        {
            "A": RobustAccuracy(balls, ~one_hot[4], ()),
            "B": RobustAccuracy(balls, ~one_hot[4] & ~one_hot[0], ()),
        },
        fooled={"a": one_hot[4], "b": one_hot[4] | one_hot[1]},
        broken={
            "a": torch.stack([one_hot[4], one_hot[4] | one_hot[0] | one_hot[3]], dim=1),
            "b": torch.stack(
                [one_hot[4] | one_hot[1], one_hot[4] | one_hot[0] | one_hot[1]], dim=1
            ),
        },
        weights={},
        eps_min={},
        remarks=("a min-max: something",),
    )
    assert result.clean == pytest.approx(3 / 5)
    assert result.still_right("a").tolist() == [False, True, True, False, False]
    assert result.still_right("b").tolist() == [False, False, True, True, False]
    assert result.still_right().tolist() == [False, False, True, False, False]
    assert result.union == pytest.approx(1 / 5)
    assert result.joint == {"a": pytest.approx(4 / 5), "b": pytest.approx(3 / 5)}
    assert result.interval("b", 0.9) == wilson(2, 5, 0.9)
    assert result.notes == ("a min-max: something",)
    assert result.correct.tolist() == [False, True, True, True, False]  # looking changed nothing


def test_the_min_max_attack_belongs_to_the_union() -> None:
    result = robust_domains(BOTH, LINF, LAZY, steps=20, searches=0)
    assert all(each.union == each.clean for each in result.per_domain.values())
    # row 1 falls in both, rows 0 and 2 in one domain, on the way to both
    assert result.fooled["linf"].tolist() == [False, True, False, True, True]
    assert result.broken["linf"][1].tolist() == [True, True]
    assert not result.still_right()[1]


def test_what_is_found_against_one_domain_is_tried_on_the_others() -> None:
    far = every_norm(Fake(lambda t: (t.x - 0.302).clamp(0, 1), "far", minimal=True))
    result = robust_domains(BOTH, {"linf": LpBall(math.inf, 0.305)}, far, steps=0, searches=0)
    assert result.fooled["linf"].tolist() == [True, True, False, True, True]
    assert result.eps_min["linf"][0] == pytest.approx(0.302)
    torch.testing.assert_close(result.nearest["linf"][0], torch.full((2,), -0.302).double())
    # One that was pulled back to the boundary of one domain is stretched to the radius again.
    near = every_norm(Fake(lambda t: (t.x - 0.302).clamp(0, 1), "near"))
    result = robust_domains(BOTH, {"linf": LpBall(math.inf, 0.305)}, near, steps=0, searches=0)
    assert result.fooled["linf"].tolist() == [True, True, False, True, True]
    # Outside the ball it fools nobody, but a radius is known.
    beyond = every_norm(Fake(lambda t: (t.x - 0.4).clamp(0, 1), "beyond", minimal=True))
    result = robust_domains(BOTH, {"linf": LpBall(math.inf, 0.04)}, beyond, steps=0, searches=0)
    assert result.fooled["linf"].tolist() == [False] * 4 + [True]
    assert result.eps_min["linf"].tolist() == pytest.approx([0.4, 0.3, math.inf, 0.4, 0.0])
    assert not result.nearest["linf"].any()


def test_all_at_once_are_attacked_with_as_many_descents_as_one_domain_by_suite_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: dict[float, int] = {}

    def record(problem: Ensemble, ball: LpBall, *, restarts: int, **options: object) -> object:
        taken[ball.p] = restarts
        return attack_unchecked(problem, ball, restarts=1, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(joint, "attack_unchecked", record)
    threats = {str(p): LpBall(p, 1.0) for p in NORMS}
    robust_domains(BOTH, threats, LAZY, steps=1, searches=0)
    alone = {
        p: sum(
            each.restarts + each.aimed
            for each in attacks_for("quick", p)
            if isinstance(each, OurAttack)
        )
        for p in NORMS
    }
    assert taken == alone == {math.inf: 6, 2.0: 17, 1.0: 17, 0.0: 5}


def test_what_the_min_max_attack_says_of_itself_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def liar(problem: Ensemble, ball: LpBall, **options: object) -> AttackResult:
        honest = attack(problem, ball, steps=0)
        return replace(honest, fooled=torch.ones_like(honest.fooled))

    for room in (joint, radii):
        monkeypatch.setattr(room, "attack_unchecked", liar)
    result = robust_domains(BOTH, LINF, LAZY, searches=3)
    assert result.fooled["linf"].tolist() == [False, False, False, False, True]
    assert result.eps_min["linf"].tolist() == [math.inf] * 4 + [0.0]
    assert smallest_radius(BOTH, 2.0).tolist() == [math.inf] * 4 + [0.0]


def test_lies_against_one_domain_change_nothing() -> None:
    lies = [lambda t: t.x - 5, lambda t: t.x * math.nan, lambda t: None, lambda t: 1 / 0]
    honest = robust_domains(BOTH, LINF, LAZY, steps=10, searches=4)
    for lie in lies:
        liars = every_norm(Fake(lie, "lazy"))
        result = robust_domains(BOTH, LINF, liars, on_failure="note", steps=10, searches=4)
        assert equal(result, honest)
        assert all(note.startswith(("A: linf lazy", "B: linf lazy")) for note in result.notes)
        assert len(result.notes) == 2


def test_a_domain_is_its_model_after_its_transform(generator: torch.Generator) -> None:
    x = torch.rand(4, 1, 2, 2, generator=generator, dtype=torch.float64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double().eval()
    y = model(x).argmax(dim=1)
    balls = {"linf": LpBall(math.inf, 0.1)}
    suite = every_norm(OurAttack(steps=5))
    result = robust_domains(
        Transformed(model, [T.identity, T.hflip], x, y), balls, suite, steps=5, searches=2
    )
    flipped = robust_accuracy(lambda images: model(T.hflip(images)), x, y, balls, suite)
    straight = robust_accuracy(model, x, y, balls, suite)
    for found, expected in zip(result.per_domain.values(), (straight, flipped), strict=True):
        assert torch.equal(found.correct, expected.correct)
        assert torch.equal(found.distance("linf"), expected.distance("linf"))
    product = Product([model, model], [T.identity, T.hflip], x, y)
    doubled = robust_domains(product, balls, suite, steps=5, searches=2)
    assert list(doubled.per_domain) == list(product.names)
    assert doubled.weights["linf"].shape == (4, 4)
    assert torch.equal(doubled.fooled["linf"], result.fooled["linf"])
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


# ----------------------------------------------------------------------- batches, ledger, budget


def test_the_batch_size_changes_nothing() -> None:
    results = [
        robust_domains(BOTH, LINF, OURS, steps=10, searches=5, batch_size=size)
        for size in (5, 2, 1)
    ]
    assert equal(results[0], results[1])
    assert equal(results[0], results[2])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_the_caller_changes_nothing(mode: Callable[[], torch.no_grad]) -> None:
    with mode():
        problem = Ensemble([FIRST, SECOND], X.clone(), Y.clone(), names=NAMES)
        result = robust_domains(problem, LINF, OURS, steps=5, searches=3)
    assert equal(result, robust_domains(BOTH, LINF, OURS, steps=5, searches=3))
    assert result.notes == ()
    result.fooled["linf"].logical_not_()  # plain tensors


def test_keys_begin_with_the_domain_and_nothing_is_computed_twice() -> None:
    ledger = Memory()
    problem = Ensemble([FIRST, SECOND], X, Y, names=["A/1", "B"])
    options = {"steps": 5, "searches": 3, "batch_size": 2}
    result = robust_domains(problem, LINF, OURS, ledger=ledger, **options)
    assert {key.split("/")[0] for key in ledger} == {"A%2F1", "B", "+all"}
    joint = [key for key in ledger if key.startswith("+all")]
    assert joint == [f"+all/linf/{stage}/{i}" for stage in ("min-max", "eps_min") for i in (0, 1)]

    def only_judge(images: Tensor) -> Tensor:
        assert not images.requires_grad, "attacked again"
        return FIRST(images)

    again = Ensemble([only_judge, SECOND], X, Y, names=["A/1", "B"])
    assert equal(robust_domains(again, LINF, OURS, ledger=ledger, **options), result)


def test_ctrl_c_in_the_joint_attack_leaves_what_was_done() -> None:
    def angry(images: Tensor) -> Tensor:
        if armed and images.requires_grad and len(images) == 2 and bool((images[0] == X[2]).all()):
            raise KeyboardInterrupt
        return FIRST(images)

    options = {"steps": 5, "searches": 3, "batch_size": 2}
    armed, ledger = True, Memory()
    problem = Ensemble([angry, SECOND], X, Y, names=NAMES)
    with pytest.raises(KeyboardInterrupt):
        robust_domains(problem, LINF, LAZY, ledger=ledger, **options)
    assert "+all/linf/min-max/0" in ledger
    assert "+all/linf/min-max/1" not in ledger
    armed = False
    result = robust_domains(problem, LINF, LAZY, ledger=ledger, **options)
    assert equal(result, robust_domains(BOTH, LINF, LAZY, **options))


def test_the_budget_cuts_the_joint_attacks_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(images: Tensor) -> Tensor:
        now[0] += 0.01 if images.requires_grad else 0.0
        return FIRST(images) + torch.tensor([40.0, -40.0])  # out of reach: no attack ends early

    problem = Ensemble([slow, SECOND], X[:4], Y[:4], names=NAMES)
    options = {"steps": 40, "searches": 3, "batch_size": 2, "budget": 0.2}
    ledger = Memory()
    result = robust_domains(problem, LINF, LAZY, ledger=ledger, **options)
    assert result.notes == (
        "linf min-max: cut short by the budget of 0.2 s (0 of 4 images attacked)",
        "linf eps_min: cut short by the budget of 0.2 s (0 of 4 images attacked)",
    )
    assert not result.fooled["linf"].any()
    assert result.eps_min["linf"].tolist() == [math.inf] * 4
    assert result.weights["linf"].tolist() == [[0.5, 0.5]] * 4
    assert result.at_most == {"union", "robust.linf", "joint.linf", "eps_min.linf"}
    assert result.unreached("linf").all()
    assert result.because == (
        "linf min-max was cut short by the budget before 4 images",
        "linf eps_min was cut short by the budget before 4 images",
    )
    assert "union at most 100.0 %: linf min-max was cut short by the budget" in repr(result)
    assert result.interval()[0] == result.joint_interval("linf")[0] == 0
    again = robust_domains(problem, LINF, LAZY, ledger=ledger, **options)
    assert equal(result, again)
    assert again.notes == result.notes
    whole = robust_domains(problem, LINF, LAZY, ledger=ledger, **{**options, "budget": None})
    assert whole.notes == whole.because == ()
    assert whole.at_most == frozenset()
    assert bool((whole.weights["linf"] != 0.5).any())


def test_a_model_that_fails_is_an_error_or_stands_beside_the_numbers() -> None:
    def broken(images: Tensor) -> Tensor:
        if images.requires_grad:
            raise RuntimeError("no gradients\nhere")
        return SECOND(images)

    problem = Ensemble([FIRST, broken], X, Y, names=NAMES)
    options = {"steps": 5, "searches": 2}
    with pytest.raises(AttackFailedError, match="linf min-max failed on 4 images") as caught:
        robust_domains(problem, LINF, LAZY, **options)
    assert isinstance(caught.value.__cause__, RuntimeError)
    result = robust_domains(problem, LINF, LAZY, on_failure="note", **options)
    assert result.notes == (
        "linf min-max failed on 4 images: RuntimeError: no gradients here",
        "linf eps_min failed on 4 images: RuntimeError: no gradients here",
    )
    assert result.clean == pytest.approx(3 / 5)
    assert result.joint == {"linf": pytest.approx(4 / 5)}
    assert repr(result) == (
        "DomainAccuracy(5 images, 2 domains: clean 60.0 %, linf fools all at once at least 20.0 %, union at "
        "most 60.0 %: linf min-max failed on 4 images, linf eps_min failed on 4 images)"
    )


def test_logits_that_are_not_numbers_from_the_start_are_refused() -> None:
    def nowhere(images: Tensor) -> Tensor:
        return SECOND(images) * math.nan

    with pytest.raises(ValueError, match="5 of 5 images, the first of which is image 0"):
        robust_domains(Ensemble([SECOND, nowhere], X, Y), LINF, LAZY, steps=5, searches=2)
    with pytest.raises(ValueError, match="finite"):
        smallest_radius(Ensemble([nowhere], X, Y), 2)


def test_progress_names_the_domain_and_counts_all_stages() -> None:
    seen: list[EvaluationProgress] = []
    threats = {"linf": LpBall(math.inf, 0.22), "l2": LpBall(2, 0.1)}
    robust_domains(BOTH, threats, LAZY, steps=3, searches=1, batch_size=2, callback=seen.append)
    stages = {(p.index, p.domain, p.threat, p.attack): None for p in seen}
    assert list(stages) == [
        (0, "A", "linf", "lazy"),
        (1, "A", "l2", "lazy"),
        (2, "B", "linf", "lazy"),
        (3, "B", "l2", "lazy"),
        (4, "", "linf", "min-max"),
        (5, "", "linf", "eps_min"),
        (6, "", "l2", "min-max"),
        (7, "", "l2", "eps_min"),
    ]
    assert {p.attacks for p in seen} == {8}
    assert {p.images for p in seen} == {5}
    joint = [(p.done, p.total) for p in seen if p.index == 4]
    assert joint == [(0, 4), (2, 4), (4, 4)]
    assert [p.not_fooled for p in seen if p.index == 4] == [4, 3, 2]


def test_images_that_every_domain_has_wrong_need_no_attack() -> None:
    seen: list[EvaluationProgress] = []
    problem = Ensemble([FIRST, SECOND], X, 1 - Y, names=NAMES).take(torch.tensor([0, 1]))
    result = robust_domains(problem, LINF, LAZY, callback=seen.append)
    assert (result.clean, result.union, result.joint) == (0.0, 0.0, {"linf": 0.0})
    assert result.eps_min["linf"].tolist() == [0.0, 0.0]
    assert seen == []


def test_rows_of_a_part_of_a_problem_keep_their_numbers() -> None:
    rows = torch.tensor([2, 0])
    whole = robust_domains(BOTH, LINF, LAZY, steps=8, searches=4)
    part = robust_domains(BOTH.take(rows), LINF, LAZY, steps=8, searches=4)
    assert torch.equal(part.eps_min["linf"], whole.eps_min["linf"][rows])
    assert torch.equal(part.weights["linf"], whole.weights["linf"][rows])


@pytest.mark.parametrize("eps", [0.0, math.inf])
def test_radii_of_nothing_and_of_everything(eps: float) -> None:
    result = robust_domains(BOTH, {"some": LpBall(2, eps)}, LAZY, steps=10, searches=4)
    expected = [eps > 0] * 4 + [True]
    assert result.fooled["some"].tolist() == expected
    assert result.eps_min["some"].isfinite().all()
    assert torch.equal(result.eps_min["some"] <= eps, result.fooled["some"])


# -------------------------------------------------------------------------------- smallest radii


def test_brackets_that_are_known_are_not_searched_again() -> None:
    exact = torch.tensor(RADII[math.inf], dtype=torch.float64)
    tried: list[Tensor] = []

    def watch(images: Tensor) -> Tensor:
        tried.append((images.detach() - X[: len(images)]).abs().amax())
        return FIRST(images)

    problem = Ensemble([watch, SECOND], X[:1], Y[:1])
    succeeded = torch.tensor([0.35], dtype=torch.float64)
    radii = smallest_radius(
        problem, math.inf, failed=torch.tensor([0.25]), succeeded=succeeded, searches=5
    )
    assert exact[0] <= radii[0] <= exact[0] + 0.1 * 2**-5 + 1e-9
    assert max(tried) <= 0.3251  # not 1, and not 0.35 again
    assert smallest_radius(problem, math.inf, succeeded=succeeded, searches=0).tolist() == [0.35]


def test_what_withstood_the_ball_is_searched_beyond_it_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def search(
        problem: Ensemble, unit_ball: LpBall, *, failed: Tensor, succeeded: Tensor, **_: object
    ) -> Tensor:
        fooled = succeeded <= 0.22
        assert fooled.tolist() == [False, True, False, True]
        assert failed.tolist() == [0.22, 0.0, 0.22, 0.0]  # so that radii and verdicts agree
        return succeeded

    monkeypatch.setattr(joint, "radii_unchecked", search)
    result = robust_domains(BOTH, LINF, LAZY, steps=20)
    assert result.notes == ()


def test_a_ladder_from_a_first_radius_finds_the_same_to_more_digits() -> None:
    exact = torch.tensor(RADII[math.inf], dtype=torch.float64)
    radii = smallest_radius(BOTH, math.inf, first=0.02, searches=6)
    # brackets (0, 0.02], (0.02, 0.08], (0.08, 0.32], (0.32, 1]
    widths = torch.tensor([0.24, 0.06, 0.68, 0.24, 0.0]).double()
    assert bool((radii >= exact - 1e-9).all())
    assert bool((radii <= exact + widths * 2**-6 + 1e-9).all())


def test_counts_are_exact_whatever_the_searches() -> None:
    x = torch.full((1, 40), 0.55, dtype=torch.float64)  # 0.3 a piece: 7 entries at zero take 3.85

    def model(images: Tensor) -> Tensor:
        margin = images.sum(dim=1) - (22 - 3.5)
        return torch.stack([margin, -margin], dim=1)

    problem = Ensemble([model], x, Y[:1])
    for options in ({"searches": 0}, {"searches": 10}, {"first": 3.7}, {"first": 7.0}):
        assert smallest_radius(problem, 0, **options).tolist() == [7.0]
    pixels = Ensemble([model], x.reshape(1, 2, 20), Y[:1])
    sums = Ensemble([lambda images: model(images.flatten(1))], pixels.x, Y[:1])
    assert smallest_radius(sums, 0, unit="pixel").tolist() == [4.0]


def test_groups_have_a_radius_too() -> None:
    problem = Universal(FIRST, X[:2].unsqueeze(0), Y[:2].unsqueeze(0), box="clip")
    assert smallest_radius(problem, math.inf).item() == pytest.approx(0.1, abs=2e-3)


# ------------------------------------------------------------------------------------ arguments


def test_problems_whose_domains_cannot_be_attacked_one_by_one_are_refused() -> None:
    groups = Universal(FIRST, X.unsqueeze(0), Y.unsqueeze(0))
    with pytest.raises(
        ValueError, match=r"got Universal; evaluate it with `attack` and `success_rates`"
    ):
        robust_domains(groups, LINF)
    image = torch.rand(2, 1, 4, 4)
    noisy = Transformed(above(0), [T.random_hflip()], image, Y[:2])
    with pytest.raises(ValueError, match="must be deterministic, got random transforms"):
        robust_domains(noisy, LINF)
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).double()
    with pytest.raises(ValueError, match="training mode"):
        robust_domains(Ensemble([model], X, Y), LINF)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "`steps` must be >= 0, got -1"),
        ({"searches": -1}, "`searches` must be >= 0, got -1"),
        ({"threats": {}}, "`threats` must name at least one threat"),
        ({"budget": -1.0}, "`budget` must be positive"),
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"suite": "slow"}, "`suite` must be one of"),
    ],
)
def test_unusable_arguments_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        robust_domains(BOTH, **{"threats": LINF, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"searches": -1}, "`searches` must be >= 0"),
        ({"first": 0.0}, "`first` must be a positive radius"),
        ({"first": math.nan}, "`first` must be a positive radius"),
        (
            {"failed": torch.zeros(3)},
            r"`failed` must be one radius >= 0 per row, \(5,\), got shape \(3,\)",
        ),
        ({"succeeded": torch.full((5,), -1.0)}, "`succeeded` must be one radius >= 0 per row"),
        ({"failed": torch.full((5,), math.nan)}, "`failed` must be one radius"),
    ],
)
def test_unusable_brackets_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smallest_radius(BOTH, math.inf, **options)
