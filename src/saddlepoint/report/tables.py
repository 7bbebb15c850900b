"""Tables as data, and as Markdown, CSV and LaTeX; that of an evaluation."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from typing import final

from saddlepoint.runs import Accuracies, DomainMetrics, EvaluationMetrics, Run, settings_of
from saddlepoint.runs.plain import printable
from saddlepoint.runs.settings import EvaluateSettings

__all__ = [
    "Cell",
    "Column",
    "Table",
    "evaluation_table",
    "table_files",
    "texts_of",
    "to_csv",
    "to_latex",
    "to_markdown",
]

Cell = str | float | int | tuple[float, float] | None
"""A word, a number, an interval, or nothing."""

_NOTHING = "-"
_FORMULA = ("=", "+", "-", "@")  # what spreadsheets run if a cell begins with it
_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
}


@final
@dataclass(frozen=True)
class Column:
    """A heading, and how its numbers are written.

    Attributes:
        name: A word after an underscore is set as an index in LaTeX.
        digits: After the decimal point.
        sign: Whether positive numbers carry a plus.
    """

    name: str
    digits: int = 2
    sign: bool = False


@final
@dataclass(frozen=True)
class Table:
    """Lines of cells under columns.

    Attributes:
        title: Above the table.
        columns: Headings.
        lines: As many cells each as there are columns.
        notes: Below the table, one sentence each.
    """

    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for line in self.lines:
            if len(line) != len(self.columns):
                raise ValueError(
                    f"`lines` must have one cell per column, {len(self.columns)}, got {len(line)}: {line}."
                )


def table_files(table: Table, name: str) -> dict[str, bytes]:
    """The content of NAME.md, NAME.csv and NAME.tex."""
    kinds = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
    return {f"{name}.{suffix}": text(table).encode() for suffix, text in kinds.items()}


def texts_of(table: Table) -> list[list[str]]:
    """The cells of every line as they are shown."""
    return [
        [_text(cell, column) for cell, column in zip(line, table.columns, strict=True)]
        for line in table.lines
    ]


def to_markdown(table: Table) -> str:
    """A GitHub-flavoured Markdown table with its title above and notes below.

    Example:
        >>> table = Table("Rates", (Column("Opt."), Column("ASR_all", 1)), (("avg.", 48.17),))
        >>> print(to_markdown(table), end="")
        **Rates**
        <BLANKLINE>
        | Opt. | ASR_all |
        |:---|---:|
        | avg. | 48.2 |
    """
    lines = [f"**{_markdown(table.title)}**", ""]
    lines.append(_bar([_markdown(column.name) for column in table.columns]))
    lines.append("|" + "|".join("---:" if n else ":---" for n in _numeric(table)) + "|")
    for cells in texts_of(table):
        lines.append(_bar([_markdown(cell) for cell in cells]))
    for note in table.notes:
        lines += ["", _markdown(note)]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Comma-separated values with full precision; an interval becomes two columns, nothing an empty cell.

    Example:
        >>> columns = (Column("Opt."), Column("ASR_all"), Column("95 %"))
        >>> print(to_csv(Table("Rates", columns, (("avg.", 48.171, (45.0, 51.5)),))), end="")
        Opt.,ASR_all,95 % low,95 % high
        avg.,48.171,45.0,51.5
    """
    pairs = _intervals(table)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heading: list[str] = []
    for column, pair in zip(table.columns, pairs, strict=True):
        name = _plain(column.name)
        heading += [f"{name} low", f"{name} high"] if pair else [name]
    writer.writerow(heading)
    for line in table.lines:
        row: list[str | float] = []
        for cell, pair in zip(line, pairs, strict=True):
            if isinstance(cell, tuple):
                row += list(cell)
            elif pair:
                row += ["", ""]
            else:
                row.append("" if cell is None else _plain(cell) if isinstance(cell, str) else cell)
        writer.writerow(row)
    return stream.getvalue()


def to_latex(table: Table) -> str:
    r"""A LaTeX table in the style of booktabs.

    Example:
        >>> table = Table("Rates", (Column("Opt."), Column("ASR_all")), (("avg.", 48.17),))
        >>> print(to_latex(table), end="")
        \begin{table}
        \centering
        \caption{Rates}
        \begin{tabular}{lr}
        \toprule
        Opt. & ASR$_{\mathrm{all}}$ \\
        \midrule
        avg. & 48.17 \\
        \bottomrule
        \end{tabular}
        \end{table}
    """
    shape = "".join("r" if numeric else "l" for numeric in _numeric(table))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{{shape}}}", r"\toprule"]
    lines += [" & ".join(_latex(column.name) for column in table.columns) + r" \\", r"\midrule"]
    for cells in texts_of(table):
        lines.append(" & ".join(_latex(cell) for cell in cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par {_latex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _text(cell: Cell, column: Column) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return _NOTHING
    if isinstance(cell, tuple):
        return f"[{cell[0]:.{column.digits}f}, {cell[1]:.{column.digits}f}]"
    if isinstance(cell, float):
        return f"{cell:{'+' if column.sign else ''}.{column.digits}f}"
    return str(cell)


def _numeric(table: Table) -> list[bool]:
    """Which columns hold anything but words."""
    return [any(not isinstance(c, str | None) for c in cells) for cells in _by_column(table)]


def _intervals(table: Table) -> list[bool]:
    return [any(isinstance(cell, tuple) for cell in cells) for cells in _by_column(table)]


def _by_column(table: Table) -> list[list[Cell]]:
    return [[line[index] for line in table.lines] for index in range(len(table.columns))]


def _bar(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _latex(text: str) -> str:
    text = "".join(_LATEX.get(letter, letter) for letter in printable(text))
    return re.sub(
        r"([A-Za-z]+)_([A-Za-z0-9+]+)|_",
        lambda m: rf"{m[1]}$_{{\mathrm{{{m[2]}}}}}$" if m[1] else r"\_",
        text,
    )


def _markdown(text: str) -> str:
    """Text as it is meant to be read: no cell, no tag, no link, no escape begins in it."""
    escaped = printable(text).replace("\\", "\\\\").replace("|", r"\|").replace("<", "&lt;")
    return escaped.replace("](", r"]\(")


def _plain(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) and len(text) > 1 else text


def evaluation_table(run: Run) -> Table:
    """One line per domain, threat and attack, then what all attacks leave, then the union."""
    metrics, settings = EvaluationMetrics.of(run), settings_of(run, EvaluateSettings)
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
        f"{settings.data}, suite {settings.suite}, percent",
        columns=tuple(Column(name, digits.get(name, 2)) for name in names),
        lines=tuple(lines),
        notes=metrics.notes,
    )


def _lines(name: str, part: DomainMetrics) -> list[tuple[Cell, ...]]:
    """Accuracy is what is left after an attack and those before it; alone is after it only."""
    lines: list[tuple[Cell, ...]] = []
    for each in part.attacks:
        where = (each.threat, part.radii[each.threat], each.attack)
        counts = (each.attacked, each.broken)
        lines.append((name, *where, *counts, each.accuracy, each.after, None, each.status))
    return lines + _totals(name, part)


def _totals(name: str, part: Accuracies) -> list[tuple[Cell, ...]]:
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


def _state(part: Accuracies, number: str) -> str:
    """That a number is an upper bound, because an attack failed or missed images."""
    return "at most" if number in part.at_most else ""
