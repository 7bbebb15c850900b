"""Training methods by name: what `train` and the command line call AMPGD, AVG, MAX, MSD and so on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypedDict, Unpack, final

import torch
from torch import Tensor, nn

from saddlepoint.weights import AbstractWeightRule

from .ampgd import StepStats, ampgd_step, avg_step, max_step, msd_step
from .threats import AbstractStart, RandomStart, Threat, WarmStart, ZeroStart, check_threats

__all__ = [
    "ADVERSARIAL",
    "AbstractMethod",
    "MethodOptions",
    "Moment",
    "Plain",
    "Step",
    "make_method",
]

Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor], Mapping[str, float]]
"""One update of the weights on a batch; returns means over the batch, "loss" among them."""


class MethodOptions(TypedDict, total=False):
    """Options of the adversarial methods.

    Attributes:
        rule: How the weights move, for ampgd only.
        steps: R, steps of the inner attack.
        mix: Share of the adversarial loss.
        start: "zero"; "random", a new point for every image and step; or "warm", where the weights of a step
            start from the mean weights of the step before, as in Algorithm 2.
        ramp: Epochs over which the radii rise from zero, as l1 and linf training from scratch may need.
    """

    rule: AbstractWeightRule | None
    steps: int
    mix: float
    start: Literal["zero", "random", "warm"]
    ramp: float


@final
@dataclass(frozen=True)
class Moment:
    """What a step may depend on besides its batch: the same in every run, and in every process.

    Attributes:
        number: Of the step, from 0, over all epochs.
        time: Epochs passed at the end of the step.
        seed: Of this step's random numbers.
        rows: Positions of the rows in the whole batch, (B,).
    """

    number: int
    time: float
    seed: int
    rows: Tensor


class AbstractMethod(ABC):
    """A way to train: a step, and what it has to remember from one step to the next."""

    @abstractmethod
    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        moment: Moment,
    ) -> Mapping[str, float]:
        """One update of the model; returns means over the batch, "loss" among them."""

    @abstractmethod
    def observe(self, stats: Mapping[str, float]) -> None:
        """Learn the means over the whole batch, of which this process may have seen a part."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""


@final
@dataclass(frozen=True)
class Plain(AbstractMethod):
    """A step function that depends on its batch only, and remembers nothing."""

    function: Step

    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        moment: Moment,
    ) -> Mapping[str, float]:
        """Call the function."""
        del moment
        return self.function(model, optimizer, x, y)

    def observe(self, stats: Mapping[str, float]) -> None:
        """Nothing to learn."""

    def state(self) -> dict[str, Tensor]:
        """Nothing to keep."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""


Factory = Callable[[dict[str, Threat], MethodOptions], AbstractMethod]


class _StepFunction(Protocol):
    def __call__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        threats: Mapping[str, Threat],
        *,
        steps: int,
        start: AbstractStart | None,
        mix: float,
    ) -> StepStats: ...


@final
class _Adversarial(AbstractMethod):
    def __init__(
        self, function: _StepFunction, threats: dict[str, Threat], options: MethodOptions
    ) -> None:
        self.function, self.threats = function, threats
        self.steps, self.mix = options.get("steps", 10), options.get("mix", 1.0)
        self.start, self.ramp = options.get("start", "zero"), options.get("ramp", 0.0)
        self.weights: Tensor | None = None
        if self.start not in ("zero", "random", "warm"):
            raise ValueError(f"`start` must be 'zero', 'random' or 'warm', got {self.start!r}.")
        if not 0 <= self.ramp < math.inf:
            raise ValueError(f"`ramp` must be >= 0 epochs, got {self.ramp}.")

    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        moment: Moment,
    ) -> Mapping[str, float]:
        factor = min(1.0, moment.time / self.ramp) if self.ramp else 1.0
        threats = {name: threat.turned(moment.number) for name, threat in self.threats.items()}
        if factor < 1:
            threats = {name: threat.scaled(factor) for name, threat in threats.items()}
        start: AbstractStart = ZeroStart()
        if self.start == "random":
            start = RandomStart(moment.seed, moment.rows)
        elif self.start == "warm":
            start = WarmStart(row_weights=self.weights)
        stats = self.function(
            model, optimizer, x, y, threats, steps=self.steps, start=start, mix=self.mix
        )
        return stats.scalars()

    def observe(self, stats: Mapping[str, float]) -> None:
        if self.start == "warm":
            means = torch.tensor([stats[f"weight/{name}"] for name in self.threats])
            self.weights = means / means.sum()

    def state(self) -> dict[str, Tensor]:
        return {} if self.weights is None else {"weights": self.weights}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.weights = state.get("weights")


def make_method(
    name: str, threats: Mapping[str, Threat], **options: Unpack[MethodOptions]
) -> AbstractMethod:
    """The adversarial method called `name`.

    Args:
        name: A key of `ADVERSARIAL`.
        threats: K named threats.
        **options: See `MethodOptions`.

    Example:
        >>> from saddlepoint.projections import LpBall
        >>> threats = {"linf": Threat(LpBall(math.inf, 0.3)), "l2": Threat(LpBall(2, 2.0))}
        >>> method = make_method("ampgd", threats, steps=5, start="warm")
        >>> method.state()
        {}
    """
    if name not in ADVERSARIAL:
        raise ValueError(f"`method` must be one of {', '.join(ADVERSARIAL)}, got {name!r}.")
    threats = check_threats(threats)
    rule = options.get("rule")
    if rule is not None and name != "ampgd":
        raise ValueError(
            f"`rule` must be None unless the method is 'ampgd', got {rule} for {name!r}."
        )
    return ADVERSARIAL[name](threats, options)


def _ampgd(threats: dict[str, Threat], options: MethodOptions) -> AbstractMethod:
    return _Adversarial(partial(ampgd_step, rule=options.get("rule")), threats, options)


def _rival(function: _StepFunction) -> Factory:
    return lambda threats, options: _Adversarial(function, threats, options)


def _single(p: float | None = None) -> Factory:
    """Trains against the only threat, or the only one of norm p, out of those that are validated."""

    def factory(threats: dict[str, Threat], options: MethodOptions) -> AbstractMethod:
        fitting = {name: each for name, each in threats.items() if p in (None, each.ball.p)}
        if len(fitting) != 1:
            wanted = "" if p is None else f" of norm p = {p}"
            got = ", ".join(f"{name} (p = {each.ball.p})" for name, each in threats.items())
            raise ValueError(
                f"`threats` must have exactly one threat{wanted} for this method, got {got}."
            )
        return _Adversarial(avg_step, fitting, options)

    return factory


ADVERSARIAL: dict[str, Factory] = {
    "ampgd": _ampgd,
    "avg": _rival(avg_step),
    "max": _rival(max_step),
    "msd": _rival(msd_step),
    "linf": _single(math.inf),
    "l2": _single(2),
    "l1": _single(1),
    "single": _single(),
}
"""Methods that need threats; linf, l2 and l1 train against the threat of that norm only."""
