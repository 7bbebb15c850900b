"""Tables as data, and as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from typing import final

__all__ = ["Cell", "Column", "Table", "to_csv", "to_latex", "to_markdown"]

Cell = str | float | int | tuple[float, float] | None
"""A word, a number, an interval, or nothing."""

_NOTHING = "-"
_LATEX = {
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
    lines = [f"**{table.title}**", "", _bar([column.name for column in table.columns])]
    lines.append("|" + "|".join("---:" if n else ":---" for n in _numeric(table)) + "|")
    for line in table.lines:
        cells = [_text(cell, column) for cell, column in zip(line, table.columns, strict=True)]
        lines.append(_bar([cell.replace("|", r"\|") for cell in cells]))
    for note in table.notes:
        lines += ["", note]
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
        heading += [f"{column.name} low", f"{column.name} high"] if pair else [column.name]
    writer.writerow(heading)
    for line in table.lines:
        row: list[str | float] = []
        for cell, pair in zip(line, pairs, strict=True):
            if isinstance(cell, tuple):
                row += list(cell)
            elif pair:
                row += ["", ""]
            else:
                row.append("" if cell is None else cell)
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
    for line in table.lines:
        cells = [_text(cell, column) for cell, column in zip(line, table.columns, strict=True)]
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
    text = "".join(_LATEX.get(letter, letter) for letter in text)
    return re.sub(r"([A-Za-z]+)_([A-Za-z0-9+]+)", r"\1$_{\\mathrm{\2}}$", text)
