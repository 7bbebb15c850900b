"""`saddlepoint evaluate`: how many images does a model still classify correctly under every attack?"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from saddlepoint.runs.settings import EvaluateSettings

from .errors import LibraryError, UsageError, data_taken, library, usage
from .flags import ImagesRunning, check_models, given, takes

if TYPE_CHECKING:
    from saddlepoint.doctor import Finding
    from saddlepoint.evaluation import EvaluationProgress, Ledger
    from saddlepoint.runs import Run
    from saddlepoint.runs.evaluating import EvaluationJob
    from saddlepoint.runs.evaluations import Result
    from saddlepoint.runs.materials import Images

__all__ = ["evaluate", "finish"]


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
        return {"on_failure": noted, "no_doctor": not self.doctor, "trust": self.trust}


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
            parameters.safetensors:mnist_cnn, parameters.pt:nets.py:factory, program.pt2, model.onnx, timm:NAME,
            torchvision:NAME or hf:FOLDER; guide: docs/models.md.
        settings: What decides the numbers.
        running: Where things go and how much is said.
    """
    from . import folders
    from .cluster import joined

    running = running or EvaluateRunning()
    loaded = _settings(model, given(settings), running)
    if running.print_config:
        print(loaded.to_yaml(), end="")
        return 0
    folders.check_shared(running)
    named = running.config is not None or given(settings).get("data") is not None
    with joined() as rank:
        running = replace(running, quiet=running.quiet or rank != 0)
        return _prepared(loaded, running, rank, named=named)


def _prepared(
    loaded: EvaluateSettings, running: "EvaluateRunning", rank: int, *, named: bool
) -> int:
    """Load images and models, look at them, and evaluate."""
    from saddlepoint.runs import evaluating
    from saddlepoint.runs.preparing import prepared

    from . import folders, progress, show

    quiet, resume = running.quiet, running.resume
    folder = folders.run_folder(f"evaluate-{Path(loaded.data).stem}", running)
    folders.check_images(running, folder)
    taken = partial(data_taken, loaded.data, given=named)
    with taken(), usage(), show.warnings_as_notes(quiet=quiet):
        evaluating.threats_of(loaded)  # before anything is loaded
        with progress.downloads() as downloading:
            ready = prepared(loaded, trust=running.trust, progress=downloading)
        show.size_used(loaded.size, ready.settings.size, ready.settings.crop, quiet=quiet)
        show.limit_used(loaded.limit, len(ready.images.x), quiet=quiet)
        found = evaluating.assembled(ready, folder, running.on_failure, resume=resume)
        show.precision_used(loaded.precision, found[0].precision, quiet=quiet)
    with taken(), library():
        job = found[1]()
    run = evaluating.record_evaluation(job, ready, job.settings.command(**running.flags()))
    if running.doctor:
        # Before the folder is opened: a run that is there is not replaced by one that is refused.
        with usage():
            earlier = evaluating.earlier_findings(folder, resume=resume)
        try:
            with taken(), library():
                tell = partial(_tell_finding, quiet=quiet)
                run = evaluating.examined_by_doctor(run, job, ready, earlier, tell)
        except KeyboardInterrupt:
            return folders.stopped("nothing is saved yet", run, folder, running)
    return _run(job, run, folder, running, rank, ready.images)


def _run(
    job: "EvaluationJob",
    run: "Run",
    folder: Path,
    running: EvaluateRunning,
    rank: int,
    images: "Images",
) -> int:
    """Evaluate into the folder, and show what came out."""
    from saddlepoint import runs
    from saddlepoint.evaluation.evaluation_bar import evaluation_bar
    from saddlepoint.runs.refusals import answers

    from . import folders

    title, found = f"evaluate {job.settings.data}", list["Result"]()
    try:
        with folders.opened(
            run, folder, running, quiet=running.quiet, ask=lambda: answers(job.problem)
        ) as execution:
            run = execution.run
            if not execution.complete:
                with library(), evaluation_bar(title, quiet=running.quiet) as callback:

                    def work(ledger: "Ledger") -> "Result":
                        found.append(_evaluate(job, ledger, callback))
                        return found[0]

                    run = runs.finish_evaluation(execution, work, job.problem)
    except runs.RunInterrupted as stop:
        saved = len(runs.Store(folder, stop.run.hashes.fingerprint))
        return folders.stopped(f"{saved} finished batches are saved", run, folder, running)
    if rank:
        return 0
    if running.save_images is not None:
        _save_images(job, found, running.save_images, images, quiet=running.quiet)
    return finish(run, folder, quiet=running.quiet, as_json=running.json)


def _save_images(
    job: "EvaluationJob", found: "list[Result]", folder: Path, images: "Images", *, quiet: bool
) -> None:
    """Save the nearest wrong images of every threat, and say what is left when they are read back."""
    from saddlepoint.evaluation import save_nearest

    from . import show

    if not found:
        raise UsageError(
            "`--save-images` must be given when the run is made, got one that is complete: it keeps a few "
            "images only; repeat it with --overwrite."
        )
    with library():
        found_images = found[0].nearest
        files = [(file,) for file in images.files]
        saved = save_nearest(
            job.problem, job.balls, found_images, folder, classes=images.classes, files=files
        )
    for name in job.balls:
        if name in saved:
            show.saved(f"{name}: ", saved[name], quiet=quiet)
        else:
            show.note(f"{name}: no image was broken, none is saved", quiet=quiet)


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


def finish(run: "Run", folder: Path, *, quiet: bool, as_json: bool) -> int:
    """Draw the report and the tables of a finished evaluation, and say what came out.

    Returns:
        The exit code: 1 if an attack failed, so that numbers are upper bounds.
    """
    from saddlepoint import report, runs

    from . import show

    with library():
        path = report.write_report(folder)
    metrics = runs.EvaluationMetrics.of(run)
    for line in (*run.warnings, *metrics.notes):
        show.note(f"saddlepoint: note: {line}", quiet=quiet)
    if as_json:
        print(show.metrics_json(run))
    elif not quiet:
        show.evaluation(run)
        print(f"\n{run.seconds:.1f} s; report: {path}")
    return 1 if metrics.failures else 0


def _evaluate(
    job: "EvaluationJob", ledger: "Ledger", callback: "Callable[[EvaluationProgress], None]"
) -> "Result":
    from saddlepoint.evaluation import AttackFailedError

    try:
        return job.run(ledger, callback)
    except AttackFailedError as error:
        raise LibraryError(
            f"{error.what}; mend the cause and continue with --resume, or add --on-failure note, under "
            "which numbers are upper bounds."
        ) from error


def _tell_finding(name: str, findings: "tuple[Finding, ...] | None", *, quiet: bool) -> None:
    """What the doctor finds of a model, told as it is found."""
    from . import doctor, show

    if findings is None:
        show.note(f"doctor: examining {name} ...", quiet=quiet)
        return
    show.note(f"doctor: {name}: {doctor.verdict(findings)}", quiet=quiet)
    for finding in findings:
        if finding.status != "ok":
            show.note("\n".join(doctor.lines(finding)), quiet=quiet)
