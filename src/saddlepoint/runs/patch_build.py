"""From settings to the problem of a patch, the weights of its domains, and its test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from saddlepoint import data
from saddlepoint.problems import AbstractProblem, Model, Patched
from saddlepoint.rules import AbstractWeightRule, Grouped
from saddlepoint.runs import patch_words, texts
from saddlepoint.runs.patch_tests import PatchTest
from saddlepoint.runs.settings import AttackSettings, PatchSettings

__all__ = ["patched_of", "shared", "test_of"]


def patched_of(
    settings: PatchSettings, x: Tensor, y: Tensor, models: Mapping[str, Model]
) -> Patched:
    """One patch for every group of images; those at the end are not touched."""
    left = len(x) - settings.held_out
    if left < settings.images_per_patch:
        raise ValueError(
            f"`--held-out` must leave {settings.images_per_patch} images for a patch (--images-per-patch), got "
            f"{settings.held_out} of {len(x)} images; hold out or take fewer."
        )
    groups, truth = data.group(x[:left], y[:left], settings.images_per_patch, seed=settings.seed)
    views, patch = (
        patch_words.views(settings.views),
        patch_words.patch(settings.patch, settings.eps),
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
