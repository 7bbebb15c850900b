"""Algorithm 2 of the paper, AMPGD, and the training steps it is compared with.

    minimise over theta   mean over rows of   maximise over w in the simplex, delta_i in X_i
        psi(theta, w, delta) = sum_i w_i f(theta, delta_i; x, y) - gamma/2 ||w - 1/K||^2

Sign: f is a *training* loss, **large = hard**. Both delta and w ascend it, theta descends it. (The attack
losses of `saddlepoint.losses` have the opposite sign: small = fooled.)

Iterates. In every inner step r = 1 ... R both players move from the same point (appendix on AMPGD),

    w_r       = rule.update( w_{r-1}, f(delta_{r-1}) )
    delta_i,r = proj_i( delta_i,r-1 + step_i * direction_i( w_i,r-1 * grad f(delta_i,r-1) ) )

so that one forward and one backward pass serve both. While the ball of a threat is still larger than the true
one (see `Threat`) w waits: losses outside X_i are not those the weights are about. Then theta moves once on
sum_i w_i,R f(theta, delta_i,R).
The paper counts the same alternation from theta: its step t descends on what step t - 1 found.

Batch norm and dropout. The inner attack runs with the whole model in evaluation mode: rows do not influence
each other, nothing random happens, and running statistics do not see intermediate iterates. They are updated
once per step, by the training pass over the K perturbed batches together (and the clean one, if mix < 1), in
the mode the caller left every module in. Modes, `requires_grad` and `.grad` are untouched by the attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saddlepoint.precision import Precision
from saddlepoint.rounding import without_autocast
from saddlepoint.rules import AbstractWeightRule, Average, MinMax, WorstCase
from saddlepoint.solver.domain_losses import gradients_enabled
from saddlepoint.solver.schedule import Schedule

from .attack_and_update import (
    TrainingLoss,
    ascend,
    check_batch,
    check_model,
    descend,
    steepest_of_all,
)
from .step_precision import precisions_of_step, taken
from .step_stats import StepOptions, StepStats
from .threats import AbstractStart, ThreatLike, check_threats

__all__ = ["StepOptions", "StepStats", "ampgd_step", "avg_step", "max_step", "msd_step", "perturb"]

# Cross-entropies of a robust network differ by tenths between threats. With the paper's 1/R as step size the
# weights hardly leave 1/K within R steps (largest of three, R = 15: 0.39 on average; with these values 0.65).
RULE = MinMax(step_size=1.0, gamma=0.5)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every row, (N,); large = hard."""
    return F.cross_entropy(logits, labels, reduction="none")


