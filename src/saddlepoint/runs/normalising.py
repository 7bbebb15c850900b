"""How models of the user's own want images: by --mean and --std, or by the card beside their parameters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from saddlepoint.models import ARCHITECTURES, NORMALISATIONS, Card
from saddlepoint.models.wrapping import Normalisation, normalisation
from saddlepoint.runs import texts
from saddlepoint.runs.model_words import ModelWord

__all__ = [
    "OWN",
    "card_of",
    "check_files",
    "normalises_inside",
    "preparations",
    "told_by_card",
]

_FILES = ("program", "onnxruntime")  # kinds of models that are named by a file

OWN = "own"
"""In place of a mean: what the library or the card of the model says, or nothing."""


def preparations(
    words: Sequence[ModelWord], mean: str | None, std: str | None, victims: int = 0
) -> list[Normalisation | None]:
    """What --mean and --std say for each model; None where they say nothing.

    One of them is for all models. For each its own: names separated by commas, or numbers by semicolons.

    Args:
        words: The models.
        mean: A name, numbers separated by commas, or several of them.
        std: Numbers separated by commas, or several of them.
        victims: So many of the models are those of --victims.

    Raises:
        ValueError: No such name, numbers that do not fit, or another number of them than of models.

    Example:
        >>> from saddlepoint.runs.model_words import parse
        >>> words = [parse("timm:resnet18"), parse("small.onnx")]
        >>> preparations(words, "own,mnist", None)
        [None, Normalisation(mean=(0.1307,), std=(0.3081,))]
    """
    given = {"--mean": mean, "--std": std}
    means, stds = (_each(flag, text, len(words), victims) for flag, text in given.items())
    found = [_one(*pair) for pair in zip(means, stds, strict=True)]
    inside = [word for word in words if normalises_inside(word)]
    if any(found) and len(inside) == len(words):
        names = ", ".join(f"{word}" for word in inside)
        raise ValueError(
            f"`--mean` must be left out for {names}: networks of the package normalise inside."
        )
    return found


def normalises_inside(word: ModelWord) -> bool:
    """Whether a model takes images in [0, 1] as they are, because it is a network of the package."""
    return word.kind in ("shipped", "card", "architecture")


def check_files(word: ModelWord) -> None:
    """Refuse, before anything is loaded, files that are not there or do not say what they are for.

    Raises:
        ValueError: A file is missing; or of parameters nobody says which network they are for: there is no card
            beside them, or the card names the user's code, which he has to name himself.
    """
    for file in filter(None, (word.parameters, word.name if word.kind in _FILES else "")):
        if not Path(file).is_file():
            raise ValueError(f"`--models` must name a file that exists, got {file!r}.")
    if word.kind != "card":
        return
    file, known = word.parameters, card_of(Path(word.parameters))
    if known is None:
        raise ValueError(
            f"`--models` {file} must name the network that the parameters are for: {file}:nets.py:factory "
            f"(your code), {file}:timm:NAME, or {file}:A (an architecture of the package), got the file alone."
        )
    if known.architecture not in ARCHITECTURES:
        raise ValueError(
            f"`--models` {file} must name the network that the parameters are for, which by the card beside it "
            f"is {file}:{known.architecture}, got the file alone."
        )


def told_by_card(word: ModelWord) -> tuple[str | None, str | None]:
    """Mean and std, as they were written, that the card beside the parameters of a model tells."""
    known = card_of(Path(word.parameters)) if word.parameters else None
    return (None, None) if known is None else (known.mean, known.std)


def card_of(parameters: Path) -> Card | None:
    """The card beside a file of parameters, as `saddlepoint train` writes it; None where there is none.

    Raises:
        ValueError: It is the card of other parameters, or damaged; a normalisation is not guessed.
    """
    beside = parameters.with_suffix(".json")
    if parameters.suffix != ".safetensors" or not beside.is_file():
        return None
    text = beside.read_bytes().decode("utf-8", errors="replace")
    if _of_somebody_else(text):
        return None
    found = Card.from_json(text, str(beside))
    if hashlib.sha256(parameters.read_bytes()).hexdigest() != found.sha256:
        raise ValueError(
            f"`{beside}` must be the card of {parameters}, got that of parameters with another SHA-256; "
            "take it away if it belongs to others."
        )
    return found


def _of_somebody_else(text: str) -> bool:
    """Whether a file is JSON without any field of a card."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return False
    known = {field.name for field in fields(Card)}
    return not isinstance(values, dict) or known.isdisjoint(values)


def _each(flag: str, text: str | None, count: int, victims: int) -> list[str | None]:
    """One word for every model."""
    if text is None or text.strip() == OWN:
        return [None] * count
    parts = [part.strip() for part in text.split(";")]
    named = texts.split(text)
    if len(parts) == 1 and not any(part[:1].isdigit() or part[:1] in "-." for part in named):
        parts = named  # names, which have no commas inside
    if len(parts) == 1:
        return [parts[0]] * count
    if len(parts) != count:
        of = " with --victims" if victims else ""
        raise ValueError(
            f"`{flag}` must have one entry for all models or one for each, {count}{of}, got "
            f"{len(parts)}: {text}."
        )
    return [None if part == OWN else part for part in parts]


def _one(mean: str | None, std: str | None) -> Normalisation | None:
    try:
        means = mean if mean is None or mean in NORMALISATIONS else _numbers(mean)
        stds = None if std is None else [texts.number(part, "--std") for part in texts.split(std)]
        return normalisation(means, stds)
    except (TypeError, ValueError) as error:
        raise ValueError(texts.renamed(str(error), {"mean": "--mean", "std": "--std"})) from error


def _numbers(mean: str) -> list[float]:
    if any(part[:1].isalpha() for part in texts.split(mean)):
        raise ValueError(
            f"`--mean` must be numbers or one of {', '.join(NORMALISATIONS)}, {OWN}, got {mean!r}."
        )
    return [texts.number(part, "--mean") for part in texts.split(mean)]
