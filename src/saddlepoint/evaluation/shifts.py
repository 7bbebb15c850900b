"""What saving images as files has moved, measured."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem, Patched
from saddlepoint.projections import AbstractSet, LpBall

__all__ = ["difference_of", "distances", "forbidden"]


def difference_of(images: Tensor, clean: Tensor) -> Tensor:
    """What was saved less what is clean; what is smaller than any part of a level is rounding."""
    difference = images - clean
    return torch.where(difference.abs() < 1e-6, 0.0, difference)


def forbidden(problem: AbstractProblem, region: AbstractSet, difference: Tensor) -> Tensor:
    """Rows that differ where the set allows nothing, as outside of a patch, (B,), boolean."""
    rows = difference.flatten(1)
    if isinstance(problem, Patched):  # whose images the patch is put into
        return torch.zeros_like(rows[:, 0], dtype=torch.bool)
    fixed = torch.stack([bound == 0 for bound in region.box(problem.lower, problem.upper)]).all(0)
    fixed = fixed.unsqueeze(1).expand_as(difference) if difference.dim() > fixed.dim() else fixed
    return (rows.ne(0) & fixed.flatten(1)).any(dim=1)


def distances(difference: Tensor, ball: LpBall) -> Tensor:
    """How far the saved images of every row are from the clean ones, the furthest of a group, (B,)."""
    if difference.dim() == 5:
        return ball.norm(difference.flatten(0, 1)).reshape(difference.shape[:2]).amax(dim=1)
    return ball.norm(difference)
