"""The tables of a Markdown document, written from stored summaries between markers.

A table begins with `<!-- table: NAME -->` and ends with `<!-- end -->`. It has one line per strategy, or is
that of a measurement; one that begins with `<!-- table: NAME, details -->` has one line per strategy and
source, with every accuracy.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from saddlepoint.experiments.catalogue import find
from saddlepoint.experiments.finished import Results
from saddlepoint.experiments.overview import overview
from saddlepoint.experiments.stored import read_lines, read_summary
from saddlepoint.experiments.summary import found_weights, summarise
from saddlepoint.report.tables import Table, to_markdown

__all__ = ["named_tables", "write_tables"]

_MARKED = re.compile(r"<!-- table: ([\w-]+)(, details)? -->\n(.*?)<!-- end -->", re.DOTALL)


def write_tables(text: str, store: Path) -> str:
    """The document with its tables as the stored summaries give them; everything else stays.

    Args:
        text: Markdown with markers.
        store: Folder with summaries.

    Raises:
        ValueError: A marker names no experiment, its summary is missing or is of other settings.

    Example:
        >>> write_tables("No markers, no change.", Path())
        'No markers, no change.'
    """

    def fill(match: re.Match[str]) -> str:
        name, details, _ = match.groups()
        opening = match.group(0).partition("\n")[0]
        return f"{opening}\n{_table(name, store, details=bool(details))}<!-- end -->"

    return _MARKED.sub(fill, text)


def named_tables(text: str) -> list[str]:
    r"""The experiments that a document shows, in order.

    Example:
        >>> named_tables("<!-- table: cost -->\n<!-- end -->")
        ['cost']
    """
    return list(dict.fromkeys(match.group(1) for match in _MARKED.finditer(text)))


def _table(name: str, store: Path, *, details: bool) -> str:
    experiment = find(name)
    if experiment.measurements:
        empty = summarise(Results(experiment, ()))[0]
        return _plain(replace(empty, lines=read_lines(experiment, store), notes=()))
    results = read_summary(experiment, store)
    if details:
        return _plain(replace(summarise(results)[0], notes=()))
    return _plain(replace(overview(results), notes=tuple(found_weights(results))))


def _plain(table: Table) -> str:
    """Without the title: the document has headings of its own."""
    return to_markdown(table).partition("\n\n")[2]
