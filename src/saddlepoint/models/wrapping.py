"""Anybody's network as a model of this library: images in [0, 1] go in, logits come out."""

import copy
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saddlepoint.behind import modules_behind
from saddlepoint.calls import dtypes_of, how_to_declare, logits_of

__all__ = ["NORMALISATIONS", "Normalisation", "Wrapped", "normalisation", "wrap"]

Numbers = float | Sequence[float]


class Normalisation(NamedTuple):
    """What is subtracted from the channels of an image, and what they are then divided by.

    Example:
        >>> Normalisation(mean=(0.5,), std=(0.25,)).std
        (0.25,)
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


NORMALISATIONS: Mapping[str, Normalisation] = MappingProxyType(
    {
        "imagenet": Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "half": Normalisation((0.5,), (0.5,)),
        "clip": Normalisation(
            (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
        ),
        "cifar10": Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "cifar100": Normalisation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        "svhn": Normalisation((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        "mnist": Normalisation((0.1307,), (0.3081,)),
        "fashion-mnist": Normalisation((0.2860,), (0.3530,)),
    }
)
"""Usual constants by name. "half" is (x - 1/2) / (1/2), of Inception and many transformers. There are others
in use for CIFAR-10: what counts is what the network was trained with.

Example:
    >>> NORMALISATIONS["half"]
    Normalisation(mean=(0.5,), std=(0.5,))
"""


def wrap(
    net: Callable[[Tensor], Any],
    mean: str | Numbers | None = None,
    std: Numbers | None = None,
    size: int | tuple[int, int] | None = None,
    classes: Sequence[int] | None = None,
) -> "Wrapped":
    """A network that expects prepared images, as one that takes images in [0, 1] and returns logits.

        logits = net((resize(x) - mean) / std)[classes]

    The network is copied, parameters included, and the copy is put into evaluation mode: what is done to the
    wrapped network, such as moving it with `.to`, does not reach the one that was given, and the other way
    round. Everything is differentiable. Of what the network returns, the logits are taken: the tensor itself,
    `.logits`, `["logits"]`, or the first of a tuple.

    Args:
        net: A module; or a function, which is taken as it is.
        mean: Subtracted from each channel: one number, one per channel, or the name of both `mean` and `std`,
            see `NORMALISATIONS`: "imagenet", "half", "clip", "cifar10", "cifar100", "svhn", "mnist",
            "fashion-mnist". None does not normalise.
        std: Divides each channel after that.
        size: Height and width that the network wants, one number if they are the same; images of other sizes
            are resized by a bilinear filter that averages. Perturbations stay in the pixels of the images, so
            that models of one ensemble may each have their own size. None leaves the images alone.
        classes: Keep these logits only, in this order, so that label 0 means the first of them. None keeps all.

    Raises:
        ValueError: Unknown name, `mean` without `std`, a `std` that is not positive, or a wrong size or class.
        TypeError: `net` cannot be called.

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
        >>> _ = network[1].weight.data.copy_(torch.eye(3, 4))
        >>> model = wrap(network, mean=0.5, std=0.5, size=2, classes=[2, 0])
        >>> x = torch.tensor([[[[0.0, 0.5], [1.0, 0.5]]]])
        >>> model(x), model.training, network.training
        (tensor([[ 1., -1.]], grad_fn=<IndexSelectBackward0>), False, True)
    """
    if not callable(net):
        raise TypeError(
            f"`net` must be a module or a function, got {type(net).__name__}{how_to_declare(net)}."
        )
    prepared = normalisation(mean, std)
    if isinstance(net, nn.Module):
        try:
            net = copy.deepcopy(net)
        except Exception as error:  # modules may hold anything
            raise ValueError(
                f"`net` must be a module that can be copied, got one that fails ({error}); build it again and "
                "load its state dict."
            ) from error
    return Wrapped(net, prepared, size, classes).eval()


def normalisation(mean: str | Numbers | None, std: Numbers | None) -> Normalisation | None:
    """Mean and standard deviation by name or as numbers; None if neither is given.

    Example:
        >>> normalisation("mnist", None)
        Normalisation(mean=(0.1307,), std=(0.3081,))
        >>> normalisation(0.5, (0.25, 0.5, 0.5)).mean
        (0.5, 0.5, 0.5)
    """
    if mean is None and std is None:
        return None
    if isinstance(mean, str):
        if mean not in NORMALISATIONS:
            names = ", ".join(NORMALISATIONS)
            raise ValueError(f"`mean` must be numbers or one of {names}, got {mean!r}.")
        if std is not None:
            raise ValueError(f"`std` must be left out with mean {mean!r}, got {std}.")
        return NORMALISATIONS[mean]
    if mean is None or std is None:
        missing, given = ("mean", "std") if mean is None else ("std", "mean")
        raise ValueError(f"`{missing}` must be given with `{given}`, got none.")
    means, stds = _numbers("mean", mean), _numbers("std", std)
    channels = max(len(means), len(stds))
    if {len(means), len(stds)} - {1, channels}:
        raise ValueError(
            f"`mean` and `std` must have one number, or one per channel, got {len(means)} and {len(stds)}."
        )
    if not all(value > 0 for value in stds):
        raise ValueError(f"`std` must be positive, got {std}.")
    means, stds = (values * (channels // len(values)) for values in (means, stds))
    return Normalisation(means, stds)


@final
class Wrapped(nn.Module):
    """What `wrap` returns: resizes, normalises, asks the network, and keeps the chosen classes.

    Attributes:
        network: Of the arguments of `wrap`, not copied here.

    Example:
        >>> model = wrap(nn.Flatten(), mean=0.5, std=0.5, classes=[1, 0])
        >>> type(model).__name__, model(torch.tensor([[[[0.0, 1.0]]]]))
        ('Wrapped', tensor([[ 1., -1.]]))
    """

    mean: Tensor | None
    std: Tensor | None
    classes: Tensor | None

    def __init__(
        self,
        network: Callable[[Tensor], Any],
        prepared: Normalisation | None = None,
        size: int | tuple[int, int] | None = None,
        classes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.size = _sides(size)
        # As the network computes: constants of another type would make another type of the images.
        own = dtypes_of(modules_behind(network))
        dtype = next(iter(own)) if len(own) == 1 else None
        for name in ("mean", "std"):
            values = None if prepared is None else _constants(name, getattr(prepared, name), dtype)
            # Not part of the state dict: that is the network's alone.
            self.register_buffer(name, values, persistent=False)
        chosen = None if classes is None else torch.tensor(_places(classes))
        self.register_buffer("classes", chosen, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] to logits (B, classes)."""
        if self.size is not None and tuple(images.shape[-2:]) != self.size:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True)
        if self.mean is not None and self.std is not None:
            if len(self.mean) not in (1, images.shape[-3]):
                raise ValueError(
                    f"`mean` must have one number, or one per channel of the images, got {len(self.mean)} for "
                    f"images {tuple(images.shape)}."
                )
            images = (images - self.mean) / self.std
        logits = logits_of(self.network(images))
        if self.classes is None:
            return logits
        if int(self.classes.max()) >= logits.shape[-1]:
            raise ValueError(
                f"`classes` must be below the number of logits, {logits.shape[-1]}, got "
                f"{int(self.classes.max())}."
            )
        return logits.index_select(-1, self.classes)

    def extra_repr(self) -> str:
        """What is done around the network."""
        said: dict[str, Any] = {} if self.size is None else {"size": self.size}
        for name in ("mean", "std", "classes"):
            values: Tensor | None = getattr(self, name)
            if values is not None:
                said[name] = [float(f"{v:.6g}") for v in values.flatten().tolist()]
        return ", ".join(f"{name}={value}" for name, value in said.items())


