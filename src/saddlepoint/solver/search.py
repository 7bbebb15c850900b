"""Random search: what can be found without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.calls import call
from saddlepoint.losses import cw_margin, fooled

__all__ = ["random_search"]


def random_search(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    queries: int,
    seed: int,
    rows: Tensor,
    patience: int | None = None,
) -> Tensor:
    """Look for misclassified images in a linf ball by setting squares to +-eps at random.

    A simple form of Square Attack (Andriushchenko et al., ECCV 2020). It starts from stripes; what lowers the
    margin is kept; squares shrink from four tenths of the image to a few hundredths of that. It needs no
    gradient, so that flat or jagged losses do not stop it. A row's result does not depend on the others.

    Args:
        model: From images to logits, (n, C); called without gradients.
        x: Images in [0, 1], (B, ...): the last two axes are height and width, of (B, size) the last is width.
        y: Labels, (B,).
        eps: Radius.
        queries: Images of a row that may be shown to the model; a row that is fooled stops.
        seed: Of the rows' streams.
        rows: Row numbers, (B,).
        patience: After so many queries a row whose margin has not fallen to half of what it was at the start is
            given up; None gives up none.

    Returns:
        The image of lowest margin of every row, (B, ...), the first misclassified one if there is any.

    Example:
        >>> model, x = torch.nn.Linear(4, 2).eval(), torch.rand(3, 4)
        >>> y = model(x).argmax(dim=1)
        >>> found = random_search(model, x, y, 0.3, queries=20, seed=0, rows=torch.arange(3))
        >>> bool(((found - x).abs() <= 0.3 + 1e-6).all())
        True
    """
    width = x.shape[-1]
    stripes = streams.uniform(seed, rows, 0, width * _channels(x)).to(x)
    shape = (len(x), *x.shape[1:-2], 1, width) if x.dim() > 2 else (len(x), width)
    best = _moved(x, stripes.reshape(shape), eps)
    with torch.no_grad():
        margins, right = _judge(model, best, y)
        first, hopeful = margins.clone(), torch.ones_like(right)
        for query in range(1, queries):
            if query == patience:
                hopeful = margins <= first / 2
            left = (right & hopeful).nonzero().flatten()
            if len(left) == 0:
                break
            draws = streams.uniform(seed, rows[left], query, 2 + _channels(x)).to(x)
            share = 0.4 * 200 ** -math.sqrt(query / queries)
            trial = torch.where(
                _squares(x[left], draws[:, :2], share),
                _moved(x[left], _per_channel(draws[:, 2:], x), eps),
                best[left],
            )
            margin, still_right = _judge(model, trial, y[left])
            better = margin < margins[left]
            best[left[better]], margins[left[better]] = trial[better], margin[better]
            right[left] = still_right
    return best


def _judge(model: Callable[[Tensor], Tensor], images: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Margins, and whether the images are classified correctly, (n,) each."""
    logits = call(model, images)
    wrong = fooled(logits, y)
    # A tie may be misclassified at margin zero: it must count as an improvement on everything that is not.
    return cw_margin(logits, y).masked_fill(wrong, -math.inf), ~wrong


def _moved(x: Tensor, uniform: Tensor, eps: float) -> Tensor:
    """Add eps where the number is above one half, subtract it elsewhere; in the box."""
    return (x + eps * torch.where(uniform > 0.5, 1.0, -1.0).to(x)).clamp(0, 1)


def _channels(x: Tensor) -> int:
    return x.shape[1:-2].numel() if x.dim() > 2 else 1


def _per_channel(numbers: Tensor, x: Tensor) -> Tensor:
    """Numbers (n, channels) to go with images (n, ..., height, width) or (n, size)."""
    return numbers.reshape(len(numbers), *x.shape[1:-2], 1, 1) if x.dim() > 2 else numbers


def _squares(x: Tensor, draws: Tensor, share: float) -> Tensor:
    """Where a square of about this share of the area is, (n, 1, ..., height, width); of a vector, a stretch."""
    height, width = x.shape[-2:] if x.dim() > 2 else (1, x.shape[-1])
    side = math.sqrt(share * height * width) if height > 1 else share * width
    tall, wide = (min(max(1, round(side)), length) for length in (height, width))
    top = (draws[:, :1] * (height - tall + 1)).long()
    left = (draws[:, 1:] * (width - wide + 1)).long()
    line, column = (torch.arange(length, device=x.device) for length in (height, width))
    lines = (line >= top) & (line < top + tall)
    columns = (column >= left) & (column < left + wide)
    if x.dim() <= 2:
        return columns
    ones = (1 for _ in x.shape[1:-2])
    return (lines[:, :, None] & columns[:, None, :]).reshape(len(x), *ones, height, width)
