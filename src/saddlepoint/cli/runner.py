"""One attack from settings to report: load, build, check, run, write, say."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import parse
from .config import AttackConfig, TransformConfig, UniversalConfig
from .errors import UsageError, library, usage
from .inputs import Images, check_classes, limit_used, load_data, load_models

if TYPE_CHECKING:
    from torch import Tensor

    from saddlepoint.problems import AbstractProblem, Model, Product
    from saddlepoint.runs import Execution, Hashes, Job, Run
    from saddlepoint.runs.rows import Solve

__all__ = [
    "free_folder",
    "hashes",
    "on_device",
    "opened",
    "run_attack",
    "run_folder",
    "stopped",
    "views",
]

# The paper's short names in words.
_VIEWS = {
    "ori": "original",
    "flh": "hflip",
    "flv": "vflip",
    "bri": "brightness",
    "gam": "gamma",
    "rot": "rotate",
}


def run_attack(
    config: AttackConfig,
    out: Path | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    as_json: bool = False,
    command: str | None = None,
    rank: int = 0,
) -> int:
    """Run an attack and leave `run.json`, `tensors.safetensors` and `report.html` in a folder.

    Args:
        config: The settings.
        out: The folder; a new one under `runs` if None.
        resume: Continue the run in the folder, if there is one.
        overwrite: Replace the run in the folder.
        quiet: Print errors only.
        as_json: Print the metrics as JSON.
        command: The line that repeats the run, if it is not the plain one.
        rank: Number of this process, where several share the work; all call this, and the first one writes.
    """
    name = f"{config.kind}-{Path(config.data).stem}-{config.norm}"
    folder = run_folder(name, out, resume)
    from saddlepoint import runs
    from saddlepoint.training.distributed import World

    from . import progress, show

    with World.current().one_then_all(), progress.downloads() as downloading:
        images = load_data(
            config.data,
            config.split,
            config.limit,
            downloading,
            classes=config.classes,
            size=config.size,
        )
    limit = limit_used(config.limit, images, quiet=quiet)
    config = config.model_copy(update={"limit": limit})
    models = load_models(config.models, images)
    job = _job(config, images, models)
    run = _record(config, images, models, job.problem, command or config.command())
    title = f"{config.kind} {config.data}"
    noun = "groups" if config.kind == "universal" else "images"
    try:
        with opened(run, folder, resume=resume, overwrite=overwrite, quiet=quiet) as execution:
            run = execution.run
            if not execution.complete:
                with library(), show.attacking(title, noun, quiet=quiet) as callback:
                    run = runs.attack_rows(job, execution, callback=callback)
    except runs.Interrupted as stop:
        saved = f"{stop.run.done} of {run.rows} {noun} are done and saved"
        return stopped(saved, folder, config.command(folder))
    for line in run.warnings:
        show.note(f"saddlepoint: warning: {line}", quiet=quiet)
    return 0 if rank else _finish(run, folder, quiet=quiet, as_json=as_json)


@contextmanager
def opened(
    run: "Run", folder: Path, *, resume: bool, overwrite: bool, quiet: bool
) -> "Iterator[Execution]":
    """The folder of a run, open for it; what is in the way is for the user to mend."""
    from saddlepoint import runs

    from . import show

    with ExitStack() as stack:
        with usage():
            manager = runs.opened(run, folder, resume=resume, overwrite=overwrite)
            execution = stack.enter_context(manager)
        if execution.complete:
            show.note(f"{folder} is complete already", quiet=quiet)
        elif resume and not execution.resumed:
            show.note(f"nothing to resume in {folder}: starting", quiet=quiet)
        yield execution


def stopped(saved: str, folder: Path, command: str) -> int:
    """Say what an interrupted run has saved and how to go on; the exit code. Process 0 speaks for all."""
    from saddlepoint.training.distributed import World

    if World.current().rank == 0:
        print(f"stopped: {saved} in {folder}", file=sys.stderr)
        print(f"continue with: {command} --resume", file=sys.stderr)
    return 130


def free_folder(name: str) -> Path:
    """A folder under `runs` that does not exist yet: name, name-2, name-3."""
    base = Path("runs") / name
    candidates = (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def _finish(run: "Run", folder: Path, *, quiet: bool, as_json: bool) -> int:
    from saddlepoint import report

    from . import show

    with library():
        path = report.write_report(folder)
    if as_json:
        print(show.metrics_json(run))
    elif not quiet:
        show.summary(run)
        print(f"\n{run.seconds:.1f} s; report: {path}")
    return 0


def run_folder(name: str, out: Path | None, resume: bool) -> Path:
    """The folder of a run: the one given, or a new one under `runs`."""
    if out is None:
        if resume:
            raise UsageError("`--resume` must say which run to continue, such as --out runs/mine.")
        return free_folder(name)
    if out.exists() and not out.is_dir():
        raise UsageError(f"`--out` must be a folder, got the file {str(out)!r}.")
    return out


def on_device(
    device: str, images: Images, models: "dict[str, Model]"
) -> "tuple[Tensor, Tensor, dict[str, Model]]":
    """Images, labels and models where they are to be used, if they fit together."""
    import torch

    try:
        where = torch.device(device)
        x, y = images.x.to(where), images.y.to(where)
        models = {
            n: m.to(where) if isinstance(m, torch.nn.Module) else m for n, m in models.items()
        }
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"`--device` must be one that is there, such as cpu, got {device!r}: {reason}"
        ) from error
    check_classes(replace(images, x=x, y=y), models)
    return x, y, models


def _job(config: AttackConfig, images: Images, models: "dict[str, Model]") -> "Job":
    import torch

    from saddlepoint.runs import Job

    x, y, models = on_device(config.device, images, models)
    with usage():
        problem = _problem(config, x, y, models)
        for text in (config.rule, config.baseline):
            if text is not None:
                parse.rule(text).init(torch.zeros(1, problem.num_domains))
        return Job(
            problem=problem,
            solve=_solver(config),
            rule=parse.rule(config.rule),
            baseline=None if config.baseline is None else parse.rule(config.baseline),
            chunk=config.batch_size,
        )


def _problem(
    config: AttackConfig, x: "Tensor", y: "Tensor", models: "dict[str, Model]"
) -> "AbstractProblem":
    import saddlepoint as sp

    if isinstance(config, UniversalConfig):
        groups, labels = sp.data.group(
            x, y, config.group_size, seed=config.seed, by_class=config.by_class
        )
        (model,) = models.values()
        return sp.Universal(model, groups, labels, box=config.box, labels=config.labels)
    if isinstance(config, TransformConfig):
        family = (config.transforms, x, y, config.samples, config.seed)
        return views(models, *family, labels=config.labels)
    return sp.Ensemble(list(models.values()), x, y, names=list(models), labels=config.labels)


def views(
    models: "dict[str, Model]",
    transforms: Sequence[str],
    x: "Tensor",
    y: "Tensor",
    samples: int = 1,
    seed: int = 0,
    labels: Literal["true", "predicted"] = "true",
) -> "Product":
    """Every model behind every transformation, with the names a user would give them."""
    import saddlepoint as sp

    family = parse.transforms(list(transforms))
    seen = _unique([_VIEWS.get(transform.name, transform.name) for transform in family])
    names = seen if len(models) == 1 else [f"{m}/{v}" for m in models for v in seen]
    return sp.Product(
        list(models.values()), family, x, y, samples, seed=seed, names=names, labels=labels
    )


def _unique(names: list[str]) -> list[str]:
    counts = {name: names.count(name) for name in names}
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(f"{name} {seen[name]}" if counts[name] > 1 else name)
    return result


def _solver(config: AttackConfig) -> "Solve":
    import saddlepoint as sp
    from saddlepoint.rules import AbstractWeightRule

    ball = sp.LpBall(parse.NORMS[config.norm], config.eps)
    loss = parse.loss(config.loss)

    def strong(
        part: sp.AbstractProblem, rule: AbstractWeightRule, callback: Callable[[sp.Progress], None]
    ) -> sp.AttackResult:
        return sp.attack(
            part,
            ball,
            rule=rule,
            loss=loss,
            steps=config.steps,
            restarts=config.restarts,
            seed=config.seed,
            quantize=config.quantize,
            callback=callback,
        )

    def literal(
        part: sp.AbstractProblem, rule: AbstractWeightRule, callback: Callable[[sp.Progress], None]
    ) -> sp.AttackResult:
        assert config.step_size is not None  # settings of apgda have one
        return sp.apgda(
            part,
            ball,
            rule=rule,
            loss=loss,
            steps=config.steps,
            step_size=config.step_size,
            callback=callback,
        )

    return strong if config.method == "attack" else literal


def _record(
    config: AttackConfig,
    images: Images,
    models: "dict[str, Model]",
    problem: "AbstractProblem",
    command: str,
) -> "Run":
    from saddlepoint.runs import Run

    values = config.model_dump()
    return Run(
        kind=config.kind,
        command=command,
        settings=values,
        seed=config.seed,
        domains=problem.names,
        classes=images.classes,
        rows=len(problem),
        hashes=hashes(values, images, models),
    )


def hashes(config: Mapping[str, Any], images: Images, models: "dict[str, Model]") -> "Hashes":
    """What has to be the same for a run to be continued."""
    from saddlepoint.runs import Hashes, hash_model, hash_settings, hash_tensors

    return Hashes(
        settings=hash_settings(config),
        models={name: hash_model(model) or "" for name, model in models.items()},
        data=hash_tensors({"x": images.x, "y": images.y}),
    )
