"""A run as one self-contained HTML page: no network, no code but ours, every value escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import Tensor

from saddlepoint.report import charts, sentences, weight_charts
from saddlepoint.report.evaluation_page import render_evaluation
from saddlepoint.report.foremost import hard_domains
from saddlepoint.report.gallery import picture_row, scales
from saddlepoint.report.patch_page import patch_files, render_patch
from saddlepoint.report.tables import evaluation_table, table_files
from saddlepoint.report.template import render_template
from saddlepoint.report.training_page import render_training
from saddlepoint.report.transfer_part import attack_table, transfer_part
from saddlepoint.report.universal_page import spread_of
from saddlepoint.runs import EVALUATE, AttackMetrics, Run, metrics_of, read_results, settings_of
from saddlepoint.runs.attack_words import weighted
from saddlepoint.runs.drawn import write_drawn
from saddlepoint.runs.rule_words import rule_name
from saddlepoint.runs.settings import AttackSettings

__all__ = ["MAX_BYTES", "render", "write_report"]

MAX_BYTES = 2_000_000
"""Bytes of a report, at most; the gallery shows fewer rows where they would not fit.

Example:
    >>> MAX_BYTES
    2000000
"""

_OVERHEAD = 90_000  # style, script, charts and text


def write_report(folder: Path, *, max_bytes: int = MAX_BYTES) -> Path:
    """Draw `report.html` of a finished run of any kind from its `run.json` and `tensors.safetensors`.

    Of an evaluation, and of an attack with victims, `table.md`, `table.csv` and `table.tex` are written too, of
    a patch attack `patch.png` and `patch-true-size.png`.

    Args:
        folder: The run directory.
        max_bytes: Size the file must not exceed.

    Returns:
        The path of the report.

    Raises:
        ValueError: Not a run directory, an unfinished run, or a file in the way that is not ours.

    Example:
        >>> write_report(Path("no run"))
        Traceback (most recent call last):
            ...
        ValueError: `no run` must be a run folder, got no run.json in it.
    """
    run, tensors = read_results(folder)
    metrics_of(run)  # a measurement has no page
    html = (
        render_training(run, folder)
        if run.kind == "train"
        else render(run, tensors, max_bytes=max_bytes)
    )
    files = {"report.html": html.encode()}
    if run.kind == EVALUATE:
        files |= table_files(evaluation_table(run), "table")
    if run.kind == "patch":
        files |= patch_files(run, tensors)
    if run.hashes.victims:
        files |= table_files(attack_table(run), "table")
    write_drawn(folder, files)
    return folder / "report.html"


def render(run: Run, tensors: Mapping[str, Tensor], *, max_bytes: int = MAX_BYTES) -> str:
    """The page.

    Args:
        run: The record.
        tensors: What `tensors.safetensors` holds.
        max_bytes: The gallery stops growing before the page exceeds this.
    """
    if run.kind == EVALUATE:
        return render_evaluation(run, tensors, max_bytes=max_bytes)
    if run.kind == "patch":
        return render_patch(run, tensors)
    nouns, metrics = sentences.NOUNS[run.kind], AttackMetrics.of(run)
    settings = settings_of(run, AttackSettings)
    # Pictures of hard and easy images of groups have a share of their own.
    share = max_bytes // 4 if run.kind == "universal" else 0
    rows = _rows(run, tensors, max_bytes - share)
    hard = hard_domains(run, metrics)
    return render_template(
        "report.html",
        run=run,
        metrics=metrics,
        nouns=nouns,
        spent=sentences.spent_noun(run),
        lines=sentences.headline(run, metrics, hard),
        transfer=transfer_part(run, metrics),
        figure=sentences.figure(run, metrics),
        title=f"{nouns.title} on {settings.data}",
        ball=sentences.ball_text(settings.norm, settings.eps),
        rule=sentences.method_name(settings),
        weighted=weighted(settings.gradient),
        baseline=rule_name(settings.baseline),
        hardest=hard[0] if len(hard) == 1 < len(run.domains) else None,
        target=sentences.target_text(run),
        bars=_bars(run, metrics),
        table=_table(run, metrics),
        spread=spread_of(metrics, tensors, rows, share) if run.kind == "universal" else None,
        moved=weight_charts.weights_moved(tensors["history.weights"], run.domains),
        boxplot=weight_charts.boxplot(tensors["weights"], run.domains),
        rows=rows,
        total=len(tensors["weights"]),
        classes=sorted({name for row in rows for name in row["classes"]}),
        curves=[row["curves"] for row in rows],
        steps=scales(tensors).steps.tolist(),
        amplification=_amplification(1 / scales(tensors).strength),
    )


def _rows(run: Run, tensors: Mapping[str, Tensor], max_bytes: int) -> list[dict[str, Any]]:
    scale, size = scales(tensors), _OVERHEAD
    rows: list[dict[str, Any]] = []
    for position in range(len(tensors["gallery.rows"])):
        row = picture_row(run, tensors, position, scale)
        # Text around the pictures: a card and its large view take about 1 kB and 400 B per domain.
        size += len(repr(row)) + 1200 + 500 * len(row["domains"])
        if size > max_bytes and rows:
            break
        rows.append(row)
    return rows


def _bars(run: Run, metrics: AttackMetrics) -> Markup | None:
    settings = settings_of(run, AttackSettings)
    shown = [(sentences.method_name(settings), metrics.rate)]
    if metrics.baseline is not None:
        shown.append((rule_name(settings.baseline), metrics.baseline.rate))
    rows = [(name, *rate) for name, rate in shown if rate is not None]
    return charts.interval_bars(rows, ["", "other"][: len(rows)]) if rows else None


def _table(run: Run, metrics: AttackMetrics) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "name": name,
            "clean": metrics.clean_accuracy[name],
            "baseline": metrics.baseline and metrics.baseline.accuracy[name],
            "accuracy": metrics.accuracy[name],
            "reached": metrics.reached.get(name),
            "interval": metrics.intervals.accuracy[name],
            "weight": metrics.weights[name],
        }
        for index, name in enumerate(run.domains)
    ]


def _amplification(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.1f}".rstrip("0").rstrip(".")
