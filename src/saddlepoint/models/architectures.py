"""Networks by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import nn

from . import deep, small

__all__ = ["ARCHITECTURES", "build"]


class Architecture(NamedTuple):
    """How to make a network of (channels, size, classes), and the smallest images it takes."""

    make: Callable[[int, int, int], nn.Module]
    least_size: int


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "A": Architecture(small.mlp, 1),
        "B": Architecture(small.all_cnn, 1),
        "C": Architecture(small.lenet, 16),
        "D": Architecture(small.lenet_v2, 4),
        "E": Architecture(deep.vgg16, 32),
        "F": Architecture(deep.resnet50, 1),
        "G": Architecture(deep.wide_resnet, 1),
        "H": Architecture(deep.googlenet, 1),
        "A_unshifted": Architecture(small.unshifted(small.mlp), 1),
        "B_unshifted": Architecture(small.unshifted(small.all_cnn), 1),
        "C_unshifted": Architecture(small.unshifted(small.lenet), 16),
        "D_unshifted": Architecture(small.unshifted(small.lenet_v2), 4),
        "mnist_cnn": Architecture(small.mnist_cnn, 4),
        "mnist_cnn_small": Architecture(small.mnist_cnn_small, 4),
        "preact_resnet18": Architecture(deep.preact_resnet18, 1),
        "preact_resnet_small": Architecture(deep.preact_resnet_small, 1),
    }
)
"""Networks that `build` makes, by name: A to H of the paper, A to D without the shift of their input, and
those of the training guide.

Example:
    >>> "mnist_cnn_small" in ARCHITECTURES
    True
"""


def build(name: str, channels: int = 1, size: int = 28, classes: int = 10) -> nn.Module:
    """A network with random parameters, in training mode.

    Args:
        name: "A" to "H", "A_unshifted" to "D_unshifted", "mnist_cnn", "mnist_cnn_small",
            "preact_resnet18" or "preact_resnet_small".
        channels: Of the images.
        size: Height and width of the images.
        classes: Number of logits.

    Raises:
        ValueError: Unknown name, or images too small for the network.

    Example:
        >>> import torch
        >>> build("C", channels=3, size=32)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if name not in ARCHITECTURES:
        raise ValueError(f"`name` must be one of {', '.join(ARCHITECTURES)}, got {name!r}.")
    make, least_size = ARCHITECTURES[name]
    if size < least_size:
        raise ValueError(f"`size` must be at least {least_size} for network {name}, got {size}.")
    if channels < 1 or classes < 2:
        raise ValueError(
            f"`channels` must be at least 1 and `classes` at least 2, got {channels}, {classes}."
        )
    return make(channels, size, classes)
