"""Domains that are images: one perturbation for a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self, final

import torch
from torch import Tensor

from saddlepoint.calls import Model, call
from saddlepoint.problems.abstract import AbstractProblem
from saddlepoint.problems.inputs import (
    Labels,
    Numbers,
    as_images,
    as_labels,
    as_models,
    check_labels_kind,
    domain_names,
    headroom,
    plain,
    predictions,
    snapped,
    take_rows,
)

__all__ = ["Universal"]


@final
class Universal(AbstractProblem):
    """One model, groups of K images: one delta per group has to fool the model on all of them (eq. 6).

    Args:
        model: A callable from images to logits.
        groups: (B, K, ...), in [0, 1].
        y: True classes, (B, K), or targets in a targeted attack.
        box: "intersection" keeps every image of the group in [0, 1] by the box of delta itself; "clip" lets
            delta go further and clips each perturbed image, which allows stronger perturbations where the
            images of a group differ.
        names: One per position in the group, for reports.
        labels: What is attacked, as in `Ensemble`.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
        >>> problem = Universal(model, torch.rand(2, 5, 4), torch.zeros(2, 5, dtype=torch.long))
        >>> problem.logits(problem.zeros()).shape
        torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        model: Model,
        groups: Numbers,
        y: Numbers | None = None,
        box: Literal["intersection", "clip"] = "intersection",
        *,
        names: Sequence[str] | None = None,
        labels: Labels = "true",
    ) -> None:
        if y is None:
            raise TypeError(
                "`y` must be the classes of the images in the groups, (B, K), got none; "
                "sp.data.group(x, y, size=5) makes groups and their classes of images and labels."
            )
        groups = as_images("groups", groups, 3)
        y = as_labels("y", y, tuple(groups.shape[:2]))
        check_labels_kind(labels)
        if box not in ("intersection", "clip"):
            raise ValueError(f'`box` must be "intersection" or "clip", got {box!r}.')
        self._models = as_models([model])
        self.groups = plain(groups)
        self.labels = y.to(groups.device)
        self.box = box
        # max_k(-x_k) <= delta <= min_k(1 - x_k) keeps all images inside; with clipping, nothing beyond
        # min_k(-x_k) or max_k(1 - x_k) changes any image.
        smallest, largest = self.groups.amin(dim=1), self.groups.amax(dim=1)
        inner = box == "intersection"
        self.lower = -(smallest if inner else largest)
        self.upper = headroom(largest if inner else smallest)
        self.rows = torch.arange(groups.shape[0], device=groups.device)
        self.names = domain_names(names, [f"image {k + 1}" for k in range(groups.shape[1])])
        if labels == "predicted":
            self._truth, self.labels = self.labels, predictions(self)

    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        """Logits for one position of every group, (B, C)."""
        del stream  # nothing is random here
        return call(self._models[0], self._seen(self.groups[:, domain] + delta), fresh=True)

    def logits(self, delta: Tensor, stream: int = 0) -> Tensor:
        """Logits of every image, (B, K, C), in one call of the model."""
        del stream
        images = self.images(delta)
        flat = call(self._models[0], images.flatten(0, 1), fresh=True)
        return flat.reshape(*images.shape[:2], *flat.shape[1:])

    def take(self, rows: Tensor) -> Self:
        """Some groups only."""
        return take_rows(self, rows, ("groups", "labels", "lower", "upper", "rows"))

    def images(self, delta: Tensor) -> Tensor:
        """Every image of every group with its group's delta, (B, K, ...)."""
        return self._seen(self.groups + delta.unsqueeze(1))

    @property
    def models(self) -> Sequence[Model]:
        """The one model."""
        return self._models

    def _seen(self, images: Tensor) -> Tensor:
        return snapped(images.clamp(0.0, 1.0) if self.box == "clip" else images, self.levels)
