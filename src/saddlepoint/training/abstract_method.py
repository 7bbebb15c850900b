"""What a training method is: a step on a batch, and what it has to remember from one step to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from .distributed import World

__all__ = ["AbstractMethod", "Moment", "Plain", "Step"]

Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor, int], Mapping[str, float]]
"""step(model, optimizer, x, y, iteration): one update of the parameters on a batch; iterations count from 0
over all epochs, also when resumed. Returns means over the batch, "loss" among them."""


@final
@dataclass(frozen=True)
class Moment:
    """What a step may depend on besides its batch: the same in every run, and in every process.

    Attributes:
        number: Of the step, from 0, over all epochs.
        time: Epochs passed at the end of the step.
        seed: Of this step's random numbers.
        rows: Positions of the rows in the whole batch, (B,).
        images: Numbers of the images in the data set, (B,), if the loader gives them.
    """

    number: int
    time: float
    seed: int
    rows: Tensor
    images: Tensor | None = None


class AbstractMethod(ABC):
    """A way to train: a step, and what it has to remember from one step to the next."""

    aim: str = "union"
    """Which accuracy on held-out images says which epoch is best: "union", or the name of a threat."""

    @abstractmethod
    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        moment: Moment,
    ) -> Mapping[str, float]:
        """One update of the model; returns means over the batch, "loss" among them."""

    @abstractmethod
    def share(self, world: World) -> None:
        """Learn what all processes found in this step; each calls it, also one whose share was empty."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""


@final
@dataclass(frozen=True)
class Plain(AbstractMethod):
    """A step function that remembers nothing."""

    function: Step

    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        moment: Moment,
    ) -> Mapping[str, float]:
        """Call the function."""
        return self.function(model, optimizer, x, y, moment.number)

    def share(self, world: World) -> None:
        """Nothing to learn."""

    def state(self) -> dict[str, Tensor]:
        """Nothing to keep."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""
