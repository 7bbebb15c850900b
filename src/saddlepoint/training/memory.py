"""What every image of a data set was left with, so that its next step goes on from there, as in Algorithm 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from .threats import AbstractStart, Threat, WarmStart

__all__ = ["Memory", "Visit"]


class Visit(NamedTuple):
    """What a step found for the rows of its batch.

    Attributes:
        images: Numbers of the images in the data set, (B,).
        perturbations: (B, K, ...).
        weights: (B, K).
    """

    images: Tensor
    perturbations: Tensor
    weights: Tensor


@final
class Memory:
    """The perturbations and weights that every image was left with, by the image's number in the data set.

    It takes K times the memory of the data set.

    Example:
        >>> memory = Memory()
        >>> memory.keep(Visit(torch.tensor([7]), torch.ones(1, 2, 3), torch.tensor([[0.9, 0.1]])))
        >>> memory.recall(torch.tensor([4, 7])).weights(torch.full((2, 2), 0.5))
        tensor([[0.5000, 0.5000],
                [0.9000, 0.1000]])
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(self, visit: Visit) -> None:
        """Remember what a step found."""
        # Rows of their own: a view would hold on to the whole batch.
        deltas, weights = visit.perturbations.detach().cpu(), visit.weights.detach().cpu()
        for row, number in enumerate(visit.images.tolist()):
            self._kept[number] = deltas[row].clone(), weights[row].clone()

    def recall(self, images: Tensor) -> AbstractStart:
        """Where images, given by their numbers (B,), were left; those not seen yet start from zero."""
        return _Recalled([self._kept.get(number) for number in images.tolist()])

    def state(self) -> dict[str, Tensor]:
        """Everything, as tensors for a checkpoint."""
        if not self._kept:
            return {}
        deltas, weights = zip(*self._kept.values(), strict=True)
        return {
            "images": torch.tensor(list(self._kept)),
            "perturbations": torch.stack(deltas),
            "weights": torch.stack(weights),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._kept.clear()
        if state:
            self.keep(Visit(state["images"], state["perturbations"], state["weights"]))


@final
@dataclass(frozen=True)
class _Recalled(AbstractStart):
    rows: Sequence[tuple[Tensor, Tensor] | None]

    def delta(self, threats: Sequence[Threat], lower: Tensor, upper: Tensor) -> Tensor:
        blank = torch.zeros(len(threats), *lower.shape[1:], dtype=lower.dtype)
        found = torch.stack([blank if row is None else row[0] for row in self.rows])
        return WarmStart(found).delta(threats, lower, upper)

    def weights(self, initial: Tensor) -> Tensor:
        weights = initial.clone()
        for b, row in enumerate(self.rows):
            if row is not None:
                weights[b] = row[1].to(weights)
        return weights
