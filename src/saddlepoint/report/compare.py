"""Several runs side by side: rates with intervals, and row by row where the rows are the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from saddlepoint.files import write_atomically
from saddlepoint.report import charts, words
from saddlepoint.report.evaluation_page import accuracy_text, bar_name
from saddlepoint.report.template import render_template
from saddlepoint.runs.execute import read_results
from saddlepoint.runs.record import EVALUATE, Run

__all__ = ["differences", "write_comparison"]


def write_comparison(folders: Sequence[Path], path: Path) -> Path:
    """Write one page that compares finished runs.

    Args:
        folders: Two or more run directories.
        path: The HTML file to write.

    Raises:
        ValueError: Fewer than two, one is not a finished run, or attacks and evaluations are mixed.
    """
    if len(folders) < 2:
        raise ValueError(f"`folders` must name at least two runs, got {len(folders)}.")
    runs = [Run.read(folder) for folder in folders]
    for folder, run in zip(folders, runs, strict=True):
        if not run.metrics or (run.kind == EVALUATE and run.status != "complete"):
            raise ValueError(
                f"`{folder}` must be a run with results, got one that is {run.status}."
            )
    labels = _labels(folders)
    if all(run.kind == EVALUATE for run in runs):
        html = _evaluations(labels, runs)
        write_atomically(path, html.encode())
        return path
    if any(run.kind == EVALUATE for run in runs):
        shown = ", ".join(f"{name} ({run.kind})" for name, run in zip(labels, runs, strict=True))
        raise ValueError(
            f"`folders` must be all attacks or all evaluations, which count different things, got {shown}."
        )
    bars = [
        (label, *rate)
        for label, run in zip(labels, runs, strict=True)
        if (rate := words.rate(run.metrics)) is not None
    ]
    html = render_template(
        "compare.html",
        title=f"{len(runs)} runs compared",
        entries=[_entry(label, run) for label, run in zip(labels, runs, strict=True)],
        domains=_domains(runs),
        bars=charts.interval_bars(bars) if bars else None,
        pairs=_pairs(folders, labels, runs),
        differences=differences(runs),
        best=max(bars, key=lambda bar: bar[1], default=None),
    )
    write_atomically(path, html.encode())
    return path


def differences(runs: Sequence[Run]) -> list[str]:
    """What, besides the rule, is not the same in all runs, in words.

    Example:
        >>> differences([])
        []
    """
    notes = []
    if len({run.hashes.data for run in runs}) > 1:
        notes.append("The runs are on different images: their rates are not about the same rows.")
    if len({tuple(sorted(run.hashes.models.items())) for run in runs}) > 1:
        notes.append("The runs attack different models.")
    for key, name in (
        ("norm", "norm"),
        ("eps", "radius"),
        ("steps", "number of steps"),
        ("loss", "loss"),
    ):
        values = list(dict.fromkeys(str(run.settings.get(key)) for run in runs))
        if len(values) > 1:
            notes.append(f"The {name} differs: {', '.join(values)}.")
    return notes


def _evaluations(labels: Sequence[str], runs: Sequence[Run]) -> str:
    """The page that compares evaluations."""
    notes = []
    if len({run.hashes.data for run in runs}) > 1:
        notes.append("The evaluations are on different images: read the intervals, not the order.")
    if len({tuple(run.metrics["radii"].items()) for run in runs}) > 1:
        notes.append("The threats or their radii differ: fewer or smaller ones are easier.")
    for key in ("suite", "budget"):
        values = list(dict.fromkeys(str(run.settings.get(key)) for run in runs))
        if len(values) > 1:
            notes.append(f"The {key} differs: {', '.join(values)}.")
    pairs = list(zip(labels, runs, strict=True))
    unions = [
        (
            bar_name(run.metrics, label, "union"),
            run.metrics["union"],
            *run.metrics["intervals"]["union"],
        )
        for label, run in pairs
    ]
    return render_template(
        "evaluations.html",
        title=f"{len(runs)} evaluations compared",
        entries=[
            {
                "label": label,
                "models": ", ".join(run.hashes.models),
                "data": run.settings.get("data", ""),
                "suite": run.settings.get("suite", ""),
                "metrics": run.metrics,
                "command": run.command,
            }
            for label, run in pairs
        ],
        threats=list(dict.fromkeys(name for run in runs for name in run.metrics["radii"])),
        notes=notes,
        # What is but an upper bound comes last: attacks failed, so that nobody knows how high it is.
        best=max(pairs, key=lambda p: (not p[1].metrics["failures"], float(p[1].metrics["union"]))),
        bars=charts.interval_bars(unions),
        share=accuracy_text,
    )


def _labels(folders: Sequence[Path]) -> list[str]:
    names = [folder.resolve().name for folder in folders]
    return [str(f) if names.count(n) > 1 else n for f, n in zip(folders, names, strict=True)]


def _entry(label: str, run: Run) -> dict[str, Any]:
    return {
        "label": label,
        "kind": words.NOUNS[run.kind].title,
        "data": run.settings.get("data", ""),
        "ball": words.ball_text(run.settings),
        "rule": words.rule_text(str(run.settings.get("rule", ""))),
        "method": run.settings.get("method", ""),
        "rows": run.metrics["rows"],
        "rows_correct": run.metrics["rows_correct"],
        "rate": words.rate(run.metrics),
        "metrics": run.metrics,
        "evaluations": words.evaluations(run),
        "seconds": run.seconds,
        "command": run.command,
    }


def _domains(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.domains))


def _pairs(
    folders: Sequence[Path], labels: Sequence[str], runs: Sequence[Run]
) -> list[dict[str, Any]]:
    """For runs on the same rows: how many only one of the two fools completely, of those right in both."""
    tables = [
        read_results(folder)[1] if run.status == "complete" else None
        for folder, run in zip(folders, runs, strict=True)
    ]
    pairs = []
    for i, j in combinations(range(len(runs)), 2):
        first, second = tables[i], tables[j]
        if first is None or second is None or runs[i].hashes.data != runs[j].hashes.data:
            continue
        if len(first["fooled"]) != len(second["fooled"]):
            continue
        right = ~(first["clean_fooled"].any(dim=1) | second["clean_fooled"].any(dim=1))
        one, other = (table["fooled"][right].all(dim=1) for table in (first, second))
        pairs.append(
            {
                "one": labels[i],
                "other": labels[j],
                "both": int((one & other).sum()),
                "only_one": int((one & ~other).sum()),
                "only_other": int((~one & other).sum()),
                "neither": int((~one & ~other).sum()),
            }
        )
    return pairs
