"""Attack losses: one number per row and domain, small = fooled.

Every loss maps logits (..., C) and labels (...) to (...); nothing is averaged. The perturbation descends
these losses and the weights ascend them. With ``targeted=True`` the labels name the class to be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "Loss",
    "clipped",
    "cw_margin",
    "dlr",
    "finite",
    "fooled",
    "neg_cross_entropy",
    "soft_margin",
]


class Loss(Protocol):
    """What the solvers call: ``loss(logits, labels)``, with ``targeted=True`` added in targeted attacks.

    Example:
        >>> import saddlepoint as sp
        >>> def probability(logits, labels, *, targeted=False):
        ...     chosen = logits.softmax(dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        ...     return 1 - chosen if targeted else chosen
        >>> loss: sp.Loss = probability
        >>> loss(torch.zeros(1, 1, 4), torch.tensor([[2]]))
        tensor([[0.2500]])
    """

    def __call__(self, logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
        """Losses of the shape of `labels`."""
        ...


def cw_margin(
    logits: Tensor, labels: Tensor, *, targeted: bool = False, kappa: float = 50.0
) -> Tensor:
    """Carlini-Wagner margin, cut off at confidence kappa.

        max(z_y - max_{j != y} z_j, -kappa)          targeted:  max(max_{j != t} z_j - z_t, -kappa)

    Negative exactly when the row is misclassified (targeted: classified as the target), up to ties.

    Args:
        logits: (..., C) with C >= 2.
        labels: True classes, or targets, (...), int64.
        targeted: Whether labels are classes to reach.
        kappa: Margin beyond which a row gains nothing more; 50 in the paper.

    Returns:
        Losses, (...).

    Example:
        >>> cw_margin(torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), torch.tensor([0, 1]))
        tensor([ 1., -2.])
    """
    _check(logits, labels)
    margin = _margin(logits, labels)
    return (-margin if targeted else margin).clamp_min(-kappa)


def neg_cross_entropy(logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
    """Minus the cross-entropy of the true class; targeted: plus the cross-entropy of the target.

    Args:
        logits: (..., C).
        labels: (...), int64.
        targeted: Whether labels are classes to reach.

    Returns:
        Losses, (...).

    Example:
        >>> neg_cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
        tensor([-1.3863])
    """
    _check(logits, labels)
    rows = logits.reshape(-1, logits.shape[-1])
    entropy = F.cross_entropy(rows, labels.reshape(-1), reduction="none").reshape(labels.shape)
    return entropy if targeted else -entropy


def soft_margin(logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
    """The margin to all other classes at once: the logarithm of the odds of the true class.

        z_y - log sum_{j != y} exp z_j = log(p_y / (1 - p_y))     targeted: its negative, for the target

    Its gradient has the direction of that of the cross-entropy, but not the factor 1 - p_y, with which the
    latter vanishes where a network is sure: for steps of a given length, a cross-entropy that is never flat.

    Args:
        logits: (..., C) with C >= 2.
        labels: (...), int64.
        targeted: Whether labels are classes to reach.

    Returns:
        Losses, (...).

    Example:
        >>> soft_margin(torch.tensor([[0.0, 0.0, 0.0], [99.0, 0.0, 0.0]]), torch.tensor([0, 0]))
        tensor([-0.6931, 98.3069])
    """
    _check(logits, labels)
    index = labels.unsqueeze(-1)
    others = logits.scatter(-1, index, -torch.inf).logsumexp(dim=-1)
    odds = logits.gather(-1, index).squeeze(-1) - others
    return -odds if targeted else odds


def dlr(logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
    """Difference of logits ratio (Croce & Hein, 2020): a margin that ignores the scale of the logits.

        (z_y - max_{j != y} z_j) / (z_(1) - z_(3))     targeted, C >= 4: divided by z_(1) - (z_(3) + z_(4)) / 2

    with z_(i) the i-th largest logit. Two classes have no third logit, and the ratio to the only difference
    there is would be +-1 with no gradient: for C = 2 it is the plain margin. For C = 3 the targeted form uses
    z_(3).

    Args:
        logits: (..., C) with C >= 2.
        labels: (...), int64.
        targeted: Whether labels are classes to reach.

    Returns:
        Losses, (...).

    Example:
        >>> dlr(torch.tensor([[5.0, 3.0, 1.0, 0.0]]), torch.tensor([0]))
        tensor([0.5000])
    """
    _check(logits, labels)
    margin = _margin(logits, labels)
    margin = -margin if targeted else margin
    classes = logits.shape[-1]
    if classes == 2:
        return margin
    top = logits.topk(min(classes, 4), dim=-1).values
    low = (top[..., 2] + top[..., 3]) / 2 if targeted and classes > 3 else top[..., 2]
    return margin / (top[..., 0] - low).clamp_min(1e-12)


def clipped(loss: Loss, threshold: float) -> Callable[..., Tensor]:
    """A loss cut off from below: a domain that is fooled by enough stops pulling. The paper's w_clip.

        max(loss, threshold)

    At and below the threshold the loss is constant, so that the perturbation works for the domains that are
    not fooled yet. The work that the paper cites says it with the other sign: its attacker maximises
    min(loss, beta).

    Args:
        loss: Small = fooled.
        threshold: A value of that loss. The paper's code adds kappa = 50 to its margins: its threshold 40 is
            -10 for `cw_margin` (misclassified by 10), and 50, which is in a comment there, is 0 (just
            misclassified).

    Example:
        >>> loss = clipped(cw_margin, -10.0)
        >>> loss(torch.tensor([[0.0, 90.0], [0.0, 3.0], [90.0, 0.0]]), torch.tensor([0, 0, 0]))
        tensor([-10.,  -3.,  90.])
    """

    def clipped_loss(logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
        value = loss(logits, labels, targeted=True) if targeted else loss(logits, labels)
        return value.clamp_min(threshold)

    return clipped_loss


def fooled(
    logits: Tensor, labels: Tensor, *, targeted: bool = False, known: Tensor | None = None
) -> Tensor:
    """The judge: whether each row is misclassified, or, targeted, classified as the target.

    An answer is a class only if every logit is finite. NaN or infinity anywhere is a wrong answer to an
    untargeted attack, and not the target's to a targeted one. Of equal largest logits the first one counts.

    Args:
        logits: (..., C).
        labels: True classes, or targets, (...).
        targeted: Whether labels are classes to reach.
        known: What `finite` says of these logits, (...), where it was asked before.

    Returns:
        Boolean, (...).

    Example:
        >>> logits = torch.tensor([[1.0, 2.0], [2.0, 1.0], [2.0, float("nan")]])
        >>> fooled(logits, torch.tensor([0, 0, 0]))
        tensor([ True, False,  True])
        >>> fooled(logits, torch.tensor([1, 1, 1]), targeted=True)
        tensor([ True, False, False])
    """
    hit = (logits.argmax(dim=-1) == labels) & (finite(logits) if known is None else known)
    return hit if targeted else ~hit


def finite(logits: Tensor) -> Tensor:
    """Whether all logits (..., C) of a row are numbers and none is infinite. Boolean, (...).

    Example:
        >>> finite(torch.tensor([[1.0, 2.0], [float("inf"), 1.0], [float("nan"), 1.0]]))
        tensor([ True, False, False])
    """
    return logits.abs().amax(dim=-1) < torch.inf  # several times faster than isfinite().all()


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y - max_{j != y} z_j."""
    index = labels.unsqueeze(-1)
    others = logits.scatter(-1, index, -torch.inf)
    return logits.gather(-1, index).squeeze(-1) - others.amax(dim=-1)


def _check(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() == 0 or logits.shape[:-1] != labels.shape:
        raise ValueError(
            "`labels` must have the shape of `logits` without its last axis, "
            f"got labels {tuple(labels.shape)} and logits {tuple(logits.shape)}."
        )
    if logits.shape[-1] < 2:
        raise ValueError(f"`logits` must have at least 2 classes, got shape {tuple(logits.shape)}.")
