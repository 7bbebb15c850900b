"""In which precision models compute while something is searched for; verdicts are always in full precision.

Everything that is not a model (perturbations, losses, weights, projections) keeps the dtype of the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch

__all__ = ["FULL", "Precision", "Precisions", "check_precision", "is_native", "precision_of"]

Precision = Literal["float32", "bfloat16", "float16", "auto"]
"""What models compute in. "auto" is bfloat16 where the device has it and it is measured to pay."""

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_now: ContextVar[Mapping[int, torch.dtype] | None] = ContextVar("precision", default=None)


@final
@dataclass(frozen=True)
class Precisions:
    """What each model computes in while it is searched for perturbations that fool it.

    Args:
        models: Those that are asked.
        names: "float32", "bfloat16" or "float16" for each.

    Example:
        >>> model = torch.nn.Linear(2, 2).eval()
        >>> with Precisions((model,), ("bfloat16",)).applied():
        ...     precision_of(model), precision_of(len)
        (torch.bfloat16, None)
    """

    models: tuple[object, ...] = ()
    names: tuple[str, ...] = ()

    @staticmethod
    def full(models: Sequence[object]) -> Precisions:
        """All of these models compute as they are."""
        return Precisions(tuple(models), ("float32",) * len(models))

    @property
    def low(self) -> bool:
        """Whether any model computes in fewer bits than its verdicts."""
        return any(name in _DTYPES for name in self.names)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Where `saddlepoint.calls.call` asks these models so."""
        pairs = zip(self.models, self.names, strict=True)
        token = _now.set({id(model): _DTYPES[name] for model, name in pairs if name in _DTYPES})
        try:
            yield
        finally:
            _now.reset(token)


FULL = Precisions()
"""All models compute as they are."""


def precision_of(model: object) -> torch.dtype | None:
    """The dtype of fewer bits that a model is asked in here and now; None where it is asked as it is."""
    known = _now.get()
    return known.get(id(model)) if known else None


def check_precision(precision: object, models: int) -> tuple[Precision, ...]:
    """One word for each of so many models.

    Args:
        precision: A word for all of them, or as many words as there are models.
        models: Their number.

    Example:
        >>> check_precision("auto", 2)
        ('auto', 'auto')
    """
    words = [precision] * models if isinstance(precision, str) else precision
    known = get_args(Precision)
    if not isinstance(words, Sequence) or any(word not in known for word in words):
        raise ValueError(
            f"`precision` must be one of {', '.join(known)}, for all models or one for each, got {precision!r}."
        )
    if len(words) != models:
        raise ValueError(
            f"`precision` must be one word, or one for each of {models} models, got {len(words)}."
        )
    return tuple(words)


def is_native(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 by itself, and does not only imitate it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False
