"""What came out of a run, on a terminal: tables, sentences, and remarks on the way."""

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from saddlepoint.runs.plain import printable
from saddlepoint.runs.rule_words import rule_name

from .narrow import console_of, fitted

if TYPE_CHECKING:
    from saddlepoint.evaluation import SavedImages
    from saddlepoint.report.tables import Table as Results
    from saddlepoint.runs import Accuracies, AttackMetrics, AttackOutcome, Board, Rates, Run

__all__ = [
    "board",
    "evaluation",
    "metrics_json",
    "note",
    "outcome",
    "results_table",
    "saved",
    "say",
    "size_used",
    "summary",
    "warnings_as_notes",
]


def say(text: str, *, error: bool = False) -> None:
    """Print lines that may quote what others wrote, of which a terminal is to make no commands."""
    lines = (printable(line) for line in text.split("\n"))
    print(*lines, sep="\n", file=sys.stderr if error else sys.stdout, flush=error)


def metrics_json(run: "Run") -> str:
    """The metrics for scripts."""
    from saddlepoint.runs import metrics_of

    plain = {"status": run.status, "rows": run.rows, "done": run.done, **metrics_of(run).plain()}
    return json.dumps(plain, indent=2)


def note(text: str, *, quiet: bool) -> None:
    """A remark on stderr."""
    if not quiet:
        say(text, error=True)


def saved(what: str, images: "SavedImages", *, quiet: bool, remedy: str = "") -> None:
    """Where images were saved, how many of them still do what they did before, and what to do about others."""
    rows, count = len(images.files), sum(map(len, images.files))
    tables = (images.fooled, images.before, images.fooled & images.unperturbed)
    now, before, free = (int(table.all(dim=1).sum()) for table in tables)
    lost = int((images.before & ~images.fooled).any(dim=1).sum())
    told = (
        f"saved {what}{count} images in {images.folder}: read back, {now} of {rows} fool everything"
    )
    told += f", before {before}" if now != before else ""
    told += f"; {free} of them would without any perturbation" if free else ""
    note(told, quiet=quiet)
    if lost:
        out = int((images.outside & images.before.any(dim=1)).sum())
        some = "all" if out == lost else str(out)
        moved = f", {some} of them because rounding has moved them out of the ball" if out else ""
        told = f"8 bits undo {lost} of them{moved}{f'; {remedy}' if remedy else ''}"
        note(f"saddlepoint: warning: {told}", quiet=quiet)


def size_used(asked: int | None, size: int | None, crop: float, *, quiet: bool) -> None:
    """Say what images were brought to where that was left open."""
    if asked is None and size is not None:
        kept = "" if crop == 1 else f" --crop {crop:.6g}"
        note(f"images are resized for the models: --size {size}{kept}", quiet=quiet)


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


def outcome(run: "Run") -> None:
    """What came out of a run of any kind, on stdout."""
    if run.kind == "train":
        from saddlepoint.report import sentences

        say("\n".join(sentences.training_lines(run)))
    elif run.kind == "evaluate":
        evaluation(run)
    else:
        summary(run)


def summary(run: "Run") -> None:
    """The outcome of an attack as a table and in words, on stdout."""
    if run.kind == "patch":
        _patch_summary(run)
        return
    from saddlepoint.report import sentences
    from saddlepoint.runs import AttackMetrics, settings_of
    from saddlepoint.runs.attack_words import weighted
    from saddlepoint.runs.settings import AttackSettings

    console = console_of(100)
    metrics = AttackMetrics.of(run)
    settings = settings_of(run, AttackSettings)
    names = [sentences.method_name(settings)]
    shown: list[Rates] = [metrics]
    if metrics.baseline is not None:
        names.insert(0, rule_name(settings.baseline))
        shown.insert(0, metrics.baseline)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grouped = run.kind == "universal"  # the place of an image in its group means nothing
    reached = [f"answers {sentences.target_text(run)}"] if metrics.reached else []
    told = len(run.domains) > 1 and not grouped and weighted(settings.gradient)
    ends = [*reached, *(["mean weight"] if told else [])]
    for heading in ("" if grouped else sentences.NOUNS[run.kind].domain, "clean", *names, *ends):
        table.add_column(_shown(heading), justify="left" if not table.columns else "right")
    tables = [metrics.clean_accuracy, *(part.accuracy for part in shown)]
    tables += [metrics.reached] if reached else []
    for name in () if grouped else run.domains:
        weight = [f"{metrics.weights[name]:.2f}"] if "mean weight" in ends else []
        table.add_row(_shown(name), *(f"{cells[name]:.1f}" for cells in tables), *weight)
    if grouped:
        means = (sum(cells.values()) / len(cells) for cells in tables)
        table.add_row("images right", *(f"{mean:.1f}" for mean in means))
    table.add_section()
    rates: list[tuple[str, Sequence[float | None]]] = [
        ("ASR among correct", [part.asr_all_among_correct for part in shown]),
        ("ASR_all", [part.asr_all for part in shown]),
    ]
    if len(run.domains) > 1:  # of one domain it is ASR_all
        rates.append(("ASR_mean", [part.asr_mean for part in shown]))
    rates.append((sentences.spent_noun(run), [part.evaluations.per_row for part in shown]))
    for label, numbers in rates:
        texts = ("-" if number is None else f"{number:.1f}" for number in numbers)
        table.add_row(label, "", *texts, *("" for _ in ends))
    console.print(
        "Accuracy under attack and success rates (ASR), percent:", fitted(console, table), sep="\n"
    )
    for line in sentences.headline(run, metrics):
        console.print(_shown(line))
    if metrics.transfer is not None:
        _victims(run, metrics, names, shown, console)


