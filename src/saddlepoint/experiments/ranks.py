"""Rank correlation: does a large weight go with a large distance?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from saddlepoint.evaluation.rates import Z95

__all__ = ["average_ranks", "spearman", "spearman_within"]


def average_ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1 in ascending order; equal values share the mean of their ranks.

    Example:
        >>> average_ranks([0.2, 0.0, 0.7, 0.0])
        [3.0, 1.5, 4.0, 1.5]
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for index in order[start:stop]:
            ranks[index] = (start + 1 + stop) / 2
        start = stop
    return ranks


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation: Pearson's correlation of the average ranks; nan if one is constant.

    Example:
        >>> spearman([0.1, 0.2, 0.7], [1.0, 3.0, 2.0])
        0.5
        >>> spearman([0.5, 0.5], [1.0, 2.0])
        nan
    """
    if len(first) != len(second):
        raise ValueError(
            f"`second` must be as long as `first`, {len(first)}, got {len(second)} values."
        )
    one, other = average_ranks(first), average_ranks(second)
    middle = (len(one) + 1) / 2
    a, b = [rank - middle for rank in one], [rank - middle for rank in other]
    scale = math.sqrt(sum(v * v for v in a) * sum(v * v for v in b))
    if scale == 0:
        return math.nan
    return sum(u * v for u, v in zip(a, b, strict=True)) / scale


def spearman_within(
    groups: Iterable[tuple[Sequence[float], Sequence[float]]],
) -> tuple[float, float, int]:
    """Mean rank correlation inside groups, since weights compare images of one group only.

    Groups in which one of the two is constant say nothing and are left out.

    Args:
        groups: Pairs of equally long sequences.

    Returns:
        The mean, the half-width of its normal 95 % interval, and the number of groups; nan where there are
        too few.

    Example:
        >>> spearman_within([([0.0, 1.0], [1.0, 2.0]), ([0.5, 0.5], [1.0, 2.0])])
        (1.0, nan, 1)
    """
    values = [rho for a, b in groups if not math.isnan(rho := spearman(a, b))]
    if not values:
        return math.nan, math.nan, 0
    half = Z95 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return fmean(values), half, len(values)
