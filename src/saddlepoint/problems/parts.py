"""A problem about more images than fit into memory: part after part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, Generic, TypeVar, final

from torch import Tensor

from saddlepoint.counts import check_count
from saddlepoint.loaders import batches, length
from saddlepoint.problems.abstract import AbstractProblem

__all__ = ["Parts"]

P = TypeVar("P", bound=AbstractProblem)


@final
class Parts(Generic[P]):
    """Problems about the images of a loader or a data set, one after the other, one in memory at a time.

    Rows are numbered through all parts, so that a row has the random starts, the draws and the file name that
    it would have in one problem. Whoever goes over the parts twice reads the images twice.

    Args:
        make: From images, (n, ...), and labels, (n,), to a problem.
        source: A DataLoader, a data set of torch, or other pairs of images and labels.
        size: Images per part, whatever the size of those that come; the last may be smaller.

    Example:
        >>> import torch
        >>> import saddlepoint as sp
        >>> models = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
        >>> images = torch.utils.data.TensorDataset(torch.rand(5, 4), torch.zeros(5).long())
        >>> parts = Parts(lambda x, y: sp.Ensemble(models, x, y), images, size=2)
        >>> sp.success_rates(sp.attack(part, sp.linf(0.3), steps=5) for part in parts).count
        5
    """

    def __init__(self, make: Callable[[Tensor, Tensor], P], source: Any, size: int = 128) -> None:
        if not callable(make):
            raise TypeError(
                "`make` must be a function from images and labels to a problem, such as "
                f"`lambda x, y: sp.Ensemble(models, x, y)`, got {type(make).__name__}."
            )
        check_count("size", size, 1)
        self.make, self.source, self.size = make, source, size

    def __iter__(self) -> Iterator[P]:
        first = 0
        for x, y in batches(self.source, self.size):
            made = self.make(x, y)
            del x, y  # the problem has them
            if not isinstance(made, AbstractProblem):
                raise TypeError(f"`make` must return a problem, got {type(made).__name__}.")
            part = copy(made)  # which may be the user's to keep
            del made
            part.rows = part.rows + first
            first += len(part)
            yield part
            del part

    def __repr__(self) -> str:
        """How many images there are, and how many at a time."""
        count = "?" if self.images is None else f"{self.images:,}"
        return f"Parts({count} images, {self.size} at a time)"

    @property
    def images(self) -> int | None:
        """How many images there are; None if that is not known before they have been read."""
        return length(self.source)
