"""What the doctor takes where nothing is said: a radius, and models to transfer from."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from saddlepoint import models as networks
from saddlepoint.problems import Model

__all__ = ["default_radius", "references"]

_EPS = {"mnist": 0.2}


def default_radius(family: str) -> float:
    """An linf radius at which attacks should work on images of a data set.

    Example:
        >>> default_radius("mnist"), default_radius("my own") == 8 / 255
        (0.2, True)
    """
    return _EPS.get(family, 8 / 255)


def references(name: str, models: Mapping[str, Model], x: Tensor) -> dict[str, Model]:
    """Models to transfer from: the others, or a shipped network for such images.

    Args:
        name: Of the model that is examined.
        models: All that are, by name.
        x: Images, (N, C, H, W).

    Example:
        >>> import torch
        >>> list(references("mine", {"mine": torch.nn.Flatten()}, torch.rand(1, 1, 28, 28)))
        ['mnist-a']
    """
    others = {other: model for other, model in models.items() if other != name}
    return others or _shipped(name, tuple(x.shape[1:]))


def _shipped(name: str, shape: tuple[int, ...]) -> dict[str, Model]:
    for other in ("mnist-a", "cifar10-a"):
        if other in networks.shipped() and name.lower() not in (other, other[-1]):
            card = networks.card(other)
            if (card.channels, card.size, card.size) == shape:
                return {other: networks.load(other)}
    return {}
