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

from saddlepoint.directions import Direction, raw
from saddlepoint.projections import LpBall
from saddlepoint.solver.schedule import Schedule
from saddlepoint.solver.steps import movable, random_point, steepest, step

__all__ = ["AbstractStart", "RandomStart", "Threat", "WarmStart", "ZeroStart", "check_threats"]


@final
@dataclass(frozen=True)
class Threat:
    """An attacker: perturbations in a ball, found by projected steps.

    With neither `step_size` nor `direction` the steps are those of a restart of `attack`: they shorten from two
    radii to none, and for p = 1 and 2 the first iterates are in a larger ball, which shrinks to the true one
    over two thirds of the steps. Networks soon learn to hide from ten plain l1 steps, and also from balls of
    one size: `train` takes all three sizes in turn. With either of them it is plain projected gradient ascent,
    as in the paper: equal steps in one ball.

    Args:
        ball: Where the perturbation may be.
        step_size: Length of a plain step, in the units of `direction`. None, with a direction, is 2.5 radii
            divided by the number of steps, enough to cross the ball; p = 0, whose radius is a count, takes a
            radius of one.
        direction: What the gradient becomes. None is the steepest ascent of the ball's norm, as in `attack`:
            signs for linf, unit length for l2, the largest entries for l1, and unit linf length for p = 0.
            `directions.raw` is the plain gradient of the paper's appendix and needs a `step_size`.
        turn: Which restart of `attack` the default steps are those of, from 1; see `turned`.

    Example:
        >>> strong = Threat(LpBall(p=1, eps=10.0))
        >>> plain = Threat(LpBall(p=1, eps=10.0), step_size=2.0)
        >>> plain.step_length(steps=10)
        2.0
    """

    ball: LpBall
    step_size: float | None = None
    direction: Direction | None = None
    turn: int = 1

    def __post_init__(self) -> None:
        if self.turn < 1:
            raise ValueError(f"`turn` must be >= 1, got {self.turn}.")
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
        steps: int,
    ) -> Tensor:
        """One projected ascent step of delta_i on psi = sum_j w_j f_j.

        The gradient of psi is w_i times that of f_i. A direction of unit length does not depend on w_i
        as long as it is positive, and is taken as its limit where w_i = 0: no threat stands still for
        being easy at the moment. The plain gradient of `directions.raw` is multiplied by w_i.

        Args:
            delta: This iterate, (B, ...).
            gradient: Of f_i at delta, (B, ...).
            weight: w_i, (B,).
            lower: Box, (B, ...).
            upper: Box, (B, ...).
            number: Of this step, from 0.
            steps: How many there are.
        """
        if self._scheduled:
            plan = Schedule(steps, self.turn)
            return step(
                plan.ball(self.ball, number + 1),
                (lower, upper),
                delta,
                delta,
                -gradient,
                plan.length(number),
                momentum=0.0,
                entries=plan.entries(self.ball, delta[0].numel(), number),
            )
        if self.ball.p == 1 and self.direction is not raw:
            # The largest entries are sought among those that the box lets move.
            gradient = movable(gradient, delta, lower, upper)
        direction = partial(steepest, self.ball) if self.direction is None else self.direction
        move = direction(gradient)
        length = _column(self.step_length(steps), delta)
        if direction is raw:
            length = length * _column(weight, delta)
        return self.ball._project(delta + length * move, lower, upper)

    def inside(self, number: int, steps: int) -> bool:
        """Whether iterate `number` of `steps` is in the ball, as starts and all of plain ascent are."""
        plan = Schedule(steps, self.turn)
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

    def turned(self, number: int) -> Threat:
        """The threat as step `number` of training, from 0, meets it: another size of ball every time.

        Example:
            >>> threat = Threat(LpBall(1, 10.0))
            >>> [threat.turned(number).turn for number in range(3)]
            [1, 2, 3]
        """
        return replace(self, turn=number + 1)


class AbstractStart(ABC):
    """Where the inner maximisation starts: delta_0 for every threat, and w_0."""

    @abstractmethod
    def delta(self, threats: Sequence[Threat], lower: Tensor, upper: Tensor) -> Tensor:
        """Feasible perturbations, (K, B, ...)."""

    @abstractmethod
    def weights(self, losses: Tensor) -> Tensor | None:
        """Weights (B, K) on the simplex, in the dtype of `losses`, (B, K); None leaves them to the rule."""


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

    def weights(self, losses: Tensor) -> Tensor | None:
        """Those of the rule."""
        del losses
        return None


@final
@dataclass(frozen=True)
class RandomStart(AbstractStart):
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

    def weights(self, losses: Tensor) -> Tensor | None:
        """Those of the rule."""
        del losses
        return None


@final
@dataclass(frozen=True)
class WarmStart(AbstractStart):
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

    def weights(self, losses: Tensor) -> Tensor | None:
        """The given weights for every row."""
        if self.row_weights is None:
            return None
        given = self.row_weights.detach().to(losses)
        if tuple(given.shape) not in (tuple(losses.shape), tuple(losses.shape[1:])):
            raise ValueError(
                f"`row_weights` must have shape (B, K) = {tuple(losses.shape)} or (K,), "
                f"got {tuple(given.shape)}."
            )
        if bool((given < 0).any()) or bool(((given.sum(dim=-1) - 1).abs() > 1e-4).any()):
            raise ValueError(
                f"`row_weights` must be >= 0 and sum to one over K, got sums from "
                f"{given.sum(dim=-1).min().item()} to {given.sum(dim=-1).max().item()}."
            )
        return given.expand_as(losses).clone()


def check_threats(threats: Mapping[str, Threat]) -> dict[str, Threat]:
    """The threats as a dictionary, or an error that says how to write them."""
    example = '{"linf": Threat(LpBall(math.inf, 0.3)), "l2": Threat(LpBall(2, 2.0))}'
    if not isinstance(threats, Mapping) or not threats:
        raise ValueError(
            f"`threats` must name at least one threat, such as {example}, got {threats!r}."
        )
    for name, threat in threats.items():
        if not isinstance(threat, Threat):
            raise TypeError(
                f"`threats[{name!r}]` must be a Threat, such as in {example}, got {threat!r}."
            )
    return dict(threats)


def _column(value: float | Tensor, like: Tensor) -> Tensor:
    """A number, or one number per row, (B,), to multiply (B, ...) by."""
    column = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    return column if column.dim() == 0 else column.reshape(-1, *(1 for _ in like.shape[1:]))
