"""Patches: from settings to the problem and the weights of its domains, and the test on held-out images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint import data
from saddlepoint.evaluation.held_out import PatchRates, right_without_patch
from saddlepoint.problems import AbstractProblem, Model, Patched
from saddlepoint.rules import AbstractWeightRule, Grouped
from saddlepoint.runs import attack_words, texts
from saddlepoint.runs.metric_parts import HeldOut, held_out_metrics
from saddlepoint.runs.settings import AttackSettings, PatchSettings
from saddlepoint.runs.targets import aimed
from saddlepoint.streams import JUDGE
from saddlepoint.transforms import View

__all__ = [
    "EXAMPLES",
    "PatchTest",
    "held_out_rates",
    "keep_patches",
    "patched_of",
    "shared",
    "test_of",
]


def patched_of(
    settings: PatchSettings, x: Tensor, y: Tensor, models: Mapping[str, Model]
) -> Patched:
    """One patch for every group of images; those at the end are not touched."""
    left = len(x) - settings.held_out
    if left < settings.images_per_patch:
        few = len(x) // 3
        such = f", such as --held-out {few} --images-per-patch {few}" if few else ""
        raise ValueError(
            f"`--held-out` must leave {settings.images_per_patch} images for a patch (--images-per-patch), got "
            f"{settings.held_out} of {len(x)} images; hold out or take fewer{such}."
        )
    groups, truth = data.group(x[:left], y[:left], settings.images_per_patch, seed=settings.seed)
    views, patch = (
        attack_words.views(settings.views),
        attack_words.patch(settings.patch, settings.eps),
    )
    options: Any = {"samples": settings.samples, "seed": settings.seed}
    try:
        problem = Patched(list(models.values()), patch, groups, truth, views, **options)
    except ValueError as error:
        flags = {"mask": "--patch", "size": "--patch"}
        raise ValueError(texts.renamed(str(error), flags)) from error
    if settings.quantize is not None:
        problem = problem.on_grid(settings.quantize)
    several = len(models) > 1
    problem.names = tuple(
        (f"{list(models)[m]}/" if several else "") + f"{settings.views[v]}, image {n + 1}"
        for m, v, n in problem.domains
    )
    return problem


def test_of(
    settings: AttackSettings,
    problem: AbstractProblem,
    x: Tensor,
    y: Tensor,
    models: Mapping[str, Model],
) -> PatchTest | None:
    """How the patches of an attack are tested on the images that were held out; None for other attacks.

    Args:
        settings: Of the attack.
        problem: As `problem_of` made it.
        x: Images, (N, C, H, W).
        y: Labels, (N,).
        models: By name.
    """
    if not isinstance(settings, PatchSettings) or not isinstance(problem, Patched):
        return None
    last = slice(len(x) - settings.held_out, None)
    return PatchTest.of(problem, x[last], y[last], tuple(models))


def shared(
    settings: AttackSettings, problem: AbstractProblem, rule: AbstractWeightRule
) -> AbstractWeightRule:
    """The rule as it is, or, for patches, over what is to have a weight of its own."""
    if not isinstance(settings, PatchSettings) or not isinstance(problem, Patched):
        return rule
    return Grouped(rule, problem.sharing(*settings.parts))


EXAMPLES = 6
"""Held-out images that a report shows with the patch on them."""

_PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5)
_ANGLES = (-90.0, -45.0, -20.0, 0.0, 20.0, 45.0, 90.0)
# Two ways to look that no patch was told of: fixed places as they are, and sizes and angles at random places.
_MAPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "by place": (
        ("top", "", "middle", " ", "bottom"),
        ("left", "", "middle", " ", "right"),
    ),
    "by scale and rotation, at random places": (
        tuple(f"x {scale:g}" for scale in _SCALES),
        tuple(f"{angle:g}°" for angle in _ANGLES),
    ),
}


@final
@dataclass(frozen=True)
class PatchTest:
    """The test of the patches of a run.

    Attributes:
        problem: The held-out images, the same for every patch, through the views of the attack and those of the
            heat maps.
        count: How many views are those of the attack.
        names: Of the models.
    """

    problem: Patched
    count: int
    names: tuple[str, ...]

    @staticmethod
    def of(problem: Patched, x: Tensor, y: Tensor, names: Sequence[str]) -> PatchTest:
        """The test of the patches of a problem on other images, (N, C, H, W), of classes y, (N,)."""
        maps = [View(at=(down, right)) for down in _PLACES for right in _PLACES]
        maps += [
            View(at="anywhere", scale=scale, rotate=angle) for scale in _SCALES for angle in _ANGLES
        ]
        other = problem.elsewhere(x, y, [*problem.views, *maps])
        return PatchTest(other, len(problem.views), tuple(names))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Models, views and images."""
        problem = self.problem
        return len(problem.models), len(problem.views), problem.groups.shape[1]

    def aimed(self, target: str, classes: Sequence[str]) -> PatchTest:
        """The same test of patches that are to make models answer a class, see `targets.aimed`."""
        problem = aimed(self.problem, target, classes)
        assert isinstance(problem, Patched)
        return replace(self, problem=problem)

    def metrics(self, tensors: Mapping[str, Tensor], prefix: str = "") -> HeldOut:
        """What the tables of all pages come to.

        Args:
            tensors: `held_out.fooled` and `held_out.plain`, (B, M, V, N), and `held_out.right`, (B, M, N).
            prefix: Of the rule, empty or "baseline.".
        """
        return _held_out(
            tensors,
            prefix,
            views=tuple(view.name for view in self.problem.views),
            models=self.names,
            count=self.count,
        )

    def right(self, rows: int) -> Tensor:
        """Whether every model has the images right without a patch, (rows, M, N)."""
        return right_without_patch(self.problem).expand(rows, -1, -1).clone()


