"""How often an attack asks the device for a value: every question makes an accelerator wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import saddlepoint as sp
from saddlepoint import entries
from saddlepoint.projections import solvers
from saddlepoint.solver import best, watch
from saddlepoint.solver.restart import Restart
from saddlepoint.solver.search import random_search

ATEN = torch.ops.aten
QUESTIONS = {
    ATEN._local_scalar_dense.default,  # item(), bool(), int(), float()
    ATEN.nonzero.default,
    ATEN.equal.default,
    ATEN.masked_select.default,
}
COPIES = {
    Tensor.tolist,
    Tensor.cpu,
    Tensor.numpy,
}  # no operation of their own where a tensor is at home
UPLOADS = {
    torch.tensor,
    torch.as_tensor,
    torch.asarray,
    torch.scalar_tensor,
    torch.from_numpy,
    Tensor.new_tensor,
}  # of numbers, which the host then waits to see copied; `torch.full` lets the device write them
MASKED = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default}
BALLS = {"linf": sp.linf(0.001), "l2": sp.l2(0.01), "l1": sp.l1(0.01), "l0": sp.l0(1)}
BALLS |= {
    f"{name}, a radius per row": sp.LpBall(p, torch.full((3,), 0.01))
    for name, p in (("l2", 2), ("l1", 1))
}


class Questions(TorchDispatchMode):
    """Counts the operations whose result, or the size of it, only the device knows."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        by_mask = function in MASKED and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.count += function in QUESTIONS or by_mask
        return function(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Counts the calls that bring a whole tensor to the host, or numbers to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [*args, *kwargs.values()]
        up = function in UPLOADS and not isinstance(
            given[function is Tensor.new_tensor], Tensor | torch.Size
        )
        home = function is Tensor.to and "cpu" in [each for each in given if isinstance(each, str)]
        self.count += function in COPIES or up or home
        return function(*args, **kwargs)


def waits(act: Callable[[], object]) -> int:
    """How often an accelerator would wait for the host, or the host for it."""
    with Questions() as asked, Copies() as copied:
        act()
    return asked.count + copied.count


def questions(
    domains: int, ball: sp.LpBall, steps: int, restarts: int, options: dict[str, Any]
) -> int:
    x, y = sp.data.sample("mnist", limit=3)
    networks = [sp.models.load(f"mnist-{letter}") for letter in "aca"[:domains]]
    problem, found = sp.Ensemble(networks, x, y), []
    attack = partial(sp.attack, problem, ball, steps=steps, restarts=restarts, **options)
    count = waits(lambda: found.append(attack()))
    assert not found[0].success.any()  # every row took every step
    return count


def test_the_counter_counts() -> None:
    x = torch.tensor([1.0, 2.0])
    with Questions() as asked, Copies() as copied:
        bool(x.any())
        x[x > 1]
        x.nonzero()
        x.tolist()
        x.to("cpu")
        x.new_tensor(0.3)
        torch.tensor([0.3], device=x.device)
        torch.as_tensor(0.3, device=x.device)
        x + torch.full((), 0.3) + torch.as_tensor(x) + x.to(x.device)
    assert (asked.count, copied.count) == (3, 5)


@pytest.fixture(autouse=True)
def as_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an accelerator would see: on a CPU a question costs nothing, and more of them are asked."""
    monkeypatch.setattr(watch, "_PATIENCE", {})
    monkeypatch.setattr(solvers, "_PASSES", {})
    monkeypatch.setattr(best, "_ASKED", ())
    monkeypatch.setattr(entries, "_ASKED", ())


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("domains", [1, 3])
@pytest.mark.parametrize("ball", BALLS.values(), ids=BALLS)
def test_a_step_asks_at_most_once(ball: sp.LpBall, domains: int, restarts: int) -> None:
    few, many = (questions(domains, ball, steps, restarts, {}) for steps in (16, 48))
    assert few > 0
    assert (many - few) / (32 * restarts) <= 1


THREATS = {"linf": sp.linf(0.3), "l2": sp.l2(2.0), "l1": sp.l1(10.0)}


@pytest.mark.parametrize("step", [sp.ampgd_step, sp.avg_step, sp.max_step, sp.msd_step])
def test_an_inner_step_of_training_asks_nothing(step: Any) -> None:
    x, y = sp.data.sample("mnist", limit=3)

    def train(steps: int) -> object:
        model = sp.models.load("mnist-a").train()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        return step(model, optimizer, x, y, THREATS, steps=steps, iteration=0)

    few, many = (waits(partial(train, steps)) for steps in (4, 20))
    assert many - few == 0


def test_a_query_of_random_search_asks_at_most_twice() -> None:
    x, y = sp.data.sample("mnist", limit=3)
    search = partial(random_search, sp.models.load("mnist-ampgd"), x, y, 0.02, seed=0)
    few, many = (
        waits(partial(search, queries=queries, rows=torch.arange(3))) for queries in (64, 192)
    )
    assert 0 < (many - few) / 128 <= 2


OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"precision": "bfloat16"},
    "grey levels": {"quantize": 256},
    "callback": {"callback": lambda progress: None},
    "one by one": {"accumulate": True},
    "average": {"rule": sp.Average()},
    "fixed weights": {"rule": sp.Fixed((0.5, 0.5))},
    "entropic": {"rule": sp.Entropic()},
    "worst case": {"rule": sp.WorstCase()},
    "grouped": {"rule": sp.Grouped(sp.MinMax(), (0, 1))},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_step_asks_at_most_twice_with(options: dict[str, Any]) -> None:
    ball = sp.linf(1 / 255)
    few, many = (questions(2, ball, steps, 1, options) for steps in (16, 48))
    assert (many - few) / 32 <= 2


def _networks(letters: str) -> list[Any]:
    return [sp.models.load(f"mnist-{letter}") for letter in letters]


def _universal(x: Tensor, y: Tensor) -> sp.AbstractProblem:
    return sp.Universal(_networks("c")[0], *sp.data.group(x, y, size=2))


def _views(x: Tensor, y: Tensor) -> sp.AbstractProblem:
    family = [sp.transforms.identity, *sp.transforms.paper_random_family()]
    return sp.Transformed(_networks("c")[0], family, x[:3], y[:3])


def _crops(x: Tensor, y: Tensor) -> sp.AbstractProblem:
    family = [sp.transforms.random_crop_resize(low, 0.9) for low in (0.6, 0.7, 0.8)]
    return sp.Transformed(_networks("c")[0], family, x[:3], y[:3])


def _averaged_views(x: Tensor, y: Tensor) -> sp.AbstractProblem:
    family = [sp.transforms.identity, sp.transforms.random_rotate(-20, 20)]
    return sp.Transformed(_networks("c")[0], family, x[:3], y[:3], samples=3)


PROBLEMS: dict[str, Callable[[Tensor, Tensor], sp.AbstractProblem]] = {
    "ensemble": lambda x, y: sp.Ensemble(_networks("ac"), x[:3], y[:3]),
    "universal": _universal,
    "random views": _views,
    "random views, several draws": _averaged_views,
    "random crops": _crops,
}
SOLVERS: dict[str, Callable[..., sp.AttackResult]] = {
    "attack": partial(sp.attack, restarts=1),
    "attack, float16": partial(sp.attack, restarts=1, precision="float16"),
    "apgda": partial(sp.apgda, rule=sp.MinMax(), step_size=1e-4),
}


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("kind", PROBLEMS.values(), ids=PROBLEMS)
def test_a_step_on_any_problem_asks_at_most_twice(
    kind: Callable[[Tensor, Tensor], sp.AbstractProblem], solver: Callable[..., sp.AttackResult]
) -> None:
    x, y = sp.data.sample("mnist", limit=60)
    problem, found = kind(x, y), []
    few, many = (
        waits(lambda n=steps: found.append(solver(problem, sp.linf(1e-4), steps=n)))  # type: ignore[misc]
        for steps in (8, 24)
    )
    assert not any(result.success.any() for result in found)  # every row took every step
    assert (many - few) / 16 <= 2


LEAVING = {
    "linf": sp.linf(0.12),
    "l0": sp.l0(15),
    "l2": sp.l2(1.5),
    "l1": sp.l1(8.0),
    "l2, a radius per row": sp.LpBall(2, torch.full((16,), 1.5)),
    "l1, a radius per row": sp.LpBall(1, torch.full((16,), 8.0)),
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("ball", LEAVING.values(), ids=LEAVING)
def test_how_often_a_step_asks_while_rows_leave(
    ball: sp.LpBall, precision: sp.Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, copied = Questions(), Copies()
    begun: list[tuple[int, int]] = []  # rows, and questions before an iterate is evaluated
    as_it_is = Restart._evaluate

    def noted(self: Restart, problem: Any, *more: Any, **others: Any) -> Any:
        begun.append((len(problem), asked.count + copied.count))
        return as_it_is(self, problem, *more, **others)

    monkeypatch.setattr(Restart, "_evaluate", noted)
    x, y = sp.data.sample("mnist", limit=16)
    networks = [sp.models.load(f"mnist-{letter}") for letter in "ac"]
    options: Any = {"steps": 20, "restarts": 1, "precision": precision}
    with asked, copied:
        sp.attack(sp.Ensemble(networks, x, y), ball, **options)
    rows = [each for each, _ in begun]
    assert len(set(rows)) >= 3  # they left at several steps, and some of them stayed
    steps = [after - before for (_, before), (_, after) in pairwise(begun)]
    most = 1 if precision == "float32" else 2  # for the rows that are left, and to be confirmed
    if ball.p == 1 and isinstance(ball.eps, Tensor):
        steps.remove(most + 1)  # once, for the largest radius
    assert max(steps) <= most
