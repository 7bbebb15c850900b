"""Domains that are photographs of a patch: models, views and images, all of them at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, Self, final

import torch
from torch import Tensor

from saddlepoint import streams
from saddlepoint.calls import Model, call
from saddlepoint.counts import check_count, check_seed
from saddlepoint.problems.abstract import AbstractProblem
from saddlepoint.problems.inputs import (
    Data,
    Numbers,
    as_images,
    as_labels,
    as_models,
    domain_names,
    headroom,
    images_and_labels,
    model_names,
    plain,
    snapped,
    take_rows,
)
from saddlepoint.projections import Patch
from saddlepoint.streams import JUDGE
from saddlepoint.transforms import View

__all__ = ["GREY", "Part", "Patched"]

GREY = 128 / 255
"""What a patch is before it is attacked: the middle grey that 8-bit files hold."""

Part = Literal["model", "view", "image"]
_VIEWS = 1 << 10  # at most
_PARTS: tuple[Part, ...] = ("model", "view", "image")


@final
class Patched(AbstractProblem):
    """One patch per row, seen by M models through V views on N images: K = M x V x N domains.

    delta lives on a canvas of the size of an image: the patch is `base` + delta where its mask is. A view
    carries both to a place in an image, whose pixels are replaced there and stay what they are elsewhere, bit
    for bit. Domains go model by model, in each of them view by view, in each of them image by image; all models
    look at the same photographs. `sharing` says which domains have something in common, for `Grouped` weights.

    Args:
        models: M callables from images to logits.
        patch: The set of the perturbations; it is also what `attack` takes as `ball`.
        groups: N images for every row, (B, N, C, H, W), in [0, 1]; or one for every row, (B, C, H, W).
        y: True classes, (B, N) or (B,), or targets in a targeted attack.
        views: V of them, such as `View(at="anywhere", scale=(0.8, 1.2))`; random ones draw anew at every step,
            for every image.
        base: What the patch is at delta = 0, a number or (C, H, W) or (B, C, H, W): grey by default. With
            `Patch(eps=...)` the patch stays as close to it.
        samples: Looks through every random view per step; the loss is their mean.
        seed: Of the random draws.
        names: K names, for reports.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)).eval()
        >>> groups, y = torch.rand(2, 5, 3, 8, 8), torch.zeros(2, 5, dtype=torch.long)
        >>> views = [View(), View(at="anywhere", rotate=(-20, 20))]
        >>> problem = Patched([model], Patch(size=3), groups, y, views)
        >>> problem.logits(problem.zeros()).shape, problem.names[-1]
        (torch.Size([2, 10, 4]), 'anywhere+rotate:-20..20, image 5')
    """

    def __init__(
        self,
        models: Sequence[Model],
        patch: Patch,
        groups: Numbers,
        y: Numbers,
        views: Sequence[View] = (View(),),
        *,
        base: float | Tensor = GREY,
        samples: int = 1,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> None:
        groups = as_images("groups", groups, 4)
        y = as_labels("y", y, tuple(groups.shape[: groups.dim() - 3]))
        if groups.dim() == 4:
            groups, y = groups[:, None], y[:, None]
        if groups.dim() != 5:
            raise ValueError(
                f"`groups` must have shape (B, N, C, H, W) or (B, C, H, W), got {tuple(groups.shape)}."
            )
        if not isinstance(patch, Patch):
            raise TypeError(
                f"`patch` must be a Patch, such as Patch(size=8), got {type(patch).__name__}."
            )
        if not views or not all(isinstance(view, View) for view in views):
            raise TypeError(
                "`views` must name at least one View, such as [View(at='anywhere')], got something else."
            )
        if len(views) > _VIEWS:
            raise ValueError(f"`views` must be at most {_VIEWS}, got {len(views)}.")
        check_count("samples", samples, 1)
        self._models = as_models(models)
        self.views = tuple(views)
        self.patch = patch
        self.groups = plain(groups)
        self.mask = patch.inside(groups.shape).to(groups.device)
        self.base = _canvas(base, self.groups)
        counts = (len(self._models), len(self.views), groups.shape[1])
        self.domains = tuple(itertools.product(*map(range, counts)))
        self.labels = y.to(groups.device).repeat(1, counts[0] * counts[1])
        self.lower, self.upper = patch.box(-self.base, headroom(self.base))
        self.rows = torch.arange(groups.shape[0], device=groups.device)
        self.first = 0  # the number of the first image of the groups, for random views
        self.random = any(view.num_draws for view in self.views)
        self.samples = samples if self.random else 1
        self.seed = check_seed(seed)
        self.names = domain_names(names, self._default_names())

    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        """What one model says of one image of every row through one view, (B, C)."""
        model, view, image = self.domains[domain]
        photographs = self.photographs(delta, view, stream, slice(image, image + 1))
        return call(self._models[model], photographs[:, 0], fresh=True)

    def logits(self, delta: Tensor, stream: int = 0) -> Tensor:
        """What every model says of every image through every view, (B, K, C)."""
        answers: list[list[Tensor]] = [[] for _ in self._models]
        for view in range(len(self.views)):
            seen = self.photographs(delta, view, stream)
            for model, found in zip(self._models, answers, strict=True):
                flat = call(model, seen.flatten(0, 1), fresh=len(self._models) == 1)
                found.append(flat.reshape(*seen.shape[:2], *flat.shape[1:]))
        sizes = {part.shape[-1] for found in answers for part in found}
        if len(sizes) > 1:
            raise ValueError(
                f"all models must return logits (B, C) for the same classes, got {sorted(sizes)}."
            )
        return torch.cat([part for found in answers for part in found], dim=1)

    def photographs(
        self, delta: Tensor, view: int, stream: int = 0, which: slice = slice(None)
    ) -> Tensor:
        """What is seen through one view, (B, n, C, H, W): the images, with the patch where the view carries it.

        Args:
            delta: (B, C, H, W).
            view: Its number.
            stream: Which random draw.
            which: Images of the groups.
        """
        images = self.groups[:, which]
        rows, count = images.shape[:2]
        look = self.views[view]
        uniforms = streams.uniform(
            self.seed,
            self.rows,
            stream * _VIEWS
            + view,  # looks through one view do not depend on how many others there are
            self.groups.shape[1] * look.num_draws,
            self.first * look.num_draws,
        )
        mine = uniforms.reshape(rows, self.groups.shape[1], look.num_draws)[:, which]
        canvas = self.canvas(delta)[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1)
        patch, there = look.carry(canvas, self.mask, mine.flatten(0, 1))
        seen = torch.where(there, snapped(patch, self.levels), images.flatten(0, 1))
        return seen.reshape(images.shape)

    def canvas(self, delta: Tensor) -> Tensor:
        """The patch itself, `base` + delta, on its canvas, (B, C, H, W); see `mask`."""
        return snapped(self.base + delta, self.levels)

    def take(self, rows: Tensor) -> Self:
        """Some patches only."""
        return take_rows(self, rows, ("groups", "base", "labels", "lower", "upper", "rows"))

    def images(self, delta: Tensor) -> Tensor:
        """What every domain sees when it is judged, (B, K, C, H, W)."""
        views = [self.photographs(delta, view, JUDGE) for view in range(len(self.views))]
        return torch.cat(views * len(self._models), dim=1)

    def unperturbed(self) -> Tensor:
        """The bases and the images, (B, 1 + N, C, H, W)."""
        return torch.cat([self.base[:, None], self.groups], dim=1)

    @property
    def models(self) -> Sequence[Model]:
        """The M models."""
        return self._models

    def model_of(self, domain: int) -> int:
        """Which model looks."""
        return self.domains[domain][0]

    def sharing(self, *parts: Part) -> tuple[int, ...]:
        """K numbers, the same for domains that have the same model, view or image: what `Grouped` asks for.

        Example:
            >>> x, y = torch.rand(1, 2, 1, 4, 4), torch.tensor([[0, 1]])
            >>> problem = Patched([torch.nn.Flatten().eval()], Patch(size=1), x, y, [View(), View(at=(0, 0))])
            >>> problem.sharing("view"), problem.sharing("image"), problem.sharing("view", "image")
            ((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 2, 3))
        """
        if not parts or any(part not in _PARTS for part in parts):
            raise ValueError(f"`parts` must be some of {', '.join(_PARTS)}, got {parts}.")
        keys = [tuple(d[_PARTS.index(part)] for part in parts) for d in self.domains]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return tuple(numbers[key] for key in keys)

    def elsewhere(
        self,
        x: Data,
        y: Numbers | None = None,
        views: Sequence[View] | None = None,
        *,
        models: Sequence[Model] | None = None,
        seed: int | None = None,
    ) -> Patched:
        """The same patches on other images, all of them on each, through other views, for other models.

        This is what patches are evaluated on.

        Args:
            x: Images that no patch has seen, (N, C, H, W); or a DataLoader or a data set in place of `x` and
                `y`, all of which is read. For more than fits into memory, see `Parts` and `patch_rates`.
            y: Their classes, (N,), or targets.
            views: Views; those of the problem if None. Random ones draw anew, with another seed.
            models: Those that look; those of the problem if None. Others show how far a patch transfers.
            seed: Of the draws; one more than that of the problem if None.
        """
        x, y = images_and_labels(x, y, 4)
        other = Patched(
            self._models if models is None else models,
            self.patch,
            x[None].expand(len(self), *x.shape),
            y[None].expand(len(self), -1),
            self.views if views is None else views,
            base=self.base,
            seed=self.seed + 1 if seed is None else seed,
        )
        other.rows, other.levels = self.rows, self.levels
        return other

    def _default_names(self) -> list[str]:
        own = model_names(self._models) if len(self._models) > 1 else [""]
        seen = domain_names(None, [view.name for view in self.views])
        several = self.groups.shape[1] > 1
        return [
            (f"{own[m]}/" if own[m] else "") + seen[v] + (f", image {n + 1}" if several else "")
            for m, v, n in self.domains
        ]


def _canvas(base: float | Tensor, groups: Tensor) -> Tensor:
    """The base of every row, (B, C, H, W)."""
    shape = (groups.shape[0], *groups.shape[2:])
    found = torch.as_tensor(base, dtype=groups.dtype, device=groups.device)
    try:
        found = found.expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"`base` must be a number or have shape {shape[1:]} or {shape}, got {tuple(found.shape)}."
        ) from error
    return plain(as_images("base", found, 4))
