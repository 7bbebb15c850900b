"""What need not be done twice.

Where all domains predict the true class, both labels are one problem: rows are independent of each other, so
that such a row has the same result in a run with predicted labels as in the run with true ones, up to rounding.
And what domains answer without a perturbation is asked once for all strategies, methods and labels of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.runs import RECORD, Run, read_results, settings_of
from saddlepoint.runs.rows import CLEAN, Solve
from saddlepoint.runs.settings import AttackSettings
from saddlepoint.solver import AttackResult, History, Progress

__all__ = ["known_answers", "reusing"]

# Settings on which the answers without a perturbation depend, besides images, networks and code.
_ASKED = ("kind", "limit", "seed", "group_size", "by_class", "box", "transforms", "samples")
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


def known_answers(record: Run, folder: Path, key: str) -> dict[str, Tensor] | None:
    """What the domains of a block answer without a perturbation, if another row of it has asked.

    Args:
        record: Of the row that is about to run.
        folder: Of the experiment; all methods and labels are looked through.
        key: Of the block.
    """
    for place in sorted(folder.glob(f"*/*/{key}/*/{RECORD}")):
        other = Run.read(place.parent)
        one, two = (settings_of(run, AttackSettings) for run in (other, record))
        same = all(getattr(one, name, None) == getattr(two, name, None) for name in _ASKED)
        hashes = (other.hashes.models, other.hashes.data) == (
            record.hashes.models,
            record.hashes.data,
        )
        if other.status == "complete" and same and hashes:
            tensors = read_results(place.parent)[1]
            return {name: tensors[name] for name in CLEAN}
    return None
