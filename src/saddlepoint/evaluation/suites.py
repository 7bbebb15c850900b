"""Which attacks a suite has for a norm, cheap ones first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from saddlepoint.evaluation.attacks import AbstractAttack
from saddlepoint.evaluation.autoattacks import APGD, FAB, Square, TargetedAPGD
from saddlepoint.evaluation.foolbox_attacks import FoolboxAttack
from saddlepoint.evaluation.other_libraries import library
from saddlepoint.evaluation.ours import OurAttack, RandomSearch
from saddlepoint.losses import neg_cross_entropy
from saddlepoint.projections import norm_name
from saddlepoint.solver.schedule import SIZES

__all__ = ["SUITES", "Suite", "attacks_for", "restarts_of"]

Suite = (
    Literal["quick", "paper", "autoattack", "autoattack+"]
    | Mapping[float, Sequence[AbstractAttack]]
)
SUITES = ("quick", "paper", "autoattack", "autoattack+")


def attacks_for(suite: Suite, p: float) -> tuple[AbstractAttack, ...]:
    """The attacks of a suite for a norm, in the order they are run.

    Raises:
        ValueError: No such suite, or it has no attack for this norm.
        ImportError: The library behind the suite is not installed.

    Example:
        >>> [attack.name for attack in attacks_for("quick", 2)]
        ['attack-ce', 'attack']
    """
    if isinstance(suite, Mapping):
        attacks = tuple(suite.get(p, ()))
        named = "the suite"
    else:
        attacks = _named(suite, p)
        named = f"suite {suite!r}"
    if not attacks:
        raise ValueError(
            f"{named} must have an attack for {norm_name(p)}, got none; take suite 'quick', which has attacks "
            "for linf, l2, l1 and l0, or leave this threat out."
        )
    for attack in attacks:
        if attack.calls < 1:
            raise ValueError(f"`calls` of attack {attack.name!r} must be >= 1, got {attack.calls}.")
    names = [attack.name for attack in attacks]
    if len(set(names)) < len(names):
        raise ValueError(f"attacks of {named} must have different names, got {names}.")
    return attacks


def restarts_of(p: float) -> int:
    """How many restarts of `attack` suite "quick" takes against one domain, on all its losses together.

    Example:
        >>> restarts_of(math.inf), restarts_of(2)
        (6, 17)
    """
    ours = [each for each in attacks_for("quick", p) if isinstance(each, OurAttack)]
    return sum(each.restarts + each.aimed for each in ours)


def _named(suite: str, p: float) -> tuple[AbstractAttack, ...]:
    if suite == "quick":
        # Cross-entropy breaks more with few steps, the margin what is left of robust networks, and random
        # search what is not fooled yet because the loss is flat: seen with networks trained against linf. For
        # l1 and l2 the restarts after the first go round the sizes of balls they begin in: once on
        # cross-entropy and four times on the margin, without which networks trained against linf look more
        # robust than they are. For linf the margin is also aimed at one class after another: more restarts from
        # random points break less.
        around = SIZES if p in (1, 2) else 0
        margin = OurAttack(restarts=1 + (4 * around or 2))
        if p == math.inf:
            margin = OurAttack(restarts=1, aimed=3)
        ours = (OurAttack("attack-ce", neg_cross_entropy, restarts=1 + (around or 1)), margin)
        return (*ours, RandomSearch()) if p == math.inf else ours
    if suite == "paper":
        library("foolbox", f"suite {suite!r}")
        return _paper(p)
    if suite in ("autoattack", "autoattack+"):
        library("pyautoattack", f"suite {suite!r}")
        return _autoattack(p, plus=suite == "autoattack+")
    raise ValueError(f"`suite` must be one of {', '.join(SUITES)}, got {suite!r}.")


def _paper(p: float) -> tuple[AbstractAttack, ...]:
    """The attacks of the paper's appendix F; random ones are run ten times, Boundary once, as in the MSD code.

    Where foolbox's own number of steps is out of reach without a GPU there are fewer: 5000 of the Boundary
    attack instead of 25 000, and 200 of Carlini-Wagner, five times as long, instead of 10 000 per constant.
    l1 PGD is ours, because foolbox's rescales instead of projecting. Like all the others it descends on
    cross-entropy.
    """
    pepper = FoolboxAttack("salt-and-pepper", "SaltAndPepperNoiseAttack", restarts=10, minimal=True)
    pointwise = FoolboxAttack(
        "pointwise", "PointwiseAttack", restarts=10, minimal=True, start=pepper
    )
    if p == math.inf:
        return (
            FoolboxAttack("fgsm", "LinfFastGradientAttack"),
            FoolboxAttack(
                "mim",
                "LinfMomentumIterativeFastGradientMethod",
                {"steps": 100, "rel_stepsize": 0.05},
            ),
            FoolboxAttack("pgd", "LinfProjectedGradientDescentAttack", {"steps": 100}, restarts=10),
        )
    if p == 2:
        noise = "L2ClippingAwareRepeatedAdditiveGaussianNoiseAttack"  # its length after clipping is the radius
        blend = {"directions": 25, "steps": 50}
        return (
            FoolboxAttack("gaussian-noise", noise, {"repeats": 10}, restarts=10),
            FoolboxAttack("deepfool", "L2DeepFoolAttack", minimal=True),
            FoolboxAttack("ddn", "DDNAttack", minimal=True),
            FoolboxAttack(
                "pgd",
                "L2ProjectedGradientDescentAttack",
                {"steps": 200, "rel_stepsize": 0.05},
                restarts=10,
            ),
            FoolboxAttack(
                "carlini-wagner",
                "L2CarliniWagnerAttack",
                {"steps": 200, "stepsize": 0.05},
                minimal=True,
            ),
            FoolboxAttack(
                "boundary",
                "BoundaryAttack",
                {"steps": 5000},
                minimal=True,
                start=FoolboxAttack(
                    "blended-noise", "LinearSearchBlendedUniformNoiseAttack", blend, minimal=True
                ),
            ),
            pointwise,
        )
    if p == 1:
        pgd = OurAttack("pgd", loss=neg_cross_entropy, steps=50, restarts=10)
        return (pgd, pepper, pointwise)
    return ()


def _autoattack(p: float, *, plus: bool) -> tuple[AbstractAttack, ...]:
    """AutoAttack's versions "standard" and "plus", in its order and with its parameters.

    With one exception: for l1 "plus" keeps the shrinking ball of "standard", which AutoAttack's own drops while
    it warns that "plus" was not made for l1.
    """
    if p not in (math.inf, 2, 1):
        return ()
    l1 = p == 1
    restarts = 5 if l1 or plus else 1
    first = APGD("apgd-ce", restarts=restarts, shrinking=l1)
    targeted = TargetedAPGD("apgd-t", targets=5 if l1 and not plus else 9, shrinking=l1)
    if not plus:
        return (first, targeted, FAB("fab-t"), Square("square"))
    return (
        first,
        APGD("apgd-dlr", "dlr", restarts=restarts, shrinking=l1),
        FAB("fab", targeted=False, restarts=5),
        Square("square"),
        targeted,
        FAB("fab-t"),
    )
