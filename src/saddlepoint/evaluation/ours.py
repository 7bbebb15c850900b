"""Our own attack as part of a suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from saddlepoint.evaluation.attacks import AbstractAttack, Target
from saddlepoint.losses import Loss, cw_margin
from saddlepoint.problems import Ensemble
from saddlepoint.solver import attack

__all__ = ["OurAttack"]


@final
@dataclass(frozen=True)
class OurAttack(AbstractAttack):
    """`saddlepoint.attack` with one domain.

    A row's result does not depend on the batch it is in.

    Args:
        name: In tables.
        loss: Small = fooled.
        steps: Per descent.
        descents: The first from zero, the others from random points, for images that still stand.

    Example:
        >>> OurAttack("attack", steps=20).descents
        1
    """

    name: str = "attack"
    loss: Loss = cw_margin
    steps: int = 50
    descents: int = 1

    def run(self, target: Target) -> Tensor:
        """The best iterates."""
        problem = Ensemble([target.model], target.x, target.y)
        problem.rows = target.rows.to(target.x.device)
        result = attack(
            problem,
            target.ball,
            loss=self.loss,
            steps=self.steps,
            restarts=self.descents,
            batch_size=len(target.x),
            seed=target.seed,
        ).finished()
        return target.x + result.delta
