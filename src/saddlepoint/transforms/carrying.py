"""How a patch comes to be in an image: moved, scaled, turned and lit, with its mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from saddlepoint.display import Brief
from saddlepoint.transforms.transform import require

__all__ = ["Range", "View"]

Range = float | tuple[float, float]
"""A number, or a range of them."""
_NEAR = 1e-4  # of a pixel: rounding of a whole number of them


@final
@dataclass(frozen=True, repr=False)
class View(Brief):
    """A way to look at a patch: where it is in the image, how large, how turned, how bright.

    A pair of numbers is a range, of which every look draws its own value. `View()` leaves the patch where its
    mask is, pixel for pixel.

    Args:
        at: None leaves the patch where it is. "anywhere" draws a place, in whole pixels, at which all of it is
            inside the image. A pair (down, right) of numbers from 0 to 1 is a place: 0 at the top or the left
            edge, 1 at the bottom or the right one.
        scale: Times its own size, > 0.
        rotate: Degrees clockwise.
        brightness: Added to its pixels, which are then clipped to [0, 1].

    Example:
        >>> canvas, mask = torch.rand(1, 3, 8, 8), torch.zeros(8, 8, dtype=torch.bool)
        >>> mask[3:5, 3:5] = True
        >>> _, there = View(at=(0, 1)).carry(canvas, mask, torch.empty(1, 0))
        >>> there[0, 0, :2, 6:].all().item(), there.sum().item()
        (True, 4)
        >>> View(at="anywhere", rotate=(-20, 20)).name
        'anywhere+rotate:-20..20'
    """

    at: Literal["anywhere"] | tuple[float, float] | None = None
    scale: Range = 1.0
    rotate: Range = 0.0
    brightness: Range = 0.0

    def __post_init__(self) -> None:
        named = isinstance(self.at, str) or self.at is None
        require(
            not named or self.at in (None, "anywhere"),
            '`at` must be None, "anywhere" or (down, right)',
            self.at,
        )
        if not isinstance(self.at, str) and self.at is not None:
            inside = len(self.at) == 2 and all(0 <= share <= 1 for share in self.at)
            require(inside, "`at` must be two numbers from 0 to 1", self.at)
        for name, least, most in (("scale", 0, 100), ("rotate", -360, 360), ("brightness", -1, 1)):
            low, high = _ends(getattr(self, name))
            require(low <= high, f"`{name}` must begin with its lower end", (low, high))
            fits = least <= low and high <= most and low > (0 if name == "scale" else -math.inf)
            require(fits, f"`{name}` must be within {least} and {most}", getattr(self, name))

    @property
    def name(self) -> str:
        """The view in words, as the command line takes it."""
        here = {None: "here", "anywhere": "anywhere"}
        place = here[self.at] if self.at in here else "at:{:g}/{:g}".format(*self.at or ())
        parts = [place]
        for name, usual in (("scale", 1.0), ("rotate", 0.0), ("brightness", 0.0)):
            low, high = _ends(getattr(self, name))
            if (low, high) != (usual, usual):
                parts.append(f"{name}:{low:g}" + (f"..{high:g}" if low < high else ""))
        return "+".join(parts)

    @property
    def num_draws(self) -> int:
        """How many uniform numbers each look needs; 0 if all looks are the same."""
        places = 2 if self.at == "anywhere" else 0
        ranges = (_ends(value) for value in (self.scale, self.rotate, self.brightness))
        return places + sum(low < high for low, high in ranges)

    def carry(self, canvas: Tensor, mask: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """The patch as it is seen.

        A pixel of the image is covered if at least half of what is read there, bilinearly, is patch; its value
        is the mean of the pixels of the patch alone, so that nothing around it bleeds in.

        Args:
            canvas: Pixels in [0, 1], (B, C, H, W), of the size of the images.
            mask: Which of them are the patch, (H, W), boolean.
            uniforms: Random numbers in [0, 1), (B, num_draws).

        Returns:
            Pixels, (B, C, H, W), and where they are the patch's, (B, 1, H, W), boolean. Pixels elsewhere mean
            nothing.
        """
        mask = mask.to(canvas.device)
        numbers = list(uniforms.to(canvas).unbind(dim=1))
        place = [numbers.pop(0), numbers.pop(0)] if self.at == "anywhere" else []
        scale, rotate, brightness = (
            _drawn(value, numbers, canvas) for value in (self.scale, self.rotate, self.brightness)
        )
        still = self.at is None and _ends(self.scale) == (1, 1) and _ends(self.rotate) == (0, 0)
        if still:
            seen, there = canvas, mask.expand(len(canvas), 1, *mask.shape)
        else:
            grid = _points(mask, scale, torch.deg2rad(rotate), self._target(place, canvas))
            inked = mask.to(canvas.dtype)
            read = F.grid_sample(
                torch.cat([canvas * inked, inked.expand_as(canvas[:, :1])], dim=1),
                grid,
                align_corners=False,
            )
            cover = read[:, -1:].detach()
            there = cover >= 0.5 - _NEAR
            seen = read[:, :-1] / cover.clamp_min(0.5 - _NEAR)
        if _ends(self.brightness) != (0, 0):
            seen = seen + brightness.reshape(-1, 1, 1, 1)
        elif still:
            return seen, there
        return _within(seen), there

    def _target(self, place: list[Tensor], canvas: Tensor) -> tuple[Tensor, Tensor] | None:
        """Shares of the way from the first to the last place inside the image, (B,) each, down and right."""
        if place:
            return place[0], place[1]
        if self.at is None or isinstance(self.at, str):
            return None
        down, right = (canvas.new_full(canvas.shape[:1], share) for share in self.at)
        return down, right


def _points(
    mask: Tensor, scale: Tensor, angle: Tensor, target: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Where every pixel of the image is read on the canvas, (B, H, W, 2): the inverse of the motion."""
    height, width = mask.shape
    rows, columns = mask.any(dim=1).nonzero().flatten(), mask.any(dim=0).nonzero().flatten()
    tall, wide = (int(found[-1] - found[0]) + 1 for found in (rows, columns))
    middle = float(rows[0]) + tall / 2, float(columns[0]) + wide / 2
    cos, sin = angle.cos(), angle.sin()
    shift: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)
    if target is not None:
        # Half the height and width of the upright rectangle around the patch, scaled and turned.
        reach_down = scale * (cos.abs() * tall + sin.abs() * wide) / 2
        reach_right = scale * (cos.abs() * wide + sin.abs() * tall) / 2
        shift = (
            _whole(target[0], reach_down, middle[0], height),
            _whole(target[1], reach_right, middle[1], width),
        )
    down = torch.arange(height, device=angle.device, dtype=angle.dtype) + 0.5 - middle[0]
    right = torch.arange(width, device=angle.device, dtype=angle.dtype) + 0.5 - middle[1]
    y = (down - torch.as_tensor(shift[0], dtype=angle.dtype).reshape(-1, 1))[:, :, None]
    x = (right - torch.as_tensor(shift[1], dtype=angle.dtype).reshape(-1, 1))[:, None, :]
    c, s, size = (value.reshape(-1, 1, 1) for value in (cos, sin, scale))
    # Clockwise with y downwards is (cos, -sin; sin, cos); its inverse leads back to the canvas.
    read_x = (c * x + s * y) / size + middle[1]
    read_y = (-s * x + c * y) / size + middle[0]
    return torch.stack([2 * read_x / width - 1, 2 * read_y / height - 1], dim=-1)


