"""What a solver returns, and how results of batches become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import final

import torch
from torch import Tensor

__all__ = ["AttackResult", "Callback", "History", "Interrupted", "Progress", "concatenate"]


@final
@dataclass(frozen=True)
class History:
    """Weights and losses at every iterate: step 0 is the start, step t the iterate after t updates.

    Attributes:
        weights: (steps + 1, B, K).
        losses: (steps + 1, B, K). A row that finished early keeps its last values.
    """

    weights: Tensor
    losses: Tensor


@final
@dataclass(frozen=True)
class AttackResult:
    """Perturbations and what every domain makes of them.

    Attributes:
        delta: (B, ...), inside ball and box.
        adversarial: The perturbed images, (B, ...), or (B, K, ...) if the domains are images; in [0, 1], the
            thing to save. With `quantize` its values are those that are read back from the file.
        weights: Domain weights at delta, (B, K): which domain was hard.
        losses: F(delta), (B, K).
        fooled: Whether each domain is fooled at delta, (B, K), boolean: whether its answer, when asked
            again at the end, is not `problem.labels` (targeted: is). `success_rates` counts against the truth.
        history: Weights and losses per step.
        num_forwards: Evaluations of the K domains spent on the search in each row, (B,), int64, those that
            confirm in full precision what looked fooled in less included; the verdict is one more.
        completed: Rows that were attacked to the end, (B,), boolean; all of them, but for `Interrupted.result`.
        precision: What each model of the problem computed in during the search, such as "bfloat16"; empty where
            nobody has said.
    """

    delta: Tensor
    adversarial: Tensor
    weights: Tensor
    losses: Tensor
    fooled: Tensor
    history: History
    num_forwards: Tensor
    completed: Tensor
    precision: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What matters, in one line instead of all tensors."""
        rows, domains = self.fooled.shape
        every, spent = int(self.success.sum()), self.num_forwards.double().mean().item()
        stopped = f", interrupted at {int(self.completed.sum())}" if self.interrupted else ""
        return (
            f"AttackResult({every} of {rows} rows fool all {domains} domains, "
            f"{spent:.1f} evaluations per row{stopped})"
        )

    @property
    def success(self) -> Tensor:
        """Rows in which every domain is fooled, (B,), boolean."""
        return self.fooled.all(dim=1)

    @property
    def interrupted(self) -> bool:
        """Whether the attack was stopped (Ctrl-C) before every row was done."""
        return not bool(self.completed.all())


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during an attack, with what it has found so far.

    Attributes:
        result: Of all rows; `completed` says which of them were attacked to the end.

    Example:
        >>> from saddlepoint import Ensemble, attack, linf
        >>> def impatient(progress):
        ...     raise KeyboardInterrupt
        >>> problem = Ensemble([torch.nn.Identity().eval()], 0.5 * torch.eye(3), torch.arange(3))
        >>> try:
        ...     result = attack(problem, linf(0.1), callback=impatient)
        ... except Interrupted as stop:
        ...     result = stop.result
        >>> result
        AttackResult(0 of 3 rows fool all 1 domains, 1.0 evaluations per row, interrupted at 0)
    """

    def __init__(self, result: AttackResult) -> None:
        done, rows = int(result.completed.sum()), len(result.completed)
        super().__init__(f"the attack was stopped after {done} of {rows} rows")
        self.result = result


@final
@dataclass(frozen=True)
class Progress:
    """How far an attack has come; handed to `callback` after every iterate.

    Attributes:
        rows: Rows in all.
        done: Rows finished.
        fooled: Finished rows that fool every domain.
        step, steps: Position inside the current batch.
        restart: Which restart of the current batch, from 0.
    """

    rows: int
    done: int
    fooled: int
    step: int
    steps: int
    restart: int = 0


Callback = Callable[[Progress], None]


def concatenate(parts: Sequence[AttackResult]) -> AttackResult:
    """Results of consecutive rows as one result."""
    if len(parts) == 1:
        return parts[0]
    history = History(
        torch.cat([part.history.weights for part in parts], dim=1),
        torch.cat([part.history.losses for part in parts], dim=1),
    )
    others = ("history", "precision")
    names = [field.name for field in fields(AttackResult) if field.name not in others]
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return AttackResult(history=history, precision=parts[0].precision, **tensors)
