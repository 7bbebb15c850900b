"""What problems are made of, checked once: models, images, labels, names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from saddlepoint.calls import Model, check_eval_mode, how_to_declare
from saddlepoint.loaders import collected
from saddlepoint.problems.abstract import AbstractProblem

__all__ = [
    "Array",
    "Data",
    "Labels",
    "Numbers",
    "as_images",
    "as_labels",
    "as_models",
    "check_labels_kind",
    "check_targets",
    "domain_names",
    "headroom",
    "images_and_labels",
    "model_names",
    "picked",
    "plain",
    "predictions",
    "say_whose",
    "snapped",
    "take_rows",
]

P = TypeVar("P", bound=AbstractProblem)
Labels = Literal["true", "predicted"]
_ROWS = 128  # asked at a time for predictions


class Array(Protocol):
    """What NumPy arrays and their like have in common.

    Example:
        >>> import numpy as np
        >>> import saddlepoint as sp
        >>> images: sp.Array = np.zeros((2, 1, 4, 4))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3).double()).eval()
        >>> sp.Ensemble([model], images, np.array([0, 1])).labels.shape
        torch.Size([2, 1])
    """

    def __array__(self, *args: Any, **options: Any) -> Any:
        """The numbers as a NumPy array."""
        ...


Numbers = Tensor | Array | Sequence[Any]
Data = Numbers | Iterable[Any] | Dataset[Any]
"""Images, or images with labels: a DataLoader, a data set of torch, pairs one by one."""


def picked(tensor: Tensor, rows: Tensor) -> Tensor:
    """`tensor[rows]`, a whole row at a time on a CPU, where that is several times faster than by entries.

    Example:
        >>> picked(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, -2]))
        tensor([[3., 4.],
                [1., 2.]])
    """
    whole = tensor.dim() > 1 and tensor.is_contiguous() and tensor.device.type == "cpu"
    if whole and isinstance(rows, Tensor) and rows.dim() == 1 and rows.dtype == torch.int64:
        try:
            return tensor.index_select(0, rows)
        except (IndexError, RuntimeError):  # counted from the end, or there is no such row
            pass
    return tensor[rows]


def take_rows(problem: P, rows: Tensor, names: Sequence[str]) -> P:
    """A copy of the problem in which the named tensors keep only some rows."""
    part = object.__new__(type(problem))
    part.__dict__.update(problem.__dict__)
    if problem._truth is not None:
        names = (*names, "_truth")
    for name in names:
        setattr(part, name, picked(getattr(problem, name), rows))
    return part


def predictions(problem: AbstractProblem) -> Tensor:
    """What every domain answers to the images as they are, (B, K), asked without gradient, in batches."""
    check_eval_mode(problem.models)
    answers = []
    with torch.inference_mode(False), torch.no_grad():
        for rows in torch.arange(len(problem), device=problem.lower.device).split(_ROWS):
            part = problem.take(rows)
            try:
                answers.append(part.logits(part.zeros()).argmax(dim=-1))
            except Exception as error:  # the user's model may raise anything
                say_whose(part, error)
                raise
    return torch.cat(answers)


def say_whose(problem: AbstractProblem, error: Exception) -> None:
    """Add a note about the domain that raises, if it is one."""
    shape = tuple(problem.images(problem.zeros()).shape)
    for k, name in enumerate(problem.names):
        try:
            with torch.no_grad():
                problem.domain_logits(problem.zeros(), k)
        except Exception:  # the user's model may raise anything
            error.add_note(f"raised by domain {k} ({name}), for images of shape {shape}")
            return


def check_targets(problem: AbstractProblem, targeted: bool) -> None:
    """Refuse a targeted attack on what the models answer anyway."""
    if problem.aimed and not targeted:
        raise ValueError("`targeted` must be True for a problem that aims at classes, got False.")
    if targeted and problem.truth is not problem.labels and not problem.aimed:
        raise ValueError(
            '`targeted` must be False for a problem with labels="predicted", whose labels are what the models '
            'answer already; give the targets as `y` and leave labels="true".'
        )


def check_labels_kind(labels: Labels) -> None:
    """Refuse what is neither of the two words."""
    if not isinstance(labels, str) or labels not in ("true", "predicted"):
        got = repr(labels) if isinstance(labels, str) else type(labels).__name__
        raise ValueError(
            f'`labels` must be "true" or "predicted", got {got}; class numbers are given as `y`.'
        )


def plain(x: Tensor) -> Tensor:
    """Images without graph, in [0, 1] to the last bit, usable by autograd even if made in inference mode."""
    with torch.inference_mode(False):
        return x.detach().clone().clamp_(0.0, 1.0)


def headroom(x: Tensor) -> Tensor:
    """The largest delta for which x + delta <= 1 in exact arithmetic, not only after rounding.

    Example:
        >>> x = torch.tensor([0.1, 0.7])
        >>> bool((x.double() + headroom(x).double() <= 1).all())
        True
    """
    room = 1 - x
    # Where 1 - x is rounded, x is below one half, 1 - room is exact and tells which way it was.
    return torch.where(1 - room < x, torch.nextafter(room, torch.zeros_like(room)), room)


def snapped(images: Tensor, levels: int | None) -> Tensor:
    """Images moved to the nearest of so many grey levels, as a file would hold them; the gradient passes.

    Example:
        >>> snapped(torch.tensor([0.501, 0.251]), 3)
        tensor([0.5000, 0.5000])
    """
    if levels is None:
        return images
    grid = (images.detach() * (levels - 1)).round() / (levels - 1)
    return images + (grid - images.detach())


def as_models(models: Sequence[Model] | nn.ModuleList) -> tuple[Model, ...]:
    """The models as a tuple, or an error that says what is wrong with them."""
    if not isinstance(models, nn.ModuleList) and callable(models):
        raise TypeError("`models` must be a sequence of models, got a single one; write [model].")
    models = tuple(models)
    if not models:
        raise ValueError("`models` must name at least one model, got an empty sequence.")
    for index, model in enumerate(models):
        if not callable(model):
            raise TypeError(
                f"`models[{index}]` must be callable, got {type(model).__name__}{how_to_declare(model)}."
            )
    return models


def model_names(models: Sequence[Model]) -> list[str]:
    """The names the models carry, if they all have one of their own, or numbers."""
    own = [getattr(model, "name", None) for model in models]
    if all(isinstance(name, str) for name in own) and len(set(own)) == len(own):
        return [str(name) for name in own]
    return [f"model {index + 1}" for index in range(len(models))]


def domain_names(names: Sequence[str] | None, default: list[str]) -> tuple[str, ...]:
    """The given names, one per domain, or the default, where what is there twice gets a number."""
    if names is None:
        return tuple(
            f"{name} ({default[:k].count(name) + 1})" if default.count(name) > 1 else name
            for k, name in enumerate(default)
        )
    if len(names) != len(default):
        raise ValueError(
            f"`names` must have one entry per domain, {len(default)}, got {len(names)}."
        )
    if odd := [name for name in names if not isinstance(name, str)]:
        raise TypeError(
            f"`names` must be strings, got {type(odd[0]).__name__} {odd[0]!r}; write str(name)."
        )
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise ValueError(f"`names` must be different from each other, got {twice[0]!r} twice.")
    return tuple(names)


def images_and_labels(x: Data, y: object, rank: int = 2) -> tuple[Tensor, Tensor]:
    """Images (N, ...) and labels (N,) as tensors; what a loader or a data set gives of both is put together.

    Args:
        x: Images, or, without `y`, pairs of images and labels, as a DataLoader or a data set gives them.
        y: Labels.
        rank: Axes that images have at least, rows included.

    Raises:
        TypeError: They are neither numbers nor batches of them.
        ValueError: Labels are missing, there is no batch, or numbers are out of range.

    Example:
        >>> x, y = images_and_labels([(torch.rand(2, 3), [0, 1]), (torch.rand(1, 3), [1])], None)
        >>> x.shape, y
        (torch.Size([3, 3]), tensor([0, 1, 1]))
    """
    if isinstance(y, Mapping):
        raise TypeError("`y` must be labels, got a mapping.")
    if y is None and hasattr(x, "__array__"):
        raise ValueError(
            f"`y` must be the labels of the images, got None for {type(x).__name__}; leave it out only for a "
            "loader or a data set, which gives both."
        )
    if y is not None and isinstance(x, DataLoader | Dataset):
        raise TypeError(f"`y` must be left out for {type(x).__name__}, which gives both, got both.")
    images, labels = collected(x) if y is None else (x, y)
    found = as_images("x", images, rank)
    return found, as_labels("y", labels, (len(found),))


def as_images(name: str, x: Data, rank: int) -> Tensor:
    """Images as a tensor in [0, 1], float32 or float64, with enough axes; or an error that says what is wrong.

    Example:
        >>> as_images("x", [[0.0, 0.5], [1.0, 0.25]], 2).dtype
        torch.float32
    """
    x = _as_tensor(name, x)
    if x.dim() < rank or x.shape[0] == 0 or x.numel() == 0:
        raise ValueError(
            f"`{name}` must have at least {rank} axes and one row, got shape {tuple(x.shape)}."
        )
    if not x.is_floating_point():
        raise TypeError(
            f"`{name}` must be a floating-point tensor in [0, 1], got {x.dtype}; "
            "divide 8-bit images by 255."
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"`{name}` must be float32 or float64, got {x.dtype}; write {name}.float()."
        )
    low, high = x.detach().aminmax()
    if not bool((low >= -1e-6) & (high <= 1 + 1e-6)):  # also catches NaN
        raise ValueError(
            f"`{name}` must be finite and in [0, 1], got values from {low.item():.4g} to "
            f"{high.item():.4g}; undo any normalisation and let the model do it."
        )
    return x


def as_labels(name: str, labels: object, shape: tuple[int, ...]) -> Tensor:
    """Class numbers of the given shape, int64, from any integers; or an error that says what is wrong.

    Example:
        >>> as_labels("y", [3, 1], (2,))
        tensor([3, 1])
    """
    labels = _as_tensor(name, labels)
    if tuple(labels.shape) != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {tuple(labels.shape)}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(
            f"`{name}` must be integer class numbers, got {labels.dtype}; write {name}.long()."
        )
    labels = labels.long()
    if bool((labels < 0).any()):
        raise ValueError(f"`{name}` must be >= 0, got a minimum of {labels.min().item()}.")
    return labels


def _as_tensor(name: str, value: object) -> Tensor:
    """A tensor from what plainly is one: arrays, numbers in lists, tensors or arrays in a list."""
    if isinstance(value, Tensor):
        return value
    try:
        leaf: Any = value
        while isinstance(leaf, list | tuple) and leaf:
            leaf = leaf[0]
        if isinstance(value, list | tuple) and hasattr(leaf, "shape"):
            return torch.stack([_as_tensor(name, part) for part in value])
        steps = getattr(value, "strides", None) or ()
        # torch takes no array that runs backwards, such as x[:, ::-1].
        return torch.tensor(leaf.copy() if any(step < 0 for step in steps) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"`{name}` must be a tensor, an array or a list of numbers, got {type(value).__name__} ({error})."
        ) from error
