"""What a run looks like on a terminal: a bar while it works, a table when it is done."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from saddlepoint.report import Run, RunProgress

__all__ = ["attacking", "comparison", "metrics_json", "note", "summary"]


@contextmanager
def attacking(title: str, noun: str, *, quiet: bool) -> "Iterator[Callable[[RunProgress], None]]":
    """A bar with rows done, rows fooled by all domains so far, and the time left.

    On a terminal it moves with every step; elsewhere there is one plain line per tenth of the work.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    live = console.is_terminal and not quiet
    reached, said = 0.0, -1
    with Progress(*columns, console=console, disable=not live, transient=True) as bar:
        task = bar.add_task(escape(title), total=1.0, figures="")

        def report(state: "RunProgress") -> None:
            nonlocal reached, said
            reached = max(reached, state.fraction)
            share = f"{state.done}/{state.rows} {noun}, {state.fooled} fooled by all"
            bar.update(task, completed=reached, figures=share)
            tenth = 10 * state.done // state.rows
            if not live and not quiet and state.done and tenth > said:
                said = tenth
                print(f"{title}: {share}", file=sys.stderr, flush=True)

        yield report


def metrics_json(run: "Run") -> str:
    """The metrics for scripts."""
    return json.dumps(
        {"status": run.status, "rows": run.rows, "done": run.done, **run.metrics}, indent=2
    )


def note(text: str, *, quiet: bool) -> None:
    """A remark on stderr."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def summary(run: "Run") -> None:
    """The outcome as a table and in words, on stdout."""
    from saddlepoint.report import words

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    metrics, base = run.metrics, run.metrics.get("baseline")
    names = [words.rule_text(str(run.config["rule"])).partition(" (")[0]]
    if base:
        names.append(words.rule_text(str(run.config["baseline"])).partition(" (")[0])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (words.NOUNS[run.kind].domain, "clean", *reversed(names), "mean weight"):
        table.add_column(heading, justify="left" if not table.columns else "right")
    for name in run.domains:
        cells = [f"{metrics['clean_accuracy'][name]:.1f}"]
        cells += [f"{base['accuracy'][name]:.1f}"] if base else []
        cells += [f"{metrics['accuracy'][name]:.1f}", f"{metrics['weights'][name]:.2f}"]
        table.add_row(escape(name), *cells)
    table.add_section()
    for label, key in (("ASR_all", "asr_all"), ("ASR_mean", "asr_mean")):
        cells = [f"{base[key]:.1f}"] if base else []
        table.add_row(label, "", *cells, f"{metrics[key]:.1f}", "")
    spent = run.gradient_evaluations
    cells = [f"{spent['baseline']['per_row']:.1f}"] if base else []
    table.add_row("evaluations", "", *cells, f"{spent['per_row']:.1f}", "")
    console.print("Accuracy under attack and success rates (ASR), percent:", table, sep="\n")
    for line in words.headline(run):
        console.print(escape(line))


def comparison(names: "list[str]", runs: "list[Run]") -> None:
    """One line per run, on stdout."""
    from saddlepoint.report import words

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("run", "attack", "radius", "rule"):
        table.add_column(heading)
    for heading in ("rows", "ASR_all", "95 %", "ASR_mean", "evaluations"):
        table.add_column(heading, justify="right")
    for name, run in zip(names, runs, strict=True):
        metrics = run.metrics
        low, high = metrics["intervals"]["asr_all"]
        table.add_row(
            escape(name),
            run.kind,
            words.ball_text(run.config),
            words.rule_text(str(run.config["rule"])),
            str(metrics["rows"]),
            f"{metrics['asr_all']:.1f}",
            f"{low:.1f} to {high:.1f}",
            f"{metrics['asr_mean']:.1f}",
            words.evaluations(run),
        )
    console.print(table)
