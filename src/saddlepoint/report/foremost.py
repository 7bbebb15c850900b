"""Which of several is called the hardest, or the one that breaks most: one that an interval sets apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saddlepoint.evaluation import wilson
from saddlepoint.runs import AttackMetrics, Run
from saddlepoint.runs.metrics import Interval

__all__ = ["foremost", "hard_domains", "overlapping"]


def foremost(ends: Mapping[str, Interval], shares: Mapping[str, float]) -> list[str]:
    """Names that may have the highest share, highest first: one alone where its interval lies above all others.

    Args:
        ends: Intervals of 95 %, by name.
        shares: What they are about; where all are the same nothing is said of any, unless there is but one.

    Example:
        >>> foremost({"A": (10, 20), "B": (30, 50), "C": (40, 60)}, {"A": 15, "B": 40, "C": 50})
        ['C', 'B']
    """
    if len(set(shares.values())) == 1 < len(shares):
        return []
    names = sorted(shares, key=lambda name: -shares[name])
    return [name for name in names if ends[name][1] >= ends[names[0]][0]]


def hard_domains(run: Run, metrics: AttackMetrics) -> list[str]:
    """Domains that may be the one that resists most, by how much they do; none where all are even.

    They resist by remaining accuracy, or by how seldom they answer the class to reach.
    """
    kept = metrics.accuracy
    if metrics.reached:
        kept = {name: 100 - share for name, share in metrics.reached.items()}
    if run.kind == "universal":  # the place of an image in its group means nothing
        return []
    rows = metrics.rows
    ends = {name: wilson(round(share * rows / 100), rows) for name, share in kept.items()}
    return foremost(ends, kept)


def overlapping(which: str, told: Sequence[str], does: str, by: str) -> str:
    """The sentence that says of several, the first ones, why none of them stands out.

    Example:
        >>> overlapping("models", ["A (90.0 %)", "B (88.0 %)"], "is the hardest", "from 9 rows")
        'Which of the models is the hardest cannot be told from 9 rows: the 95 % intervals of A (90.0 %) and \
B (88.0 %) overlap.'
    """
    *most, last = told
    names = f"{', '.join(most)} and {last}"
    return (
        f"Which of the {which} {does} cannot be told {by}: the 95 % intervals of {names} overlap."
    )
