"""Ctrl-C in an attack: what was found so far is in it, and nobody who does not catch it goes on."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, cast

import pytest
import torch

import saddlepoint as sp
from commands import ENVIRONMENT
from saddlepoint.losses import cw_margin
from saddlepoint.losses import fooled as is_fooled
from saddlepoint.solver import apgda_unchecked, attack_unchecked
from saddlepoint.solver.apgda import Keep
from saddlepoint.solver.best import Best

SCRIPT = """
import signal, torch, saddlepoint as sp

def impatient(progress):
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
problem = sp.Ensemble([torch.nn.Identity().eval()], 0.5 * torch.eye(3), torch.arange(3))
sp.attack(problem, sp.linf(0.1), callback=impatient)
"""


def test_an_uncaught_ctrl_c_ends_the_process_by_the_signal_with_one_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.count("Traceback") == 1
    assert "0 of 3 rows are done (fooled, or attacked to the end)" in ended.stderr


def test_an_attack_inside_the_model_that_is_stopped_is_not_taken_for_the_outer_one() -> None:
    inner = sp.Ensemble([torch.nn.Identity().eval()], 0.5 * torch.eye(3), torch.arange(3))

    def stop(progress: sp.Progress) -> None:
        raise KeyboardInterrupt

    def model(images: torch.Tensor) -> torch.Tensor:
        if len(images) == 5:  # not the look at entry
            sp.attack(inner, sp.linf(0.1), callback=stop)
        return images

    outer = sp.Ensemble([model], 0.5 * torch.eye(5), torch.arange(5))
    with pytest.raises(KeyboardInterrupt) as caught:
        sp.apgda(outer, sp.linf(0.1), steps=2)
    assert len(caught.value.result.completed) == 5  # type: ignore[attr-defined]


class _StopAt:
    """Ctrl-C before one line of the loop of a solver: the one of this number among all that it comes to."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, arg: object) -> _StopAt | None:
        del arg
        code = frame.f_code
        if code.co_name not in ("go", "_apgda", "note") and code.co_filename != inspect.getfile(
            Best
        ):
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def _stopped_at(
    number: int, problem: sp.Ensemble, solver: Callable[..., sp.AttackResult]
) -> sp.AttackResult | None:
    """What was found before the line of this number; None if there are not that many."""
    before = sys.gettrace()
    try:
        sys.settrace(_StopAt(number))
        solver(problem, sp.l2(0.2), batch_size=len(problem))
    except KeyboardInterrupt as stop:
        return cast(sp.AttackResult, stop.result)  # type: ignore[attr-defined]
    finally:
        sys.settrace(before)
    return None


def _two_linear() -> sp.Ensemble:
    torch.manual_seed(0)
    models = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
    images = torch.rand(6, 4)
    return sp.Ensemble(models, images, models[0](images).argmax(dim=1))


@pytest.mark.parametrize(
    "solver",
    [
        partial(attack_unchecked, steps=2, restarts=2),
        partial(apgda_unchecked, steps=4, keep="last"),
        partial(apgda_unchecked, steps=2, keep="best"),
    ],
)
def test_what_a_solver_has_found_belongs_together_at_whichever_line_it_is_stopped(
    solver: Callable[..., sp.AttackResult],
) -> None:
    problem = _two_linear()
    clean = is_fooled(problem.logits(problem.zeros()), problem.labels)
    assert clean.any()  # the second model is wrong about some images as they are
    found, reached = _stopped_at(0, problem, solver), 0
    for number in range(1, 10_000):
        if found is None:
            break
        if not found.losses.isnan().any():  # else it was stopped before its first iterate
            logits = problem.logits(found.delta)
            torch.testing.assert_close(found.losses, cw_margin(logits, problem.labels))
            assert torch.equal(found.fooled, is_fooled(logits, problem.labels))
            reached += 1
        found = _stopped_at(number, problem, solver)
    assert found is None  # every line was tried
    assert reached > 50


def _impatient(step: int) -> Callable[[sp.Progress], None]:
    def stop(progress: sp.Progress) -> None:
        if progress.step == step:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("options", [{}, {"precision": "bfloat16"}, {"momentum": 0.9}])
