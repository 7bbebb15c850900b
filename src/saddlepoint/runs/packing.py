"""Networks of trainings kept with fewer bits, under a name of their own and with a card that was measured.

Everything is checked and measured before the first file is written.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

from safetensors.torch import load_file, save
from torch import Tensor

from saddlepoint import data, models
from saddlepoint.files import write_atomically
from saddlepoint.models.loading import fill, inside
from saddlepoint.models.packed import pack, unpack
from saddlepoint.runs.materials import load_images
from saddlepoint.runs.model_words import CARD, NETWORK
from saddlepoint.runs.record import RECORD

__all__ = ["PackedNetwork", "images_of_card", "pack_network"]

_ANOTHER = "choose another name or --out"


@final
@dataclass(frozen=True)
class PackedNetwork:
    """A network that was kept with fewer bits.

    Attributes:
        file: Of its parameters; the card is beside it.
        card: As it was written.
        before: Percent of the same images that the network of the training has right.
    """

    file: Path
    card: models.Card
    before: float


def pack_network(
    folder: Path,
    name: str,
    out: Path,
    bits: Literal[8, 16],
    *,
    limit: int | None = None,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> PackedNetwork:
    """Keep the network of a training with fewer bits per entry, and beside it the card of what is kept.

    Args:
        folder: Of the training, with model.safetensors and model.json.
        name: Of the new network.
        out: Folder for its two files.
        bits: Per entry, see `saddlepoint.models.packed.pack`.
        limit: Measure on the first so many test images; None is all.
        overwrite: Replace a network with a card that is there.
        progress: Of downloads, as in `saddlepoint.data.load`.

    Raises:
        ValueError: The folder is not that of a training on known data, files are in the way, or the name or the
            limit is none. Nothing has been written then.
    """
    old = folder / NETWORK
    if not old.is_file() or not old.with_suffix(".json").is_file():
        raise ValueError(f"`RUN` must hold {NETWORK} and {CARD}, got {str(folder)!r}.")
    if re.fullmatch(r"[\w+-][\w.+-]*", name) is None:
        raise ValueError(f"`NAME` must be of letters, digits, and . _ + -, got {name!r}.")
    if name in inside():
        raise ValueError(
            f"`NAME` must be none of a network inside the package, which goes first, got {name!r}; choose "
            "another name."
        )
    new = out / f"{name}.safetensors"
    _check_replaceable(old, new, overwrite=overwrite)
    card = models.Card.from_json(old.with_suffix(".json").read_text(encoding="utf-8"), str(old))
    _check_data(card, "RUN", f"; it can be used as it is, --models {old}")
    network = models.channels_last(models.load(old))  # refuses what is damaged
    x, y = images_of_card(card, "RUN", limit, progress)
    before = models.measure(network, x, y, eps=card.fgsm_eps)
    packed = pack(load_file(old), bits)
    fill(name, network, unpack(packed))
    found = models.measure(network, x, y, eps=card.fgsm_eps)
    content = save(packed)
    kept = replace(
        card,
        accuracy=round(100 * found.clean, 2),
        fgsm_accuracy=round(100 * found.fgsm, 2),
        test_images=len(y),
        sha256=hashlib.sha256(content).hexdigest(),
        robust=None,  # was judged before
    )
    write_atomically(new, content)
    write_atomically(new.with_suffix(".json"), kept.to_json().encode())
    return PackedNetwork(new, kept, 100 * before.clean)


def images_of_card(
    card: models.Card,
    whose: str,
    limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """The test images that the numbers of a card are about, of embedded samples those that training sets aside.

    Others may have written the card: only data that is known by name is loaded, no file and no code.

    Args:
        card: Of a network.
        whose: What complaints call the network.
        limit: The first so many; None is all.
        progress: Of downloads, as in `saddlepoint.data.load`.

    Raises:
        ValueError: The card names other data, the limit is not positive, or the network is for images of
            another shape.
    """
    _check_data(card, whose)
    if limit is not None and limit < 1:
        raise ValueError(f"`--limit` must be positive, got {limit}.")
    images = load_images(card.data, "test", limit, progress)
    shape = (card.channels, card.size, card.size)
    if images.x.shape[1:] != shape:
        raise ValueError(
            f"`{card.data}` must have images of the shape that the network takes, {shape}, got "
            f"{tuple(images.x.shape[1:])}: it was trained with another --size."
        )
    return images.x, images.y


def _check_data(card: models.Card, whose: str, remedy: str = "") -> None:
    """Refuse data that is not known by its name, such as a path, or code that would be imported."""
    if card.data not in data.NAMES:
        raise ValueError(
            f"`{whose}` must be a training on one of {', '.join(data.NAMES)}, which networks are measured "
            f"on by their names, got one on {card.data}{remedy}."
        )


def _check_replaceable(old: Path, new: Path, *, overwrite: bool) -> None:
    """Refuse to write over trainings, over what has no card, and over anything without being asked."""
    beside = new.with_suffix(".json")
    if new.resolve() == old.resolve():
        raise ValueError(
            f"`{new}` must not be there yet, got the network of the training itself; {_ANOTHER}."
        )
    if (new.parent / RECORD).exists() or beside.name == RECORD:
        raise ValueError(
            f"`--out` must not be the folder of a run, got {str(new.parent)!r}; {_ANOTHER}."
        )
    there = [path for path in (new, beside) if os.path.lexists(path)]
    if not there:
        return
    place = f"`{there[0]}` must not be there yet"
    if not overwrite:
        raise ValueError(f"{place}; add --overwrite to replace it, or {_ANOTHER}.")
    try:
        known = models.Card.from_json(beside.read_text(encoding="utf-8"))
        content = new.read_bytes()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{place}, got files that are no network with a card; {_ANOTHER}."
        ) from error
    if hashlib.sha256(content).hexdigest() != known.sha256:
        raise ValueError(f"{place}, got a network with the card of another; {_ANOTHER}.")
