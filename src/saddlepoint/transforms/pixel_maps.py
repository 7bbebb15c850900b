"""What transforms do to the pixels of a batch (B, C, H, W)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["brighten", "check_rank", "flip", "power", "turn", "zoom"]


def flip(images: Tensor, axis: int) -> Tensor:
    """Mirror images along an axis."""
    check_rank(images)
    return images.flip(axis)


def brighten(images: Tensor, amount: float) -> Tensor:
    """Add an amount to every pixel, and clip."""
    check_rank(images)
    return (images + amount).clamp(0, 1)


def power(images: Tensor, exponent: float) -> Tensor:
    """Every pixel to a power, with a finite gradient at black."""
    check_rank(images)
    x = images.clamp(0, 1)
    if exponent >= 1:
        return x**exponent
    # The slope at 0 is infinite. The value stays exact, but below `knee` the gradient is that of
    # the chord from 0 to `knee`: finite, and not zero, so that an attack can move black pixels.
    knee = 2.0**-12
    chord = x * knee ** (exponent - 1)
    near_black = chord + (x**exponent - chord).detach()
    return torch.where(x < knee, near_black, x.clamp_min(knee) ** exponent)


def zoom(images: Tensor, fractions: Tensor) -> Tensor:
    """The central window of a fraction (B,) of every image, resized to the whole."""
    zero = torch.zeros_like(fractions)
    grid = _grid(images, fractions, zero, zero, fractions)
    # Resizing a crop repeats its border: no sample lies beyond the centres of its outermost pixels,
    # half a pixel inside the window, which is 1 / W in x and 1 / H in y.
    sizes = [grid.new_full((), images.shape[axis]) for axis in (3, 2)]  # written by the device
    inset = 1 / torch.stack(sizes)
    limit = (fractions[:, None] - inset).clamp_min(0)[:, None, None]
    return F.grid_sample(images, grid.clamp(-limit, limit), align_corners=False)


def turn(images: Tensor, degrees: Tensor) -> Tensor:
    """Every image rotated clockwise by its angle (B,)."""
    # From output to input, hence the inverse rotation: (cos, sin; -sin, cos) with y downwards. The
    # grid counts x in units of W / 2 and y in units of H / 2, hence the aspect ratio.
    angles = torch.deg2rad(degrees)
    cos, sin, aspect = angles.cos(), angles.sin(), images.shape[2] / images.shape[3]
    grid = _grid(images, cos, sin * aspect, -sin / aspect, cos)
    return F.grid_sample(images, grid, align_corners=False)


def _grid(images: Tensor, xx: Tensor, xy: Tensor, yx: Tensor, yy: Tensor) -> Tensor:
    """Sampling points (B, H, W, 2) of the linear maps (xx, xy; yx, yy), each entry (B,)."""
    zero = torch.zeros_like(xx)
    theta = torch.stack([xx, xy, zero, yx, yy, zero], dim=-1).view(-1, 2, 3)
    return F.affine_grid(theta, list(images.shape), align_corners=False)


def check_rank(images: Tensor) -> None:
    """Refuse what is no batch of images."""
    if images.dim() != 4:
        raise ValueError(f"`images` must have shape (B, C, H, W), got {tuple(images.shape)}.")
