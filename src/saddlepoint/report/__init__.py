"""Run records, their files, and the pages that show them.

A run directory holds `run.json` (a `Run`), `tensors.safetensors` and `report.html`; while the run is under
way, `shards/` (of an attack) or `batches/` (of an evaluation) holds what is done so far. Nothing here prints.
"""

from saddlepoint.report.compare import write_comparison
from saddlepoint.report.evaluation import execute_evaluation
from saddlepoint.report.hashing import hash_config, hash_model, hash_tensors
from saddlepoint.report.ledger import DiskLedger
from saddlepoint.report.metrics import lift, summarise
from saddlepoint.report.page import MAX_BYTES, write_report
from saddlepoint.report.record import EVALUATE, SCHEMA_VERSION, Hashes, Run
from saddlepoint.report.running import Interrupted, Job, RunProgress, check_resumable, execute
from saddlepoint.report.shards import TENSORS, Shards, read_tensors

__all__ = [
    "EVALUATE",
    "MAX_BYTES",
    "SCHEMA_VERSION",
    "TENSORS",
    "DiskLedger",
    "Hashes",
    "Interrupted",
    "Job",
    "Run",
    "RunProgress",
    "Shards",
    "check_resumable",
    "execute",
    "execute_evaluation",
    "hash_config",
    "hash_model",
    "hash_tensors",
    "lift",
    "read_tensors",
    "summarise",
    "write_comparison",
    "write_report",
]
