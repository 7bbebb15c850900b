"""`saddlepoint evaluate`: how many images does a model still classify correctly under every attack?"""

import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from . import parse
from .errors import LibraryError, UsageError, library, usage

if TYPE_CHECKING:
    from saddlepoint.evaluation import EvaluationProgress, Ledger
    from saddlepoint.evaluation.failures import OnFailure
    from saddlepoint.problems import Ensemble, Model, Product
    from saddlepoint.projections import LpBall
    from saddlepoint.runs import Run
    from saddlepoint.runs.evaluations import Result
    from saddlepoint.solver.inspection import Look

    from .inputs import Images

__all__ = ["evaluate", "finish"]

Flag = Annotated[bool, Parameter(negative=())]

_EXAMPLE = "--threat linf:0.3 --threat l2:2.0 --threat l1:10"
_EXAMINED = 32  # images the doctor looks at


@Parameter(name="*")
@dataclass(kw_only=True)
class Settings:
    """What decides the numbers."""

    models: str | None = None
    """Several models separated by commas, instead of MODEL: each alone, and all of them at once."""
    data: str = "mnist-sample"
    """mnist, cifar10, fashion-mnist, mnist-sample, cifar10-sample, a folder with one folder of images per
    class, or a file.npz with `images` and `labels`."""
    classes: str | None = None
    """Classes of your own data in the order of the logits: names separated by commas, or a file with one per
    line. [default: classes.txt in the folder, else the names of its folders, numbers as numbers]"""
    size: int | None = None
    """Resize the images of a folder to size x size: shorter side, then the centre."""
    threat: Annotated[list[str], Parameter(negative=())] = field(default_factory=list)
    """Norm and radius, such as linf:0.3, l2:2.0, l1:10 or linf:8/255; give it once per threat."""
    suite: Literal["quick", "paper", "autoattack", "autoattack+"] = "quick"
    """quick is our attack alone; paper has the attacks of the paper's defence table (needs foolbox);
    autoattack and autoattack+ are AutoAttack's versions standard and plus (need pyautoattack)."""
    transforms: str | None = None
    """See the images through these, as in `attack transform`: identity,hflip,rotate:30, or paper."""
    every_attack: Flag = False
    """Run every attack on every image that is right, for tables of single attacks; slower."""
    budget: str | None = None
    """Time for each attack under each threat, such as 60s, 5m or 90; what it cut short is noted."""
    split: Literal["test", "train"] = "test"
    """Which images of a named data set."""
    limit: int | None = None
    """Use the first so many images."""
    batch_size: int | None = None
    """Images at a time, and between two saves. [default: what fits into memory, at most 128]"""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps."""
    seed: int = 0
    """Of everything random."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Running:
    """What decides where things go and how much is said."""

    out: Path | None = None
    """Folder for run.json, tensors.safetensors, report.html and table.md, .csv, .tex. [default: a new one in
    runs]"""
    doctor: bool = True
    """Examine the models first, refuse those that are not fit, and put what was found into the report."""
    on_failure: Literal["raise", "note"] = "raise"
    """raise ends the evaluation with an error if an attack fails; note goes on, says "at most" where an
    attack is missing, and ends with exit code 1."""
    resume: Flag = False
    """Continue the evaluation in --out, if there is one."""
    overwrite: Flag = False
    """Replace the run in --out."""
    quiet: Flag = False
    """Print errors only."""
    json: Flag = False
    """Print the metrics as JSON."""


def evaluate(
    model: str | None = None,
    /,
    *,
    settings: Settings | None = None,
    running: Running | None = None,
) -> int:
    """Count the images a model still classifies correctly under every attack of every threat.

    Exit code 1 if a model is not fit to be evaluated, or if an attack failed.

    Args:
        model: A (network of the data set), mnist-a, weights.safetensors:mnist_cnn, program.pt2 or
            package.module:factory.
        settings: What decides the numbers.
        running: Where things go and how much is said.
    """
    from .cluster import joined, processes

    settings, running = settings or Settings(), running or Running()
    config = _config(model, settings)
    if running.out is None and processes() > 1:
        raise UsageError("`--out` must be given where several processes share the work, got none.")
    with joined() as rank:
        running = replace(running, quiet=running.quiet or rank != 0)
        return _run(config, settings, running, rank)


