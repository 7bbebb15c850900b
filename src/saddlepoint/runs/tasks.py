"""The order of a run, once for all kinds: load, assemble, look, record, examine, open, work; then it is drawn.

A command makes a task of its settings, and `carried_out` takes it from station to station. Whoever watches is
told where it is, and decides what an error there means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, final

from torch import Tensor

from saddlepoint.evaluation import SavedImages
from saddlepoint.evaluation.origins import Origin
from saddlepoint.evaluation.saved_images import save_perturbed
from saddlepoint.runs import patching
from saddlepoint.runs.build import ball_of, job_of, problem_of, record_of, rules_of
from saddlepoint.runs.execute import Execution, opened
from saddlepoint.runs.preparing import Prepared, prepared, with_precisions
from saddlepoint.runs.reading import read_results
from saddlepoint.runs.record import Run
from saddlepoint.runs.refusals import answers
from saddlepoint.runs.rows import Job, attack_rows
from saddlepoint.runs.settings import AttackSettings, EvaluateSettings, TrainSettings
from saddlepoint.runs.shown import files_of_rows
from saddlepoint.runs.targets import aimed, without
from saddlepoint.runs.victims import victims_of

__all__ = [
    "AbstractTask",
    "AttackTask",
    "Download",
    "ImagesTask",
    "Onlooker",
    "Station",
    "carried_out",
    "worked",
]

Station = Literal["load", "assemble", "look", "record", "examine", "open", "work", "draw"]
Download = Callable[[str, int, int], None]
S = TypeVar("S", AttackSettings, EvaluateSettings, TrainSettings)
P = TypeVar("P", AttackSettings, EvaluateSettings)


class Onlooker(Protocol):
    """Who is told how a run goes on, and says what an error means; what it does not define does nothing."""

    def at(self, station: Station) -> AbstractContextManager[Any]:
        """Around a station; gives what is told of the progress of downloads or of the work, or None.

        At "draw" are only experiments, which draw the pages of their runs themselves.
        """
        del station
        return nullcontext()

    def assembled(self, images: int) -> None:
        """So many images were loaded, and the settings of the task are those that the run will have."""
        return

    def opened(self, execution: Execution) -> None:
        """The folder is open."""
        return

    def failed(self, execution: Execution) -> None:
        """An error has ended the work, and something of it is on disk."""
        return


@final
class _Nobody(Onlooker):
    """Says nothing, and lets errors be what they are."""


@dataclass(kw_only=True)
class AbstractTask(ABC, Generic[S]):
    """A run of some kind before it is on disk.

    Attributes:
        settings: As asked; from station to station they become those of the run.
        flags: What the line that repeats the run has besides the settings.
        command: That line, if it is another one.
    """

    settings: S
    flags: Mapping[str, object] = field(default_factory=dict)
    command: str | None = None

    @property
    def line(self) -> str:
        """The line that repeats the run."""
        return self.command or self.settings.command(**self.flags)

    @abstractmethod
    def load(self, progress: Download | None) -> int:
        """Find what the settings name; how many images that is."""

    @abstractmethod
    def assemble(self, folder: Path, *, resume: bool) -> None:
        """Make of it what the run needs; models are asked only for predicted labels and precision "auto"."""

    def look(self) -> None:
        """Ask the models."""

    @abstractmethod
    def record(self) -> Run:
        """The record of the run as it begins."""

    def examined(self, run: Run) -> Run:
        """The record with what is found out before the folder is touched: a refused run replaces none."""
        return run

    @abstractmethod
    def ask(self) -> Tensor | None:
        """What the models answer, which has to be as it was when the run began."""

    @abstractmethod
    def work(self, execution: Execution, callback: Any) -> None:
        """Do it, and finish the run."""


def carried_out(
    task: AbstractTask[Any],
    folder: Path,
    watch: Onlooker | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> Run:
    """Bring a task to its end in a folder. All processes that share the work call this together.

    Args:
        task: What to do.
        folder: Where it goes.
        watch: Told how it goes on.
        resume: As in `opened`.
        overwrite: As in `opened`.

    Returns:
        The complete record.

    Raises:
        RunInterrupted: The work was stopped; everything finished is on disk. Before the folder is open there is
            nothing to continue, and Ctrl-C is what it is elsewhere.
    """
    watch, given = watch or _Nobody(), task.settings.model_dump()
    with watch.at("load") as progress:
        images = task.load(progress)
    with watch.at("assemble"):
        task.assemble(folder, resume=resume)
        watch.assembled(images)
    with watch.at("look"):
        task.look()
    with watch.at("record"):
        run = task.record()
        become = task.settings.model_dump()
        other = {name: value for name, value in given.items() if become[name] != value}
        run = run.but(asked={name: value for name, value in other.items() if value is not None})
    with watch.at("examine"):
        run = task.examined(run)
    how = {"resume": resume, "overwrite": overwrite}
    return worked(run, folder, task.work, watch, ask=task.ask, **how)


def worked(
    run: Run,
    folder: Path,
    work: Callable[[Execution, Any], object],
    watch: Onlooker | None = None,
    *,
    resume: bool,
    overwrite: bool = False,
    ask: Callable[[], Tensor | None] | None = None,
) -> Run:
    """The last two stations: open the folder of a run, and do the work unless it is complete.

    Args:
        run: The new record.
        folder: Where it goes.
        work: Finishes an open run; gets what `watch` wants to be told of its progress too.
        watch: Told how it goes on.
        resume: As in `opened`.
        overwrite: As in `opened`.
        ask: As in `opened`.

    Returns:
        The complete record.
    """
    watch, execution = watch or _Nobody(), None
    try:
        with ExitStack() as stack:
            with watch.at("open"):
                manager = opened(run, folder, resume=resume, overwrite=overwrite, ask=ask)
                execution = stack.enter_context(manager)
            watch.opened(execution)
            if not execution.complete:
                with watch.at("work") as callback:
                    work(execution, callback)
            return execution.run
    except Exception:
        if execution is not None and execution.run.status == "failed":
            watch.failed(execution)
        raise


@dataclass(kw_only=True)
class ImagesTask(AbstractTask[P]):
    """What attacks and evaluations have in common: images, and models that may be code of others."""

    trust: bool = False
    ready: Prepared[P] = field(init=False)

    def load(self, progress: Download | None) -> int:
        """Find images and models."""
        self.ready = prepared(self.settings, trust=self.trust, progress=progress)
        self.settings = self.ready.settings
        return len(self.ready.images.x)


@final
@dataclass(kw_only=True)
class AttackTask(ImagesTask[AttackSettings]):
    """An attack of any kind."""

    make: Callable[[], Job] = field(init=False)
    job: Job = field(init=False)

    def assemble(self, folder: Path, *, resume: bool) -> None:
        """Make the problem, for which models are asked if labels are predicted; the look at them comes next."""
        settings, ready = self.settings, self.ready
        classes, models = ready.images.classes, ready.models
        x, y = without(settings, ready.x, ready.y, classes)
        problem = problem_of(settings, x, y, models)
        test = patching.test_of(settings, problem, x, y, models)
        if settings.targeted is not None:
            problem = aimed(problem, settings.targeted, classes)
            test = test and test.aimed(settings.targeted, classes)
        victims = victims_of(settings, problem, x, y, ready.victims)
        self.settings, _ = with_precisions(settings, problem, folder, resume=resume)
        rules_of(self.settings, problem)
        self.make = partial(job_of, self.settings, problem, victims, test)

    def look(self) -> None:
        """Make the job."""
        self.job = self.make()

    def ask(self) -> Tensor | None:
        """What the models say to the first images."""
        return answers(self.job.problem)

    def record(self) -> Run:
        """The record of an attack that begins."""
        r, problem = self.ready, self.job.problem
        return record_of(self.settings, problem, r.images, r.models, self.line, r.victims)

    def work(self, execution: Execution, callback: Any) -> None:
        """Attack all rows."""
        attack_rows(self.job, execution, callback=callback)

    def save_images(self, folder: Path, images: Path) -> SavedImages:
        """Save the adversarial images of the finished run in `folder` as pictures in `images`."""
        problem, settings, given = self.job.problem, self.settings, self.ready.images
        delta = read_results(folder)[1]["delta"].to(problem.lower)
        origin = Origin(given.classes, files_of_rows(settings, given))
        ball, reach = ball_of(settings).ball, settings.targeted is not None
        return save_perturbed(problem, delta, ball, images, targeted=reach, origin=origin)
