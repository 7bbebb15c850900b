"""A training as a run: from settings to a network, its card and its numbers."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from saddlepoint import data, models, training
from saddlepoint.behind import keeping_buffers, keeping_modes, keeping_random
from saddlepoint.doctor.defaults import default_radius
from saddlepoint.files import write_atomically
from saddlepoint.problems import Ensemble
from saddlepoint.runs import texts
from saddlepoint.runs.build import begun, hashes_of
from saddlepoint.runs.execute import Execution
from saddlepoint.runs.materials import Images
from saddlepoint.runs.metrics import Epoch, TrainingMetrics
from saddlepoint.runs.preparing import begun_with
from saddlepoint.runs.record import Run
from saddlepoint.runs.refusals import ASKED, answers
from saddlepoint.runs.settings import TrainSettings
from saddlepoint.runs.sizes import with_size
from saddlepoint.runs.training_parts import (
    architecture_of,
    first_network,
    hashes_of_start,
    keep_seen,
    prepared_as,
    training_images,
    unwrapped,
)
from saddlepoint.training import Recipe, Threat, TrainingProgress
from saddlepoint.training.checkpoints import read_epochs
from saddlepoint.training.distributed import World
from saddlepoint.training.inner import faster_precision
from saddlepoint.training.methods import with_radii
from saddlepoint.training.session import CHECKPOINT

__all__ = [
    "Loaded",
    "Work",
    "first_answers",
    "load",
    "prepare",
    "record_training",
    "train_and_test",
]

Pair = tuple[Tensor, Tensor]


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
    classes: tuple[str, ...]
    usual_radius: float


def _recipe_of(settings: TrainSettings) -> Recipe:
    """The schedule of a training.

    Raises:
        ValueError: The start goes on from what was found for an image, and the image is mirrored in between.
    """
    recipe = training.recipe_for(
        settings.recipe, settings.data, settings.model, adversarial=settings.method != "clean"
    )
    given = {name: getattr(settings, name) for name in ("epochs", "learning_rate", "batch_size")}
    recipe = replace(recipe, **{name: value for name, value in given.items() if value is not None})
    if settings.plain_images:
        recipe = replace(recipe, flip=False, shift=0)
    literal = settings.method == "ampgd-paper"
    if (recipe.flip or recipe.shift) and (literal or settings.start == "warm"):
        which = "`--start warm`" + (", a part of --method ampgd-paper," if literal else "")
        way = f"--plain-images or {'--method ampgd' if literal else '--start zero'}"
        raise ValueError(
            f"{which} must have images that are not mirrored or shifted, got --recipe {settings.recipe}, "
            f"which does that with those of {settings.data}; take {way}."
        )
    return recipe


@final
@dataclass(frozen=True)
class Loaded:
    """What the settings of a training name: its images, and the settings with the size that those have."""

    settings: TrainSettings
    recipe: Recipe
    threats: Mapping[str, Threat]
    images: tuple[Images, Images]


def load(settings: TrainSettings, progress: Callable[[str, int, int], None] | None) -> Loaded:
    """The images of a training; process 0 downloads for all.

    Raises:
        ValueError: The settings contradict each other, said before anything is loaded, or the images do.
    """
    threats, recipe = texts.threats(settings.threat), _recipe_of(settings)
    with World.current().one_then_all():
        settings = with_size(settings)
        return Loaded(settings, recipe, threats, training_images(settings, progress))


def prepare(
    loaded: Loaded, device: str, folder: Path, *, resume: bool
) -> tuple[TrainSettings, Work]:
    """The network and the images, divided, and the settings with what the network computes in.

    Args:
        loaded: From `load`.
        device: Where the network goes, unless every process has a GPU of its own.
        folder: Of the run, whose record knows the precision.
        resume: Whether the run in it is to be continued.

    Raises:
        ValueError: No images are left to train on, or none to validate on.
    """
    work = _work(loaded.settings, loaded, device)
    return _with_precision(loaded.settings, work, folder, resume=resume), work


def _work(settings: TrainSettings, loaded: Loaded, device: str) -> Work:
    recipe, threats, images = loaded.recipe, loaded.threats, loaded.images
    x, y = images[0].x, images[0].y
    # Now: a radius too large for the images would be refused only when the ramp has reached it, epochs later.
    trained = with_radii(threats, texts.radii(settings.train_radius, threats))
    for threat in {*threats.values(), *trained.values()}:
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
    network = first_network(settings, images[0], device)
    test = images[1].x, images[1].y
    about = images[0].classes, default_radius(images[0].family)
    return Work(network, (x[:split], y[:split]), held_out, test, recipe, threats, *about)


def _with_precision(
    settings: TrainSettings, work: Work, folder: Path, *, resume: bool
) -> TrainSettings:
    """The settings with what the network computes in, if that was left open, see `with_precisions`."""
    word: str = settings.precision
    if resume and word == "auto":
        word = begun_with(folder, "precision", word)
    if word == "auto":
        word = faster_precision(work.network, *work.train)
    return settings.model_copy(update={"precision": word})


def record_training(settings: TrainSettings, work: Work, command: str) -> Run:
    """The record of a training that begins."""
    values = {**settings.model_dump(), "recipe": asdict(work.recipe)}
    parts = {"train": work.train, "held out": work.held_out or work.train, "test": work.test}
    tensors = {f"{name} {k}": pair[k] for name, pair in parts.items() for k in (0, 1)}
    hashes = hashes_of(values, tensors, {settings.model: work.network})
    hashes = replace(hashes, models={**hashes.models, **hashes_of_start(settings)})
    about: Any = {"rows": work.recipe.epochs, "classes": work.classes}
    return begun("train", command, values, hashes, domains=tuple(work.threats), **about)


def first_answers(work: Work) -> Tensor | None:
    """What the network says to the first images before it is trained, see `answers`; nothing is left of it."""
    x, y = (tensor[:ASKED] for tensor in work.train)
    kept = keeping_modes([work.network], False), keeping_buffers([work.network])
    with keeping_random([work.network]), kept[0], kept[1]:
        return answers(Ensemble([work.network], x, y))


def train_and_test(
    settings: TrainSettings,
    work: Work,
    execution: Execution,
    *,
    checkpoint_every: int | None,
    callback: Callable[[TrainingProgress], None],
) -> Run:
    """Train, attack the result, write network and card, and finish the run; all processes take part.

    Args:
        settings: Of the training.
        work: From `prepare`.
        execution: The open run.
        checkpoint_every: Steps between checkpoints inside epochs.
        callback: Called after every step.

    Returns:
        The complete record, as written.
    """
    history = _fit(settings, work, execution, checkpoint_every, callback)
    robust: dict[str, float] = {}
    if work.threats:
        x, y = (tensor[: settings.test_images] for tensor in work.test)
        options = {"steps": settings.test_steps, "restarts": settings.test_restarts}
        shares = training.validate(work.network, x, y, work.threats, **options)
        robust = {name: round(100 * share, 2) for name, share in shares.items()}
    card = _card(settings, work, execution.run.command)
    if execution.world.rank == 0:
        seen = [work.train[0], *(work.held_out or ())[:1]]
        keep_seen(execution.folder, seen, execution.answers)
        # Of a network that is wrapped, the parameters are those of its own code.
        state = unwrapped(work.network).state_dict()
        content = save({key: value.contiguous() for key, value in state.items()})
        write_atomically(execution.folder / "model.safetensors", content)
        card = replace(card, sha256=hashlib.sha256(content).hexdigest())
        write_atomically(execution.folder / "model.json", card.to_json().encode())
    metrics = TrainingMetrics(
        rows=card.test_images,
        rows_attacked=min(settings.test_images, card.test_images) if robust else 0,
        accuracy=card.accuracy,
        fgsm_accuracy=card.fgsm_accuracy,
        fgsm_eps=card.fgsm_eps,
        robust_accuracy=robust,
        rows_held_out=None if work.held_out is None else len(work.held_out[1]),
        history=tuple(
            Epoch(stats=each.stats, validation=each.validation or {}) for each in history
        ),
    )
    return execution.finish(metrics, seconds=execution.seconds())


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
        if settings.train_radius:
            options["radii"] = texts.radii(settings.train_radius, work.threats)
    flip, shift = work.recipe.flip, work.recipe.shift
    loader = training.Batches(
        *work.train,
        work.recipe.batch_size,
        flip=flip,
        shift=shift,
        numbered=not (flip or shift),
    )
    try:
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
            precision=settings.precision,
            callback=callback,
            **options,
        )
    finally:
        # What counts is on disk, wherever the training was stopped.
        done = read_epochs(execution.folder / CHECKPOINT)
        execution.run = execution.run.but(done=done)


def _card(settings: TrainSettings, work: Work, command: str) -> models.Card:
    x, y = work.test
    eps, (mean, std) = _fgsm_radius(settings, work), prepared_as(settings)
    accuracy = models.measure(work.network.cpu().eval(), x, y, eps=eps)
    return models.Card(
        architecture=architecture_of(settings.model),
        channels=x.shape[1],
        size=x.shape[2],
        classes=len(work.classes),
        data=settings.data,
        command=command,
        seed=settings.seed,
        epochs=work.recipe.epochs,
        threads=torch.get_num_threads(),
        recipe=asdict(work.recipe),
        accuracy=round(100 * accuracy.clean, 2),
        fgsm_accuracy=round(100 * accuracy.fgsm, 2),
        fgsm_eps=eps,
        test_images=len(y),
        sha256="",
        versions={
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "numpy", "safetensors")},
        },
        mean=mean,
        std=std,
    )


def _fgsm_radius(settings: TrainSettings, work: Work) -> float:
    """That of the linf threat; without one the paper's for its data sets, and a usual one for other images."""
    if "linf" in work.threats:
        return float(work.threats["linf"].ball.eps)
    return models.FGSM_EPS if settings.data in data.NAMES else work.usual_radius