def _run(config: dict[str, Any], settings: Settings, running: Running, rank: int) -> int:
    from saddlepoint import runs
    from saddlepoint.training.distributed import World

    from . import progress, runner, show
    from .inputs import limit_used, load_data, load_models

    balls = _balls(config)
    name = f"evaluate-{Path(config['data']).stem}"
    folder = runner.run_folder(name, running.out, running.resume)
    with World.current().one_then_all(), progress.downloads() as downloading:
        own = {"classes": config["classes"], "size": config["size"]}
        images = load_data(config["data"], config["split"], config["limit"], downloading, **own)
    config["limit"] = limit_used(config["limit"], images, quiet=running.quiet)
    models = load_models(config["models"], images)
    problem, seen = _problem(config, images, models)
    notes = seen.faults + _radius_notes(balls, images)
    command = _command(config, settings, running)
    run = runs.Run(
        kind=runs.EVALUATE,
        command=command,
        settings=config,
        seed=config["seed"],
        domains=problem.names,
        classes=images.classes,
        rows=len(problem),
        hashes=runner.hashes(config, images, models),
        warnings=notes,
    )
    again = f"{command} --out {shlex.quote(str(folder))}"
    if running.doctor:
        # Before the folder is opened: a run that is there is not replaced by one that is refused.
        try:
            findings = _earlier_findings(folder, running) or _examine(
                models, problem, images, balls, running
            )
        except KeyboardInterrupt:
            return runner.stopped("nothing is saved yet", folder, again)
        _refuse(findings)
        run = run.but(metrics={"doctor": findings})
    how = {"resume": running.resume, "overwrite": running.overwrite, "quiet": running.quiet}
    try:
        with runner.opened(run, folder, **how) as execution:
            run = execution.run
            if not execution.complete:
                title = f"evaluate {config['data']}"
                with library(), show.evaluating(title, quiet=running.quiet) as callback:
                    run = runs.finish_evaluation(
                        execution,
                        lambda ledger: _evaluate(
                            config,
                            running.on_failure,
                            problem,
                            seen.accumulate,
                            balls,
                            ledger,
                            callback,
                        ),
                        problem,
                    )
    except runs.Interrupted as stop:
        saved = len(runs.Store(folder, stop.run.hashes.fingerprint))
        return runner.stopped(f"{saved} finished batches are saved", folder, again)
    return 0 if rank else finish(run, folder, quiet=running.quiet, as_json=running.json)


