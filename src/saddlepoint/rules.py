"""How the domain weights move: the inner maximisation over the simplex (eq. 4 and 9).

A rule maps the losses F(delta_t) of every row and domain, (B, K), and the weights so far to new weights,
(B, K), each row on the simplex. Large loss = hard domain = more weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from saddlepoint.projections.solvers import onto_simplex

__all__ = ["AbstractWeightRule", "Average", "Entropic", "Fixed", "Grouped", "MinMax", "WorstCase"]


class AbstractWeightRule(ABC):
    """Two functions: the weights to start from, and the weights after an iterate.

    Example:
        >>> class Latest(AbstractWeightRule):  # weights by the losses of this step alone
        ...     def init(self, losses):
        ...         return torch.full_like(losses, 1 / losses.shape[1])
        ...     def update(self, weights, losses):
        ...         return losses.softmax(dim=1)
        >>> losses = torch.tensor([[0.0, 0.0], [0.0, 9.0]])
        >>> Latest().update(Latest().init(losses), losses).round(decimals=2)
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
    """

    @abstractmethod
    def init(self, losses: Tensor) -> Tensor:
        """Weights w_0, (B, K), given the losses F(delta_0), (B, K)."""

    @abstractmethod
    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        """Weights w_t, (B, K), from w_{t-1} and the losses F(delta_t), both (B, K)."""


@final
@dataclass(frozen=True)
class MinMax(AbstractWeightRule):
    """Projected gradient ascent on sum_i w_i F_i - gamma/2 ||w - 1/K||^2: the paper's inner maximisation.

        w_t = proj_simplex( w_{t-1} + step_size * (F(delta_t) - gamma * (w_{t-1} - 1/K)) )

    Args:
        step_size: beta in the paper, > 0, in weight per unit of loss. None is 0.4 / K, which suits margins: the
            more domains share the weight, the smaller its steps. The paper's values are in `saddlepoint.paper`.
        gamma: Pull towards equal weights, >= 0; infinity keeps them equal. Theorem 1 wants
            step_size < 1 / gamma. A longer step would overshoot and oscillate, so that the step is never
            longer than 1 / gamma, which lands on the maximiser itself: proj_simplex(1/K + F / gamma).

    Example:
        >>> rule = MinMax(step_size=0.1, gamma=1.0)
        >>> losses = torch.tensor([[4.0, 2.0]])
        >>> rule.update(rule.init(losses), losses)
        tensor([[0.6000, 0.4000]])
    """

    # Measured with `attack` and margins: 0.4 / K and 0.3 fool the most on ensembles of MNIST and CIFAR-10
    # networks and lose nothing on universal perturbations, where 0.1 for K = 10 overshoots.
    step_size: float | None = None
    gamma: float = 0.3

    def __post_init__(self) -> None:
        if self.step_size is not None:
            _check_step_size(self.step_size)
        if not self.gamma >= 0:
            raise ValueError(f"`gamma` must be >= 0, got {self.gamma}.")

    def beta(self, num_domains: int) -> float:
        """The step size for K = `num_domains`: the one that was given, or 0.4 / K."""
        return 0.4 / num_domains if self.step_size is None else self.step_size

    def init(self, losses: Tensor) -> Tensor:
        """Equal weights."""
        return _uniform(losses)

    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        """One projected ascent step."""
        if weights.shape[-1] == 1:
            return _uniform(losses)  # all there is
        uniform = 1.0 / weights.shape[-1]
        step_size = self.beta(weights.shape[-1])
        if step_size * self.gamma >= 1.0:
            return onto_simplex(uniform + losses / self.gamma)
        pull = self.gamma * (weights - uniform)
        return onto_simplex(weights + step_size * (losses - pull))


@final
@dataclass(frozen=True)
class Average(AbstractWeightRule):
    """Equal weights throughout: the usual ensemble PGD and EOT.

    Example:
        >>> Average().init(torch.tensor([[4.0, 2.0]]))
        tensor([[0.5000, 0.5000]])
    """

    def init(self, losses: Tensor) -> Tensor:
        """Equal weights."""
        return _uniform(losses)

    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        """The same weights."""
        del losses  # equal weights do not depend on them
        return weights


@final
@dataclass(frozen=True)
class Fixed(AbstractWeightRule):
    """Given weights throughout, such as the paper's w_prior, w_static, or averages over some domains only.

    Args:
        weights: One number >= 0 per domain. They sum to one, up to the 1e-3 that printed digits may lose.

    Example:
        >>> Fixed((0.2, 0.3, 0.5)).init(torch.zeros(1, 3))
        tensor([[0.2000, 0.3000, 0.5000]])
        >>> Fixed.equal((0, 1, 1)).init(torch.zeros(1, 3))
        tensor([[0.0000, 0.5000, 0.5000]])
    """

    weights: Sequence[float]

    def __post_init__(self) -> None:
        given = torch.as_tensor(self.weights, dtype=torch.float64)
        if given.dim() != 1:
            raise ValueError(
                f"`weights` must be one number per domain, (K,), got shape {tuple(given.shape)}."
            )
        object.__setattr__(self, "weights", tuple(given.tolist()))
        total = sum(self.weights)
        if any(not w >= 0 for w in self.weights) or not abs(total - 1) <= 1e-3:
            raise ValueError(
                f"`weights` must be >= 0 and sum to one, got {tuple(self.weights)}, which sum to {total:g}; "
                "divide them by their sum, or write Fixed.equal((0, 1, 1)) for equal weights of some domains."
            )

    @staticmethod
    def equal(chosen: Sequence[int]) -> Fixed:
        """Equal weights of the chosen domains and none of the others: the paper's w_c+d and its like.

        Args:
            chosen: For every domain whether it counts, as True or False, 1 or 0.
        """
        marks = tuple(chosen)
        if not any(marks) or not all(mark in (0, 1) for mark in marks):
            raise ValueError(
                f"`chosen` must be a 1 or 0 for every domain, not all 0, got {marks}; "
                "other weights are given as Fixed((0.2, 0.8))."
            )
        return Fixed(tuple(mark / sum(marks) for mark in marks))

    def init(self, losses: Tensor) -> Tensor:
        """The given weights for every row."""
        if len(self.weights) != losses.shape[-1]:
            raise ValueError(
                f"`weights` must have one entry per domain, K = {losses.shape[-1]}, "
                f"got {len(self.weights)}."
            )
        weights = torch.tensor(self.weights, dtype=losses.dtype, device=losses.device)
        return (weights / weights.sum()).expand_as(losses).clone()

    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        """The same weights."""
        del losses  # fixed weights do not depend on them
        return weights


@final
@dataclass(frozen=True)
class WorstCase(AbstractWeightRule):
    """All weight on the hardest domain: the maximiser for gamma = 0. Exact ties share it equally.

    Example:
        >>> WorstCase().init(torch.tensor([[4.0, 2.0, 3.0]]))
        tensor([[1., 0., 0.]])
    """

    def init(self, losses: Tensor) -> Tensor:
        """One-hot at the largest loss."""
        hardest = (losses == losses.amax(dim=-1, keepdim=True)).to(losses.dtype)
        return hardest / hardest.sum(dim=-1, keepdim=True)

    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        """One-hot at the largest loss."""
        del weights  # the maximiser has no memory
        return self.init(losses)


@final
@dataclass(frozen=True)
class Entropic(AbstractWeightRule):
    """Mirror ascent with the entropy (multiplicative weights): w_i proportional to w_i exp(step_size * F_i).

    Args:
        step_size: > 0.

    Example:
        >>> rule = Entropic(step_size=1.0)
        >>> losses = torch.tensor([[0.0, 0.6931]])
        >>> rule.update(rule.init(losses), losses)
        tensor([[0.3333, 0.6667]])
    """

    step_size: float = 1 / 50

    def __post_init__(self) -> None:
        _check_step_size(self.step_size)

    def init(self, losses: Tensor) -> Tensor:
        """Equal weights."""
        return _uniform(losses)

    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        """One multiplicative step, computed in logarithms."""
        # The floor keeps a domain that was easy for long able to come back.
        log_weights = weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
        return torch.softmax(log_weights + self.step_size * losses, dim=-1)


@final
@dataclass(frozen=True)
class Grouped(AbstractWeightRule):
    """Weights over groups of domains, equal inside each: the groups are the domains of the inner rule.

    With w_g of the inner rule, sum_k w_k F_k = sum_g w_g mean_{k in g} F_k: the min-max problem whose domains
    are the groups and whose losses are their means. Against the worst view of a patch, for example, and not
    against the worst image in the worst view, which may be one that nothing can fool.

    Args:
        rule: How the weights of the groups move.
        groups: For every domain the number of its group, from 0, such as `problem.sharing("view")`.

    Example:
        >>> rule = Grouped(MinMax(step_size=0.1, gamma=0.0), groups=(0, 0, 1))
        >>> rule.update(rule.init(torch.zeros(1, 3)), torch.tensor([[1.0, 3.0, 4.0]]))
        tensor([[0.2000, 0.2000, 0.6000]])
    """

    rule: AbstractWeightRule
    groups: Sequence[int]

    def __post_init__(self) -> None:
        found = tuple(int(number) for number in self.groups)
        if sorted(set(found)) != list(range(len(set(found)))) or not found:
            raise ValueError(
                f"`groups` must be the number of a group for every domain, 0, 1, 2 and so on, got {found}."
            )
        object.__setattr__(self, "groups", found)

    def init(self, losses: Tensor) -> Tensor:
        """The weights of the inner rule, shared."""
        return self._spread(self.rule.init(self._sums(losses, mean=True)))

    def update(self, weights: Tensor, losses: Tensor) -> Tensor:
        """One step of the inner rule."""
        shared, means = self._sums(weights), self._sums(losses, mean=True)
        return self._spread(self.rule.update(shared, means))

    def _sums(self, values: Tensor, *, mean: bool = False) -> Tensor:
        """(B, K) to (B, G)."""
        if values.shape[-1] != len(self.groups):
            raise ValueError(
                f"`groups` must have one entry per domain, K = {values.shape[-1]}, got {len(self.groups)}."
            )
        members = _members(tuple(self.groups), values.dtype, values.device)
        return values @ (members / members.sum(dim=0) if mean else members)

    def _spread(self, shared: Tensor) -> Tensor:
        """(B, G) to (B, K)."""
        members = _members(tuple(self.groups), shared.dtype, shared.device)
        return shared @ (members / members.sum(dim=0)).T


@lru_cache
def _members(groups: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """(K, G), one where a domain is in a group; remembered, because a device waits for what is copied to it."""
    with torch.inference_mode(False):
        return torch.nn.functional.one_hot(torch.tensor(groups)).to(device, dtype)


def _uniform(losses: Tensor) -> Tensor:
    return torch.full_like(losses, 1.0 / losses.shape[-1])


def _check_step_size(step_size: float) -> None:
    if not 0 < step_size < float("inf"):
        raise ValueError(f"`step_size` must be positive and finite, got {step_size}.")
