"""What a run looks like on a terminal: a bar while it works, a table when it is done."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from saddlepoint.evaluation import EvaluationProgress
    from saddlepoint.runs import Accuracies, AttackOutcome, Board, Rates, Run, RunProgress

__all__ = [
    "attacking",
    "board",
    "evaluating",
    "evaluation",
    "limit_used",
    "metrics_json",
    "note",
    "summary",
    "warnings_as_notes",
]


@contextmanager
def attacking(title: str, noun: str, *, quiet: bool) -> "Iterator[Callable[[RunProgress], None]]":
    """A bar with rows done, rows that were right and are wrong everywhere so far, and the time left.

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
            share = f"{state.done}/{state.rows} {noun}, {state.fooled} fooled that were right"
            bar.update(task, completed=reached, figures=share)
            tenth = 10 * state.done // state.rows
            if not live and not quiet and state.done and tenth > said:
                said = tenth
                print(f"{title}: {share}", file=sys.stderr, flush=True)

        yield report


@contextmanager
def evaluating(title: str, *, quiet: bool) -> "Iterator[Callable[[EvaluationProgress], None]]":
    """A bar for the attack that is running, with images left and images that are not fooled yet.

    Elsewhere than on a terminal there is one plain line per attack.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    live = console.is_terminal and not quiet
    with Progress(*columns, console=console, disable=not live, transient=True) as bar:
        task, now = bar.add_task(escape(title), total=None, figures=""), -1

        def report(state: "EvaluationProgress") -> None:
            nonlocal now
            who = " ".join(part for part in (state.domain, state.threat, state.attack) if part)
            where = f"{who} ({state.index + 1}/{state.attacks})"
            figures = f"{state.not_fooled}/{state.images} not fooled yet"
            left = max(state.total - state.done, 0)
            again = " in all restarts" if state.total > state.images else ""
            if state.index != now:  # the time left is that of this attack
                now = state.index
                bar.reset(task)
            bar.update(
                task,
                description=escape(where),
                completed=state.done,
                total=state.total,
                figures=f"{left} images left{again}, {figures}",
            )
            if not live and not quiet and state.done >= state.total:
                print(f"{title}: {where}: {figures}", file=sys.stderr, flush=True)

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


def limit_used(limit: int | None, count: int, *, quiet: bool) -> int | None:
    """The limit, or where there are fewer images, how many there are, which is said."""
    if limit is None or limit <= count:
        return limit
    note(f"--limit {limit}: there are {count} images; using all of them", quiet=quiet)
    return count


@contextmanager
def warnings_as_notes(*, quiet: bool = False) -> Iterator[None]:
    """Prints what the library warns of on stderr: each once, in one line, without the place in its code."""
    said: set[str] = set()

    def say(message: Warning | str, *place: Any, **more: Any) -> None:
        del place, more
        text = " ".join(str(message).split())
        if text not in said:
            said.add(text)
            note(f"saddlepoint: warning: {text}", quiet=quiet)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = say
        yield


def summary(run: "Run") -> None:
    """The outcome of an attack as a table and in words, on stdout."""
    from saddlepoint.report import words
    from saddlepoint.runs import AttackMetrics

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    metrics = AttackMetrics.read(run.metrics)
    names = [words.rule_text(str(run.settings["rule"])).partition(" (")[0]]
    shown: list[Rates] = [metrics]
    if metrics.baseline is not None:
        names.insert(0, words.rule_text(str(run.settings["baseline"])).partition(" (")[0])
        shown.insert(0, metrics.baseline)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (words.NOUNS[run.kind].domain, "clean", *names, "mean weight"):
        table.add_column(heading, justify="left" if not table.columns else "right")
    for name in run.domains:
        cells = [metrics.clean_accuracy[name], *(part.accuracy[name] for part in shown)]
        weight = f"{metrics.weights[name]:.2f}"
        table.add_row(escape(name), *(f"{cell:.1f}" for cell in cells), weight)
    table.add_section()
    for label, numbers in (
        ("ASR among correct", [part.asr_all_among_correct for part in shown]),
        ("ASR_all", [part.asr_all for part in shown]),
        ("ASR_mean", [part.asr_mean for part in shown]),
        ("evaluations", [part.evaluations.per_row for part in shown]),
    ):
        texts = ("-" if number is None else f"{number:.1f}" for number in numbers)
        table.add_row(label, "", *texts, "")
    console.print("Accuracy under attack and success rates (ASR), percent:", table, sep="\n")
    for line in words.headline(run, metrics):
        console.print(escape(line))


def evaluation(run: "Run") -> None:
    """What is still right, as a table and in words, on stdout."""
    from saddlepoint.report import words
    from saddlepoint.report.evaluation_page import accuracy_text, attack_table, evaluation_headline
    from saddlepoint.runs import EvaluationMetrics

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    metrics = EvaluationMetrics.read(run.metrics)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    several = len(metrics.domains) > 1
    table.add_column("domain" if several else "attack")
    if several:
        table.add_column("clean", justify="right")
    for name, radius in metrics.radii.items():
        table.add_column(words.ball_text({"norm": name, "eps": radius}), justify="right")
    table.add_column("union", justify="right")

    def shares(part: "Accuracies") -> list[str]:
        robust = (accuracy_text(part, "robust", threat) for threat in part.robust)
        return [*robust, accuracy_text(part, "union")]

    if several:
        for name, part in metrics.domains.items():
            table.add_row(escape(name), f"{part.clean:.1f}", *shares(part))
        table.add_section()
        table.add_row("every one right", f"{metrics.clean:.1f}", *shares(metrics))
        joint = [accuracy_text(metrics, "joint", threat) for threat in metrics.joint]
        table.add_row("not all fooled at once", "", *joint, "")
        medians = {name: marks["median"] for name, marks in metrics.eps_min.items()}
        radii = [
            ("at most " if f"eps_min.{name}" in metrics.at_most else "")
            + ("inf" if median is None else f"{median:.3g}")
            for name, median in medians.items()
        ]
        table.add_row("median smallest radius", "", *radii, "")
        console.print("Accuracy, percent:", table, sep="\n")
    else:
        (only,) = metrics.domains.values()
        found = attack_table(only)
        for attack in found["attacks"]:
            cells = [_cell(cell) for cell in found["cells"][attack].values()]
            table.add_row(escape(attack), *cells, "")
        table.add_section()
        table.add_row("accuracy", *shares(metrics))
        intervals = (*metrics.intervals.robust.values(), metrics.intervals.union)
        table.add_row("95 %", *(f"{low:.1f} to {high:.1f}" for low, high in intervals))
        console.print("Images broken of those attacked, and accuracy in percent:", table, sep="\n")
    for line in evaluation_headline(run, metrics):
        console.print(escape(line))


def _cell(outcome: "AttackOutcome | None") -> str:
    if outcome is None:
        return "-"
    if outcome.status == "not needed":
        return "not needed"
    flag = "" if outcome.status == "complete" else f" {outcome.status}"
    return f"{outcome.broken} of {outcome.attacked}{flag}"


def board(found: "Board") -> None:
    """Rankings, runs on their own and runs left out, on stdout."""
    from saddlepoint.report.compare import (
        about,
        outcome,
        ranking_about,
        ranking_table,
        score_text,
    )

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for ranking in found.rankings:
        console.print(escape(f"{ranking.question.title} {ranking.question.key}"))
        console.print(escape(ranking_about(ranking)))
        headings, lines = ranking_table(ranking)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, heading in enumerate(headings):
            table.add_column(heading, justify="left" if index in (1, 2) else "right")
        for line in lines:
            table.add_row(*(escape(cell) for cell in line))
        console.print(table)
        console.print(escape(outcome(ranking)), end="\n\n")
    for each in found.alone:
        told = f"{each.entry.name}: {score_text(each.entry)}; {about(each.entry)}. {each.reason}"
        console.print(escape(told))
    for left in found.left_out:
        note(f"saddlepoint: note: left out: {left.reason}", quiet=False)