def _radius_notes(balls: "dict[str, LpBall]", images: "Images") -> tuple[str, ...]:
    """What the library has to say about the radii."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for ball in balls.values():
            ball.check(images.x.shape[1:])
    return tuple(str(each.message) for each in caught)


def _earlier_findings(folder: Path, running: Running) -> Any:
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


def _config(model: str | None, settings: Settings) -> dict[str, Any]:
    """All settings as they stand in run.json; the batch size may be None still."""
    if (model is None) == (settings.models is None):
        got = "neither" if model is None else "both"
        raise UsageError(
            f"`evaluate` must be given one MODEL, such as mnist-a, or --models A,B,C,D, got {got}."
        )
    names = [model] if model is not None else parse.split(settings.models or "")
    if not names:
        raise UsageError("`--models` must name at least one model, such as A,B,C,D, got none.")
    if not settings.threat:
        raise UsageError(
            f"`--threat` must be given at least once, such as {_EXAMPLE}, got none: accuracy under attack "
            "means nothing without a norm and a radius."
        )
    for name in ("limit", "batch_size"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise UsageError(f"`--{name.replace('_', '-')}` must be at least 1, got {value}.")
    for text in settings.threat:
        if text.count(":") > 1:
            raise UsageError(f"`--threat` must be norm:radius for evaluate, got {text!r}.")
    with usage():
        transforms = parse.split(settings.transforms or "")
        return {
            **asdict(settings),
            "models": names,
            "transforms": transforms,
            "budget": None if settings.budget is None else parse.seconds(settings.budget),
        }


def _balls(config: Mapping[str, Any]) -> "dict[str, LpBall]":
    """The threats, and whether the suite has attacks for them."""
    from saddlepoint.evaluation.suites import attacks_for

    from .threats import threats

    with usage():
        balls = {name: threat.ball for name, threat in threats(config["threat"]).items()}
        for name, ball in balls.items():
            if not float(ball.eps) > 0:
                raise UsageError(f"`--threat` must have a positive radius, got {name}:{ball.eps}.")
            attacks_for(config["suite"], ball.p)
    return balls


def _problem(
    config: dict[str, Any], images: "Images", models: "dict[str, Model]"
) -> "tuple[Ensemble | Product, Look]":
    """Images and domains, and what a look at the models has shown; completes the batch size."""
    from saddlepoint import Ensemble
    from saddlepoint.solver.inspection import look
    from saddlepoint.training.distributed import World

    from .runner import on_device, views

    x, y, placed = on_device(config["device"], images, models)
    problem: Ensemble | Product
    with usage():
        if config["transforms"]:
            problem = views(placed, config["transforms"], x, y)
        else:
            problem = Ensemble(list(placed.values()), x, y, names=list(placed))
        if problem.random:
            raise UsageError(
                "`--transforms` must be deterministic for evaluate, got random ones, under which an image is "
                "neither right nor wrong; take paper, or names such as identity,hflip,rotate:30."
            )
    with library():
        seen = look(problem)
    # What process 0 has memory for is taken by all: batches are divided among them.
    config["batch_size"] = config["batch_size"] or seen.rows(seen.accumulate)
    config["batch_size"] = World.current().gather(config["batch_size"])[0]
    return problem, seen


def _evaluate(
    config: Mapping[str, Any],
    on_failure: "OnFailure",
    problem: "Ensemble | Product",
    accumulate: bool,
    balls: "dict[str, LpBall]",
    ledger: "Ledger",
    callback: "Callable[[EvaluationProgress], None]",
) -> "Result":
    from saddlepoint.evaluation import AttackFailedError
    from saddlepoint.evaluation.domains import domain_models, domains_unchecked
    from saddlepoint.evaluation.robust import accuracy_unchecked
    from saddlepoint.evaluation.verdicts import clean_answers

    options: Any = {name: config[name] for name in ("every_attack", "batch_size", "budget", "seed")}
    options |= {"ledger": ledger, "callback": callback, "on_failure": on_failure}
    right = clean_answers(problem, config["batch_size"]).cpu()
    try:
        if problem.num_domains > 1:
            options |= {"right": right, "accumulate": accumulate}
            return domains_unchecked(problem, balls, config["suite"], **options)
        (model,) = domain_models(problem).values()
        options |= {"correct": right[:, 0]}
        truth = problem.truth[:, 0]
        return accuracy_unchecked(model, problem.x, truth, balls, config["suite"], **options)
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
    running: Running,
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


def _command(config: Mapping[str, Any], settings: Settings, running: Running) -> str:
    """The line that repeats the evaluation; settings of their default value are left out."""
    words = ["saddlepoint", "evaluate"]
    words += ["--models", ",".join(config["models"])] if settings.models else config["models"]
    words += ["--data", settings.data]
    for text in settings.threat:
        words += ["--threat", text]
    words += ["--suite", settings.suite]
    default = Settings()
    plain = (
        "classes",
        "size",
        "transforms",
        "every_attack",
        "budget",
        "split",
        "limit",
        "batch_size",
    )
    for name in (*plain, "device"):
        value = getattr(settings, name)
        if value != getattr(default, name):
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    words += ["--seed", str(settings.seed)] if settings.seed else []
    words += ["--on-failure", running.on_failure] if running.on_failure != "raise" else []
    return shlex.join(words if running.doctor else [*words, "--no-doctor"])
