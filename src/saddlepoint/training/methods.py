"""Training methods by name: what `train` and the command line call AMPGD, AVG, MAX, MSD and so on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, Protocol, TypedDict, Unpack, final

import torch
from torch import Tensor, nn

from saddlepoint.directions import raw
from saddlepoint.precision import Precision
from saddlepoint.rules import AbstractWeightRule, MinMax

from .abstract_method import AbstractMethod, Moment
from .ampgd import StepStats, ampgd_step, avg_step, max_step, msd_step
from .distributed import World
from .extreme import Drawn, RunningErrors
from .memory import Memory, Visit
from .threats import (
    AbstractStart,
    Checked,
    RandomStart,
    Threat,
    ThreatLike,
    ZeroStart,
    check_threats,
)

__all__ = ["ADVERSARIAL", "MethodOptions", "make_method", "with_radii"]


class MethodOptions(TypedDict, total=False):
    """Options of the adversarial methods.

    Attributes:
        rule: How the weights move, for ampgd and ampgd-paper only.
        steps: R, steps of the inner attack.
        mix: Share of the adversarial loss.
        start: "zero"; "random", a new point for every image and step; or "warm", where every image goes on from
            the perturbations and weights it was left with in the epoch before, as in Algorithm 2. For that the
            loader must give numbers of images too, and memory holds K times the data set.
        ramp: Epochs over which the radii rise from zero, as l1 and linf training from scratch may need.
        radii: Radii to train with, by the names of threats, where they differ from those that are validated. A
            threat that the inner attack finds too little for, as is usual for l1, wants a larger one.

    Example:
        >>> import saddlepoint as sp
        >>> options: sp.MethodOptions = {"steps": 5, "ramp": 2.0}
        >>> model, data = nn.Linear(4, 3), sp.Batches(torch.rand(6, 4), torch.arange(6) % 3, 3)
        >>> history = sp.train(model, data, {"linf": sp.linf(0.1)}, epochs=1, **options)
        >>> len(history)
        1
    """

    rule: AbstractWeightRule | None
    steps: int
    mix: float
    start: Literal["zero", "random", "warm"]
    ramp: float
    radii: Mapping[str, float]


class _Options(MethodOptions, total=False):
    precision: Precision


Factory = Callable[[dict[str, Threat], _Options], AbstractMethod]


class _StepFunction(Protocol):
    def __call__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        threats: Mapping[str, ThreatLike],
        *,
        iteration: int,
        steps: int,
        start: AbstractStart | None,
        mix: float,
        precision: Precision,
    ) -> StepStats: ...


@final
class _Adversarial(AbstractMethod):
    def __init__(
        self, function: _StepFunction, threats: dict[str, Threat], options: _Options
    ) -> None:
        self.function, self.threats = function, threats
        self.steps, self.mix = options.get("steps", 10), options.get("mix", 1.0)
        self.start, self.ramp = options.get("start", "zero"), options.get("ramp", 0.0)
        self.precision = options.get("precision", "float32")
        self.memory = Memory()
        self._visit: Visit | None = None
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
        self.threats = check_threats(self.threats, x.shape[1:])
        factor = min(1.0, moment.time / self.ramp) if self.ramp else 1.0
        threats = self.threats
        if factor < 1:
            # The radii that are meant have been checked; those on the way to them say nothing new.
            threats = Checked({name: each.scaled(factor) for name, each in threats.items()})
        start = self._start(moment)
        stats = self.function(
            *(model, optimizer, x, y, threats),
            iteration=moment.number,
            steps=self.steps,
            start=start,
            mix=self.mix,
            precision=self.precision,
        )
        if self.start == "warm" and moment.images is not None:
            self._visit = Visit(moment.images, stats.perturbations.cpu(), stats.row_weights.cpu())
        return stats.scalars()

    def _start(self, moment: Moment) -> AbstractStart:
        if self.start == "zero":
            return ZeroStart()
        if self.start == "random":
            return RandomStart(moment.seed, moment.rows)
        if moment.images is None:
            raise ValueError(
                "`loader` must give (x, y, numbers of the images) for a warm start, got (x, y): every image "
                "goes on from where it was left, so that it must not be mirrored or cropped anew either. "
                "Batches(x, y, size, numbered=True) and TensorDataset(x, y, torch.arange(len(x))) have numbers."
            )
        return self.memory.recall(moment.images)

    def share(self, world: World) -> None:
        if self.start == "warm":
            for visit in world.gather(self._visit):
                if visit is not None:
                    self.memory.keep(visit)
            self._visit = None

    def state(self) -> dict[str, Tensor]:
        return self.memory.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.memory.restore(state)


@final
class _Extreme(AbstractMethod):
    """E-AT: `_Adversarial` against one threat per step, which `RunningErrors` draws."""

    def __init__(self, threats: dict[str, Threat], options: _Options) -> None:
        if options.get("start", "zero") == "warm":
            raise ValueError(
                "`start` must be 'zero' or 'random' for method 'eat', got 'warm': an image meets another "
                "threat from visit to visit."
            )
        self.errors = RunningErrors(threats)
        self.alone = {
            name: _Adversarial(avg_step, {name: threat}, options)
            for name, threat in threats.items()
        }
        self._drawn: Drawn | None = None

    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        moment: Moment,
    ) -> Mapping[str, float]:
        name = self.errors.draw(moment.seed)
        stats = self.alone[name].step(model, optimizer, x, y, moment)
        self._drawn = Drawn(name, len(x) * (1 - stats["accuracy"]), len(x))
        # Of a threat that was not drawn nothing is known but that it was not.
        drawn = {f"weight/{each}": float(each == name) for each in self.alone}
        return {"loss": stats["loss"], "accuracy": stats["accuracy"]} | drawn

    def share(self, world: World) -> None:
        self.errors.update(*(each for each in world.gather(self._drawn) if each is not None))
        self._drawn = None

    def state(self) -> dict[str, Tensor]:
        return self.errors.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.errors.restore(state)


def make_method(
    name: str, threats: Mapping[str, ThreatLike], **options: Unpack[_Options]
) -> AbstractMethod:
    """The adversarial method called `name`.

    Args:
        name: A key of `ADVERSARIAL`.
        threats: K named threats.
        **options: See `MethodOptions`; and `precision`, as in `ampgd_step`.

    Example:
        >>> from saddlepoint.projections import LpBall
        >>> threats = {"linf": LpBall(math.inf, 0.3), "l2": LpBall(2, 2.0)}
        >>> method = make_method("ampgd", threats, steps=5, start="warm")
        >>> method.state()
        {}
    """
    if name not in ADVERSARIAL:
        raise ValueError(f"`method` must be one of {', '.join(ADVERSARIAL)}, got {name!r}.")
    rule = options.get("rule")
    if rule is not None and name not in ("ampgd", "ampgd-paper"):
        raise ValueError(
            f"`rule` must be None unless the method is 'ampgd' or 'ampgd-paper', got {rule} for {name!r}."
        )
    trained = with_radii(check_threats(threats), options.get("radii", {}))
    return ADVERSARIAL[name](trained, options)


def with_radii(threats: Mapping[str, Threat], radii: Mapping[str, float]) -> dict[str, Threat]:
    """The threats to train against: some with a radius of their own.

    Example:
        >>> import saddlepoint as sp
        >>> threats = check_threats({"l2": sp.l2(2.0), "l1": sp.l1(10.0)})
        >>> [threat.ball.eps for threat in with_radii(threats, {"l1": 12.0}).values()]
        [2.0, 12.0]
    """
    unknown = [name for name in radii if name not in threats]
    if unknown:
        raise ValueError(
            f"`radii` must be by the names of threats, {', '.join(threats)}, got {unknown[0]!r}."
        )
    balls = {name: replace(threats[name].ball, eps=eps) for name, eps in radii.items()}
    return {**threats, **{name: replace(threats[name], ball=ball) for name, ball in balls.items()}}


def _ampgd(threats: dict[str, Threat], options: _Options) -> AbstractMethod:
    return _Adversarial(partial(ampgd_step, rule=options.get("rule")), threats, options)


def _literal(threats: dict[str, Threat], options: _Options) -> AbstractMethod:
    """Algorithm 2 as printed: plain gradients times w_i, one step size beta for w and delta, warm starts."""
    rule = options.get("rule")
    if rule is None:
        # What section 5.3 of the paper advises, with the R of this step.
        rule = MinMax(step_size=1 / options.get("steps", 10), gamma=1.0)
    if not isinstance(rule, MinMax) or rule.beta(len(threats)) * rule.gamma > 1:
        raise ValueError(
            "`rule` must be a MinMax with step_size <= 1 / gamma, as Theorem 1 asks, for method 'ampgd-paper', "
            f"got {rule}; method 'ampgd' takes any rule."
        )
    if options.get("start", "warm") != "warm" or options.get("ramp", 0.0) != 0:
        raise ValueError(
            "`start` must be 'warm' and `ramp` 0 for method 'ampgd-paper', which is Algorithm 2 to the letter, "
            f"got {options.get('start', 'warm')!r} and {options.get('ramp', 0.0)}; method 'ampgd' takes others."
        )
    for name, threat in threats.items():
        if threat.direction is not raw and (threat.direction or threat.step_size):
            raise ValueError(
                f"`threats[{name!r}]` must be a ball, or have direction=raw, for method 'ampgd-paper', which "
                f"takes plain gradients, got {threat}."
            )
    beta = rule.beta(len(threats))
    plain = {
        name: threat if threat.direction is raw else Threat(threat.ball, beta, raw)
        for name, threat in threats.items()
    }
    options = {**options, "start": "warm"}
    return _Adversarial(partial(ampgd_step, rule=rule), plain, options)


def _baseline(function: _StepFunction) -> Factory:
    return lambda threats, options: _Adversarial(function, threats, options)


def _alone(p: float) -> Factory:
    """Trains against the only threat of norm p, of those that are validated, and aims at it."""

    def factory(threats: dict[str, Threat], options: _Options) -> AbstractMethod:
        fitting = {name: each for name, each in threats.items() if each.ball.p == p}
        if len(fitting) != 1:
            got = ", ".join(f"{name} (p = {each.ball.p})" for name, each in threats.items())
            raise ValueError(
                f"`threats` must have exactly one threat of norm p = {p} for this method, got {got}."
            )
        method = _Adversarial(avg_step, fitting, options)
        (method.aim,) = fitting
        return method

    return factory


ADVERSARIAL: dict[str, Factory] = {
    "ampgd": _ampgd,
    "ampgd-paper": _literal,
    "avg": _baseline(avg_step),
    "max": _baseline(max_step),
    "msd": _baseline(msd_step),
    "eat": _Extreme,
    "linf": _alone(math.inf),
    "l2": _alone(2),
    "l1": _alone(1),
}
"""Methods that need threats; linf, l2 and l1 train against the threat of that norm only."""
