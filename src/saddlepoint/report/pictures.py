"""Images as small PNG data addresses: pixels as they are, perturbations by their sign."""

from __future__ import annotations

import base64

import torch
import torch.nn.functional as F
from torch import Tensor

from saddlepoint.data.pixels import encode_png

__all__ = ["data_uri", "encode_png", "picture", "sign_picture"]

LARGEST = 96
"""Pictures of a report are at most so many pixels high and wide; larger ones are averaged down."""

# Without colour, which is for what became of an image and for domains; the page puts them on grey.
_NEGATIVE = (0, 0, 0)
_POSITIVE = (255, 255, 255)


def data_uri(png: bytes) -> str:
    """A data address.

    Example:
        >>> data_uri(b"abc")
        'data:image/png;base64,YWJj'
    """
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def picture(image: Tensor) -> str:
    """An image in [0, 1] as a data address: (H, W), or (C, H, W) with any number of channels.

    Two channels, or more than three, are shown by their mean; a vector is shown as one line.

    Example:
        >>> picture(torch.rand(3, 8, 8)).startswith("data:image/png;base64,")
        True
    """
    image = _as_image(image)
    if image.shape[0] not in (1, 3):
        image = image.mean(dim=0, keepdim=True)
    return data_uri(encode_png((image.clamp(0, 1) * 255).round().to(torch.uint8)))


def sign_picture(delta: Tensor, scale: float) -> str:
    """A perturbation as a data address: white adds, black takes away, strength is opacity.

    Of a colour pixel the channel that changes most is shown.

    Args:
        delta: (H, W) or (C, H, W).
        scale: The value shown at full strength, > 0.

    Example:
        >>> sign_picture(torch.randn(1, 8, 8), 2.0).startswith("data:image/png;base64,")
        True
    """
    delta = _as_image(delta)
    strongest = delta.abs().argmax(dim=0, keepdim=True)
    value = (delta.gather(0, strongest)[0] / max(scale, 1e-12)).clamp(-1, 1)
    colours = torch.tensor([_NEGATIVE, _POSITIVE], dtype=torch.uint8)
    rgb = colours[(value > 0).long()].permute(2, 0, 1)
    alpha = (value.abs() * 255).round().to(torch.uint8).unsqueeze(0)
    # Transparent pixels all alike compress to nothing.
    rgb = torch.where(alpha > 0, rgb, torch.zeros_like(rgb))
    return data_uri(encode_png(torch.cat([rgb, alpha])))


def _as_image(image: Tensor) -> Tensor:
    image = image.detach().float().cpu()
    if image.dim() == 1:
        image = image.unsqueeze(0)
    if image.dim() == 2:
        image = image.unsqueeze(0)
    while image.dim() > 3:
        image = image.flatten(0, 1)
    factor = max(image.shape[-2:]) / LARGEST
    if factor > 1:
        size = [max(1, round(side / factor)) for side in image.shape[-2:]]
        image = F.interpolate(image.unsqueeze(0), size=size, mode="area").squeeze(0)
    return image
