"""Pages and tables that show runs. Nothing here attacks, counts, writes the records of runs, or prints."""

from importlib.util import find_spec

from saddlepoint.extras import install

if find_spec("jinja2") is None:
    raise ImportError(f"pages need jinja2; install it with {install('show')}", name="jinja2")

from saddlepoint.report.compare import write_comparison
from saddlepoint.report.doctor_page import write_findings
from saddlepoint.report.page import MAX_BYTES, write_report
from saddlepoint.report.result_page import write_result
from saddlepoint.runs import Board, rank_runs

__all__ = [
    "MAX_BYTES",
    "Board",
    "rank_runs",
    "write_comparison",
    "write_findings",
    "write_report",
    "write_result",
]
