"""What a run looks like on a terminal: a bar while it works, a table when it is done."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from saddlepoint.evaluation import EvaluationProgress
    from saddlepoint.runs import Run, RunProgress

__all__ = [
    "attacking",
    "comparison",
    "evaluating",
    "evaluation",
    "evaluations",
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
    """A bar for the attack that is running, with images left and images that still stand.

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
            figures = f"{state.standing}/{state.images} standing"
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
    """The outcome as a table and in words, on stdout."""
    from saddlepoint.report import words

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    metrics, base = run.metrics, run.metrics.get("baseline")
    names = [words.rule_text(str(run.settings["rule"])).partition(" (")[0]]
    if base:
        names.append(words.rule_text(str(run.settings["baseline"])).partition(" (")[0])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (words.NOUNS[run.kind].domain, "clean", *reversed(names), "mean weight"):
        table.add_column(heading, justify="left" if not table.columns else "right")
    for name in run.domains:
        cells = [f"{metrics['clean_accuracy'][name]:.1f}"]
        cells += [f"{base['accuracy'][name]:.1f}"] if base else []
        cells += [f"{metrics['accuracy'][name]:.1f}", f"{metrics['weights'][name]:.2f}"]
        table.add_row(escape(name), *cells)
    table.add_section()
    for label, key in (
        ("ASR among correct", "asr_all_among_correct"),
        ("ASR_all", "asr_all"),
        ("ASR_mean", "asr_mean"),
    ):
        shown = [f"{part[key]:.1f}" if key in part else "-" for part in (base, metrics) if part]
        table.add_row(label, "", *shown, "")
    spent = [f"{part['evaluations']['per_row']:.1f}" for part in (base, metrics) if part]
    table.add_row("evaluations", "", *spent, "")
    console.print("Accuracy under attack and success rates (ASR), percent:", table, sep="\n")
    for line in words.headline(run):
        console.print(escape(line))


def evaluation(run: "Run") -> None:
    """What stands, as a table and in words, on stdout."""
    from saddlepoint.report import words
    from saddlepoint.report.evaluation_page import accuracy_text, attack_table, evaluation_headline

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    metrics = run.metrics
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    several = "domains" in metrics
    for heading in ("domain" if several else "attack", *([""] if several else [])):
        table.add_column(
            heading if heading else "clean", justify="right" if not heading else "left"
        )
    for name, radius in metrics["radii"].items():
        table.add_column(words.ball_text({"norm": name, "eps": radius}), justify="right")
    table.add_column("union", justify="right")

    def shares(part: "Mapping[str, Any]") -> list[str]:
        robust = (accuracy_text(part, "robust", threat) for threat in part["robust"])
        return [*robust, accuracy_text(part, "union")]

    if several:
        for name, part in metrics["domains"].items():
            table.add_row(escape(name), f"{part['clean']:.1f}", *shares(part))
        table.add_section()
        table.add_row("every one right", f"{metrics['clean']:.1f}", *shares(metrics))
        joint = [accuracy_text(metrics, "joint", threat) for threat in metrics["joint"]]
        table.add_row("not all fooled at once", "", *joint, "")
        medians = {name: marks["median"] for name, marks in metrics["eps_min"].items()}
        radii = [
            ("at most " if f"eps_min.{name}" in metrics["at_most"] else "")
            + ("inf" if median is None else f"{median:.3g}")
            for name, median in medians.items()
        ]
        table.add_row("median smallest radius", "", *radii, "")
        console.print("Accuracy, percent:", table, sep="\n")
    else:
        found = attack_table(metrics)
        for attack in found["attacks"]:
            cells = [_cell(cell) for cell in found["cells"][attack].values()]
            table.add_row(escape(attack), *cells, "")
        table.add_section()
        table.add_row("accuracy", *shares(metrics))
        intervals = (*metrics["intervals"]["robust"].values(), metrics["intervals"]["union"])
        table.add_row("95 %", *(f"{low:.1f} to {high:.1f}" for low, high in intervals))
        console.print("Images broken of those attacked, and accuracy in percent:", table, sep="\n")
    for line in evaluation_headline(run):
        console.print(escape(line))


def _cell(outcome: "Mapping[str, Any] | None") -> str:
    if outcome is None:
        return "-"
    if outcome["status"] == "not needed":
        return "not needed"
    flag = "" if outcome["status"] == "complete" else f" {outcome['status']}"
    return f"{outcome['broken']} of {outcome['attacked']}{flag}"


def evaluations(names: "list[str]", runs: "list[Run]") -> None:
    """One line per evaluation, on stdout."""
    from saddlepoint.report.evaluation_page import accuracy_text

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    threats = list(dict.fromkeys(name for run in runs for name in run.metrics["radii"]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("run", "models", "suite"):
        table.add_column(heading)
    for heading in ("images", "clean", *threats, "union", "95 %"):
        table.add_column(heading, justify="right")
    for name, run in zip(names, runs, strict=True):
        metrics = run.metrics
        low, high = metrics["intervals"]["union"]
        cells = [
            accuracy_text(metrics, "robust", threat) if threat in metrics["robust"] else "-"
            for threat in threats
        ]
        table.add_row(
            escape(name),
            escape(", ".join(run.hashes.models)),
            str(run.settings["suite"]),
            str(metrics["rows"]),
            f"{metrics['clean']:.1f}",
            *cells,
            accuracy_text(metrics, "union"),
            f"{low:.1f} to {high:.1f}",
        )
    console.print(table)


def comparison(names: "list[str]", runs: "list[Run]") -> None:
    """One line per run, on stdout."""
    from saddlepoint.report import words

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("run", "attack", "radius", "rule"):
        table.add_column(heading)
    for heading in ("rows", "correct", "ASR among correct", "95 %", "ASR_all", "evaluations"):
        table.add_column(heading, justify="right")
    for name, run in zip(names, runs, strict=True):
        metrics = run.metrics
        rate = words.rate(metrics)
        shown = (
            ("-", "-") if rate is None else (f"{rate[0]:.1f}", f"{rate[1]:.1f} to {rate[2]:.1f}")
        )
        table.add_row(
            escape(name),
            run.kind,
            words.ball_text(run.settings),
            words.rule_text(str(run.settings["rule"])),
            str(metrics["rows"]),
            str(metrics["rows_correct"]),
            *shown,
            f"{metrics['asr_all']:.1f}",
            words.evaluations(run),
        )
    console.print(table)
