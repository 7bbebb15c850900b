"""Finished runs as they are read: every file as it was written, and a record whose parts fit each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from saddlepoint.files import read_tensors
from saddlepoint.runs import texts
from saddlepoint.runs.hashing import hash_settings
from saddlepoint.runs.metric_parts import HeldOut
from saddlepoint.runs.metrics import (
    Accuracies,
    AttackMetrics,
    EvaluationMetrics,
    Metrics,
    TrainingMetrics,
)
from saddlepoint.runs.plain import quoted
from saddlepoint.runs.record import EVALUATE, RECORD, ROW_NOUNS, TENSORS, Run
from saddlepoint.runs.recounting import check_counts
from saddlepoint.runs.refusals import way_on
from saddlepoint.runs.settings import (
    ATTACKS,
    AttackSettings,
    EvaluateSettings,
    PatchSettings,
    Settings,
    TrainSettings,
)
from saddlepoint.training.session import BEST

__all__ = ["digest_of", "finished", "metrics_of", "read_results", "settings_of"]

S = TypeVar("S", bound=Settings)

Finished = AttackMetrics | EvaluationMetrics | TrainingMetrics

_METRICS: Mapping[str, type[Finished]] = {
    **dict.fromkeys(ATTACKS, AttackMetrics),
    EVALUATE: EvaluationMetrics,
    "train": TrainingMetrics,
}
_SETTINGS: Mapping[str, type[Settings]] = {
    **ATTACKS,
    EVALUATE: EvaluateSettings,
    "train": TrainSettings,
}
_OPTIONAL = frozenset({BEST})  # written only where there are images to validate on

Fact = tuple[str, object, object]  # what it is about, what there is, what there must be


def finished(folder: Path) -> Run:
    """The record of a finished run whose results are all there, as they were written.

    Raises:
        ValueError: Not a run folder, not finished, or a file in it is missing or damaged.
    """
    return read_results(folder)[0]


def read_results(folder: Path) -> tuple[Run, dict[str, Tensor]]:
    """The record and the tensors of a finished run; a training or a measurement has none.

    Files must be as they were written, and the numbers of the record what the rows come to.

    Raises:
        ValueError: Not a run folder, not finished, or a file in it is damaged or of another run.
    """
    run = Run.read(folder)
    if run.status != "complete":
        raise ValueError(
            f"`{folder}` must be a finished run, got one that is {run.status} after {run.done} of {run.rows} "
            f"{ROW_NOUNS.get(run.kind, 'images')}; {way_on(run, folder, told='continue it with')}"
        )
    for name, digest in run.digests.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"`{folder}` must hold {name}, got none; {_anew(run, folder)}")
        if digest_of(path) != digest:
            raise ValueError(
                f"`{path}` must hold what was written, got content of another digest: it is damaged or of "
                f"another run; {_anew(run, folder)}"
            )
    if run.kind == "measure":
        return run, {}
    try:
        metrics = metrics_of(run)
    except ValueError as error:
        raise ValueError(f"`{folder}` must be a readable run: {error}") from error
    tensors = read_tensors(folder / TENSORS).tensors if TENSORS in run.results else {}
    check_counts(run, metrics, tensors, folder)
    return run, tensors


def _anew(run: Run, folder: Path) -> str:
    """How to repeat a run whose results are not whole; a row of an experiment has no --overwrite."""
    if run.command.startswith("saddlepoint reproduce "):
        return f"delete `{folder}` and continue with: {run.line_to_resume(folder)}"
    return "repeat the run with --overwrite."


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def metrics_of(run: Run) -> Finished:
    """The results of a finished run, typed, if its record can be what a run has written.

    Raises:
        ValueError: It is a measurement, which has no report, or parts of the record do not fit each other.
    """
    if run.kind not in _METRICS:
        raise ValueError(
            f"`{RECORD}` must be of an attack, evaluation or training, got one of kind {run.kind}, which "
            "`saddlepoint reproduce` shows."
        )
    _check_settings(run)
    metrics = _METRICS[run.kind].read(run.metrics)
    if not run.domains and run.kind != "train":
        raise ValueError(f"`{RECORD}` must have domains, got none; repeat the run.")
    for what, found, expected in _facts(run, metrics):
        if found != expected:
            raise ValueError(
                f"`{RECORD}` must have {what} {_text(expected)}, got {_text(found)}; repeat the run."
            )
    return metrics


def settings_of(run: Run, kind: type[S]) -> S:
    """The settings of a run, typed: `AttackSettings`, `EvaluateSettings` or `TrainSettings`.

    They are not checked, which `metrics_of` has done: an attack from Python may have a rule of its own. The
    `recipe` of a training is not among them; its record has the whole schedule in place of the name.

    Raises:
        TypeError: The run is of another kind.

    Example:
        >>> from saddlepoint.runs.record import Hashes
        >>> from saddlepoint.runs.settings import AttackSettings
        >>> run = Run(kind="ensemble", command="", settings={"models": ["A"], "eps": 0.2}, seed=0,
        ...           domains=("A",), classes=(), rows=8, hashes=Hashes("", {}, ""))
        >>> settings_of(run, AttackSettings).eps
        0.2
    """
    values = {name: value for name, value in run.settings.items() if name != "recipe"}
    found = _SETTINGS[run.kind].model_construct(**values)
    if not isinstance(found, kind):
        raise TypeError(f"`run` must have {kind.__name__}, got a run of kind {run.kind}.")
    return found


def _check_settings(run: Run) -> None:
    values = dict(run.settings)
    if run.kind == "train":  # whose record has the whole schedule in place of its name
        values.pop("recipe", None)
    try:
        full = _SETTINGS[run.kind].load(values).model_dump()
        lost = [name for name, value in values.items() if value is None and full[name] is not None]
        if lost:
            raise ValueError(f"`{lost[0]}` must be given, got None.")
    except ValueError as error:
        raise ValueError(
            f"`{RECORD}` must have settings of a run: {error} Repeat the run."
        ) from error


def _facts(run: Run, metrics: Metrics) -> Iterator[Fact]:
    yield "a hash of its settings", run.hashes.settings, hash_settings(run.settings)
    yield "`seed`", run.seed, run.settings.get("seed", run.seed)
    yield "`done` of", run.done, run.rows
    yield "digests of", {*run.digests, *_OPTIONAL}, {*run.results, *_OPTIONAL}
    if isinstance(metrics, AttackMetrics):
        yield from _attack_facts(run, metrics)
    elif isinstance(metrics, EvaluationMetrics):
        yield from _evaluation_facts(run, metrics)
    elif isinstance(metrics, TrainingMetrics):
        yield from _training_facts(run, metrics)


def _attack_facts(run: Run, metrics: AttackMetrics) -> Iterator[Fact]:
    names = set(run.domains)
    settings = settings_of(run, AttackSettings)
    baseline = settings.baseline is not None
    victims = set(run.hashes.victims)
    yield "as many victims as", len(victims), len(settings.victims)
    yield "results of a baseline:", metrics.baseline is not None, baseline
    yield "clean accuracy for", set(metrics.clean_accuracy), names
    for part in (metrics, metrics.baseline):
        if part is not None:
            yield "`rows` of metrics as many as", part.rows, run.rows
            yield "accuracy for", set(part.accuracy), names
            yield "weights for", set(part.weights), names
            yield "intervals for", set(part.intervals.accuracy), names
            yield "answers of the class to reach for", {*part.reached} or names, names
            yield "held-out images:", part.held_out is not None, run.kind == "patch"
            yield from _held_out_facts(run, part.held_out)
            yield "victims", set(part.transfer.victims if part.transfer else ()), victims


def _held_out_facts(run: Run, found: HeldOut | None) -> Iterator[Fact]:
    if found is None:
        return
    names = {name for view in found.views.values() for name in view.models}
    yield "views", list(found.views), settings_of(run, PatchSettings).views
    yield "a hardest view among them:", found.worst_view in found.views, True
    yield "a best patch among its rows:", 0 <= found.best_patch < run.rows, True
    for view in found.views.values():
        yield "success of the models", set(view.models), names
    yield "domains as many as", len(run.domains) % (len(found.views) * max(len(names), 1)), 0
    for each in found.maps:
        shape = [len(each.across)] * len(each.down)
        yield "a heat map of cells", [len(line) for line in each.success], shape
        yield "a heat map of intervals", [len(line) for line in each.intervals], shape


def _evaluation_facts(run: Run, metrics: EvaluationMetrics) -> Iterator[Fact]:
    names, threats = set(run.domains), set(metrics.radii)
    several = threats if len(names) > 1 else set()
    yield "metrics of the domains", set(metrics.domains), names
    yield "a threat:", bool(threats), True
    for part in (metrics, *metrics.domains.values()):
        yield "`rows` of metrics as many as", part.rows, run.rows
        yield from _accuracy_facts(part, threats)
    yield "joint accuracy for", set(metrics.joint), several
    yield "joint intervals for", set(metrics.intervals.joint), several
    yield "smallest radii for", set(metrics.eps_min), several
    yield "weights for", set(metrics.weights), several
    for marks in metrics.eps_min.values():
        yield "a median of radii:", "median" in marks, True
    for weights in metrics.weights.values():
        yield "weights for", set(weights), names
    for part in metrics.domains.values():
        yield "no attacks but for", {each.threat for each in part.attacks} | threats, threats


def _accuracy_facts(part: Accuracies, threats: set[str]) -> Iterator[Fact]:
    yield "radii for", set(part.radii), threats
    yield "accuracy for", set(part.robust), threats
    yield "intervals for", set(part.intervals.robust), threats


def _training_facts(run: Run, metrics: TrainingMetrics) -> Iterator[Fact]:
    names, robust = {"clean", "union", *run.domains}, set(metrics.robust_accuracy)
    yield "a history of epochs, as many as", len(metrics.history), run.rows
    yield "an epoch:", bool(metrics.history), True
    yield "threats", list(run.domains), list(texts.threats(settings_of(run, TrainSettings).threat))
    yield "accuracy under", robust, names if run.domains else set()
    yield "attacked rows:", metrics.rows_attacked > 0, bool(robust)
    yield "test images:", metrics.rows > 0, True
    yield "attacked rows among its test images:", metrics.rows_attacked <= metrics.rows, True
    recipe = run.settings.get("recipe")
    yield "epochs", recipe.get("epochs") if isinstance(recipe, Mapping) else None, run.rows
    shares = [(metrics.accuracy, metrics.rows), (metrics.fgsm_accuracy, metrics.rows)]
    shares += [(share, metrics.rows_attacked) for share in metrics.robust_accuracy.values()]
    for share, rows in shares:
        yield "percents of whole images:", _whole(share, rows), True
    union = metrics.robust_accuracy.get("union", 0)
    yield "a union below each:", union <= min([union, *metrics.robust_accuracy.values()]), True
    first = metrics.history[0]
    yield "images to validate on:", bool(metrics.rows_held_out) or not first.validation, True
    for epoch in metrics.history:
        yield "a loss:", "loss" in epoch.stats, True
        yield "statistics", set(epoch.stats), set(first.stats)
        yield "validation", set(epoch.validation), names if first.validation else set()


def _whole(share: float, rows: int) -> bool:
    """Whether so many percent, of two digits after the point, are a number of rows."""
    nearest = 100 * round(share * rows / 100) / rows
    # Halves of the last digit may have been rounded up or down.
    return 0 <= share <= 100 and round(share, 2) == share and abs(nearest - share) <= 0.005 + 1e-9


def _text(value: object) -> str:
    return quoted(sorted(value) if isinstance(value, set) else value)