def held_out_rates(told: HeldOut, tensors: Mapping[str, Tensor], prefix: str = "") -> HeldOut:
    """What the tables of a finished run come to, by the names of views and models that it has told."""
    views = list(told.views)
    others = tensors["held_out.plain"].shape[2] - len(views)
    return _held_out(
        tensors,
        prefix,
        views=(*views, *map(str, range(others))),
        models=tuple(told.views[views[0]].models),
        count=len(views),
    )


def _held_out(
    tensors: Mapping[str, Tensor],
    prefix: str,
    *,
    views: tuple[str, ...],
    models: tuple[str, ...],
    count: int,
) -> HeldOut:
    rates = PatchRates(
        tensors[f"{prefix}held_out.fooled"],
        tensors["held_out.plain"],
        tensors["held_out.right"][0],
        views,
    )
    return held_out_metrics(rates, models, count, _MAPS)


def keep_patches(
    problem: AbstractProblem, test: PatchTest, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What the report needs: the patches, and the best of them on held-out images through every view.

    Returns:
        `patch.canvas` (B, C, H, W) and `patch.mask` (H, W); `examples.clean` (E, C, H, W), `examples.labels`
        (E,), `examples.seen` (V, E, C, H, W) and what every model says of it, `examples.says` (V, M, E).
    """
    assert isinstance(problem, Patched)
    delta = tensors["delta"].to(problem.lower)
    best = test.metrics(tensors).best_patch
    chosen = tensors["held_out.right"][0].all(dim=0).nonzero().flatten()[:EXAMPLES]
    part = test.problem.take(torch.tensor([best], device=problem.lower.device))
    own, where = delta[best : best + 1], chosen.to(problem.lower.device)
    seen = [part.photographs(own, view, JUDGE)[0, where] for view in range(test.count)]
    with torch.no_grad():
        says = (
            part.logits(own, JUDGE).argmax(dim=-1).reshape(test.shape)[:, : test.count][..., where]
        )
    return {
        "patch.canvas": problem.canvas(delta),
        "patch.mask": problem.mask,
        "examples.clean": part.groups[0, where],
        "examples.labels": part.truth[0, : test.shape[2]][where],
        "examples.seen": torch.stack(seen),
        "examples.says": says.transpose(0, 1).contiguous(),
    }