def _whole(share: Tensor, reach: Tensor, middle: float, length: int) -> Tensor:
    """A motion along one axis in whole pixels, (B,): the share of the way between the two edges of the image.

    A patch that is larger than the image is put in its middle.
    """
    first, last = (reach - middle - _NEAR).ceil(), (length - reach - middle + _NEAR).floor()
    # As many equal parts of [0, 1] as there are places, so that none is likelier; 1 itself is in the last.
    places = (last - first + 1).clamp_min(1)
    chosen = first + (share * places).floor().minimum(places - 1)
    return torch.where(last < first, torch.full_like(first, round(length / 2 - middle)), chosen)


def _ends(value: Range) -> tuple[float, float]:
    low, high = value if isinstance(value, tuple | list) else (value, value)
    return float(low), float(high)


def _drawn(value: Range, numbers: list[Tensor], like: Tensor) -> Tensor:
    """One number per look, (B,)."""
    low, high = _ends(value)
    constant = like.new_full(like.shape[:1], low)
    return constant + (high - low) * numbers.pop(0) if low < high else constant


def _within(pixels: Tensor) -> Tensor:
    """Clipped to [0, 1]; where only rounding went beyond, the gradient passes."""
    clipped = pixels.clamp(0, 1)
    beyond = (pixels - clipped).detach()
    return torch.where(beyond.abs() <= _NEAR, pixels - beyond, clipped)
