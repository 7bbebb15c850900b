"""What torch may round float32 to, by settings of the user's: autocast, and what holds for the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any, cast, final

import torch

__all__ = ["UNROUNDED", "autocast_is_on", "full_precision", "without_autocast"]

_FULL = ("ieee", "none")  # words for float32 as it is
_CPU = cast(Any, torch.backends.mkldnn)  # whose parts have no types
_ON_CPU = _CPU.matmul, _CPU.conv, _CPU.rnn
_DEVICES = ("cpu", "cuda", "mps", "xpu")  # that autocast may be on for


def autocast_is_on() -> bool:
    """Whether a user's `torch.autocast` is around.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     autocast_is_on()
        True
    """
    return any(map(torch.is_autocast_enabled, _DEVICES))


@contextmanager
def full_precision() -> Iterator[None]:
    """Verdicts are made in full precision, whatever the user has set: autocast off, and float32 is float32.

    Without it `torch.set_float32_matmul_precision("medium")`, `torch.backends.fp32_precision` and what belongs
    to it let products of float32 matrices be rounded to bfloat16 or TF32, and convolutions on GPUs are so by
    default. These settings are of the process: while an attack is at work they hold for its other threads too,
    and when the last one has left they are what they were. To search faster, give `precision`.

    Example:
        >>> torch.set_float32_matmul_precision("medium")
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision():
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype, torch.backends.mkldnn.matmul.fp32_precision
        (torch.float32, 'ieee')
        >>> torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision
        ('medium', 'bf16')
        >>> torch.set_float32_matmul_precision("highest")
    """
    with without_autocast(), UNROUNDED:
        yield


@final
class _Unrounded:
    """Float32 is float32 while anybody is inside: the first to enter sets it, the last puts it back."""

    def __init__(self) -> None:
        self._lock, self._inside, self._settings = RLock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._set()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._settings.close()

    def _set(self) -> None:
        gpu = torch.cuda.is_available()
        if not gpu and all(part.fp32_precision in _FULL for part in _ON_CPU):
            return  # as it is for most, and most often
        with ExitStack() as stack:
            stack.enter_context(_ieee(*_ON_CPU))
            if gpu:
                stack.enter_context(_without_tf32())
            self._settings = stack.pop_all()


UNROUNDED = _Unrounded()
"""Where settings of the process round no float32; autocast is another matter, see `full_precision`.

Example:
    >>> torch.set_float32_matmul_precision("medium")
    >>> with UNROUNDED, UNROUNDED:
    ...     torch.backends.mkldnn.matmul.fp32_precision
    'ieee'
    >>> torch.set_float32_matmul_precision("highest")
"""


@contextmanager
def _ieee(*parts: Any) -> Iterator[None]:
    """Parts of torch that round float32 to fewer bits do not; afterwards all of them are as they were."""
    before = [part.fp32_precision for part in parts]
    try:
        for part, word in zip(parts, before, strict=True):
            if word not in _FULL:
                part.fp32_precision = "ieee"
        yield
    finally:
        for part, word in zip(parts, before, strict=True):
            if part.fp32_precision != word:
                part.fp32_precision = (
                    "none"  # what follows from a wider setting goes on to follow from it
                )
            if part.fp32_precision != word:
                part.fp32_precision = word


@contextmanager
def _without_tf32() -> Iterator[None]:
    """The same on GPUs, by the older words of torch where it can still read them, as users' code may too."""
    products, images = torch.backends.cuda.matmul, cast(Any, torch.backends.cudnn)
    try:
        word, short = torch.get_float32_matmul_precision(), (products.allow_tf32, images.allow_tf32)
    except RuntimeError:  # older and newer words were mixed
        with _ieee(products, images.conv, images.rnn):
            yield
        return
    try:
        if short[0]:
            products.allow_tf32 = False
        if short[1]:
            images.allow_tf32 = False
        yield
    finally:
        images.allow_tf32 = short[1]
        if short[0]:
            torch.set_float32_matmul_precision(word)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Autocast off, also inside a user's `torch.autocast`.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), without_autocast():
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    with ExitStack() as stack:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
