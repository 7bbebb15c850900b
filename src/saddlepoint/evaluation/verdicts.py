"""Verdicts are ours: whether a candidate of an evaluation breaks an image is decided here.

An attack, ours or another library's, hands over images. What it says about them is not asked. A candidate
counts only if it is made of numbers, inside the box, inside the ball, and misclassified when the model is asked
again. What a wrong answer is, `saddlepoint.losses.fooled` says, here and everywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from saddlepoint.calls import call
from saddlepoint.losses import fooled
from saddlepoint.problems import AbstractProblem, Ensemble, Model
from saddlepoint.projections import LpBall
from saddlepoint.streams import JUDGE

__all__ = ["Verdict", "clean_answers", "is_right", "judge", "judge_domains", "pulled_back"]

_ROUNDING = 1e-4  # of the radius: what float32 and other libraries' own projections may miss by
_BOX_ROUNDING = 1e-5
_ENTRY_ROUNDING = 1e-6  # where changes are counted, smaller ones are none
_ROWS = 256  # at a time, where nothing is differentiated


@final
@dataclass(frozen=True)
class Verdict:
    """What became of one candidate per image; of several domains, tables (n, K) instead of (n,).

    Attributes:
        broken: Misclassified inside ball and box, (n,), boolean.
        distance: Norm of the perturbation where the candidate is inside the box and misclassified, whether
            or not it is inside the ball; inf elsewhere; (n,), float64.
        outside: Misclassified, but outside the ball or the box by more than rounding, (n,), boolean.
        unusable: Not a number, (n,), boolean, also of several domains.
        delta: The perturbation that was judged, after projection, where `distance` is finite; zero elsewhere;
            (n, ...).
    """

    broken: Tensor
    distance: Tensor
    outside: Tensor
    unusable: Tensor
    delta: Tensor


def judge(model: Model, x: Tensor, y: Tensor, candidates: Tensor, ball: LpBall) -> Verdict:
    """Decide whether candidates break their images: `judge_domains` for one model.

    Args:
        model: From images in [0, 1] to logits, in evaluation mode.
        x: Images, (n, ...), in [0, 1].
        y: Labels, (n,).
        candidates: What the attack returned, (n, ...).
        ball: Of the threat; one radius for all rows, or one per row.

    Returns:
        One verdict per image, on the CPU.

    Raises:
        ValueError: `candidates` is not a tensor of the shape of `x`.

    Example:
        >>> model = lambda images: torch.stack([images[:, 0], images[:, 1]], dim=1)
        >>> x, y = torch.tensor([[0.6, 0.5], [0.6, 0.5]]), torch.tensor([0, 0])
        >>> verdict = judge(model, x, y, torch.tensor([[0.5, 0.6], [0.0, 1.0]]), LpBall(math.inf, 0.2))
        >>> verdict.broken.tolist(), verdict.outside.tolist()
        ([True, False], [False, True])
    """
    if not isinstance(candidates, Tensor) or candidates.shape != x.shape:
        got = tuple(candidates.shape) if isinstance(candidates, Tensor) else type(candidates)
        raise ValueError(f"`candidates` must have the shape of `x`, {tuple(x.shape)}, got {got}.")
    if len(x) == 0:
        none = torch.zeros(0, dtype=torch.bool)
        return Verdict(none, none.double(), none, none, x.detach().cpu())
    found = judge_domains(Ensemble([model], x, y), candidates.detach().to(x) - x.detach(), ball)
    broken, distance, outside = (
        table[:, 0] for table in (found.broken, found.distance, found.outside)
    )
    return replace(found, broken=broken, distance=distance, outside=outside)


def judge_domains(problem: AbstractProblem, delta: Tensor, ball: LpBall) -> Verdict:
    """Decide which domains a perturbation of every row breaks.

    One that misses ball or box by rounding is projected, and the projection is judged. One that misses the
    ball by more breaks nothing, but its distance is kept if it is inside the box: that is how attacks that
    look for the nearest adversarial image are turned into verdicts. One that misses the box by more is worth
    nothing.

    Args:
        problem: B rows, K domains; random transforms are judged on a draw that no attack has seen.
        delta: Perturbations, (B, ...).
        ball: Of the threat; one radius for all rows, or one per row.

    Returns:
        One verdict per row and domain, (B, K), on the CPU.

    Example:
        >>> models = [lambda images: images, lambda images: images * torch.tensor([2.0, 1.0])]
        >>> problem = Ensemble(models, torch.tensor([[0.6, 0.5]]), torch.tensor([0]))
        >>> judge_domains(problem, torch.tensor([[-0.1, 0.1]]), LpBall(math.inf, 0.2)).broken
        tensor([[ True, False]])
    """
    lower, upper = problem.lower, problem.upper
    usable = delta.flatten(1).isfinite().all(dim=1)
    delta = torch.where(_column(usable, delta), delta.detach(), 0.0)
    if ball.p == 0:
        delta = torch.where(delta.abs() <= _ENTRY_ROUNDING, 0.0, delta)
    beyond = torch.maximum(lower - delta, delta - upper).flatten(1).amax(dim=1)
    boxed = delta.clamp(lower, upper)
    radius = torch.as_tensor(ball.eps, dtype=torch.float64, device=delta.device)
    near = ball.norm(boxed) <= radius * (1 + _ROUNDING)
    delta = torch.where(_column(near, delta), ball.project(boxed, lower, upper), boxed)
    wrong = usable[:, None] & _wrong(problem, delta)[0]
    counts = wrong & (beyond <= _BOX_ROUNDING)[:, None]
    distance = torch.where(counts, ball.norm(delta)[:, None], math.inf)
    broken = counts & near[:, None]
    delta = torch.where(_column(counts.any(dim=1), delta), delta, 0.0)
    tables = (broken, distance, wrong & ~broken, ~usable, delta)
    return Verdict(*(table.cpu() for table in tables))


def clean_answers(problem: AbstractProblem, batch_size: int = _ROWS) -> Tensor:
    """Which domains have which images right without perturbation, (B, K), or an error if one is broken.

    Raises:
        ValueError: Logits are not (n, C), a label is not among the classes, or logits are not numbers: such a
            model has failed before any attack.

    Example:
        >>> problem = Ensemble([lambda images: images], torch.tensor([[0.2, 0.8]]), torch.tensor([1]))
        >>> clean_answers(problem)
        tensor([[True]])
    """
    wrong, finite = _wrong(problem, problem.zeros(), batch_size)
    bad = (~finite.all(dim=1)).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"logits must be finite without attack, got NaN or infinity for {len(bad)} of {len(wrong)} images, "
            f"the first of which is image {bad[0]}; look at the model's output for it."
        )
    return ~wrong


def _wrong(
    problem: AbstractProblem, delta: Tensor, batch_size: int = _ROWS
) -> tuple[Tensor, Tensor]:
    """Which domains give a wrong answer at delta when they are asked now, and a finite one, (B, K) each."""
    tables: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for rows in torch.arange(len(problem), device=delta.device).split(batch_size):
            part = problem.take(rows)
            logits = part.logits(delta[rows], JUDGE)
            _check_logits(logits, part.truth)
            tables.append((fooled(logits, part.truth), logits.isfinite().all(dim=-1)))
    wrong, finite = (torch.cat(column) for column in zip(*tables, strict=True))
    return wrong, finite


def pulled_back(
    model: Model, x: Tensor, y: Tensor, verdict: Verdict, ball: LpBall, halvings: int = 8
) -> Verdict:
    """The verdict with every misclassified image moved towards the original as far as it stays misclassified.

    An attack in a ball stops anywhere in it, mostly at its border; the distance it found says little. A
    bisection on the way back to the image costs a few forward passes and makes it a useful bound. Nothing
    else of the verdict changes. For p = 0, where the way back changes no count, nothing does.

    Args:
        model: From images in [0, 1] to logits, in evaluation mode.
        x: Images, (n, ...), in [0, 1].
        y: Labels, (n,).
        verdict: Of `judge` on them.
        ball: Of the threat.
        halvings: Of the way back.

    Example:
        >>> model = lambda images: torch.stack([images[:, 0], images[:, 1]], dim=1)
        >>> x, y, ball = torch.tensor([[0.6, 0.5]]), torch.tensor([0]), LpBall(math.inf, 0.2)
        >>> verdict = judge(model, x, y, torch.tensor([[0.4, 0.7]]), ball)
        >>> round(verdict.distance.item(), 2), round(pulled_back(model, x, y, verdict, ball).distance.item(), 2)
        (0.2, 0.05)
    """
    rows = verdict.distance.isfinite().nonzero().flatten()
    if ball.p == 0 or len(rows) == 0:
        return verdict
    here = rows.to(x.device)
    x, y, way = x[here], y.to(x.device)[here], verdict.delta[rows].to(x)
    low, high = x.new_zeros(len(rows)), x.new_ones(len(rows))
    for _ in range(halvings):
        middle = (low + high) / 2
        wrong = ~is_right(model, (x + _column(middle, x) * way).clamp(0, 1), y)
        low, high = torch.where(wrong, low, middle), torch.where(wrong, middle, high)
    delta, distance = verdict.delta.clone(), verdict.distance.clone()
    delta[rows] = (_column(high, x) * way).cpu()
    distance[rows] = torch.minimum(distance[rows], ball.norm(delta[rows]))
    return replace(verdict, delta=delta, distance=distance)


def is_right(
    model: Model | Callable[[Tensor], Tensor], x: Tensor, y: Tensor, batch_size: int = _ROWS
) -> Tensor:
    """Whether each image is classified correctly, (n,); logits that are not numbers are never right.

    Raises:
        ValueError: The logits are not (n, C), or a label is not among the classes.

    Example:
        >>> is_right(lambda images: images, torch.tensor([[0.2, 0.8]]), torch.tensor([1]))
        tensor([True])
    """
    with torch.no_grad():
        logits = torch.cat([call(model, part) for part in x.split(batch_size)])
    _check_logits(logits, y)
    return ~fooled(logits, y.to(logits.device))


def _check_logits(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != labels.dim() + 1 or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"`model` must return logits (n, C), one row for each of {len(labels)} images, got "
            f"{tuple(logits.shape)}."
        )
    if int(labels.max()) >= logits.shape[-1]:
        raise ValueError(
            f"`y` must be below the number of classes, {logits.shape[-1]}, got {int(labels.max())}."
        )


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1 for _ in like.shape[1:]))
