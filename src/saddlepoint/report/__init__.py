"""Run records, their files, and the pages that show them.

A run directory holds `run.json` (a `Run`), `tensors.safetensors` and `report.html`; while the run is under
way, `shards/` holds what is done so far. Nothing here prints.
"""

from saddlepoint.report.compare import write_comparison
from saddlepoint.report.hashing import hash_config, hash_model, hash_tensors
from saddlepoint.report.metrics import lift, summarise
from saddlepoint.report.page import MAX_BYTES, write_report
from saddlepoint.report.record import SCHEMA_VERSION, Hashes, Run
from saddlepoint.report.running import Interrupted, Job, RunProgress, check_resumable, execute
from saddlepoint.report.shards import TENSORS, Shards, read_tensors

__all__ = [
    "MAX_BYTES",
    "SCHEMA_VERSION",
    "TENSORS",
    "Hashes",
    "Interrupted",
    "Job",
    "Run",
    "RunProgress",
    "Shards",
    "check_resumable",
    "execute",
    "hash_config",
    "hash_model",
    "hash_tensors",
    "lift",
    "read_tensors",
    "summarise",
    "write_comparison",
    "write_report",
]
