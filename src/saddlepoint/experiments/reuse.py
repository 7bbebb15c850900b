"""Rows that need not be attacked twice: where all domains predict the true class, both labels are one problem.

Rows are independent of each other, so that such a row has the same result in a run with predicted labels as in
the run with true ones, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.runs.rows import Solve
from saddlepoint.solver import AttackResult, History, Progress

__all__ = ["reusing"]

_PER_ROW = ("delta", "weights", "losses", "fooled", "num_forwards")


def reusing(solve: Solve, finished: Mapping[str, Tensor]) -> Solve:
    """`solve` for predicted labels that attacks only rows in which some domain is wrong from the start.

    Args:
        solve: Attacks a problem.
        finished: Tensors of the same run with true labels, all rows of it; see `saddlepoint.runs`.
    """

    def attack_others(
        problem: AbstractProblem, rule: AbstractWeightRule, callback: Callable[[Progress], None]
    ) -> AttackResult:
        rows = problem.rows.cpu()
        tensors = {name: finished[name][rows] for name in _PER_ROW}
        history = {n: finished[f"history.{n}"][:, rows] for n in ("weights", "losses")}
        others = (problem.labels != problem.truth).any(dim=1).nonzero().flatten()
        if len(others):
            fresh = solve(problem.take(others), rule, callback)
            for name, table in tensors.items():
                table[others] = getattr(fresh, name)
            for name, table in history.items():
                table[:, others] = getattr(fresh.history, name)
        return AttackResult(
            **tensors,
            adversarial=problem.images(tensors["delta"]),
            history=History(**history),
            completed=torch.ones(len(problem), dtype=torch.bool),
            precision=(),
            asked=None,
        )

    return attack_others
