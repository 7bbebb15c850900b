"""The part of a picture that a network was made for, as its library or its card says."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .zoos import import_extra, processor_file

__all__ = ["Framing", "zoo_framing"]


class Framing(NamedTuple):
    """How pictures are brought to a size: the shorter side to size / crop, of which the centre is kept.

    Example:
        >>> Framing(224, crop=0.875).size
        224
    """

    size: int
    crop: float = 1.0


def zoo_framing(zoo: str, name: str) -> Framing | None:
    """What a network of another library is usually given; None where nobody says, or what is no square.

    Nothing is built. Of a repository of Hugging Face its configuration is downloaded, as it was named.

    Args:
        zoo: "timm", "torchvision" or "hf".
        name: Of the network there.

    Raises:
        ImportError: The library is not installed.
    """
    if zoo == "timm":
        timm = import_extra("timm", f"timm:{name}")
        known = timm.get_pretrained_cfg(name).to_dict() if timm.is_model(name) else {}
        return _square(known.get("input_size", ())[1:], known.get("crop_pct"))
    if zoo == "torchvision":
        library = import_extra("torchvision.models", f"torchvision:{name}")
        if name not in library.list_models(module=library):
            return None
        prepare = library.get_model_weights(name).DEFAULT.transforms()
        (edge,) = prepare.resize_size
        return _square(prepare.crop_size * 2, prepare.crop_size[0] / edge)
    library = import_extra("transformers", f"hf:{name}")
    try:
        file = processor_file(library, name)
        known = {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # said better where the network is loaded
        return None
    return _processor_framing(known) if isinstance(known, dict) else None


def _processor_framing(known: Mapping[str, Any]) -> Framing | None:
    """What an image processor of transformers keeps; of one that distorts pictures the centre is kept here."""
    size = _sides(known.get("size"))
    if known.get("do_center_crop") and (cut := _sides(known.get("crop_size"))):
        return _square(cut, min(1.0, cut[0] / size[0]) if size else None)
    return _square(size, known.get("crop_pct"))


def _sides(said: Any) -> tuple[int, ...]:
    """Height and width, as image processors write them."""
    if isinstance(said, Mapping):
        edge = said.get("shortest_edge")
        said = (said.get("height", edge), said.get("width", edge))
    found = (said, said) if isinstance(said, int) else said
    plain = isinstance(found, tuple | list) and all(type(side) is int for side in found)
    return tuple(found) if plain else ()


def _square(sides: Any, crop: Any) -> Framing | None:
    sides = tuple(sides or ())
    if len(sides) != 2 or sides[0] != sides[1] or sides[0] < 1:
        return None
    share = float(crop) if isinstance(crop, int | float) and 0 < crop <= 1 else 1.0
    return Framing(int(sides[0]), share if math.isfinite(share) else 1.0)