def ampgd_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, ThreatLike],
    *,
    iteration: int,
    rule: AbstractWeightRule | None = None,
    steps: int = 10,
    start: AbstractStart | None = None,
    mix: float = 1.0,
    loss: TrainingLoss = cross_entropy,
    precision: Precision = "float32",
) -> StepStats:
    """One training step against several threats at once: Algorithm 2. The loop stays yours.

    The module's docstring says which iterate each quantity is evaluated at, and what happens to batch norm.
    The K perturbed batches go through the network as one: `steps` forward and backward passes over K * B
    rows for the attack, and one of each for the update.

    Args:
        model: Classifier, inputs in [0, 1], output logits (B, C). Call `model.train()` first, as for any
            training step. If it is a DistributedDataParallel, the attack calls the module inside.
        optimizer: Over the parameters of `model`. Gradients of an earlier step are forgotten.
        x: Images in [0, 1], (B, ...).
        y: Labels, (B,), int64.
        threats: K named balls, or `Threat`s where the steps are to be others than the default ones.
        iteration: Number of this training step, from 0: your loop's own count. The balls that the inner attack
            begins in have three sizes in turn, another one in every iteration, because networks learn to mask
            their gradients for an attack that always comes the same way. There is no default, so that none is
            forgotten.
        rule: How the weights of every row move; None is MinMax(step_size=1.0, gamma=0.5). Too small a
            step size or too large a gamma keeps the weights equal. `WorstCase()` has no memory: its weights
            are those of the losses trained on, so that the step is exactly on the mean of max_i f_i.
        steps: R, >= 1.
        start: `ZeroStart()` (default), `RandomStart(seed)` or `WarmStart(...)`.
        mix: Share of the adversarial loss; the rest is the loss of unperturbed images. 0.5 in the paper's
            350-epoch MNIST recipe, 1 otherwise.
        loss: Large = hard, one number per row; cross-entropy by default.
        precision: What the model computes in, attack and update: "float32" (as it is), "bfloat16", "float16",
            or "auto", which is the faster of the first two by a short measurement, made once per model by every
            process for itself; `stats.precision` says what was taken. Parameters, gradients, losses, weights
            and perturbations stay in their own dtypes. In float16 gradients go through the model times a power
            of two that each step chooses for itself, with more backward passes of the update where it was too
            large (`training.stepping`). What is returned is what the step saw; for numbers to publish ask the
            model again.

    Returns:
        Means over the batch, and the perturbations and weights of every row.

    Raises:
        ValueError: An argument is wrong.
        TypeError: An argument is of the wrong kind, or the model has float16 parameters.
        FloatingPointError: The loss or a gradient is not finite. Parameters and buffers are as before.

    Warns:
        UserWarning: No perturbation changes the loss, or a radius bounds nothing.

    Example:
        >>> from saddlepoint.projections import LpBall
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> threats = {"linf": LpBall(torch.inf, 0.1), "l2": LpBall(2, 0.5)}
        >>> x, y = torch.rand(8, 1, 4, 4), torch.arange(8) % 3
        >>> for n in range(3):
        ...     stats = ampgd_step(model, optimizer, x, y, threats, steps=5, iteration=n)
        >>> stats.losses.shape, round(stats.weights.sum().item(), 5)
        (torch.Size([2]), 1.0)

    Reference: Wang et al., NeurIPS 2021, Algorithm 2 and the appendix on AMPGD.
    """
    check_model(model)
    x, y = check_batch(x, y, mix)
    named = check_threats(threats, x.shape[1:])
    plan = _plan(steps, iteration)
    rule = RULE if rule is None else _is_rule(rule)
    lowered = precisions_of_step(model, x, y, precision)
    with without_autocast(), gradients_enabled(), lowered.applied():
        delta, weights = ascend(model, x, y, tuple(named.values()), rule, plan, start, loss)
        weigh = rule.init if isinstance(rule, WorstCase) else (lambda _: weights)
        update = descend(model, optimizer, x, y, delta, weigh, mix, loss)
    return StepStats(
        names=tuple(named),
        loss=update.loss,
        losses=update.losses.mean(dim=0),
        weights=update.weights.mean(dim=0),
        accuracies=update.correct.to(x.dtype).mean(dim=0),
        accuracy=update.correct.all(dim=1).double().mean().item(),
        perturbations=delta.transpose(0, 1),
        row_weights=update.weights,
        precision=taken(lowered),
    )


def avg_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, ThreatLike],
    **options: Unpack[StepOptions],
) -> StepStats:
    """AVG (Tramer & Boneh, 2019): a step on the mean loss over the threats, AMPGD with gamma = infinity.

    With one threat it is PGD training (Madry et al., 2018). Arguments as in `ampgd_step`.

    Example:
        >>> import saddlepoint as sp
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> threats = {"linf": sp.linf(0.1), "l2": sp.l2(0.2)}
        >>> x, y = torch.rand(8, 4), torch.arange(8) % 3
        >>> sp.avg_step(model, optimizer, x, y, threats, steps=2, iteration=0).weights
        tensor([0.5000, 0.5000])
    """
    return ampgd_step(model, optimizer, x, y, threats, rule=Average(), **options)


def max_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, ThreatLike],
    **options: Unpack[StepOptions],
) -> StepStats:
    """MAX (Tramer & Boneh, 2019): a step on every row's worst threat, AMPGD with gamma = 0.

    Arguments as in `ampgd_step`.

    Example:
        >>> import saddlepoint as sp
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> threats = {"linf": sp.linf(0.4), "l2": sp.l2(0.01)}
        >>> x, y = torch.full((8, 4), 0.5), torch.arange(8) % 3
        >>> sp.max_step(model, optimizer, x, y, threats, steps=2, iteration=0).weights
        tensor([1., 0.])
    """
    return ampgd_step(model, optimizer, x, y, threats, rule=WorstCase(), **options)


