"""Which attacks a suite has for a norm, cheap ones first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from saddlepoint.evaluation.attacks import AbstractAttack
from saddlepoint.evaluation.ours import OurAttack

__all__ = ["SUITES", "Suite", "attacks_for"]

Suite = (
    Literal["quick", "paper", "autoattack", "autoattack+"]
    | Mapping[float, Sequence[AbstractAttack]]
)
SUITES = ("quick", "paper", "autoattack", "autoattack+")

_NORMS = {math.inf: "linf", 2.0: "l2", 1.0: "l1", 0.0: "l0"}


def attacks_for(suite: Suite, p: float) -> tuple[AbstractAttack, ...]:
    """The attacks of a suite for a norm, in the order they are run.

    Raises:
        ValueError: No such suite, or it has no attack for this norm.
        ImportError: The library behind the suite is not installed.

    Example:
        >>> [attack.name for attack in attacks_for("quick", 2)]
        ['attack']
    """
    if isinstance(suite, Mapping):
        attacks = tuple(suite.get(p, ()))
        named = "the suite"
    else:
        attacks = _named(suite, p)
        named = f"suite {suite!r}"
    if not attacks:
        raise ValueError(
            f"{named} must have an attack for {_NORMS[p]}, got none; take suite 'quick', which has attacks "
            "for linf, l2, l1 and l0, or leave this threat out."
        )
    names = [attack.name for attack in attacks]
    if len(set(names)) < len(names):
        raise ValueError(f"attacks of {named} must have different names, got {names}.")
    return attacks


def _named(suite: str, p: float) -> tuple[AbstractAttack, ...]:
    if suite == "quick":
        return (OurAttack("attack", steps=50, descents=5),)
    if suite not in SUITES:
        raise ValueError(f"`suite` must be one of {', '.join(SUITES)}, got {suite!r}.")
    raise NotImplementedError
