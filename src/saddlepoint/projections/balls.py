"""What a solver asks of the set that delta may be in, and the ball of a threat: a norm and a radius."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from saddlepoint.display import Brief
from saddlepoint.projections.arguments import (
    HALF,
    as_bound,
    bound_rows,
    check_norm,
    check_radius,
    check_values,
    column,
    wide_dtype,
)
from saddlepoint.projections.solvers import onto_ball, onto_l0

__all__ = ["AbstractSet", "LpBall", "l0", "l1", "l2", "linf"]


class AbstractSet(ABC):
    """Where delta may be: an lp ball inside a box, both of which the set may make smaller.

    Every set is `ball` ∩ `box(lower, upper)`: a set that forbids entries, as a patch does, gives them the box
    [0, 0]. Exact projections, steepest steps among the entries that can move, random starts and whole grey
    levels then need nothing new.

    Example:
        >>> import saddlepoint as sp
        >>> one = torch.ones(1, 1, 3, 3)
        >>> lower, upper = sp.Patch((2, 2)).box(-one, one)  # a set whose box is empty outside a corner
        >>> int((upper > lower).sum()), sp.Patch((2, 2)).ball.p
        (4, inf)
    """

    @property
    @abstractmethod
    def ball(self) -> LpBall:
        """The ball, whose norm and radius steps follow."""

    @abstractmethod
    def box(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The part of the box lower <= delta <= upper, (B, ...), that is in the set."""

    @abstractmethod
    def doubt(self, shape: Sequence[int] | None = None) -> str:
        """A sentence where the set bounds nothing for images of this shape, else empty.

        Raises:
            ValueError: The set cannot be meant for images in [0, 1].
        """

    def project(self, delta: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Nearest point of the set ∩ box, row by row.

        Args:
            delta: Points, (B, ...), finite.
            lower: Box, broadcastable to delta, <= 0.
            upper: Box, broadcastable to delta, >= 0.
        """
        return self.ball.project(delta, *self.box(lower.expand_as(delta), upper.expand_as(delta)))

    def check(self, shape: Sequence[int] | None = None, *, stacklevel: int = 2) -> None:
        """Refuse a set that cannot be meant for images in [0, 1], and warn of one that bounds nothing.

        Args:
            shape: Of one image, such as (3, 32, 32); None looks at the numbers alone.
            stacklevel: Of the warning, as in `warnings.warn`.

        Raises:
            ValueError: As in `doubt`.
        """
        if doubt := self.doubt(shape):
            warnings.warn(doubt, stacklevel=stacklevel)


@final
@dataclass(frozen=True, repr=False)
class LpBall(Brief, AbstractSet):
    """The perturbations with ||delta||_p <= eps.

    Args:
        p: 0, 1, 2 or ``math.inf``.
        eps: Radius >= 0: a number, or a tensor (B,) with one radius per row.
        unit: What p = 0 counts: "entry" counts every number, "pixel" counts a colour pixel once
            (axis 1 is the channel axis). Other norms know entries only.

    Example:
        >>> ball = LpBall(p=math.inf, eps=0.1)
        >>> ball.project(torch.tensor([[0.5, -0.05]]), torch.tensor(0.0), torch.tensor(1.0))
        tensor([[0.1000, 0.0000]])
    """

    p: float
    eps: float | Tensor
    unit: Literal["entry", "pixel"] = "entry"

    def __post_init__(self) -> None:
        check_norm(self.p)
        if not isinstance(self.eps, Tensor) and getattr(self.eps, "shape", ()) != ():
            object.__setattr__(self, "eps", torch.as_tensor(self.eps))  # an array of radii
        rows = self.eps.shape[0] if isinstance(self.eps, Tensor) and self.eps.dim() == 1 else None
        check_radius(self.eps, rows)
        if self.unit not in ("entry", "pixel"):
            raise ValueError(f'`unit` must be "entry" or "pixel", got {self.unit!r}.')
        if self.unit == "pixel" and self.p != 0:
            raise ValueError(f'`unit="pixel"` counts pixels and needs p = 0, got p = {self.p}.')

    @property
    def ball(self) -> LpBall:
        """Itself."""
        return self

    def box(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """All of it: a ball forbids no entry."""
        return lower, upper

    def project(self, delta: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Nearest point of the ball ∩ box, row by row.

        Args:
            delta: Points, (B, ...), finite.
            lower: Box, broadcastable to delta, <= 0.
            upper: Box, broadcastable to delta, >= 0.

        Returns:
            Projected points, same shape; see `project_lp_box` for the guarantees.
        """
        if delta.dim() < 2 or 0 in delta.shape[1:]:
            raise ValueError(
                f"`delta` must have shape (B, ...) with entries in every row, got {tuple(delta.shape)}."
            )
        check_radius(self.eps, delta.shape[0])
        lower, upper = as_bound("lower", lower, delta), as_bound("upper", upper, delta)
        check_values(delta, lower, upper)
        return self._project(delta, lower, upper)

    def take(self, rows: Tensor) -> LpBall:
        """The ball of the given rows, (n,): itself unless every row has its own radius."""
        if not isinstance(self.eps, Tensor) or self.eps.dim() == 0:
            return self
        return self._with_radius(self.eps[rows.to(self.eps.device)])

    def _with_radius(self, eps: float | Tensor) -> LpBall:
        """The same with a radius that follows from this one and is not looked at: no host round trip."""
        ball = object.__new__(LpBall)
        ball.__dict__.update(p=self.p, eps=eps, unit=self.unit)
        return ball

    def doubt(self, shape: Sequence[int] | None = None) -> str:
        """A sentence where the radius bounds nothing, else empty; an infinite one says that no bound is meant.

        Args:
            shape: Of one image, such as (3, 32, 32); None looks at the radius alone.

        Raises:
            ValueError: More than 1 for p = inf, or less than 1 for p = 0.

        Example:
            >>> LpBall(math.inf, 8 / 255).check((3, 32, 32))
            >>> LpBall(math.inf, 8).check((3, 32, 32))
            Traceback (most recent call last):
            ...
            ValueError: `eps` of an linf ball must be at most 1, the range of a pixel, got 8; write 8/255 ...
            >>> LpBall(2, 30.0).doubt((1, 28, 28))[-27:], LpBall(2, 3.0).doubt((1, 28, 28))
            ('this radius bounds nothing.', '')
        """
        radii = torch.as_tensor(self.eps, dtype=torch.float64)
        radii = radii[radii.isfinite()]
        if radii.numel() == 0:
            return ""
        least, most = float(radii.min()), float(radii.max())
        if self.p == math.inf and most > 1:
            raise ValueError(
                f"`eps` of an linf ball must be at most 1, the range of a pixel, got {most:g}; write "
                f"{most:g}/255 for 8-bit levels."
            )
        if self.p == 0 and least < 1:
            raise ValueError(
                f"`eps` of an l0 ball must be at least 1, it counts {self._counted}, got {least:g}."
            )
        if shape is None:
            return ""
        units = math.prod(shape[1:] if self.unit == "pixel" else shape)
        widest = {0: units, 1: units, 2: math.sqrt(units), math.inf: 1}[self.p]
        if most <= widest * (1 + 1e-6):
            return ""
        return (
            f"`eps` of an l{self.p:g} ball is {most:g}, but no two images of shape {tuple(shape)} in "
            f"[0, 1] are further apart than {widest:g}: this radius bounds nothing."
        )

    @property
    def _counted(self) -> str:
        return "pixels" if self.unit == "pixel" else "entries"

    def norm(self, delta: Tensor) -> Tensor:
        """||delta||_p per row, (B,), in float64 so that it can be compared with `eps`."""
        if self.p == 0:
            changed = delta != 0
            changed = changed.any(dim=1) if self.unit == "pixel" else changed
            return changed.flatten(1).sum(dim=1).double()
        norm: Tensor = torch.linalg.vector_norm(delta.flatten(1).double(), ord=self.p, dim=1)
        return norm

    def _project(
        self, delta: Tensor, lower: Tensor, upper: Tensor, *, brief: bool = False
    ) -> Tensor:
        """`project` without looking at the values; with `brief`, see `onto_ball`, no host round trip at all."""
        if self.p == math.inf and not isinstance(self.eps, Tensor) and delta.dtype not in HALF:
            radius, bounds = float(self.eps), (lower.to(delta.dtype), upper.to(delta.dtype))
            with torch.no_grad():  # a number is several times faster than a column of them
                return torch.clamp(delta, -radius, radius).clamp_(*bounds)  # both contain zero
        v = delta.flatten(1)
        eps = column(self.eps, v, wide_dtype(v.dtype))
        if self.unit == "pixel":
            z = onto_l0(
                delta.flatten(2), eps, bound_rows(lower, delta, 2), bound_rows(upper, delta, 2)
            )
        else:
            bounds = bound_rows(lower, delta, 1), bound_rows(upper, delta, 1)
            z = onto_ball(v, self.p, eps, *bounds, brief=brief)
        return z.reshape(delta.shape)


def linf(eps: float | Tensor) -> LpBall:
    """The perturbations that change no entry by more than eps.

    Example:
        >>> linf(8 / 255) == LpBall(math.inf, 8 / 255)
        True
    """
    return LpBall(math.inf, eps)


def l2(eps: float | Tensor) -> LpBall:
    """The perturbations of Euclidean length up to eps.

    Example:
        >>> l2(3.0)
        LpBall(p=2, eps=3.0, unit='entry')
    """
    return LpBall(2, eps)


def l1(eps: float | Tensor) -> LpBall:
    """The perturbations whose entries have absolute values that add up to no more than eps.

    Example:
        >>> l1(20.0)
        LpBall(p=1, eps=20.0, unit='entry')
    """
    return LpBall(1, eps)


def l0(count: float | Tensor, unit: Literal["entry", "pixel"] = "entry") -> LpBall:
    """The perturbations that change no more than `count` entries, or pixels.

    Example:
        >>> l0(30, unit="pixel")
        LpBall(p=0, eps=30, unit='pixel')
    """
    return LpBall(0, count, unit)
