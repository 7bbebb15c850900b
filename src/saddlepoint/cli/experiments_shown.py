"""What `saddlepoint reproduce` is to run, and what it says of that before: networks, settings, minutes."""

import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .errors import UsageError, usage
from .forecasts import minutes_of

if TYPE_CHECKING:
    from saddlepoint.experiments import Experiment, Labels, Method, Setup

    from .reproduce import Wanted

    # What is run in turn: settings of an experiment, each time with all that they are run with.
    Work = list[tuple[Experiment, list[Setup]]]

__all__ = ["can_run", "check_not_only", "chosen", "show", "tell_networks", "with_groups", "work_of"]

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


def with_groups(part: "Experiment", wanted: "Wanted", *, part_of_all: bool) -> "Experiment":
    """The settings for whose groups there are enough images; without `all`, too few for any are refused."""
    from saddlepoint import experiments as room

    if not part_of_all:
        with usage(limit="--limit"):
            room.check_groups(part, wanted.limit, wanted.parameters)
        return part
    few = room.too_few(part, wanted.limit)
    return replace(
        part,
        blocks=tuple(block for block in part.blocks if block.key not in few),
        measurements=tuple(each for each in part.measurements if each.block.key not in few),
    )


def work_of(experiment: "Experiment", wanted: "Wanted", *, filtered: bool) -> "Work":
    """What is run: all settings in the same way, but those of published tables.

    Args:
        experiment: With the settings that are wanted.
        wanted: How they are run.
        filtered: As in `_sources_of`.
    """
    from saddlepoint import experiments as room

    more: dict[str, Any] = {"seed": wanted.seed, "parameters": wanted.parameters}
    more["command"] = wanted.command(experiment.name)
    if not wanted.published:
        more["limit"] = room.FULL if wanted.full else wanted.limit
        more["precision"] = wanted.precision or "float32"
        sources = _sources_of(experiment, wanted, filtered=filtered)
        return [(experiment, [room.Setup(*source, **more) for source in sources])]
    work: Work = []
    for part, own in room.published_parts(experiment):
        more |= {"limit": own.images, "precision": own.precision}
        there = ((m, c) for c in own.labels for m in own.methods)
        sources = [(m, c) for m, c in there if m in part.methods and c in part.labels]
        work.append((part, [room.Setup(*source, **more) for source in sources]))
    return work


def can_run(work: "Work", wanted: "Wanted") -> "Work":
    """That of which some setting has networks, and some method and label."""
    from saddlepoint import experiments as room

    found: Work = []
    for part, setups in work:
        gone = room.skipped(part, wanted.parameters)
        if setups and any(block.key not in gone for block in part.every_block):
            found.append((part, setups))
    return found


def _sources_of(
    experiment: "Experiment", wanted: "Wanted", *, filtered: bool
) -> "list[tuple[Method, Labels]]":
    """What to run in turn: the choices given, and of "both" and "all" those that the experiment has.

    Of single choices, too, if it is `filtered`: where many experiments are run, some are not about them.
    """
    from saddlepoint.experiments import LABELS, METHODS

    method, labels = wanted.method or "apgda", wanted.labels or "true"
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


def show(name: str | None, wanted: "Wanted") -> int:
    """List experiments with their minutes."""
    import torch

    from saddlepoint import experiments as room

    whole, jobs = name in (None, "all"), wanted.jobs
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
        work = work_of(part, wanted, filtered=True)
        costs = [
            room.estimate(
                some,
                wanted.parameters,
                None if wanted.full else setups[0].limit,
                sources=[(setup.method, setup.labels) for setup in setups],
                jobs=jobs,
                threads=threads,
            )
            for some, setups in work
            if setups
        ]
        here, most = (sum(getattr(c, n) for c in costs) for n in ("minutes", "full_minutes"))
        minutes, full = minutes + here, full + most
        figures = f"{minutes_of(here):>9}{minutes_of(most):>9}"
        print(f"{part.name:<29}{_images(part, wanted):>9}{figures}  {part.source}")
        missing = dict.fromkeys(network for cost in costs for network in cost.missing)
        if not costs:
            about = f"{' or '.join(part.methods)} with {' or '.join(part.labels)} labels"
            print(f"{'':<29}  not run: it is about {about}")
        elif missing:
            print(f"{'':<29}  not counted: no parameters for {', '.join(missing)}")
    if whole:
        print(f"{'  total':<38}{minutes_of(minutes):>9}{minutes_of(full):>9}")
    return 0


def _counted(wanted: "Wanted", threads: int) -> str:
    """What the minutes of a list are."""
    from saddlepoint.experiments import METHODS

    several: dict[str, list[str]] = {"both": ["apgda", "attack"], "all": [*METHODS]}
    method = wanted.method or "apgda"
    few = several.get(method, [method])
    methods = " and ".join([", ".join(few[:-1]), few[-1]] if len(few) > 1 else few)
    both = wanted.labels == "both"
    # `attack` leaves rows alone that are fooled, and predicted labels that are true are not attacked again.
    most = ", at most," if both or few != ["apgda"] else ""
    labels = "true and predicted" if both else wanted.labels or "true"
    shared = f", shared by {wanted.jobs} processes" if wanted.jobs > 1 else ""
    lower = wanted.precision or "float32"
    bits = "" if lower == "float32" else f", in float32 (--precision {lower} is not counted)"
    images = "default number of images" if wanted.limit is None else f"--limit {wanted.limit}"
    timed = "by the processor's clock, with one thread: longer where others use it"
    if threads > 1:
        timed = f"by the clock, with {threads} threads, beside what else is running"
    if wanted.published:
        return (
            f"minutes on this machine, at most, for images, methods and labels as published{shared}, in "
            f"float32 (lower precision is not counted), and all 10,000; networks timed {timed}"
        )
    return (
        f"minutes on this machine{most} for {methods} with {labels} labels{shared}{bits}: {images}, and all "
        f"10,000 (--full); networks timed {timed}"
    )


def _images(experiment: "Experiment", wanted: "Wanted") -> str:
    """How many images an experiment is run on, from the fewest to the most."""
    from saddlepoint.experiments import published_parts

    limits = {block.limit or experiment.limit for block in experiment.blocks} or {experiment.limit}
    if wanted.published:
        limits = {own.images for _, own in published_parts(experiment)}
    if wanted.limit is not None:
        limits = {wanted.limit}
    return "-".join(map(str, sorted({min(limits), max(limits)})))
