"""Trained networks of the tables: those that come with a checkout, and those of the runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.stores import StoreError
from saddlepoint.files import write_atomically
from saddlepoint.models import Card

from .plan import Training

KEPT = Path("weights/defence")
"""Parameters and cards by table, in a checkout."""

_REMEDY = "take both from version control again, or remove both, so that the network is trained"


def in_runs(training: Training, runs: Path) -> Path:
    """Where its training leaves the parameters."""
    return training.folder(runs) / "train" / "model.safetensors"


def in_checkout(training: Training, stored: Mapping[str, Any], kept: Path) -> Path | None:
    """The parameters that came with a checkout; None if there are none, or not those of the store.

    A network that no suite has judged yet has its card only.

    Args:
        training: Of the network.
        stored: Networks of the store by key.
        kept: Folder of those that come with a checkout.
    """
    file, command = _place(training, kept), training.settings.command()
    if not file.is_file():
        return None
    card = from_card(file)
    about = stored.get(training.key, card)
    same = about["command"] == command and about["sha256"] == card["sha256"]
    return file if same else None


def from_card(file: Path) -> dict[str, Any]:
    """What the store keeps of a network whose training is not there: what its card says."""
    card = card_of(file)
    return {
        "command": card.command,
        "sha256": card.sha256,
        "accuracy": card.accuracy,
        "test_images": card.test_images,
        "validation": [],
        "weights": {},
        "versions": card.versions,
    }


def keep(training: Training, runs: Path, kept: Path) -> None:
    """Put a trained network where it comes with a checkout, if its table wants that."""
    if training.kept:
        file = in_runs(training, runs)
        copy(file, _place(training, kept), card_of(file))


def copy(file: Path, place: Path, card: Card) -> None:
    """Copy parameters, and write a card beside them."""
    write_atomically(place.with_suffix(".json"), card.to_json().encode())
    write_atomically(place, file.read_bytes())


def of_store(
    training: Training, stored: Mapping[str, Any], runs: Path, kept: Path
) -> tuple[Path, Card]:
    """Parameters and card of the network that the store has verdicts of.

    Raises:
        StoreError: There is another one, or none.
    """
    file = in_checkout(training, stored, kept) or in_runs(training, runs)
    if not (file.is_file() and file.with_suffix(".json").is_file()):
        raise StoreError(
            f"`runs` must have the network of {training.key}, got none in {file.parent}."
        )
    card = card_of(file)
    if card.sha256 != stored[training.key]["sha256"]:
        raise StoreError(
            f"`runs` must have the network of the store, got another one in {file.parent}."
        )
    return file, card


def _place(training: Training, kept: Path) -> Path:
    return training.folder(kept).with_suffix(".safetensors")


def card_of(file: Path) -> Card:
    """The card beside parameters.

    Raises:
        StoreError: There is none, it is damaged, or it is that of other parameters.
    """
    path = file.with_suffix(".json")
    try:
        card = Card.from_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"`{path}` must be the card of {file}, got {error}; {_REMEDY}.") from error
    except ValueError as error:
        raise StoreError(str(error)) from error
    if card.sha256 != sha256_of(file):
        raise StoreError(f"`{path}` must be the card of {file}, got that of others; {_REMEDY}.")
    return card


def sha256_of(file: Path) -> str:
    """Of the bytes of a file, as in its card."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
