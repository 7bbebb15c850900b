"""Perturbations that survive saving as an 8-bit image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.counts import check_count
from saddlepoint.projections import LpBall
from saddlepoint.projections.arguments import column

__all__ = ["Grid"]

_MOST = 2**16  # grey levels of the finest images that are read
_OFF = (
    1e-4  # of a level: what dividing 8-bit integers by 255 in float32 may leave, several times over
)


@final
@dataclass(frozen=True)
class Grid:
    """The multiples of 1/(levels - 1): what an image file can hold.

    Args:
        levels: Number of grey levels, 256 for 8-bit images.

    Example:
        >>> ball, delta = LpBall(math.inf, 1.9 / 255), torch.tensor([[1.9 / 255, -0.4 / 255]])
        >>> Grid(256).within(delta, ball, torch.tensor(-1.0), torch.tensor(1.0)) * 255
        tensor([[1.0000, -0.0000]])
    """

    levels: int

    def __post_init__(self) -> None:
        check_count("quantize", self.levels, 2)
        if self.levels > _MOST:
            raise ValueError(
                f"`quantize` must be at most {_MOST}, as 16 bits hold, got {self.levels}; 256 is for 8 bits."
            )

    def check(self, images: Tensor) -> None:
        """Refuse images that are not on the grid: no perturbation could bring them onto it for sure."""
        off = self._off(images)
        if off > _OFF:
            raise ValueError(
                f"`quantize={self.levels}` needs images whose values are multiples of "
                f"1/{self.levels - 1}, got one that is {off:.3g} of a level away; "
                f"round them first: (x * {self.levels - 1}).round() / {self.levels - 1}."
            )

    def holds(self, images: Tensor) -> bool:
        """Whether images are on the grid."""
        return self._off(images) <= _OFF

    def _off(self, images: Tensor) -> float:
        """How far the furthest value is from a level, in levels."""
        scaled = images.double() * (self.levels - 1)
        return (scaled - scaled.round()).abs().max().item()

    def check_ball(self, ball: LpBall) -> None:
        """Refuse a ball in which no entry can move by a whole level: only the image itself is in it."""
        smallest = float(torch.as_tensor(ball.eps, dtype=torch.float64).min())
        if ball.p != 0 and smallest * (self.levels - 1) < 1 - 1e-6:
            raise ValueError(
                f"`quantize={self.levels}` needs a radius of at least one level, 1/{self.levels - 1}, got "
                f"{smallest:g}: no other image of {self.levels} levels is in the ball."
            )

    def within(self, delta: Tensor, ball: LpBall, lower: Tensor, upper: Tensor) -> Tensor:
        """The nearest whole levels that are not larger in any entry, (B, ...): they stay in ball and box.

        A value that misses a level by rounding alone (two units in the last place) counts as on it. In the box
        and, for p = inf and 0, in the ball the result is in exact arithmetic, as a multiple of a level that was
        rounded towards zero; for p = 1 and 2 the norm holds up to that rounding, as in `LpBall.project`.
        """
        top = self.levels - 1
        slack = 1 + 2 * torch.finfo(delta.dtype).eps
        levels = (delta.abs().double() * top * slack).floor()
        wide = levels / top
        if ball.p == math.inf:
            eps = column(ball.eps, delta, torch.float64)
            most = (eps * top * (1 + 1e-12)).floor()
            wide = torch.minimum(torch.minimum(levels, most) / top, eps)
        wide = torch.copysign(wide, delta.double())
        near = wide.to(delta.dtype)
        near = torch.where(
            near.abs() > wide.abs(), torch.nextafter(near, torch.zeros_like(near)), near
        )
        return torch.clamp(near, lower, upper)
