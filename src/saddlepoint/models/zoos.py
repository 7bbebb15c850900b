"""Networks of other libraries: timm, torchvision, Hugging Face transformers.

Nothing is downloaded unless its name says so. The libraries know how their networks want images prepared; that
is taken from them. No code out of a repository is run, and parameters are read from safetensors only.
"""

import difflib
import importlib
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from saddlepoint.extras import install

from .loading import fill
from .wrapping import Normalisation

__all__ = ["ZOOS", "Found", "Wanted", "from_zoo", "import_extra", "processor_file"]


class Wanted(NamedTuple):
    """What the images are like: what a network without parameters of its own is built for."""

    channels: int
    classes: int


@final
class Found(NamedTuple):
    """A network, and how it wants images prepared as far as its library knows."""

    network: Callable[..., Any]
    prepared: Normalisation | None = None
    size: int | tuple[int, int] | None = None


Tensors = Mapping[str, Tensor] | None
_EXTRAS = {
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "hf",
    "onnx2pytorch": "onnx",
}
_operators: Any = None  # a library of torch; what it defines lives as long as it does


def import_extra(name: str, user: str) -> Any:
    """A module of another library, imported when it is needed.

    Raises:
        ImportError: It is not installed; the message names the extra that has it.

    Example:
        >>> import_extra("nonesuch", "timm:x")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ImportError: timm:x needs nonesuch; install it with pip install 'saddlepoint[nonesuch]' ...
    """
    package = name.partition(".")[0]
    extra = _EXTRAS.get(package, package)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what it imports itself
            _import_torchvision()
            return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{user} needs {package}; install it with {install(extra)}; {error}",
            name=package,
        ) from error


def _import_torchvision() -> None:
    """Import torchvision, if it is there, also where its compiled operators do not fit this torch.

    Beside a CPU build of torch, torchvision as the package index has it ends in "operator torchvision::nms does
    not exist", and so do timm, transformers and onnx2pytorch. Its operators are for boxes: no classifier calls
    them, so that it is enough that they have a name.
    """
    global _operators
    for _ in range(20):
        try:
            importlib.import_module("torchvision")
        except ImportError:
            return
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            _operators = _operators or torch.library.Library("torchvision", "FRAGMENT")
            _operators.define(f"{missing[1]}(Tensor boxes) -> Tensor")
        else:
            return


def _timm(name: str, wanted: Wanted, tensors: Tensors, *, pretrained: bool) -> Found:
    timm = import_extra("timm", f"timm:{name}")
    known: dict[str, Any] = (
        dict(timm.get_pretrained_cfg(name).to_dict()) if timm.is_model(name) else {}
    )
    if not known:
        raise ValueError(
            f"`timm:NAME` must be a network of timm, such as {_near(name, timm.list_models())}, got {name!r}."
        )
    if pretrained:
        network = timm.create_model(name, pretrained=True)
    else:
        head = str(known.get("classifier"))
        classes = _classes(tensors, f"{head}.bias", f"{head}.weight") or wanted.classes
        network = _seeded(
            lambda: timm.create_model(name, num_classes=classes, in_chans=wanted.channels)
        )
    size = tuple(known["input_size"][1:]) if pretrained or known.get("fixed_input_size") else None
    numbers = tuple(known["mean"]), tuple(known["std"])
    if not pretrained and wanted.channels != len(numbers[0]):
        # Of a network for images of other channels the library has no numbers: their mean, for every channel.
        numbers = (fmean(numbers[0]),), (fmean(numbers[1]),)
    return Found(network, Normalisation(*numbers), size)


def _torchvision(name: str, wanted: Wanted, tensors: Tensors, *, pretrained: bool) -> Found:
    library = import_extra("torchvision.models", f"torchvision:{name}")
    known = library.list_models(module=library)
    if name not in known:
        raise ValueError(
            f"`torchvision:NAME` must be a classifier such as {_near(name, known)}, got {name!r}."
        )
    prepare = library.get_model_weights(name).DEFAULT.transforms()
    if pretrained:
        network = library.get_model(name, weights="DEFAULT")
    else:
        if wanted.channels != 3:
            raise ValueError(
                f"`torchvision:{name}` must be given colour images, got {wanted.channels} channel."
            )
        classes = _classes(tensors) or wanted.classes
        network = _seeded(lambda: library.get_model(name, weights=None, num_classes=classes))
    size = prepare.crop_size[0] if pretrained else None
    return Found(network, Normalisation(tuple(prepare.mean), tuple(prepare.std)), size)


