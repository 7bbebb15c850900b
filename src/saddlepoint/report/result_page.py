"""The page of a result that was never a run on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from saddlepoint.problems import AbstractProblem
from saddlepoint.report.page import MAX_BYTES, render
from saddlepoint.runs.drawn import write_drawn
from saddlepoint.runs.evaluation_tables import Result
from saddlepoint.runs.unsaved import as_run, evaluation_as_run
from saddlepoint.solver import AttackResult

__all__ = ["write_result"]


def write_result(
    result: AttackResult | Result,
    path: str | os.PathLike[str],
    problem: AbstractProblem | None = None,
    *,
    data: str = "own images",
    classes: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
) -> Path:
    """Draw the page of an attack or an evaluation from Python: what the command line leaves as `report.html`.

    The models are asked again: about every row of an attack, about the images of the gallery of an evaluation.

    Args:
        result: Of `attack` or `apgda`, or of `robust_accuracy`.
        path: The file, such as "attack.html".
        problem: The images and models of an evaluation, such as `Ensemble([model], x, y, names=["mine"])`, to
            name them, or for a result from a loader, whose page has no images otherwise; others know their own.
        data: What the images are called on the page.
        classes: Names of the classes; numbers if there are none.
        max_bytes: Size the file must not exceed.

    Returns:
        The path.

    Raises:
        ValueError: The problem of an evaluation is another one; or an attack does not know what
            was asked, was stopped, knows no true classes, or has domains of a kind of the user's own; or the
            file is not to be an HTML page, or is there and no page of ours.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import saddlepoint as sp
        >>> x, y = torch.tensor([[[[0.2, 0.7]]]]), torch.tensor([1])
        >>> result = sp.attack(sp.Ensemble([torch.nn.Flatten().eval()], x, y), sp.linf(0.3), steps=5)
        >>> write_result(result, Path(tempfile.mkdtemp()) / "attack.html").name
        'attack.html'
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise ValueError(f"`path` must be a file such as attack.html, got {str(path)!r}.")
    if isinstance(result, AttackResult):
        run, tensors = as_run(result, data=data, classes=classes)
    else:
        run, tensors = evaluation_as_run(
            result, problem or result.problem, data=data, classes=classes
        )
    html = render(run, tensors, max_bytes=max_bytes)
    write_drawn(path.parent, {path.name: html.encode()})
    return path
