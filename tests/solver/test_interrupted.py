"""Ctrl-C in an attack that nobody catches: the process ends as Python's own do, with one traceback."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from types import FrameType
from typing import cast

import pytest
import torch

import saddlepoint as sp
from commands import ENVIRONMENT
from saddlepoint.losses import cw_margin
from saddlepoint.losses import fooled as is_fooled
from saddlepoint.solver import attack_unchecked
from saddlepoint.solver.best import Best

SCRIPT = """
import os, signal, torch, saddlepoint as sp

def impatient(progress):
    os.kill(os.getpid(), signal.SIGINT)

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
    """Ctrl-C before one line of the loop of `attack`: the one of this number among all that it comes to."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, arg: object) -> _StopAt | None:
        del arg
        code = frame.f_code
        if code.co_name != "go" and code.co_filename != inspect.getfile(Best):
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def _stopped_at(number: int, problem: sp.Ensemble) -> sp.AttackResult | None:
    """What was found before the line of this number; None if there are not that many."""
    before = sys.gettrace()
    try:
        sys.settrace(_StopAt(number))
        attack_unchecked(problem, sp.l2(0.2), steps=2, restarts=2, batch_size=len(problem))
    except KeyboardInterrupt as stop:
        return cast(sp.AttackResult, stop.result)  # type: ignore[attr-defined]
    finally:
        sys.settrace(before)
    return None


def test_what_an_attack_has_found_belongs_together_at_whichever_line_it_is_stopped() -> None:
    torch.manual_seed(0)
    models = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
    images = torch.rand(6, 4)
    problem = sp.Ensemble(models, images, models[0](images).argmax(dim=1))
    clean = is_fooled(problem.logits(problem.zeros()), problem.labels)
    assert clean.any()  # the second model is wrong about some images as they are
    found, reached = _stopped_at(0, problem), 0
    for number in range(1, 10_000):
        if found is None:
            break
        if not found.losses.isnan().any():  # else it was stopped before its first iterate
            logits = problem.logits(found.delta)
            torch.testing.assert_close(found.losses, cw_margin(logits, problem.labels))
            assert torch.equal(found.fooled, is_fooled(logits, problem.labels))
            reached += 1
        found = _stopped_at(number, problem)
    assert found is None  # every line was tried
    assert reached > 50
