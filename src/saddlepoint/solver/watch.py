"""What must be so for an attack to mean anything: everything finite, and models that answer for themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.losses import Loss
from saddlepoint.problems import AbstractProblem
from saddlepoint.solver.evaluate import Evaluation, broken_gradients

__all__ = ["Watch", "check_answers"]

# How many sights may wait until they are looked at: on an accelerator, each look stops it.
_PATIENCE = {"cpu": 1}
_MOST = 16
_TWICE = 1e-3  # by how much of the largest logit answers may differ, for kernels that are not deterministic
_ALONE = 0.05  # the same for other batch sizes, which low precision rounds differently


@final
@dataclass(frozen=True)
class _Sight:
    """An iterate, and where it was finite: (n, K) for its logits and losses, (n,) for its gradient."""

    problem: AbstractProblem
    delta: Tensor
    stream: int
    step: int
    finite: Tensor


class Watch:
    """Sees every iterate of a batch and refuses to go on once something is not finite.

    Args:
        loss: Small = fooled.
        targeted: Whether labels are classes to reach.

    Example:
        >>> from saddlepoint.losses import cw_margin
        >>> from saddlepoint.problems import Ensemble
        >>> problem = Ensemble([lambda images: images.log()], torch.tensor([[0.5, 0.0]]), torch.tensor([0]))
        >>> watch = Watch(cw_margin, targeted=False)
        >>> watch.values(problem, problem.zeros(), torch.tensor([[False]]))
        Traceback (most recent call last):
        ...
        ValueError: logits and losses must be finite, got NaN or inf in row 0, domain 0 (model 1), at the ...
    """

    def __init__(self, loss: Loss, *, targeted: bool) -> None:
        self._loss, self._targeted = loss, targeted
        self._seen: list[_Sight] = []

    def point(
        self, problem: AbstractProblem, delta: Tensor, point: Evaluation, *, step: int = 0
    ) -> None:
        """See the logits and losses at an iterate."""
        self.values(problem, delta, point.finite, step=step)

    def values(
        self, problem: AbstractProblem, delta: Tensor, finite: Tensor, *, step: int = 0
    ) -> None:
        """See where logits and losses are finite, (n, K), boolean."""
        self._add(_Sight(problem, delta, 0, step, finite))

    def gradient(
        self,
        problem: AbstractProblem,
        delta: Tensor,
        gradient: Tensor,
        *,
        stream: int = 0,
        step: int = 0,
    ) -> None:
        """See the gradient that the next step follows, (n, ...), taken at draw `stream`."""
        # A sum is finite only if every entry is, and costs a fraction of looking at each.
        finite = gradient.flatten(1).sum(dim=1).isfinite()
        self._add(_Sight(problem, delta, stream, step, finite))

    def check(self) -> None:
        """Look at what was seen and not looked at yet.

        Raises:
            ValueError: Something was not finite; names the row, the domains and the remedy.
        """
        seen, self._seen = self._seen, []
        if len(seen) > 1 and bool(torch.stack([sight.finite.all() for sight in seen]).all()):
            return  # one look for all of them
        for sight in seen:
            if not bool(sight.finite.all()):
                self._refuse(sight)

    def _add(self, sight: _Sight) -> None:
        self._seen.append(sight)
        if len(self._seen) >= _PATIENCE.get(sight.delta.device.type, _MOST):
            self.check()

    def _refuse(self, sight: _Sight) -> None:
        values, problem = sight.finite.dim() == 2, sight.problem
        bad = ~sight.finite.all(dim=1) if values else ~sight.finite
        position = int(bad.nonzero()[0])
        row = problem.rows[position].item()
        if values:
            domains = (~sight.finite[position]).nonzero().flatten().tolist()
        else:
            one = torch.tensor([position], device=bad.device)
            domains = broken_gradients(
                problem.take(one),
                sight.delta[one],
                self._loss,
                stream=sight.stream,
                targeted=self._targeted,
            )
        named = ", ".join(f"domain {k} ({problem.names[k]})" for k in domains) or "all domains"
        where = f"in row {row}, {named}, " + (
            f"after {sight.step} steps" if sight.step else "at the start"
        )
        if values:
            raise ValueError(
                f"logits and losses must be finite, got NaN or inf {where}; look at what the model and the "
                "loss make of this image."
            )
        raise ValueError(
            f"gradients must be finite, got NaN or inf {where}; look for a root, norm, logarithm or division "
            "that meets zero in the model, and keep it away from there, as with clamp_min(1e-12)."
        )


def check_answers(problem: AbstractProblem, delta: Tensor, logits: Tensor) -> None:
    """Ask again: the same images once more, and the last of them alone.

    Args:
        problem: A few rows.
        delta: (n, ...).
        logits: What was answered to it, (n, K, C), finite.

    Raises:
        ValueError: An answer depends on chance, or on the other images of the batch.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> noisy = Ensemble([lambda v: v + torch.rand_like(v)], torch.rand(2, 3), torch.tensor([0, 1]))
        >>> check_answers(noisy, noisy.zeros(), noisy.logits(noisy.zeros()))
        Traceback (most recent call last):
        ...
        ValueError: domain 0 (model 1) must answer the same when asked twice, got logits that differ by ...
    """
    scale = logits.abs().amax(dim=(0, 2))
    with torch.no_grad():
        gap = (problem.logits(delta) - logits).abs().amax(dim=(0, 2))
        for k in (~(gap <= _TWICE * scale)).nonzero().flatten().tolist():
            raise ValueError(
                f"domain {k} ({problem.names[k]}) must answer the same when asked twice, got logits that "
                f"differ by {gap[k].item():.3g}; put random transforms into saddlepoint.Transformed, and "
                "dropout into evaluation mode."
            )
        last = problem.take(torch.tensor([len(problem) - 1], device=delta.device))
        for k in range(problem.num_domains):
            difference = _alone(last, delta[-1:], k) - logits[-1:, k]
            if not bool(difference.abs().max() <= _ALONE * scale[k]):
                raise ValueError(
                    f"domain {k} ({problem.names[k]}) must answer every image by itself, got logits that "
                    f"differ by {difference.abs().max().item():.3g} when the image is alone; batch norm in "
                    "training mode does that: call model.eval() on the network inside."
                )


def _alone(problem: AbstractProblem, delta: Tensor, domain: int) -> Tensor:
    """The logits of one image by itself, (1, C); rows leave a batch, so that any number has to be taken."""
    try:
        return problem.domain_logits(delta, domain)
    except Exception as error:  # the user's model may raise anything
        raise ValueError(
            f"domain {domain} ({problem.names[domain]}) must take any number of images, got "
            f"{type(error).__name__} for a single one: {error}"
        ) from error
