"""`saddlepoint evaluate`: how many images does a model still classify correctly under every attack?"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from saddlepoint.runs.settings import EvaluateSettings

from . import printing, runs_shown
from .cluster import first
from .errors import LibraryError, UsageError, library, usage
from .flags import ImagesRunning, check_models, given, takes

if TYPE_CHECKING:
    from saddlepoint.doctor import Finding
    from saddlepoint.evaluation import EvaluationProgress
    from saddlepoint.runs import Run
    from saddlepoint.runs.evaluation_task import EvaluationTask

__all__ = ["evaluate"]


@Parameter(name="*")
@dataclass(kw_only=True)
class EvaluateRunning(ImagesRunning):
    """What decides where things go, how much is said, and what happens if something is wrong."""

    doctor: bool = True
    """Examine the models first, refuse those that are not fit, and put what was found into the report."""
    on_failure: Literal["raise", "note"] = "raise"
    """raise ends the evaluation with an error if an attack fails; note goes on, says "at most" where an
    attack is missing, and ends with exit code 1."""

    def flags(self) -> dict[str, object]:
        """Those that the line names which repeats the evaluation."""
        noted = None if self.on_failure == "raise" else self.on_failure
        return {"on_failure": noted, "no_doctor": not self.doctor, **super().flags()}


@takes(EvaluateSettings)
def evaluate(
    *model: str,
    settings: Any = None,
    running: EvaluateRunning | None = None,
) -> int:
    """Count the images a model still classifies correctly under every attack of every threat.

    Exit code 1 if a model is not fit to be evaluated, or if an attack failed.

    Args:
        model: A (network of the data set), mnist-a, nets.py:factory, package.module:factory,
            parameters.safetensors:mnist_cnn, parameters.pt:nets.py:factory, program.pt2, program.ts,
            model.onnx, timm:NAME, torchvision:NAME or hf:FOLDER; guide: docs/models.md.
        settings: What decides the numbers.
        running: Where things go and how much is said.
    """
    from saddlepoint.runs import EvaluationMetrics
    from saddlepoint.runs.evaluation_task import EvaluationTask

    running = running or EvaluateRunning()
    loaded = _settings(model, given(settings), running)
    named = running.config is not None or given(settings).get("data") is not None
    task = EvaluationTask(
        settings=loaded,
        flags=running.flags(),
        trust=running.trust,
        on_failure=running.on_failure,
        tell=partial(_tell_finding, quiet=running.quiet or not first()) if running.doctor else None,
    )

    def done(run: "Run", folder: Path) -> int:
        if running.save_images is not None:
            _save_images(task, running.save_images, quiet=running.quiet)
        metrics = EvaluationMetrics.of(run)
        for line in (*run.warnings, *metrics.notes):
            printing.note(f"saddlepoint: note: {line}", quiet=running.quiet)
        runs_shown.finish(run, folder, running)
        return 1 if metrics.failures else 0  # numbers are upper bounds where an attack failed

    name = f"evaluate-{Path(loaded.data).stem}"
    return runs_shown.carry_out(task, running, name, partial(_bar, task), done, named=named)


@contextmanager
def _bar(
    task: "EvaluationTask", _: Path, quiet: bool
) -> "Iterator[Callable[[EvaluationProgress], None]]":
    """Progress on the terminal, and what can be done about an attack that fails."""
    from saddlepoint.evaluation import AttackFailedError
    from saddlepoint.evaluation.evaluation_bar import evaluation_bar

    try:
        with evaluation_bar(f"evaluate {task.settings.data}", quiet=quiet) as callback:
            yield callback
    except AttackFailedError as error:
        raise LibraryError(
            f"{error.what}; mend the cause and continue with --resume, or add --on-failure note, under "
            "which numbers are upper bounds."
        ) from error


def _save_images(task: "EvaluationTask", folder: Path, *, quiet: bool) -> None:
    """Save the nearest wrong images of every threat, and say what is left when they are read back."""
    with usage() if task.result is None else library():
        saved = task.save_images(folder)
    for name in task.balls:
        if name in saved:
            printing.saved(f"{name}: ", saved[name], quiet=quiet)
        else:
            printing.note(f"{name}: no image was broken, none is saved", quiet=quiet)


def _settings(
    models: tuple[str, ...], flags: dict[str, Any], running: EvaluateRunning
) -> EvaluateSettings:
    """The settings, with the one model that is named without a flag."""
    models = tuple(name for word in models for name in word.split(",") if name.strip())
    if len(models) > 1:
        raise UsageError(
            f"`evaluate` must be given one MODEL, got {' and '.join(models)}; write --models "
            f"{','.join(models)} to evaluate each alone, and all of them at once."
        )
    named = flags.get("models") is not None
    if (models and named) or not (models or named or running.config):
        got = "both" if models else "neither"
        raise UsageError(
            f"`evaluate` must be given one MODEL, such as mnist-a, or --models A,B,C,D, got {got}."
        )
    check_models(flags, *models)
    flags = {**flags, "models": list(models)} if models else flags
    return EvaluateSettings.load(flags, running.config, trust=running.trust)


def _tell_finding(name: str, findings: "tuple[Finding, ...] | None", *, quiet: bool) -> None:
    """What the doctor finds of a model, told as it is found."""
    from . import doctor

    if findings is None:
        printing.note(f"doctor: examining {name} ...", quiet=quiet)
        return
    printing.note(f"doctor: {name}: {doctor.verdict(findings)}", quiet=quiet)
    for finding in findings:
        if finding.status != "ok":
            printing.note("\n".join(doctor.lines(finding)), quiet=quiet)
