"""Flips, brightness, gamma, crops and rotations, their random forms, and the paper's families."""

from __future__ import annotations

import math

import torch

from saddlepoint.transforms.pixel_maps import brighten, flip, power, turn, zoom
from saddlepoint.transforms.transform import Ranged, Transform, Wrapped, require, sometimes

__all__ = [
    "brightness",
    "crop_resize",
    "gamma",
    "hflip",
    "identity",
    "paper_family",
    "paper_random_family",
    "random_brightness",
    "random_crop_resize",
    "random_gamma",
    "random_hflip",
    "random_rotate",
    "random_vflip",
    "rotate",
    "vflip",
]

identity = Wrapped(torch.positive, "ori")
"""The image as it is.

Example:
    >>> identity(torch.tensor([[[[0.1, 0.9]]]])).flatten()
    tensor([0.1000, 0.9000])
"""
hflip = Wrapped(flip, "flh", (-1,))
"""Left and right exchanged.

Example:
    >>> hflip(torch.tensor([[[[0.1, 0.9]]]])).flatten()
    tensor([0.9000, 0.1000])
"""
vflip = Wrapped(flip, "flv", (-2,))
"""Top and bottom exchanged.

Example:
    >>> vflip(torch.tensor([[[[0.1], [0.9]]]])).flatten()
    tensor([0.9000, 0.1000])
"""


def brightness(amount: float) -> Transform:
    """Add `amount`, in [-1, 1], to every pixel of (B, C, H, W) and clip to [0, 1].

    Example:
        >>> brightness(0.1)(torch.tensor([[[[0.5, 0.95]]]]))
        tensor([[[[0.6000, 1.0000]]]])
    """
    require(-1 <= amount <= 1, "`amount` must be in [-1, 1]", amount)
    return Wrapped(brighten, "bri", (amount,))


def gamma(exponent: float) -> Transform:
    """Raise every pixel of (B, C, H, W), clipped to [0, 1], to a positive power.

    Example:
        >>> gamma(2.0)(torch.tensor([[[[0.0, 0.5, 1.0]]]]))
        tensor([[[[0.0000, 0.2500, 1.0000]]]])
    """
    require(0 < exponent < math.inf, "`exponent` must be positive and finite", exponent)
    return Wrapped(power, "gam", (exponent,))


def crop_resize(fraction: float) -> Transform:
    """Resize the central window of fraction * H by fraction * W pixels to (H, W), bilinearly.

    The window is not rounded to whole pixels: 0.8 of 32 is 25.6 (tf.image.central_crop takes 26).

    Example:
        >>> crop_resize(0.5)(torch.tensor([[[[0.0, 0.2, 0.6, 1.0]]]]))
        tensor([[[[0.2000, 0.3000, 0.5000, 0.6000]]]])
    """
    return random_crop_resize(fraction, fraction)


def random_crop_resize(low: float, high: float) -> Transform:
    """`crop_resize` with one fraction per row, uniform on [low, high), within (0, 1].

    Example:
        >>> crop, images = random_crop_resize(0.5, 1.0), torch.tensor([[[[0.0, 0.2, 0.6, 1.0]]]])
        >>> crop(images, uniforms=torch.tensor([[0.0]]))
        tensor([[[[0.2000, 0.3000, 0.5000, 0.6000]]]])
    """
    for fraction in (low, high):
        require(0 < fraction <= 1, "`fraction` must be in (0, 1]", fraction)
    return Ranged(zoom, "crop", low, high)


def rotate(degrees: float) -> Transform:
    """Rotate (B, C, H, W) clockwise about the centre; what comes in from outside is 0.

    Example:
        >>> rotate(90)(torch.tensor([[[[0.1, 0.2], [0.3, 0.4]]]]))
        tensor([[[[0.3000, 0.1000],
                  [0.4000, 0.2000]]]])
    """
    return random_rotate(degrees, degrees)


def random_rotate(low: float, high: float) -> Transform:
    """`rotate` with one angle per row, uniform on [low, high) degrees, positive = clockwise.

    Example:
        >>> turn, images = random_rotate(-90, 90), torch.tensor([[[[0.1, 0.2], [0.3, 0.4]]]])
        >>> turn(images, uniforms=torch.tensor([[0.0]]))
        tensor([[[[0.2000, 0.4000],
                  [0.1000, 0.3000]]]])
    """
    for degrees in (low, high):
        require(math.isfinite(degrees), "`degrees` must be finite", degrees)
    return Ranged(turn, "rot", low, high)


def random_hflip(probability: float = 0.8) -> Transform:
    """`sometimes(hflip, probability)`: one draw per row.

    Example:
        >>> random_hflip(0.8)(torch.tensor([[[[0.1, 0.2]]]]), uniforms=torch.tensor([[0.79]]))
        tensor([[[[0.2000, 0.1000]]]])
    """
    return sometimes(hflip, probability)


def random_vflip(probability: float = 0.8) -> Transform:
    """`sometimes(vflip, probability)`: one draw per row.

    Example:
        >>> random_vflip(0.8)(torch.tensor([[[[0.1], [0.2]]]]), torch.tensor([[0.79]])).flatten()
        tensor([0.2000, 0.1000])
    """
    return sometimes(vflip, probability)


def random_brightness(amount: float, probability: float = 0.8) -> Transform:
    """`sometimes(brightness(amount), probability)`: one draw per row.

    Example:
        >>> random_brightness(0.1, probability=0.8)(torch.zeros(1, 1, 1, 1), torch.tensor([[0.8]]))
        tensor([[[[0.]]]])
    """
    return sometimes(brightness(amount), probability)


def random_gamma(exponent: float, probability: float = 0.8) -> Transform:
    """`sometimes(gamma(exponent), probability)`: one draw per row.

    Example:
        >>> random_gamma(2.0)(torch.full((1, 1, 1, 1), 0.5), uniforms=torch.tensor([[0.0]]))
        tensor([[[[0.2500]]]])
    """
    return sometimes(gamma(exponent), probability)


def paper_family(rotation: bool = False) -> list[Transform]:
    """The paper's deterministic transformations with its values; `rotation` appends 30 degrees.

    Example:
        >>> [transform.name for transform in paper_family(rotation=True)]
        ['ori', 'flh', 'flv', 'bri', 'gam', 'crop', 'rot']
    """
    family = [identity, hflip, vflip, brightness(0.1), gamma(1.3), crop_resize(0.8)]
    return [*family, rotate(30)] if rotation else family


def paper_random_family() -> list[Transform]:
    """The paper's stochastic transformations, as in its table, with its ranges.

    Example:
        >>> [(transform.name, transform.num_draws) for transform in paper_random_family()]
        [('ori', 0), ('flh', 1), ('flv', 1), ('bri', 1), ('crop', 1)]
    """
    flips = [random_hflip(0.8), random_vflip(0.8)]
    return [identity, *flips, random_brightness(0.1, 0.8), random_crop_resize(0.6, 1.0)]
