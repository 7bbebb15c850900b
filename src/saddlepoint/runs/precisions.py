"""What the models of a run compute in: decided once, by one process, and kept in the record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from saddlepoint.precision import Precision, Precisions
from saddlepoint.problems import AbstractProblem
from saddlepoint.runs.record import RECORD, Run
from saddlepoint.runs.settings import AttackSettings, EvaluateSettings
from saddlepoint.solver.lowering import choose_precisions
from saddlepoint.training.distributed import World

__all__ = ["begun_with", "for_models", "with_precisions"]

S = TypeVar("S", AttackSettings, EvaluateSettings)


def with_precisions(
    settings: S, problem: AbstractProblem, folder: Path, *, resume: bool
) -> tuple[S, Precisions]:
    """What the models of a run compute in, and settings that say so.

    "auto" is decided here, once, by process 0 for all: by a short measurement, or, of a run that is continued,
    by its record.

    Args:
        settings: Of an attack or an evaluation.
        problem: What it attacks.
        folder: Of the run.
        resume: Whether the run in it is to be continued.

    Raises:
        ValueError: The words do not fit the models, or the record cannot be read.
    """
    words = settings.precision
    if resume and "auto" in words:
        words = begun_with(folder, "precision", words)
    precisions = choose_precisions(problem, for_models(words), World.current().gather)
    names = precisions.names
    said = list(names[:1] if len(set(names)) == 1 else names)
    return settings.model_copy(update={"precision": said}), precisions


def begun_with(folder: Path, name: str, otherwise: Any) -> Any:
    """A setting of the run in a folder, as its record has it; something else where there is no run yet."""
    found = Run.read(folder).settings.get(name) if (folder / RECORD).is_file() else None
    return otherwise if found is None else found


def for_models(words: Sequence[Precision]) -> Precision | Sequence[Precision]:
    """One word for all models, or one for each, as `attack` takes them."""
    return words[0] if len(words) == 1 else words
