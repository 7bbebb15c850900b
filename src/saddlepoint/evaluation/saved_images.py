"""Adversarial images as 8-bit PNG files, and what the models say of them when they are read back."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint.data.classes import CLASSES
from saddlepoint.evaluation.origins import Origin
from saddlepoint.evaluation.png_files import (
    LEVELS,
    all_or_nothing,
    check_read_back,
    verdicts_of,
    write_pngs,
)
from saddlepoint.evaluation.rates import numbered_results
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
    "VERDICTS",
    "SavedImages",
    "check_folder",
    "save_images",
    "save_nearest",
    "save_perturbed",
]

VERDICTS = "verdicts.json"
"""The file beside the images that says what became of each."""

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
        unperturbed: Domains fooled by the images as they were, without any perturbation, (B, K), boolean.

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
    unperturbed: Tensor

    def __repr__(self) -> str:
        """What matters, in one line."""
        rows, images = len(self.files), sum(map(len, self.files))
        tables = (self.fooled, self.before, self.unperturbed)
        now, before, free = (int(table.all(dim=1).sum()) for table in tables)
        domains = self.fooled.shape[1]
        whom = "the domain" if domains == 1 else f"all {domains} domains"
        return (
            f"SavedImages({images} images in {str(self.folder)!r}: {now} of {rows} rows fool {whom} "
            f"when read back, {before} did before; {free} would without any perturbation)"
        )


def save_images(
    result: AttackResult | Iterable[AttackResult],
    folder: str | os.PathLike[str],
    *,
    classes: Sequence[str] = (),
) -> SavedImages:
    """Save the adversarial images of an attack as 8-bit PNG, read them back, and ask the models again.

    There is one folder per class, named by it or by its number, with a file per row (and place in its group),
    and `classes.txt`, so that `sp.data.folder` and `--data` can read them; `verdicts.json` says what every
    domain makes of each, and of the image as it was. Attack with `quantize=256` and nothing is lost.

    In a targeted attack the labels of a problem are the classes to reach, and so are the folders, unless its
    truth is known too, as that of problems of `aim_at`. If a later result fails, nothing is left in the folder.

    Args:
        result: Of `attack` or `apgda`; or results one after the other, such as those of attacks on `Parts`: one
            of them is kept in memory at a time.
        folder: A new or empty folder.
        classes: Names of the classes; numbers if there are none.

    Raises:
        ValueError: The folder holds something, these are no images, the result does not know what was asked,
            there is none, two have rows of the same number, or are of different models, norms, radii or goals.
        TypeError: There is something else than results of attacks.
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
    where, origin = Path(folder), Origin(classes)
    check_folder(where)
    parts: list[SavedImages] = []
    told: list[dict[str, object]] = []
    with all_or_nothing(where):
        for each in numbered_results("result", result):
            asked = asked_of(each)
            how: dict[str, Any] = {"targeted": asked.targeted, "origin": origin}
            saved, verdicts = _put(asked.problem, each.delta, asked.ball, where, **how)
            parts.append(saved)
            told += verdicts
            del each, asked  # as large as the images
        saved = _whole(where, parts)
        _tell(where, told)
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
    check_folder(folder)
    how: dict[str, Any] = {"targeted": targeted, "origin": origin or Origin()}
    with all_or_nothing(folder):
        saved, told = _put(problem, delta, region, folder, **how)
        _tell(folder, told)
    return saved


def _put(
    problem: AbstractProblem,
    delta: Tensor,
    region: AbstractSet,
    folder: Path,
    *,
    targeted: bool,
    origin: Origin,
) -> tuple[SavedImages, list[dict[str, object]]]:
    """Write the files of some rows, and ask about them; what is told of each is for whoever has them all."""
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
    first, before, now = (
        _answers(asked, at)
        for asked, at in ((problem, problem.zeros()), (problem, delta), (seen, delta))
    )
    folder.mkdir(parents=True, exist_ok=True)
    grouped = images.dim() == 5
    names = origin.folders(now.shape[-1])
    files = write_pngs(folder, images if grouped else images[:, None], truth, problem.rows, names)
    write_atomically(folder / CLASSES, "".join(f"{name}\n" for name in names).encode())
    check_read_back(files, images if grouped else images[:, None])
    ball, difference = region.ball, difference_of(images, clean)
    distance = distances(difference, ball)
    radius = torch.as_tensor(ball.eps, dtype=torch.float64, device=distance.device)
    outside = (distance > radius * (1 + _ROUNDING)) | forbidden(problem, region, difference)
    goal = problem.labels if targeted else truth
    at_first, held, fooled = (
        is_fooled(each, goal, targeted=targeted) for each in (first, before, now)
    )
    verdicts = fooled & ~outside[:, None]
    tables = (now.argmax(dim=-1), verdicts, at_first, distance, outside)
    told = verdicts_of(problem, folder, files, *tables)
    for each, row in zip(told, problem.rows.tolist(), strict=True):
        each |= {"sources": list(origin.files[row])} if origin.files else {}
    kept = (table.cpu() for table in (held, verdicts, outside, at_first))
    return SavedImages(folder, files, *kept), told


def _tell(folder: Path, told: Sequence[Mapping[str, object]]) -> None:
    write_atomically(folder / VERDICTS, (json.dumps(told, indent=1) + "\n").encode())


def _whole(folder: Path, parts: Sequence[SavedImages]) -> SavedImages:
    """What was saved in parts."""
    if not parts:
        raise ValueError("`result` must give at least one result, got none.")
    names = ("before", "fooled", "outside", "unperturbed")
    tables = (torch.cat([getattr(part, name) for part in parts]) for name in names)
    return SavedImages(folder, tuple(own for part in parts for own in part.files), *tables)


def _answers(problem: AbstractProblem, delta: Tensor) -> Tensor:
    """Logits, (B, K, C), without gradient, in batches."""
    rows = torch.arange(len(problem), device=delta.device).split(_ROWS)
    with torch.no_grad():
        return torch.cat([problem.take(few).logits(delta[few], JUDGE) for few in rows])
