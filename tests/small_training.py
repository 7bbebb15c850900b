"""What tests of training train: a small network with everything that has a state or is random."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["assert_equal_bits", "bits", "network"]


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
