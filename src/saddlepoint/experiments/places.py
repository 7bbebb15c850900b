"""What the folder of an experiment is refused for: results in the way, those of another one, foreign files."""

from __future__ import annotations

from pathlib import Path

from saddlepoint.experiments.plan import LABELS, METHODS, Experiment
from saddlepoint.runs import RECORD, Run

__all__ = ["check_place"]


def check_place(experiment: Experiment, folder: Path, target: Path, *, resume: bool) -> None:
    """Refuse a folder in which something would be lost.

    Args:
        experiment: Which one.
        folder: Where its tables and figures go.
        target: Where the results of one method and label go, inside the folder.
        resume: Whether results that are there are continued.

    Raises:
        ValueError: There are such results and they are not continued, results of another experiment, or files
            with the names of tables and figures and no results that they could have been drawn from.
    """
    if not resume and any(target.glob("**/*.json")):
        raise ValueError(
            f"`{target}` must not hold results yet; add --resume to continue them, or choose another "
            "folder."
        )
    names = _experiments_in(folder)
    if others := sorted(names - {experiment.name}):
        raise ValueError(
            f"`--out` must hold results of {experiment.name} only, whose tables have the same names, got those "
            f"of {others[0]} in {str(folder)!r}; choose another folder."
        )
    there = sorted(path.name for path in folder.glob("*") if not path.is_dir())
    foreign = [name for name in there if name.startswith(("table", experiment.name))]
    if foreign and not names:
        raise ValueError(
            f"`--out` must not hold files that an experiment would write over, got {foreign[0]!r} in "
            f"{str(folder)!r} and no results; choose another folder."
        )


def _experiments_in(folder: Path) -> set[str]:
    """Names of the experiments whose rows and measurements are where `reproduce` puts them."""
    names = set[str]()
    for labels in LABELS:
        for method in METHODS:
            place = folder / labels / method
            for record in (*place.glob(f"*/{RECORD}"), *place.glob(f"*/*/{RECORD}")):
                words = Run.read(record.parent).command.split()
                if words[:2] == ["saddlepoint", "reproduce"]:
                    names.update(words[2:3])
    return names
