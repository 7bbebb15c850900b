"""A training as a run: from settings to a network, its card and its numbers."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
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
from saddlepoint.runs import rule_words, texts
from saddlepoint.runs.build import begun, hashes_of
from saddlepoint.runs.execute import Execution
from saddlepoint.runs.materials import Images
from saddlepoint.runs.metrics import Epoch, TrainingMetrics
from saddlepoint.runs.model_words import CARD, NETWORK
from saddlepoint.runs.preparing import begun_with
from saddlepoint.runs.record import BOARD, Run
from saddlepoint.runs.refusals import ASKED, answers
from saddlepoint.runs.settings import TrainSettings
from saddlepoint.runs.sizes import with_size
from saddlepoint.runs.tasks import AbstractTask, Download
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
from saddlepoint.training.distributed import World
from saddlepoint.training.methods import with_radii
from saddlepoint.training.step_precision import faster_precision

__all__ = ["TrainingTask"]

Labelled = tuple[Tensor, Tensor]  # images and their labels
Told = Callable[[TrainingProgress], None]


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
    if (settings.ramp or 0) > recipe.epochs:
        raise ValueError(
            f"`--ramp` must be at most the {recipe.epochs} epochs of the training, got {settings.ramp}: the "
            "radii of --threat would never be reached."
        )
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
@dataclass(kw_only=True)
class TrainingTask(AbstractTask[TrainSettings]):
    """A training.

    Attributes:
        device: Where the network goes, unless every process has a GPU of its own.
        checkpoint_every: Steps between checkpoints inside epochs.
        images: As they were loaded, to train and to test with.
        network: What is trained.
        train: Images and labels to train with.
        held_out: Those to validate with, if there are some.
        test: Those to test with.
    """

    device: str = "cpu"
    checkpoint_every: int | None = None
    recipe: Recipe = field(init=False)
    threats: Mapping[str, Threat] = field(init=False)
    images: tuple[Images, Images] = field(init=False)
    network: nn.Module = field(init=False)
    train: Labelled = field(init=False)
    held_out: Labelled | None = field(init=False)
    test: Labelled = field(init=False)

    def load(self, progress: Download | None) -> int:
        """Find the images; process 0 downloads for all.

        Raises:
            ValueError: The settings contradict each other, said before anything is loaded, or the images do.
        """
        self.threats, self.recipe = texts.threats(self.settings.threat), _recipe_of(self.settings)
        with World.current().one_then_all():
            self.settings = with_size(self.settings)
            self.images = training_images(self.settings, progress)
        return len(self.images[0].x)

    def assemble(self, folder: Path, *, resume: bool) -> None:
        """Divide the images, make the network, and find out what it computes in.

        Raises:
            ValueError: No images are left to train on, or none to validate on.
        """
        settings, threats, (x, y) = self.settings, self.threats, _pair(self.images[0])
        # Now: a radius too large for the images would be refused only when the ramp reaches it, epochs later.
        trained = with_radii(threats, texts.radii(settings.train_radius, threats))
        for threat in {*threats.values(), *trained.values()}:
            threat.ball.check(x.shape[1:])
        adversarial, count = settings.method != "clean", settings.held_out
        if count is None:
            count = min(1000, len(x) // 5) if adversarial else 0
        if not 0 <= count < len(x):
            raise ValueError(
                f"`--held-out` must leave images to train on, got {count} of {len(x)}."
            )
        if threats and not count and not adversarial:
            raise ValueError(
                "`--threat` needs --held-out N with --method clean, to validate on; got 0."
            )
        split = len(x) - count
        self.train, self.test = (x[:split], y[:split]), _pair(self.images[1])
        self.held_out = (x[split:], y[split:]) if count else None
        self.network = first_network(settings, self.images[0], self.device)
        word: str = settings.precision
        if resume and word == "auto":
            word = begun_with(folder, "precision", word)
        if word == "auto":
            word = faster_precision(self.network, *self.train)
        self.settings = settings.model_copy(update={"precision": word})

    def record(self) -> Run:
        """The record of a training that begins."""
        settings, images = self.settings, self.images[0]
        values = {**settings.model_dump(), "recipe": asdict(self.recipe)}
        parts = {"train": self.train, "held out": self.held_out or self.train, "test": self.test}
        tensors = {f"{name} {k}": pair[k] for name, pair in parts.items() for k in (0, 1)}
        hashes = hashes_of(values, tensors, {settings.model: self.network})
        hashes = replace(hashes, models={**hashes.models, **hashes_of_start(settings)})
        about: Any = {"rows": self.recipe.epochs, "classes": images.classes}
        return begun("train", self.line, values, hashes, domains=tuple(self.threats), **about)

    def ask(self) -> Tensor | None:
        """What the network says to the first images before it is trained; nothing is left of it."""
        x, y = (tensor[:ASKED] for tensor in self.train)
        kept = keeping_modes([self.network], False), keeping_buffers([self.network])
        with keeping_random([self.network]), kept[0], kept[1]:
            return answers(Ensemble([self.network], x, y))

    def work(self, execution: Execution, callback: Told | None) -> None:
        """Train, attack the result, write network and card, and finish the run."""
        settings = self.settings
        history = _fit(self, execution, callback)
        robust: dict[str, float] = {}
        if self.threats:
            x, y = (tensor[: settings.test_images] for tensor in self.test)
            options = {"steps": settings.test_steps, "restarts": settings.test_restarts}
            shares = training.validate(self.network, x, y, self.threats, **options)
            robust = {name: round(100 * share, 2) for name, share in shares.items()}
        card = _card(self, execution.run.command)
        if execution.world.rank == 0:
            seen = [self.train[0], *(self.held_out or ())[:1]]
            keep_seen(execution.folder, seen, execution.answers)
            # Of a network that is wrapped, the parameters are those of its own code.
            state = unwrapped(self.network).state_dict()
            content = save({key: value.contiguous() for key, value in state.items()})
            write_atomically(execution.folder / NETWORK, content)
            card = replace(card, sha256=hashlib.sha256(content).hexdigest())
            write_atomically(execution.folder / CARD, card.to_json().encode())
        metrics = TrainingMetrics(
            rows=card.test_images,
            rows_attacked=min(settings.test_images, card.test_images) if robust else 0,
            accuracy=card.accuracy,
            fgsm_accuracy=card.fgsm_accuracy,
            fgsm_eps=card.fgsm_eps,
            robust_accuracy=robust,
            rows_held_out=None if self.held_out is None else len(self.held_out[1]),
            history=tuple(
                Epoch(stats=each.stats, validation=each.validation or {}) for each in history
            ),
        )
        execution.finish(metrics, seconds=execution.seconds())


def _pair(images: Images) -> Labelled:
    return images.x, images.y


def _with_board(task: TrainingTask, execution: Execution, callback: Told | None) -> Told | None:
    """Who is told of the progress: of adversarial training TensorBoard too, where it is installed."""
    if execution.world.rank or not task.threats or not training.TensorBoard.available():
        return callback
    board = training.TensorBoard(execution.folder / BOARD)

    def both(state: TrainingProgress) -> None:
        if callback is not None:
            callback(state)
        board(state)

    return both


def _fit(
    task: TrainingTask, execution: Execution, callback: Told | None
) -> tuple[TrainingProgress, ...]:
    settings, recipe = task.settings, task.recipe
    options: Any = {}
    if settings.method != "clean":
        ramp = settings.ramp
        if ramp is None:
            rises = settings.recipe == "fast" and settings.method != "ampgd-paper"
            ramp = recipe.epochs / 4 if rises else 0.0
        rule = rule_words.rule(settings.rule) if settings.rule else None
        options = {"rule": rule, "steps": settings.steps, "mix": settings.mix, "ramp": ramp}
        if settings.start is not None:
            options["start"] = settings.start
        if settings.train_radius:
            options["radii"] = texts.radii(settings.train_radius, task.threats)
    flip, shift = recipe.flip, recipe.shift
    loader = training.Batches(
        *task.train,
        recipe.batch_size,
        flip=flip,
        shift=shift,
        border=recipe.border,
        numbered=not (flip or shift),
    )
    return training.train(
        task.network,
        loader,
        task.threats or None,
        method=settings.method,
        recipe=recipe,
        validation=task.held_out,
        out=execution.folder,
        resume=execution.resumed,
        checkpoint_every=task.checkpoint_every,
        seed=settings.seed,
        precision=settings.precision,
        callback=_with_board(task, execution, callback),
        **options,
    )


def _card(task: TrainingTask, command: str) -> models.Card:
    settings, recipe, (x, y) = task.settings, task.recipe, task.test
    eps, (mean, std) = _fgsm_radius(task), prepared_as(settings)
    accuracy = models.measure(task.network.cpu().eval(), x, y, eps=eps)
    return models.Card(
        architecture=architecture_of(settings.model),
        channels=x.shape[1],
        size=x.shape[2],
        classes=len(task.images[0].classes),
        data=settings.data,
        command=command,
        seed=settings.seed,
        epochs=recipe.epochs,
        threads=torch.get_num_threads(),
        recipe=asdict(recipe),
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


def _fgsm_radius(task: TrainingTask) -> float:
    """That of the linf threat; without one the paper's for its data sets, and a usual one for other images."""
    if "linf" in task.threats:
        return float(task.threats["linf"].ball.eps)
    usual = default_radius(task.images[0].family)
    return models.FGSM_EPS if task.settings.data in data.NAMES else usual
