"""Threats of the command line: linf:0.3, l2:2.0, l1:10, linf:8/255."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import parse

if TYPE_CHECKING:
    from saddlepoint.training import Threat

__all__ = ["threats"]


def threats(texts: Sequence[str]) -> "dict[str, Threat]":
    """Threats by name, norm:radius or norm:radius:step_size; the norm is the name.

    Example:
        >>> found = threats(["linf:0.3", "l2:2.0:0.25"])
        >>> list(found), found["l2"].ball.eps, found["l2"].step_size
        (['linf', 'l2'], 2.0, 0.25)
    """
    from saddlepoint.projections import LpBall
    from saddlepoint.training import Threat

    found: dict[str, Threat] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        name = name.lower()
        radius, _, size = rest.partition(":")
        if name not in parse.NORMS or not radius:
            raise ValueError(
                f"`--threat` must be norm:radius with a norm out of {', '.join(parse.NORMS)}, such as "
                f"linf:0.3, l2:2.0 or linf:8/255, got {text!r}."
            )
        if name in found:
            raise ValueError(f"`--threat` must name every norm once, got {name} twice.")
        step = parse.number(size, "--threat step size") if size else None
        eps = parse.number(radius, "--threat")
        if eps < 0:
            raise ValueError(f"`--threat` must have a radius >= 0, got {text!r}.")
        parse.check_radius(name, eps)
        ball = LpBall(parse.NORMS[name], eps)
        found[name] = Threat(ball, step)
    return found
