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
from torch.nn import functional

__all__ = ["Direction", "SparseL1", "raw", "sign", "unit_l2", "unit_linf"]

# Entries of which only the largest is compared with others at first. Measured on a CPU for rows of 784 to
# 150,528 entries: `topk` alone takes up to five times as long, and other numbers are hardly better.
_SPAN = 8
# Where a question costs nothing: an accelerator would have to stop for it.
_ASKED = ("cpu",)

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


def largest(rows: Tensor, count: int) -> Tensor:
    """Places of the `count` largest entries of every row (B, D), largest first, (B, count).

    They are in the `count` spans whose own largest entries are largest: few entries need to be ordered.

    Example:
        >>> largest(torch.tensor([[3.0, 4.0, 1.0]]), 2)
        tensor([[1, 0]])
    """
    size = rows.shape[1]
    if rows.device.type != "cpu" or size < 2 * _SPAN * count:
        return rows.topk(count, dim=1).indices
    lack = -size % _SPAN  # less than any entry: nothing of it is found, as every span has others
    filled = functional.pad(rows, (0, lack), value=-torch.inf) if lack else rows
    spans = filled.unflatten(1, (_SPAN, -1))  # (B, _SPAN, D / _SPAN): those of a span are far apart
    chosen = spans.amax(dim=1).topk(count, dim=1, sorted=False).indices
    some = spans.gather(2, chosen.unsqueeze(1).expand(-1, _SPAN, -1)).flatten(1)
    found = some.topk(count, dim=1).indices
    line = found.div(count, rounding_mode="floor")
    places: Tensor = chosen.gather(1, found - line * count) + line * spans.shape[2]
    return places


def sparse(rows: Tensor, counts: Tensor, most: int) -> Tensor:
    """Signs of the largest entries of every row (B, D), over their number; zero elsewhere.

    Of equal entries, as those of grey or pooled images are, the first are taken, so that no row depends on what
    is asked of the others.

    Args:
        rows: (B, D).
        counts: How many entries of a row, (B, 1) or (1, 1), from 1 to D.
        most: No row has more, and a row has at least as many entries.

    Example:
        >>> sparse(torch.tensor([[3.0, -4.0, 1.0, 3.0]]), torch.tensor([[2]]), 2)
        tensor([[ 0.5000, -0.5000,  0.0000,  0.0000]])
    """
    size, counts = rows.abs(), counts.expand(len(rows), 1)
    top = largest(size, min(most + 1, rows.shape[1]))
    values = size.gather(1, top)
    least = values.gather(1, counts - 1)
    if rows.device.type not in _ASKED:
        return rows.sign() * _first_of_equals(size, least, counts) / counts
    moving = torch.arange(top.shape[1]) < counts
    signs = rows.gather(1, top).sign() * moving / counts
    found = torch.zeros_like(rows).scatter(1, top, signs)
    tied = ((values == least) & ~moving & (least > 0)).any(dim=1).nonzero().flatten()
    if len(tied):
        given = size[tied], least[tied], counts[tied]
        found[tied] = rows[tied].sign() * _first_of_equals(*given) / counts[tied]
    return found


def _first_of_equals(size: Tensor, least: Tensor, counts: Tensor) -> Tensor:
    """Where `size`, (B, D), is above `least`, (B, 1), or is it and comes early enough for `counts` in all."""
    above, equal = size > least, size == least
    return above | (equal & (equal.cumsum(dim=1) <= counts - above.sum(dim=1, keepdim=True)))


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
