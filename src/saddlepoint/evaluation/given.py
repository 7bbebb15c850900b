"""Images, labels and threats as they are given, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from saddlepoint.problems.inputs import Numbers, as_images, as_labels
from saddlepoint.projections import LpBall

__all__ = ["ThreatLike", "as_balls", "images_and_labels"]


class _HasBall(Protocol):
    @property
    def ball(self) -> LpBall: ...


ThreatLike = LpBall | _HasBall
"""A ball, or a `Threat`, which has one."""


def as_balls(
    threats: Mapping[str, ThreatLike] | None, shape: Sequence[int], *, stacklevel: int = 3
) -> dict[str, LpBall]:
    """The balls of the threats, or an error that says what is wrong with them.

    Args:
        threats: Balls or `Threat`s by name.
        shape: Of one image, for radii that cannot be meant, see `LpBall.check`.
        stacklevel: Of the warning that a radius bounds nothing.

    Example:
        >>> as_balls({"linf": LpBall(float("inf"), 0.3)}, (3, 32, 32))["linf"].eps
        0.3
    """
    example = '{"linf": LpBall(math.inf, 0.3)}'
    if not isinstance(threats, Mapping) or not threats:
        raise ValueError(
            f"`threats` must name at least one threat, such as {example}, got {threats!r}."
        )
    found: dict[str, LpBall] = {}
    for name, threat in threats.items():
        ball = threat if isinstance(threat, LpBall) else getattr(threat, "ball", None)
        if not isinstance(ball, LpBall):
            raise TypeError(
                f"`threats[{name!r}]` must be an LpBall or a Threat, as in {example}, got {threat!r}."
            )
        if isinstance(ball.eps, Tensor) and ball.eps.dim() > 0:
            raise ValueError(
                f"`threats[{name!r}]` must have one radius, got one per row; evaluate at one radius and read "
                "`distance`."
            )
        ball.check(shape, stacklevel=stacklevel + 1)
        # A number: a tensor could be written into.
        found[name] = LpBall(ball.p, float(ball.eps), ball.unit)
    return found


def images_and_labels(
    x: Numbers | Iterable[Any], y: Numbers | None = None
) -> tuple[Tensor, Tensor]:
    """Images (N, ...) and labels (N,) as tensors; the batches of a loader are put together.

    Args:
        x: Images, or, without `y`, pairs of images and labels, as a `DataLoader` gives them.
        y: Labels.

    Raises:
        TypeError: They are neither numbers nor batches of them.
        ValueError: Labels are missing, there is no batch, or numbers are out of range.

    Example:
        >>> batches = [(torch.rand(2, 3), torch.tensor([0, 1])), (torch.rand(1, 3), torch.tensor([1]))]
        >>> x, y = images_and_labels(batches)
        >>> x.shape, y
        (torch.Size([3, 3]), tensor([0, 1, 1]))
    """
    if isinstance(y, Mapping):
        raise TypeError("`y` must be labels, got a mapping; write threats= before the threats.")
    if y is not None:
        return _both(x, y)
    if hasattr(x, "__array__") or not isinstance(x, Iterable):
        raise ValueError(
            f"`y` must be the labels of the images, got None for {type(x).__name__}; leave it out only for a "
            "loader, which gives both."
        )
    pairs: list[tuple[Tensor, Tensor]] = []
    for batch in x:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(
                f"`x` must give pairs of images and labels, got {type(batch).__name__}; let the loader return "
                "(images, labels), or give `y`."
            )
        pairs.append(_both(*batch))
    if not pairs:
        raise ValueError("`x` must give at least one batch of images and labels, got none.")
    return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])


def _both(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    images = as_images("x", x, 2)
    return images, as_labels("y", y, (len(images),))
