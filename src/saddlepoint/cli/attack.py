"""`saddlepoint attack`: one perturbation against several models, images or views."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from saddlepoint.runs.settings import (
    ATTACKS,
    EnsembleSettings,
    PatchSettings,
    TransformSettings,
    UniversalSettings,
)

from .errors import data_taken
from .flags import ImagesRunning, check_models, given, takes

if TYPE_CHECKING:
    from saddlepoint.evaluation.origins import Origin
    from saddlepoint.problems import AbstractProblem
    from saddlepoint.runs import Job, Run
    from saddlepoint.runs.preparing import Prepared
    from saddlepoint.runs.settings import AttackSettings

__all__ = ["app", "run_attack"]


def _examples(*lines: str) -> str:
    return "\n".join(["Examples:", "", *(f"- `saddlepoint attack {line}`" for line in lines)])


app = App(
    name="attack",
    help="Find one perturbation that fools all models, all images of a group, or all views at once.",
    help_epilogue=_examples("ensemble --data mnist-sample --models A,C,D --eps 0.2"),
)


@app.command(
    help_epilogue=_examples(
        "ensemble --models A,C,D --eps 0.2 --baseline average --limit 200",
        "ensemble --models A,B --victims C,D --keep-going --eps 0.2",
        "ensemble --data photos/ --models a.safetensors:A,my.nets:big --norm l2 --eps 3",
        "ensemble --config mine.yaml --eps 8/255 --out runs/mine",
    )
)
@takes(EnsembleSettings)
def ensemble(*, settings: Any = None, running: ImagesRunning | None = None) -> int:
    """One perturbation per image that fools several models at once."""
    return _go("ensemble", settings, running)


@app.command(
    help_epilogue=_examples(
        "universal --data cifar10-sample --models A --group-size 3 --eps 4/255",
        "universal --models C --group-size 3 --by-class --box clip",
    )
)
@takes(UniversalSettings)
def universal(*, settings: Any = None, running: ImagesRunning | None = None) -> int:
    """One perturbation per group of images that fools one model on all of them."""
    return _go("universal", settings, running)


@app.command(
    help_epilogue=_examples(
        "transform --data cifar10-sample --models A --eps 0.03",
        "transform --models C --eps 0.2 --transforms identity,hflip,rotate:30 --baseline average",
    )
)
@takes(TransformSettings)
def transform(*, settings: Any = None, running: ImagesRunning | None = None) -> int:
    """One perturbation per image that fools the model through several transformations."""
    return _go("transform", settings, running)


@app.command(
    help_epilogue=_examples(
        "patch --data cifar10-sample --models A,C --patch 8 --baseline average",
        "patch --models A --patch mask.png --targeted cat --views anywhere,anywhere+rotate:-30..30",
    )
)
@takes(PatchSettings)
def patch(*, settings: Any = None, running: ImagesRunning | None = None) -> int:
    """One patch for many images, views and models, tested on images and looks it was not made for."""
    return _go("patch", settings, running)


def _go(kind: str, flags: Any, running: ImagesRunning | None) -> int:
    from . import folders, show
    from .cluster import joined

    running = running or ImagesRunning()
    check_models(given(flags))
    with show.warnings_as_notes(quiet=running.quiet):
        settings = ATTACKS[kind].load(given(flags), running.config, trust=running.trust)
    if running.print_config:
        print(settings.to_yaml(), end="")
        return 0
    folders.check_shared(running)
    named = running.config is not None or given(flags).get("data") is not None
    with joined() as rank:
        return run_attack(settings, running, rank=rank, named=named)


def run_attack(
    settings: "AttackSettings",
    running: ImagesRunning,
    *,
    rank: int = 0,
    command: str | None = None,
    named: bool = True,
) -> int:
    """Run an attack and leave `run.json`, `tensors.safetensors` and `report.html` in a folder.

    Args:
        settings: What decides the numbers.
        running: Where things go and how much is said.
        rank: Number of this process, where several share the work; all call this, and the first one writes.
        command: The line that repeats the run, if it is not the one of the settings.
        named: Whether the user has named the images.
    """
    from saddlepoint import runs
    from saddlepoint.evaluation.origins import Origin
    from saddlepoint.runs import build
    from saddlepoint.runs.record import ROW_NOUNS
    from saddlepoint.runs.refusals import answers
    from saddlepoint.runs.shown import files_of_rows

    from . import folders, progress, show
    from .errors import library, usage

    quiet = running.quiet or rank != 0
    name = f"{settings.kind}-{Path(settings.data).stem}-{settings.norm}"
    folder = folders.run_folder(name, running)
    folders.check_images(running, folder)
    with data_taken(settings.data, given=named):
        ready, settings, job = _prepared(settings, running, folder, quiet=quiet)
    command = command or settings.command(trust=running.trust)
    with usage():
        run = build.record_of(
            settings, job.problem, ready.images, ready.models, command, ready.victims
        )
    title = f"{settings.kind} {settings.data}"
    noun = ROW_NOUNS.get(settings.kind, "images")
    try:
        with folders.opened(
            run, folder, running, quiet=quiet, ask=lambda: answers(job.problem)
        ) as execution:
            run = execution.run
            if not execution.complete:
                bar = progress.attacking(title, noun, quiet=quiet)
                with library(), show.warnings_as_notes(quiet=quiet), bar as callback:
                    run = runs.attack_rows(job, execution, callback=callback)
    except runs.RunInterrupted as stop:
        saved = f"{stop.run.done} of {run.rows} {noun} are done and saved"
        return folders.stopped(saved, run, folder, running)
    for line in run.warnings:
        show.note(f"saddlepoint: warning: {line}", quiet=quiet)
    if rank:
        return 0
    if running.save_images is not None:
        origin = Origin(ready.images.classes, files_of_rows(settings, ready.images))
        _save_images(settings, job.problem, folder, running.save_images, origin, quiet=quiet)
    return _finish(run, folder, quiet=quiet, as_json=running.json)


def _prepared(
    settings: "AttackSettings", running: ImagesRunning, folder: Path, *, quiet: bool
) -> "tuple[Prepared[AttackSettings], AttackSettings, Job]":
    """Load images and models, and make the problem: the settings are those that the run has in the end."""
    from saddlepoint.runs import build
    from saddlepoint.runs.preparing import prepared

    from . import progress, show
    from .errors import library, usage

    with usage(), show.warnings_as_notes(quiet=quiet):
        with progress.downloads() as downloading:
            ready = prepared(settings, trust=running.trust, progress=downloading)
        show.size_used(settings.size, ready.settings.size, ready.settings.crop, quiet=quiet)
        show.limit_used(settings.limit, len(ready.images.x), quiet=quiet)
        asked = settings.precision
        settings, make_job = build.assembled(ready, folder, resume=running.resume)
        show.precision_used(asked, settings.precision, quiet=quiet)
    with library():
        return ready, settings, make_job()


def _save_images(
    settings: "AttackSettings",
    problem: "AbstractProblem",
    folder: Path,
    images: Path,
    origin: "Origin",
    *,
    quiet: bool,
) -> None:
    """Save the adversarial images of a finished run, and say what is left of them when they are read back."""
    from saddlepoint import runs
    from saddlepoint.evaluation.saved_images import save_perturbed
    from saddlepoint.runs import build

    from . import show
    from .errors import library

    with library():
        delta = runs.read_results(folder)[1]["delta"].to(problem.lower)
        ball, aimed = build.ball_of(settings).ball, settings.targeted is not None
        saved = save_perturbed(problem, delta, ball, images, targeted=aimed, origin=origin)
    remedy = "--quantize 256 finds images that 8 bits hold" if settings.quantize is None else ""
    show.saved("", saved, quiet=quiet, remedy=remedy)


def _finish(run: "Run", folder: Path, *, quiet: bool, as_json: bool) -> int:
    from saddlepoint import report

    from . import show
    from .errors import library

    with library():
        path = report.write_report(folder)
    if as_json:
        print(show.metrics_json(run))
    elif not quiet:
        show.summary(run)
        print(f"\n{run.seconds:.1f} s; report: {path}")
    return 0
