"""Step directions: what a gradient becomes before it is multiplied by the step size.

Each maps gradients (B, ...) to directions (B, ...), row by row. `raw` is the paper's Algorithm 1; the others
are steepest ascent directions of unit length in their own norm, so that the step size is a distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.entries import sparse

__all__ = ["Direction", "SparseL1", "raw", "sign", "unit_l2", "unit_linf"]

Direction = Callable[[Tensor], Tensor]
"""From gradients (B, ...) to directions (B, ...), row by row.

Example:
    >>> direction: Direction = sign
    >>> direction(torch.tensor([[0.5, -2.0]]))
    tensor([[ 1., -1.]])
"""


def raw(gradient: Tensor) -> Tensor:
    """The gradient itself.

    Example:
        >>> raw(torch.tensor([[0.5, -2.0]]))
        tensor([[ 0.5000, -2.0000]])
    """
    return gradient


def sign(gradient: Tensor) -> Tensor:
    """Signs: the steepest direction of unit linf length.

    Example:
        >>> sign(torch.tensor([[0.5, -2.0]]))
        tensor([[ 1., -1.]])
    """
    return gradient.sign()


def unit_l2(gradient: Tensor) -> Tensor:
    """The gradient scaled to unit l2 length; a zero row stays zero.

    Example:
        >>> unit_l2(torch.tensor([[3.0, -4.0]]))
        tensor([[ 0.6000, -0.8000]])
    """
    # Squares of 1e-25 (a confident network) would vanish in float32; with a largest entry of one they do not.
    rows = unit_linf(gradient).flatten(1)
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return (rows / length.clamp_min(1.0)).reshape(gradient.shape)


def unit_linf(gradient: Tensor) -> Tensor:
    """The gradient scaled to largest entry one; a zero row stays zero.

    Example:
        >>> unit_linf(torch.tensor([[1.0, -4.0]]))
        tensor([[ 0.2500, -1.0000]])
    """
    rows = gradient.flatten(1)
    top = rows.abs().amax(dim=1, keepdim=True)
    return (rows / top.clamp_min(torch.finfo(rows.dtype).tiny)).reshape(gradient.shape)


@final
@dataclass(frozen=True)
class SparseL1:
    """Signs of the `count` largest entries, scaled to unit l1 length; zero elsewhere.

    The steepest direction of unit l1 length moves a single entry; a handful of them converges much faster
    and keeps the perturbation sparse (Tramer & Boneh, 2019).

    Example:
        >>> SparseL1(2)(torch.tensor([[3.0, -4.0, 1.0]]))
        tensor([[ 0.5000, -0.5000,  0.0000]])
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"`count` must be >= 1, got {self.count}.")

    def __call__(self, gradient: Tensor) -> Tensor:
        """Direction, same shape as gradient."""
        rows = gradient.flatten(1)
        count = min(self.count, rows.shape[1])
        counts = torch.full((1, 1), count, device=rows.device)
        return sparse(rows, counts, count).reshape(gradient.shape)
