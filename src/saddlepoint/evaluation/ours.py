"""Our own attacks as parts of a suite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from saddlepoint.display import Brief
from saddlepoint.evaluation.attacks import AbstractAttack, Target
from saddlepoint.losses import Loss, cw_margin
from saddlepoint.problems import Ensemble
from saddlepoint.solver import AttackResult, attack_unchecked
from saddlepoint.solver.search import Patience, random_search

__all__ = ["OurAttack", "RandomSearch"]


@final
@dataclass(frozen=True, repr=False)
class OurAttack(Brief, AbstractAttack):
    """`saddlepoint.attack` with one domain.

    A row's result does not depend on the batch it is in.

    Args:
        name: In tables.
        loss: Small = fooled.
        steps: Per restart.
        restarts: The first from zero, the others from random points, for images that are not fooled yet.
        aimed: Then so many restarts from zero, each aimed at one class: the second most likely of the wrong
            ones, the third, and so on. The margin follows the most likely one, and others may be nearer. Only
            the loss is aimed: whatever wrong class an iterate meets breaks the image.

    Example:
        >>> OurAttack("attack", steps=20).restarts
        1
    """

    name: str = "attack"
    loss: Loss = cw_margin
    steps: int = 50
    restarts: int = 1
    aimed: int = 0
    independent: ClassVar[bool] = True

    def run(self, target: Target) -> Tensor:
        """The best iterates."""
        left = torch.arange(len(target.x), device=target.x.device)
        result = self._attack(target, left, None, self.restarts)
        found, left = result.adversarial, left[~result.success]
        if not self.aimed or not len(left):
            return found
        with torch.no_grad():
            scores = target.model(target.x[left]).scatter(1, target.y[left].unsqueeze(1), -math.inf)
        wrong = scores.argsort(dim=1, descending=True, stable=True)[:, :-1]  # the last is the label
        for rank in range(1, min(1 + self.aimed, wrong.shape[1])):
            result = self._attack(target, left, wrong[:, rank], 1)
            found[left[result.success]] = result.adversarial[result.success]
            left, wrong = left[~result.success], wrong[~result.success]
            if not len(left):
                break
        return found

    def _attack(
        self, target: Target, rows: Tensor, aims: Tensor | None, restarts: int
    ) -> AttackResult:
        """Some of the images, (n,), away from their labels, by way of classes that the loss aims at, (n,)."""
        problem = Ensemble([target.model], target.x[rows], target.y[rows])
        problem.rows = target.rows.to(target.x.device)[rows]
        if aims is not None:
            problem = problem.aim_at(aims.unsqueeze(1))
            problem.lenient = True
        return attack_unchecked(
            problem,
            target.ball,
            loss=self.loss,
            steps=self.steps,
            restarts=restarts,
            batch_size=len(rows),
            seed=target.seed,
            targeted=problem.aimed,
            precisions=target.precisions,
        )


@final
@dataclass(frozen=True)
class RandomSearch(AbstractAttack):
    """Random squares instead of gradients, for linf: finds what gradients of flat losses miss.

    A row's result does not depend on the batch it is in.

    Args:
        name: In tables.
        queries: Images shown to the model for every image attacked, at most.
        patience: Pairs of a number of queries and a share: an image whose margin has not fallen to this share
            of what it was at the start is given up after so many.

    Example:
        >>> RandomSearch(queries=100).name
        'search'
    """

    name: str = "search"
    queries: int = 2000
    patience: Patience = ((300, 0.5), (600, 0.25))
    independent: ClassVar[bool] = True
    # Most rows are given up early, and the last few of a batch take as long as many: few batches are faster.
    at_once: ClassVar[int] = 4

    def run(self, target: Target) -> Tensor:
        """The images of lowest margin."""
        return random_search(
            target.model,
            target.x,
            target.y,
            target.eps,
            queries=self.queries,
            seed=target.seed,
            rows=target.rows.to(target.x.device),
            patience=self.patience,
        )
