"""Tables for terminals of any width: side by side where they fit, one figure per line where they do not."""

import os
import sys
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from saddlepoint.bars import columns

__all__ = ["console_of", "fitted"]


def console_of(width: int) -> Console:
    """Stdout as wide as COLUMNS says, 20 to 1000, or else as the terminal is; as given where neither tells.

    Args:
        width: In files and pipes.
    """
    if told := columns():
        width = told
    else:
        with suppress(OSError):  # no terminal
            width = os.get_terminal_size(sys.stdout.fileno()).columns or width
    # With both given, rich does not read COLUMNS itself.
    return Console(width=width, height=25, highlight=False)


def fitted(console: Console, table: Table) -> RenderableType:
    """The table if no word or number of it would be cut, else its rows as short lists.

    Example:
        >>> table = Table("model", "clean", "under attack")
        >>> table.add_row("resnet", "98.4", "40.2")
        >>> narrow = Console(width=20)
        >>> narrow.print(fitted(narrow, table))
        resnet
          clean 98.4
          under attack 40.2
    """
    if not any("…" in piece.text for piece in console.render(table)):  # as rich cuts
        return table
    headings = [_text(column.header) for column in table.columns]
    cells = zip(*(map(_text, column.cells) for column in table.columns), strict=True)
    lines: list[Text] = []
    for first, *others in cells:
        lines.append(first)
        for heading, cell in zip(headings[1:], others, strict=True):
            if cell.plain.strip():
                lines.append(Text.assemble("  ", heading, " " if heading.plain else "", cell))
    return Group(*lines)


def _text(cell: RenderableType) -> Text:
    """A cell with its markup, broken anywhere rather than cut."""
    text = Text.from_markup(cell) if isinstance(cell, str) else Text(str(cell))
    text.overflow = "fold"
    return text
