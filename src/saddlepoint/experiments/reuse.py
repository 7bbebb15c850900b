"""What need not be done twice.

Where all domains predict the true class, both labels are one problem: rows are independent of each other, so
that such a row has the same result in a run with predicted labels as in the run with true ones, up to rounding.
And what a network says about images as they are is asked once for all rows, blocks and experiments about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from saddlepoint.experiments.places import complete_in
from saddlepoint.experiments.plan import LABELS, METHODS
from saddlepoint.problems import AbstractProblem
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.runs import RECORD, AttackMetrics, Run, metrics_of, read_results, settings_of
from saddlepoint.runs.rows import CLEAN, Solve
from saddlepoint.runs.settings import AttackSettings, EnsembleSettings
from saddlepoint.solver import AttackResult, History, Progress

__all__ = ["Answers", "reusing"]

# Settings on which the answers of a group or a view depend, besides images, networks and code. Verdicts are in
# float32, whatever the attack is computed in.
_ASKED = ("kind", "seed", "group_size", "by_class", "transforms", "samples")
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


@final
class Answers:
    """What domains answer without a perturbation, from the finished rows of experiments.

    A domain is known by the hash of its network and that of the images, and by how these are grouped or
    transformed; nothing is kept besides the rows.

    Args:
        folders: Of the experiments; all methods, labels and blocks are looked through.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._read: set[Path] = set()
        self._there: dict[str, tuple[Path, int]] = {}  # in which row, and as which domain

    def to(self, record: Run) -> dict[str, Tensor] | None:
        """`clean_predictions` and `clean_fooled` of a row that is about to run, if all domains have been asked.

        Args:
            record: Of the row.
        """
        self._look()
        asked = _asked(record)
        found = [self._there[each] for each in asked if each in self._there]
        if not asked or len(found) < len(asked):
            return None
        tables = dict[Path, dict[str, Tensor]]()
        for place in {place for place, _ in found}:
            try:
                tables[place] = read_results(place)[1]
            except (OSError, ValueError):  # damaged: the networks are asked again, by this row
                self._there = {k: where for k, where in self._there.items() if where[0] != place}
                return None
        return {
            name: torch.stack([tables[place][name][:, k] for place, k in found], dim=1)
            for name in CLEAN
        }

    def _look(self) -> None:
        """Find out about rows that have been finished since; a damaged one has no answers."""
        methods = (f / classes / m for f in self._folders for classes in LABELS for m in METHODS)
        records = (record for place in methods for record in place.glob(f"*/*/{RECORD}"))
        for place in sorted({record.parent for record in records} - self._read):
            if (asked := _asked_in(place)) is not None:
                self._read.add(place)
                for k, each in enumerate(asked):
                    self._there.setdefault(each, (place, k))


def _asked_in(place: Path) -> list[str] | None:
    """What the domains of a finished row were asked; None if it is not finished, or cannot be read."""
    try:
        run = complete_in(place)
        if run is None or not isinstance(metrics_of(run), AttackMetrics):
            return None
    except (OSError, ValueError):
        return None
    return _asked(run)


def _asked(run: Run) -> list[str]:
    """What the domains of a run are asked, in their order; nothing where a network has no hash."""
    settings = settings_of(run, AttackSettings)
    networks = [run.hashes.models[name] for name in settings.models]
    if not all(networks):
        return []
    if isinstance(settings, EnsembleSettings):  # every domain is a network
        return [str((settings.kind, run.hashes.data, network)) for network in networks]
    about = [getattr(settings, name, None) for name in _ASKED]
    return [str((*about, run.hashes.data, networks, k)) for k in range(len(run.domains))]
