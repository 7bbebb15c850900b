"""A run on disk, from its settings to its results: the one place that opens and finishes run folders.

`settings` are what decides the numbers, and `build` makes objects of them. A run folder holds `run.json` (a
`Run`), `tensors.safetensors` and what is drawn from them; while the run is under way, `pages/` holds what is
done so far, and `run.lock` says who is at work. Under that lock `training` writes its checkpoints, as
`sp.train(out=)` does without a run, and its scalars. What `report` draws of complete runs is written by
`drawn`, which knows by `drawn.json` what is ours to replace; no number is read from it again.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.runs.comparable import Entry
    from saddlepoint.runs.counting import lift, summarise
    from saddlepoint.runs.evaluation_task import finish_evaluation
    from saddlepoint.runs.execute import Execution, RunInterrupted, opened
    from saddlepoint.runs.hashing import hash_model, hash_settings, hash_tensors
    from saddlepoint.runs.metric_parts import HeldOut
    from saddlepoint.runs.metrics import (
        Accuracies,
        AttackMetrics,
        AttackOutcome,
        DomainMetrics,
        Epoch,
        EvaluationMetrics,
        Examined,
        Metrics,
        Rates,
        TrainingMetrics,
        examined,
    )
    from saddlepoint.runs.ranking import Board, Pair, Ranking, rank_runs
    from saddlepoint.runs.reading import finished, metrics_of, read_results, settings_of
    from saddlepoint.runs.record import EVALUATE, RECORD, SCHEMA_VERSION, TENSORS, Hashes, Kind, Run
    from saddlepoint.runs.rows import Job, RunProgress, attack_rows
    from saddlepoint.runs.store import Store, locked

__all__ = [
    "EVALUATE",
    "RECORD",
    "SCHEMA_VERSION",
    "TENSORS",
    "Accuracies",
    "AttackMetrics",
    "AttackOutcome",
    "Board",
    "DomainMetrics",
    "Entry",
    "Epoch",
    "EvaluationMetrics",
    "Examined",
    "Execution",
    "Hashes",
    "HeldOut",
    "Job",
    "Kind",
    "Metrics",
    "Pair",
    "Ranking",
    "Rates",
    "Run",
    "RunInterrupted",
    "RunProgress",
    "Store",
    "TrainingMetrics",
    "attack_rows",
    "examined",
    "finish_evaluation",
    "finished",
    "hash_model",
    "hash_settings",
    "hash_tensors",
    "lift",
    "locked",
    "metrics_of",
    "opened",
    "rank_runs",
    "read_results",
    "settings_of",
    "summarise",
]

_FILES = (
    "comparable",
    "counting",
    "evaluation_task",
    "execute",
    "hashing",
    "metric_parts",
    "metrics",
    "ranking",
    "reading",
    "record",
    "rows",
    "store",
)


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used: the settings of `--help` need no torch (PEP 562)."""
    if name in __all__:
        modules = (import_module(f"{__name__}.{file}") for file in _FILES)
        globals().update({n: getattr(m, n) for m in modules for n in m.__all__ if n in __all__})
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]
