"""Images and models as settings name them: shipped ones by name, the user's own from files and code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from saddlepoint import data as datasets
from saddlepoint import models as networks
from saddlepoint.data import own
from saddlepoint.problems import Ensemble, Model, check_eval_mode
from saddlepoint.runs import texts

__all__ = [
    "Images",
    "check_classes",
    "check_data",
    "load_images",
    "load_model",
    "load_models",
    "short_name",
]

_MODEL_SUFFIXES = (".safetensors", ".pt", ".pth", ".pt2", ".ts", ".torchscript")


@final
@dataclass(frozen=True)
class Images:
    """Images with labels.

    Attributes:
        x: (N, C, H, W), float32 in [0, 1].
        y: (N,), int64.
        classes: Names of the classes.
        family: The data set whose networks are meant by A, B, ...; empty for the user's own data.
        places: What labels are places among, "folders" or "listed classes", so that one too few would shift
            them; empty where labels are numbers to begin with.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    family: str
    places: str = ""


def load_images(
    spec: str,
    split: str = "test",
    limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    classes: str | None = None,
    size: int | None = None,
) -> Images:
    """Images by name, from a folder with one folder per class, or from an .npz file.

    Args:
        spec: A name such as "mnist" or "mnist-sample", "folder/", or "file.npz".
        split: "test" or "train", for named data.
        limit: Keep the first so many; of a folder, spread over the classes.
        progress: Of downloads, as in `saddlepoint.data.load`.
        classes: Names separated by commas or a file of them, for the user's own data.
        size: Resize the images of a folder to size x size.
    """
    check_data(spec)
    is_folder = spec not in datasets.NAMES and Path(spec).suffix != ".npz"
    if size is not None and not is_folder:
        raise ValueError(
            f"`--size` must be left out for {spec}: it resizes the images of a folder."
        )
    if spec in datasets.NAMES:
        if classes is not None:
            raise ValueError(f"`--classes` must be left out for {spec}, whose classes are known.")
        x, y = datasets.load(spec, split, limit, progress=progress)
        return Images(x, y, datasets.class_names(spec), spec.removesuffix("-sample"))
    listed = None if classes is None else _listed(classes)
    with _flags(path="--data", classes="--classes", size="--size", limit="--limit"):
        if not is_folder:
            return Images(*own.npz(spec, listed, limit=limit), "")
        found = own.folder(spec, size, listed, limit=limit)
    is_listed = listed is not None or (Path(spec) / own.CLASSES).is_file()
    return Images(*found, "", places="listed classes" if is_listed else "folders")


def check_data(spec: str) -> None:
    """Refuse data that is neither known by name nor there."""
    if spec not in datasets.NAMES and Path(spec).suffix != ".npz" and not Path(spec).is_dir():
        raise ValueError(
            f"`--data` must be one of {', '.join(datasets.NAMES)}, a folder with one folder per class, "
            f"or an .npz file, got {spec!r}."
        )


def check_classes(images: Images, models: Mapping[str, Model]) -> None:
    """Refuse models that have fewer or more logits than there are classes: labels would mean other classes.

    Where labels come from folders, there must be as many classes as logits. Other labels are what the user's
    file says; there must be a logit for each.

    Args:
        images: What the models are asked about, on a device where they can be.
        models: By name.
    """
    top = int(images.y.max())
    for name, model in models.items():
        logits = _number_of_logits(model, images)
        if logits is None:
            _check_channels(name, model, images)
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


def load_models(specs: Sequence[str], images: Images) -> dict[str, Model]:
    """Models by name, in order; a name that comes twice gets a number."""
    models: dict[str, Model] = {}
    for spec in specs:
        name = short_name(spec)
        if name in models:
            name = f"{name} ({sum(key.startswith(name) for key in models) + 1})"
        models[name] = load_model(spec, images)
    return models


def load_model(spec: str, images: Images) -> Model:
    """One model.

    Args:
        spec: "A" (of the data set at hand), "mnist-a", "file.safetensors:A", "program.pt2", or
            "package.module:factory", whose code is imported and called because the user wrote it.
        images: What the model is for.
    """
    if spec in networks.shipped():
        return _shipped(spec)
    if len(spec) == 1 and spec.isalpha():
        return _letter(spec, images)
    path, _, architecture = spec.partition(":")
    if Path(path).suffix in _MODEL_SUFFIXES:
        if not Path(path).is_file():
            raise ValueError(f"`--models` must name a file that exists, got {path!r}.")
        shape = {"channels": images.x.shape[1], "size": images.x.shape[2]} if architecture else {}
        return networks.load(path, architecture=architecture or None, **shape)
    if architecture and all(part.isidentifier() for part in path.split(".")):
        return _from_code(path, architecture)
    raise ValueError(
        f"`--models` must be letters of shipped networks, one of {', '.join(networks.shipped())}, "
        f"parameters.safetensors:ARCHITECTURE, program.pt2, or package.module:factory, got {spec!r}."
    )


def short_name(spec: str) -> str:
    """What a model is called in tables.

    Example:
        >>> short_name("A"), short_name("runs/x/best.safetensors:C"), short_name("pkg.nets:small")
        ('A', 'best', 'small')
    """
    head, _, tail = spec.partition(":")
    if Path(head).suffix in _MODEL_SUFFIXES:
        return Path(head).stem
    return tail or head


def _letter(letter: str, images: Images) -> Model:
    name = f"{images.family}-{letter.lower()}"
    if images.family and name in networks.shipped():
        return _shipped(name)
    own = [n for n in networks.shipped() if images.family and n.startswith(f"{images.family}-")]
    what = ", ".join(n.rpartition("-")[2].upper() for n in own) or "the name of a file"
    where = f"--data {images.family}" if images.family else "your own data"
    raise ValueError(f"`--models` must be, for {where}, {what}, got {letter!r}.")


def _shipped(name: str) -> Model:
    # A fifth faster for convolutions on a CPU.
    return networks.load(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _from_code(module: str, factory: str) -> Model:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        make: object = importlib.import_module(module)
        for part in factory.split("."):
            make = getattr(make, part)
        model = make() if callable(make) and not isinstance(make, nn.Module) else make
    except Exception as error:  # the user's own code may raise anything
        raise ValueError(
            f"`--models` {module}:{factory} must be importable and callable without arguments, "
            f"got {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not callable(model):
        raise ValueError(
            f"`--models` {module}:{factory} must give a model, got {type(model).__name__}."
        )
    found: Model = model
    return found


def _listed(classes: str) -> list[str] | Path:
    """Class names as the library takes them: a file where one is meant, else names."""
    path = Path(classes)
    return path if path.suffix == ".txt" or path.is_file() else texts.split(classes)


def _check_channels(name: str, model: Model, images: Images) -> None:
    """Refuse grey images for a model of colour ones, and the other way round, of which torch says little."""
    count = images.x.shape[1]
    other = {1: images.x[:1].expand(-1, 3, -1, -1), 3: images.x[:1, :1]}.get(count)
    if other is None or _number_of_logits(model, replace(images, x=other)) is None:
        return
    words = {1: "1 (grey)", 3: "3 (colour)"}
    raise ValueError(
        f"`--data` must have as many channels as the model takes, got images of {words[count]} and {name}, "
        f"which takes {words[4 - count]}; save the images with {words[4 - count]}."
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


@contextmanager
def _flags(**flags: str) -> Iterator[None]:
    """Complaints about arguments of the library name the settings that they come from."""
    try:
        yield
    except ValueError as error:
        raise ValueError(texts.renamed(str(error), flags)) from error
