"""Ctrl-C in an attack that nobody catches: the process ends as Python's own do, with one traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

import saddlepoint as sp
from commands import ENVIRONMENT

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
