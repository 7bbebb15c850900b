"""Tables and figures of an experiment as files, drawn from what its folder holds.

Figures are rendered with matplotlib, as PNG and SVG. The same data give the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from saddlepoint.experiments.figures import Panel, Sheet, sheets
from saddlepoint.experiments.finished import collect
from saddlepoint.experiments.places import keep_drawn, publishing
from saddlepoint.experiments.plan import Experiment
from saddlepoint.experiments.summary import tables_of
from saddlepoint.extras import install
from saddlepoint.files import write_atomically
from saddlepoint.plots import PALETTE
from saddlepoint.report.tables import Table, table_files

__all__ = ["PALETTE", "draw", "publish"]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))

# Legible at half size: nothing smaller than 12 points on a panel 5 inches wide.
_STYLE: Any = {
    "font.size": 14,
    "axes.titlesize": 14,
    "axes.labelsize": 14,
    "legend.fontsize": 12,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "lines.linewidth": 2.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "svg.hashsalt": "saddlepoint",
    "svg.fonttype": "none",
}


def publish(
    experiment: Experiment,
    folder: Path,
    *,
    figures: Path | None = None,
    skipped: Sequence[str] = (),
    waiting: Callable[[str], None] | None = None,
) -> tuple[list[Table], list[Path]]:
    """Write table.md, table.csv and table.tex, and the figures with the data they show.

    Everything is drawn from finished rows and measurements in the folder, whichever methods and labels they are
    of: after several have run, the tables hold the paper's line and all of ours together. Of several processes
    that publish into one folder each waits for the one before.

    Args:
        experiment: Which one.
        folder: Where `reproduce` put its results.
        figures: Where figures go; the folder itself if None.
        skipped: Why blocks are missing; becomes notes.
        waiting: Told whom this process waits for.

    Returns:
        The tables, and all files written.

    Raises:
        ValueError: A file with the name of a table or figure is where it goes, and was not drawn there before.
    """
    gallery = folder if figures is None else figures
    with publishing(folder, gallery, waiting=waiting):
        results = collect(experiment, folder)
        tables, drawn = tables_of(results, skipped), sheets(results)
        stems = ["table" if number == 0 else f"table-{number + 1}" for number in range(len(tables))]
        names = [f"{stem}.{ending}" for stem in stems for ending in ("md", "csv", "tex")]
        pictures = [f"{sheet.name}.{ending}" for sheet in drawn for ending in ("png", "svg")]
        keep_drawn(
            [(folder, [*names, *(f"{sheet.name}.json" for sheet in drawn)]), (gallery, pictures)]
        )
        written = []
        for stem, table in zip(stems, tables, strict=True):
            for name, content in table_files(table, stem).items():
                written.append(folder / name)
                write_atomically(written[-1], content)
        for sheet in drawn:
            written.append(folder / f"{sheet.name}.json")
            write_atomically(written[-1], _data(sheet).encode())
            written += draw(sheet, gallery)
        return tables, written


def _data(sheet: Sheet) -> str:
    """The numbers of a figure; images are left out."""
    content = asdict(sheet)
    for panel in content["panels"]:
        panel["thumbnails"] = [tile["caption"] for tile in panel["thumbnails"]]
    return json.dumps(content, indent=2) + "\n"


def draw(sheet: Sheet, folder: Path) -> list[Path]:
    """Render a sheet.

    Args:
        sheet: What to draw.
        folder: Where NAME.png and NAME.svg go.

    Returns:
        The files written.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"figures need matplotlib; install it with {install('cli')}") from error
    with mpl.rc_context(_STYLE):
        width, height = _size(sheet)
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        for index, panel in enumerate(sheet.panels):
            if panel.thumbnails:
                _thumbnails(figure, panel)
            else:
                columns, rows = _grid(sheet)
                _panel(figure.add_subplot(rows, columns, index + 1), panel)
        png, svg = BytesIO(), BytesIO()
        figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None})
    paths = [folder / f"{sheet.name}.png", folder / f"{sheet.name}.svg"]
    write_atomically(paths[0], png.getbuffer())
    write_atomically(paths[1], svg.getbuffer())
    return paths


