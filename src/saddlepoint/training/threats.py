"""Threats: a ball to stay in, a step that suits its norm, and where the perturbations start.

Perturbations of K threats are held as (K, B, ...): one block of rows per threat, ready to be run
through a network as one batch. The box of images in [0, 1] is -x <= delta <= 1 - x.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from saddlepoint.counts import check_seed
from saddlepoint.directions import Direction, raw
from saddlepoint.display import Brief
from saddlepoint.projections import LpBall
from saddlepoint.projections.arguments import column
from saddlepoint.solver.schedule import Schedule
from saddlepoint.solver.steps import movable, random_point, steepest, step

__all__ = [
    "AbstractStart",
    "RandomStart",
    "Threat",
    "ThreatLike",
    "WarmStart",
    "ZeroStart",
    "check_threats",
]


@final
@dataclass(frozen=True, repr=False)
class Threat(Brief):
    """An attacker: perturbations in a ball, found by projected steps.

    With neither `step_size` nor `direction` the steps are those of a restart of `attack`: they shorten from two
    radii to none, and for p = 1 and 2 the first iterates are in a larger ball, which shrinks to the true one
    over two thirds of the steps. Networks soon learn to mask their gradients for ten plain l1 steps,
    and also for balls of one size: there are three sizes in turn, by the `iteration` that a training step is
    told. With either of them it is plain projected gradient ascent, as in the paper: equal steps in one ball.

    Args:
        ball: Where the perturbation may be.
        step_size: Length of a plain step, in the units of `direction`. None, with a direction, is 2.5 radii
            divided by the number of steps, enough to cross the ball; p = 0, whose radius is a count, takes a
            radius of one.
        direction: What the gradient becomes. None is the steepest ascent of the ball's norm, as in `attack`:
            signs for linf, unit length for l2, the largest entries for l1, and unit linf length for p = 0.
            `directions.raw` is the plain gradient of the paper's appendix and needs a `step_size`.

    Example:
        >>> strong = Threat(LpBall(p=1, eps=10.0))
        >>> plain = Threat(LpBall(p=1, eps=10.0), step_size=2.0)
        >>> plain.step_length(steps=10)
        2.0
    """

    ball: LpBall
    step_size: float | None = None
    direction: Direction | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ball, LpBall):
            raise TypeError(f"`ball` must be an LpBall, such as LpBall(2, 1.0), got {self.ball!r}.")
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(f"`step_size` must be positive and finite, got {self.step_size}.")
        if self.direction is raw and self.step_size is None:
            raise ValueError(
                "`step_size` must be given with direction=raw, got None: the length of a plain gradient "
                "says nothing about the ball. Try 1.0, or leave out `direction`."
            )

    def step_length(self, steps: int) -> float | Tensor:
        """Length of one of `steps` plain steps: a number, or (B,) if every row has its own radius."""
        if self.step_size is not None:
            return self.step_size
        return 2.5 * (1.0 if self.ball.p == 0 else self.ball.eps) / steps

    def ascend(
        self,
        delta: Tensor,
        gradient: Tensor,
        weight: Tensor,
        lower: Tensor,
        upper: Tensor,
        number: int,
        plan: Schedule,
    ) -> Tensor:
        """One projected ascent step of delta_i on psi = sum_j w_j f_j.

        The gradient of psi is w_i times that of f_i. A direction of unit length does not depend on w_i
        as long as it is positive, and is taken as its limit where w_i = 0: no threat stops moving for
        being easy at the moment. The plain gradient of `directions.raw` is multiplied by w_i.

        Args:
            delta: This iterate, (B, ...).
            gradient: Of f_i at delta, (B, ...).
            weight: w_i, (B,).
            lower: Box, (B, ...).
            upper: Box, (B, ...).
            number: Of this step, from 0.
            plan: How many steps there are, and which size of ball the default steps begin in.
        """
        if self._scheduled:
            return step(
                plan.ball(self.ball, number + 1),
                lower,
                upper,
                delta,
                -gradient,
                plan.length(number),
                plan.entries(self.ball, delta, number),
            )
        if self.ball.p == 1 and self.direction is not raw:
            # The largest entries are sought among those that the box lets move.
            gradient = movable(gradient, delta, lower, upper)
        direction = partial(steepest, self.ball) if self.direction is None else self.direction
        move = direction(gradient)
        length = column(self.step_length(plan.steps), delta)
        if direction is raw:
            length = length * column(weight, delta)
        return self.ball._project(delta + length * move, lower, upper)

    def inside(self, number: int, plan: Schedule) -> bool:
        """Whether iterate `number` is in the ball, as starts and all of plain ascent are."""
        return number == 0 or not self._scheduled or plan.ball(self.ball, number) is self.ball

    @property
    def _scheduled(self) -> bool:
        return self.step_size is None and self.direction is None

    def describe(self) -> list[str | float | None]:
        """The threat as plain data, equal for equal threats in any process."""
        eps = self.ball.eps.tolist() if isinstance(self.ball.eps, Tensor) else float(self.ball.eps)
        # A function is known by its name: its repr holds an address.
        direction = getattr(self.direction, "__name__", str(self.direction))
        return [str(self.ball.p), str(eps), self.ball.unit, self.step_size, direction]

    def scaled(self, factor: float) -> Threat:
        """The threat with radius and given step size multiplied by `factor`; counts are rounded up."""
        eps = self.ball.eps * factor
        if self.ball.p == 0:
            eps = eps.ceil() if isinstance(eps, Tensor) else float(math.ceil(eps))
        size = None if self.step_size is None else self.step_size * factor
        return replace(self, ball=LpBall(self.ball.p, eps, self.ball.unit), step_size=size)


ThreatLike = LpBall | Threat
"""A threat; a ball is the threat with its default steps."""


class AbstractStart(ABC):
    """Where the inner maximisation starts: delta_0 for every threat, and w_0.

    Example:
        >>> import saddlepoint as sp
        >>> class Corner(sp.AbstractStart):  # as far up as every ball allows
        ...     def delta(self, threats, lower, upper):
        ...         return torch.stack([each.ball.project(upper, lower, upper) for each in threats])
        ...     def weights(self, initial):
        ...         return initial
        >>> threats = [Threat(sp.linf(0.1)), Threat(sp.linf(0.2))]
        >>> Corner().delta(threats, -torch.ones(1, 2), torch.ones(1, 2))[:, 0, 0]
        tensor([0.1000, 0.2000])
    """

    @abstractmethod
    def delta(self, threats: Sequence[Threat], lower: Tensor, upper: Tensor) -> Tensor:
        """Feasible perturbations, (K, B, ...)."""

    @abstractmethod
    def weights(self, initial: Tensor) -> Tensor:
        """Weights (B, K) on the simplex, given those that the rule begins with, (B, K)."""


@final
@dataclass(frozen=True)
class ZeroStart(AbstractStart):
    """No perturbation, and the weights the rule begins with.

    Example:
        >>> threats = [Threat(LpBall(math.inf, 0.1)), Threat(LpBall(2, 1.0))]
        >>> ZeroStart().delta(threats, torch.zeros(5, 3), torch.ones(5, 3)).shape
        torch.Size([2, 5, 3])
    """

    def delta(self, threats: Sequence[Threat], lower: Tensor, upper: Tensor) -> Tensor:
        """Zeros."""
        del upper  # zero is in every box
        return lower.new_zeros(len(threats), *lower.shape)

    def weights(self, initial: Tensor) -> Tensor:
        """Those of the rule."""
        return initial


@final
@dataclass(frozen=True, repr=False)
class RandomStart(Brief, AbstractStart):
    """A random point of every ball, from each row's own stream: the same row meets the same point in any batch.

    linf points are uniform in the ball, l1 and l2 points have a random direction and full length, before
    they are projected onto the box.

    Args:
        seed: Take another one at every step.
        rows: Row numbers, (B,); positions in the batch by default.

    Example:
        >>> threats = [Threat(LpBall(math.inf, 0.1))]
        >>> start = RandomStart(seed=3).delta(threats, torch.zeros(5, 3), torch.ones(5, 3))
        >>> bool((start > 0).any()), bool((start <= 0.1).all())
        (True, True)
    """

    seed: int
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))

    def delta(self, threats: Sequence[Threat], lower: Tensor, upper: Tensor) -> Tensor:
        """Random points."""
        rows = torch.arange(len(lower)) if self.rows is None else self.rows
        if rows.shape != lower.shape[:1]:
            raise ValueError(
                f"`rows` must have shape (B,) = ({len(lower)},), got {tuple(rows.shape)}."
            )
        rows = rows.to(lower.device)
        points = [
            random_point(threat.ball, lower, upper, self.seed, rows, stream)
            for stream, threat in enumerate(threats)
        ]
        return torch.stack(points)

    def weights(self, initial: Tensor) -> Tensor:
        """Those of the rule."""
        return initial


@final
@dataclass(frozen=True, repr=False)
class WarmStart(Brief, AbstractStart):
    """Perturbations or weights of an earlier step, as `StepStats` returns them.

    Args:
        perturbations: (B, K, ...), projected first; None is zero.
        row_weights: (B, K) or (K,), on the simplex; None leaves them to the rule.

    Example:
        >>> start = WarmStart(row_weights=torch.tensor([0.9, 0.1]))
        >>> start.weights(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """

    perturbations: Tensor | None = None
    row_weights: Tensor | None = None

    def delta(self, threats: Sequence[Threat], lower: Tensor, upper: Tensor) -> Tensor:
        """The given perturbations, projected onto ball and box."""
        if self.perturbations is None:
            return ZeroStart().delta(threats, lower, upper)
        expected = (len(lower), len(threats), *lower.shape[1:])
        if tuple(self.perturbations.shape) != expected:
            raise ValueError(
                f"`perturbations` must have shape (B, K, ...) = {expected}, "
                f"got {tuple(self.perturbations.shape)}."
            )
        given = self.perturbations.detach().to(lower)
        points = [
            threat.ball.project(given[:, k], lower, upper) for k, threat in enumerate(threats)
        ]
        return torch.stack(points)

    def weights(self, initial: Tensor) -> Tensor:
        """The given weights for every row."""
        if self.row_weights is None:
            return initial
        given = self.row_weights.detach().to(initial)
        if tuple(given.shape) not in (tuple(initial.shape), tuple(initial.shape[1:])):
            raise ValueError(
                f"`row_weights` must have shape (B, K) = {tuple(initial.shape)} or (K,), "
                f"got {tuple(given.shape)}."
            )
        if bool((given < 0).any()) or bool(((given.sum(dim=-1) - 1).abs() > 1e-4).any()):
            raise ValueError(
                f"`row_weights` must be >= 0 and sum to one over K, got sums from "
                f"{given.sum(dim=-1).min().item()} to {given.sum(dim=-1).max().item()}."
            )
        return given.expand_as(initial).clone()


class Checked(dict[str, Threat]):
    """Threats whose radii have been checked against the shape of the images: a warning comes once."""


def check_threats(
    threats: Mapping[str, ThreatLike], shape: Sequence[int] | None = None
) -> dict[str, Threat]:
    """The threats by name, a ball as the threat with its default steps; or an error with an example.

    Args:
        threats: Named balls or `Threat`s, whose radii can be meant for images in [0, 1].
        shape: Of one image, to warn of radii that bound nothing.

    Example:
        >>> check_threats({"l2": LpBall(2, 1.0)}) == {"l2": Threat(LpBall(2, 1.0))}
        True
    """
    if isinstance(threats, Checked):
        return threats
    example = '{"linf": sp.linf(0.3), "l2": sp.l2(2.0)}'
    if not isinstance(threats, Mapping) or not threats:
        got = f"a {type(threats).__name__}" if threats else repr(threats)
        raise ValueError(
            "`threats` must name at least one threat, in a mapping from names to balls such as "
            f"{example}, got {got}."
        )
    found: dict[str, Threat] = {} if shape is None else Checked()
    for name, threat in threats.items():
        if not isinstance(threat, LpBall | Threat):
            raise TypeError(
                f"`threats[{name!r}]` must be an LpBall or a Threat, such as in {example}, got {threat!r}."
            )
        found[name] = Threat(threat) if isinstance(threat, LpBall) else threat
        found[name].ball.check(shape, stacklevel=4)
    return found
