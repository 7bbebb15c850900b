"""Which rows of an attack a report will show, the images it needs for them, and the files these come from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from saddlepoint import data
from saddlepoint.problems import AbstractProblem, Product, Transformed
from saddlepoint.runs.materials import Images
from saddlepoint.runs.settings import AttackSettings, PatchSettings, UniversalSettings
from saddlepoint.streams import JUDGE

__all__ = ["GALLERY_ROWS", "files_of_rows", "gallery_rows", "hardness", "keep_for_gallery"]

GALLERY_ROWS = 60
"""How many rows a report shows at most."""


def hardness(fooled: Tensor, losses: Tensor, num_forwards: Tensor) -> Tensor:
    """How hard every row was: its rank from 0 (fell at once) to 1 (resisted most), (B,).

    Rows are ordered by the domains they did not fool, then by the evaluations they took, then by their
    worst loss.

    Args:
        fooled: (B, K).
        losses: (B, K).
        num_forwards: (B,).

    Example:
        >>> fooled = torch.tensor([[True, True], [True, False], [True, True]])
        >>> hardness(fooled, torch.zeros(3, 2), torch.tensor([5, 9, 2]))
        tensor([0.5000, 1.0000, 0.0000])
    """
    keys = list(
        zip(
            (~fooled).sum(dim=1).tolist(),
            num_forwards.tolist(),
            losses.amax(dim=1).tolist(),
            strict=True,
        )
    )
    order = sorted(range(len(keys)), key=lambda row: keys[row])
    ranks = torch.zeros(len(keys))
    ranks[torch.tensor(order, dtype=torch.long)] = torch.arange(len(keys), dtype=torch.float32)
    return ranks / max(len(keys) - 1, 1)


def gallery_rows(tensors: Mapping[str, Tensor], limit: int = GALLERY_ROWS) -> Tensor:
    """Rows for the gallery, hardest first: a quarter the hardest ones, the rest spread over the others.

    Args:
        tensors: `fooled`, `losses`, (B, K), and `num_forwards`, (B,).
        limit: At most so many.
    """
    ranks = hardness(tensors["fooled"], tensors["losses"], tensors["num_forwards"])
    order = ranks.argsort(descending=True)
    if len(order) <= limit:
        return order
    top = max(1, limit // 4)
    rest = order[top:]
    spread = torch.linspace(0, len(rest) - 1, limit - top).round().long()
    return torch.cat([order[:top], rest[spread]])


def keep_for_gallery(problem: AbstractProblem, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The images the report needs, so that it can be drawn again without data or models.

    Returns:
        `gallery.rows` (G,), `gallery.clean` and `gallery.adversarial` (G, ...) or (G, K, ...), and where
        domains look at transformed images, `gallery.views` (G, K, ...), what each of them sees.
    """
    rows = gallery_rows(tensors)
    part = problem.take(rows.to(problem.lower.device))
    delta = tensors["delta"][rows].to(problem.lower)
    kept = {
        "gallery.rows": rows,
        "gallery.clean": part.images(part.zeros()),
        "gallery.adversarial": part.images(delta),
    }
    if isinstance(part, Transformed | Product):
        # As the judge saw them.
        views = [part.view(delta, k, JUDGE) for k in range(part.num_domains)]
        if all(view.shape == views[0].shape for view in views):
            kept["gallery.views"] = torch.stack(views, dim=1)
    return kept


def files_of_rows(settings: AttackSettings, images: Images) -> list[tuple[str, ...]]:
    """For every row of the problem the files its images come from; empty where images are no files."""
    if not images.files or isinstance(settings, PatchSettings):  # a patch is for many images
        return []
    if not isinstance(settings, UniversalSettings):
        return [(file,) for file in images.files]
    rows, seed = torch.arange(len(images.y)), settings.seed
    groups, _ = data.group(
        rows, images.y, settings.group_size, seed=seed, by_class=settings.by_class
    )
    return [tuple(images.files[row] for row in group) for group in groups.tolist()]
