"""E-AT (Croce & Hein, 2022): one threat per step, drawn with a probability that grows with how badly it fares.

A step costs what training against one threat costs, a K-th of AVG, MAX and AMPGD with the same inner steps. The
paper draws between l1 and linf, whose balls together almost contain that of l2; here the draw is among the
threats that are given. The paper's code draws by the errors of the whole training so far, and an image is wrong
if any iterate of the attack was; here they are a moving average, and the last iterate counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple, final

import torch
from torch import Tensor

from saddlepoint import streams

from .ampgd import StepStats

__all__ = ["Drawn", "RunningErrors"]


class Drawn(NamedTuple):
    """How the rows of a step fared under the threat that was drawn for it.

    Example:
        >>> Drawn("linf", wrong=0.25, rows=64).name
        'linf'
    """

    name: str
    wrong: float
    rows: int


@final
class RunningErrors:
    """The share of training images that was wrong lately under each threat, and the draw by it.

    Every threat begins with an error of 1, so that all are as likely at first. A step moves the error of its
    threat to `memory` times what it was plus 1 - `memory` times that of the batch. Threat i is drawn with
    probability error_i / sum of all errors, equal ones where all are zero.

    Args:
        threats: Anything by name: the K threats.
        memory: In [0, 1).

    Example:
        >>> import saddlepoint as sp
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> x, y = torch.rand(8, 1, 4, 4), torch.arange(8) % 3
        >>> threats = {"linf": sp.linf(0.1), "l1": sp.l1(2.0)}
        >>> errors = RunningErrors(threats)
        >>> for n in range(5):
        ...     name = errors.draw(n)
        ...     stats = sp.avg_step(model, optimizer, x, y, {name: threats[name]}, iteration=n)
        ...     errors.update(errors.seen(stats, len(x)))
        >>> round(sum(errors.chances().values()), 6)
        1.0
    """

    def __init__(self, threats: Mapping[str, object], memory: float = 0.9) -> None:
        if not threats:
            raise ValueError("`threats` must name at least one threat, got none.")
        if not 0 <= memory < 1:
            raise ValueError(f"`memory` must be in [0, 1), got {memory}.")
        self.errors = dict.fromkeys(threats, 1.0)
        self.memory = memory

    def chances(self) -> dict[str, float]:
        """Probability of each threat; they sum to one."""
        total = sum(self.errors.values())
        equal = 1 / len(self.errors)
        return {name: error / total if total else equal for name, error in self.errors.items()}

    def draw(self, number: int) -> str:
        """The threat of a training step: the same for the same number and errors, in every process."""
        # A generator of torch would take 32 bits of the number, which are the same in every epoch.
        drawn = streams.uniform(number, torch.zeros(1, dtype=torch.int64), 0, 1).item()
        below = list(accumulate(self.chances().values()))
        return list(self.errors)[bisect_right(below, drawn * below[-1])]

    @staticmethod
    def seen(stats: StepStats, rows: int) -> Drawn:
        """What a step against one threat on so many rows has to tell."""
        return Drawn(stats.names[0], rows * (1 - stats.accuracy), rows)

    def update(self, *parts: Drawn) -> None:
        """Learn from a step: one part, or one from every process that took rows of the batch."""
        rows = sum(part.rows for part in parts)
        if rows:
            wrong, name = sum(part.wrong for part in parts) / rows, parts[0].name
            self.errors[name] = self.memory * self.errors[name] + (1 - self.memory) * wrong

    def state(self) -> dict[str, Tensor]:
        """The errors, for a checkpoint."""
        return {"errors": torch.tensor(list(self.errors.values()), dtype=torch.float64)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        if state:
            self.errors = dict(zip(self.errors, state["errors"].tolist(), strict=True))
