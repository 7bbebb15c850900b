"""What a report says of victims, models that the attack never asked, and the tables of such an attack."""

from __future__ import annotations

from typing import Any

from saddlepoint.report import charts, sentences
from saddlepoint.report.tables import Cell, Column, Table
from saddlepoint.runs import AttackMetrics, Rates, Run, settings_of
from saddlepoint.runs.metric_parts import Interval, Transfer
from saddlepoint.runs.rule_words import rule_name
from saddlepoint.runs.settings import AttackSettings

__all__ = ["attack_table", "transfer_part"]


def transfer_part(run: Run, metrics: AttackMetrics) -> dict[str, Any] | None:
    """Sentences, bars and a table for the page; None where there are no victims."""
    found = metrics.transfer
    if found is None:
        return None
    theirs = metrics.baseline.transfer if metrics.baseline is not None else None
    table: list[dict[str, Any]] = [
        {
            "name": name,
            "clean": victim.clean_accuracy,
            "accuracy": victim.accuracy,
            "rows": victim.rows_correct,
            "success": _share(victim.asr_among_correct),
            "interval": _ends(victim.interval),
            "baseline": _share(theirs.victims[name].asr_among_correct) if theirs else "",
        }
        for name, victim in found.victims.items()
    ]
    if len(found.victims) > 1:
        table.append(
            {"name": "all at once", "clean": None, "accuracy": None, "rows": found.rows_correct}
            | {"success": _share(found.asr_all_among_correct), "interval": _ends(found.interval)}
            | {"baseline": _share(theirs.asr_all_among_correct) if theirs else ""}
        )
    bars = [
        (name, victim.asr_among_correct, *victim.interval)
        for name, victim in found.victims.items()
        if victim.asr_among_correct is not None and victim.interval is not None
    ]
    return {
        "lines": sentences.transfer_lines(run, metrics),
        "table": table,
        "bars": charts.interval_bars(bars) if bars else None,
    }


def attack_table(run: Run) -> Table:
    """An attack with victims as data: what was asked and what was not, apart, each rate with its interval."""
    metrics = AttackMetrics.of(run)
    assert metrics.transfer is not None  # only such runs have a table
    settings = settings_of(run, AttackSettings)
    ours = sentences.method_name(settings)
    parts: list[tuple[str, Rates, Transfer]] = [(ours, metrics, metrics.transfer)]
    if metrics.baseline is not None and metrics.baseline.transfer is not None:
        other = rule_name(settings.baseline)
        parts.append((other, metrics.baseline, metrics.baseline.transfer))
    lines: list[tuple[Cell, ...]] = []
    for rule, rates, found in parts:
        white = (rates.asr_all_among_correct, rates.intervals.asr_all_among_correct)
        lines.append(("white box", "all at once", rule, None, rates.rows_correct, *white))
        for name, victim in found.victims.items():
            rate = (victim.asr_among_correct, victim.interval)
            own = (victim.clean_accuracy, victim.rows_correct)
            lines.append(("transfer", name, rule, *own, *rate))
        if len(found.victims) > 1:
            every = (found.asr_all_among_correct, found.interval)
            lines.append(("transfer", "all at once", rule, None, found.rows_correct, *every))
    nouns = sentences.NOUNS[run.kind]
    return Table(
        f"{nouns.title} on {settings.data}, {sentences.ball_text(settings.norm, settings.eps)}",
        (
            *(Column("question"), Column("models"), Column("weights"), Column("clean, %", 1)),
            *(Column(f"{nouns.rows} that were right"), Column("success, %", 1), Column("95 %", 1)),
        ),
        tuple(lines),
        (
            f"Attacked: {', '.join(run.hashes.models)}. The attack never asked the others. Success is counted "
            f"among {nouns.rows} that were right before it.",
        ),
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _ends(pair: Interval | None) -> str:
    return "" if pair is None else f"{pair[0]:.1f}–{pair[1]:.1f}"  # noqa: RUF001
