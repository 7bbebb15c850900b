"""`saddlepoint train`: data and a network by name, a checkpoint every epoch, parameters, card and report.

Under torchrun all processes train together; the first one writes and shows.
"""

import hashlib
import platform
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .train_settings import TrainSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from saddlepoint.models import Card
    from saddlepoint.runs import Execution, Run
    from saddlepoint.training import Recipe, Threat, TrainingProgress

__all__ = ["train"]

Flag = Annotated[bool, Parameter(negative=())]
Pair = tuple["Tensor", "Tensor"]


def train(
    settings: TrainSettings,
    *,
    out: Path,
    resume: Flag = False,
    overwrite: Flag = False,
    checkpoint_every: int | None = None,
    device: str = "cpu",
    test_images: int = 1000,
    test_steps: int = 50,
    test_restarts: int = 3,
) -> int:
    """Train a network; keep parameters, card, history, report and checkpoints in a folder.

    Examples: saddlepoint train --data mnist --model A --out runs/clean

    saddlepoint train --data mnist --model mnist_cnn --threat linf:0.3 --threat l2:2.0 --threat l1:10
    --recipe paper --out runs/ampgd

    torchrun --nproc-per-node 4 -m saddlepoint train ...

    Args:
        settings: What decides the parameters.
        out: Folder for checkpoint.safetensors, model.safetensors, model.json, run.json, history.jsonl and
            report.html; with threats TensorBoard scalars too where it is installed.
        resume: Continue from the checkpoint in the folder, if there is one.
        overwrite: Replace the training in the folder.
        checkpoint_every: Write a checkpoint after every so many steps too, for long epochs.
        device: cpu, cuda, cuda:1, mps; under torchrun every process takes its own GPU if there is one.
        test_images: Attack the first so many test images in the end.
        test_steps: Steps of these attacks.
        test_restarts: How many attacks there are per threat.
    """
    from saddlepoint import runs

    from . import cluster, runner, show
    from .threats import threats

    named = threats(settings.threat)
    test = {"test_images": test_images, "test_steps": test_steps, "test_restarts": test_restarts}
    with cluster.joined() as rank, show.warnings_as_notes(quiet=rank != 0):
        work = _prepare(settings, named, device, rank)
        run = _record(settings, work, named, test)
        try:
            how = {"resume": resume, "overwrite": overwrite, "quiet": rank != 0}
            with runner.opened(run, out, **how) as execution:
                if not execution.complete:
                    history = _fit(settings, work, named, execution, checkpoint_every)
                    robust = _robust(work, named, test_images, test_steps, test_restarts)
                    _keep(settings, work, history, robust, execution)
                run = execution.run
        except runs.Interrupted as stop:
            saved = f"{stop.run.done} of {run.rows} epochs are done"
            if not checkpoint_every:
                saved += (
                    " (the one under way begins again; --checkpoint-every N saves inside epochs)"
                )
            return runner.stopped(saved, out, settings.command(out))
    return 0 if rank else _finish(run, out)


@dataclass(frozen=True)
class _Work:
    network: "nn.Module"
    train: Pair
    held_out: Pair | None
    test: Pair
    recipe: "Recipe"


