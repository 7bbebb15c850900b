"""The folder of an experiment: the line that fills it, what is complete in it, and what it is refused for.

It is refused for results in the way, for those of another experiment, and for files that are not ours.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from saddlepoint.experiments.plan import LABELS, METHODS, Experiment
from saddlepoint.files import write_atomically
from saddlepoint.runs import RECORD, Run, finished, locked, texts
from saddlepoint.runs.plain import read_json, read_plain

__all__ = [
    "check_networks",
    "check_place",
    "complete_in",
    "keep_drawn",
    "keep_times",
    "line_of",
    "networks_in",
    "publishing",
]

_DRAWN = "drawn.json"  # the names of the tables and figures that were drawn in the folder
_TIMES = "times.json"  # what runs were to take, and took
_PATIENCE = 600.0  # seconds; all tables and figures of an experiment are drawn in less


def line_of(
    name: str,
    method: str | None,
    labels: str,
    limit: int | None,
    seed: int,
    parameters: Path | None,
    precision: str,
    /,
    **more: object,
) -> str:
    """The line that runs an experiment again, with `more` flags, which decide no number.

    Example:
        >>> line_of("cost", "apgda", "true", 8, 0, None, "float32", resume=True)
        'saddlepoint reproduce cost --method apgda --limit 8 --resume'
    """
    shown = None if labels == "true" else labels
    flags: dict[str, object] = {"method": method, "labels": shown, "limit": limit}
    flags |= {"seed": seed or None, "parameters": parameters}
    flags["precision"] = None if precision == "float32" else precision
    return texts.line(["reproduce", name], flags | more)


def complete_in(folder: Path) -> Run | None:
    """The record of a run, if it is in the folder and complete."""
    run = Run.read(folder) if (folder / RECORD).is_file() else None
    return run if run is not None and run.status == "complete" else None


def networks_in(folder: Path) -> dict[str, str]:
    """Hashes of the networks, by name, that results in a folder are of, whatever their settings.

    Args:
        folder: Of an experiment.

    Raises:
        ValueError: Two of them are about different networks of the same name, or one is damaged.
    """
    found, places = dict[str, str](), dict[str, Path]()
    for place in (place for place, run in _runs_in(folder) if run.status == "complete"):
        for name, value in finished(place).hashes.models.items():
            first = places.setdefault(name, place)
            if found.setdefault(name, value) != value:
                one, other = (str(each.relative_to(folder)) for each in (place, first))
                raise ValueError(
                    f"`{folder}` must hold results of the same networks, got another {name} in {one!r} than in "
                    f"{other!r}; move one of them away, and run it into a folder of its own."
                )
    return found


def check_networks(ours: Mapping[str, str], folder: Path) -> None:
    """Refuse another network than that of the same name which results of the folder are of.

    Args:
        ours: Hashes by name, of the networks that are about to be attacked.
        folder: Of the experiment; all results in it count, of settings that are not run, too.
    """
    there = networks_in(folder)
    for name, value in ours.items():
        if there.get(name, value) != value:
            raise ValueError(
                f"`{folder}` must hold results of the same networks, got another {name} than its results are "
                "of; attack that one into a folder of its own."
            )


def check_place(
    experiment: Experiment,
    folder: Path,
    target: Path,
    *,
    resume: bool,
    figures: Path | None = None,
) -> None:
    """Refuse a folder in which something would be lost.

    Args:
        experiment: Which one.
        folder: Where its tables and figures go.
        target: Where the results of one method and label go, inside the folder.
        resume: Whether results that are there are continued.
        figures: Where the pictures go; the folder itself if None.

    Raises:
        ValueError: There are such results and they are not continued, results of another experiment, or files
            with the names of tables and figures that no experiment there has drawn.
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
    # The summary of --store, NAME.json, may be there too.
    picture = rf"{re.escape(experiment.name)}-({'|'.join(METHODS)})(-.*)?"
    ours = rf"table(-\d+)?\.(md|csv|tex)|{picture}\.(json|png|svg)"
    for place, pattern in ((folder, ours), (figures or folder, rf"{picture}\.(png|svg)")):
        there = (path.name for path in place.glob("*") if not path.is_dir())
        _check_foreign([name for name in there if re.fullmatch(pattern, name)], place)


@contextmanager
def publishing(*folders: Path, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Within, this process alone publishes into the folders; others wait, and read what it has left there.

    Args:
        folders: Where to.
        waiting: Told whom this process waits for, as in `locked`.

    Raises:
        ValueError: Another process has been publishing there for ten minutes, or one on another machine.
    """
    with ExitStack() as stack:
        # In one order, so that two never wait for each other.
        for folder in sorted({folder.resolve() for folder in folders}):
            stack.enter_context(locked(folder, wait=_PATIENCE, waiting=waiting))
        yield


def keep_drawn(places: Sequence[tuple[Path, Sequence[str]]]) -> None:
    """Write down which files an experiment is about to draw in its folders, so that they are known as its own.

    Args:
        places: Folders, each with the names of what is drawn there.

    Raises:
        ValueError: A file with one of the names was drawn by nobody.
    """
    for folder, names in places:
        _check_foreign([name for name in names if os.path.lexists(folder / name)], folder)
    for folder, names in places:
        every = sorted({*_drawn(folder), *names})
        if names:
            write_atomically(folder / _DRAWN, (json.dumps(every, indent=2) + "\n").encode())


def keep_times(folder: Path, command: str, **seconds: float) -> None:
    """Add to the list of a folder how long a run was to take, and took.

    Args:
        folder: Of an experiment.
        command: The line that ran it.
        seconds: What it `took`, and its `forecast`, or what it was to take `at_most` where nothing was tried.

    Raises:
        ValueError: The list is damaged.
    """
    path = folder / _TIMES
    must, remedy = f"`{path}` must be the list of forecasts of a folder", "move it away"
    kind = list[dict[str, str | float]]
    there = read_plain(kind, read_json(path, must, remedy), must, remedy) if path.exists() else []
    there.append({"command": command} | {name: round(each, 1) for name, each in seconds.items()})
    write_atomically(path, (json.dumps(there, indent=2) + "\n").encode())


def _check_foreign(there: Sequence[str], folder: Path) -> None:
    if foreign := sorted(set(there) - _drawn(folder)):
        raise ValueError(
            f"`{folder}` must not hold files that an experiment would write over, got {foreign[0]!r}, which no "
            "experiment there has drawn; move it away, or choose another folder."
        )


def _drawn(folder: Path) -> set[str]:
    """The names that `keep_drawn` wrote down."""
    path = folder / _DRAWN
    if not path.exists():
        return set()
    must = f"`{path}` must be the list of tables and figures that an experiment has drawn"
    remedy = "move it away, or choose another folder"
    return set(read_plain(list[str], read_json(path, must, remedy), must, remedy))


def _experiments_in(folder: Path) -> set[str]:
    """Names of the experiments whose rows and measurements are where `reproduce` puts them."""
    lines = (run.command.split() for _, run in _runs_in(folder))
    return {words[2] for words in lines if words[:2] == ["saddlepoint", "reproduce"] and words[2:]}


def _runs_in(folder: Path) -> Iterator[tuple[Path, Run]]:
    """Rows and measurements where `reproduce` puts them, complete or not."""
    for labels in LABELS:
        for method in METHODS:
            place = folder / labels / method
            for record in (*place.glob(f"*/{RECORD}"), *place.glob(f"*/*/{RECORD}")):
                yield record.parent, Run.read(record.parent)
