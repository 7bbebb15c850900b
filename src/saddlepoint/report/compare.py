"""Several runs side by side: ranked where they are comparable, on their own where they are not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from markupsafe import Markup

from saddlepoint.report import charts, sentences
from saddlepoint.report.epoch_chart import epoch_chart
from saddlepoint.report.evaluation_page import accuracy_text
from saddlepoint.report.svg import coloured
from saddlepoint.report.template import render_template
from saddlepoint.runs import (
    AttackMetrics,
    Board,
    Entry,
    EvaluationMetrics,
    Ranking,
    TrainingMetrics,
    settings_of,
)
from saddlepoint.runs.comparable import differing
from saddlepoint.runs.drawn import write_drawn
from saddlepoint.runs.ranking import quoted
from saddlepoint.runs.record import EVALUATE
from saddlepoint.runs.settings import AttackSettings, EvaluateSettings, TrainSettings

__all__ = [
    "about_alone",
    "in_order",
    "named_score",
    "outcome",
    "ranking_about",
    "ranking_table",
    "write_comparison",
]


def write_comparison(board: Board, path: Path) -> Path:
    """Write one page with all rankings, the runs that are on their own, and those left out.

    Args:
        board: From `rank_runs`.
        path: The HTML file to write.

    Raises:
        ValueError: There is something at the path that is no page of ours.

    Example:
        >>> import tempfile
        >>> from saddlepoint.runs import Board
        >>> nothing = Board(rankings=(), alone=(), left_out=())  # as `rank_runs` makes it of run folders
        >>> write_comparison(nothing, Path(tempfile.mkdtemp()) / "comparison.html").name
        'comparison.html'
    """
    count = len(board.entries)
    html = render_template(
        "compare.html",
        title=f"{count} run{'' if count == 1 else 's'} compared",
        heading=_heading(board),
        rankings=[_ranking(ranking) for ranking in in_order(board)],
        alone=[
            {
                "entry": each.entry,
                "score": named_score(each.entry),
                "about": about_alone(each.entry),
            }
            | {"reason": each.reason, "notes": _notes(each.entry)}
            for each in board.alone
        ],
        left_out=board.left_out,
        commands=[{"label": e.name, "command": e.run.command} for e in board.entries],
        links={e.folder: _link(e.folder, path) for e in board.entries},
    )
    write_drawn(path.parent, {path.name: html.encode()})
    return path


def about(entry: Entry) -> str:
    """What a run is about, besides its results: kind, data, models, threats, how many rows."""
    run, metrics = entry.run, entry.metrics
    parts: list[str] = []
    if isinstance(metrics, AttackMetrics):
        nouns, attack = sentences.NOUNS[run.kind], settings_of(run, AttackSettings)
        parts = [nouns.title, attack.data, sentences.ball_text(attack.norm, attack.eps)]
        parts.append(f"{metrics.rows} {nouns.rows}")
        if attack.labels == "predicted":
            parts.append("the models' own answers attacked")
    elif isinstance(metrics, EvaluationMetrics):
        balls = [sentences.ball_text(norm, eps) for norm, eps in metrics.radii.items()]
        evaluated = settings_of(run, EvaluateSettings)
        parts = ["Evaluation", evaluated.data, ", ".join(balls), f"{metrics.rows} images"]
        parts.append(f"suite {evaluated.suite}")
    elif isinstance(metrics, TrainingMetrics):
        trained = settings_of(run, TrainSettings)
        threats = ", ".join(trained.threat) or "without threats"
        rows = metrics.rows_attacked or metrics.rows
        parts = ["Training", trained.data, threats, f"{rows} test images"]
    return " · ".join(parts)


def about_alone(entry: Entry) -> str:
    """The same for a run in no ranking, with its transfer, which nothing else would say."""
    seen = entry.transfer
    if seen is None:
        return about(entry)
    victims = ", ".join(entry.run.hashes.victims)
    return f"{about(entry)} · transfer to {victims}: {score_text(seen)}"


def ranking_about(ranking: Ranking) -> str:
    """What is the same in all runs of a ranking."""
    first, parts = ranking.entries[0], [about(ranking.entries[0])]
    if ranking.question.transfer:  # asked through views or not: victims see the image as it is
        parts = [f"victims {', '.join(first.run.hashes.victims)}", *parts[0].split(" · ")[1:]]
    if ranking.question.models is True:
        parts.append(f"models {', '.join(first.run.hashes.models)}")
    elif ranking.question.models is False:
        settings = settings_of(first.run, AttackSettings)
        parts.append(f"{sentences.method_text(settings)}, {sentences.effort_text(settings)}")
    return " · ".join(parts)


def in_order(board: Board) -> list[Ranking]:
    """The rankings, those of models before those of trainings, and attacks last."""
    order = (EVALUATE, "train")
    return sorted(
        board.rankings,
        key=lambda each: (*order, each.entries[0].run.kind).index(each.entries[0].run.kind),
    )


def outcome(ranking: Ranking) -> str:
    """Who comes first, by how much and at what cost, or that nobody does."""
    names = [entry.name for entry in ranking.first]
    if len(names) == 1:
        first, ahead = ranking.entries[0], _ahead(ranking, *ranking.entries[:2])
        return f"Run {quoted(first.name)} comes first: {score_text(first)}{ahead}."
    listed = f"{', '.join(map(quoted, names[:-1]))} and {quoted(names[-1])}"
    tied = [pair for pair in ranking.pairs if {pair.first.name, pair.second.name} <= set(names)]
    rows = [pair.rows for pair in tied if pair.rows is not None and not any(pair.rows[1:3])]
    if tied and len(rows) == len(tied):
        counted = [entry.counted.tolist() for entry in ranking.first if entry.counted is not None]
        if all(table == counted[0] for table in counted):
            return f"Same result: {listed} agree on every row, {score_text(ranking.first[0])}."
        if len(rows) == 1:
            return f"Not separable: {listed} agree on the {sum(rows[0])} rows that count for both."
    return f"Not separable: {listed} may each be first."


def _ahead(ranking: Ranking, first: Entry, second: Entry) -> str:
    """By how many points the first is better, and what it has without attack compared with the next."""
    if first.score is None or second.score is None:
        return ""
    points = abs(first.score[0] - second.score[0])
    which = "more" if ranking.question.higher else "less"
    told = f", {points:.1f} points {which} than {quoted(second.name)}"
    clean, other = (_clean(each) for each in (first, second))
    if clean is None or other is None:
        return told
    cost = clean - other
    than = f"{abs(cost):.1f} points {'more' if cost > 0 else 'less'}" if cost else "the same"
    return f"{told}; without attack it has {clean:.1f} % right, {than}"


def _clean(entry: Entry) -> float | None:
    """Accuracy without attack, where a ranking is about accuracy under attack."""
    if isinstance(entry.metrics, EvaluationMetrics):
        return entry.metrics.clean
    robust = entry.metrics.robust_accuracy if isinstance(entry.metrics, TrainingMetrics) else {}
    return robust.get("clean")


def score_text(entry: Entry) -> str:
    """The number a run is ranked by, with its interval."""
    if entry.score is None:
        return "no rate"
    value, low, high = entry.score
    return f"{'at most ' if entry.bound else ''}{value:.1f} % ({low:.1f} to {high:.1f})"


def named_score(entry: Entry) -> str:
    """The same with what it is, for a run that stands in no table."""
    names = {"union": "accuracy under every attack", "success": "success rate"}
    name = names.get(found := score_name(entry), found)
    return f"no {name}" if entry.score is None else f"{name} {score_text(entry)}"


def score_name(entry: Entry, *, transfer: bool = False) -> str:
    """What the number is that a run is ranked by, in a word or two."""
    if transfer:
        return "transfer"
    if isinstance(entry.metrics, AttackMetrics):
        return "success" if entry.metrics.held_out is None else "success, lowest view"
    if isinstance(entry.metrics, TrainingMetrics) and not entry.metrics.robust_accuracy:
        return "accuracy"
    return "union"


def ranking_table(ranking: Ranking) -> tuple[list[str], list[list[str]]]:
    """Headings and one line per run: rank, run, what is its own, score, interval, and other numbers."""
    transfer = ranking.question.transfer
    others = [_on_victims(e) if transfer else _numbers(e) for e in ranking.entries]
    names = list(dict.fromkeys(name for each in others for name in each))
    score = score_name(ranking.entries[0], transfer=transfer)
    own_settings = differing(ranking.entries)
    lines = []
    for place, numbers in zip(ranking.places, others, strict=True):
        entry = place.entry
        value, low, high = entry.score or (0.0, 0.0, 0.0)
        cells = [place.rank, entry.name, _own(ranking, entry, own_settings)]
        cells += [f"{'at most ' if entry.bound else ''}{value:.1f}", f"{low:.1f} to {high:.1f}"]
        lines.append([*cells, *(numbers.get(name, "-") for name in names)])
    return ["rank", "run", "", f"{score}, %", "95 %", *names], lines


def _on_victims(entry: Entry) -> dict[str, str]:
    """What is shown beside the transfer rate: each victim alone, and the models that were asked."""
    metrics = entry.metrics
    assert isinstance(metrics, AttackMetrics)
    assert metrics.transfer is not None  # else it is in no such ranking
    shares = {
        f"victim {name}": _share(each.asr_among_correct)
        for name, each in metrics.transfer.victims.items()
    }
    own = {"asked models": _share(metrics.asr_all_among_correct)}
    return shares | own | {"evaluations": f"{metrics.evaluations.per_row:.1f}"}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _numbers(entry: Entry) -> dict[str, str]:
    """What is shown beside the score."""
    metrics = entry.metrics
    if isinstance(metrics, AttackMetrics):
        return {
            "ASR_all": f"{metrics.asr_all:.1f}",
            "ASR_mean": f"{metrics.asr_mean:.1f}",
            "evaluations": f"{metrics.evaluations.per_row:.1f}",
            "seconds": f"{entry.run.seconds:.1f}",
        }
    if isinstance(metrics, EvaluationMetrics):
        robust = {name: accuracy_text(metrics, "robust", name) for name in metrics.robust}
        return {"clean": f"{metrics.clean:.1f}", **robust}
    assert isinstance(metrics, TrainingMetrics)
    tested = {n: f"{v:.1f}" for n, v in metrics.robust_accuracy.items() if n != "union"}
    return {
        **({"clean": f"{metrics.accuracy:.1f}"} | tested),
        "seconds": f"{entry.run.seconds:.1f}",
    }


def _own(ranking: Ranking, entry: Entry, names: Sequence[str]) -> str:
    """What the runs of a ranking differ in."""
    run, base = entry.run, ", ".join(entry.run.hashes.models)
    if ranking.question.models:
        base = sentences.method_text(settings_of(run, AttackSettings))
    elif ranking.question.transfer:
        base = f"{base}, {sentences.method_text(settings_of(run, AttackSettings))}"
    elif run.kind == "train":
        trained = settings_of(run, TrainSettings)
        base = f"{trained.method}, network {trained.model}"
    said = ("rule", "method", "model") if run.kind == "train" else ("rule",)
    more = [f"{name} {entry.setting(name)}" for name in names if name not in said]
    return " · ".join([base, *(text for text in more if len(text) < 60)])


def _heading(board: Board) -> str:
    if not board.rankings:
        return "No two runs are comparable, so none is better than another"
    first = in_order(board)[0]
    return (
        outcome(first) if len(board.rankings) == 1 else f"{first.question.title} {outcome(first)}"
    )


def _ranking(ranking: Ranking) -> dict[str, Any]:
    headings, lines = ranking_table(ranking)
    # A run has the colour of its place in the table.
    bars = [
        ((f"{e.name} (at most)" if e.bound else e.name, *e.score), coloured(k, ""))
        for k, e in enumerate(ranking.entries)
        if e.score is not None
    ]
    return {
        "question": ranking.question,
        "about": ranking_about(ranking),
        "outcome": outcome(ranking),
        "headings": headings,
        "lines": lines,
        "entries": ranking.entries,
        "bars": charts.interval_bars([bar for bar, _ in bars], [style for _, style in bars]),
        "curves": _curves(ranking.entries),
        "pairs": ranking.pairs,
        "paired": any(pair.rows for pair in ranking.pairs),
        "accuracy": _accuracy(ranking),
        "notes": [(e.name, note) for e in ranking.entries for note in _notes(e)],
    }


def _notes(entry: Entry) -> tuple[str, ...]:
    """What a reader has to know of a run before believing its numbers."""
    noted = entry.metrics.notes if isinstance(entry.metrics, EvaluationMetrics) else ()
    return (*entry.run.warnings, *noted)


def _accuracy(ranking: Ranking) -> list[tuple[str, str]]:
    """Domain by domain, for attacks whose domains have names of their own; of victims, victim by victim."""
    shown: list[tuple[str, str]] = []
    for entry in ranking.entries:
        metrics, found = entry.metrics, {}
        if isinstance(metrics, AttackMetrics) and entry.run.kind != "universal":
            found = dict(metrics.accuracy)
        if ranking.question.transfer and isinstance(metrics, AttackMetrics) and metrics.transfer:
            found = {name: each.accuracy for name, each in metrics.transfer.victims.items()}
        if found:
            told = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
            shown.append((entry.name, told))
    return shown


def _curves(entries: Sequence[Entry]) -> Markup | None:
    """Held-out accuracy over the epochs of trainings, under every threat where there are some."""
    found = [
        (torch.tensor([each.validation["union"] for each in e.metrics.history]), e.name, k)
        for k, e in enumerate(entries)
        if isinstance(e.metrics, TrainingMetrics)
        and all("union" in each.validation for each in e.metrics.history)
    ]
    if not found:
        return None
    series, names, places = zip(*found, strict=True)
    styles = [coloured(k, "") for k in places]
    return epoch_chart(series, names, "Accuracy on held-out images", styles=styles)


def _link(folder: Path, page: Path) -> str:
    """From the page to the report of a run; empty if there is none."""
    report = folder / "report.html"
    if not report.is_file():
        return ""
    return quote(Path(os.path.relpath(report.resolve(), page.resolve().parent)).as_posix())
