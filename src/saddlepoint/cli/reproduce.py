"""`saddlepoint reproduce`: an experiment of the paper, with our numbers beside the paper's."""

import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

from cyclopts import Parameter

from saddlepoint.counts import check_seed_range

from .cluster import joined, processes, together
from .errors import LibraryError, UsageError, library, usage
from .experiments_shown import (
    can_run,
    check_not_only,
    chosen,
    show,
    tell_networks,
    with_groups,
    work_of,
)
from .flags import Flag
from .forecasts import Told, tell_at_most

if TYPE_CHECKING:
    from saddlepoint.experiments import Answers, Experiment, Setup
    from saddlepoint.runs.tasks import Station

__all__ = ["Wanted", "reproduce"]


@Parameter(name="*")
@final
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The flags by which every experiment of the command is run."""

    limit: int | None = None
    """Use the first so many test images. [default: what --list names, with the minutes it takes]"""
    full: Flag = False
    """Use all 10,000 test images."""
    published: Flag = False
    """Run what the tables of docs/RESULTS.md show: the images, methods, labels and precision that every
    experiment has there, which --list --published names."""
    method: Literal["apgda", "attack", "attack-5", "both", "all"] | None = None
    """apgda (the paper's algorithm and step sizes), attack (ours, one restart of as many steps), attack-5
    (ours, up to five restarts), both (apgda and attack), or all three; as far as the experiment is not about
    one of them. [default: apgda]"""
    labels: Literal["true", "predicted", "both"] | None = None
    """The class that is attacked: the true one, the one each domain predicts (as the authors' code does), or
    both in turn. Success is counted against the true class. [default: true]"""
    only: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    """Run this setting only, as the table names it, such as "l2, eps 3"; give it once per setting. The files
    hold whatever is in the folder."""
    out: Path | None = None
    """Folder for results, tables and figures; methods and labels share it. [default: runs/NAME, of all runs]"""
    resume: Flag = False
    """Continue what is in the folder; finished rows are not run again."""
    figures: Path | None = None
    """Folder for the figures. [default: the folder of the results]"""
    parameters: Path | None = None
    """Folder with networks of your own, NAME.safetensors and NAME.json: copies of model.safetensors and
    model.json of a training. NAME is that of the network, such as mnist-c for C on MNIST; they go before
    shipped ones."""
    precision: (
        Literal["float32", "bfloat16", "float32+channels_last", "bfloat16+channels_last"] | None
    ) = None
    """What networks compute in while they are attacked; verdicts are in float32. bfloat16 takes less
    time for large networks, such as B and E, where the processor has it; channels last is another layout of
    parameters and images, from which H gains most. [default: float32]"""
    store: Path | None = None
    """Folder for a summary of the results, NAME.json, from which --summary writes tables."""
    seed: int = 0
    """Of groups, random transformations and random starts."""
    jobs: int = 1
    """Processes that share the rows, such as one per core; the same as under torchrun."""
    quiet: Flag = False
    """Print errors only."""

    def check(self) -> None:
        """Refuse flags that contradict each other."""
        for flag in ("limit", "method", "labels", "precision", "full") if self.published else ():
            if value := getattr(self, flag):
                raise UsageError(
                    f"`--{flag}` must be left out with --published, which has its own, got {value}."
                )
        if self.full and self.limit is not None:
            raise UsageError(f"`--limit` must be left out with --full, got {self.limit}.")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"`--limit` must be at least 1, got {self.limit}.")
        if self.parameters is not None and not self.parameters.is_dir():
            raise UsageError(
                f"`--parameters` must be a folder that exists, got {str(self.parameters)!r}."
            )
        if self.jobs < 1:
            raise UsageError(f"`--jobs` must be at least 1, got {self.jobs}.")
        with usage(seed="--seed"):
            check_seed_range(self.seed)

    def command(self, name: str) -> str:
        """The line that repeats an experiment, as its records have it."""
        from saddlepoint.experiments.places import line_of

        method = None if self.published else self.method or "apgda"
        labels, precision = self.labels or "true", self.precision or "float32"
        asked = method, labels, self.limit, self.seed, self.parameters, precision
        return line_of(name, *asked, full=self.full, published=self.published, only=self.only)

    def line(self, name: str, *, resume: bool = False) -> str:
        """The command again, which goes on in its folder and says as much."""
        from saddlepoint.runs import texts

        out = Path("runs") if name == "all" else Path("runs") / name
        more: dict[str, object] = {"out": self.out or out}
        more |= {"jobs": self.jobs if self.jobs > 1 else None, "quiet": self.quiet}
        more |= {"figures": self.figures, "store": self.store}
        more["resume"] = resume or self.resume
        return texts.line(shlex.split(self.command(name))[1:], more)


def reproduce(
    name: str | None = None,
    *,
    show_list: Annotated[bool, Parameter(name="--list", negative=())] = False,
    summary: Path | None = None,
    wanted: Wanted | None = None,
) -> int:
    """Run an experiment of the paper, and write its table and figure with the paper's numbers.

    Args:
        name: Which experiment; --list names them. all runs one after the other, each into a folder of its own
            in --out, and with --resume goes on wherever it was stopped.
        show_list: List the experiments with what they cost on this machine, as --limit, --published, --method,
            --labels, --only and --jobs say, and stop.
        summary: Write the tables and claims of this Markdown file, or of all in this folder, such as docs, from
            the summaries in --store, and stop: each between two lines such as `<!-- table: ensemble-mnist -->`
            and `<!-- end -->`. [default of --store here: the folder `results` beside the file]
        wanted: How it is run.
    """
    from saddlepoint.experiments import Answers

    wanted = wanted or Wanted()
    wanted.check()
    if summary is not None:
        return _write_tables(summary, wanted.store)
    if show_list:
        return show(name, wanted)
    if name is None:
        raise UsageError("`reproduce` must be given the name of an experiment; --list shows them.")
    if wanted.jobs > 1 and processes() == 1:
        return together(wanted.jobs, wanted.line(name), wanted.line(name, resume=True))
    with joined() as rank:
        places = _places(name, wanted)
        _check_places(places, wanted)
        every = (chosen(each, wanted) for each, _ in places)
        parts = [with_groups(part, wanted, part_of_all=name == "all") for part in every]
        silent, told = wanted.quiet or rank != 0, Told()
        tell_networks(parts, wanted, quiet=silent)
        folders = [folder for _, folder in places]
        if name == "all" and not silent:
            works = [work_of(part, wanted, filtered=True) for part in parts]
            tell_at_most([*zip(folders, works, strict=True)])
        one = partial(_one, wanted=wanted, rank=rank, told=told, part_of_all=name == "all")
        answers = Answers(folders)
        for part, folder in zip(parts, folders, strict=True):
            try:
                one(part, folder, answers)
            except (KeyboardInterrupt, LibraryError) as stop:
                if not rank:
                    again = wanted.line(name, resume=True)
                    print(f"stopped; continue with: {again}", file=sys.stderr)
                if isinstance(stop, LibraryError):
                    raise
                return 130
        if name == "all":
            told.tell(name)
    return 0


def _places(name: str, wanted: Wanted) -> list[tuple[str, Path]]:
    """The experiments to run, and the folder of each."""
    from saddlepoint.experiments import EXPERIMENTS

    if name != "all":
        return [(name, Path("runs") / name if wanted.out is None else wanted.out)]
    check_not_only(wanted)
    return [(each, (wanted.out or Path("runs")) / each) for each in EXPERIMENTS]


def _check_places(places: list[tuple[str, Path]], wanted: Wanted) -> None:
    """Refuse, before the first experiment is run, what is in the way of any of them."""
    from saddlepoint import experiments as room
    from saddlepoint.experiments.places import check_place
    from saddlepoint.training.distributed import World

    def check() -> None:
        for name, folder in places:
            experiment = room.find(name)
            work = work_of(experiment, wanted, filtered=True)
            for setup in (setup for _, setups in work for setup in setups):
                target, pictures = folder / setup.labels / setup.method, wanted.figures
                check_place(experiment, folder, target, resume=wanted.resume, figures=pictures)

    with usage():
        World.current().agree(check)


def _one(
    part: "Experiment",
    folder: Path,
    answers: "Answers",
    *,
    wanted: Wanted,
    rank: int,
    told: Told,
    part_of_all: bool,
) -> None:
    """Run an experiment with every method and label that is wanted, and publish it."""
    from saddlepoint import experiments as room

    name, experiment = part.name, room.find(part.name)
    gone = room.skipped(part, wanted.parameters)
    few = room.too_few(experiment, wanted.limit) if part_of_all else {}
    reasons = list(dict.fromkeys([*gone.values(), *few.values()]))
    every = work_of(part, wanted, filtered=part_of_all)
    work = can_run(every, wanted)
    if part_of_all and not work:
        if not rank:
            print(
                f"{name} is left out: {reasons[0] if reasons else 'not with this method'}",
                file=sys.stderr,
            )
        return
    for reason in dict.fromkeys(few.values()) if not rank else ():
        without = "; ".join(b.label for b in experiment.blocks if few.get(b.key) == reason)
        print(f"{name}: without {without}: {reason}", file=sys.stderr)
    used = {n for block in part.every_block if block.key not in gone for n in block.networks}
    _check_store(experiment, folder, used, wanted)
    silent = wanted.quiet or rank != 0
    with nullcontext() if silent else told.of(name, folder, work, wanted.command(name)):
        for number, (some, setups) in enumerate(work or every):
            for setup in setups:  # what comes later goes into folders that others have begun
                resume = wanted.resume or number > 0
                _run(some, folder, setup, answers, resume=resume, quiet=silent)
        if not rank:
            _publish(part, folder, wanted, reasons)


def _publish(part: "Experiment", folder: Path, wanted: Wanted, reasons: list[str]) -> None:
    """Write tables, figures and the summary of everything in the folder, and show the table of a part."""
    from saddlepoint import experiments as room

    from . import printing

    experiment, tell = room.find(part.name), partial(print, file=sys.stderr, flush=True)
    with library():
        tables, files = room.publish(
            experiment, folder, figures=wanted.figures, skipped=reasons, waiting=tell
        )
        if wanted.store is not None:
            store = wanted.store
            files.append(room.write_summary(experiment, folder, store, waiting=tell, replaced=tell))
    if not wanted.quiet:
        table, kept = tables[0], {block.label for block in part.blocks}
        if wanted.only and table.columns[0].name == "Setting":
            table = replace(table, lines=tuple(each for each in table.lines if each[0] in kept))
        printing.results_table(table)
        pages = (
            place / "compare.html"
            for each in part.blocks
            for place in folder.glob(f"*/*/{each.key}")
        )
        for file in (*files, *filter(Path.is_file, sorted(pages))):
            print(file)


def _check_store(experiment: "Experiment", folder: Path, used: set[str], wanted: Wanted) -> None:
    """Refuse a summary to which what is in the folder, and is about to be run, cannot be added."""
    from saddlepoint import experiments as room
    from saddlepoint.experiments.block_parts import check_stored
    from saddlepoint.experiments.places import networks_in
    from saddlepoint.experiments.summary_files import read_content

    store = wanted.store
    if store is None or not (store / f"{experiment.name}.json").is_file():
        return
    with usage(store="--store"):
        room.check_store(experiment, store)
        ours = dict.fromkeys(sorted(used), "") | networks_in(folder)
        stored = read_content(experiment, store)["networks"]
        check_stored(stored, ours, experiment.name, wanted.parameters)


def _write_tables(place: Path, store: Path | None) -> int:
    from saddlepoint import experiments as room
    from saddlepoint.experiments.document import has_markers
    from saddlepoint.files import write_atomically

    if not place.exists():
        raise UsageError(f"`--summary` must be a file or folder that exists, got {str(place)!r}.")
    documents = sorted(place.glob("*.md")) if place.is_dir() else [place]
    texts = {document: document.read_text(encoding="utf-8") for document in documents}
    if not any(map(has_markers, texts.values())):
        raise UsageError(
            "`--summary` must be a Markdown file, or a folder with one, that says where its tables are, each "
            "between two lines such as `<!-- table: ensemble-mnist -->` and, below it, `<!-- end -->`, got "
            f"`{place}` without any."
        )
    for document, before in texts.items():
        with usage():
            try:
                text = room.write_tables(before, store or document.parent / "results")
            except ValueError as error:
                raise ValueError(f"`{document}`: {error}") from error
        if text != before:
            write_atomically(document, text.encode())
    return 0


def _run(
    experiment: "Experiment",
    folder: Path,
    setup: "Setup",
    answers: "Answers",
    *,
    resume: bool,
    quiet: bool,
) -> None:
    from saddlepoint import experiments as room
    from saddlepoint.runs.tasks import Onlooker

    from . import progress

    class Rows(Onlooker):
        """Says what an error in a row means; what there is to see is told by the bar."""

        def at(self, station: "Station") -> AbstractContextManager[None]:
            return library() if station in ("work", "draw") else usage()

    title = f"{experiment.name} {room.Source(setup.method, setup.labels).name}"
    with progress.reproducing(title, quiet=quiet) as (tell, download):
        setup = replace(setup, download=download)
        more: Any = {"callback": tell, "watch": Rows(), "answers": answers}
        room.reproduce(experiment, folder, setup, resume=resume, **more)
