"""Which finished runs answer the same question, so that one of them can be better than another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from torch import Tensor

from saddlepoint.display import radius_text
from saddlepoint.runs import texts
from saddlepoint.runs.counting import by_guessing, row_tables
from saddlepoint.runs.metrics import AttackMetrics, EvaluationMetrics, Metrics, TrainingMetrics
from saddlepoint.runs.reading import metrics_of, read_results
from saddlepoint.runs.record import EVALUATE, RECORD, Run
from saddlepoint.runs.settings.one_domain import as_usual

__all__ = [
    "QUESTIONS",
    "Entry",
    "Question",
    "differences",
    "differing",
    "facts",
    "find_runs",
    "read_entry",
    "readable",
]

# Where images and models come from does not matter: their hashes do.
_SOURCE = frozenset(
    {"data", "split", "limit", "size", "crop", "classes", "kind", "models", "mean", "std"}
)
_IDLE = frozenset({"baseline", "batch_size", "device", "every_attack", "victims"})  # change no rank
# What makes an attack stronger or weaker; in low precision it may find less.
_ATTACK = frozenset(
    {"rule", "loss", "steps", "method", "restarts", "evaluations", "step_size", "precision"}
    | {"keep_going", "gradient"}
)
_TEST = frozenset({"test_images", "test_steps", "test_restarts"})
_ORIGIN = ("data", "split", "size", "crop", "classes", "seed", "group_size", "by_class")
_ANSWERS = ("clean_predictions", "predictions", "gallery.says")
_NAMES = {"eps": "radius", "labels": "attacked labels", "kind": "kind of run"}


@final
@dataclass(frozen=True)
class Entry:
    """A finished run and the number it is ranked by.

    Attributes:
        name: What it is called beside others.
        folder: Where it is.
        run: The record.
        metrics: Its results.
        score: Value and the ends of its 95 % interval, percent; None where nothing can be said.
        bound: Whether the value is an upper bound: attacks failed, or did not reach every image.
        counted: Rows that count for the value, (N,), and `yes`, those of them it is the share of; None where
            rows are not stored.
        transfer: The same run by its success on victims, another question; None where it has no victims.
        guesses: Whether no model is right more often than by guessing, so that what attacks leave says nothing.
    """

    name: str
    folder: Path
    run: Run
    metrics: Metrics
    score: tuple[float, float, float] | None
    bound: bool = False
    counted: Tensor | None = None
    yes: Tensor | None = None
    transfer: Entry | None = None
    guesses: bool = False

    def setting(self, name: str) -> str:
        """A setting of the run as a person would write it."""
        return readable(self.run.settings.get(name))


@final
@dataclass(frozen=True)
class Question:
    """What can be asked of several runs.

    Attributes:
        title: The question.
        key: What the score is, and which direction is better.
        kinds: Of runs that answer it.
        higher: Whether a higher score is better.
        free: Settings that may differ, because they are what is compared or do not matter.
        models: Whether the models have to be the same (True), must not all be the same (False), or neither.
        transfer: Whether it is about victims; the victims have to be the same then.
    """

    title: str
    key: str
    kinds: tuple[str, ...]
    higher: bool
    free: frozenset[str]
    models: bool | None = None
    transfer: bool = False

    def seen(self, entry: Entry) -> Entry | None:
        """The run by the score that answers the question; None if it has none."""
        if entry.run.kind not in self.kinds:
            return None
        return entry.transfer if self.transfer else entry


_ATTACKS = ("ensemble", "universal", "transform")
_SCORE = "Success rate among rows that every domain had right before the attack"
QUESTIONS = (
    Question(
        "Which attack on these models is stronger?",
        f"{_SCORE}: higher is a stronger attack.",
        _ATTACKS,
        True,
        _SOURCE | _IDLE | _ATTACK,
        models=True,
    ),
    Question(
        "Which models are safer under this attack?",
        f"{_SCORE}: lower is a safer model or ensemble.",
        _ATTACKS,
        False,
        _SOURCE | _IDLE,
        models=False,
    ),
    Question(
        "Which model is more robust?",
        "Accuracy under every attack of every threat: higher is a more robust model.",
        (EVALUATE,),
        True,
        _SOURCE | _IDLE | {"threat"},
    ),
    Question(
        "Which training gives a more robust network?",
        "Accuracy on test images under every threat, or without attack where there is none: higher is better.",
        ("train",),
        True,
        frozenset(),
    ),
    Question(
        "Which attack fools these victims, which it never asked, more often?",
        "Success rate among rows that every victim had right before the attack: higher transfers better.",
        _ATTACKS,
        True,
        _SOURCE | _IDLE | _ATTACK | {"labels", "transforms", "samples"},
        transfer=True,
    ),
)


def facts(question: Question, entry: Entry) -> dict[str, str]:
    """What has to be the same in two runs for the question to have an answer, by name.

    A setting that is not known to be free has to be the same, so that a new one keeps runs apart.
    """
    run, settings = entry.run, dict(entry.run.settings)
    found = {"kind": run.kind, "images": run.hashes.data}
    if question.models:
        found["models"] = _same(run.hashes.models, entry)
    settings |= as_usual(run) if question.models is False else {}
    if question.transfer:
        found["victims"] = _same(run.hashes.victims, entry)
        if run.kind == "transform":  # victims see the image as it is
            found["kind"] = "ensemble"
    if isinstance(entry.metrics, EvaluationMetrics):
        radii = sorted(entry.metrics.radii.items())  # their order says nothing
        found["threats"] = ", ".join(f"{n} {radius_text(eps)}" for n, eps in radii)
        found["number of models"] = str(len(entry.metrics.domains))
    if isinstance(entry.metrics, TrainingMetrics):
        # The step size of the training does not matter.
        given = sorted(texts.threats(settings.get("threat", ())).items())
        found["threats"] = ", ".join(f"{n} {radius_text(float(t.ball.eps))}" for n, t in given)
        tested = _TEST if entry.metrics.robust_accuracy else frozenset()
        settings = {name: value for name, value in settings.items() if name in tested}
    # The seed decides which images are a group, and what a view is.
    chance = ("universal",) if question.transfer else ("universal", "transform")
    free = question.free | ({"seed"} if run.kind not in chance else set())
    found |= {name: str(value) for name, value in settings.items() if name not in free}
    return {_NAMES.get(name, name): value for name, value in found.items()}


def differences(one: Entry, other: Entry) -> list[str] | None:
    """What keeps two runs apart, in words; None if no question is about both kinds."""
    shown = []
    for question in QUESTIONS:
        if question.seen(one) and question.seen(other):
            here, there = facts(question, one), facts(question, other)
            names = [n for n in here | there if here.get(n) != there.get(n)]
            if one.run.kind != other.run.kind:  # what only one kind has, keeps nothing apart
                names = [name for name in names if name in here and name in there]
            told = [_difference(name, here, there) for name in names]
            few = _fewer(one, other)
            shown.append([few if few and text == "other images" else text for text in told])
    return min(shown, key=len, default=None)


def differing(entries: Sequence[Entry]) -> list[str]:
    """Names of settings that are not the same in all runs and may change a number."""
    settings = [entry.run.settings for entry in entries]
    names = dict.fromkeys(name for each in settings for name in each)
    return [
        name
        for name in names
        if name not in _SOURCE | _IDLE | {"threat"}
        and len({str(each.get(name)) for each in settings}) > 1
    ]


def find_runs(folders: Sequence[Path]) -> list[tuple[str, Path]]:
    """Run folders and what to call them: those given, and those inside folders that are no runs themselves.

    Raises:
        ValueError: One is neither a run nor holds any.
    """
    found: dict[Path, tuple[str, Path]] = {}
    for folder in folders:
        if (folder / RECORD).is_file():
            found.setdefault(folder.resolve(), (folder.resolve().name, folder))
            continue
        records = sorted(folder.rglob(RECORD))
        if not records:
            raise ValueError(f"`{folder}` must be a run or hold some, got no {RECORD} in it.")
        for path in records:
            name = str(path.parent.relative_to(folder))
            found.setdefault(path.parent.resolve(), (name, path.parent))
    names = [name for name, _ in found.values()]
    return [(str(path) if names.count(n) > 1 else n, path) for n, path in found.values()]


def read_entry(name: str, folder: Path) -> Entry:
    """A finished run.

    Raises:
        ValueError: It is damaged, unfinished, or of a kind that has nothing to rank.
    """
    run, tensors = read_results(folder)
    metrics = metrics_of(run)
    if isinstance(metrics, AttackMetrics):
        guesses = _guesses(run, _clean(run, metrics), metrics.rows, tensors)
        if metrics.held_out is not None:
            score = (metrics.held_out.worst, *metrics.held_out.worst_interval)
            return Entry(name, folder, run, metrics, score, guesses=guesses)
        right = ~tensors["clean_fooled"].any(dim=1)
        yes = tensors["fooled"].all(dim=1) & right
        entry = Entry(name, folder, run, metrics, metrics.rate, False, right, yes, None, guesses)
        return replace(entry, transfer=_transferred(entry, metrics, tensors))
    if isinstance(metrics, EvaluationMetrics):
        score = (metrics.union, *metrics.intervals.union)
        kept = _kept(tensors)
        bound = "union" in metrics.at_most
        entry = Entry(name, folder, run, metrics, score, bound, kept.new_ones(len(kept)), kept)
        clean = max(each.clean for each in metrics.domains.values())
        return replace(entry, guesses=_guesses(run, clean, metrics.rows, tensors))
    share, guesses = metrics.score, _guesses(run, metrics.accuracy, metrics.rows, tensors)
    return Entry(name, folder, run, metrics, (share.percent, *share.interval), guesses=guesses)


def _clean(run: Run, metrics: AttackMetrics) -> float:
    """What the best model, or the model on its easiest view, has right before the attack, percent."""
    shares = metrics.clean_accuracy.values()
    # Places in a group are images like any other.
    return sum(shares) / len(shares) if run.kind == "universal" else max(shares)


def _guesses(run: Run, accuracy: float, rows: int, tensors: Mapping[str, Tensor]) -> bool:
    """Whether so many percent are no more than guessing gives, or always answering the most frequent label."""
    if not run.classes:
        return False
    # A model may have more classes than its images: those that it answered, at least.
    answers = [tensors[name] for name in _ANSWERS if name in tensors and tensors[name].numel()]
    classes = max(len(run.classes), *(int(table.max()) + 1 for table in answers), 1)
    limit = by_guessing(rows, classes)
    if "labels" in tensors:
        counts = tensors["labels"].flatten().unique(return_counts=True)[1]
        if len(counts) > 1:
            limit = max(limit, 100 * int(counts.max()) / int(counts.sum()))
    return accuracy <= limit + 1e-4  # percents are stored rounded


def _transferred(
    entry: Entry, metrics: AttackMetrics, tensors: Mapping[str, Tensor]
) -> Entry | None:
    """The run by what its perturbations do to all victims at once."""
    if metrics.transfer is None:
        return None
    fooled, right = row_tables(tuple(metrics.transfer.victims), tensors)
    every = right.all(dim=1)
    hit = fooled.all(dim=1) & every
    return replace(entry, score=metrics.transfer.rate, counted=every, yes=hit)


def _same(models: Mapping[str, str], entry: Entry) -> str:
    """What models are, whatever they are called."""
    if not all(models.values()):  # of which nobody can say whether they are the same
        return str(entry.folder.resolve())
    return ", ".join(sorted(models.values()))


def _kept(tensors: Mapping[str, Tensor]) -> Tensor:
    """Images that every domain has right under every attack of its own, (N,)."""
    kept = tensors["correct"].clone()
    for name, table in tensors.items():
        if name.endswith("/broken") and not name.startswith("joint/"):
            kept &= ~table
    return kept


def _difference(name: str, here: Mapping[str, str], there: Mapping[str, str]) -> str:
    if name in ("images", "models", "victims"):  # hashes say nothing to a reader
        return f"other {name}"
    mine, theirs = readable(here.get(name)), readable(there.get(name))
    if name == "targeted":
        words = [f"targeted at {n}" if n != "none" else "untargeted" for n in (mine, theirs)]
        return " instead of ".join(words)
    return f"{name.replace('_', ' ')} {mine} instead of {theirs}"


def _fewer(one: Entry, other: Entry) -> str:
    """That two runs have other images because one took fewer of the same; empty if it is not known."""
    rows = [
        entry.metrics.rows
        for entry in (one, other)
        if isinstance(entry.metrics, AttackMetrics | EvaluationMetrics)
    ]
    source = [[entry.setting(name) for name in _ORIGIN] for entry in (one, other)]
    if len(rows) < 2 or rows[0] == rows[1] or source[0] != source[1]:
        return ""
    return f"other images ({rows[0]} rows instead of {rows[1]}, by the settings of the same data)"


def readable(value: object) -> str:
    """A setting as a person would write it.

    Example:
        >>> readable(8 / 255), readable("['identity', 'hflip']"), readable(None), readable(True)
        ('8/255', 'identity, hflip', 'none', 'yes')
    """
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = re.sub(r"^\[(.*)\]$", r"\1", text).replace("'", "")
    words = {"None": "none", "": "none", "True": "yes", "False": "no"}
    try:
        return radius_text(float(text))
    except ValueError:
        return words.get(text, text)
