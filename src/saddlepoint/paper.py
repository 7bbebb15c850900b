"""The parameters of the paper's attacks: radius eps, step sizes alpha and beta, gamma, steps T.

One table for the command line's defaults and for the experiments. From the appendix on crafting adversarial
examples and the captions of Tables 5, 7 and A3 to A5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

__all__ = ["STEPS", "Parameters", "parameters", "radius"]

STEPS: Mapping[str, int] = {"ensemble": 50, "universal": 20, "transform": 20}
"""T of every kind of attack, whatever the data and the norm."""


@final
@dataclass(frozen=True)
class Parameters:
    """What the paper's algorithm takes besides the problem and the ball.

    Attributes:
        alpha: Step size of the perturbation.
        beta: Step size of the weights.
        gamma: Pull of the weights towards 1/K.
        steps: T.
    """

    alpha: float
    beta: float
    gamma: float
    steps: int


# (alpha, beta, gamma) by kind, data and norm. The ensembles of A to D and of A, E, F, H share them.
_STEP_SIZES: dict[tuple[str, str, str], tuple[float, float, float]] = {
    ("ensemble", "mnist", "l0"): (1, 1 / 100, 7),
    ("ensemble", "mnist", "l1"): (1 / 4, 1 / 100, 5),
    ("ensemble", "mnist", "l2"): (1 / 10, 1 / 100, 3),
    ("ensemble", "mnist", "linf"): (1 / 4, 1 / 50, 3),
    ("ensemble", "cifar10", "l0"): (1, 1 / 150, 1),
    ("ensemble", "cifar10", "l1"): (1 / 4, 1 / 100, 5),
    ("ensemble", "cifar10", "l2"): (1 / 8, 1 / 100, 3),
    ("ensemble", "cifar10", "linf"): (1 / 5, 1 / 50, 6),
    # The caption of Table 5 is about CIFAR-10; the text gives no others for MNIST.
    ("universal", "mnist", "linf"): (1 / 6, 1 / 50, 4),
    ("universal", "cifar10", "linf"): (1 / 6, 1 / 50, 4),
    ("transform", "cifar10", "linf"): (1 / 2, 1 / 100, 10),
}
_RADII: dict[tuple[str, str, str], float] = {
    ("ensemble", "mnist", "l0"): 30,
    ("ensemble", "mnist", "l1"): 20.0,
    ("ensemble", "mnist", "l2"): 3.0,
    ("ensemble", "mnist", "linf"): 0.2,
    ("ensemble", "cifar10", "l0"): 50,
    ("ensemble", "cifar10", "l1"): 30.0,
    ("ensemble", "cifar10", "l2"): 2.0,
    ("ensemble", "cifar10", "linf"): 0.05,
    ("transform", "cifar10", "linf"): 0.03,
}
# CIFAR-10 ensembles with a deep network: Table A3.
_DEEP = frozenset("EFGH")
_DEEP_RADII: dict[str, float] = {"l0": 70, "l1": 30.0, "l2": 1.5, "linf": 0.03}
# Universal perturbations, linf: one radius for every network.
_NETWORK_RADII: dict[tuple[str, str], float] = {
    ("mnist", "A"): 0.2,
    ("mnist", "B"): 0.2,
    ("mnist", "C"): 0.3,
    ("mnist", "D"): 0.25,
    ("cifar10", "B"): 0.02,
    ("cifar10", "D"): 0.05,
    ("cifar10", "E"): 0.35,
    ("cifar10", "H"): 0.02,
}


def parameters(kind: str, data: str, norm: str) -> Parameters | None:
    """Step sizes, gamma and T of an attack of the paper; None where it gives none.

    Args:
        kind: "ensemble", "universal" or "transform".
        data: "mnist" or "cifar10"; the paper has no others.
        norm: "l0", "l1", "l2" or "linf".

    Raises:
        ValueError: There is no such kind of attack.

    Example:
        >>> parameters("ensemble", "cifar10", "linf")
        Parameters(alpha=0.2, beta=0.02, gamma=6, steps=50)
        >>> parameters("universal", "cifar10", "l2") is None
        True
    """
    _check(kind)
    found = _STEP_SIZES.get((kind, data, norm))
    return None if found is None else Parameters(*found, STEPS[kind])


def radius(kind: str, data: str, norm: str, networks: Iterable[str] = ()) -> float | None:
    """The radius eps of an attack of the paper; None where it gives none.

    Args:
        kind: "ensemble", "universal" or "transform".
        data: "mnist" or "cifar10"; the paper has no others.
        norm: "l0", "l1", "l2" or "linf".
        networks: Letters of the networks attacked. Universal perturbations have a radius for every network,
            and ensembles on CIFAR-10 smaller ones where a deep network is among them.

    Raises:
        ValueError: There is no such kind of attack.

    Example:
        >>> radius("ensemble", "mnist", "l2"), radius("ensemble", "cifar10", "l2", "AEFH")
        (3.0, 1.5)
        >>> radius("universal", "mnist", "linf", ["C"]), radius("universal", "mnist", "linf")
        (0.3, None)
    """
    _check(kind)
    letters = tuple(networks)
    if kind == "universal":
        alone = letters[0] if len(letters) == 1 and norm == "linf" else ""
        return _NETWORK_RADII.get((data, alone))
    if (kind, data) == ("ensemble", "cifar10") and _DEEP.intersection(letters):
        return _DEEP_RADII.get(norm)
    return _RADII.get((kind, data, norm))


def _check(kind: str) -> None:
    if kind not in STEPS:
        raise ValueError(f"`kind` must be one of {', '.join(STEPS)}, got {kind!r}.")
