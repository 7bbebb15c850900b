"""Whether models and images fit together: classes, channels and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.data.pixels import resized
from saddlepoint.problems import Ensemble, Model, check_eval_mode
from saddlepoint.runs.materials import Images

__all__ = ["check_classes"]

_SIZES = (28, 32, 64, 96, 128, 160, 192, 224, 240, 256, 288, 299, 320, 384, 448, 512)
"""What networks are made for; a model that fails is asked whether it takes one of them."""
_CHANNELS = {1: "1 (grey)", 3: "3 (colour)"}


def check_classes(
    images: Images, models: Mapping[str, Model], *, alone: bool | None = None
) -> None:
    """Refuse models that have fewer or more logits than there are classes: labels would mean other classes.

    Where labels come from folders, there must be as many classes as logits. Other labels are what the user's
    file says; there must be a logit for each.

    Args:
        images: What the models are asked about, on a device where they can be.
        models: By name; each is asked about the first image.
        alone: Whether no other model needs images of the same size; of a single one if None.
    """
    alone = len(models) == 1 if alone is None else alone
    top = int(images.y.max())
    for name, model in models.items():
        logits = _number_of_logits(model, images)
        if logits is None:
            _check_channels(name, model, images)
            _check_size(name, model, images, alone=alone)
            _check_both(name, model, images)
            continue
        if images.places and logits != len(images.classes):
            raise ValueError(
                f"`--data` must have as many classes as the model has logits, got {len(images.classes)} "
                f"{images.places} and {logits} logits of {name}, so that labels would be shifted; name all "
                "classes in the order of the logits with --classes cat,dog,... or in classes.txt, one per line."
            )
        if top >= logits:
            raise ValueError(
                f"`--data` must have labels the model knows, got label {top} and {logits} logits of {name}, "
                f"which are for labels 0 to {logits - 1}."
            )


def _check_channels(name: str, model: Model, images: Images) -> None:
    """Refuse grey images for a model of colour ones, and the other way round, of which torch says little."""
    count, other = images.x.shape[1], _recoloured(images)
    if other is None or _number_of_logits(model, replace(images, x=other)) is None:
        return
    raise ValueError(
        f"`--data` must have as many channels as the model takes, got images of {_CHANNELS[count]} and {name}, "
        f"which takes {_CHANNELS[4 - count]}; save the images with {_CHANNELS[4 - count]}."
    )


def _recoloured(images: Images) -> Tensor | None:
    """The first image in colour if it is grey, and the other way round; None if it is neither."""
    x = images.x[:1]
    return {1: x.expand(-1, 3, -1, -1), 3: x[:, :1]}.get(x.shape[1])


def _check_both(name: str, model: Model, images: Images) -> None:
    """Refuse images that have neither the channels nor the size that the model takes."""
    other = _recoloured(images)
    if other is None:
        return
    for size in _SIZES:
        part = replace(images, x=resized(other.cpu(), size).to(images.x))
        if _number_of_logits(model, part) is not None:
            count, height, width = images.x.shape[1:]
            raise ValueError(
                "`--data` must have the channels and the size that the model takes, got images of "
                f"{_CHANNELS[count]}, {height}x{width}, and {name}, which takes {_CHANNELS[4 - count]}, "
                f"{size}x{size}; was it made for other data?"
            )


def _check_size(name: str, model: Model, images: Images, *, alone: bool) -> None:
    """Refuse images of another size than the model takes, of which torch says which matrices do not fit."""
    height, width = images.x.shape[2:]
    for size in _SIZES:
        if (height, width) == (size, size):
            continue
        other = resized(images.x[:1].cpu(), size).to(images.x)
        if _number_of_logits(model, replace(images, x=other)) is not None:
            remedy = f"write --size {size}"
            if not alone:
                remedy += f", or wrap this one alone: saddlepoint.models.wrap(net, size={size})"
            raise ValueError(
                f"`--size` must be one that the model takes, got images of {height}x{width} and {name}, which "
                f"takes {size}x{size}; {remedy}."
            )


def _number_of_logits(model: Model, images: Images) -> int | None:
    """None for a model the library will refuse: it says better what is wrong with it."""
    try:
        check_eval_mode([model])
        one = Ensemble([model], images.x[:1], images.y[:1])
        with torch.no_grad():
            return one.logits(one.zeros()).shape[-1]
    except Exception:  # the user's own code may raise anything
        return None
