"""The numbers of an evaluation as Markdown, CSV and LaTeX."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.report.tables import Cell, Table
    from saddlepoint.runs import Accuracies, DomainMetrics, Run

__all__ = ["evaluation_table", "write_tables"]


def write_tables(run: "Run", folder: Path) -> None:
    """Write `table.md`, `table.csv` and `table.tex` of a finished evaluation."""
    from saddlepoint.files import write_atomically
    from saddlepoint.report.tables import to_csv, to_latex, to_markdown

    table = evaluation_table(run)
    for suffix, write in (("md", to_markdown), ("csv", to_csv), ("tex", to_latex)):
        write_atomically(folder / f"table.{suffix}", write(table).encode())


def evaluation_table(run: "Run") -> "Table":
    """One line per domain, threat and attack, then what all attacks leave, then the union."""
    from saddlepoint.report.tables import Column, Table
    from saddlepoint.runs import EvaluationMetrics

    metrics = EvaluationMetrics.read(run.metrics)
    lines = [line for name, part in metrics.domains.items() for line in _lines(name, part)]
    if len(metrics.domains) > 1:
        lines += _totals("every domain", metrics)
    for threat, share in metrics.joint.items():
        where = (threat, metrics.radii[threat], "min-max", None, None, None)
        state = _state(metrics, f"joint.{threat}")
        lines.append(("not all at once", *where, share, metrics.intervals.joint[threat], state))
    names = (
        "model",
        "threat",
        "radius",
        "attack",
        "attacked",
        "broken",
        "alone",
        "accuracy",
        "95 %",
        "state",
    )
    digits = {"radius": 4, "alone": 1, "accuracy": 1, "95 %": 1}
    return Table(
        title=f"Accuracy under attack, {', '.join(run.hashes.models)}, {metrics.rows} images of "
        f"{run.settings['data']}, suite {run.settings['suite']}, percent",
        columns=tuple(Column(name, digits.get(name, 2)) for name in names),
        lines=tuple(lines),
        notes=metrics.notes,
    )


def _lines(name: str, part: "DomainMetrics") -> "list[tuple[Cell, ...]]":
    """Accuracy is what is left after an attack and those before it; alone is after it only."""
    lines: list[tuple[Cell, ...]] = []
    for each in part.attacks:
        where = (each.threat, part.radii[each.threat], each.attack)
        counts = (each.attacked, each.broken)
        lines.append((name, *where, *counts, each.accuracy, each.after, None, each.status))
    return lines + _totals(name, part)


def _totals(name: str, part: "Accuracies") -> "list[tuple[Cell, ...]]":
    intervals = part.intervals
    lines: list[tuple[Cell, ...]] = [
        (name, "none", None, "none", None, None, None, part.clean, intervals.clean, "")
    ]
    for threat, share in part.robust.items():
        where = (threat, part.radii[threat], "all", None, None, None)
        state = _state(part, f"robust.{threat}")
        lines.append((name, *where, share, intervals.robust[threat], state))
    union = (part.union, intervals.union, _state(part, "union"))
    return [*lines, (name, "all", None, "all", None, None, None, *union)]


def _state(part: "Accuracies", number: str) -> str:
    """That a number is an upper bound, because an attack failed."""
    return "at most" if number in part.at_most else ""
