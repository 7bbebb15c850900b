"""What a training is made of: images to train and to test on, and the network it begins with.

Which images it used is kept beside its parameters, so that nobody tests on them unawares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from saddlepoint import data, models
from saddlepoint.behind import keeping_modes
from saddlepoint.data.sources import DATASETS
from saddlepoint.files import read_tensors, write_tensors
from saddlepoint.models.loading import fill, parameters
from saddlepoint.models.wrapping import Wrapped
from saddlepoint.runs.fitting import check_classes
from saddlepoint.runs.materials import Images, has_splits, load_images, load_models
from saddlepoint.runs.model_words import CARD, NETWORK, parse
from saddlepoint.runs.normalising import told_by_card
from saddlepoint.runs.preparing import device_of
from saddlepoint.runs.record import SEEN
from saddlepoint.runs.refusals import ANSWERS
from saddlepoint.runs.settings import EvaluateSettings, TrainSettings
from saddlepoint.suffixes import PARAMETERS, PROGRAMS

__all__ = [
    "architecture_of",
    "doubts",
    "first_network",
    "hashes_of_start",
    "keep_seen",
    "line_to_evaluate",
    "prepared_as",
    "training_images",
    "unwrapped",
]

_QUICKLY_TESTED = 1000


def training_images(
    settings: TrainSettings, progress: Callable[[str, int, int], None] | None = None
) -> tuple[Images, Images]:
    """Images to train on and to test on.

    Data of one's own is shuffled, the same way in every run, because files often have one class after the
    other; a fifth of every class is for testing unless there is other data for that.

    Args:
        settings: Of the training.
        progress: Of downloads, as in `saddlepoint.data.load`.

    Raises:
        ValueError: Images to test on have other shapes or classes, or there is none.
    """
    read = partial(
        load_images,
        progress=progress,
        classes=settings.classes,
        size=settings.size,
        crop=settings.crop,
    )
    spec, limit, own = settings.data, settings.limit, settings.data not in data.NAMES
    if settings.test_data is not None or has_splits(spec):
        train = read(spec, "train" if has_splits(spec) else None, limit)
        test = read(settings.test_data or spec)
        _check_alike(train, test)
        return (_shuffled(train) if own else train), test
    # Of a few images to train on, as few are tested.
    few = -(-limit // 4) if own and limit else None
    return read(spec, "train", limit), read(spec, "test", few)


def first_network(settings: TrainSettings, images: Images, device: str) -> nn.Module:
    """The network as it is before its first step, on its device, or with a GPU of its own for each process.

    Raises:
        ValueError: There is no such network, it cannot be trained, or it is for other images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        # Other networks have a dot, a dash or a colon in their names.
        built = settings.model.isidentifier()
        network = _built(settings, images) if built else _own(settings, images)
    if settings.init is not None:
        _begin_with(settings.init, network, settings.model)
    own_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
    return network.to("cuda" if own_gpu else device_of(device))


def architecture_of(model: str) -> str:
    """What a network is built by: the name of an architecture, or the user's code.

    Example:
        >>> architecture_of("mnist-a"), architecture_of("old.pt:nets.py:small"), architecture_of("C")
        ('A', 'nets.py:small', 'C')
    """
    if model in models.shipped():
        return models.card(model).architecture
    file, _, rest = model.partition(":")
    if Path(file).suffix in PARAMETERS:
        beside = Path(file).with_suffix(".json")
        return rest or models.Card.from_json(beside.read_text()).architecture
    return model


def prepared_as(settings: TrainSettings) -> tuple[str | None, str | None]:
    """Mean and std of the network, as they were written: in the settings, or on the card it begins with."""
    if settings.mean is not None or settings.model.isidentifier():
        return settings.mean, settings.std
    return told_by_card(parse(settings.model))


def line_to_evaluate(settings: TrainSettings, folder: Path) -> str:
    """The line that evaluates the network of a finished training on images that it was not trained on.

    Of data sets of the package it takes the first so many, which takes minutes. Nothing of the user's is run or
    looked for: reports have this line too.
    """
    model = str(folder / NETWORK)
    network = models.Card.from_json((folder / CARD).read_text()).architecture
    # Code that takes `split` takes this one by itself.
    divided = settings.test_data is None and settings.data not in DATASETS
    tested = settings.test_data or settings.data
    given = EvaluateSettings(
        models=[model if network in models.ARCHITECTURES else f"{model}:{network}"],
        data=tested,
        limit=_QUICKLY_TESTED if tested in DATASETS else None,
        split="test" if divided else None,
        threat=[":".join(text.split(":")[:2]) for text in settings.threat] or ["linf:8/255"],
        classes=settings.classes,
        size=settings.size,
        crop=settings.crop,
    )
    return given.command(suite=None)


def hashes_of_start(settings: TrainSettings) -> dict[str, str]:
    """The hash of the file of parameters that a training begins with, by what it is called, if there is one."""
    if settings.init is None or settings.init in models.shipped():
        return {}
    content = Path(settings.init).read_bytes()
    return {f"--init {Path(settings.init).name}": hashlib.sha256(content).hexdigest()}