def _victims(
    run: "Run",
    metrics: "AttackMetrics",
    names: Sequence[str],
    shown: "Sequence[Rates]",
    console: Console,
) -> None:
    """Models that the attack never asked, in a table of their own."""
    from saddlepoint.report import sentences

    tables = [part.transfer for part in shown if part.transfer is not None]
    assert metrics.transfer is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("victim", "clean", "had right", *(f"success, {name}" for name in names)):
        table.add_column(heading, justify="left" if not table.columns else "right")
    for name, victim in metrics.transfer.victims.items():
        rates = (each.victims[name] for each in tables)
        cells = [_rate(each.asr_among_correct, each.interval) for each in rates]
        clean = f"{victim.clean_accuracy:.1f}"
        table.add_row(_shown(name), clean, str(victim.rows_correct), *cells)
    if len(metrics.transfer.victims) > 1:
        table.add_section()
        cells = [_rate(each.asr_all_among_correct, each.interval) for each in tables]
        table.add_row("all at once", "", str(metrics.transfer.rows_correct), *cells)
    console.print(
        "\nTransfer to models that the attack never asked, percent:",
        fitted(console, table),
        sep="\n",
    )
    for line in sentences.transfer_lines(run, metrics):
        console.print(_shown(line))


def _rate(value: float | None, ends: tuple[float, float] | None) -> str:
    if value is None or ends is None:
        return "-"
    return f"{value:.1f} ({ends[0]:.1f} to {ends[1]:.1f})"


def _patch_summary(run: "Run") -> None:
    from saddlepoint.report.patch_page import patch_headline, view_table
    from saddlepoint.runs import AttackMetrics

    console = console_of(110)
    metrics = AttackMetrics.of(run)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    headings, lines = view_table(run, metrics)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left")
    for line in lines:
        table.add_row(*map(_shown, line))
    console.print(
        "Success on images that were held out, percent:", fitted(console, table), sep="\n"
    )
    for said in patch_headline(run, metrics):
        console.print(_shown(said))


def evaluation(run: "Run") -> None:
    """What is still right, as a table and in words, on stdout."""
    from saddlepoint.report import sentences
    from saddlepoint.report.evaluation_page import accuracy_text, attack_table, evaluation_headline
    from saddlepoint.runs import EvaluationMetrics

    console = console_of(120)
    metrics = EvaluationMetrics.of(run)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    several = len(metrics.domains) > 1
    table.add_column("domain" if several else "attack")
    if several:
        table.add_column("clean", justify="right")
    for name, radius in metrics.radii.items():
        table.add_column(sentences.ball_text(name, radius), justify="right")
    table.add_column("union", justify="right")

    def shares(part: "Accuracies") -> list[str]:
        robust = (accuracy_text(part, "robust", threat) for threat in part.robust)
        return [*robust, accuracy_text(part, "union")]

    if several:
        for name, part in metrics.domains.items():
            table.add_row(_shown(name), f"{part.clean:.1f}", *shares(part))
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
        console.print("Accuracy, percent:")
        console.print(fitted(console, table))
    else:
        (only,) = metrics.domains.values()
        found = attack_table(only)
        for attack in found["attacks"]:
            cells = [_cell(cell) for cell in found["cells"][attack].values()]
            table.add_row(_shown(sentences.attack_text(attack)), *cells, "")
        table.add_section()
        table.add_row("accuracy", *shares(metrics))
        intervals = (*metrics.intervals.robust.values(), metrics.intervals.union)
        table.add_row("95 %", *(f"{low:.1f} to {high:.1f}" for low, high in intervals))
        console.print(
            "Images broken of those attacked, and accuracy in percent:",
            fitted(console, table),
            sep="\n",
        )
    for line in evaluation_headline(run, metrics):
        console.print(_shown(line))


def results_table(shown: "Results") -> None:
    """A table of an experiment with its title and notes, on stdout."""
    from saddlepoint.report.tables import texts_of

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(shown.columns):
        number = any(isinstance(line[index], int | float) for line in shown.lines)
        table.add_column(_shown(column.name), justify="right" if number else "left")
    for line in texts_of(shown):
        table.add_row(*map(_shown, line))
    say(shown.title)
    # Elsewhere than on a terminal as wide as it is.
    console = console_of(300)
    console.print(fitted(console, table))
    for remark in shown.notes:
        say(f"{remark}\n")


def _shown(text: str) -> str:
    """Text for rich: neither markup nor control characters are obeyed."""
    return escape(printable(text))


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
        about_alone,
        in_order,
        named_score,
        outcome,
        ranking_about,
        ranking_table,
    )

    console = console_of(120)
    for ranking in in_order(found):
        console.print(_shown(f"{ranking.question.title} {ranking.question.key}"))
        console.print(_shown(ranking_about(ranking)))
        headings, lines = ranking_table(ranking)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, heading in enumerate(headings):
            side: Any = "left" if index in (1, 2) else "right"
            table.add_column(heading, justify=side, overflow="fold")
        for line in lines:
            table.add_row(*(_shown(cell) for cell in line))
        console.print(fitted(console, table))
        console.print(_shown(outcome(ranking)), end="\n\n")
    for each in found.alone:
        told = f"{each.entry.name}: {named_score(each.entry)}; {about_alone(each.entry)}. {each.reason}"
        console.print(_shown(told))
    for left in found.left_out:
        note(f"saddlepoint: note: left out: {left.reason}", quiet=False)
