"""What tests of training train: a small network with everything that has a state or is random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.training import avg_step, clean_step, max_step, msd_step

__all__ = ["STEPS", "assert_equal_bits", "bits", "network"]


def _clean(
    model: nn.Module, optimizer: Any, x: Tensor, y: Tensor, _: object, **options: Any
) -> Any:
    options.pop("iteration"), options.pop("steps")
    return clean_step(model, optimizer, x, y, **options)


STEPS: list[Callable[..., Any]] = [sp.ampgd_step, avg_step, max_step, msd_step, _clean]
"""The step of every method, called alike; that of clean images ignores threats and steps."""


def network(seed: int = 0, dropout: float = 0.2) -> nn.Sequential:
    """From images (B, 1, 28, 28) to ten classes, with batch norm and dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(4 * 8 * 8, 10),
        )


def bits(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters and buffers."""
    return {key: value.clone() for key, value in model.state_dict().items()}


def assert_equal_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """The same names with the same tensors."""
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(value, second[key]), key
