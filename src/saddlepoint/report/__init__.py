"""Pages and tables that show runs. Nothing here computes, writes a run or prints."""

from saddlepoint.report.compare import write_comparison
from saddlepoint.report.page import MAX_BYTES, write_report

__all__ = ["MAX_BYTES", "write_comparison", "write_report"]
