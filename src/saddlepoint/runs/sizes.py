"""The size that pictures are brought to where none is given: the one that the models were made for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from saddlepoint import models as networks
from saddlepoint.data.image_files import files_of, sides_of
from saddlepoint.models.framing import Framing, zoo_framing
from saddlepoint.models.zoos import ZOOS
from saddlepoint.runs.materials import listed_classes
from saddlepoint.runs.model_words import ModelWord, parse
from saddlepoint.runs.normalising import card_of, check_files
from saddlepoint.runs.settings import AttackSettings, EvaluateSettings, TrainSettings

__all__ = ["default_framing", "framed", "framing_of", "with_size"]

S = TypeVar("S", AttackSettings, EvaluateSettings, TrainSettings)


def with_size(settings: S) -> S:
    """Settings with the size that the models want, where none is given and pictures need one."""
    if settings.size is not None:
        return settings
    words: Sequence[str]
    limit, split = settings.limit, None
    if isinstance(settings, TrainSettings):  # whose images are of both parts
        words, limit = [] if settings.model.isidentifier() else [settings.model], None
    else:
        words, split = settings.models, settings.split
    if isinstance(settings, AttackSettings):
        words = [*words, *settings.victims]
    size, crop = framed(
        words, settings.data, settings.classes, limit, None, settings.crop, split=split
    )
    return settings.model_copy(update={"size": size, "crop": crop})


def framed(
    words: Sequence[str],
    data: str,
    classes: str | None,
    limit: int | None,
    size: int | None,
    crop: float,
    *,
    split: str | None = None,
) -> tuple[int | None, float]:
    """Size and crop: those that are given, else those that the models want, see `default_framing`.

    Raises:
        ValueError: There is a crop without a size.
    """
    found = default_framing(words, data, classes, limit, split) if size is None else None
    if found is not None:
        return found.size, found.crop if crop == 1 else crop
    if size is None and crop != 1:
        raise ValueError(f"`--crop` must be given with --size, got {crop} alone.")
    return size, crop


def default_framing(
    words: Sequence[str],
    data: str,
    classes: str | None = None,
    limit: int | None = None,
    split: str | None = None,
) -> Framing | None:
    """What the pictures of a folder are brought to for models; None where they can stay as they are.

    They stay if they are all of one size that is no larger than the largest that a model wants, or if nobody
    knows what the models want. Other data has a size of its own.

    Args:
        words: The models. Of several sizes the largest is taken; models of others resize by themselves.
        data: As `--data` says it.
        classes: As `--classes` says it.
        limit: So many pictures are looked at.
        split: Of this part of them; None for all.
    """
    if not Path(data).is_dir():
        return None
    known = [framing_of(parse(word)) for word in words]
    found = max((each for each in known if each is not None), default=None)
    if found is None:
        return None
    try:
        sides = sides_of(files_of(data, listed_classes(classes), limit=limit, split=split))
    except (OSError, ValueError):  # said better where they are read
        return None
    return None if len(sides) == 1 and max(max(sides)) <= found.size else found


def framing_of(word: ModelWord) -> Framing | None:
    """What a model was made for, as its card or its library says; None where neither does.

    Example:
        >>> framing_of(parse("mnist-b")), framing_of(parse("nets.py:small"))
        (Framing(size=28, crop=1.0), None)
    """
    check_files(word)
    if word.parameters and (card := card_of(Path(word.parameters))) is not None:
        return Framing(card.size)
    if word.kind == "shipped":
        return Framing(networks.card(word.name).size) if word.name in networks.shipped() else None
    return zoo_framing(word.kind, word.name) if word.kind in ZOOS else None
