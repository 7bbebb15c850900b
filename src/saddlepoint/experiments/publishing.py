"""Tables and figures of an experiment as files, drawn from what its folder holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from saddlepoint.experiments import drawing
from saddlepoint.experiments.figures import Sheet, sheets
from saddlepoint.experiments.finished import collect
from saddlepoint.experiments.plan import Experiment
from saddlepoint.experiments.summary import summarise
from saddlepoint.files import write_atomically
from saddlepoint.report.tables import Table, to_csv, to_latex, to_markdown

__all__ = ["publish"]


def publish(
    experiment: Experiment,
    folder: Path,
    *,
    figures: Path | None = None,
    skipped: Sequence[str] = (),
) -> tuple[list[Table], list[Path]]:
    """Write table.md, table.csv and table.tex, and the figures with the data they show.

    Everything is drawn from finished rows and measurements in the folder, whichever methods and labels they are
    of: after several have run, the tables hold the paper's line and all of ours together.

    Args:
        experiment: Which one.
        folder: Where `reproduce` put its results.
        figures: Where figures go; the folder itself if None.
        skipped: Why blocks are missing; becomes notes.

    Returns:
        The tables, and all files written.
    """
    results = collect(experiment, folder)
    tables = summarise(results, skipped)
    written = []
    for number, table in enumerate(tables):
        name = "table" if number == 0 else f"table-{number + 1}"
        for suffix, text in (
            ("md", to_markdown(table)),
            ("csv", to_csv(table)),
            ("tex", to_latex(table)),
        ):
            written.append(folder / f"{name}.{suffix}")
            write_atomically(written[-1], text.encode())
    for sheet in sheets(results):
        written.append(folder / f"{sheet.name}.json")
        write_atomically(written[-1], _data(sheet).encode())
        written += drawing.draw(sheet, folder if figures is None else figures)
    return tables, written


def _data(sheet: Sheet) -> str:
    """The numbers of a figure; images are left out."""
    content = asdict(sheet)
    for panel in content["panels"]:
        panel["thumbnails"] = [tile["caption"] for tile in panel["thumbnails"]]
    return json.dumps(content, indent=2) + "\n"
