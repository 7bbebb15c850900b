"""What one attack has done so far under one threat, batch by batch and restart by restart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.evaluation.attacks import AbstractAttack
from saddlepoint.evaluation.failures import Failure
from saddlepoint.evaluation.ledger import Page, Stage, batches_of

__all__ = ["EvaluationProgress", "Nearest", "Work"]


@final
@dataclass(frozen=True)
class EvaluationProgress:
    """How far an evaluation has come.

    Attributes:
        threat, attack: What is running.
        index, attacks: Its number among all attacks of all threats, from 0, and their count.
        done, total: Images this attack is done with, and has to be run on.
        not_fooled: Images that are not fooled yet under this threat.
        images: N.
        domain: Name of the domain that is attacked alone; empty if there is but one, or all at once.

    Example:
        >>> import saddlepoint as sp
        >>> model = torch.nn.Linear(4, 3).eval()
        >>> x, y, seen = torch.rand(2, 4), torch.tensor([0, 1]), []
        >>> threats = {"linf": sp.linf(0.1)}
        >>> _ = sp.robust_accuracy(model, x, y, threats, callback=seen.append)
        >>> all(each.images == 2 and each.done <= each.total for each in seen)
        True
    """

    threat: str
    attack: str
    index: int
    attacks: int
    done: int
    total: int
    not_fooled: int
    images: int
    domain: str = ""


@final
@dataclass
class Nearest:
    """The nearest misclassified images of one threat so far."""

    distance: Tensor
    delta: Tensor

    @staticmethod
    def none(x: Tensor) -> Nearest:
        """Nothing found yet for images, (N, ...)."""
        return Nearest(
            torch.full((len(x),), math.inf, dtype=torch.float64), torch.zeros_like(x).cpu()
        )

    def offer(self, page: Page) -> None:
        """Take over what a finished batch found nearer."""
        rows, distance = page.tensors["rows"], page.tensors["distance"]
        better = distance < self.distance[rows]
        self.distance[rows[better]] = distance[better]
        self.delta[rows[better]] = page.tensors["delta"][better]


@final
@dataclass
class Work:
    """What one attack has done so far under one threat.

    Attributes:
        todo: Images it is to be run on, (N,), boolean; the other tables are like it.
        attacked: Images it was run on, at least once.
        finished: Images it was run on in its last restart.
        broken, distance: What came of it.
        done: Images of all restarts.
    """

    attack: AbstractAttack
    todo: Tensor
    attacked: Tensor
    finished: Tensor
    broken: Tensor
    distance: Tensor
    outside: int = 0
    unusable: int = 0
    done: int = 0
    restart: int = 0

    @staticmethod
    def none(attack: AbstractAttack, todo: Tensor) -> Work:
        """Nothing done yet."""
        none = torch.zeros_like(todo)
        never = torch.full((len(todo),), math.inf, dtype=torch.float64)
        return Work(attack, todo, none.clone(), none.clone(), none.clone(), never)

    @property
    def total(self) -> int:
        """Images of all restarts."""
        return int(self.todo.sum()) * self.attack.calls

    def batches(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        """Restart by restart the batches that are still to be attacked, as rows; `size` is for gradients."""
        for restart in range(self.attack.calls):
            self.restart = restart
            left = (self.todo & ~self.broken).nonzero().flatten()
            self.done = int(self.todo.sum()) * (restart + 1) - len(left)
            attack = self.attack
            yield batches_of(left, size * attack.at_once, even=attack.independent)

    def add(self, rows: Tensor, page: Page) -> None:
        """Count a finished batch."""
        tensors = page.tensors
        self.attacked[rows] = True
        self.finished[rows] = self.restart == self.attack.calls - 1
        self.broken[rows] |= tensors["broken"]
        self.distance[rows] = torch.minimum(self.distance[rows], tensors["distance"])
        self.outside += int(tensors["outside"])
        self.unusable += int(tensors["unusable"])
        self.done += len(rows)

    def failure(self, threat: str, stage: Stage) -> Failure | None:
        """What the attack did not get to because it raised."""
        if stage.status != "failed":
            return None
        missed = int((self.todo & ~self.broken & ~self.finished).sum())
        return Failure(threat, self.attack.name, missed, stage.why)

    def notes(self, stage: Stage) -> Iterator[str]:
        """What else a reader of the numbers has to know."""
        if stage.status == "cut short":
            again = f", restart {self.restart + 1} of {self.attack.calls}" if self.restart else ""
            yield stage.cut_short(int(self.attacked.sum()), int(self.todo.sum()), again)
        if self.outside and not self.attack.minimal:
            yield f"{self.outside} candidates outside ball or box were discarded"
        if self.unusable:
            yield f"{self.unusable} candidates were not numbers and were discarded"
