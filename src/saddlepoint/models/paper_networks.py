"""The networks of the paper by name, such as cifar10-e, and whether a card is of the one that is named."""

from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from .cards import Card

__all__ = ["PAPER_NETWORKS", "PaperNetwork", "check_name"]

_UNSHIFTED = "_unshifted"


class PaperNetwork(NamedTuple):
    """What a network is trained on, and what `build` calls it."""

    data: str
    architecture: str


def _networks() -> Mapping[str, PaperNetwork]:
    found = {}
    for data, letters in (("mnist", "ABCD"), ("cifar10", "ABCDEFGH")):
        for letter in letters:
            found[f"{data}-{letter.lower()}"] = PaperNetwork(data, letter)
        for letter in "ABCD":
            found[f"{data}-paper-{letter.lower()}"] = PaperNetwork(data, letter + _UNSHIFTED)
    return MappingProxyType(found)


PAPER_NETWORKS = _networks()
"""The networks of the paper; those by its recipe are without a shift of their images.

Example:
    >>> PAPER_NETWORKS["mnist-paper-a"]
    PaperNetwork(data='mnist', architecture='A_unshifted')
"""


def check_name(name: str, card: Card, file: Traversable | Path, place: str) -> None:
    """Refuse a network under the name of one of the paper whose card says that it is another one.

    Args:
        name: What its file is called.
        card: What is known of it.
        file: Of the card.
        place: What complaints call the folder.

    Raises:
        ValueError: It is another architecture, or trained on other data.
    """
    meant = PAPER_NETWORKS.get(name)
    if meant is None:
        return
    # With and without the shift it is the same network, and the card says which one is computed.
    plain = [each.removesuffix(_UNSHIFTED) for each in (card.architecture, meant.architecture)]
    if plain[0] != plain[1] or card.data.removesuffix("-sample") != meant.data:
        raise ValueError(
            f"`{place}` must have network {meant.architecture} for {meant.data} as {name}.safetensors, got "
            f"{card.architecture} for {card.data} in the card `{file}`; name both files after the "
            "network that they are of."
        )
