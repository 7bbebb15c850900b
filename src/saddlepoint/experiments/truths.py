"""Truths as hexadecimal digits, four to each, the first in the highest bit: so verdicts are kept in files.

Where their number is no multiple of what digits hold, zeros fill the rest. Summaries of experiments have them
before the first truth, trainings of defences after the last one, up to a whole byte; both stay readable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

__all__ = ["Filled", "packed", "unpacked"]

Filled = Literal["before", "after"]


def packed(truths: Iterable[bool], *, filled: Filled) -> str:
    """Truths as digits.

    Example:
        >>> truths = [True, False, True, True, False]
        >>> packed(truths, filled="before"), packed(truths, filled="after")
        ('16', 'b0')
    """
    bits = "".join("1" if truth else "0" for truth in truths)
    if filled == "after":
        bits += "0" * (-len(bits) % 8)
    return f"{int(bits, 2):0{-(-len(bits) // 4)}x}"


def unpacked(digits: str, count: int, *, filled: Filled) -> tuple[bool, ...]:
    """What `packed` was given.

    Args:
        digits: The text.
        count: How many truths there are.
        filled: Where the zeros are.

    Raises:
        ValueError: The digits are not of so many truths.

    Example:
        >>> unpacked("b0", 5, filled="after")
        (True, False, True, True, False)
    """
    bits = "".join(f"{int(digit, 16):04b}" for digit in digits)
    whole = -(-count // (8 if filled == "after" else 4)) * (8 if filled == "after" else 4)
    kept, rest = bits[:count], bits[count:]
    if filled == "before":
        kept, rest = bits[whole - count :], bits[: whole - count]
    if len(bits) != whole or "1" in rest:
        raise ValueError(f"`digits` must be those of {count} truths, got {len(digits)} others.")
    return tuple(bit == "1" for bit in kept)
