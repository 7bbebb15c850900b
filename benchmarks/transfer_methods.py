"""Ways to find perturbations that transfer: ours, by composition, and those of torchattacks, at equal cost.

Others attack several models by the mean of their logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint import directions
from saddlepoint import transforms as T

from .peers.methods import MeanLogits, load

STEPS = 10
"""Gradients per image and surrogate: the default of MI-FGSM."""
DIVERSE = T.random_crop_resize(0.8, 1.0)
STEP = 1 / 4
"""Step size of signed steps in radii: that of torchattacks' defaults, 2/255 of 8/255."""


@dataclass(frozen=True)
class Work:
    """What a method is given: three surrogates, n images, a radius, a seed."""

    models: Sequence[nn.Module]
    x: Tensor
    y: Tensor
    eps: float
    seed: int


@dataclass(frozen=True)
class Found:
    """Perturbed images, (n, ...), and how many gradients they took, all images together."""

    images: Tensor
    gradients: int


Method = Callable[[Work], Found]


class Halved(nn.Module):
    """A network that computes in bfloat16: B, the slowest, while attacks search. Verdicts are in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            logits: Tensor = self.model(images)
        return logits.float()


def _problem(work: Work, *, mean: bool, diverse: bool) -> sp.AbstractProblem:
    models = [MeanLogits(work.models)] if mean else list(work.models)
    if diverse:
        return sp.Product(models, [DIVERSE], work.x, work.y, seed=work.seed)
    return sp.Ensemble(models, work.x, work.y)


def _attack(
    rule: sp.AbstractWeightRule, *, mean: bool = False, diverse: bool = False, **options: Any
) -> Method:
    def run(work: Work) -> Found:
        problem = _problem(work, mean=mean, diverse=diverse)
        ball = sp.linf(work.eps)
        result = sp.attack(problem, ball, rule=rule, steps=STEPS, seed=work.seed, **options)
        # The last iterate of a row is judged and not differentiated.
        return Found(result.adversarial, int((result.num_forwards - 1).sum()))

    return run


def _signs(
    rule: sp.AbstractWeightRule,
    *,
    mean: bool = False,
    diverse: bool = False,
    momentum: float = 0.0,
    loss: sp.Loss = sp.cw_margin,
) -> Method:
    def run(work: Work) -> Found:
        result = sp.apgda(
            _problem(work, mean=mean, diverse=diverse),
            sp.linf(work.eps),
            rule=rule,
            loss=loss,
            steps=STEPS,
            step_size=STEP * work.eps,
            direction=directions.sign,
            momentum=momentum,
        )
        return Found(result.adversarial, int((result.num_forwards - 1).sum()))

    return run


def _torchattacks(kind: str, **options: Any) -> Method:
    def run(work: Work) -> Found:
        attack = getattr(load("torchattacks"), kind)
        size = {"eps": work.eps, "alpha": STEP * work.eps, "steps": STEPS}
        with torch.random.fork_rng(devices=[]):  # its input diversity draws from the global stream
            torch.manual_seed(work.seed)
            images: Tensor = attack(MeanLogits(work.models), **size, **options)(work.x, work.y)
        return Found(images, STEPS * len(work.x))

    return run


_GO: dict[str, Any] = {"keep_going": True}
_AVERAGE, _MINMAX = sp.Average(), sp.MinMax()
_SHARES = (
    ("min-max", _MINMAX, False),
    ("average", _AVERAGE, False),
    ("mean logits", _AVERAGE, True),
)
METHODS: dict[str, Method] = {
    "attack, min-max, stops": _attack(_MINMAX),
    "attack, min-max": _attack(_MINMAX, **_GO),
    "attack, average": _attack(_AVERAGE, **_GO),
    "attack, min-max, 8 bits": _attack(_MINMAX, quantize=256, **_GO),
    **{
        ", ".join(["signs", name, *words]): _signs(
            rule, mean=mean, diverse="diverse" in words, momentum=float("momentum" in words)
        )
        for words in ((), ("momentum",), ("diverse", "momentum"))
        for name, rule, mean in _SHARES
    },
    "torchattacks MI-FGSM": _torchattacks("MIFGSM", decay=1.0),
    "torchattacks DI-FGSM": _torchattacks("DIFGSM"),
}
"""By name: how steps are taken, how the surrogates are weighed, and what is added."""
