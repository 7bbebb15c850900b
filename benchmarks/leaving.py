"""Min-max beside the average where rows leave, as in the cost table of RESULTS: time per evaluation, and why.

A row leaves as soon as it fools all models, and the attack goes on with fewer. How long a step takes does not
shrink with its rows alone, so that a rule under which more of them leave early spends more on each evaluation.
The passes of both attacks are written down and made once more without the attacks, which says how much of the
difference is theirs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

import saddlepoint as sp

from .timing import Figure, seconds, unbounded

LETTERS, IMAGES, EPS, STEPS = "acd", 64, 0.2, 50
_ABOUT = "attack on MNIST {A, C, D}, linf 0.2, 64 images, rows leave,"

Passes = list[tuple[sp.Model, int, bool]]
"""In turn: which model was asked, about how many rows, and whether for a gradient."""


class Side:
    """The attack with one of the rules, its passes and its evaluations."""

    def __init__(self, rule: sp.AbstractWeightRule) -> None:
        x, y = sp.data.sample("mnist")
        self.images, self.rule, self.passes = x[:IMAGES], rule, Passes()
        models = [sp.models.channels_last(sp.models.load(f"mnist-{name}")) for name in LETTERS]
        self.problem = sp.Ensemble(models, self.images, y[:IMAGES])
        hooks = [model.register_forward_hook(self._look) for model in models]
        self.evaluations = int(self.attack().num_forwards.sum())
        for hook in hooks:
            hook.remove()

    def _look(self, model: sp.Model, given: tuple[torch.Tensor], _: object) -> None:
        self.passes.append((model, len(given[0]), given[0].requires_grad))

    def attack(self) -> sp.AttackResult:
        """With the margin, fifty steps."""
        options: dict[str, Any] = {"steps": STEPS, "restarts": 1, "loss": sp.cw_margin}
        return sp.attack(self.problem, sp.linf(EPS), rule=self.rule, **options)

    def replay(self) -> None:
        """The same passes, forward and backward, about as many rows."""
        for model, rows, differentiated in self.passes:
            images = self.images[:rows].clone().requires_grad_(differentiated)
            logits = model(images)
            if differentiated:
                torch.autograd.grad(logits.sum(), images)


def figures(rounds: int = 11) -> Iterator[Figure]:
    average, minmax = Side(sp.Average()), Side(sp.MinMax())
    per = average.evaluations / minmax.evaluations
    yield unbounded(f"{_ABOUT} evaluations, min-max over average", 1 / per)
    of_ours, bare = [], []
    for number in range(rounds + 1):
        runs = average.attack, minmax.attack, average.replay, minmax.replay
        spent = [seconds(run, time.process_time) for run in runs]
        if number:  # the first warms up
            of_ours.append(spent[1] / spent[0])
            bare.append(spent[3] / spent[2])
    yield unbounded(f"{_ABOUT} time, min-max over average", of_ours)
    yield unbounded(f"{_ABOUT} time per evaluation", [per * each for each in of_ours])
    yield unbounded(f"{_ABOUT} its passes alone, per evaluation", [per * each for each in bare])
