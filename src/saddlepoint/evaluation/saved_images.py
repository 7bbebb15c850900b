"""Adversarial images as 8-bit PNG files, and what the models say of them when they are read back."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from saddlepoint.data.classes import CLASSES
from saddlepoint.data.pixels import encode_png, read_picture, unit
from saddlepoint.evaluation.origins import Origin
from saddlepoint.evaluation.shifts import difference_of, distances, forbidden
from saddlepoint.extras import install
from saddlepoint.files import write_atomically
from saddlepoint.losses import fooled as is_fooled
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import AbstractSet, LpBall
from saddlepoint.solver import AttackResult
from saddlepoint.solver.grid import Grid
from saddlepoint.solver.result import asked_of
from saddlepoint.streams import JUDGE

__all__ = [
    "LEVELS",
    "VERDICTS",
    "SavedImages",
    "check_folder",
    "save_images",
    "save_nearest",
    "save_perturbed",
]

VERDICTS = "verdicts.json"
"""The file beside the images that says what became of each."""

LEVELS = 256
"""Of a pixel in 8 bits."""

_ROWS = 256  # at a time, where nothing is differentiated
_LONGER = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
_ROUNDING = 1e-4  # of the radius, as the judge of evaluations allows


@final
@dataclass(frozen=True)
class SavedImages:
    """What was saved, and what is left of it.

    Attributes:
        folder: Where the files are.
        files: Of every row, one path, or one per domain where domains are images.
        before: Domains fooled before the images were rounded to 8 bits, (B, K), boolean.
        fooled: Domains fooled by what was read back, inside the ball, (B, K), boolean.
        outside: Rows that rounding has moved out of the ball, (B,), boolean.

    Example:
        >>> import tempfile
        >>> import saddlepoint as sp
        >>> x, y = torch.tensor([[[[0.2, 0.6]]]]), torch.tensor([1])
        >>> problem = sp.Ensemble([torch.nn.Flatten().eval()], x, y)
        >>> result = sp.attack(problem, sp.linf(0.3), steps=5, quantize=256)
        >>> saved = sp.save_images(result, tempfile.mkdtemp())
        >>> saved.fooled, saved.outside, len(saved.files)
        (tensor([[True]]), tensor([False]), 1)
    """

    folder: Path
    files: tuple[tuple[Path, ...], ...]
    before: Tensor
    fooled: Tensor
    outside: Tensor

    def __repr__(self) -> str:
        """What matters, in one line."""
        rows, images = len(self.files), sum(map(len, self.files))
        now, before = (int(table.all(dim=1).sum()) for table in (self.fooled, self.before))
        domains = self.fooled.shape[1]
        whom = "the domain" if domains == 1 else f"all {domains} domains"
        return (
            f"SavedImages({images} images in {str(self.folder)!r}: {now} of {rows} rows fool {whom} "
            f"when read back, {before} did before)"
        )


def save_images(
    result: AttackResult, folder: str | os.PathLike[str], *, classes: Sequence[str] = ()
) -> SavedImages:
    """Save the adversarial images of an attack as 8-bit PNG, read them back, and ask the models again.

    There is one folder per class, named by it or by its number, with a file per row (and place in its group),
    and `classes.txt`, so that `sp.data.folder` and `--data` can read them; `verdicts.json` says what every
    domain makes of each. Attack with `quantize=256` and nothing is lost.

    Args:
        result: Of `attack` or `apgda`.
        folder: A new or empty folder.
        classes: Names of the classes; numbers if there are none.

    Raises:
        ValueError: The folder holds something, these are no images, or the result does not know what was asked.
        ImportError: pillow is not installed.

    Warns:
        UserWarning: Rows fool fewer domains than before, or have left the ball: 8 bits were too few.

    Example:
        >>> import tempfile
        >>> from saddlepoint import Ensemble, attack, data, linf, models
        >>> problem = Ensemble([models.load("mnist-a")], *data.sample("mnist", 2))
        >>> result = attack(problem, linf(0.2), steps=5, quantize=256)
        >>> saved = save_images(result, tempfile.mkdtemp())
        >>> bool((saved.fooled == result.fooled).all()), [path.name for (path,) in saved.files]
        (True, ['00000.png', '00001.png'])
    """
    asked = asked_of(result)
    saved = save_perturbed(
        asked.problem,
        result.delta,
        asked.ball,
        Path(folder),
        targeted=asked.targeted,
        origin=Origin(classes),
    )
    lost = int((saved.before & ~saved.fooled).any(dim=1).sum())
    if lost:
        out = int((saved.outside & saved.before.any(dim=1)).sum())
        why = f", {out} of which rounding has moved out of the ball" if out else ""
        warnings.warn(
            f"8 bits were too few for {lost} of {len(saved.files)} rows: read back they fool fewer domains "
            f"inside the ball than before{why}; attack with `quantize=256`.",
            stacklevel=2,
        )
    return saved


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something: nothing of others is written over.

    Raises:
        ValueError: It does, or it is a file.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> check_folder(folder)  # empty
        >>> _ = (folder / "mine.txt").write_text("mine")
        >>> check_folder(folder)
        Traceback (most recent call last):
            ...
        ValueError: `folder` must be new or empty, got ...
    """
    if folder.is_file() or (folder.exists() and any(folder.iterdir())):
        raise ValueError(
            f"`folder` must be new or empty, got {str(folder)!r}, which is not; choose another."
        )


