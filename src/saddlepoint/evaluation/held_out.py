"""How often a patch works where it was not made: on other images, through other looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.display import counted, hardest, html_table, percent, percents
from saddlepoint.evaluation.rates import one_by_one, success_rates, wilson
from saddlepoint.losses import fooled as is_fooled
from saddlepoint.problems import Ensemble, Patched

__all__ = ["PatchRates", "patch_rates", "right_without_patch"]


@final
@dataclass(frozen=True)
class PatchRates:
    """Success of patches by view, counted on the images that every model has right without them.

    Attributes:
        fooled: Whether a model is fooled by a patch on an image through a view, (B, M, V, N), boolean.
        plain: The same for the patches as they were before the attack, such as grey: what covering alone does.
        right: Whether a model has an image right without any patch, (M, N), boolean.
        views: V names.

    Example:
        >>> fooled = torch.tensor([True, False, True, True]).reshape(1, 1, 2, 2)
        >>> rates = PatchRates(fooled, fooled & False, torch.tensor([[True, True]]), ("near", "far"))
        >>> rates.per_view, rates.worst
        ((0.5, 1.0), 'near')
    """

    fooled: Tensor
    plain: Tensor
    right: Tensor
    views: tuple[str, ...]

    def __post_init__(self) -> None:
        models, views, images = self.fooled.shape[1:]
        if self.plain.shape != self.fooled.shape or self.right.shape != (models, images):
            raise ValueError(
                f"`plain` and `right` must have shapes {tuple(self.fooled.shape)} and ({models}, {images}), "
                f"got {tuple(self.plain.shape)} and {tuple(self.right.shape)}."
            )
        if len(self.views) != views:
            raise ValueError(
                f"`views` must have one name per view, {views}, got {len(self.views)}."
            )

    def __repr__(self) -> str:
        """What matters, in one line."""
        shares = dict(zip(self.views, self.per_view, strict=True))
        told = f"mean {percent(self.mean)}, worst {percent(shares[self.worst])} ({self.worst})"
        return (
            f"PatchRates({self.trials} trials per view, {counted(len(self.views), 'view')}: {told})"
        )

    def _repr_html_(self) -> str:
        """The views, their mean, and the one through which patches work least often, for a notebook."""
        columns = (self.views, self.plain_per_view, self.per_view, self.intervals())
        rows = [
            (name, percent(plain), percent(rate), percents(ends))
            for name, plain, rate, ends in zip(*columns, strict=True)
        ]
        plain = sum(self.plain_per_view) / len(self.views)
        rows.append(("mean of the views", percent(plain), percent(self.mean), ""))
        hard = hardest([-rate for rate in self.per_view]) if self.trials else None
        note = f"{counted(self.trials, 'trial')} per view, on images that every model has right"
        note += "" if hard is None else f"; hardest: {self.views[hard]}"
        return html_table(("view", "patch before the attack", "fooled", "95 %"), rows, note)

    @property
    def trials(self) -> int:
        """How often each view was tried: patches times images that every model has right without them."""
        return self.fooled.shape[0] * int(self.right.all(dim=0).sum())

    @property
    def per_view(self) -> tuple[float, ...]:
        """Share of the trials in which every model is fooled, V numbers; nan without any trial."""
        return self._shares(self.fooled)

    @property
    def plain_per_view(self) -> tuple[float, ...]:
        """The same for the patches before the attack."""
        return self._shares(self.plain)

    @property
    def mean(self) -> float:
        """Mean over views."""
        return sum(self.per_view) / len(self.views)

    @property
    def worst(self) -> str:
        """The view through which a patch works least often; the first of those."""
        return self.views[min(range(len(self.views)), key=lambda v: self.per_view[v])]

    def per_patch(self) -> Tensor:
        """Share of the images per patch and view, (B, V)."""
        return self._hits(self.fooled).double().mean(dim=2)

    def per_model(self, view: int) -> tuple[float, ...]:
        """Share of the trials in which a model is fooled, whatever the others say, M numbers."""
        counted = self.fooled[:, :, view][..., self.right.all(dim=0)]
        return tuple(counted.double().mean(dim=(0, 2)).tolist())

    def intervals(self, level: float = 0.95) -> tuple[tuple[float, float], ...]:
        """Wilson score interval of each view's rate, V pairs; as if trials with one patch were independent."""
        hits = self._hits(self.fooled).sum(dim=(0, 2)).tolist()
        return tuple(wilson(int(count), self.trials, level) for count in hits)

    def _hits(self, table: Tensor) -> Tensor:
        """Where all models are fooled, (B, V, n) for the n images that count."""
        return table.all(dim=1)[..., self.right.all(dim=0)]

    def _shares(self, table: Tensor) -> tuple[float, ...]:
        return tuple(self._hits(table).double().mean(dim=(0, 2)).tolist())


