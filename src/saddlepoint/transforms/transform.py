"""What a transform is, and the ways to make one: from a function, with a range, or for some rows only."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from saddlepoint.display import Brief
from saddlepoint.transforms.pixel_maps import check_rank

__all__ = [
    "Ranged",
    "Sometimes",
    "Transform",
    "Wrapped",
    "from_callable",
    "require",
    "sometimes",
]


class Transform(ABC):
    """A labelled map of images; a new one writes `name`, `apply` and, if random, `num_draws`.

    Example:
        >>> import torch
        >>> class Fade(Transform):  # by a random amount
        ...     name, num_draws = "fade", 1
        ...     def apply(self, images, uniforms):
        ...         return images * uniforms.to(images).view(-1, 1, 1, 1)
        >>> Fade()(torch.ones(2, 1, 1, 1), torch.tensor([[0.25], [0.5]])).flatten()
        tensor([0.2500, 0.5000])
    """

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
@dataclass(frozen=True, repr=False)
class Wrapped(Brief, Transform):
    """fn(images, *args): a plain function and its fixed arguments."""

    fn: Callable[..., Tensor]
    name: str
    args: tuple[float, ...] = ()

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The function of the images."""
        out = self.fn(images, *self.args)
        if out.shape[:1] != images.shape[:1]:
            given, got = tuple(images.shape), tuple(out.shape)
            raise ValueError(f"{self.name!r} must keep the batch axis of {given}, got {got}.")
        return out


@final
@dataclass(frozen=True, repr=False)
class Ranged(Brief, Transform):
    """fn(images, values) with values (B,): constant if low == high, else uniform on [low, high)."""

    fn: Callable[[Tensor, Tensor], Tensor]
    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        require(self.low <= self.high, "`low` must be at most `high`", (self.low, self.high))

    @property
    def num_draws(self) -> int:
        """One, unless the value is constant."""
        return int(self.low < self.high)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The function of the images and of one value per row."""
        check_rank(images)
        if images.shape[0] == 0:  # affine_grid refuses empty batches
            return images
        # Half precisions are too coarse for pixel coordinates.
        work = images.to(torch.promote_types(images.dtype, torch.float32))
        values = work.new_full(images.shape[:1], self.low)
        if self.num_draws:
            values = values + (self.high - self.low) * uniforms[:, 0].to(work)
        return self.fn(work, values).to(images.dtype)


@final
@dataclass(frozen=True, repr=False)
class Sometimes(Brief, Transform):
    """The first draw decides; the remaining ones belong to the inner transform."""

    transform: Transform
    name: str
    probability: float

    def __post_init__(self) -> None:
        require(0 <= self.probability <= 1, "`probability` must be in [0, 1]", self.probability)

    @property
    def num_draws(self) -> int:
        """One, and those of the inner transform."""
        return 1 + self.transform.num_draws

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The inner transform where the first draw is below the probability."""
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
    if not callable(fn):
        raise TypeError(
            f"transforms must be functions from images to images, got {type(fn).__name__} {fn!r}."
        )
    return Wrapped(fn, name or str(getattr(fn, "__name__", type(fn).__name__)))


def sometimes(transform: Transform, probability: float) -> Transform:
    """Apply a transform to the rows whose first uniform is below `probability`, in [0, 1].

    Example:
        >>> from saddlepoint.transforms import brightness
        >>> images, uniforms = torch.full((2, 1, 1, 1), 0.5), torch.tensor([[0.1], [0.9]])
        >>> sometimes(brightness(0.1), 0.8)(images, uniforms).flatten()
        tensor([0.6000, 0.5000])
    """
    return Sometimes(transform, transform.name, probability)


def require(condition: bool, requirement: str, value: object) -> None:
    """Refuse a value that does not meet a requirement."""
    if not condition:
        raise ValueError(f"{requirement}, got {value}.")
