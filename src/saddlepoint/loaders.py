"""Images and labels batch by batch, from what gives them: a DataLoader, a data set, or pairs one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

__all__ = ["batches", "collected", "in_order", "items", "length", "pairs", "sent"]


def batches(source: Any, size: int = 128) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels in batches of one size; only so many images are in memory at a time.

    Args:
        source: A DataLoader, a data set of torch, or anything else that gives pairs: images (n, ...) with
            labels (n,), or one image (...) with its label. Pairs may be tensors, arrays or numbers.
        size: Images per batch, whatever the size of those that come; the last may be smaller.

    Yields:
        Images (size, ...) and labels (size,).

    Raises:
        TypeError: It does not give pairs of images and labels.
        ValueError: Images have different shapes, or there are not as many labels as images.

    Example:
        >>> data = [(torch.full((1, 2, 2), k / 10), k) for k in range(5)]
        >>> [(x.shape, y.tolist()) for x, y in batches(data, 3)]
        [(torch.Size([3, 1, 2, 2]), [0, 1, 2]), (torch.Size([2, 1, 2, 2]), [3, 4])]
    """
    if size < 1:
        raise ValueError(f"`size` must be >= 1, got {size}.")
    kept: list[tuple[Tensor, Tensor]] = []
    count = 0
    for pair in pairs(source):
        kept.append(pair)
        count += len(pair[1])
        while count >= size:
            x, y = _together(kept)
            yield x[:size], y[:size]
            kept = [(x[size:].clone(), y[size:])] if count > size else []
            count -= size
            del x, y  # a copy is kept of the rest alone
    if kept:
        yield _together(kept)


def collected(source: Any) -> tuple[Tensor, Tensor]:
    """All images, (N, ...), and labels, (N,), that a loader or a data set gives.

    Raises:
        TypeError, ValueError: As in `batches`, or there is no image.

    Example:
        >>> x, y = collected([(torch.rand(2, 3), [0, 1]), (torch.rand(1, 3), [1])])
        >>> x.shape, y
        (torch.Size([3, 3]), tensor([0, 1, 1]))
    """
    return _together(list(pairs(source)))


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on that device; on its way from the host to a GPU nobody waits for it.

    Example:
        >>> sent(torch.ones(2), torch.device("cpu"))
        tensor([1., 1.])
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # itself if it is pinned: only such copies do not wait
    return tensor.to(device, non_blocking=True)


def length(source: Any) -> int | None:
    """How many images there are; None if that is not known before they have been seen.

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = TensorDataset(torch.rand(5, 3), torch.arange(5))
        >>> length(data), length(DataLoader(data, batch_size=2)), length(iter(data))
        (5, 5, None)
        >>> length(DataLoader(data, batch_size=2, drop_last=True))
        4
    """
    if isinstance(source, DataLoader) and not isinstance(source.dataset, IterableDataset):
        batched = source.batch_sampler is not None
        return _in_batches(source.batch_sampler) if batched else _counted(source.sampler)
    if isinstance(source, DataLoader):
        source = source.dataset
    if isinstance(source, list | tuple):
        return sum(len(labels) for _, labels in pairs(source))
    # What gives nothing by number, as a loader of somebody else, counts its batches.
    return _counted(source) if hasattr(source, "__getitem__") else None


def in_order(source: Any) -> bool:
    """Whether it is known to give the same images in the same order as often as it is asked.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> data = TensorDataset(torch.rand(5, 3), torch.arange(5))
        >>> in_order(data), in_order(DataLoader(data)), in_order(DataLoader(data, shuffle=True))
        (True, True, False)
    """
    if isinstance(source, DataLoader):
        batched = source.batch_sampler
        known = batched is None or type(batched) is BatchSampler
        # Beside a sampler of batches the loader's own one gives nothing.
        drawn = source.sampler if batched is None else getattr(batched, "sampler", None)
        return known and type(drawn) is SequentialSampler and in_order(source.dataset)
    return isinstance(source, Dataset) and not isinstance(source, IterableDataset)


def _in_batches(sampler: Any) -> int | None:
    """How many images a sampler of batches draws: the data set may have more, or fewer."""
    if isinstance(sampler, list | tuple):
        return sum(map(len, sampler))
    if type(sampler) is not BatchSampler:  # whose batches may be of any size
        return None
    count, size = _counted(sampler.sampler), sampler.batch_size
    return count if count is None or not sampler.drop_last else count // size * size


def _counted(source: Any) -> int | None:
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def pairs(source: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """What a loader or a data set gives, piece by piece: images (n, ...) and labels (n,)."""
    for item in items(source):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(
                f"`x` must give pairs of images and labels, got {type(item).__name__}; let the loader return "
                "(images, labels), or give `y`."
            )
        x, y = (_tensor(name, part) for name, part in zip(("images", "labels"), item, strict=True))
        if y.dim() == 0:  # one image with its label
            x, y = x.unsqueeze(0), y.unsqueeze(0)
        if y.dim() != 1 or x.dim() < 1 or len(x) != len(y):
            raise ValueError(
                "`x` must give images (n, ...) with labels (n,), or one image with its label, got shapes "
                f"{tuple(x.shape)} and {tuple(y.shape)}."
            )
        yield x, y


def items(source: Any) -> Iterable[Any]:
    """What a loader or a data set gives, one after the other.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(source, DataLoader):
        return _apart(source)
    if isinstance(source, Iterable):
        return source
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        # A data set need not say where it ends, as Python's own iteration over it would need.
        return (source[index] for index in range(len(source)))
    raise TypeError(
        f"`x` must be images, or a DataLoader or data set of images with labels, got {type(source).__name__}."
    )


def _apart(loader: DataLoader[Any]) -> Iterator[Any]:
    """What a loader gives; the numbers it draws (order, augmentation) do not move the global generator."""
    state, user = torch.get_rng_state(), torch.get_rng_state()
    batches: Iterator[Any] | None = None
    while True:
        torch.set_rng_state(state)
        try:
            batches = iter(loader) if batches is None else batches
            batch = next(batches)
        except StopIteration:
            return
        finally:
            state = torch.get_rng_state()
            torch.set_rng_state(user)
        yield batch
        user = torch.get_rng_state()


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"`x` must give {name} as tensors or arrays, got {type(value).__name__}; convert them in the data "
            "set, images to floats in [0, 1], labels to class numbers from 0."
        ) from None


def _together(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    if not parts:
        raise ValueError("`x` must give at least one batch of images and labels, got none.")
    shapes = list(dict.fromkeys(tuple(x.shape[1:]) for x, _ in parts))
    if len(shapes) > 1:
        raise ValueError(
            f"`x` must give images of one shape, got {shapes[0]} and {shapes[1]}; resize them in the data set."
        )
    if len(parts) == 1:
        return parts[0]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
