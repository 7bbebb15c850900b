"""What is compared: our attacks and those of other libraries, each with its own documented step-size rule.

Every method gets the same models, wrapped to count what they are shown, and the same images; it returns one
candidate per image. What it says of its own success is not asked. Other libraries attack several models by
the mean of their logits.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp

OURS = "saddlepoint"
NORMS = {math.inf: "Linf", 2.0: "L2", 1.0: "L1"}


@dataclass(frozen=True)
class Work:
    """What a method is given: K models, n images, a ball, and how often it may ask for a gradient."""

    models: Sequence[nn.Module]
    x: Tensor
    y: Tensor
    ball: sp.LpBall
    evaluations: int
    seed: int

    @property
    def eps(self) -> float:
        return float(self.ball.eps)

    @property
    def model(self) -> nn.Module:
        """The model, or of several the one whose logits are their mean."""
        return self.models[0] if len(self.models) == 1 else MeanLogits(self.models)


@dataclass(frozen=True)
class Method:
    """One line of a table: a name, the module it needs, what it does, and its step-size rule in words."""

    name: str
    library: str
    run: Callable[[Work], Tensor]
    rule: str
    norms: tuple[float, ...] = (math.inf, 2.0, 1.0)


class Counting(nn.Module):
    """A model that counts the images it is shown."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.images = 0
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        logits: Tensor = self.model(images)
        return logits


class MeanLogits(nn.Module):
    """The usual way to attack several models at once."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([model(images) for model in self.models]).mean(dim=0)


def load(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what it imports itself
        return importlib.import_module(name)


def missing(library: str) -> str | None:
    """Why a library cannot be used here, or None if it can."""
    try:
        load(library)
    # A library that is installed may still raise anything while it is imported, such as a torchvision that
    # was built for another torch; that is a reason to skip it like any other.
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


# ------------------------------------------------------------------------------------------ ours


def _attack(rule: sp.AbstractWeightRule, loss: sp.Loss | None = None) -> Callable[[Work], Tensor]:
    def run(work: Work) -> Tensor:
        problem = sp.Ensemble(work.models, work.x, work.y)
        most, seed = work.evaluations, work.seed
        return sp.attack(
            problem, work.ball, rule=rule, loss=loss, evaluations=most, seed=seed
        ).adversarial

    return run


def _apgda(work: Work) -> Tensor:
    problem = sp.Ensemble(work.models, work.x, work.y)
    return sp.apgda(problem, work.ball, steps=work.evaluations - 1).adversarial


def _quick(work: Work) -> Tensor:
    threats = {"threat": work.ball}
    result = sp.robust_accuracy(work.model, work.x, work.y, threats, "quick", seed=work.seed)
    return work.x + result.nearest["threat"]


# ------------------------------------------------------------------------------------------ peers


def _torchattacks(kind: dict[float, str], share: dict[float, float]) -> Callable[[Work], Tensor]:
    def run(work: Work) -> Tensor:
        attack = getattr(load("torchattacks"), kind[work.ball.p])
        alpha = share[work.ball.p] * work.eps
        made = attack(work.model, eps=work.eps, alpha=alpha, steps=work.evaluations)
        candidates: Tensor = made(work.x, work.y)
        return candidates

    return run


_FOOLBOX = {
    math.inf: "LinfProjectedGradientDescentAttack",
    2.0: "L2ProjectedGradientDescentAttack",
    1.0: "SparseL1DescentAttack",  # its l1 PGD rescales instead of projecting
}


def _foolbox(work: Work) -> Tensor:
    foolbox = load("foolbox")
    model = foolbox.PyTorchModel(work.model, bounds=(0, 1), device=work.x.device)
    attack = getattr(foolbox.attacks, _FOOLBOX[work.ball.p])(steps=work.evaluations)
    _, clipped, _ = attack(model, work.x, work.y, epsilons=work.eps)
    candidates: Tensor = clipped
    return candidates


def _apgd(loss: str) -> Callable[[Work], Tensor]:
    def run(work: Work) -> Tensor:
        attack = load("pyautoattack.autopgd_base").APGDAttack(
            work.model,
            n_iter=work.evaluations - 1,  # it evaluates its start too
            norm=NORMS[work.ball.p],
            eps=work.eps,
            seed=work.seed,
            loss=loss,
            device=work.x.device,
            use_largereps=work.ball.p == 1,  # as AutoAttack sets it for l1
        )
        # Fooling the mean is not fooling all: of several models the point of highest loss is asked for.
        candidates: Tensor = attack.perturb(work.x, work.y, best_loss=len(work.models) > 1)
        return candidates

    return run


def _autoattack(work: Work) -> Tensor:
    attack = load("pyautoattack").AutoAttack(
        work.model, norm=NORMS[work.ball.p], eps=work.eps, seed=work.seed, version="standard"
    )
    candidates: Tensor = attack.run_standard_evaluation(work.x, work.y, batch_size=len(work.x))[0]
    return candidates


_NONE = ""
_QUARTER = "step = radius / 4, the ratio of its defaults (2/255 of 8/255)"
_PGD = Method(
    "torchattacks PGD",
    "torchattacks",
    _torchattacks({math.inf: "PGD", 2.0: "PGDL2"}, {math.inf: 1 / 4, 2.0: 1 / 5}),
    f"{_QUARTER}; l2: radius / 5 (0.2 of 1.0); it has no l1 attack",
    (math.inf, 2.0),
)
_FOOLBOX_PGD = Method(
    "foolbox PGD",
    "foolbox",
    _foolbox,
    "its defaults: step = radius / 30 (linf), radius / 40 (l2); l1: sparse descent, radius / 5",
)
_APGD = tuple(
    Method(
        f"APGD-{loss.upper()}",
        "pyautoattack",
        _apgd(loss),
        "adaptive; l1: in balls that shrink, as AutoAttack sets it",
    )
    for loss in ("ce", "dlr")
)

APGD_CE = _APGD[0]

# The first of each room is the one that ratios compare with.
METHODS: dict[str, tuple[Method, ...]] = {
    "a": (
        Method("`attack`, min-max", OURS, _attack(sp.MinMax()), _NONE),
        Method("`attack`, average", OURS, _attack(sp.Average()), _NONE),
        Method("`apgda`, min-max", OURS, _apgda, "step = 1/4, the paper's for MNIST and linf"),
        _PGD,
        Method(
            "torchattacks MI-FGSM",
            "torchattacks",
            _torchattacks({math.inf: "MIFGSM"}, {math.inf: 1 / 4}),
            f"{_QUARTER}, decay 1",
            (math.inf,),
        ),
        _FOOLBOX_PGD,
        *_APGD,
    ),
    "b": (
        Method("`attack`", OURS, _attack(sp.MinMax()), _NONE),
        Method("`attack`, margin", OURS, _attack(sp.MinMax(), sp.cw_margin), _NONE),
        _PGD,
        _FOOLBOX_PGD,
        *_APGD,
    ),
    "d": (
        Method("suite `quick`", OURS, _quick, _NONE),
        Method("AutoAttack standard", "pyautoattack", _autoattack, "its own driver and settings"),
    ),
}
