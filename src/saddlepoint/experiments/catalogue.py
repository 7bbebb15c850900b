"""Every experiment by name, and what its published tables are made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from saddlepoint.experiments.curves import CURVES
from saddlepoint.experiments.ensembles import ENSEMBLES
from saddlepoint.experiments.networks import NETWORKS
from saddlepoint.experiments.plan import LABELS, Computing, Experiment, Published
from saddlepoint.experiments.transformed import TRANSFORMATIONS
from saddlepoint.experiments.universal_tables import SIZES, UNIVERSALS

__all__ = ["EXPERIMENTS", "find", "published_parts"]

_LOW: Computing = "bfloat16"
_FAST: Computing = "bfloat16+channels_last"
_GROUPS = {  # fewer images where networks are slow
    tuple(f"e-0.035-k{size}" for size in SIZES): Published(300, _FAST),
    tuple(f"h-k{size}" for size in SIZES): Published(100, _FAST, LABELS),
}
_VIEWS = Published(1000, _FAST, LABELS, blocks={("b",): Published(400, _FAST, LABELS)})

_PUBLISHED = {
    "ensemble-mnist": Published(1000, _LOW, LABELS),
    "ensemble-mnist-paper": Published(1000, _LOW, LABELS),
    "ensemble-mnist-heuristics": Published(1000, _LOW, LABELS),
    "ensemble-cifar10": Published(1000, _LOW, LABELS),
    "ensemble-cifar10-heuristics": Published(1000, _FAST, LABELS),
    "ensemble-cifar10-deep": Published(100, _FAST, LABELS),
    "universal-cifar10": Published(1000, _FAST, LABELS, blocks=_GROUPS),
    "universal-mnist-digits": Published(1000, _LOW),
    "universal-mnist": Published(1000, _LOW),
    "universal-mnist-clip": Published(1000, _LOW),
    "transform": Published(1000, _LOW, LABELS),
    "transform-rotation": _VIEWS,
    "transform-random": _VIEWS,
    "steps-mnist": Published(1000, _LOW),
    "eps-mnist": Published(200, _LOW),
    "eps-cifar10": Published(200, _FAST),
    "eps-mnist-abc": Published(200, _LOW),
    "eps-cifar10-abc": Published(200, _FAST),
    "gamma-mnist": Published(200, _LOW),
    "beta-mnist": Published(200, _LOW),
    "alpha-mnist": Published(200, _LOW),
    "image-robustness": Published(1000),
    "convergence": Published(64),
    "cost": Published(64),
    "networks": Published(1000),
}
"""What `reproduce --published` runs; a test compares it with the stored summaries."""

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        each.name: replace(each, published=_PUBLISHED[each.name])
        for each in (*ENSEMBLES, *UNIVERSALS, *TRANSFORMATIONS, *CURVES, NETWORKS)
    }
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


def published_parts(experiment: Experiment) -> list[tuple[Experiment, Published]]:
    """What is run for the published tables: parts of an experiment, each with what all of it is run with.

    Example:
        >>> [(len(part.blocks), own.images) for part, own in published_parts(find("universal-cifar10"))]
        [(20, 1000), (4, 300), (4, 100)]
    """
    own = experiment.published
    apart = {key for keys in own.blocks for key in keys}
    rest = tuple(block for block in experiment.blocks if block.key not in apart)
    parts = [(replace(experiment, blocks=rest), own)]
    for keys, other in own.blocks.items():
        blocks = tuple(block for block in experiment.blocks if block.key in keys)
        parts.append((replace(experiment, blocks=blocks, measurements=()), other))
    return [(part, said) for part, said in parts if part.blocks or part.measurements]
