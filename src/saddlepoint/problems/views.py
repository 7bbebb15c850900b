"""Domains that look at one image: several models, several transformations, or all pairs of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self, final

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.calls import Model, call
from saddlepoint.counts import check_count, check_seed
from saddlepoint.problems.abstract import AbstractProblem
from saddlepoint.problems.inputs import (
    Data,
    Labels,
    Numbers,
    as_models,
    check_labels_kind,
    domain_names,
    headroom,
    images_and_labels,
    model_names,
    plain,
    predictions,
    snapped,
    take_rows,
)
from saddlepoint.transforms import Transform, from_callable, identity

__all__ = ["Ensemble", "Product", "Transformed"]


class _Views(AbstractProblem):
    """Domains are the pairs (model, transform), model by model; all of them look at the same image."""

    def __init__(
        self,
        models: Sequence[Model],
        transforms: Sequence[Transform | Callable[[Tensor], Tensor]],
        x: Data,
        y: Numbers | None,
        samples: int,
        seed: int,
        names: Sequence[str] | None,
        labels: Labels,
    ) -> None:
        x, y = images_and_labels(x, y, 2)
        check_labels_kind(labels)
        self._models = as_models(models)
        if isinstance(transforms, Transform) or callable(transforms):
            raise TypeError(
                "`transforms` must be a sequence of transforms, got a single one; write [transform]."
            )
        self.transforms = tuple(
            t if isinstance(t, Transform) else from_callable(t) for t in transforms
        )
        if not self.transforms:
            raise ValueError(
                "`transforms` must name at least one transform, got an empty sequence."
            )
        check_count("samples", samples, 1)
        self.x = plain(x)
        self.pairs = [(m, t) for m in range(len(self._models)) for t in range(len(self.transforms))]
        self.labels = y.to(x.device).unsqueeze(1).expand(-1, len(self.pairs))
        self.lower, self.upper = -self.x, headroom(self.x)
        self.rows = torch.arange(x.shape[0], device=x.device)
        self.random = any(t.num_draws > 0 for t in self.transforms)
        self.samples = samples if self.random else 1
        self.seed = check_seed(seed)
        self.names = domain_names(names, self._default_names())
        if labels == "predicted":
            self._truth, self.labels = self.labels, predictions(self._without_chance())

    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        model, view = self.pairs[domain]
        # What a transform returns it may need again for its gradient; the sum is nobody else's.
        fresh = self.transforms[view] is identity
        return call(self._models[model], self.view(delta, domain, stream), fresh=fresh)

    def view(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        """What the model of a domain is shown: the perturbed images as its transform makes them, (B, ...)."""
        transform = self.transforms[self.pairs[domain][1]]
        if transform is identity:
            return self.images(delta)
        uniforms = None
        if transform.num_draws:
            draw = stream * len(self.pairs) + domain
            uniforms = streams.uniform(self.seed, self.rows, draw, transform.num_draws)
        return transform(self.images(delta), uniforms)

    def model_of(self, domain: int) -> int:
        return self.pairs[domain][0]

    def take(self, rows: Tensor) -> Self:
        return take_rows(self, rows, ("x", "labels", "lower", "upper", "rows"))

    def images(self, delta: Tensor) -> Tensor:
        return snapped(self.x + delta, self.levels)

    @property
    def models(self) -> Sequence[Model]:
        return self._models

    def _without_chance(self) -> Self:
        """The same views without random transforms: the answer to one of their draws would be chance."""
        part = take_rows(self, self.rows, ())
        part.transforms = tuple(identity if t.num_draws else t for t in self.transforms)
        return part

    def _default_names(self) -> list[str]:
        models, views = model_names(self._models), [t.name for t in self.transforms]
        if views == [identity.name]:
            return models
        if len(models) == 1:
            return views
        return [f"{models[m]}/{views[t]}" for m, t in self.pairs]


@final
class Ensemble(_Views):
    """One image, K models: delta has to fool all of them (eq. 5).

    Args:
        models: K callables from images to logits. They may differ in input handling, share layers and live
            on different devices.
        x: Images, (B, ...), in [0, 1], float32 or float64; a tensor, a NumPy array or lists of numbers. Or a
            DataLoader or a data set of torch, in place of `x` and `y`: all of it is read, since a perturbation
            is found for every image. For more than fits into memory, see `Parts`.
        y: True classes, (B,), or targets in a targeted attack.
        names: One per model, for reports.
        labels: What is attacked. "true" is `y`. "predicted" is what each model answers to the image as it is,
            as in the paper's code: an image that was wrong may become right. Success is counted against `y`
            all the same, see `truth`.

    Example:
        >>> from torch import nn
        >>> models = [nn.Linear(4, 3).eval() for _ in range(2)]
        >>> problem = Ensemble(models, torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
        >>> problem.logits(problem.zeros()).shape
        torch.Size([5, 2, 3])
    """

    def __init__(
        self,
        models: Sequence[Model],
        x: Data,
        y: Numbers | None = None,
        *,
        names: Sequence[str] | None = None,
        labels: Labels = "true",
    ) -> None:
        super().__init__(models, [identity], x, y, 1, 0, names, labels)


@final
class Transformed(_Views):
    """One image, one model, K transformations (eq. 7).

    Args:
        model: A callable from images to logits.
        transforms: K transforms, deterministic or random, from `saddlepoint.transforms` or plain callables
            (which are taken to be deterministic).
        x: Images, (B, C, H, W), in [0, 1].
        y: True classes, (B,), or targets in a targeted attack.
        samples: Draws per step for random transforms; the loss is their mean.
        seed: Of the random draws.
        names: One per transform, for reports.
        labels: What is attacked, as in `Ensemble`. "predicted" asks the model about each transformed image, and
            about the image itself where the transform is random: one draw's answer would be chance.

    Example:
        >>> from torch import nn
        >>> from saddlepoint import transforms as T
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
        >>> x, y = torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.long)
        >>> problem = Transformed(model, [T.identity, T.hflip], x, y)
        >>> problem.logits(problem.zeros()).shape
        torch.Size([5, 2, 3])
    """

    def __init__(
        self,
        model: Model,
        transforms: Sequence[Transform | Callable[[Tensor], Tensor]],
        x: Data,
        y: Numbers | None = None,
        samples: int = 1,
        *,
        seed: int = 0,
        names: Sequence[str] | None = None,
        labels: Labels = "true",
    ) -> None:
        x, y = images_and_labels(x, y, 4)
        super().__init__([model], transforms, x, y, samples, seed, names, labels)


@final
class Product(_Views):
    """One image, all pairs of models and transformations: K = models x transforms, model by model.

    Args:
        models: Callables from images to logits, as in `Ensemble`.
        transforms: Views of the images; this and the rest as in `Transformed`.
        x: Images, (B, C, H, W), in [0, 1].
        y: True classes, (B,), or targets in a targeted attack.
        samples: Draws of random transforms per step.
        seed: Of random transforms.
        names: One per pair, for reports.
        labels: What is attacked.

    Example:
        >>> from torch import nn
        >>> from saddlepoint import transforms as T
        >>> models = [nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval() for _ in range(2)]
        >>> x, y = torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.long)
        >>> Product(models, [T.identity, T.hflip, T.vflip], x, y).num_domains
        6
    """

    def __init__(
        self,
        models: Sequence[Model],
        transforms: Sequence[Transform | Callable[[Tensor], Tensor]],
        x: Data,
        y: Numbers | None = None,
        samples: int = 1,
        *,
        seed: int = 0,
        names: Sequence[str] | None = None,
        labels: Labels = "true",
    ) -> None:
        x, y = images_and_labels(x, y, 4)
        super().__init__(models, transforms, x, y, samples, seed, names, labels)
