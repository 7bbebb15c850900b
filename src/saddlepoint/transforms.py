"""Differentiable image transforms, deterministic and random (appendix on data transformations).

Images are batches (B, C, H, W) in [0, 1]. Randomness is passed in, never drawn inside: a random
transform reads row b of `uniforms` (B, num_draws) for image b alone, so that what happens to a row
does not depend on its neighbours.

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

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, final

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "Transform",
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


class Transform(ABC):
    """A labelled map of images; a new one writes `name`, `apply` and, if random, `num_draws`."""

    name: str

    @property
    def num_draws(self) -> int:
        """How many uniform numbers each row needs; 0 if the transform is deterministic."""
        return 0

    @abstractmethod
    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Transform images (B, ...) with uniforms (B, num_draws), both checked, on one device."""

    def named(self, name: str) -> Self:
        """The same transform under another label, such as ``brightness(-0.5).named("dark")``."""
        renamed = copy.copy(self)
        object.__setattr__(renamed, "name", name)
        return renamed

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Transform images, never in place.

        Args:
            images: (B, C, H, W), floating point, in [0, 1] (the range is not checked here).
                `identity` and wrapped functions take any (B, ...).
            uniforms: Random numbers in [0, 1), (B, num_draws), of any floating dtype. Ignored if
                num_draws is 0.

        Returns:
            Transformed images, of the shape, dtype and device of `images`.
        """
        if images.dim() == 0 or not images.is_floating_point():
            given = f"{images.dtype} of shape {tuple(images.shape)}"
            raise ValueError(f"`images` must be floating point of shape (B, ...), got {given}.")
        expected = (images.shape[0], self.num_draws)
        if self.num_draws == 0:
            return self.apply(images, images.new_empty(expected))
        if uniforms is None or uniforms.shape != expected or not uniforms.is_floating_point():
            got = None if uniforms is None else f"{uniforms.dtype} of shape {tuple(uniforms.shape)}"
            need = f"floating point of shape (B, num_draws) = {expected} for {self.name!r}"
            raise ValueError(f"`uniforms` must be {need}, got {got}.")
        return self.apply(images, uniforms.to(images.device))


@final
@dataclass(frozen=True)
class _Wrapped(Transform):
    """fn(images, *args): a plain function and its fixed arguments."""

    fn: Callable[..., Tensor]
    name: str
    args: tuple[float, ...] = ()

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        out = self.fn(images, *self.args)
        if out.shape[:1] != images.shape[:1]:
            given, got = tuple(images.shape), tuple(out.shape)
            raise ValueError(f"{self.name!r} must keep the batch axis of {given}, got {got}.")
        return out


@final
@dataclass(frozen=True)
class _Ranged(Transform):
    """fn(images, values) with values (B,): constant if low == high, else uniform on [low, high)."""

    fn: Callable[[Tensor, Tensor], Tensor]
    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        _require(self.low <= self.high, "`low` must be at most `high`", (self.low, self.high))

    @property
    def num_draws(self) -> int:
        return int(self.low < self.high)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        _check_rank(images)
        if images.shape[0] == 0:  # affine_grid refuses empty batches
            return images
        # Half precisions are too coarse for pixel coordinates.
        work = images.to(torch.promote_types(images.dtype, torch.float32))
        values = work.new_full(images.shape[:1], self.low)
        if self.num_draws:
            values = values + (self.high - self.low) * uniforms[:, 0].to(work)
        return self.fn(work, values).to(images.dtype)


@final
@dataclass(frozen=True)
class _Sometimes(Transform):
    """The first draw decides; the remaining ones belong to the inner transform."""

    transform: Transform
    name: str
    probability: float

    def __post_init__(self) -> None:
        _require(0 <= self.probability <= 1, "`probability` must be in [0, 1]", self.probability)

    @property
    def num_draws(self) -> int:
        return 1 + self.transform.num_draws

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        out = self.transform(images, uniforms[:, 1:])
        if out.shape != images.shape:
            given, got = tuple(images.shape), tuple(out.shape)
            raise ValueError(f"{self.name!r} must keep the shape {given}, got {got}.")
        applied = uniforms[:, 0] < self.probability
        return torch.where(applied.view(-1, *[1] * (images.dim() - 1)), out, images)


def from_callable(fn: Callable[[Tensor], Tensor], *, name: str | None = None) -> Transform:
    """Wrap a differentiable function of a batch (B, ...) that treats each row on its own.

    Args:
        fn: Function or module, images -> images; it may resize them but keeps the batch axis.
        name: Label in tables; by default the function's own name, or that of its class.

    Example:
        >>> from_callable(lambda images: 1 - images, name="neg")(torch.tensor([[[[0.25]]]]))
        tensor([[[[0.7500]]]])
    """
    return _Wrapped(fn, name or str(getattr(fn, "__name__", type(fn).__name__)))


def sometimes(transform: Transform, probability: float) -> Transform:
    """Apply a transform to the rows whose first uniform is below `probability`, in [0, 1].

    Example:
        >>> images, uniforms = torch.full((2, 1, 1, 1), 0.5), torch.tensor([[0.1], [0.9]])
        >>> sometimes(brightness(0.1), 0.8)(images, uniforms).flatten()
        tensor([0.6000, 0.5000])
    """
    return _Sometimes(transform, transform.name, probability)


def brightness(amount: float) -> Transform:
    """Add `amount`, in [-1, 1], to every pixel of (B, C, H, W) and clip to [0, 1].

    Example:
        >>> brightness(0.1)(torch.tensor([[[[0.5, 0.95]]]]))
        tensor([[[[0.6000, 1.0000]]]])
    """
    _require(-1 <= amount <= 1, "`amount` must be in [-1, 1]", amount)
    return _Wrapped(_brighten, "bri", (amount,))


def gamma(exponent: float) -> Transform:
    """Raise every pixel of (B, C, H, W), clipped to [0, 1], to a positive power.

    Example:
        >>> gamma(2.0)(torch.tensor([[[[0.0, 0.5, 1.0]]]]))
        tensor([[[[0.0000, 0.2500, 1.0000]]]])
    """
    _require(0 < exponent < math.inf, "`exponent` must be positive and finite", exponent)
    return _Wrapped(_power, "gam", (exponent,))


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
        _require(0 < fraction <= 1, "`fraction` must be in (0, 1]", fraction)
    return _Ranged(_zoom, "crop", low, high)


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
        _require(math.isfinite(degrees), "`degrees` must be finite", degrees)
    return _Ranged(_turn, "rot", low, high)


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


def _flip(images: Tensor, axis: int) -> Tensor:
    _check_rank(images)
    return images.flip(axis)


def _brighten(images: Tensor, amount: float) -> Tensor:
    _check_rank(images)
    return (images + amount).clamp(0, 1)


def _power(images: Tensor, exponent: float) -> Tensor:
    _check_rank(images)
    x = images.clamp(0, 1)
    if exponent >= 1:
        return x**exponent
    # The slope at 0 is infinite. The value stays exact, but below `knee` the gradient is that of
    # the chord from 0 to `knee`: finite, and not zero, so that an attack can move black pixels.
    knee = 2.0**-12
    chord = x * knee ** (exponent - 1)
    near_black = chord + (x**exponent - chord).detach()
    return torch.where(x < knee, near_black, x.clamp_min(knee) ** exponent)


def _zoom(images: Tensor, fractions: Tensor) -> Tensor:
    zero = torch.zeros_like(fractions)
    grid = _grid(images, fractions, zero, zero, fractions)
    # Resizing a crop repeats its border: no sample lies beyond the centres of its outermost pixels,
    # half a pixel inside the window, which is 1 / W in x and 1 / H in y.
    inset = 1 / grid.new_tensor([images.shape[3], images.shape[2]])
    limit = (fractions[:, None] - inset).clamp_min(0)[:, None, None]
    return F.grid_sample(images, grid.clamp(-limit, limit), align_corners=False)


def _turn(images: Tensor, degrees: Tensor) -> Tensor:
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


def _check_rank(images: Tensor) -> None:
    if images.dim() != 4:
        raise ValueError(f"`images` must have shape (B, C, H, W), got {tuple(images.shape)}.")


def _require(condition: bool, requirement: str, value: object) -> None:
    if not condition:
        raise ValueError(f"{requirement}, got {value}.")


identity = _Wrapped(torch.positive, "ori")
hflip = _Wrapped(_flip, "flh", (-1,))
vflip = _Wrapped(_flip, "flv", (-2,))
