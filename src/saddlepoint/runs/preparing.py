"""What attacks and evaluations need before they can begin: images and models, their device and precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from saddlepoint.precision import Precision, Precisions
from saddlepoint.problems import AbstractProblem, Model
from saddlepoint.runs.fitting import check_classes
from saddlepoint.runs.materials import Images, load_images, load_models
from saddlepoint.runs.record import RECORD, Run
from saddlepoint.runs.settings import AttackSettings, EvaluateSettings
from saddlepoint.runs.sizes import with_size
from saddlepoint.solver.lowering import choose_precisions
from saddlepoint.training.distributed import World

__all__ = [
    "Prepared",
    "begun_with",
    "device_of",
    "for_models",
    "on_device",
    "placed",
    "prepared",
    "with_precisions",
]

S = TypeVar("S", AttackSettings, EvaluateSettings)


@final
@dataclass(frozen=True)
class Prepared(Generic[S]):
    """What settings name, loaded.

    Attributes:
        settings: With a limit that there are images for, and the size of images where that was left open.
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
        s = settings = with_size(settings)
        framing: Any = {"classes": s.classes, "size": s.size, "crop": s.crop}
        images = load_images(s.data, s.split, s.limit, progress, **framing)
    if settings.limit is not None:
        settings = settings.model_copy(update={"limit": min(settings.limit, len(images.x))})
    words = [*settings.models, *(settings.victims if isinstance(settings, AttackSettings) else ())]
    preparing: dict[str, Any] = {"mean": settings.mean, "std": settings.std}
    asked = len(settings.models)
    preparing |= {"trust": trust, "victims": len(words) - asked}
    loaded = list(load_models(words, images, **preparing).items())
    x, y, models = placed(settings.device, images, dict(loaded[:asked]))
    victims = on_device(settings.device, dict(loaded[asked:]))
    told = {f"{name} of --victims": model for name, model in victims.items()}
    check_classes(replace(images, x=x, y=y), told, alone=False)
    return Prepared(settings, images, x, y, models, victims)


def device_of(text: str) -> torch.device:
    """A device by its name; "gpu" is the one that is there, whatever torch calls it.

    Raises:
        ValueError: There is no such name, or no GPU.

    Example:
        >>> device_of("CPU")
        device(type='cpu')
    """
    name, colon, number = text.strip().lower().partition(":")
    if name == "gpu":
        there: dict[str, Callable[[], bool]] = {
            "cuda": torch.cuda.is_available,
            "mps": torch.backends.mps.is_available,
            "xpu": torch.xpu.is_available,
        }
        name = next((known for known, is_there in there.items() if is_there()), "")
        if not name:
            raise ValueError(
                f"`--device` must be one that is there, got {text!r}, and torch finds no GPU; use cpu."
            )
    try:
        return torch.device(f"{name}{colon}{number}")
    except RuntimeError as error:
        raise ValueError(
            f"`--device` must be cpu, gpu, cuda, mps or xpu, or one of several such as cuda:1, got {text!r}."
        ) from error


def with_precisions(
    settings: S, problem: AbstractProblem, folder: Path, *, resume: bool
) -> tuple[S, Precisions]:
    """What the models of a run compute in, and settings that say so.

    "auto" is decided here, once, by process 0 for all: by a short measurement, or, of a run that is continued,
    by its record.

    Args:
        settings: Of an attack or an evaluation.
        problem: What it attacks.
        folder: Of the run.
        resume: Whether the run in it is to be continued.

    Raises:
        ValueError: The words do not fit the models, or the record cannot be read.
    """
    words = settings.precision
    if resume and "auto" in words:
        words = begun_with(folder, "precision", words)
    precisions = choose_precisions(problem, for_models(words), World.current().gather)
    names = precisions.names
    said = list(names[:1] if len(set(names)) == 1 else names)
    return settings.model_copy(update={"precision": said}), precisions


def begun_with(folder: Path, name: str, otherwise: Any) -> Any:
    """A setting of the run in a folder, as its record has it; something else where there is no run yet."""
    found = Run.read(folder).settings.get(name) if (folder / RECORD).is_file() else None
    return otherwise if found is None else found


def for_models(words: Sequence[Precision]) -> Precision | Sequence[Precision]:
    """One word for all models, or one for each, as `attack` takes them."""
    return words[0] if len(words) == 1 else words
