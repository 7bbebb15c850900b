"""Truths as hexadecimal digits: both ways of filling, against numpy and arithmetic, and what is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from saddlepoint.experiments.truths import Filled, packed, unpacked


@pytest.mark.parametrize("count", [1, 3, 4, 5, 7, 8, 9, 333, 1000])
def test_truths_survive_and_are_where_files_have_them(count: int) -> None:
    truths = [random.Random(count + n).random() < 0.5 for n in range(count)]
    after, before = (packed(truths, filled=filled) for filled in ("after", "before"))
    assert after == np.packbits(truths).tobytes().hex()
    assert int(before, 16) == sum(2 ** (count - 1 - n) for n, truth in enumerate(truths) if truth)
    assert unpacked(after, count, filled="after") == tuple(truths)
    assert unpacked(before, count, filled="before") == tuple(truths)


@pytest.mark.parametrize(
    ("digits", "count", "filled"),
    [
        ("ff", 5, "after"),
        ("ff", 5, "before"),
        ("f", 4, "after"),
        ("ff", 4, "before"),
        ("", 1, "before"),
        ("0x1f", 16, "before"),
        ("-1", 8, "before"),
    ],
)
def test_digits_of_another_number_of_truths_are_refused(
    digits: str, count: int, filled: Filled
) -> None:
    with pytest.raises(ValueError, match=r"`digits` must be those of|invalid literal"):
        unpacked(digits, count, filled=filled)
