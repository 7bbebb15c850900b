"""A training run from its first step to its last, and everything needed to continue it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saddlepoint.behind import keeping_random
from saddlepoint.files import write_atomically
from saddlepoint.loaders import sent
from saddlepoint.solver.schedule import SIZES
from saddlepoint.streams import seed_of_torch

from .abstract_method import AbstractMethod, Moment
from .batches import Batch, Loader, TrainingProgress, as_batch
from .checkpoints import (
    check_config,
    history_in,
    not_whole,
    read_checkpoint,
    read_model,
    write_checkpoint,
)
from .distributed import World
from .recipes import Recipe
from .threats import Threat
from .validation import validate

__all__ = ["BEST", "CHECKPOINT", "HISTORY", "Session", "Validation"]

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
HISTORY = "history.jsonl"


@final
@dataclass(frozen=True)
class Validation:
    """What to measure after every epoch.

    Attributes:
        x: Held-out images in [0, 1], (N, ...); or a data set or a loader of them with labels, in a fixed order.
        y: Labels, (N,); None for a data set or a loader.
        threats: Named threats; none for the clean accuracy only.
        steps: Of every attack.
    """

    x: Any
    y: Tensor | None
    threats: Mapping[str, Threat]
    steps: int = 20


@dataclass
class _Tally:
    """An epoch so far: steps, images, and sums over images."""

    steps: int = 0
    images: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, sums: Mapping[str, float], images: int) -> dict[str, float]:
        """Count one step and return the means over the images of the epoch."""
        self.steps += 1
        self.images += images
        for key, value in sums.items():
            self.sums[key] = self.sums.get(key, 0.0) + value
        return {key: value / self.images for key, value in self.sums.items()}


@final
class Session:
    """The state of a training run; `run` brings it to its end."""

    def __init__(
        self,
        model: nn.Module,
        loader: Loader,
        optimizer: torch.optim.Optimizer,
        method: AbstractMethod,
        recipe: Recipe,
        *,
        seed: int,
        folder: Path | None,
        config: dict[str, Any],
        validation: Validation | None,
        checkpoint_every: int | None,
    ) -> None:
        self.model, self.loader, self.optimizer = model, loader, optimizer
        self.method, self.recipe, self.seed = method, recipe, seed
        self.folder, self.config, self.validation = folder, config, validation
        self.checkpoint_every = checkpoint_every
        self.callback: Callable[[TrainingProgress], None] | None = None
        self.world = World.current()
        self.device = next(model.parameters()).device
        self.history: list[TrainingProgress] = []
        self.best: dict[str, Tensor] | None = None
        self._tally = _Tally()
        self._random: dict[str, Tensor] = {}
        self._names: tuple[str, ...] | None = None

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint.

        Raises:
            ValueError: It is damaged, or belongs to another run.
        """
        found = read_checkpoint(path, self.model, self.optimizer, self.config)
        history = history_in(path, found.record)
        try:
            self.history = [TrainingProgress(**each) for each in history]
            self.method.restore(found.extra("method."))
            if "tally" in found.record:
                self._tally = _Tally(**found.record["tally"])
                self._random = found.extra("random.")
                torch.Generator().set_state(self._random["cpu"])  # refuses what is none
            scores = self._scores()
            inside = 0 <= self._tally.steps < len(self.loader)
        except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise not_whole(path, f"damaged content, {error!r}") from error
        if not inside:
            raise not_whole(path, f"{self._tally.steps} steps of an epoch of {len(self.loader)}")
        if scores:
            self.best = self._best_in(path.with_name(BEST), scores)

    def _best_in(self, path: Path, scores: list[tuple[float, float]]) -> dict[str, Tensor]:
        """The parameters of the best epoch, if the file has those of this training."""
        record, state = read_model(path)
        if "config" in record:
            check_config(path, record, self.config)
        number = scores.index(max(scores)) + 1
        expected = number, self.history[number - 1].validation
        found = record.get("epoch"), record.get("validation")
        # One more than are done: the training was stopped between the two files.
        if found != expected and found[0] != len(self.history) + 1:
            raise not_whole(path, f"epoch {found[0]} in place of {number}, or that of another run")
        ours = {key: value.shape for key, value in self.model.state_dict().items()}
        if {key: value.shape for key, value in state.items()} != ours:
            raise ValueError(
                f"`{path}` must fit the model being trained, got another architecture."
            )
        return state

    def run(self) -> None:
        """All epochs that are left; afterwards the model has the parameters of the best one, if validated."""
        with (
            _modes_kept(self.model),
            torch.enable_grad(),
            keeping_random([self.model]),
            self.world.averaging(self.model, self.optimizer),
        ):
            for epoch in range(len(self.history), self.recipe.epochs):
                self.history.append(self._epoch(epoch))
                self._tally = _Tally()
                self._keep()
                if self.callback is not None:
                    self.callback(self.history[-1])
        if self.best is not None:
            self.model.load_state_dict(self.best)

    def _epoch(self, epoch: int) -> TrainingProgress:
        torch.manual_seed(seed_of_torch(self.seed * 2**20 + epoch))
        self.model.train()
        steps, progress = (
            len(self.loader),
            TrainingProgress(epoch + 1, self.recipe.epochs, 0, 0, {}),
        )
        batches = iter(self.loader)
        if self._tally.steps:
            # Draw what was drawn before the interruption, then take up the random numbers where they were.
            for _ in range(self._tally.steps):
                next(batches)
            _set_random_state(self._random, self.device)
        for index, given in enumerate(batches, self._tally.steps):
            time = epoch + index / steps
            batch = _at_side(as_batch(given), self.recipe.side_at(time))
            for options in self.optimizer.param_groups:
                options["lr"] = self.recipe.learning_rate_at(time)
            means = self._step(batch, epoch, index)
            progress = TrainingProgress(epoch + 1, self.recipe.epochs, index + 1, steps, means)
            if index + 1 < steps:
                if self.callback is not None:
                    self.callback(progress)
                if self.checkpoint_every and (index + 1) % self.checkpoint_every == 0:
                    self._write_checkpoint(_random_state(self.device))
        self.world.average_statistics(self.model)
        if self.validation is None:
            return progress
        v = self.validation
        # One round of the sizes of balls: with one size the epoch that masks its gradients best would be kept.
        accuracy = validate(self.model, v.x, v.y, v.threats, steps=v.steps, restarts=SIZES)
        return TrainingProgress(
            progress.epoch, progress.epochs, progress.step, steps, progress.stats, accuracy
        )

    def _step(self, batch: Batch, epoch: int, index: int) -> dict[str, float]:
        """One step on this process's rows of a batch; returns means over the epoch so far, of all processes."""
        x, y, numbers = batch
        rows = torch.arange(len(x))[self.world.rows(len(x))]
        count = len(rows)
        self.world.share = count / len(x)
        moment = Moment(
            number=epoch * len(self.loader) + index,
            time=epoch + (index + 1) / len(self.loader),
            seed=(self.seed * 2**20 + epoch) * 2**32 + index,
            rows=rows,
            images=None if numbers is None else numbers.cpu()[rows],
        )
        stats: Mapping[str, float] = {}
        if count:
            mine = slice(int(rows[0]), int(rows[-1]) + 1)
            x_mine, y_mine = (sent(part[mine], self.device) for part in (x, y))
            stats = self.method.step(self.model, self.optimizer, x_mine, y_mine, moment)
        else:  # more processes than rows: take part in the sum of the gradients
            self.optimizer.zero_grad()
            self.optimizer.step()
        sums = self.world.sums({key: value * count for key, value in stats.items()}, self._names)
        self._names = tuple(sums)
        if not math.isfinite(sums["loss"]):
            raise FloatingPointError(
                f"`loss` must be finite, got {sums['loss'] / len(x)} in step {index + 1} of epoch "
                f"{epoch + 1}; train anew with a lower learning rate, into another folder."
            )
        self.method.share(self.world)
        return self._tally.add(sums, len(x))

    def _keep(self) -> None:
        """Remember the epoch that has just ended. The checkpoint is written last: it says what is done."""
        scores = self._scores()
        if scores and scores[-1] > max(scores[:-1], default=(-1.0, -1.0)):
            self.best = {key: value.clone() for key, value in self.model.state_dict().items()}
            if self.folder is not None and self.world.rank == 0:
                record = {
                    "config": self.config,
                    "epoch": len(self.history),
                    "validation": self.history[-1].validation,
                }
                write_checkpoint(self.folder / BEST, self.model, None, record)
        if self.folder is not None and self.world.rank == 0:
            lines = "".join(json.dumps(asdict(each)) + "\n" for each in self.history)
            write_atomically(self.folder / HISTORY, lines.encode())
        self._write_checkpoint(None)

    def _write_checkpoint(self, random: dict[str, Tensor] | None) -> None:
        if self.folder is not None and self.world.rank == 0:
            record: dict[str, Any] = {"config": self.config}
            record["history"] = [asdict(each) for each in self.history]
            extra = {f"method.{key}": value for key, value in self.method.state().items()}
            if random is not None:
                record["tally"] = asdict(self._tally)
                extra |= {f"random.{key}": value for key, value in random.items()}
            write_checkpoint(self.folder / CHECKPOINT, self.model, self.optimizer, record, extra)
        self.world.wait()

    def _scores(self) -> list[tuple[float, float]]:
        """Accuracy of validated epochs that the method aims at, and clean, which decides between equals."""
        found = (each.validation for each in self.history)
        return [(each[self.method.aim], each["clean"]) for each in found if each is not None]


def _at_side(batch: Batch, side: int | None) -> Batch:
    """The batch with images of that side, of which averages of pixels make smaller ones."""
    if side is None or batch.x.shape[-2:] == (side, side):
        return batch
    small = F.interpolate(batch.x, (side, side), mode="bilinear", antialias=True)
    return batch._replace(x=small.clamp(0, 1))


@contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _random_state(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
