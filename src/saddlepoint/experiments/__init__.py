"""Every attack table and figure of the paper as data, one runner for all, and what shows the results.

`EXPERIMENTS` holds them, `reproduce` runs one into a folder and can be stopped and continued at any time;
`publish` writes its tables (Markdown, CSV, LaTeX) and figures from what is in the folder; `write_summary` keeps
the numbers of the tables in a small file, and `write_tables` puts them into a document.
"""

from saddlepoint.experiments.block_parts import FULL, skipped
from saddlepoint.experiments.catalogue import EXPERIMENTS, find, published_parts
from saddlepoint.experiments.costs import Estimate, at_most, estimate
from saddlepoint.experiments.document import named_tables, write_tables
from saddlepoint.experiments.drawing import publish
from saddlepoint.experiments.finished import Results, Source, collect
from saddlepoint.experiments.group_needs import check_groups, too_few
from saddlepoint.experiments.pilot import forecast, left
from saddlepoint.experiments.plan import (
    LABELS,
    METHODS,
    Block,
    Experiment,
    Labels,
    Measurement,
    Method,
    Published,
    Reported,
    Row,
    Step,
    Strategy,
    settings,
)
from saddlepoint.experiments.ranks import spearman
from saddlepoint.experiments.reuse import Answers
from saddlepoint.experiments.runner import Setup, reproduce
from saddlepoint.experiments.stationarity import log_log_slope, residuals
from saddlepoint.experiments.stored import check_store, read_summary, write_summary
from saddlepoint.report.tables import Table, to_csv, to_latex, to_markdown

__all__ = [
    "EXPERIMENTS",
    "FULL",
    "LABELS",
    "METHODS",
    "Answers",
    "Block",
    "Estimate",
    "Experiment",
    "Labels",
    "Measurement",
    "Method",
    "Published",
    "Reported",
    "Results",
    "Row",
    "Setup",
    "Source",
    "Step",
    "Strategy",
    "Table",
    "at_most",
    "check_groups",
    "check_store",
    "collect",
    "estimate",
    "find",
    "forecast",
    "left",
    "log_log_slope",
    "named_tables",
    "publish",
    "published_parts",
    "read_summary",
    "reproduce",
    "residuals",
    "settings",
    "skipped",
    "spearman",
    "to_csv",
    "to_latex",
    "to_markdown",
    "too_few",
    "write_summary",
    "write_tables",
]
