"""What torch may round float32 to, by settings of the user's: autocast, and what holds for the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import RLock
from typing import Any, cast, final

import torch

__all__ = ["UNROUNDED", "autocast_is_on", "full_precision", "roundings", "without_autocast"]

_FULL = ("ieee", "none")  # words for float32 as it is
_CPU = cast(Any, torch.backends.mkldnn)  # whose parts have no types
_GPU = cast(Any, torch.backends.cudnn)
_PRODUCTS = _CPU.matmul, torch.backends.cuda.matmul
_ON_CPU = _CPU.matmul, _CPU.conv, _CPU.rnn
_ON_GPU = torch.backends.cuda.matmul, _GPU.conv, _GPU.rnn
_DEVICES = ("cpu", "cuda", "mps", "xpu")  # that autocast may be on for


def autocast_is_on() -> bool:
    """Whether a user's `torch.autocast` is around.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     autocast_is_on()
        True
    """
    return any(map(torch.is_autocast_enabled, _DEVICES))


def roundings() -> tuple[str, ...]:
    """What float32 is rounded to here and now: products, convolutions and recurrences, on a CPU and on a GPU.

    Example:
        >>> roundings()[:3]
        ('ieee', 'ieee', 'ieee')
    """
    found = (part.fp32_precision for part in (*_ON_CPU, *_ON_GPU))
    return tuple("ieee" if word in _FULL else word for word in found)


@contextmanager
def full_precision() -> Iterator[None]:
    """Verdicts are made in full precision, whatever the user has set: autocast off, and float32 is float32.

    Without it `torch.set_float32_matmul_precision("medium")`, `torch.backends.fp32_precision` and what belongs
    to it let products of float32 matrices be rounded to bfloat16 or TF32, and convolutions on GPUs are so by
    default. These settings are of the process: while an attack is at work they hold for its other threads too,
    and when the last one has left they are what they were. What is set meanwhile, as by a callback, stays
    afterwards, and reaches no verdict. To search faster, give `precision`.

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
    """Float32 is float32 while anybody is inside: who enters sees to it, the last puts it back."""

    def __init__(self) -> None:
        self._lock, self._inside, self._settings = RLock(), 0, ExitStack()
        self._gpu = False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._gpu = torch.cuda.is_available()
            parts = (*_ON_CPU, *_ON_GPU) if self._gpu else _ON_CPU
            # By what was set before the first came in, or by what the user has set since.
            if any(part.fp32_precision not in _FULL for part in parts):
                self._settings.enter_context(_without_rounding(self._gpu))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._settings.close()


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
def _without_rounding(gpu: bool) -> Iterator[None]:
    with _ieee(*_ON_CPU), _without_tf32() if gpu else nullcontext():
        yield


@contextmanager
def _ieee(*parts: Any) -> Iterator[None]:
    """Parts of torch that round float32 do not; afterwards they do so again, unless they are set meanwhile."""
    before = {part: part.fp32_precision for part in parts if part.fp32_precision not in _FULL}
    for part in before:
        part.fp32_precision = "ieee"
    word = _word()
    try:
        yield
    finally:
        theirs = _PRODUCTS if _word() != word else ()
        for part in before:
            if part.fp32_precision == "ieee" and part not in theirs:
                # What follows from a wider setting goes on to follow from it.
                part.fp32_precision = "none"
                if part.fp32_precision != before[part]:
                    part.fp32_precision = before[part]


@contextmanager
def _without_tf32() -> Iterator[None]:
    """The same on GPUs, by the older words of torch where it can still read them, as users' code may too."""
    products = cast(Any, torch.backends.cuda.matmul)
    try:
        word, short = torch.get_float32_matmul_precision(), (products.allow_tf32, _GPU.allow_tf32)
    except RuntimeError:  # older and newer words were mixed
        with _ieee(*_ON_GPU):
            yield
        return
    if short[0]:
        products.allow_tf32 = False
        products.fp32_precision = "none"  # "ieee" would be a user's "highest" of meanwhile
    if short[1]:
        _GPU.allow_tf32 = False
    try:
        yield
    finally:
        if short[1] and _GPU.conv.fp32_precision in _FULL and _GPU.rnn.fp32_precision in _FULL:
            _GPU.allow_tf32 = True
        if short[0] and (_word(), products.fp32_precision) == ("highest", "none"):
            torch.set_float32_matmul_precision(word)


def _word() -> str | None:
    """What `torch.set_float32_matmul_precision` was last given; None where newer words contradict it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


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
