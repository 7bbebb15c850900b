"""The ways every experiment can be run: the paper's algorithm, and our attack in one descent or in five."""

from __future__ import annotations

from collections.abc import Callable

from saddlepoint.experiments.plan import DESCENTS, METHODS, Method
from saddlepoint.losses import Loss
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import LpBall
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.solver import AttackResult, Progress, apgda, attack

__all__ = ["Solve", "solver"]

Solve = Callable[[AbstractProblem, AbstractWeightRule, Callable[[Progress], None]], AttackResult]


def solver(
    method: Method, ball: LpBall, loss: Loss, steps: int, step_size: float, seed: int = 0
) -> Solve:
    """A function that attacks a problem with a weight rule.

    Args:
        method: "apgda"; or "attack" or "attack-5", which are `attack` with one restart and with five.
        ball: Where perturbations may be.
        loss: Small = fooled.
        steps: T, of every descent.
        step_size: alpha; used by "apgda" only.
        seed: Of random starts; used by "attack-5" only.
    """
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")

    def paper(
        problem: AbstractProblem, rule: AbstractWeightRule, callback: Callable[[Progress], None]
    ) -> AttackResult:
        return apgda(
            problem,
            ball,
            rule=rule,
            loss=loss,
            steps=steps,
            step_size=step_size,
            callback=callback,
        )

    def ours(
        problem: AbstractProblem, rule: AbstractWeightRule, callback: Callable[[Progress], None]
    ) -> AttackResult:
        return attack(
            problem,
            ball,
            rule=rule,
            loss=loss,
            steps=steps,
            restarts=DESCENTS[method],
            seed=seed,
            callback=callback,
        )

    return paper if method == "apgda" else ours
