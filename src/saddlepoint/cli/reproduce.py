"""`saddlepoint reproduce`: an experiment of the paper, with our numbers beside the paper's."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from .cluster import joined
from .errors import UsageError, usage
from .flags import Flag

if TYPE_CHECKING:
    from saddlepoint.experiments import Experiment, Labels, Method, Setup

__all__ = ["reproduce"]


def reproduce(
    name: str | None = None,
    *,
    show_list: Annotated[bool, Parameter(name="--list", negative=())] = False,
    limit: int | None = None,
    full: Flag = False,
    method: Literal["apgda", "attack", "attack-5", "both", "all"] = "apgda",
    labels: Literal["true", "predicted", "both"] = "true",
    only: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    out: Path | None = None,
    resume: Flag = False,
    figures: Path | None = None,
    parameters: Path | None = None,
    store: Path | None = None,
    summary: Path | None = None,
    seed: int = 0,
    quiet: Flag = False,
) -> int:
    """Run an experiment of the paper, and write its table and figure with the paper's numbers.

    Args:
        name: Which experiment; --list names them.
        show_list: List the experiments with what they cost on this machine.
        limit: Use the first so many test images. [default: what --list names, with the minutes it takes]
        full: Use all 10,000 test images.
        method: apgda (the paper's algorithm and step sizes), attack (ours, one restart of as many steps),
            attack-5 (ours, up to five restarts), both (apgda and attack), or all three; as far as the
            experiment is not about one of them.
        labels: The class that is attacked: the true one, the one each domain predicts (as the authors' code
            does), or both in turn. Success is counted against the true class.
        only: Run this setting only, as the table names it, such as "l2, eps 3"; give it once per setting. The
            files hold whatever is in the folder.
        out: Folder for results, tables and figures; methods and labels share it. [default: runs/NAME]
        resume: Continue what is in the folder; finished rows are not run again.
        figures: Folder for the figures. [default: the folder of the results]
        parameters: Folder with NAME.safetensors and NAME.json of networks that are not shipped.
        store: Folder for a summary of the results, NAME.json, from which --summary writes tables.
        summary: Write the tables and claims of this Markdown file, or of all in this folder, such as docs, from
            the summaries in --store, and stop. [default of --store here: the folder `results` beside the file]
        seed: Of groups, random transformations and random starts.
        quiet: Print errors only.
    """
    _check(full, limit, parameters)
    from saddlepoint import experiments as room

    from . import show

    if summary is not None:
        return _write_tables(summary, store)
    if show_list:
        return _list([room.find(name)] if name else list(room.EXPERIMENTS.values()), parameters)
    if name is None:
        raise UsageError("`reproduce` must be given the name of an experiment; --list shows them.")
    with usage(only="--only"):
        experiment = room.find(name)
        part = room.settings(experiment, only)
    folder = Path("runs") / name if out is None else out
    limit = room.FULL if full else limit
    reasons = list(dict.fromkeys(room.skipped(experiment, parameters).values()))
    with joined() as rank:
        for source in _sources(experiment, method, labels):
            setup = room.Setup(*source, limit, seed, parameters)
            try:
                _run(part, folder, setup, resume=resume, quiet=quiet or rank != 0)
            except KeyboardInterrupt:
                if not rank:
                    args: dict[str, object] = {"method": method, "labels": labels, "out": folder}
                    args |= {"limit": None if full else limit, "full": full, "only": only}
                    args |= {"seed": seed or None, "parameters": parameters}
                    _stopped(name, args | {"figures": figures, "store": store})
                return 130
    if rank:
        return 0
    tables, files = room.publish(experiment, folder, figures=figures, skipped=reasons)
    if store is not None:
        files.append(room.write_summary(experiment, folder, store))
    if not quiet:
        table, wanted = tables[0], {block.label for block in part.blocks}
        if only and table.columns[0].name == "Setting":
            table = replace(table, lines=tuple(each for each in table.lines if each[0] in wanted))
        show.results_table(table)
        for file in files:
            print(file)
    return 0


def _check(full: bool, limit: int | None, parameters: Path | None) -> None:
    if full and limit is not None:
        raise UsageError(f"`--limit` must be left out with --full, got {limit}.")
    if parameters is not None and not parameters.is_dir():
        raise UsageError(f"`--parameters` must be a folder that exists, got {str(parameters)!r}.")


def _stopped(name: str, args: dict[str, object]) -> None:
    """Say how to go on."""
    from saddlepoint.runs import texts

    again = texts.line(["reproduce", name], args | {"resume": True})
    print(f"stopped; continue with: {again}", file=sys.stderr)


def _sources(experiment: "Experiment", method: str, labels: str) -> "list[tuple[Method, Labels]]":
    """What to run in turn: the choices given, and of "both" and "all" those that the experiment has."""
    from saddlepoint.experiments import LABELS, METHODS

    several: dict[str, tuple[Method, ...]] = {"both": ("apgda", "attack"), "all": METHODS}
    methods = [m for m in METHODS if m in several.get(method, (method,))]
    classes = [c for c in LABELS if labels in (c, "both")]
    if method in several:
        methods = [m for m in methods if m in experiment.methods]
    if labels == "both":
        classes = [c for c in classes if c in experiment.labels]
    return [(m, c) for c in classes for m in methods]


def _write_tables(place: Path, store: Path | None) -> int:
    from saddlepoint import experiments as room
    from saddlepoint.files import write_atomically

    if not place.exists():
        raise UsageError(f"`--summary` must be a file or folder that exists, got {str(place)!r}.")
    documents = sorted(place.glob("*.md")) if place.is_dir() else [place]
    for document in documents:
        before = document.read_text(encoding="utf-8")
        if place.is_dir() and not set(room.named_tables(before)) <= set(room.EXPERIMENTS):
            continue  # it has tables of other commands
        with usage():
            text = room.write_tables(
                before, document.parent / "results" if store is None else store
            )
        if text != before:
            write_atomically(document, text.encode())
    return 0


def _run(
    experiment: "Experiment", folder: Path, setup: "Setup", *, resume: bool, quiet: bool
) -> None:
    from saddlepoint import experiments as room

    from . import progress

    title = f"{experiment.name} {room.Source(setup.method, setup.labels).name}"
    with progress.reproducing(title, quiet=quiet) as (tell, download):
        setup = replace(setup, download=download)
        room.reproduce(experiment, folder, setup, resume=resume, callback=tell)


def _list(experiments: "list[Experiment]", parameters: Path | None) -> int:
    from saddlepoint import experiments as room

    print(
        "minutes on this machine for apgda, at most as many for attack, five times as many for attack-5: "
        "default number of images, and all 10,000 (--full)"
    )
    print(f"{'name':<29}{'images':>9}{'minutes':>9}{'full':>9}  in the paper")
    for experiment in experiments:
        cost = room.estimate(experiment, parameters)
        figures = f"{_minutes(cost.minutes):>9}{_minutes(cost.full_minutes):>9}"
        print(f"{experiment.name:<29}{_images(experiment):>9}{figures}  {experiment.source}")
        if cost.missing:
            print(f"{'':<29}  not counted: no parameters for {', '.join(cost.missing)}")
    return 0


def _images(experiment: "Experiment") -> str:
    limits = {block.limit or experiment.limit for block in experiment.blocks} or {experiment.limit}
    return f"{min(limits)}-{max(limits)}" if len(limits) > 1 else str(experiment.limit)


def _minutes(minutes: float) -> str:
    return "-" if minutes == 0 else f"{minutes:.1f}" if minutes < 100 else f"{minutes:.0f}"
