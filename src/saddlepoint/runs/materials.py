"""Images and models as settings name them: shipped ones by name, the user's own from files and code."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from saddlepoint import data as datasets
from saddlepoint import models as networks
from saddlepoint.data import own
from saddlepoint.data.image_files import files_of
from saddlepoint.data.pixels import resized
from saddlepoint.data.splits import rows_of
from saddlepoint.models.loading import fill, parameters
from saddlepoint.models.onnx_files import load_onnx
from saddlepoint.models.onnx_sessions import load_session
from saddlepoint.models.own_code import code_of, from_code, reason_in, takes
from saddlepoint.models.packed import how_to_get
from saddlepoint.models.wrapping import Normalisation, Wrapped
from saddlepoint.models.zoos import Found, Wanted, from_zoo
from saddlepoint.problems import Model
from saddlepoint.runs import texts
from saddlepoint.runs.model_words import HELP, ModelWord, is_code, parse
from saddlepoint.runs.normalising import check_files, preparations, told_by_card
from saddlepoint.score_models import has_gradient, scores
from saddlepoint.suffixes import ONNX

__all__ = [
    "Images",
    "check_data",
    "has_splits",
    "listed_classes",
    "load_images",
    "load_model",
    "load_models",
]


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
        files: Where each image comes from, N paths; empty where that is no file of its own.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    family: str
    places: str = ""
    files: tuple[str, ...] = ()


def load_images(
    spec: str,
    split: str | None = None,
    limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    classes: str | None = None,
    size: int | None = None,
    crop: float = 1.0,
) -> Images:
    """Images by name, from a folder with one folder per class, an .npz file, or a data set in Python code.

    Args:
        spec: A name such as "mnist" or "mnist-sample", "folder/", "file.npz", "file.py:dataset" or
            "package.module:dataset", which is imported, and called where it is not a data set itself.
        split: "test" or "train". Data of one's own and the embedded samples have neither: "test" is then the
            fifth that a training sets aside, "train" the others. None is "test" where there is one, else all.
        limit: Keep the first so many; of a folder, spread over the classes.
        progress: Of downloads, as in `saddlepoint.data.load`.
        classes: Names separated by commas or a file of them, for the user's own data.
        size: Resize the images to size x size: shorter side, then the centre.
        crop: How much of the shorter side is kept then.
    """
    check_data(spec)
    if spec in datasets.NAMES:
        if classes is not None:
            raise ValueError(f"`--classes` must be left out for {spec}, whose classes are known.")
        x, y = _named(spec, split, limit, progress)
        known = datasets.class_names(spec), spec.removesuffix("-sample")
        return Images(x if size is None else resized(x, size, crop), y, *known)
    listed = listed_classes(classes)
    with _flags(
        path="--data",
        data="--data",
        x="--data",
        classes="--classes",
        size="--size",
        crop="--crop",
        limit="--limit",
        split="--split",
    ):
        if Path(spec).suffix == ".npz":
            x, y, names = own.npz(spec, listed, limit=limit, split=split)
            return Images(x if size is None else resized(x, size, crop), y, names, "")
        if not Path(spec).is_dir():
            return _images_of_code(spec, split, limit, listed, {"size": size, "crop": crop})
        found = own.folder(spec, size, listed, crop=crop, limit=limit, split=split)
        files = files_of(spec, listed, limit=limit, split=split)
    is_listed = listed is not None or (Path(spec) / own.CLASSES).is_file()
    places = "listed classes" if is_listed else "folders"
    return Images(*found, "", places, tuple(file.as_posix() for file in files))


def check_data(spec: str) -> None:
    """Refuse data that is neither known by name nor there."""
    if (
        spec in datasets.NAMES
        or Path(spec).suffix == ".npz"
        or Path(spec).is_dir()
        or is_code(spec)
    ):
        return
    raise ValueError(
        f"`--data` must be one of {', '.join(datasets.NAMES)}, a folder with one folder per class, "
        "an .npz file, or a data set in code, file.py:dataset or package.module:dataset, got "
        f"{spec!r}{_folder_meant(spec)}"
    )


def _folder_meant(spec: str) -> str:
    """The end of a sentence: that there is no such folder, where one is meant, and one of nearly that name."""
    path = Path(spec)
    beside = path.parent
    there = [each.name for each in beside.iterdir() if each.is_dir()] if beside.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1)
    if near:
        return f", which is not there; did you mean {beside / near[0]}?"
    return ", which is not there." if spec.endswith(("/", os.sep)) or path.parent.name else "."


def _named(
    spec: str,
    split: str | None,
    limit: int | None,
    progress: Callable[[str, int, int], None] | None,
) -> tuple[Tensor, Tensor]:
    """Images of a named data set; those of the embedded samples are divided as other data is."""
    if split is None or not spec.endswith("-sample"):
        return datasets.load(spec, split or "test", limit, progress=progress)
    x, y = datasets.load(spec, "test", progress=progress)
    rows = rows_of(y, split, shuffle=False)[:limit]
    return x[rows], y[rows]


def _images_of_code(
    spec: str,
    split: str | None,
    limit: int | None,
    classes: own.Classes | None,
    framing: Mapping[str, Any],
) -> Images:
    given = code_of(spec, _gives_images, {"split": split or "test"}, flag="--data")
    part = None if has_splits(spec) else split
    try:
        how = {**framing, "classes": classes, "limit": limit, "split": part}
        return Images(*datasets.from_dataset(given, **how), "")
    except Exception as error:  # the user's own code may raise anything
        if str(error).startswith("`"):  # and what it gives may be refused
            raise
        raise ValueError(
            f"`--data` {spec} must give images with labels, got {reason_in(error)}"
        ) from error


def has_splits(spec: str) -> bool:
    """Whether data has images to train on and others to test on, and is not divided by us."""
    if spec in datasets.NAMES:
        return not spec.endswith("-sample")
    return is_code(spec) and not Path(spec).exists() and takes(spec, "split", flag="--data")


def _gives_images(thing: object) -> bool:
    """Whether it is a data set or a loader, and not what makes one."""
    return not isinstance(thing, type) and any(
        hasattr(thing, n) for n in ("__iter__", "__getitem__")
    )


def load_models(
    specs: Sequence[str],
    images: Images,
    *,
    mean: str | None = None,
    std: str | None = None,
    trust: bool = False,
    victims: int = 0,
) -> dict[str, Model]:
    """Models by name, in order; a name that comes twice gets a number.

    Args:
        specs: As `model_words` takes them apart.
        images: What the models are for.
        mean: As `preparations` takes it, for models that do not normalise inside; those of libraries, and those
            with a card, have their own unless this is given.
        std: The same.
        trust: Whether TorchScript, which is code, may be loaded.
        victims: The last so many are those of --victims.
    """
    models: dict[str, Model] = {}
    asked = len(specs) - victims
    flags = [
        {"--models": "--models" if index < asked else "--victims"} for index in range(len(specs))
    ]
    words: list[ModelWord] = []
    for spec, flag in zip(specs, flags, strict=True):
        with _flags(**flag):
            words.append(parse(spec))
            check_files(words[-1])
    prepared = preparations(words, mean, std, victims)
    for word, how, flag in zip(words, prepared, flags, strict=True):
        name = word.short
        numbered = (f"{word.short} ({number})" for number in count(2))
        while name in models:
            name = next(numbered)
        with _flags(**flag):
            models[name] = load_model(word, images, how, trust=trust)
    return models


def load_model(
    word: ModelWord, images: Images, prepared: Normalisation | None = None, *, trust: bool = False
) -> Model:
    """One model, in evaluation mode, that takes images in [0, 1]; declared if it is asked for scores only.

    Args:
        word: Its name. Code is imported and called because the user named it.
        images: What the model is for.
        prepared: How it wants images, where nobody else knows or where this is to be used instead.
        trust: Whether TorchScript may be loaded.
    """
    model = _loaded(word, images, prepared, trust=trust)
    return scores(model) if word.scores and has_gradient(model) else model


def _loaded(
    word: ModelWord, images: Images, prepared: Normalisation | None, *, trust: bool
) -> Model:
    """The model itself."""
    check_files(word)
    if word.kind == "shipped":
        return _letter(word.name, images) if len(word.name) == 1 else _shipped(word.name)
    if word.kind == "card":
        return networks.load(word.parameters)
    if word.kind == "architecture":
        channels, size = images.x.shape[1:3]
        return networks.load(word.parameters, architecture=word.name, channels=channels, size=size)
    with _flags(trust="--trust"):
        found = _found(word, images, trust=trust)
    (beside,) = preparations([word], *told_by_card(word))
    prepared = prepared or beside or found.prepared
    if prepared is None and found.size is None:
        return found.network
    return Wrapped(found.network, prepared, found.size).eval()


def _found(word: ModelWord, images: Images, *, trust: bool) -> Found:
    """A network from elsewhere, with what is known of how it wants images."""
    if word.kind == "onnxruntime":
        return Found(load_session(Path(word.name)))
    if word.kind == "program":
        onnx = Path(word.name).suffix == ONNX
        path = Path(word.name)
        return Found(load_onnx(path) if onnx else networks.load(path, trust=trust))
    tensors = parameters(Path(word.parameters)) if word.parameters else None
    if word.kind == "code":
        network = from_code(word.module, word.name)
        if tensors is not None:
            if not isinstance(network, nn.Module):
                raise ValueError(
                    f"`--models` {word.module}:{word.name} must give a module to load parameters into, got "
                    f"{type(network).__name__}."
                )
            fill(f"{word.module}:{word.name}", network, tensors, word.parameters)
        return Found(network)
    wanted = Wanted(images.x.shape[1], len(images.classes))
    how: dict[str, Any] = {"pretrained": word.pretrained, "file": word.parameters}
    return from_zoo(word.kind, word.name, wanted, tensors, **how)


def _letter(letter: str, images: Images) -> Model:
    name = f"{images.family}-{letter.lower()}"
    if images.family and (name in networks.shipped() or how_to_get(name)):
        return _shipped(name)
    own = [n for n in networks.shipped() if images.family and n[:-1] == f"{images.family}-"]
    if not own:
        raise ValueError(
            f"`--models` must name a network in full for your own data, got {letter}, a network of MNIST or "
            f"CIFAR-10: write mnist-{letter.lower()} or cifar10-{letter.lower()}, or name your own, such as "
            "nets.py:factory."
        )
    what = ", ".join(n.rpartition("-")[2].upper() for n in own)
    raise ValueError(f"`--models` must be, for --data {images.family}, {what}, got {letter!r}.")


def _shipped(name: str) -> Model:
    if name not in networks.shipped() and not how_to_get(name):
        raise ValueError(
            f"`--models` must be one of {', '.join(networks.shipped())}, or {HELP}, got {name!r}."
        )
    with _flags(source="--models"):
        return networks.channels_last(networks.load(name))


def listed_classes(classes: str | None) -> list[str] | Path | None:
    """Class names as the library takes them: a file where one is meant, else names."""
    if classes is None:
        return None
    path = Path(classes)
    return path if path.suffix == ".txt" or path.is_file() else texts.split(classes)


@contextmanager
def _flags(**flags: str) -> Iterator[None]:
    """Complaints about arguments of the library name the settings that they come from."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(texts.renamed(str(error), flags)) from error
