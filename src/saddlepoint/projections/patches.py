"""The set of a patch: anything inside a mask, nothing outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.display import Brief
from saddlepoint.projections.balls import AbstractSet, LpBall

__all__ = ["Patch"]


@final
@dataclass(frozen=True, repr=False)
class Patch(Brief, AbstractSet):
    """The perturbations that are zero outside a mask, and any pixel inside it.

    Args:
        size: Height and width in pixels of a rectangle in the centre of the image; one number is a square.
        mask: Where the patch is, (H, W), of the size of the image: True or 1 inside, False or 0 outside; in
            place of `size`.
        eps: None leaves pixels inside the mask to the range of images alone. A number is how far one of them
            may be moved, as in an linf ball.

    Example:
        >>> patch = Patch(size=(1, 2))
        >>> patch.project(torch.full((1, 1, 3, 4), 0.5), torch.tensor(-0.2), torch.tensor(1.0))
        tensor([[[[0.0000, 0.0000, 0.0000, 0.0000],
                  [0.0000, 0.5000, 0.5000, 0.0000],
                  [0.0000, 0.0000, 0.0000, 0.0000]]]])
    """

    size: int | tuple[int, int] | None = None
    mask: Tensor | None = None
    eps: float | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.mask is None):
            raise ValueError("`size` or `mask` must be given, and not both; write Patch(size=8).")
        if self.eps is not None and not 0 < self.eps <= 1:
            raise ValueError(
                f"`eps` of a patch must be in (0, 1], the range of a pixel, got {self.eps:g}; "
                "None sets no bound."
            )
        if self.size is not None:
            both = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
            if len(both) != 2 or any(int(side) != side or side < 1 for side in both):
                raise ValueError(
                    f"`size` must be height and width in whole pixels >= 1, got {self.size!r}."
                )
            object.__setattr__(self, "size", (int(both[0]), int(both[1])))
        if self.mask is not None:
            object.__setattr__(self, "mask", _as_mask(self.mask))

    @property
    def ball(self) -> LpBall:
        """The linf ball of a pixel inside the mask; radius 1, the range of pixels, bounds nothing."""
        return LpBall(math.inf, 1.0 if self.eps is None else self.eps)

    def inside(self, shape: Sequence[int]) -> Tensor:
        """Where the patch is in images of this shape, (..., H, W): (H, W), boolean.

        Raises:
            ValueError: It does not fit.

        Example:
            >>> Patch(size=(2, 1)).inside((3, 2, 3)).int()
            tensor([[0, 1, 0],
                    [0, 1, 0]], dtype=torch.int32)
        """
        if len(shape) < 2:
            raise ValueError(f"`shape` must be (..., H, W) for a patch, got {tuple(shape)}.")
        height, width = shape[-2:]
        if self.mask is not None:
            if tuple(self.mask.shape) != (height, width):
                raise ValueError(
                    f"`mask` must have the size of the images, ({height}, {width}), got "
                    f"{tuple(self.mask.shape)}."
                )
            return self.mask
        assert isinstance(self.size, tuple)  # one of the two is there
        tall, wide = self.size
        if tall > height or wide > width:
            raise ValueError(
                f"`size` must fit into images of {height} x {width} pixels, got {tall} x {wide}."
            )
        mask = torch.zeros(height, width, dtype=torch.bool)
        top, left = (height - tall) // 2, (width - wide) // 2
        mask[top : top + tall, left : left + wide] = True
        return mask

    def box(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The box inside the mask, and [0, 0] outside it."""
        inside = self.inside(lower.shape).to(lower.device)
        zero = torch.zeros((), dtype=lower.dtype, device=lower.device)
        return torch.where(inside, lower, zero), torch.where(inside, upper, zero)

    def doubt(self, shape: Sequence[int] | None = None) -> str:
        """A sentence where the patch covers the whole image, else empty."""
        if shape is None or not bool(self.inside(shape).all()):
            return ""
        return f"the patch covers all of images of shape {tuple(shape)}: nothing of them is left to see."


def _as_mask(mask: object) -> Tensor:
    found = torch.as_tensor(mask).detach()
    if found.dim() != 2 or found.numel() == 0:
        raise ValueError(f"`mask` must have shape (H, W), got {tuple(found.shape)}.")
    if found.dtype != torch.bool and not bool(((found == 0) | (found == 1)).all()):
        raise ValueError(
            "`mask` must be True or False, or 1 or 0, got other values; write mask > 0.5."
        )
    if not bool(found.any()):
        raise ValueError("`mask` must be True somewhere, got a patch without pixels.")
    return found.bool().clone()
