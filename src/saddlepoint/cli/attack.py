"""`saddlepoint attack`: one perturbation against several models, images or views."""

from collections.abc import Callable
from contextlib import AbstractContextManager
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
from saddlepoint.runs.settings.one_domain import as_begun

from . import printing, progress, runs_shown
from .errors import library
from .flags import ImagesRunning, check_models, given, takes

if TYPE_CHECKING:
    from saddlepoint.runs import Run, RunProgress
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
    running, told = running or ImagesRunning(), given(flags)
    check_models(told)
    named = running.config is not None or told.get("data") is not None
    if running.resume and running.out is not None and running.config is None:
        told = as_begun(told, running.out)
    with printing.warnings_as_notes(quiet=running.quiet):
        settings = ATTACKS[kind].load(told, running.config, trust=running.trust)
    return run_attack(settings, running, named=named)


def run_attack(
    settings: "AttackSettings",
    running: ImagesRunning,
    *,
    command: str | None = None,
    named: bool = True,
) -> int:
    """Run an attack and leave `run.json`, `tensors.safetensors` and `report.html` in a folder.

    Args:
        settings: What decides the numbers.
        running: Where things go and how much is said.
        command: The line that repeats the run, if it is not the one of the settings.
        named: Whether the user has named the images.
    """
    from saddlepoint.runs.record import ROW_NOUNS
    from saddlepoint.runs.tasks import AttackTask

    noun = ROW_NOUNS.get(settings.kind, "images")
    task = AttackTask(
        settings=settings, flags=running.flags(), command=command, trust=running.trust
    )

    def bar(_: Path, quiet: bool) -> "AbstractContextManager[Callable[[RunProgress], None]]":
        return progress.attacking(f"{settings.kind} {settings.data}", noun, quiet=quiet)

    def done(run: "Run", folder: Path) -> int:
        for line in run.warnings:
            printing.note(f"saddlepoint: warning: {line}", quiet=running.quiet)
        if running.save_images is not None:
            with library():
                saved = task.save_images(folder, running.save_images)
            fine = "--quantize 256 finds images that 8 bits hold"
            remedy = fine if settings.quantize is None else ""
            printing.saved("", saved, quiet=running.quiet, remedy=remedy)
        runs_shown.finish(run, folder, running)
        return 0

    name = f"{settings.kind}-{Path(settings.data).stem}-{settings.norm}"
    return runs_shown.carry_out(task, running, name, bar, done, named=named)