def save_nearest(
    problem: AbstractProblem,
    balls: Mapping[str, LpBall],
    nearest: Mapping[str, Tensor],
    folder: Path,
    *,
    classes: Sequence[str] = (),
    files: Sequence[Sequence[str]] = (),
) -> dict[str, SavedImages]:
    """Save what an evaluation has found inside its balls, in one folder per threat.

    The nearest wrong images are so near to the boundary that rounding would undo many of them; such a
    perturbation is made longer, inside the ball, until what is read back is wrong too.

    Args:
        problem: The images and the domains.
        balls: The threats, by name.
        nearest: For every threat one perturbation per image, (N, ...), zero where there is none.
        folder: A new or empty folder.
        classes: Names of the classes; numbers if there are none.
        files: By the number of a row, the files its images come from, for `verdicts.json`.

    Returns:
        What was saved, by threat; nothing for a threat that broke no image.

    Example:
        >>> import tempfile
        >>> import saddlepoint as sp
        >>> x, y = torch.tensor([[[[0.2, 0.7]]]]), torch.tensor([1])
        >>> problem = sp.Ensemble([torch.nn.Flatten().eval()], x, y)
        >>> nearest = {"linf": torch.tensor([[[[0.26, -0.26]]]])}  # just beyond the boundary
        >>> saved = save_nearest(problem, {"linf": sp.linf(0.3)}, nearest, Path(tempfile.mkdtemp()))
        >>> saved["linf"].fooled
        tensor([[True]])
    """
    check_folder(folder)
    saved = {}
    for name, ball in balls.items():
        delta = nearest[name].to(problem.lower)
        radius = torch.as_tensor(ball.eps, dtype=torch.float64, device=delta.device)
        found = delta.flatten(1).any(dim=1) & (ball.norm(delta) <= radius * (1 + _ROUNDING))
        rows = found.nonzero().flatten()
        if len(rows):
            part, own = problem.take(rows), ball.take(rows)
            longer = _lengthened(part, delta[rows], own)
            saved[name] = save_perturbed(
                part, longer, own, folder / name, origin=Origin(classes, files)
            )
    return saved


