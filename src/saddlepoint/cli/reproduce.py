"""`saddlepoint reproduce`: an experiment of the paper, with our numbers beside the paper's."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from .errors import UsageError, usage

if TYPE_CHECKING:
    from saddlepoint.experiments import Experiment, Method, Step

__all__ = ["reproduce"]

Flag = Annotated[bool, Parameter(negative=())]


def reproduce(
    name: str | None = None,
    *,
    show_list: Annotated[bool, Parameter(name="--list", negative=())] = False,
    limit: int | None = None,
    full: Flag = False,
    method: Literal["apgda", "attack", "both"] = "apgda",
    only: tuple[str, ...] = (),
    out: Path | None = None,
    resume: Flag = False,
    figures: Path | None = None,
    weights: Path | None = None,
    seed: int = 0,
    quiet: Flag = False,
) -> int:
    """Run an experiment of the paper, and write its table and figure with the paper's numbers.

    Args:
        name: Which experiment; --list names them.
        show_list: List the experiments with what they cost on this machine.
        limit: Use the first so many test images. [default: for at most ten minutes on two cores]
        full: Use all 10,000 test images.
        method: apgda (the paper's algorithm and step sizes), attack (ours), or both in turn where the
            experiment is not about one of them.
        only: Run this setting only, as the table names it, such as "l2, eps 3"; give it once per setting. The
            table shows whatever is in the folder.
        out: Folder for results, tables and figures; the methods share it. [default: runs/NAME]
        resume: Continue what is in the folder; finished rows are not run again.
        figures: Folder for the figures. [default: the folder of the results]
        weights: Folder with NAME.safetensors and NAME.json of networks that are not shipped.
        seed: Of groups, random transformations and random starts.
        quiet: Print errors only.
    """
    if full and limit is not None:
        raise UsageError(f"`--limit` must be left out with --full, got {limit}.")
    if weights is not None and not weights.is_dir():
        raise UsageError(f"`--weights` must be a folder that exists, got {str(weights)!r}.")
    from saddlepoint import experiments as room

    if show_list:
        return _list([room.find(name)] if name else list(room.EXPERIMENTS.values()), weights)
    if name is None:
        raise UsageError("`reproduce` must be given the name of an experiment; --list shows them.")
    with usage():
        experiment = room.find(name)
        part = room.settings(experiment, only)
    folder = Path("runs") / name if out is None else out
    chosen: tuple[Method, ...] = experiment.methods if method == "both" else (method,)
    limit = room.FULL if full else limit
    reasons = list(dict.fromkeys(room.skipped(experiment, weights).values()))
    for way in chosen:
        try:
            _run(part, folder, way, limit, seed, weights, resume=resume, quiet=quiet)
        except KeyboardInterrupt:
            again = shlex.join(_words(name, method, limit, full, folder, seed, weights, only))
            print(f"stopped; continue with: {again} --resume", file=sys.stderr)
            return 130
    tables, files = room.publish(experiment, folder, figures=figures, skipped=reasons)
    if not quiet:
        print(room.to_markdown(tables[0]))
        for file in files:
            print(file)
    return 0


def _run(
    experiment: "Experiment",
    folder: Path,
    method: "Method",
    limit: int | None,
    seed: int,
    weights: Path | None,
    *,
    resume: bool,
    quiet: bool,
) -> None:
    from saddlepoint import experiments as room
    from saddlepoint.report import Interrupted

    from . import progress

    with progress.downloads() as download, _bar(f"{experiment.name} {method}", quiet) as tell:
        setup = room.Setup(method, limit, seed, weights, download=download)
        try:
            room.reproduce(experiment, folder, setup, resume=resume, callback=tell)
        except Interrupted as stop:
            raise KeyboardInterrupt from stop


@contextmanager
def _bar(title: str, quiet: bool) -> "Iterator[Callable[[Step], None]]":
    """One line per finished row, on stderr; on a terminal also where the row under way stands."""
    live = sys.stderr.isatty() and not quiet
    began, done, shown = time.monotonic(), 0, 0.0

    def tell(step: "Step") -> None:
        nonlocal began, done, shown
        now = time.monotonic()
        if step.done > done:
            done = step.done
            if not quiet:
                clear = "\r\033[K" if live else ""
                line = f"{clear}{title} [{done}/{step.total}] {step.label}: {now - began:.1f} s"
                print(line, file=sys.stderr, flush=True)
            began = now
        elif live and now - shown > 0.2:
            shown = now
            line = f"\r\033[K{title} [{done + 1}/{step.total}] {step.label}: {step.fraction:.0%}"
            print(line, end="", file=sys.stderr, flush=True)

    yield tell


def _list(experiments: "list[Experiment]", weights: Path | None) -> int:
    from saddlepoint import experiments as room

    print(
        "minutes on this machine for one method: default number of images, and all 10,000 (--full)"
    )
    print(f"{'name':<29}{'images':>9}{'minutes':>9}{'full':>9}  in the paper")
    for experiment in experiments:
        cost = room.estimate(experiment, weights)
        figures = f"{_minutes(cost.minutes):>9}{_minutes(cost.full_minutes):>9}"
        print(f"{experiment.name:<29}{_images(experiment):>9}{figures}  {experiment.source}")
        if cost.missing:
            print(f"{'':<29}  not counted: no weights for {', '.join(cost.missing)}")
    return 0


def _images(experiment: "Experiment") -> str:
    limits = {block.limit or experiment.limit for block in experiment.blocks} or {experiment.limit}
    return f"{min(limits)}-{max(limits)}" if len(limits) > 1 else str(experiment.limit)


def _minutes(minutes: float) -> str:
    return "-" if minutes == 0 else f"{minutes:.1f}" if minutes < 100 else f"{minutes:.0f}"


def _words(
    name: str,
    method: str,
    limit: int | None,
    full: bool,
    folder: Path,
    seed: int,
    weights: Path | None,
    only: tuple[str, ...],
) -> list[str]:
    """The command line of this run."""
    words = ["saddlepoint", "reproduce", name, "--method", method, "--out", str(folder)]
    if full:
        words.append("--full")
    elif limit is not None:
        words += ["--limit", str(limit)]
    words += [word for label in only for word in ("--only", label)]
    words += ["--seed", str(seed)] if seed else []
    return words + (["--weights", str(weights)] if weights is not None else [])