def _prepare(settings: TrainSettings, named: "dict[str, Threat]", device: str, rank: int) -> _Work:
    from saddlepoint import training
    from saddlepoint.training.distributed import World

    from .inputs import Images, limit_used

    adversarial = settings.method != "clean"
    recipe = training.recipe_for(
        settings.recipe, settings.data, settings.model, adversarial=adversarial
    )
    if settings.epochs is not None:
        recipe = replace(recipe, epochs=settings.epochs)
    _check_start(settings, recipe)
    with World.current().one_then_all():
        x, y, test = _images(settings, rank)
    limit_used(settings.limit, Images(x, y, (), ""), quiet=rank != 0)
    # Now, because radii may rise for epochs before they bound nothing.
    for threat in named.values():
        threat.ball.check(x.shape[1:])
    count = settings.held_out
    if count is None:
        count = min(1000, len(x) // 5) if adversarial else 0
    if not 0 <= count < len(x):
        raise ValueError(f"`--held-out` must leave images to train on, got {count} of {len(x)}.")
    split = len(x) - count
    held_out = (x[split:], y[split:]) if count else None
    if named and held_out is None and not adversarial:
        raise ValueError(
            "`--threat` needs --held-out N with --method clean, to validate on; got 0."
        )
    network = _network(settings.model, x, int(test[1].max()) + 1, settings.seed, device)
    return _Work(network, (x[:split], y[:split]), held_out, test, recipe)


def _check_start(settings: TrainSettings, recipe: "Recipe") -> None:
    """Refuse to go on from what was found for an image where the image is mirrored in between."""
    literal = settings.method == "ampgd-paper"
    if recipe.flip and (literal or settings.start == "warm"):
        which = "`--start warm`" + (", a part of --method ampgd-paper," if literal else "")
        way = "--recipe paper or --method ampgd" if literal else "--recipe paper or --start zero"
        raise ValueError(
            f"{which} must have images that are not mirrored, got --recipe {settings.recipe}, which mirrors "
            f"those of {settings.data}; take {way}."
        )


def _record(
    settings: TrainSettings, work: _Work, named: "dict[str, Threat]", test: dict[str, int]
) -> "Run":
    from saddlepoint import runs

    values = {**asdict(settings), "recipe": asdict(work.recipe), **test}
    parts = {"train": work.train, "held out": work.held_out or work.train, "test": work.test}
    tensors = {f"{name} {k}": pair[k] for name, pair in parts.items() for k in (0, 1)}
    return runs.Run(
        kind="train",
        command=settings.command(),
        settings=values,
        seed=settings.seed,
        domains=tuple(named),
        classes=(),
        rows=work.recipe.epochs,
        hashes=runs.Hashes(
            runs.hash_settings(values),
            {settings.model: runs.hash_model(work.network) or ""},
            runs.hash_tensors(tensors),
        ),
    )


def _images(settings: TrainSettings, rank: int) -> "tuple[Tensor, Tensor, Pair]":
    from saddlepoint import data as datasets

    from . import progress

    if settings.data.endswith("-sample"):
        x, y = datasets.load(settings.data, "test")
        split = len(x) * 4 // 5
        x, y, test = x[:split], y[:split], (x[split:], y[split:])
        return x[: settings.limit], y[: settings.limit], test
    with progress.downloads() if rank == 0 else nullcontext() as report:
        x, y = datasets.load(settings.data, "train", settings.limit, progress=report)
        return x, y, datasets.load(settings.data, "test", progress=report)


def _fit(
    settings: TrainSettings,
    work: _Work,
    named: "dict[str, Threat]",
    execution: "Execution",
    checkpoint_every: int | None,
) -> "tuple[TrainingProgress, ...]":
    from saddlepoint import training

    from . import parse, progress

    options: Any = {}
    if settings.method != "clean":
        ramp = settings.ramp
        if ramp is None:
            rises = settings.recipe == "fast" and settings.method != "ampgd-paper"
            ramp = work.recipe.epochs / 4 if rises else 0.0
        rule = parse.rule(settings.rule) if settings.rule else None
        options = {"rule": rule, "steps": settings.steps, "mix": settings.mix, "ramp": ramp}
        if settings.start is not None:
            options["start"] = settings.start
    title = f"{settings.data} {settings.model}" + (
        f" {settings.method}" if settings.method != "clean" else ""
    )
    flip = work.recipe.flip
    loader = training.Batches(*work.train, work.recipe.batch_size, flip=flip, numbered=not flip)
    with progress.training(title, shown=execution.world.rank == 0) as bar:
        return training.train(
            work.network,
            loader,
            named or None,
            method=settings.method,
            recipe=work.recipe,
            validation=work.held_out,
            out=execution.folder,
            resume=execution.resumed,
            checkpoint_every=checkpoint_every,
            seed=settings.seed,
            callback=_callback(bar, execution, bool(named)),
            **options,
        )


def _callback(
    bar: "Callable[[TrainingProgress], None]", execution: "Execution", adversarial: bool
) -> "Callable[[TrainingProgress], None]":
    from saddlepoint.training import TensorBoard

    shown = [bar]
    if execution.world.rank == 0 and adversarial and TensorBoard.available():
        shown.append(TensorBoard(execution.folder / "tensorboard"))

    def each(state: "TrainingProgress") -> None:
        for show in shown:
            show(state)
        if state.step == state.steps:
            execution.run = execution.run.but(done=state.epoch)

    return each


def _robust(
    work: _Work, named: "dict[str, Threat]", images: int, steps: int, restarts: int
) -> dict[str, float]:
    """Accuracy on the first test images under PGD, in percent; all processes take part."""
    from saddlepoint import training

    if not named:
        return {}
    x, y = (tensor[:images] for tensor in work.test)
    accuracy = training.validate(work.network, x, y, named, steps=steps, restarts=restarts)
    return {name: round(100 * value, 2) for name, value in accuracy.items()}


def _keep(
    settings: TrainSettings,
    work: _Work,
    history: "tuple[TrainingProgress, ...]",
    robust: dict[str, float],
    execution: "Execution",
) -> None:
    """Write the network and its card, and finish the run."""
    from safetensors.torch import save

    from saddlepoint import runs
    from saddlepoint.files import write_atomically

    card = _card(settings, work)
    if execution.world.rank == 0:
        tensors = {key: value.contiguous() for key, value in work.network.state_dict().items()}
        content = save(tensors)
        write_atomically(execution.folder / "model.safetensors", content)
        card = replace(card, sha256=hashlib.sha256(content).hexdigest())
        write_atomically(execution.folder / "model.json", card.to_json().encode())
    metrics = runs.TrainingMetrics(
        rows=card.test_images,
        rows_attacked=min(execution.run.settings["test_images"], card.test_images) if robust else 0,
        accuracy=card.accuracy,
        fgsm_accuracy=card.fgsm_accuracy,
        robust_accuracy=robust,
        history=tuple(
            runs.Epoch(stats=each.stats, validation=each.validation or {}) for each in history
        ),
    )
    execution.finish(metrics=metrics.plain(), done=work.recipe.epochs, seconds=execution.seconds())


def _finish(run: "Run", out: Path) -> int:
    """Draw the report, and say what came out."""
    from saddlepoint import report
    from saddlepoint.report import words

    report.write_report(out)
    print(f"{words.training_text(run)}; {out}")
    return 0


def _network(name: str, x: "Tensor", classes: int, seed: int, device: str) -> "nn.Module":
    import torch
    import torch.distributed as dist

    from saddlepoint import models

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = models.build(name, x.shape[1], x.shape[2], classes)
    network = network.to(
        "cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else device
    )
    # A fifth faster for convolutions on a CPU.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _card(settings: TrainSettings, work: _Work) -> "Card":
    import torch

    from saddlepoint import models

    x, y = work.test
    accuracy = models.measure(work.network.cpu().eval(), x, y)
    return models.Card(
        architecture=settings.model,
        channels=x.shape[1],
        size=x.shape[2],
        classes=int(y.max()) + 1,
        data=settings.data,
        command=settings.command(),
        seed=settings.seed,
        epochs=work.recipe.epochs,
        threads=torch.get_num_threads(),
        recipe=asdict(work.recipe),
        accuracy=round(100 * accuracy.clean, 2),
        fgsm_accuracy=round(100 * accuracy.fgsm, 2),
        fgsm_eps=models.FGSM_EPS,
        test_images=len(y),
        sha256="",
        versions={
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "numpy", "safetensors")},
        },
    )
