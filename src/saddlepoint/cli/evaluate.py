"""`saddlepoint evaluate`: how many images does a model still classify correctly under every attack?"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from saddlepoint.runs.settings import EvaluateSettings

from .errors import LibraryError, UsageError, library, usage
from .flags import Running, given, takes

if TYPE_CHECKING:
    from saddlepoint.evaluation import EvaluationProgress, Ledger
    from saddlepoint.evaluation.failures import OnFailure
    from saddlepoint.problems import Ensemble, Model, Product
    from saddlepoint.projections import LpBall
    from saddlepoint.runs import Run
    from saddlepoint.runs.evaluations import Result
    from saddlepoint.runs.materials import Images

__all__ = ["evaluate", "finish"]

_EXAMINED = 32  # images the doctor looks at


@Parameter(name="*")
@dataclass(kw_only=True)
class EvaluateRunning(Running):
    """What decides where things go, how much is said, and what happens if something is wrong."""

    doctor: bool = True
    """Examine the models first, refuse those that are not fit, and put what was found into the report."""
    on_failure: Literal["raise", "note"] = "raise"
    """raise ends the evaluation with an error if an attack fails; note goes on, says "at most" where an
    attack is missing, and ends with exit code 1."""

    def flags(self) -> dict[str, object]:
        """Those that the line names which repeats the evaluation."""
        noted = None if self.on_failure == "raise" else self.on_failure
        return {"on_failure": noted, "no_doctor": not self.doctor}


@takes(EvaluateSettings)
def evaluate(
    model: str | None = None,
    /,
    *,
    settings: Any = None,
    running: EvaluateRunning | None = None,
) -> int:
    """Count the images a model still classifies correctly under every attack of every threat.

    Exit code 1 if a model is not fit to be evaluated, or if an attack failed.

    Args:
        model: A (network of the data set), mnist-a, parameters.safetensors:mnist_cnn, program.pt2 or
            package.module:factory.
        settings: What decides the numbers.
        running: Where things go and how much is said.
    """
    from .cluster import joined, processes

    loaded = _settings(model, given(settings))
    running = running or EvaluateRunning()
    if running.out is None and processes() > 1:
        raise UsageError("`--out` must be given where several processes share the work, got none.")
    with joined() as rank:
        return _prepared(loaded, replace(running, quiet=running.quiet or rank != 0), rank)


def _prepared(loaded: EvaluateSettings, running: "EvaluateRunning", rank: int) -> int:
    """Load images and models, look at them, and evaluate."""
    from saddlepoint.runs import build, materials
    from saddlepoint.solver.inspection import look
    from saddlepoint.training.distributed import World

    from . import folders, progress, show

    folder = folders.run_folder(f"evaluate-{Path(loaded.data).stem}", running.out, running.resume)
    with usage(), show.warnings_as_notes(quiet=running.quiet):
        balls = _balls(loaded)
        with World.current().one_then_all(), progress.downloads() as downloading:
            images = build.images_of(loaded, downloading)
        limit = show.limit_used(loaded.limit, len(images.x), quiet=running.quiet)
        loaded = loaded.model_copy(update={"limit": limit})
        models = materials.load_models(loaded.models, images)
        x, y, there = build.placed(loaded.device, images, models)
        problem = build.evaluated_problem(loaded, x, y, there)
    command, again = (loaded.command(place, **running.flags()) for place in (None, folder))
    with library():
        seen = look(problem)
    # What process 0 has memory for is taken by all: batches are divided among them.
    batch_size = World.current().gather(loaded.batch_size or seen.rows(seen.accumulate))[0]
    loaded = loaded.model_copy(update={"batch_size": batch_size})
    run = build.record_of(loaded, problem, images, models, command)
    run = run.but(warnings=(*seen.faults, *_radius_notes(balls, images)))
    if running.doctor:
        # Before the folder is opened: a run that is there is not replaced by one that is refused.
        try:
            findings = _earlier_findings(folder, running) or _examine(
                models, problem, images, balls, running
            )
        except KeyboardInterrupt:
            return folders.stopped("nothing is saved yet", folder, again)
        _refuse(findings)
        run = run.but(metrics={"doctor": findings})
    job = _Job(loaded, problem, balls, running.on_failure, seen.accumulate)
    return _run(job, run, folder, running, again, rank)


@dataclass(frozen=True)
class _Job:
    """What to evaluate, and how."""

    settings: EvaluateSettings
    problem: "Ensemble | Product"
    balls: "dict[str, LpBall]"
    on_failure: "OnFailure"
    accumulate: bool


def _run(job: _Job, run: "Run", folder: Path, running: Running, again: str, rank: int) -> int:
    """Evaluate into the folder, and show what came out."""
    from saddlepoint import runs

    from . import folders, show

    title = f"evaluate {job.settings.data}"
    try:
        with folders.opened(run, folder, running, quiet=running.quiet) as execution:
            run = execution.run
            if not execution.complete:
                with library(), show.evaluating(title, quiet=running.quiet) as callback:
                    run = runs.finish_evaluation(
                        execution, lambda ledger: _evaluate(job, ledger, callback), job.problem
                    )
    except runs.RunInterrupted as stop:
        saved = len(runs.Store(folder, stop.run.hashes.fingerprint))
        return folders.stopped(f"{saved} finished batches are saved", folder, again)
    return 0 if rank else finish(run, folder, quiet=running.quiet, as_json=running.json)


def _settings(model: str | None, flags: dict[str, Any]) -> EvaluateSettings:
    """The settings, with the one model that is named without a flag."""
    if (model is None) == (flags.get("models") is None):
        got = "neither" if model is None else "both"
        raise UsageError(
            f"`evaluate` must be given one MODEL, such as mnist-a, or --models A,B,C,D, got {got}."
        )
    return EvaluateSettings.load(flags if model is None else {**flags, "models": [model]})


def _radius_notes(balls: "dict[str, LpBall]", images: "Images") -> tuple[str, ...]:
    """What the library has to say about the radii."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for ball in balls.values():
            ball.check(images.x.shape[1:])
    return tuple(str(each.message) for each in caught)


