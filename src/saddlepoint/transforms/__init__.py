"""Differentiable image transforms, deterministic and random (appendix on data transformations).

Images are batches (B, C, H, W) in [0, 1]. Randomness is passed in, never drawn inside: a random
transform reads row b of `uniforms` (B, num_draws) for image b alone, so that what happens to a row
does not depend on its neighbours.

    >>> import torch
    >>> hflip(torch.tensor([[[[0.1, 0.2], [0.3, 0.4]]]]))
    tensor([[[[0.2000, 0.1000],
              [0.4000, 0.3000]]]])

Convention:
    Axes: the last is x, growing to the right, the one before it y, growing downwards. `hflip`
        exchanges left and right, `vflip` top and bottom.
    Angles: degrees, positive = clockwise on the screen (kornia counts the other way).
    Geometry: pixels are unit squares, read bilinearly at their centres (align_corners=False); the
        fixed point is the centre of the image. What a rotation brings in from outside is 0.
    Values: brightness is additive, gamma is x ** exponent. Both clip to [0, 1], and the gradient
        is 0 where they do.
"""

from saddlepoint.transforms.carrying import View
from saddlepoint.transforms.makers import (
    brightness,
    crop_resize,
    gamma,
    hflip,
    identity,
    paper_family,
    paper_random_family,
    random_brightness,
    random_crop_resize,
    random_gamma,
    random_hflip,
    random_rotate,
    random_vflip,
    rotate,
    vflip,
)
from saddlepoint.transforms.transform import Transform, from_callable, sometimes

__all__ = [
    "Transform",
    "View",
    "brightness",
    "crop_resize",
    "from_callable",
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
    "sometimes",
    "vflip",
]
