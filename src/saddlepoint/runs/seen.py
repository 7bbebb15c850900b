"""Which images a network was trained on, kept beside its parameters, so that nobody tests on them unawares."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from saddlepoint.files import read_tensors, write_tensors
from saddlepoint.runs.model_words import parse

__all__ = ["SEEN", "doubts", "keep_seen"]

SEEN = "seen.safetensors"
"""The file of a training with one number per image that it used."""


def keep_seen(folder: Path, parts: Sequence[Tensor]) -> None:
    """Write which images a training used, to train and to choose the epoch.

    Args:
        folder: Of the training.
        parts: Images, (N, C, H, W) each.
    """
    numbers = torch.cat([_numbers(images) for images in parts])
    write_tensors(folder / SEEN, {"images": numbers})


def doubts(specs: Sequence[str], names: Sequence[str], images: Tensor) -> tuple[str, ...]:
    """What has to be said of models that were trained on some of the images they are tested on.

    Args:
        specs: The models as settings name them.
        names: What they are called.
        images: To be tested on, (N, C, H, W).
    """
    found = []
    for spec, name in zip(specs, names, strict=True):
        file = parse(spec).parameters
        seen = Path(file).with_name(SEEN) if file else Path()
        if file and seen.is_file():
            count = int(torch.isin(_numbers(images), _read(seen)["images"]).sum())
            if count:
                found.append(
                    f"{name} was trained on {count} of these {len(images)} images, so that its numbers are too "
                    "high; --split test takes those that its training has set aside."
                )
    return tuple(found)


def _read(file: Path) -> Mapping[str, Tensor]:
    tensors = read_tensors(file).tensors
    if set(tensors) != {"images"} or tensors["images"].dtype != torch.int64:
        raise ValueError(f"`{file}` must hold the numbers of images, got {', '.join(tensors)}.")
    return tensors


def _numbers(images: Tensor) -> Tensor:
    """64 bits of a hash of every image, (N,), int64."""
    pixels = images.detach().cpu().float().contiguous().numpy()
    digests = b"".join(hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in pixels)
    return torch.frombuffer(bytearray(digests), dtype=torch.int64)
