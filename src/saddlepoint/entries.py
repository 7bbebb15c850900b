"""The largest entries of rows, which steps in l1 move."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["largest", "sparse"]

# Entries of which only the largest is compared with others at first. Measured on a CPU for rows of 784 to
# 150,528 entries: `topk` alone takes up to five times as long, and other numbers are hardly better.
_SPAN = 8
# Where a question costs nothing: an accelerator would have to stop for it.
_ASKED = ("cpu",)


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
