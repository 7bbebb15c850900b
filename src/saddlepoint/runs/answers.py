"""What models say to some images: whether a run that goes on, or is complete, is still about them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from saddlepoint.problems import AbstractProblem
from saddlepoint.streams import JUDGE

__all__ = ["ANSWERS", "answers", "check_same_answers", "same_answers"]

ANSWERS = "answers"
"""The name of what the models said, among the tensors of a finished run and in the page of one that goes on."""

_ASKED = 32  # images that models are asked about when a run begins and when it goes on


def answers(problem: AbstractProblem) -> Tensor | None:
    """What the models say to the first images, (at most 32, K, C): two forward passes.

    A model may read files or the environment whenever it is called, which no hash sees; its answers do.

    Returns:
        Logits; None if they are random or a model raises, so that there is nothing to compare.
    """
    part = problem.take(torch.arange(min(len(problem), _ASKED), device=problem.lower.device))
    try:
        with torch.no_grad():
            first, again = (part.logits(part.zeros(), JUDGE).cpu() for _ in range(2))
    except Exception:
        # The user's code may raise anything; the run itself says better what is wrong.
        return None
    return first if same_answers(first, again) else None


def same_answers(one: Tensor, other: Tensor) -> bool:
    """Whether two tables of logits differ by no more than rounding on another machine.

    Example:
        >>> one = torch.tensor([[1.0, 2.0]])
        >>> same_answers(one, one + 1e-5), same_answers(one, 1.1 * one)
        (True, False)
    """
    if one.shape != other.shape:
        return False
    scale = one.nan_to_num(0, 0, 0).abs().amax().item() if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-3 * scale, equal_nan=True)


def check_same_answers(kept: Tensor | None, now: Tensor | None, folder: Path) -> None:
    """Refuse models that say something else than when the run in the folder began; None is not compared.

    Raises:
        ValueError: The logits are not those that were kept.
    """
    if kept is None or now is None or same_answers(kept, now):
        return
    raise ValueError(
        f"`--resume` must continue with models that answer as they did when the run in {folder} began, got "
        "other logits for the same images: a model reads something that has changed since; change it back, or "
        "choose another --out."
    )