def patch_rates(
    problem: Patched | Iterable[Patched],
    delta: Tensor,
    *,
    targeted: bool = False,
    batch_size: int = 16,
) -> PatchRates:
    """Judge patches on every image through every view, one fresh look each.

    Args:
        problem: B patches that share their N images, as `Patched.elsewhere` makes it for images and views that
            they were not made for. Or such problems one after the other, as in
            `patch_rates(Parts(problem.elsewhere, loader), delta)`: one of them is kept in memory at a time, and
            random views draw for every image what they would in one problem.
        delta: (B, C, H, W).
        targeted: Whether labels are classes to reach.
        batch_size: Patches at a time; it changes no result.

    Raises:
        TypeError: These are no problems of patches.
        ValueError: The patches have different images, there is no problem, or some have other views, or not as
            many models.

    Example:
        >>> from saddlepoint import Patch, View
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)).eval()
        >>> x = torch.rand(7, 1, 8, 8)
        >>> y = model(x).argmax(dim=1)
        >>> problem = Patched([model], Patch(size=3), x[None, :4], y[None, :4], [View(at="anywhere")])
        >>> other = problem.elsewhere(x[4:], y[4:], [View(at=(0, 0)), View(at=(1, 1))])
        >>> patch_rates(other, problem.zeros()).fooled.shape
        torch.Size([1, 1, 2, 3])
    """
    if not isinstance(problem, Patched):
        return _rates_of(problem, delta, targeted=targeted, batch_size=batch_size)
    groups, truth = problem.groups, problem.truth
    if bool((groups != groups[:1]).any() | (truth != truth[:1]).any()):
        raise ValueError(
            "`problem` must show every patch on the same images, got others; make it with `elsewhere`."
        )
    rates = success_rates(problem, delta, targeted=targeted, batch_size=batch_size)
    shape = (len(problem), len(problem.models), len(problem.views), groups.shape[1])
    return PatchRates(
        rates.fooled.reshape(shape),
        ~rates.correct.reshape(shape),
        right_without_patch(problem),
        tuple(view.name for view in problem.views),
    )


def _rates_of(
    problems: Iterable[Patched], delta: Tensor, *, targeted: bool, batch_size: int
) -> PatchRates:
    """Rates over the images of all problems, which are numbered through: the patches are the same."""
    parts: list[PatchRates] = []
    rows, images = None, 0
    for problem in one_by_one("problem", problems, Patched, "problems of patches (`Patched`)"):
        part = copy(problem)  # which is the user's
        rows = part.rows if rows is None else rows
        part.rows, part.first = rows, images
        parts.append(patch_rates(part, delta, targeted=targeted, batch_size=batch_size))
        images += part.groups.shape[1]
        del problem, part  # as large as the images
    return _joined(parts)


def _joined(parts: Sequence[PatchRates]) -> PatchRates:
    """What was found on parts of the images."""
    if not parts:
        raise ValueError("`problem` must give at least one problem, got none.")
    kinds = [f"{counted(p.fooled.shape[1], 'model')} and {', '.join(p.views)}" for p in parts]
    for kind in kinds:
        if kind != kinds[0]:
            raise ValueError(
                "`problem` must give problems with the same views and as many models, got "
                f"{kinds[0]}, then {kind}."
            )
    fooled, plain = (torch.cat([getattr(p, n) for p in parts], dim=3) for n in ("fooled", "plain"))
    return PatchRates(fooled, plain, torch.cat([p.right for p in parts], dim=1), parts[0].views)


def right_without_patch(problem: Patched) -> Tensor:
    """Whether every model has the images of the first row right without any patch, (M, N), boolean."""
    count = problem.groups.shape[1]
    clean = Ensemble(problem.models, problem.groups[0], problem.truth[0, :count])
    with torch.no_grad():
        return ~is_fooled(clean.logits(clean.zeros()), clean.truth).T
