"""Every attack table and figure of the paper as data, one runner for all, and what shows the results.

`EXPERIMENTS` holds them, `reproduce` runs one into a folder and can be stopped and continued at any time;
`publish` writes its tables (Markdown, CSV, LaTeX) and figures from what is in the folder.
"""

from saddlepoint.experiments.building import FULL
from saddlepoint.experiments.catalogue import EXPERIMENTS, find
from saddlepoint.experiments.costs import Estimate, estimate
from saddlepoint.experiments.methods import frugal_attack
from saddlepoint.experiments.plan import (
    METHODS,
    Block,
    Experiment,
    Measurement,
    Method,
    Reported,
    Row,
    Strategy,
    settings,
)
from saddlepoint.experiments.publishing import publish
from saddlepoint.experiments.ranks import spearman
from saddlepoint.experiments.results import Results, collect
from saddlepoint.experiments.runner import Setup, Step, reproduce, skipped
from saddlepoint.experiments.stationarity import log_log_slope, residuals
from saddlepoint.report.tables import Table, to_csv, to_latex, to_markdown

__all__ = [
    "EXPERIMENTS",
    "FULL",
    "METHODS",
    "Block",
    "Estimate",
    "Experiment",
    "Measurement",
    "Method",
    "Reported",
    "Results",
    "Row",
    "Setup",
    "Step",
    "Strategy",
    "Table",
    "collect",
    "estimate",
    "find",
    "frugal_attack",
    "log_log_slope",
    "publish",
    "reproduce",
    "residuals",
    "settings",
    "skipped",
    "spearman",
    "to_csv",
    "to_latex",
    "to_markdown",
]
