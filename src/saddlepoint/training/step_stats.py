"""What every adversarial training step takes, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Required, TypedDict, final

from torch import Tensor

from saddlepoint.precision import Precision

from .attack_and_update import TrainingLoss
from .threats import AbstractStart

__all__ = ["StepOptions", "StepStats"]


class StepOptions(TypedDict, total=False):
    """What all adversarial steps take; `ampgd_step` explains each.

    Example:
        >>> options: StepOptions = {"iteration": 0, "steps": 5}
        >>> sorted(StepOptions.__annotations__)
        ['iteration', 'loss', 'mix', 'precision', 'start', 'steps']
    """

    iteration: Required[int]
    steps: int
    start: AbstractStart | None
    mix: float
    loss: TrainingLoss
    precision: Precision


@final
@dataclass(frozen=True)
class StepStats:
    """How a training step went; all numbers are from before the update of the model.

    Attributes:
        names: Of the K threats.
        loss: What the optimiser descended on.
        losses: Mean loss under each threat, (K,).
        weights: Mean weight of each threat, (K,).
        accuracies: Share of rows classified correctly under each threat, (K,).
        accuracy: Share of rows classified correctly under every threat.
        perturbations: The perturbations trained on, (B, K, ...), for a warm start.
        row_weights: Weights of every row, (B, K), for a warm start.
        precision: What the model computed in, such as "bfloat16"; with "auto" what was taken.

    Example:
        >>> import torch
        >>> import saddlepoint as sp
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> x, y = torch.rand(8, 4), torch.arange(8) % 3
        >>> threats = {"linf": sp.linf(0.1), "l2": sp.l2(0.2)}
        >>> stats = sp.ampgd_step(model, optimizer, x, y, threats, steps=2, iteration=0)
        >>> stats.names, stats.weights.shape, stats.perturbations.shape, stats.precision
        (('linf', 'l2'), torch.Size([2]), torch.Size([8, 2, 4]), 'float32')
    """

    names: tuple[str, ...]
    loss: float
    losses: Tensor
    weights: Tensor
    accuracies: Tensor
    accuracy: float
    perturbations: Tensor
    row_weights: Tensor
    precision: Precision = "float32"

    def __repr__(self) -> str:
        """The numbers in one line instead of all tensors."""
        told = (f"{name} {value:.4g}" for name, value in self.scalars().items())
        return f"StepStats({', '.join(told)})"

    def scalars(self) -> dict[str, float]:
        """Everything that is one number, under names such as "loss" and "weight/linf"."""
        scalars = {"loss": self.loss, "accuracy": self.accuracy}
        groups = {"loss": self.losses, "accuracy": self.accuracies, "weight": self.weights}
        for label, values in groups.items():
            pairs = zip(self.names, values.tolist(), strict=True)
            scalars |= {f"{label}/{name}": value for name, value in pairs}
        return scalars