def _numbers(name: str, value: Numbers) -> tuple[float, ...]:
    try:
        found = torch.as_tensor(value, dtype=torch.float64).flatten()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"`{name}` must be a number or one per channel, got {value!r}.") from error
    if not (len(found) and found.isfinite().all()):
        raise ValueError(f"`{name}` must be a number or one per channel, got {value!r}.")
    return tuple(found.tolist())


def _constants(name: str, given: tuple[float, ...], dtype: torch.dtype | None) -> Tensor:
    """One number for every channel, (C, 1, 1); a division by what is zero in this type gives no numbers."""
    values = torch.tensor(given, dtype=dtype)
    least = torch.finfo(values.dtype).tiny if name == "std" else -math.inf
    if not bool((values.isfinite() & (values >= least)).all()):
        held = str(values.dtype).removeprefix("torch.")
        raise ValueError(f"`{name}` must be numbers that {held} has, got {given}.")
    return values.view(-1, 1, 1)


def _sides(size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    several = isinstance(size, Iterable) and not isinstance(size, str | bytes)
    sides = [_whole(side) for side in (cast("Iterable[object]", size) if several else (size, size))]
    found = [side for side in sides if side is not None and side >= 1]
    if len(sides) != 2 or len(found) != 2:
        raise ValueError(
            f"`size` must be height and width, such as 224 or (224, 224), got {size!r}."
        )
    return (found[0], found[1])


def _places(classes: object) -> list[int]:
    """Numbers of logits. They have an order, which a set does not have, and are not told by words."""
    ordered = isinstance(classes, Sequence | Tensor | np.ndarray) and not isinstance(
        classes, str | bytes
    )
    given = [_whole(each) for each in cast("Sequence[object]", classes)] if ordered else []
    chosen = [each for each in given if each is not None and each >= 0]
    if len(chosen) < 2 or len(chosen) < len(given) or len(set(chosen)) < len(chosen):
        raise ValueError(
            "`classes` must be a list of at least two different numbers of logits, counted from 0, got "
            f"{classes!r}."
        )
    return chosen


def _whole(value: object) -> int | None:
    """A whole number, also one of numpy or torch; None for anything else, True and False among it."""
    if isinstance(value, bool | np.bool_) or (
        isinstance(value, Tensor) and value.dtype == torch.bool
    ):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