def _transformers(name: str, wanted: Wanted, tensors: Tensors, *, pretrained: bool) -> Found:
    del wanted, pretrained  # a folder or repository is a network with its classes and parameters
    library = import_extra("transformers", f"hf:{name}")
    local = Path(name).expanduser().is_dir()
    if not local and (name.startswith((".", "/", "~")) or name.count("/") != 1):
        # Nothing is asked of the network for what is meant to be a folder.
        raise ValueError(
            f"`hf:FOLDER` must be a folder that exists, or `hf:OWNER/NAME` a repository, got {name!r}."
        )
    where: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    place = str(Path(name).expanduser()) if local else name
    kind = library.AutoModelForImageClassification
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.utils.logging.disable_progress_bar()
            if tensors is None:
                network = kind.from_pretrained(place, use_safetensors=True, **where)
            else:
                network = _seeded(
                    lambda: kind.from_config(library.AutoConfig.from_pretrained(place, **where))
                )
            file = processor_file(library, name)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"`hf:{name}` must hold an image classifier with parameters in safetensors, got: {reason}"
        ) from error
    finally:
        library.utils.logging.enable_progress_bar()
    # How the file was read, nothing it computes with.
    vars(network).pop("_weight_conversions", None)
    known = {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    return Found(network, _processor(name, known), _processor_size(network, known))


def processor_file(library: Any, name: str) -> str | None:
    """The configuration of the image processor of a folder or repository; None where there is none.

    Args:
        library: transformers.
        name: A folder that exists, or the name of a repository.
    """
    place = Path(name).expanduser()
    found: str | None = library.utils.cached_file(
        str(place) if place.is_dir() else name,
        "preprocessor_config.json",
        local_files_only=place.is_dir(),
        _raise_exceptions_for_missing_entries=False,
    )
    return found


def _processor(name: str, known: Mapping[str, Any]) -> Normalisation | None:
    """What an image processor of transformers subtracts and divides by, for pixels in [0, 1]."""
    if not known.get("do_normalize", False):
        return None
    if known.get("rescale_offset"):
        raise ValueError(
            f"`hf:{name}` must have an image processor that subtracts a mean, got one with rescale_offset; "
            "give --mean 0.5 --std 0.5, or what it was trained with."
        )
    # (255 x scale - mean) / std = (x - mean / (255 scale)) / (std / (255 scale))
    scale = (
        255 * float(known.get("rescale_factor", 1 / 255)) if known.get("do_rescale", True) else 255
    )
    mean, std = ([value / scale for value in known[f"image_{n}"]] for n in ("mean", "std"))
    return Normalisation(tuple(mean), tuple(std))


def _processor_size(network: nn.Module, known: Mapping[str, Any]) -> int | tuple[int, int] | None:
    """Height and width that a network of transformers takes, or was trained on; None if nobody says."""
    said: Any = getattr(network.config, "image_size", None)
    for name in ("crop_size", "size"):
        if said is None and (name != "crop_size" or known.get("do_center_crop")):
            said = known.get(name)
    if isinstance(said, Mapping):
        edge = said.get("shortest_edge")
        sides = (said.get("height", edge), said.get("width", edge))
        return None if None in sides else (int(sides[0]), int(sides[1]))
    return tuple(said) if isinstance(said, list | tuple) else said


def _near(name: str, known: Sequence[str]) -> str:
    """The names that are most like one that is not known, the nearest first."""
    return ", ".join(difflib.get_close_matches(name, known, n=5, cutoff=0.3) or known[:5])


def _classes(tensors: Tensors, *names: str) -> int | None:
    """How many logits parameters in a file are for: the length of the named, else of the last, of them."""
    if not tensors:
        return None
    found = [tensors[name] for name in names if name in tensors] or [*tensors.values()][-1:]
    return len(found[0]) if found[0].dim() else None


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A network whose random parameters are the same in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


_MAKERS: Mapping[str, Callable[..., Found]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "hf": _transformers,
}
ZOOS = tuple(_MAKERS)
"""How the libraries are called in the names of models."""


def from_zoo(
    zoo: str,
    name: str,
    wanted: Wanted,
    tensors: Tensors = None,
    *,
    pretrained: bool = False,
    file: str = "parameters",
) -> Found:
    """A network of another library, in evaluation mode.

    Args:
        zoo: "timm", "torchvision" or "hf".
        name: Of the network there; for "hf" a folder, or the name of a repository, which is downloaded.
        wanted: What a network without parameters of its own is built for.
        tensors: Parameters to load into it.
        pretrained: Download the parameters that the library has for it.
        file: Where `tensors` come from, for messages.

    Raises:
        ImportError: The library is not installed.
        ValueError: There is no such network, or the parameters are not its own.

    Warns:
        UserWarning: The network has random parameters.
    """
    found = _MAKERS[zoo](name, wanted, tensors, pretrained=pretrained)
    network = found.network
    assert isinstance(network, nn.Module)  # as all networks of libraries are
    if tensors is not None:
        fill(f"{zoo}:{name}", network, tensors, file)
    elif zoo != "hf" and not pretrained:
        warnings.warn(
            f"{zoo}:{name} has random parameters, as nothing is downloaded unless it is named: write "
            f"{zoo}:{name}+pretrained to download those of {zoo}, or FILE:{zoo}:{name} to load yours.",
            stacklevel=2,
        )
    return Found(network.eval(), found.prepared, found.size)