def _size(sheet: Sheet) -> tuple[float, float]:
    first = sheet.panels[0]
    if first.thumbnails:
        rows = -(-len(first.thumbnails) // first.columns)
        return 1.15 * first.columns, 1.75 * rows + 0.6
    beside = 3.6 if any(_wide(panel) for panel in sheet.panels) else 0.0
    columns, rows = _grid(sheet)
    return max(6.0, 5.2 * columns) + beside, 4.4 * rows


def _grid(sheet: Sheet) -> tuple[int, int]:
    """Columns and rows: up to three panels side by side, more in two columns."""
    columns = len(sheet.panels) if len(sheet.panels) <= 3 else 2
    return columns, -(-len(sheet.panels) // columns)


def _wide(panel: Panel) -> bool:
    """Whether the legend is too wide to be among the curves."""
    return any(len(curve.label) > 20 for curve in panel.curves)


def _panel(axes: Any, panel: Panel) -> None:
    for curve in panel.curves:
        colour = PALETTE[curve.colour % len(PALETTE)]
        if curve.style == "reference":
            axes.plot(
                curve.x, curve.y, color="#555555", linewidth=1.4, dashes=(4, 3), label=curve.label
            )
        elif curve.style == "points":
            axes.scatter(curve.x, curve.y, color=colour, s=36, alpha=0.7, edgecolors="none")
        else:
            axes.plot(curve.x, curve.y, **_line(curve.colour, len(curve.x)), label=curve.label)
            if curve.low:
                axes.fill_between(
                    curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0
                )
    _boxes(axes, panel)
    if panel.log or panel.log_x:
        axes.set_xscale("log")
    if panel.log:
        axes.set_yscale("log")
    if panel.y_range is not None:
        low, high = panel.y_range
        axes.set_ylim(low - 0.02 * (high - low), high + 0.02 * (high - low))
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(framealpha=0.85, **_place(panel))


def _place(panel: Panel) -> dict[str, Any]:
    """Where the legend is: beside wide labels, below many curves, which leave no room among them."""
    if _wide(panel):
        return {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)}
    return _below(len(panel.curves)) if len(panel.curves) > 3 else {}


def _below(entries: int) -> dict[str, Any]:
    """A legend of one line below the panel."""
    row = {"ncols": entries, "columnspacing": 1.0, "handlelength": 1.8, "frameon": False}
    return {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), **row}


def _line(number: int, points: int) -> dict[str, Any]:
    """Colour by number, and what tells lines apart without it: markers on few points, dashes on many."""
    style: dict[str, Any] = {"color": PALETTE[number % len(PALETTE)]}
    if points <= 20:
        return style | {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 7}
    return style | {"linestyle": _DASHES[number % len(_DASHES)]}


def _boxes(axes: Any, panel: Panel) -> None:
    if not panel.boxes:
        return
    from matplotlib.patches import Patch

    xs = sorted({box.x for box in panel.boxes})
    gaps = [b - a for a, b in pairwise(xs)]
    width = 0.8 * min(gaps, default=1.0)
    for box in panel.boxes:
        low, first, middle, third, high = box.marks
        stats = [{"whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high}]
        axes.bxp(
            stats,
            positions=[box.x],
            widths=width,
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": PALETTE[box.colour % len(PALETTE)], "alpha": 0.75},
            medianprops={"color": "black", "linewidth": 2},
        )
    names = dict.fromkeys((box.label, box.colour) for box in panel.boxes)
    handles = [Patch(facecolor=PALETTE[c % len(PALETTE)], alpha=0.75, label=n) for n, c in names]
    axes.legend(handles=handles, **_below(len(handles)))


def _thumbnails(figure: Any, panel: Panel) -> None:
    rows = -(-len(panel.thumbnails) // panel.columns)
    figure.suptitle(panel.title)
    for index, tile in enumerate(panel.thumbnails):
        axes = figure.add_subplot(rows, panel.columns, index + 1)
        axes.imshow(tile.image, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        axes.set_xlabel(tile.caption, fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
