"""A training as a run: from settings to a network, its card and its numbers."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Any, final

import torch
import torch.distributed as dist
from safetensors.torch import save
from torch import Tensor, nn

from saddlepoint import data, models, training
from saddlepoint.files import write_atomically
from saddlepoint.runs import texts
from saddlepoint.runs.execute import Execution
from saddlepoint.runs.hashing import hash_model, hash_settings, hash_tensors
from saddlepoint.runs.metrics import Epoch, TrainingMetrics
from saddlepoint.runs.record import Hashes, Run
from saddlepoint.runs.settings import TrainSettings
from saddlepoint.training import Recipe, Threat, TrainingProgress

__all__ = [
    "Tests",
    "Work",
    "prepare",
    "recipe_of",
    "record_training",
    "train_and_test",
    "training_images",
]

Pair = tuple[Tensor, Tensor]


@final
@dataclass(frozen=True)
class Tests:
    """The attacks on the trained network: on the first `images` test images, so many `steps` and `restarts`."""

    images: int = 1000
    steps: int = 50
    restarts: int = 3


@final
@dataclass(frozen=True)
class Work:
    """What a training needs: the network and the images to train, to validate and to test with."""

    network: nn.Module
    train: Pair
    held_out: Pair | None
    test: Pair
    recipe: Recipe
    threats: Mapping[str, Threat]


def recipe_of(settings: TrainSettings) -> Recipe:
    """The schedule of a training.

    Raises:
        ValueError: The start goes on from what was found for an image, and the image is mirrored in between.
    """
    recipe = training.recipe_for(
        settings.recipe, settings.data, settings.model, adversarial=settings.method != "clean"
    )
    if settings.epochs is not None:
        recipe = replace(recipe, epochs=settings.epochs)
    literal = settings.method == "ampgd-paper"
    if recipe.flip and (literal or settings.start == "warm"):
        which = "`--start warm`" + (", a part of --method ampgd-paper," if literal else "")
        way = "--recipe paper or --method ampgd" if literal else "--recipe paper or --start zero"
        raise ValueError(
            f"{which} must have images that are not mirrored, got --recipe {settings.recipe}, which mirrors "
            f"those of {settings.data}; take {way}."
        )
    return recipe


def training_images(
    settings: TrainSettings, progress: Callable[[str, int, int], None] | None = None
) -> tuple[Pair, Pair]:
    """Images to train on and to test on.

    Args:
        settings: Of the training.
        progress: Of downloads, as in `saddlepoint.data.load`.
    """
    if settings.data.endswith("-sample"):
        x, y = data.load(settings.data, "test")
        split = len(x) * 4 // 5
        kept = slice(min(split, settings.limit or split))
        return (x[kept], y[kept]), (x[split:], y[split:])
    found = data.load(settings.data, "train", settings.limit, progress=progress)
    return found, data.load(settings.data, "test", progress=progress)


def prepare(
    settings: TrainSettings,
    recipe: Recipe,
    threats: Mapping[str, Threat],
    images: tuple[Pair, Pair],
    device: str,
) -> Work:
    """The network and the images, divided.

    Args:
        settings: Of the training.
        recipe: From `recipe_of`.
        threats: By name.
        images: From `training_images`.
        device: Where the network goes, unless every process has a GPU of its own.

    Raises:
        ValueError: No images are left to train on, or none to validate on.
    """
    (x, y), test = images
    # Now, because radii may rise for epochs before they bound nothing.
    for threat in threats.values():
        threat.ball.check(x.shape[1:])
    adversarial, count = settings.method != "clean", settings.held_out
    if count is None:
        count = min(1000, len(x) // 5) if adversarial else 0
    if not 0 <= count < len(x):
        raise ValueError(f"`--held-out` must leave images to train on, got {count} of {len(x)}.")
    split = len(x) - count
    held_out = (x[split:], y[split:]) if count else None
    if threats and held_out is None and not adversarial:
        raise ValueError(
            "`--threat` needs --held-out N with --method clean, to validate on; got 0."
        )
    network = _network(settings, x, int(test[1].max()) + 1, device)
    return Work(network, (x[:split], y[:split]), held_out, test, recipe, threats)


def record_training(settings: TrainSettings, work: Work, tests: Tests, command: str) -> Run:
    """The record of a training that begins."""
    named = {f"test_{name}": value for name, value in asdict(tests).items()}
    values = {**settings.model_dump(), "recipe": asdict(work.recipe), **named}
    parts = {"train": work.train, "held out": work.held_out or work.train, "test": work.test}
    tensors = {f"{name} {k}": pair[k] for name, pair in parts.items() for k in (0, 1)}
    return Run(
        kind="train",
        command=command,
        settings=values,
        seed=settings.seed,
        domains=tuple(work.threats),
        classes=(),
        rows=work.recipe.epochs,
        hashes=Hashes(
            hash_settings(values),
            {settings.model: hash_model(work.network) or ""},
            hash_tensors(tensors),
        ),
    )


def train_and_test(
    settings: TrainSettings,
    work: Work,
    tests: Tests,
    execution: Execution,
    *,
    checkpoint_every: int | None,
    callback: Callable[[TrainingProgress], None],
) -> Run:
    """Train, attack the result, write network and card, and finish the run; all processes take part.

    Args:
        settings: Of the training.
        work: From `prepare`.
        tests: The attacks in the end.
        execution: The open run.
        checkpoint_every: Steps between checkpoints inside epochs.
        callback: Called after every step.

    Returns:
        The complete record, as written.
    """
    history = _fit(settings, work, execution, checkpoint_every, callback)
    robust: dict[str, float] = {}
    if work.threats:
        x, y = (tensor[: tests.images] for tensor in work.test)
        options = {"steps": tests.steps, "restarts": tests.restarts}
        shares = training.validate(work.network, x, y, work.threats, **options)
        robust = {name: round(100 * share, 2) for name, share in shares.items()}
    card = _card(settings, work, execution.run.command)
    if execution.world.rank == 0:
        tensors = {key: value.contiguous() for key, value in work.network.state_dict().items()}
        content = save(tensors)
        write_atomically(execution.folder / "model.safetensors", content)
        card = replace(card, sha256=hashlib.sha256(content).hexdigest())
        write_atomically(execution.folder / "model.json", card.to_json().encode())
    metrics = TrainingMetrics(
        rows=card.test_images,
        rows_attacked=min(tests.images, card.test_images) if robust else 0,
        accuracy=card.accuracy,
        fgsm_accuracy=card.fgsm_accuracy,
        robust_accuracy=robust,
        history=tuple(
            Epoch(stats=each.stats, validation=each.validation or {}) for each in history
        ),
    )
    done = work.recipe.epochs
    return execution.finish(metrics=metrics.plain(), done=done, seconds=execution.seconds())


def _fit(
    settings: TrainSettings,
    work: Work,
    execution: Execution,
    checkpoint_every: int | None,
    callback: Callable[[TrainingProgress], None],
) -> tuple[TrainingProgress, ...]:
    options: Any = {}
    if settings.method != "clean":
        ramp = settings.ramp
        if ramp is None:
            rises = settings.recipe == "fast" and settings.method != "ampgd-paper"
            ramp = work.recipe.epochs / 4 if rises else 0.0
        rule = texts.rule(settings.rule) if settings.rule else None
        options = {"rule": rule, "steps": settings.steps, "mix": settings.mix, "ramp": ramp}
        if settings.start is not None:
            options["start"] = settings.start
    flip = work.recipe.flip
    loader = training.Batches(*work.train, work.recipe.batch_size, flip=flip, numbered=not flip)

    def each(state: TrainingProgress) -> None:
        callback(state)
        if state.step == state.steps:
            execution.run = execution.run.but(done=state.epoch)

    return training.train(
        work.network,
        loader,
        work.threats or None,
        method=settings.method,
        recipe=work.recipe,
        validation=work.held_out,
        out=execution.folder,
        resume=execution.resumed,
        checkpoint_every=checkpoint_every,
        seed=settings.seed,
        callback=each,
        **options,
    )


def _network(settings: TrainSettings, x: Tensor, classes: int, device: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = models.build(settings.model, x.shape[1], x.shape[2], classes)
    own_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
    network = network.to("cuda" if own_gpu else device)
    # A fifth faster for convolutions on a CPU.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _card(settings: TrainSettings, work: Work, command: str) -> models.Card:
    x, y = work.test
    accuracy = models.measure(work.network.cpu().eval(), x, y)
    return models.Card(
        architecture=settings.model,
        channels=x.shape[1],
        size=x.shape[2],
        classes=int(y.max()) + 1,
        data=settings.data,
        command=command,
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
