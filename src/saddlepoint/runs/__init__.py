"""A run on disk, from its record to its results: the one place that writes run folders.

A run folder holds `run.json` (a `Run`), `tensors.safetensors` and what is drawn from them; while the run is
under way, `pages/` holds what is done so far, and `run.lock` says who is at work.
"""

from saddlepoint.runs.comparable import Entry
from saddlepoint.runs.counting import lift, summarise
from saddlepoint.runs.evaluations import finish_evaluation
from saddlepoint.runs.execute import Execution, Interrupted, in_pages, opened, read_results
from saddlepoint.runs.hashing import hash_model, hash_settings, hash_tensors
from saddlepoint.runs.metrics import (
    Accuracies,
    AttackMetrics,
    AttackOutcome,
    DomainMetrics,
    Epoch,
    EvaluationMetrics,
    Metrics,
    Rates,
    TrainingMetrics,
)
from saddlepoint.runs.ranking import Board, Pair, Place, Ranking, rank_runs
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
    "Execution",
    "Hashes",
    "Interrupted",
    "Job",
    "Kind",
    "Metrics",
    "Pair",
    "Place",
    "Ranking",
    "Rates",
    "Run",
    "RunProgress",
    "Store",
    "TrainingMetrics",
    "attack_rows",
    "finish_evaluation",
    "hash_model",
    "hash_settings",
    "hash_tensors",
    "in_pages",
    "lift",
    "locked",
    "opened",
    "rank_runs",
    "read_results",
    "summarise",
]
