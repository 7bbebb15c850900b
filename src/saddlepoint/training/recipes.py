"""How long, with which optimiser and at which learning rate a network is trained.

`fast` recipes are ours: one-cycle schedules that reach good accuracy in few epochs on a CPU.
`paper` recipes are those of the paper's appendices, on model architectures and training details for
clean training and on adversarial training details for the other methods.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, final

import torch
from torch import nn

from saddlepoint.counts import check_count
from saddlepoint.training.batches import Border, check_border

__all__ = ["Recipe", "recipe_for"]


@final
@dataclass(frozen=True)
class Recipe:
    """A training schedule as plain data.

    The learning rate is a function of the time passed, so a resumed run needs no scheduler state:

    - "one-cycle": rises from 1/25 of the peak over the first quarter, then falls to zero, both
      along half a cosine (Smith & Topin);
    - "constant";
    - "steps": multiplied by 0.1 at each epoch of `milestones`;
    - "linear": straight lines between `points`, pairs of a time, as share of all epochs, and a share of
      the peak.

    Example:
        >>> recipe = Recipe("mine", optimizer="adamw", learning_rate=0.001, epochs=4)
        >>> [round(recipe.learning_rate_at(t), 6) for t in (0, 1, 4)]
        [4e-05, 0.001, 0.0]
    """

    name: str
    optimizer: Literal["adam", "adamw", "sgd"]
    learning_rate: float
    epochs: int
    schedule: Literal["one-cycle", "constant", "steps", "linear"] = "one-cycle"
    milestones: tuple[int, ...] = ()
    points: tuple[tuple[float, float], ...] = ()
    weight_decay: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    batch_size: int = 64
    flip: bool = False
    """Mirror each training image left to right with probability one half."""
    shift: int = 0
    """Shift each training image by up to so many pixels along both axes."""
    border: Border = "black"
    """What comes in then: black, or the image "mirrored" at its edge."""
    sides: tuple[tuple[float, int], ...] = ()
    """Sides of the training images in pixels, with the share of all epochs from which on they hold, as in
    ((0, 16), (0.5, 32)): small images first take a fraction of the time. Empty leaves images as they are."""

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, 1)
        if self.batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {self.batch_size}.")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"`learning_rate` must be positive, got {self.learning_rate}.")
        times = [time for time, _ in self.points]
        ends = times[:1] == [0] and times[-1:] == [1]
        if self.schedule == "linear" and not (ends and times == sorted(set(times))):
            raise ValueError(f"`points` must have times that rise from 0 to 1, got {self.points}.")
        if self.shift < 0:
            raise ValueError(f"`shift` must be at least 0, got {self.shift}.")
        check_border(self.border)
        starts = [start for start, _ in self.sides]
        rising = starts[:1] in ([], [0]) and starts == sorted(set(starts)) and starts[-1:] < [1]
        if not rising or any(side < 1 for _, side in self.sides):
            raise ValueError(
                "`sides` must be pairs of a share of the epochs, rising from 0 to below 1, and a side of at "
                f"least one pixel, got {self.sides}."
            )

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """A new optimiser over the parameters of `model`."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "sgd":
            return torch.optim.SGD(
                parameters, rate, self.momentum, weight_decay=decay, nesterov=self.nesterov
            )
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, rate, weight_decay=decay)
        return torch.optim.AdamW(parameters, rate, weight_decay=decay)

    def side_at(self, time: float) -> int | None:
        """Side of the training images after `time` epochs; None where they keep their own.

        Example:
            >>> recipe = Recipe("mine", "sgd", 0.1, epochs=4, sides=((0, 16), (0.5, 32)))
            >>> [recipe.side_at(epoch) for epoch in range(4)]
            [16, 16, 32, 32]
        """
        return max(
            ((start, side) for start, side in self.sides if start * self.epochs <= time),
            default=(0, None),
        )[1]

    def learning_rate_at(self, time: float) -> float:
        """Learning rate after `time` epochs, a number in [0, epochs] that need not be whole."""
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "steps":
            passed = sum(time >= milestone for milestone in self.milestones)
            return self.learning_rate * 0.1**passed
        if self.schedule == "linear":
            return self.learning_rate * _between(self.points, time / self.epochs)
        rise = self.epochs / 4
        if time < rise:
            return _half_cosine(self.learning_rate / 25, self.learning_rate, time / rise)
        return _half_cosine(self.learning_rate, 0.0, (time - rise) / (self.epochs - rise))


