"""Whole numbers as users give them, checked: NumPy's and those of a tensor are welcome."""

from __future__ import annotations

from numbers import Integral
from operator import index
from typing import SupportsIndex

__all__ = ["check_count", "check_seed", "check_seed_range", "check_training_seed"]


def check_count(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number, or too small a one.

    Args:
        name: Of the argument, for the message.
        value: What was given.
        least: The smallest number that is allowed.

    Example:
        >>> check_count("steps", 50, 0)
    """
    truth = isinstance(value, bool)  # a flag in the wrong place
    if truth or not isinstance(value, Integral):  # also NumPy's
        remedy = "write the number" if truth else f"write int({name})"
        raise TypeError(
            f"`{name}` must be a whole number, got {type(value).__name__} {value!r}; {remedy}."
        )
    if int(value) < least:
        raise ValueError(f"`{name}` must be >= {least}, got {value}.")


def check_seed(seed: SupportsIndex) -> int:
    """A seed as a whole number of Python's: those of NumPy are too short for hashes.

    Raises:
        TypeError: It is no whole number.

    Example:
        >>> import numpy
        >>> check_seed(numpy.int64(3))
        3
    """
    try:
        return index(seed)
    except TypeError:
        got = f"{type(seed).__name__} {seed!r}"
        raise TypeError(f"`seed` must be a whole number, got {got}; the default is 0.") from None


def check_seed_range(seed: int) -> int:
    """A seed as the generators of torch take it, who say no more of others than that something overflows.

    Raises:
        ValueError: It is too small or too large.

    Example:
        >>> check_seed_range(-3)
        -3
    """
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"`seed` must be in [-2**63, 2**64), got {seed}.")
    return seed


def check_training_seed(seed: int) -> int:
    """A seed as training takes it, which makes one of every epoch and step of it.

    Raises:
        ValueError: It is too small or too large.

    Example:
        >>> check_training_seed(3)
        3
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be in [0, 2**32), got {seed}.")
    return seed
