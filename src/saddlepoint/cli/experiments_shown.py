"""What `saddlepoint reproduce` is to run, and what it says of that before: networks, settings, minutes."""

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .cluster import processes
from .errors import UsageError, usage

if TYPE_CHECKING:
    from saddlepoint.experiments import Experiment, Labels, Method, Setup

    from .reproduce import Wanted

__all__ = ["check_not_only", "chosen", "show", "sources_of", "tell_forecast", "tell_networks"]

_NEAR = 0.5  # of the labels of an experiment, which have most letters in common


def check_not_only(wanted: "Wanted") -> None:
    """Refuse settings where all experiments are meant."""
    if wanted.only:
        raise UsageError(
            "`--only` must be left out with all, whose experiments have settings of their own."
        )


def chosen(name: str, wanted: "Wanted") -> "Experiment":
    """An experiment with the settings that are wanted."""
    from saddlepoint import experiments as room

    with usage():
        experiment = room.find(name)
    there = [block.label for block in experiment.blocks]
    there += [measurement.label for measurement in experiment.measurements]
    known = {label.lower(): label for label in there}
    for label in wanted.only:
        near = difflib.get_close_matches(label.lower(), known, n=2, cutoff=_NEAR)
        if label not in there and near:
            meant = " or ".join(f'"{known[each]}"' for each in near)
            raise UsageError(
                f"`--only` must be a setting of {name}, got {label!r}; did you mean {meant}? There are: "
                f"{'; '.join(there)}."
            )
    with usage(only="--only"):
        return room.settings(experiment, wanted.only)


def sources_of(
    experiment: "Experiment", wanted: "Wanted", *, filtered: bool
) -> "list[tuple[Method, Labels]]":
    """What to run in turn: the choices given, and of "both" and "all" those that the experiment has.

    Of single choices, too, if it is `filtered`: where many experiments are run, some are not about them.
    """
    from saddlepoint.experiments import LABELS, METHODS

    method, labels = wanted.method, wanted.labels
    several: dict[str, tuple[Method, ...]] = {"both": ("apgda", "attack"), "all": METHODS}
    methods = [m for m in METHODS if m in several.get(method, (method,))]
    classes = [c for c in LABELS if labels in (c, "both")]
    if filtered or method in several:
        methods = [m for m in methods if m in experiment.methods]
    if filtered or labels == "both":
        classes = [c for c in classes if c in experiment.labels]
    return [(m, c) for c in classes for m in methods]


def tell_networks(parts: "Sequence[Experiment]", wanted: "Wanted", *, quiet: bool) -> None:
    """Say which networks are those of --parameters; a folder that has none of them is refused."""
    if wanted.parameters is None:
        return
    from saddlepoint.experiments.block_parts import own_networks

    with usage(parameters="--parameters"):
        own = own_networks(parts, wanted.parameters)
    if not quiet:
        told = f"networks from {wanted.parameters}: {', '.join(own)}"
        print(told, file=sys.stderr, flush=True)


def tell_forecast(experiment: "Experiment", folder: Path, setups: "list[Setup]") -> None:
    """Say how long it will take, where that is a minute or more."""
    from saddlepoint import experiments as room
    from saddlepoint.experiments.pilot import unfinished

    if not unfinished(experiment, folder, setups):
        return
    told = f"{experiment.name}: measuring networks for a moment"
    print(told, file=sys.stderr, flush=True)
    most = sum(room.at_most(experiment, setup) for setup in setups)
    seconds = room.forecast(experiment, folder, setups) / processes() if most >= 60 else 0.0
    if seconds >= 60:
        print(f"{experiment.name}: about {_minutes(seconds / 60)} minutes", file=sys.stderr)


def show(name: str | None, wanted: "Wanted") -> int:
    """List experiments with their minutes."""
    import torch

    from saddlepoint import experiments as room

    whole, limit, jobs = name in (None, "all"), wanted.limit, wanted.jobs
    if whole:
        check_not_only(wanted)
    names = [*room.EXPERIMENTS] if name is None or name == "all" else [name]
    parts = [chosen(each, wanted) for each in names]
    tell_networks(parts, wanted, quiet=wanted.quiet)
    # As many as `together` gives to each of several.
    threads = torch.get_num_threads()
    if jobs > 1 and not os.environ.get("OMP_NUM_THREADS"):
        threads = max(1, (os.cpu_count() or 1) // jobs)
    if not wanted.quiet:
        print("measuring networks for a moment, up to a minute", file=sys.stderr, flush=True)
    print(_counted(wanted, threads))
    print(f"{'name':<29}{'images':>9}{'minutes':>9}{'full':>9}  in the paper")
    minutes = full = 0.0
    for part in parts:
        sources = sources_of(part, wanted, filtered=True)
        cost = room.estimate(
            part, wanted.parameters, limit, sources=sources, jobs=jobs, threads=threads
        )
        minutes, full = minutes + cost.minutes, full + cost.full_minutes
        figures = f"{_minutes(cost.minutes):>9}{_minutes(cost.full_minutes):>9}"
        print(f"{part.name:<29}{limit or _images(part):>9}{figures}  {part.source}")
        if not sources:
            about = f"{' or '.join(part.methods)} with {' or '.join(part.labels)} labels"
            print(f"{'':<29}  not run: it is about {about}")
        elif cost.missing:
            print(f"{'':<29}  not counted: no parameters for {', '.join(cost.missing)}")
    if whole:
        print(f"{'  total':<38}{_minutes(minutes):>9}{_minutes(full):>9}")
    return 0


def _counted(wanted: "Wanted", threads: int) -> str:
    """What the minutes of a list are."""
    from saddlepoint.experiments import METHODS

    several: dict[str, list[str]] = {"both": ["apgda", "attack"], "all": [*METHODS]}
    few = several.get(wanted.method, [wanted.method])
    methods = " and ".join([", ".join(few[:-1]), few[-1]] if len(few) > 1 else few)
    both = wanted.labels == "both"
    # `attack` leaves rows alone that are fooled, and predicted labels that are true are not attacked again.
    most = ", at most," if both or few != ["apgda"] else ""
    labels = "true and predicted" if both else wanted.labels
    shared = f", shared by {wanted.jobs} processes" if wanted.jobs > 1 else ""
    lower = wanted.precision
    bits = "" if lower == "float32" else f", in float32 (--precision {lower} is not counted)"
    images = "default number of images" if wanted.limit is None else f"--limit {wanted.limit}"
    timed = "by the processor's clock, with one thread"
    if threads > 1:
        timed = f"by the clock, with {threads} threads, beside what else is running"
    return (
        f"minutes on this machine{most} for {methods} with {labels} labels{shared}{bits}: {images}, and all "
        f"10,000 (--full); networks timed {timed}"
    )


def _images(experiment: "Experiment") -> str:
    limits = {block.limit or experiment.limit for block in experiment.blocks} or {experiment.limit}
    return f"{min(limits)}-{max(limits)}" if len(limits) > 1 else str(experiment.limit)


def _minutes(minutes: float) -> str:
    return "-" if minutes == 0 else f"{minutes:.1f}" if minutes < 100 else f"{minutes:.0f}"
