"""Perturbations that survive saving as an 8-bit image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

__all__ = ["Grid"]


@final
@dataclass(frozen=True)
class Grid:
    """The multiples of 1/(levels - 1): what an image file can hold.

    Args:
        levels: Number of grey levels, 256 for 8-bit images.

    Example:
        >>> Grid(256).towards_zero(torch.tensor([[1.9 / 255, -0.4 / 255]])) * 255
        tensor([[1., -0.]])
    """

    levels: int

    def __post_init__(self) -> None:
        if self.levels < 2:
            raise ValueError(f"`quantize` must be at least 2 levels, got {self.levels}.")

    def check(self, images: Tensor) -> None:
        """Refuse images that are not on the grid: no perturbation could bring them onto it for sure."""
        scaled = images * (self.levels - 1)
        off = (scaled - scaled.round()).abs().max().item()
        if off > 1e-3:
            raise ValueError(
                f"`quantize={self.levels}` needs images whose values are multiples of "
                f"1/{self.levels - 1}, got one that is {off:.3f} of a level away; "
                f"round them first: (x * {self.levels - 1}).round() / {self.levels - 1}."
            )

    def towards_zero(self, delta: Tensor) -> Tensor:
        """The nearest grid point that is not larger in any entry: it stays in every ball and box.

        A value that misses a level by rounding alone (two units in the last place) counts as on it.
        """
        top = self.levels - 1
        slack = 1 + 2 * torch.finfo(delta.dtype).eps
        levels = (delta.abs().double() * top * slack).floor()
        return torch.copysign(levels / top, delta.double()).to(delta.dtype)