def test_ctrl_c_in_apgda_carries_what_as_many_steps_would_have_found(
    keep: Keep, options: dict[str, Any]
) -> None:
    problem, ball = _two_linear(), sp.linf(0.3)
    how: dict[str, Any] = {"step_size": 0.02, "keep": keep, **options}
    short = sp.apgda(problem, ball, steps=12, **how)
    with pytest.raises(KeyboardInterrupt) as caught:
        sp.apgda(problem, ball, steps=20, callback=_impatient(12), **how)
    found: sp.AttackResult = caught.value.result  # type: ignore[attr-defined]
    assert short.delta.any()
    assert 0 < short.success.sum() < 6
    for name in ("delta", "adversarial", "weights", "losses", "fooled", "num_forwards"):
        assert torch.equal(getattr(found, name), getattr(short, name)), name
    for name in ("weights", "losses"):
        told, series = getattr(short.history, name), getattr(found.history, name)
        assert torch.equal(series, torch.cat([told, told[-1:].expand(8, -1, -1)]))
    # The last iterate is still to come; the best one can only become better.
    assert torch.equal(found.completed, short.success & (keep == "best"))
    assert found.interrupted


@pytest.mark.parametrize(
    "solve",
    [partial(sp.apgda, keep="last"), partial(sp.apgda, keep="best"), partial(sp.attack, seed=1)],
)
def test_ctrl_c_calls_no_row_of_a_random_problem_done(
    solve: Callable[..., sp.AttackResult],
) -> None:
    """It was fooled in one draw, here always: the verdict takes another, and rows do not end early."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
    images = torch.rand(4, 1, 4, 4)
    with torch.no_grad():
        network[1].bias.copy_(torch.tensor([9.0, 0.0, 0.0]))  # 0 whatever it sees
    wrong = torch.ones(4, dtype=torch.long)
    problem = sp.Transformed(network, [sp.transforms.random_rotate(-9, 9)], images, wrong)
    with pytest.raises(KeyboardInterrupt) as caught:
        solve(problem, sp.linf(0.1), steps=3, callback=_impatient(2))
    found: sp.AttackResult = caught.value.result  # type: ignore[attr-defined]
    assert found.success.all()
    assert not found.completed.any()


def test_ctrl_c_in_a_second_restart_leaves_rows_of_random_problems_done_that_the_first_ended() -> (
    None
):
    flat = torch.nn.Flatten().eval()

    def network(v: torch.Tensor) -> torch.Tensor:
        dark = flat(v).mean(dim=1) < 0.5  # which no perturbation within the ball changes
        return torch.stack([dark.float(), 0.5 + 0 * flat(v).sum(dim=1)], dim=1)

    images = torch.tensor([0.2, 0.8]).repeat_interleave(2).reshape(4, 1, 1, 1).expand(4, 1, 4, 4)
    ones = torch.ones(4, dtype=torch.long)
    problem = sp.Transformed(network, [sp.transforms.random_rotate(-9, 9)], images.clone(), ones)

    def impatient(progress: sp.Progress) -> None:
        if progress.restart == 1:
            raise KeyboardInterrupt

    with pytest.warns(match="gradient"), pytest.raises(KeyboardInterrupt) as caught:
        sp.attack(problem, sp.linf(0.01), steps=3, restarts=2, callback=impatient)
    found: sp.AttackResult = caught.value.result  # type: ignore[attr-defined]
    assert found.success.tolist() == found.completed.tolist() == [True, True, False, False]


@pytest.mark.parametrize("solve", [sp.attack, partial(sp.apgda, step_size=0.02)])
def test_ctrl_c_in_the_very_last_question_keeps_what_was_found(solve: Any) -> None:
    x, y = sp.data.sample("mnist", 8)
    network, asked, last = sp.models.load("mnist-c"), [0], [0]

    def model(images: torch.Tensor) -> torch.Tensor:
        asked[0] += 1
        if asked[0] == last[0]:
            raise KeyboardInterrupt
        return cast(torch.Tensor, network(images))

    options = {"steps": 6, "batch_size": 8}
    whole = solve(sp.Ensemble([model], x, y), sp.linf(0.15), **options)
    last[0], asked[0] = asked[0], 0
    with pytest.raises(KeyboardInterrupt) as caught:
        solve(sp.Ensemble([model], x, y), sp.linf(0.15), **options)
    found = caught.value.result  # type: ignore[attr-defined]
    assert whole.success.any()
    assert torch.equal(found.success, whole.success)
    assert torch.equal(found.delta, whole.delta)
