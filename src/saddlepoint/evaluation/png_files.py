"""Images as PNG files in a folder per class, read back, and what is told of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from saddlepoint.data.classes import CLASSES
from saddlepoint.data.pixels import encode_png, read_picture, unit
from saddlepoint.files import write_atomically
from saddlepoint.problems import AbstractProblem

__all__ = ["LEVELS", "all_or_nothing", "check_read_back", "verdicts_of", "write_pngs"]

LEVELS = 256
"""Of a pixel in 8 bits."""


@contextmanager
def all_or_nothing(folder: Path) -> Iterator[None]:
    """Take images out of a new or empty folder again if not all of them are written, and say so."""
    new = not folder.exists()
    try:
        yield
    except BaseException as error:
        images = list(folder.glob("*/*.png"))
        for path in (*images, folder / CLASSES):
            path.unlink(missing_ok=True)
        for own in (*folder.glob("*/"), *([folder] if new else [])):
            with suppress(OSError):  # it holds something else, or is not there
                own.rmdir()
        if images:
            error.add_note(
                f"nothing was saved: {len(images)} images that were written before this are removed again."
            )
        raise


def write_pngs(
    folder: Path, images: Tensor, labels: Tensor, rows: Tensor, names: Sequence[str]
) -> tuple[tuple[Path, ...], ...]:
    """Files of images (B, n, C, H, W), in a folder per label, named as given."""
    pixels = (images * (LEVELS - 1)).round().to(torch.uint8).cpu()
    files = []
    for row, number in enumerate(rows.tolist()):
        own = []
        for place, image in enumerate(pixels[row]):
            name = f"{number:05}" + (f"-{place + 1}" if len(pixels[row]) > 1 else "") + ".png"
            path = folder / names[int(labels[row, place])] / name
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, encode_png(image))
            own.append(path)
        files.append(tuple(own))
    return tuple(files)


def check_read_back(files: tuple[tuple[Path, ...], ...], images: Tensor) -> None:
    """What is in the files is what the models are asked about, to the last bit that 8 bits hold."""
    for own, row in zip(files, images.cpu(), strict=True):
        for path, image in zip(own, row, strict=True):
            read = unit(read_picture(path))
            if read.shape != image.shape or float((read - image).abs().max()) > 1e-6:
                raise OSError(f"`{path}` must hold what was written, got other pixels read back.")


def verdicts_of(
    problem: AbstractProblem,
    folder: Path,
    files: tuple[tuple[Path, ...], ...],
    says: Tensor,
    fooled: Tensor,
    first: Tensor,
    distance: Tensor,
    outside: Tensor,
) -> list[dict[str, object]]:
    """What became of every row, for a file."""
    return [
        {
            "row": int(problem.rows[row]),
            "files": [path.relative_to(folder).as_posix() for path in own],
            "labels": problem.truth[row].tolist(),
            "says": dict(zip(problem.names, says[row].tolist(), strict=True)),
            "fooled": dict(zip(problem.names, fooled[row].tolist(), strict=True)),
            "fooled_unperturbed": dict(zip(problem.names, first[row].tolist(), strict=True)),
            "distance": float(f"{distance[row].item():.6g}"),
            "outside": bool(outside[row]),
        }
        for row, own in enumerate(files)
    ]
