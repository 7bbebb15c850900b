"""Threats and limits as they are given, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from saddlepoint.counts import check_count
from saddlepoint.projections import AbstractSet, LpBall

__all__ = ["BallLike", "HasBall", "as_balls", "check_limits"]


class HasBall(Protocol):
    """Whatever has a ball where perturbations may be, as a `Threat` of training does.

    Example:
        >>> import saddlepoint as sp
        >>> threat: HasBall = sp.Threat(sp.linf(0.1))
        >>> threat.ball.eps
        0.1
    """

    @property
    def ball(self) -> LpBall:
        """Where perturbations may be."""


BallLike = LpBall | HasBall
"""A ball, or a `Threat`, which has one."""


def as_balls(
    threats: Mapping[str, BallLike] | None, shape: Sequence[int], *, stacklevel: int = 3
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
    example = '{"linf": sp.linf(0.3)}'
    if not isinstance(threats, Mapping) or not threats:
        got = f"a {type(threats).__name__}" if threats else repr(threats)
        raise ValueError(
            "`threats` must name at least one threat, in a mapping from names to balls such as "
            f"{example}, got {got}."
        )
    found: dict[str, LpBall] = {}
    for name, threat in threats.items():
        if isinstance(
            threat, AbstractSet
        ):  # also sets whose ball is only a part of what they demand
            ball = threat if isinstance(threat, LpBall) else None
        else:
            ball = getattr(threat, "ball", None)
        if not isinstance(ball, LpBall):
            patch = (
                "; `saddlepoint.attack` takes patches" if isinstance(threat, AbstractSet) else ""
            )
            raise TypeError(
                f"`threats[{name!r}]` must be an LpBall or a Threat, as in {example}, got {threat!r}{patch}."
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


def check_limits(batch_size: int, budget: float | None) -> None:
    """Refuse batches without images, and budgets without time."""
    check_count("batch_size", batch_size, 1)
    if isinstance(budget, str):
        raise TypeError(f"`budget` must be a number of seconds, or None, got {budget!r}.")
    if budget is not None and not budget > 0:
        raise ValueError(f"`budget` must be positive seconds, or None, got {budget}.")
