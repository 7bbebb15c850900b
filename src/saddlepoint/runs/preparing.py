"""What attacks and evaluations have to load before they can begin: images and models, where they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

from saddlepoint.problems import Model
from saddlepoint.runs.devices import device_of
from saddlepoint.runs.materials import Images, check_classes, load_images, load_models
from saddlepoint.runs.settings import AttackSettings, EvaluateSettings
from saddlepoint.training.distributed import World

__all__ = ["Prepared", "images_of", "on_device", "placed", "prepared"]

S = TypeVar("S", AttackSettings, EvaluateSettings)


@final
@dataclass(frozen=True)
class Prepared(Generic[S]):
    """What settings name, loaded.

    Attributes:
        settings: With a limit that there are images for.
        images: As they were loaded.
        x: Images on the device, (N, C, H, W).
        y: Labels on the device, (N,).
        models: By name, on the device.
        victims: Models that an attack never asks, by names that differ from those; on the device too.
    """

    settings: S
    images: Images
    x: Tensor
    y: Tensor
    models: Mapping[str, Model]
    victims: Mapping[str, Model]


def images_of(
    settings: AttackSettings | EvaluateSettings,
    progress: Callable[[str, int, int], None] | None = None,
) -> Images:
    """The first images of the data that settings name.

    Args:
        settings: Of an attack or an evaluation.
        progress: Of downloads, as in `saddlepoint.data.load`.
    """
    return load_images(
        settings.data,
        settings.split,
        settings.limit,
        progress,
        classes=settings.classes,
        size=settings.size,
    )


def placed(
    device: str, images: Images, models: Mapping[str, Model]
) -> tuple[Tensor, Tensor, dict[str, Model]]:
    """Images, labels and models where they are to be used, if they fit together.

    Raises:
        ValueError: There is no such device, or a model and the images have other classes or channels.
    """
    moved = on_device(device, models)
    where = device_of(device)
    x, y = images.x.to(where), images.y.to(where)
    check_classes(replace(images, x=x, y=y), moved)
    return x, y, moved


def on_device(device: str, models: Mapping[str, Model]) -> dict[str, Model]:
    """Models where they are to be used; none is asked anything.

    Raises:
        ValueError: There is no such device.
    """
    try:
        where = device_of(device)
        torch.empty(0, device=where)
        return {n: m.to(where) if isinstance(m, torch.nn.Module) else m for n, m in models.items()}
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"`--device` must be one that is there, such as cpu, got {device!r}: {reason}"
        ) from error


def prepared(
    settings: S, *, trust: bool = False, progress: Callable[[str, int, int], None] | None = None
) -> Prepared[S]:
    """Load the images and the models that settings name. All processes call this; the first one downloads.

    Args:
        settings: Of an attack or an evaluation.
        trust: Whether code of others may run, as `--trust` says.
        progress: Of downloads, as in `saddlepoint.data.load`.

    Raises:
        ValueError: Something is not there, or images and models do not fit each other.

    Example:
        >>> from saddlepoint.runs.settings import EnsembleSettings
        >>> ready = prepared(EnsembleSettings(models=["A", "C"], victims=["B"], eps=0.2, limit=9999))
        >>> ready.settings.limit, list(ready.models), list(ready.victims)
        (1000, ['A', 'C'], ['B'])
    """
    with World.current().one_then_all():
        images = images_of(settings, progress)
    if settings.limit is not None:
        settings = settings.model_copy(update={"limit": min(settings.limit, len(images.x))})
    words = [*settings.models, *(settings.victims if isinstance(settings, AttackSettings) else ())]
    preparing = {"mean": settings.mean, "std": settings.std}
    loaded = list(load_models(words, images, **preparing, trust=trust).items())
    asked = len(settings.models)
    x, y, models = placed(settings.device, images, dict(loaded[:asked]))
    victims = on_device(settings.device, dict(loaded[asked:]))
    return Prepared(settings, images, x, y, models, victims)