def msd_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, ThreatLike],
    *,
    iteration: int,
    steps: int = 10,
    start: AbstractStart | None = None,
    mix: float = 1.0,
    loss: TrainingLoss = cross_entropy,
    precision: Precision = "float32",
) -> StepStats:
    """Multi steepest descent (Maini, Wong & Kolter, 2020): one perturbation, the best of K steps each time.

    From delta_{r-1} every threat proposes a projected step of its own kind; each row keeps the proposal
    with the largest loss. The default steps propose in larger l1 and l2 balls at first, see `Threat`; plain
    ones stay in the true balls, as in the paper of the method. Per inner step that is a forward and backward
    pass over B rows and a forward pass over K * B; then theta moves once on f(theta, delta_R). The code of that
    paper takes the iterate with the largest loss of all R.

    Arguments as in `ampgd_step`; of K starting points the one with the largest loss is taken.

    Returns:
        As `ampgd_step`: `losses` and `accuracies` are those of the K last proposals, `weights` says how many
        rows kept which, `perturbations` are the proposals, and `accuracy` is that of what was kept.

    Example:
        >>> import saddlepoint as sp
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> threats = {"linf": sp.linf(0.1), "l2": sp.l2(0.2)}
        >>> x, y = torch.rand(8, 4), torch.arange(8) % 3
        >>> stats = sp.msd_step(model, optimizer, x, y, threats, steps=2, iteration=0)
        >>> round(stats.weights.sum().item(), 4)  # shares of rows
        1.0
    """
    check_model(model)
    x, y = check_batch(x, y, mix)
    named = check_threats(threats, x.shape[1:])
    plan = _plan(steps, iteration)
    lowered = precisions_of_step(model, x, y, precision)
    with without_autocast(), gradients_enabled(), lowered.applied():
        last = steepest_of_all(model, x, y, tuple(named.values()), plan, start, loss)
        kept = last.chosen.unsqueeze(0)
        update = descend(model, optimizer, x, y, kept, torch.ones_like, mix, loss)
    return StepStats(
        names=tuple(named),
        loss=update.loss,
        losses=last.losses.mean(dim=0),
        weights=last.weights.mean(dim=0),
        accuracies=last.correct.to(x.dtype).mean(dim=0),
        accuracy=update.correct.double().mean().item(),
        perturbations=last.delta.transpose(0, 1),
        row_weights=last.weights,
        precision=taken(lowered),
    )


def perturb(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, ThreatLike],
    *,
    iteration: int,
    steps: int = 20,
    start: AbstractStart | None = None,
    loss: TrainingLoss = cross_entropy,
) -> Tensor:
    """The perturbations a training step would meet, without the step: every threat attacks on its own.

    Arguments as in `ampgd_step`.

    Returns:
        (B, K, ...), feasible.

    Example:
        >>> from saddlepoint.projections import LpBall
        >>> threats = {"linf": LpBall(torch.inf, 0.1)}
        >>> x, y = torch.rand(3, 4), torch.tensor([0, 1, 0])
        >>> delta = perturb(nn.Linear(4, 2), x, y, threats, iteration=0)
        >>> delta.shape, bool((delta.abs() <= 0.1).all())
        (torch.Size([3, 1, 4]), True)
    """
    x, y = check_batch(x, y)
    named = check_threats(threats, x.shape[1:])
    plan = _plan(steps, iteration)
    with without_autocast(), gradients_enabled():
        attack = ascend(model, x, y, tuple(named.values()), Average(), plan, start, loss)
    return attack.delta.transpose(0, 1)


def _plan(steps: int, iteration: int) -> Schedule:
    """Steps of the inner attack in an iteration: those of restart iteration + 1 of `attack`."""
    return Schedule(_whole("steps", steps, 1), restart=_whole("iteration", iteration, 0) + 1)


def _is_rule(rule: object) -> AbstractWeightRule:
    if not isinstance(rule, AbstractWeightRule):
        raise TypeError(
            f"`rule` must be a rule for the weights, got {rule!r}; write MinMax(), Average() or WorstCase() of "
            "saddlepoint."
        )
    return rule


def _whole(name: str, value: int, least: int) -> int:
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ValueError(f"`{name}` must be a whole number >= {least}, got {value!r}.")
    return number