def unwrapped(network: nn.Module) -> nn.Module:
    """The network that was made elsewhere, without what prepares images for it."""
    inner = network.network if isinstance(network, Wrapped) else network
    return inner if isinstance(inner, nn.Module) else network


def _begin_with(init: str, network: nn.Module, name: str) -> None:
    """Give a network, or what it wraps, the parameters of a file or of a shipped network."""
    path, shipped = Path(init), init in models.shipped()
    if not shipped and (path.suffix not in PARAMETERS or not path.is_file()):
        raise ValueError(
            f"`--init` must be a file of parameters that exists, {', '.join(PARAMETERS)}, or one of "
            f"{', '.join(models.shipped())}, got {init!r}."
        )
    tensors = models.load(init).state_dict() if shipped else parameters(path)
    try:
        fill(name, unwrapped(network), tensors)
    except ValueError as error:
        reason = str(error).rpartition("got: ")[2]
        raise ValueError(
            f"`--init` {init} must hold the parameters of --model {name}, got: {reason}"
        ) from error


def _shuffled(images: Images) -> Images:
    rows = torch.randperm(len(images.y), generator=torch.Generator().manual_seed(0))
    return replace(images, x=images.x[rows], y=images.y[rows])


def _check_alike(train: Images, test: Images) -> None:
    """Refuse images to test on that are of another kind."""
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ValueError(
            f"`--test-data` must have images of the shape of --data, {tuple(train.x.shape[1:])}, got "
            f"{tuple(test.x.shape[1:])}; bring both to one with --size."
        )
    if train.classes != test.classes:
        raise ValueError(
            f"`--test-data` must have the classes of --data, {', '.join(train.classes[:5])}, got "
            f"{', '.join(test.classes[:5])}, so that labels would mean other classes; list them with --classes."
        )


def _built(settings: TrainSettings, images: Images) -> nn.Module:
    if settings.mean is not None or settings.std is not None:
        raise ValueError(
            f"`--mean` must be left out for {settings.model}: networks of the package normalise inside."
        )
    channels, height, width = images.x.shape[1:]
    if height != width:
        raise ValueError(
            f"`--size` must be given for network {settings.model}, which takes square images, got images of "
            f"{height} x {width}."
        )
    if len(images.classes) < 2:
        raise ValueError("`--data` must have images of two classes or more, got 1 class.")
    network = models.build(settings.model, channels, height, len(images.classes))
    return models.channels_last(network)


def _own(settings: TrainSettings, images: Images) -> nn.Module:
    spec = settings.model
    if Path(spec).suffix in PROGRAMS:
        raise ValueError(
            f"`--model` must be a network that can be trained, got the program {spec}, which is fixed; give "
            "its code as nets.py:factory and its parameters with --init."
        )
    try:
        loaded = load_models([spec], images, mean=settings.mean, std=settings.std)
        (network,) = loaded.values()
    except ValueError as error:
        raise ValueError(str(error).replace("`--models`", "`--model`")) from error
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"`--model` {spec} must give a torch.nn.Module to be trained, got {type(network).__name__}."
        )
    with keeping_modes([network], False):
        check_classes(images, {spec: network})
    return network


def keep_seen(folder: Path, parts: Sequence[Tensor], answers: Tensor | None) -> None:
    """Write which images a training used, to train and to choose the epoch.

    Args:
        folder: Of the training.
        parts: Images, (N, C, H, W) each.
        answers: What the network said before it was trained, if there is something to compare.
    """
    numbers = torch.cat([_numbers(images) for images in parts])
    said = {} if answers is None else {ANSWERS: answers}
    write_tensors(folder / SEEN, {"images": numbers, **said})


def doubts(
    specs: Sequence[str], names: Sequence[str], images: Tensor, split: str | None = None
) -> tuple[str, ...]:
    """What has to be said of models that were trained on some of the images they are tested on.

    Args:
        specs: The models as settings name them.
        names: What they are called.
        images: To be tested on, (N, C, H, W).
        split: Which of all images they are, if that was said.
    """
    remedy = "--split test takes those that its training has set aside"
    if split == "test":
        remedy = (
            "its training was divided otherwise, by an earlier version or from other files: train again, or "
            "test on other images"
        )
    found = []
    for spec, name in zip(specs, names, strict=True):
        file = parse(spec).parameters
        seen = Path(file).with_name(SEEN) if file else Path()
        if file and seen.is_file():
            count = int(torch.isin(_numbers(images), _read(seen)["images"]).sum())
            if count:
                found.append(
                    f"{name} was trained on {count} of these {len(images)} images, so that its numbers are too "
                    f"high; {remedy}."
                )
    return tuple(found)


def _read(file: Path) -> Mapping[str, Tensor]:
    tensors = read_tensors(file).tensors
    if set(tensors) - {ANSWERS} != {"images"} or tensors["images"].dtype != torch.int64:
        raise ValueError(f"`{file}` must hold the numbers of images, got {', '.join(tensors)}.")
    return tensors


def _numbers(images: Tensor) -> Tensor:
    """64 bits of a hash of every image, (N,), int64."""
    pixels = images.detach().cpu().float().contiguous().numpy()
    digests = b"".join(hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in pixels)
    return torch.frombuffer(bytearray(digests), dtype=torch.int64)
