"""How many images the groups of experiments need: their sizes are the paper's, whatever `limit` is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torch.nn.functional import one_hot

from saddlepoint.experiments.block_parts import load_images, skipped
from saddlepoint.experiments.plan import Block, Experiment
from saddlepoint.runs.settings import UniversalSettings

__all__ = ["check_groups", "least_images", "too_few"]

_CLASSES = 10  # of MNIST and of CIFAR-10


def least_images(block: Block) -> int:
    """How many of the first images a block needs for one row: those up to the last one of a group.

    Example:
        >>> from saddlepoint.experiments import find
        >>> [least_images(block) for block in find("universal-mnist").blocks[:4]]
        [2, 4, 5, 10]
    """
    settings = block.settings
    if not isinstance(settings, UniversalSettings):
        return 1
    size = settings.group_size
    return _of_one_class(settings.data, size) if settings.by_class else size


@cache
def _of_one_class(data: str, size: int) -> int:
    # Among so many, one class is there `size` times.
    labels = load_images(data, _CLASSES * (size - 1) + 1).y
    most = one_hot(labels, _CLASSES).cumsum(dim=0).amax(dim=1)
    return int((most < size).sum()) + 1


def too_few(experiment: Experiment, limit: int | None = None) -> dict[str, str]:
    """Blocks for which there are not enough images for one group, by key, and what they need.

    Args:
        experiment: Which one.
        limit: Images; None takes what each block says.

    Example:
        >>> from saddlepoint.experiments import find
        >>> too_few(find("universal-mnist"), 5)["a-k10"]
        'groups of 10 images need 10, got 5'
    """
    found = {}
    for block in experiment.every_block:
        there, need = experiment.images(block, limit), least_images(block)
        if there < need:
            found[block.key] = f"groups of {_group(block)} need {need}, got {there}"
    return found


def check_groups(
    experiment: Experiment, limit: int | None = None, parameters: Path | None = None
) -> None:
    """Refuse images too few for a group of some block that can run.

    Args:
        experiment: Which one.
        limit: Images; None takes what each block says.
        parameters: Folder with parameters of networks that are not shipped.

    Raises:
        ValueError: With the number that is enough for all blocks.
    """
    gone, few = skipped(experiment, parameters), too_few(experiment, limit)
    blocks = [b for b in experiment.every_block if b.key in few and b.key not in gone]
    if blocks:
        block = max(blocks, key=least_images)
        raise ValueError(
            f"`limit` must leave {_group(block)} for a group of {block.label}, got "
            f"{experiment.images(block, limit)}; take {least_images(block)} or more, or other settings."
        )


def _group(block: Block) -> str:
    """What a group of the paper is."""
    settings = block.settings
    if not isinstance(settings, UniversalSettings):
        return "1 image"
    return f"{settings.group_size} images{' of one class' if settings.by_class else ''}"
