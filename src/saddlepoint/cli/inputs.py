"""Models and data as the user names them: shipped ones by name, the user's own from files and code."""

import importlib
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from .errors import UsageError, one_line, usage

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from saddlepoint.problems import Model

__all__ = ["Images", "load_data", "load_model", "load_models", "short_name"]

_IMAGE_SUFFIXES = {
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".gif",
    ".webp",
    ".pgm",
    ".ppm",
    ".tif",
    ".tiff",
}
_MODEL_SUFFIXES = (".safetensors", ".pt", ".pth", ".pt2", ".ts", ".torchscript")
_CIFAR10 = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
_FASHION = "T-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
_CLASSES = {"cifar10": _CIFAR10.split(","), "fashion-mnist": _FASHION.split(",")}


@final
@dataclass(frozen=True)
class Images:
    """Images with labels.

    Attributes:
        x: (N, C, H, W), float32 in [0, 1].
        y: (N,), int64.
        classes: Names of the classes.
        family: The data set whose networks are meant by A, B, ...; empty for the user's own data.
    """

    x: "Tensor"
    y: "Tensor"
    classes: tuple[str, ...]
    family: str


def load_data(
    spec: str,
    split: str = "test",
    limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Images:
    """Images by name, from a folder with one folder per class, or from an .npz file.

    Args:
        spec: A name such as "mnist" or "mnist-sample", "folder/", or "file.npz".
        split: "test" or "train", for named data.
        limit: Keep the first so many; of a folder, spread over the classes.
        progress: Of downloads, as in `saddlepoint.data.load`.
    """
    from saddlepoint import data

    if spec in data.NAMES:
        with usage():
            x, y = data.load(spec, split, limit, progress=progress)
        family = spec.removesuffix("-sample")
        names = _CLASSES.get(family) or [str(k) for k in range(10)]
        return Images(x, y, tuple(names), family)
    path = Path(spec)
    if path.suffix == ".npz":
        return _from_npz(path, limit)
    if path.is_dir():
        return _from_folder(path, limit)
    raise UsageError(
        f"`--data` must be one of {', '.join(data.NAMES)}, a folder with one folder per class, "
        f"or an .npz file, got {spec!r}."
    )


def load_models(specs: Sequence[str], images: Images) -> "dict[str, Model]":
    """Models by name, in order; a name that comes twice gets a number."""
    models: dict[str, Model] = {}
    for spec in specs:
        name = short_name(spec)
        if name in models:
            name = f"{name} ({sum(key.startswith(name) for key in models) + 1})"
        models[name] = load_model(spec, images)
    return models


def load_model(spec: str, images: Images) -> "Model":
    """One model.

    Args:
        spec: "A" (of the data set at hand), "mnist-a", "file.safetensors:A", "program.pt2", or
            "package.module:factory", whose code is imported and called because the user wrote it.
        images: What the model is for.
    """
    from saddlepoint import models

    if spec in models.shipped():
        return _shipped(spec)
    if len(spec) == 1 and spec.isalpha():
        return _letter(spec, images)
    path, _, architecture = spec.partition(":")
    if Path(path).suffix in _MODEL_SUFFIXES:
        if not Path(path).is_file():
            raise UsageError(f"`--models` must name a file that exists, got {path!r}.")
        shape = {"channels": images.x.shape[1], "size": images.x.shape[2]} if architecture else {}
        with usage():
            return models.load(path, architecture=architecture or None, **shape)
    if architecture and all(part.isidentifier() for part in path.split(".")):
        return _from_code(path, architecture)
    raise UsageError(
        f"`--models` must be letters of shipped networks, one of {', '.join(models.shipped())}, "
        f"weights.safetensors:ARCHITECTURE, program.pt2, or package.module:factory, got {spec!r}."
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


def _letter(letter: str, images: Images) -> "Model":
    from saddlepoint import models

    name = f"{images.family}-{letter.lower()}"
    if images.family and name in models.shipped():
        return _shipped(name)
    own = [n for n in models.shipped() if images.family and n.startswith(f"{images.family}-")]
    what = ", ".join(n.rpartition("-")[2].upper() for n in own) or "the name of a file"
    where = f"--data {images.family}" if images.family else "your own data"
    raise UsageError(f"`--models` must be, for {where}, {what}, got {letter!r}.")


def _shipped(name: str) -> "Model":
    import torch

    from saddlepoint import models

    with usage():
        # A fifth faster for convolutions on a CPU.
        model: Model = models.load(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _from_code(module: str, factory: str) -> "Model":
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        make: object = importlib.import_module(module)
        for part in factory.split("."):
            make = getattr(make, part)
        model = make() if callable(make) and not _is_module(make) else make
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(
            f"`--models` {module}:{factory} must be importable and callable without arguments, "
            f"got {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not callable(model):
        raise UsageError(
            f"`--models` {module}:{factory} must give a model, got {type(model).__name__}."
        )
    found: Model = model
    return found


def _is_module(value: object) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)


def _from_npz(path: Path, limit: int | None) -> Images:
    import numpy as np

    if not path.is_file():
        raise UsageError(f"`--data` must be a file that exists, got {str(path)!r}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"`--data` {path} must be an .npz file, got {one_line(error)}") from error
    images = next((arrays[key] for key in ("images", "x", "x_test") if key in arrays), None)
    labels = next((arrays[key] for key in ("labels", "y", "y_test") if key in arrays), None)
    if images is None or labels is None:
        raise UsageError(
            f"`--data` {path} must hold arrays `images` and `labels`, got {', '.join(arrays) or 'none'}."
        )
    x, y = _tensors(str(path), images, labels, limit)
    top = int(y.max()) + 1
    names = [str(name) for name in arrays.get("classes", np.arange(top)).tolist()]
    return Images(x, y, tuple(names + [str(k) for k in range(len(names), top)]), "")


def _tensors(
    name: str, images: "np.ndarray[Any, Any]", labels: "np.ndarray[Any, Any]", limit: int | None
) -> "tuple[Tensor, Tensor]":
    """(N, H, W), (N, H, W, C) or (N, C, H, W) to the form of the library."""
    import torch

    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or len(labels) == 0:
        raise UsageError(
            f"`--data` {name} must have one integer label per image, got images {images.shape} and "
            f"labels {labels.shape} of type {labels.dtype}."
        )
    x, y = torch.from_numpy(images[:limit].copy()), torch.from_numpy(labels[:limit].astype("int64"))
    if x.dim() == 3:
        x = x.unsqueeze(1)
    elif x.dim() == 4 and x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
        x = x.permute(0, 3, 1, 2)
    x = x.float().div(255) if not x.is_floating_point() else x.float()
    if x.dim() != 4 or not bool(((x >= 0) & (x <= 1)).all()):
        raise UsageError(
            f"`--data` {name} must hold images (N, C, H, W), 8-bit or in [0, 1], got shape "
            f"{tuple(images.shape)} with values from {images.min()} to {images.max()}."
        )
    return x.contiguous(), y


def _from_folder(path: Path, limit: int | None) -> Images:
    import numpy as np
    from PIL import Image

    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    by_class = [_image_files(folder) for folder in folders]
    chosen = _spread(by_class, limit)
    if not chosen:
        raise UsageError(
            f"`--data` {path} must hold one folder of images per class, got {len(folders)} folders "
            "and no image."
        )
    arrays, labels, modes = [], [], set()
    for label, file in chosen:
        try:
            with Image.open(file) as image:
                grey = image.mode in ("1", "L", "LA", "I", "I;16", "F")
                modes.add(grey)
                arrays.append(np.asarray(image.convert("L" if grey else "RGB")))
        except OSError as error:
            raise UsageError(f"`--data` {file} must be an image, got {one_line(error)}") from error
        labels.append(label)
    if len(modes) > 1:
        arrays = [a if a.ndim == 3 else np.repeat(a[..., None], 3, axis=2) for a in arrays]
    sizes = {a.shape for a in arrays}
    if len(sizes) > 1:
        shown = ", ".join(f"{s[1]}x{s[0]}" for s in sorted(sizes)[:3])
        raise UsageError(
            f"`--data` {path} must hold images of one size, got {shown}; resize them first."
        )
    x, y = _tensors(str(path), np.stack(arrays), np.array(labels), None)
    return Images(x, y, tuple(folder.name for folder in folders), "")


def _image_files(folder: Path) -> list[Path]:
    return sorted(
        f for f in folder.rglob("*") if f.suffix.lower() in _IMAGE_SUFFIXES and f.is_file()
    )


def _spread(by_class: Sequence[Sequence[Path]], limit: int | None) -> list[tuple[int, Path]]:
    """All files with their labels, or the first `limit` taking one class after the other in turn."""
    if limit is None:
        return [(label, file) for label, files in enumerate(by_class) for file in files]
    longest = max((len(files) for files in by_class), default=0)
    turns = [
        (label, files[turn])
        for turn in range(longest)
        for label, files in enumerate(by_class)
        if turn < len(files)
    ]
    return sorted(turns[:limit])
