"""Every experiment by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from saddlepoint.experiments.curves import CURVES
from saddlepoint.experiments.ensembles import ENSEMBLES
from saddlepoint.experiments.networks import NETWORKS
from saddlepoint.experiments.plan import Experiment
from saddlepoint.experiments.transformed import TRANSFORMATIONS
from saddlepoint.experiments.universal_tables import UNIVERSALS

__all__ = ["EXPERIMENTS", "find"]

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {e.name: e for e in (*ENSEMBLES, *UNIVERSALS, *TRANSFORMATIONS, *CURVES, NETWORKS)}
)
"""In the order of the paper: tables first, then figures."""


def find(name: str) -> Experiment:
    """The experiment of a name.

    Raises:
        ValueError: Unknown name.

    Example:
        >>> find("ensemble-mnist").source
        'Table 1'
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"`name` must be one of {', '.join(EXPERIMENTS)}, got {name!r}.")
    return EXPERIMENTS[name]