def recipe_for(name: str, data: str, model: str, *, adversarial: bool = False) -> Recipe:
    """The recipe called `name` for a network on a data set.

    Args:
        name: "fast" or "paper".
        data: Name of the data set; those of 28x28 digits or clothes share a recipe.
        model: Name of the architecture, as `models.build` takes it.
        adversarial: For the methods that train against threats.

    Example:
        >>> recipe_for("paper", "cifar10", "F").learning_rate
        0.1
        >>> recipe = recipe_for("paper", "mnist", "mnist_cnn", adversarial=True)
        >>> [round(recipe.learning_rate_at(epoch), 6) for epoch in (0, 3, 6, 15)]
        [0.0, 0.0005, 0.001, 0.0]
    """
    if adversarial and (name, model) in _ADVERSARIAL:
        return _ADVERSARIAL[name, model]
    if adversarial and name in ("fast", "paper"):
        return _ADVERSARIAL[name, "cifar10" if data.startswith("cifar10") else "mnist"]
    if name == "paper":
        return _paper_cifar10(model) if data.startswith("cifar10") else _PAPER_MNIST
    if name != "fast":
        raise ValueError(f"`recipe` must be 'fast' or 'paper', got {name!r}.")
    recipes = _FAST_CIFAR10 if data.startswith("cifar10") else _FAST_MNIST
    return recipes.get(model.removesuffix("_unshifted"), recipes[""])


def _half_cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(fraction, 1.0))) / 2


def _between(points: tuple[tuple[float, float], ...], time: float) -> float:
    """The piecewise linear function through `points` at `time`."""
    for (start, low), (end, high) in pairwise(points):
        if time <= end:
            return low + (high - low) * (time - start) / (end - start)
    return points[-1][1]


_PAPER_MNIST = Recipe("paper", "adam", 0.001, 50, schedule="constant", batch_size=128)


def _paper_cifar10(model: str) -> Recipe:
    # The text names eight networks; those of residual or VGG kind start at 0.1, the others at 0.01.
    deep = model in ("E", "F", "G", "preact_resnet18")
    return Recipe(
        "paper",
        "sgd",
        0.1 if deep else 0.01,
        250,
        schedule="steps",
        milestones=(100, 175),
        weight_decay=5e-4,
        momentum=0.8,
        batch_size=128,
    )


def _fast(epochs: int, learning_rate: float = 0.002, *, flip: bool = False) -> Recipe:
    return Recipe("fast", "adamw", learning_rate, epochs, weight_decay=0.01, flip=flip)


def _deep(epochs: int, larger: float, largest: float) -> Recipe:
    """For networks of which an epoch takes minutes to an hour: large batches of small images at first.

    They have 16 pixels, 24 from the share `larger` of the epochs on, and 32 from `largest` on.
    """
    return Recipe(
        "fast",
        "sgd",
        0.1,
        epochs,
        weight_decay=5e-4,
        batch_size=128,
        flip=True,
        shift=4,
        sides=((0, 16), (larger, 24), (largest, 32)),
    )


# Measured on one CPU core; the key "" is for every other architecture.
_FAST_MNIST = {
    "A": _fast(12),
    "B": _fast(2, 0.001),
    "C": _fast(12),
    "D": _fast(6),
    "": _fast(6, 0.001),
}
_FAST_CIFAR10 = {
    "A": _fast(20, 0.001, flip=True),
    "B": _fast(8, 0.001, flip=True),
    "C": _fast(24, flip=True),
    "D": _fast(10, flip=True),
    # Of VGG16 an epoch takes nine minutes of a core in bfloat16 at 32 pixels, three at 16.
    "E": _deep(16, 0.5, 0.75),
    # Of ResNet50 and GoogLeNet 45 and 54 at 32 pixels, 11 and 13 at 16.
    "F": _deep(8, 0.8, 0.92),
    "H": _deep(8, 0.8, 0.92),
    "": _fast(20, 0.001, flip=True),
}

# By name and data set or architecture. The paper's are those of its appendix "Adversarial Training Details",
# with the batch sizes of the code it builds on, which pads CIFAR-10 by mirror images, crops and mirrors it.
_PAPER_DEFENCE = Recipe(
    "paper",
    "sgd",
    0.1,
    50,
    schedule="linear",
    points=((0, 0.0), (20 / 50, 1.0), (40 / 50, 0.05), (1, 0.0)),
    weight_decay=5e-4,
    nesterov=False,
    batch_size=128,
    flip=True,
    shift=4,
    border="mirrored",
)
_ADVERSARIAL = {
    ("paper", "mnist"): Recipe(
        "paper",
        "adam",
        0.001,
        15,
        schedule="linear",
        points=((0, 0.0), (6 / 15, 1.0), (1, 0.0)),
        batch_size=100,
    ),
    ("paper", "cifar10"): _PAPER_DEFENCE,
    ("fast", "mnist"): _fast(8),
    ("fast", "cifar10"): replace(_fast(10, 0.001, flip=True), shift=4, border="mirrored"),
    # Two core-hours at most for K = 3, R = 10 and 20,000 images.
    ("fast", "preact_resnet_small"): replace(_PAPER_DEFENCE, name="fast", epochs=15),
    ("fast", "mnist_cnn_small"): _fast(8, 0.005),
}