def _lengthened(problem: AbstractProblem, delta: Tensor, ball: LpBall) -> Tensor:
    """The shortest of some multiples of every perturbation that fools, read back, all that it fooled before."""
    grid, truth = Grid(LEVELS), problem.truth
    whole = grid.holds(problem.unperturbed())
    wanted = is_fooled(_answers(problem, delta), truth)
    best, left = delta.clone(), torch.arange(len(delta), device=delta.device)
    for factor in _LONGER:
        if len(left) == 0:
            break
        part, own = problem.take(left), ball.take(left)
        trial = own.project(factor * delta[left], part.lower, part.upper)
        if whole:
            trial = grid.within(trial, own, part.lower, part.upper)
        now = is_fooled(_answers(part.on_grid(LEVELS), trial), part.truth)
        good = (now | ~wanted[left]).all(dim=1)
        best[left[good]] = trial[good]
        left = left[~good]
    return best


def save_perturbed(
    problem: AbstractProblem,
    delta: Tensor,
    region: AbstractSet,
    folder: Path,
    *,
    targeted: bool = False,
    origin: Origin | None = None,
) -> SavedImages:
    """`save_images` for perturbations from anywhere, (B, ...), inside ball and box; it warns of nothing."""
    if find_spec("PIL") is None:
        raise ImportError(
            f"saved images are read back with pillow; install it with {install('show')}",
            name="PIL",
        )
    truth, seen = problem.truth, problem.on_grid(LEVELS)
    images, clean = seen.images(delta).clamp(0, 1), problem.images(problem.zeros())
    shape = images.shape[-3:] if images.dim() > 3 else ()
    if len(shape) < 3 or shape[0] not in (1, 3):
        got = tuple(images.shape[1:])
        raise ValueError(
            f"`result` must be about images (C, H, W) with C = 1 or 3 to be saved, got {got}."
        )
    check_folder(folder)
    before = _answers(problem, delta)
    now = _answers(seen, delta)
    folder.mkdir(parents=True, exist_ok=True)
    grouped = images.dim() == 5
    origin = origin or Origin()
    names = origin.folders(now.shape[-1])
    files = _write(folder, images if grouped else images[:, None], truth, problem.rows, names)
    write_atomically(folder / CLASSES, "".join(f"{name}\n" for name in names).encode())
    _check_read_back(files, images if grouped else images[:, None])
    ball, difference = region.ball, difference_of(images, clean)
    distance = distances(difference, ball)
    radius = torch.as_tensor(ball.eps, dtype=torch.float64, device=distance.device)
    outside = (distance > radius * (1 + _ROUNDING)) | forbidden(problem, region, difference)
    goal = problem.labels if targeted else truth
    fooled = is_fooled(now, goal, targeted=targeted)
    verdicts = fooled & ~outside[:, None]
    told = _verdicts(problem, folder, files, now.argmax(dim=-1), verdicts, distance, outside)
    for each, row in zip(told, problem.rows.tolist(), strict=True):
        each |= {"sources": list(origin.files[row])} if origin.files else {}
    write_atomically(folder / VERDICTS, (json.dumps(told, indent=1) + "\n").encode())
    held = is_fooled(before, goal, targeted=targeted)
    return SavedImages(folder, files, held.cpu(), verdicts.cpu(), outside.cpu())


def _answers(problem: AbstractProblem, delta: Tensor) -> Tensor:
    """Logits, (B, K, C), without gradient, in batches."""
    rows = torch.arange(len(problem), device=delta.device).split(_ROWS)
    with torch.no_grad():
        return torch.cat([problem.take(few).logits(delta[few], JUDGE) for few in rows])


def _write(
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


def _check_read_back(files: tuple[tuple[Path, ...], ...], images: Tensor) -> None:
    """What is in the files is what the models are asked about, to the last bit that 8 bits hold."""
    for own, row in zip(files, images.cpu(), strict=True):
        for path, image in zip(own, row, strict=True):
            read = unit(read_picture(path))
            if read.shape != image.shape or float((read - image).abs().max()) > 1e-6:
                raise OSError(f"`{path}` must hold what was written, got other pixels read back.")


def _verdicts(
    problem: AbstractProblem,
    folder: Path,
    files: tuple[tuple[Path, ...], ...],
    says: Tensor,
    fooled: Tensor,
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
            "distance": float(f"{distance[row].item():.6g}"),
            "outside": bool(outside[row]),
        }
        for row, own in enumerate(files)
    ]
