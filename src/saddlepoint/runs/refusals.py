"""What a folder is refused for: a run that is in the way, foreign files, other settings, models or data.

Models may read what no hash sees; they are asked about some images when a run begins and when it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem
from saddlepoint.runs import texts
from saddlepoint.runs.record import RECORD, Run
from saddlepoint.streams import JUDGE

__all__ = [
    "ANSWERS",
    "ASKED",
    "answers",
    "check_foreign",
    "check_free",
    "check_same",
    "check_same_answers",
    "other_versions",
    "same_answers",
    "unhashed",
    "way_on",
]


def check_free(folder: Path, *, resume: bool = False, overwrite: bool = False) -> None:
    """Refuse a folder with a run that is neither continued nor replaced, or cannot be.

    `opened` does so too, but needs a record, for which images and models have to be loaded.

    Raises:
        ValueError: There is such a run, or one whose record cannot be read.
    """
    if not (folder / RECORD).is_file():
        return
    if resume or overwrite:
        Run.read(folder)
    else:
        raise ValueError(
            f"`--out` must not hold a run yet, got {str(folder)!r}; add --resume to continue it, "
            "--overwrite to replace it, or choose another folder."
        )


def check_foreign(names: Sequence[str], folder: Path, *, early: bool = False) -> None:
    """Refuse to write over files that no run has written; a link is one, wherever it leads.

    Args:
        names: Of files that are not known to be of a run.
        folder: Where they would be.
        early: Whether a version may have drawn them that did not write down what it drew.
    """
    foreign = [name for name in names if os.path.lexists(folder / name)]
    known = f"`saddlepoint report {folder}` makes known what an early version has drawn; else "
    if foreign:
        raise ValueError(
            f"`--out` must not hold files that a run would write over, got {foreign[0]!r} in {str(folder)!r}, "
            f"which no run there has written; {known if early else ''}choose another folder."
        )


def check_same(old: Run, new: Run, folder: Path) -> None:
    """Refuse to continue a run of another kind, other settings, models or data."""
    what, got = "", ""
    there, here = ({**run.hashes.models, **run.hashes.victims} for run in (old, new))
    names = sorted(there.keys() | here.keys())
    other = [n for n in names if there.get(n) != here.get(n)]
    unknown = [n for n in names if not here.get(n)]
    if old.kind != new.kind:
        what, got = "kind of run", f"{new.kind} for a run of kind {old.kind}"
    elif old.hashes.settings != new.hashes.settings:
        told = _differing(old.settings, new.settings).values()
        what, got = "configuration", "; ".join(told) or "other settings"
    elif old.hashes.data != new.hashes.data:
        what, got = "data", "images or labels with another hash"
        got += ", or divided otherwise" if new.kind == "train" else ""
    elif unknown:
        what = "models"
        got = f"{', '.join(unknown)}, of which nobody can say whether it has changed"
    elif other:
        what, got = "models", f"other parameters or code for {', '.join(other)}"
    remedy = "choose another --out"
    if what == "configuration" and old.kind == "train" and old.rows != new.rows:
        # The rows of a training are its epochs.
        remedy = (
            "the learning rate of every step depends on how many there will be: resume with --epochs "
            f"{old.rows}, or train anew into another --out"
        )
    if what:
        raise ValueError(
            f"`--resume` must continue with the same {what} as the run in {folder}, got {got}; {remedy}."
        )


def unhashed(run: Run) -> str:
    """Why the run could not be continued: the models that cannot be hashed, in words; empty if there are none.

    Example:
        >>> from saddlepoint.runs.record import Hashes
        >>> run = Run(kind="ensemble", command="saddlepoint attack", settings={}, seed=0, domains=("A",),
        ...           classes=(), rows=8, hashes=Hashes("c", {"A": "a", "odd": ""}, "d"))
        >>> unhashed(run)
        'odd cannot be hashed, so that nobody could say whether it has changed'
    """
    names = [n for n, found in {**run.hashes.models, **run.hashes.victims}.items() if not found]
    return (
        f"{', '.join(names)} cannot be hashed, so that nobody could say whether it has changed"
        if names
        else ""
    )


def way_on(run: Run, folder: Path, *more: str, told: str = "continue with", by: str = "") -> str:
    """The line that goes on with a run that was stopped, or why there is none and how to begin again.

    Args:
        run: Its record.
        folder: Where it is.
        more: Words that the line has too.
        told: What is said before the line.
        by: What the line begins with, such as words of torchrun.
    """
    line, why = by + run.line_to_resume(folder, *more), unhashed(run)
    if not why:
        return f"{told}: {line}"
    words, _, rest = line.rpartition("--resume")
    return f"it cannot be continued: {why}; begin again with: {words}--overwrite{rest}"


def other_versions(old: Run, new: Run) -> tuple[str, ...]:
    """A remark where the first rows were made by other versions: they may round differently."""
    pairs = [(name, old.versions.get(name), now) for name, now in new.versions.items()]
    changed = [f"{name} {then} and {now}" for name, then, now in pairs if then != now]
    return (f"the run was continued with other versions: {', '.join(changed)}.",) if changed else ()


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, str]:
    """What is not the same in two sets of settings, by name; of settings inside settings only what differs."""
    inside: dict[str, str] = {}
    shown: dict[str, str] = {}
    for name in sorted({*there, *here}):
        left_out = ["float32"] if name == "precision" else None  # as records leave it out
        then, now = there.get(name, left_out), here.get(name, left_out)
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            inside |= _differing(then, now)
        elif then != now:
            shown[name] = f"{name}: {_text(then)} there, {_text(now)} here"
    return shown | inside  # a recipe knows what a setting has left open


def _text(value: object) -> str:
    """A setting as the user would write it."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return "none" if value is None else texts.written(value)


ANSWERS = "answers"
"""The name of what the models said, among the tensors of a finished run and in the page of one that goes on."""

ASKED = 32
"""Images that models are asked about when a run begins and when it goes on."""


def answers(problem: AbstractProblem) -> Tensor | None:
    """What the models say to the first images, (at most 32, K, C): two forward passes.

    A model may read files or the environment whenever it is called, which no hash sees; its answers do.

    Returns:
        Logits; None if they are random or a model raises, so that there is nothing to compare.
    """
    part = problem.take(torch.arange(min(len(problem), ASKED), device=problem.lower.device))
    try:
        with torch.no_grad():
            first, again = (part.logits(part.zeros(), JUDGE).cpu() for _ in range(2))
    except Exception:
        # The user's code may raise anything; the run itself says better what is wrong.
        return None
    return first if same_answers(first, again) else None


def same_answers(one: Tensor, other: Tensor) -> bool:
    """Whether two tables of logits differ by no more than rounding on another machine.

    Example:
        >>> one = torch.tensor([[1.0, 2.0]])
        >>> same_answers(one, one + 1e-5), same_answers(one, 1.1 * one)
        (True, False)
    """
    if one.shape != other.shape:
        return False
    scale = one.nan_to_num(0, 0, 0).abs().amax().item() if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-3 * scale, equal_nan=True)


def check_same_answers(kept: Tensor | None, now: Tensor | None, folder: Path) -> None:
    """Refuse models that say something else than when the run in the folder began; None is not compared.

    Raises:
        ValueError: The logits are not those that were kept.
    """
    if kept is None or now is None or same_answers(kept, now):
        return
    raise ValueError(
        f"`--resume` must continue with models that answer as they did when the run in {folder} began, got "
        "other logits for the same images: a model reads something that has changed since; change it back, or "
        "choose another --out."
    )