def _earlier_findings(folder: Path, running: EvaluateRunning) -> Any:
    """What the doctor found when the run that is continued began, or None."""
    from saddlepoint import runs

    if not running.resume or not (folder / runs.RECORD).is_file():
        return None
    with usage():
        return runs.Run.read(folder).metrics.get("doctor")


def finish(run: "Run", folder: Path, *, quiet: bool, as_json: bool) -> int:
    """Draw the report and the tables of a finished evaluation, and say what came out.

    Returns:
        The exit code: 1 if an attack failed, so that numbers are upper bounds.
    """
    from saddlepoint import report

    from . import show
    from .tables import write_tables

    with library():
        path = report.write_report(folder)
        write_tables(run, folder)
    for line in (*run.warnings, *run.metrics["notes"]):
        show.note(f"saddlepoint: note: {line}", quiet=quiet)
    if as_json:
        print(show.metrics_json(run))
    elif not quiet:
        show.evaluation(run)
        print(f"\n{run.seconds:.1f} s; report: {path}")
    return 1 if run.metrics["failures"] else 0


def _balls(settings: EvaluateSettings) -> "dict[str, LpBall]":
    """The threats, if the suite has attacks for them."""
    from saddlepoint.evaluation.suites import attacks_for
    from saddlepoint.runs import texts

    balls = {name: threat.ball for name, threat in texts.threats(settings.threat).items()}
    for ball in balls.values():
        attacks_for(settings.suite, ball.p)
    return balls


def _evaluate(
    job: _Job, ledger: "Ledger", callback: "Callable[[EvaluationProgress], None]"
) -> "Result":
    from saddlepoint.evaluation import AttackFailedError
    from saddlepoint.evaluation.domains import domain_models, domains_unchecked
    from saddlepoint.evaluation.robust import accuracy_unchecked
    from saddlepoint.evaluation.verdicts import clean_answers

    settings, problem, balls = job.settings, job.problem, job.balls
    names = ("every_attack", "batch_size", "budget", "seed")
    options: Any = {name: getattr(settings, name) for name in names}
    options |= {"ledger": ledger, "callback": callback, "on_failure": job.on_failure}
    right = clean_answers(problem, options["batch_size"]).cpu()
    try:
        if problem.num_domains > 1:
            options |= {"right": right, "accumulate": job.accumulate}
            return domains_unchecked(problem, balls, settings.suite, **options)
        (model,) = domain_models(problem).values()
        options |= {"correct": right[:, 0]}
        truth = problem.truth[:, 0]
        return accuracy_unchecked(model, problem.x, truth, balls, settings.suite, **options)
    except AttackFailedError as error:
        raise LibraryError(
            f"{error.what}; mend the cause and continue with --resume, or add --on-failure note, under "
            "which numbers are upper bounds."
        ) from error


def _examine(
    models: "dict[str, Model]",
    problem: "Ensemble | Product",
    images: "Images",
    balls: "dict[str, LpBall]",
    running: EvaluateRunning,
) -> dict[str, list[dict[str, str]]]:
    """What the doctor finds, model by model, at the linf radius of the threats if there is one."""
    from . import doctor, show

    few = replace(images, x=problem.x[:_EXAMINED], y=problem.labels[:_EXAMINED, 0])
    eps = float(balls["linf"].eps) if "linf" in balls else doctor.default_radius(images)
    found: dict[str, list[dict[str, str]]] = {}
    for name, model in models.items():
        show.note(f"doctor: examining {name} ...", quiet=running.quiet)
        findings = doctor.examine(
            model,
            few,
            min(eps, 0.99),
            references=doctor.references(name, models, few),
        )
        found[name] = [asdict(finding) for finding in findings]
        show.note(f"doctor: {name}: {doctor.verdict(findings)}", quiet=running.quiet)
        for finding in findings:
            if finding.status != "ok":
                show.note("\n".join(doctor.lines(finding)), quiet=running.quiet)
    return found


def _refuse(findings: "Mapping[str, list[dict[str, str]]]") -> None:
    """Stop where the doctor says no: a wrong number is worse than none."""
    sick = {
        name: [f"{each['name']}: {each['saw']}" for each in found if each["status"] == "fail"]
        for name, found in findings.items()
    }
    reasons = [f"{name} ({' '.join(saw)})" for name, saw in sick.items() if saw]
    if reasons:
        raise LibraryError(
            f"not fit to be evaluated, numbers would be wrong: {', '.join(reasons)}; mend what the doctor "
            "says, or add --no-doctor to evaluate all the same."
        )
