"""One attack from settings to report: load, build, check, run, write, say."""

import sys
from collections.abc import Callable, Mapping, Sequence
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
    from saddlepoint.report import Hashes, Job, Run
    from saddlepoint.report.running import Solve

__all__ = [
    "clear",
    "earlier",
    "free_folder",
    "hashes",
    "on_device",
    "other_versions",
    "run_attack",
    "run_folder",
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
    folder = run_folder(name, out, resume, overwrite)
    from saddlepoint import report

    from . import cluster, progress, show

    with cluster.first_process_first(rank), progress.downloads() as downloading:
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
    old = earlier(run, folder, resume=resume, quiet=quiet)
    if old is not None:
        if old.status == "complete":
            return 0 if rank else _finish(old, folder, quiet=quiet, as_json=as_json)
        run = run.but(created=old.created, warnings=run.warnings + other_versions(old, run))
    else:
        cluster.meet()  # everyone has seen the folder as it was
        if rank == 0:
            clear(folder)
    cluster.meet()
    title = f"{config.kind} {config.data}"
    noun = "groups" if config.kind == "universal" else "images"
    try:
        with library(), show.attacking(title, noun, quiet=quiet) as callback:
            run = report.execute(job, run, folder, callback=callback)
    except (report.Interrupted, KeyboardInterrupt) as stop:
        done = stop.run.done if isinstance(stop, report.Interrupted) else 0
        again = f"{config.command(folder)} --resume"
        print(
            f"stopped: {done} of {run.rows} {noun} are done and saved in {folder}", file=sys.stderr
        )
        print(f"continue with: {again}", file=sys.stderr)
        return 130
    for line in run.warnings:
        show.note(f"saddlepoint: warning: {line}", quiet=quiet)
    return 0 if rank else _finish(run, folder, quiet=quiet, as_json=as_json)


def earlier(run: "Run", folder: Path, *, resume: bool, quiet: bool) -> "Run | None":
    """The run in the folder that `run` is to continue, or None; one of other settings is refused."""
    from saddlepoint import report

    from . import show

    if not resume:
        return None
    if not (folder / "run.json").is_file():
        show.note(f"nothing to resume in {folder}: starting", quiet=quiet)
        return None
    with usage():
        report.check_resumable(run, folder)
    old = report.Run.read(folder)
    if old.status == "complete":
        show.note(f"{folder} is complete already", quiet=quiet)
    return old


def clear(folder: Path) -> None:
    """Remove what an older run left, so that nothing of it can be taken for the new one."""
    from saddlepoint.report import TENSORS, DiskLedger, Shards

    for name in ("run.json", "report.html", "table.md", "table.csv", "table.tex", TENSORS):
        (folder / name).unlink(missing_ok=True)
    Shards(folder).clear()
    DiskLedger(folder).clear()


def other_versions(old: "Run", new: "Run") -> tuple[str, ...]:
    """A remark where the first rows were made by other versions: they may round differently."""
    changed = [
        f"{k} {old.versions.get(k)} and {v}"
        for k, v in new.versions.items()
        if old.versions.get(k) != v
    ]
    return (f"the run was continued with other versions: {', '.join(changed)}.",) if changed else ()


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


def run_folder(name: str, out: Path | None, resume: bool, overwrite: bool) -> Path:
    """The folder of a run: the one given, if it is free or may be used, or a new one under `runs`."""
    if out is None:
        if resume:
            raise UsageError("`--resume` must say which run to continue, such as --out runs/mine.")
        return free_folder(name)
    if out.exists() and not out.is_dir():
        raise UsageError(f"`--out` must be a folder, got the file {str(out)!r}.")
    there = (out / "run.json").is_file()
    if there and not (resume or overwrite):
        raise UsageError(
            f"`--out` must not hold a run yet, got {str(out)!r}; add --resume to continue it, "
            "--overwrite to replace it, or choose another folder."
        )
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

    from saddlepoint.report import Job

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
    from saddlepoint.weights import AbstractWeightRule

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
    from saddlepoint.report import Run

    values = config.model_dump()
    return Run(
        kind=config.kind,
        command=command,
        config=values,
        seed=config.seed,
        domains=problem.names,
        classes=images.classes,
        rows=len(problem),
        hashes=hashes(values, images, models),
    )


def hashes(config: Mapping[str, Any], images: Images, models: "dict[str, Model]") -> "Hashes":
    """What has to be the same for a run to be continued."""
    from saddlepoint.report import Hashes, hash_config, hash_model, hash_tensors

    return Hashes(
        config=hash_config(config),
        models={name: hash_model(model) for name, model in models.items()},
        data=hash_tensors({"x": images.x, "y": images.y}),
    )
