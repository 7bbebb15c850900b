"""What must be so for an attack to mean anything: everything finite, and models that answer for themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from saddlepoint.behind import modules_behind
from saddlepoint.losses import Loss
from saddlepoint.precision import FULL, Precisions
from saddlepoint.problems import AbstractProblem, Model
from saddlepoint.solver.domain_losses import Evaluation, broken_gradients

__all__ = ["TWICE", "Watch", "alone_tolerance", "check_again", "check_answers", "moved", "spread"]

# How many observations are collected before their values are read: reading one makes an accelerator wait.
_PATIENCE = {"cpu": 1}
_MOST = 16
# By how much answers may move, see `moved`: twice for kernels that are not deterministic; alone because other
# batch sizes are rounded differently: a little in float32, more where accelerators shorten it, most in 16 bits.
TWICE = 1e-3
_ALONE, _ALONE_SHORT, _ALONE_HALF = 1e-3, 1e-2, 0.05
_REMEDY = (
    "let random transforms be those of saddlepoint.transforms, inside saddlepoint.Transformed, and put dropout "
    "into evaluation mode"
)
_HIDDEN = 1e3  # a gap between logits that makes a probability zero, in float64 too
_HALF = (torch.float16, torch.bfloat16)


@final
@dataclass(frozen=True)
class _Observed:
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
        precisions: What the models compute in, for what is said of one that is not finite.

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

    def __init__(self, loss: Loss, *, targeted: bool, precisions: Precisions = FULL) -> None:
        self._loss, self._targeted, self._precisions = loss, targeted, precisions
        self._seen: list[_Observed] = []

    def point(
        self, problem: AbstractProblem, delta: Tensor, point: Evaluation, *, step: int = 0
    ) -> None:
        """See the logits and losses at an iterate; they are looked at together with what comes next."""
        self._seen.append(_Observed(problem, delta, 0, step, point.finite))

    def values(
        self, problem: AbstractProblem, delta: Tensor, finite: Tensor, *, step: int = 0
    ) -> None:
        """See where logits and losses are finite, (n, K), boolean."""
        self._add(_Observed(problem, delta, 0, step, finite))

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
        if _PATIENCE.get(gradient.device.type) == 1 and math.isfinite(gradient.sum().item()):
            self.check()
            return
        finite = gradient.flatten(1).sum(dim=1).isfinite()
        self._add(_Observed(problem, delta, stream, step, finite))

    def left(self, rows: Tensor) -> int:
        """How many of `rows`, (n,), boolean, are true, and in the same question whether all seen is finite.

        A solver has to ask an accelerator the first at every step; the second then costs no wait of its own.
        """
        finite = [observed.finite.all().reshape(1) for observed in self._seen]
        answers: list[bool] = torch.cat([rows, *finite]).tolist()
        if not all(answers[rows.shape[0] :]):
            self.check()
        self._seen = []
        return answers.count(True) - len(finite)

    def check(self) -> None:
        """Look at what was seen and not looked at yet.

        Raises:
            ValueError: Something was not finite; names the row, the domains and the remedy.
        """
        seen, self._seen = self._seen, []
        if len(seen) > 1 and bool(torch.stack([observed.finite.all() for observed in seen]).all()):
            return  # one look for all of them
        for observed in seen:
            if not bool(observed.finite.all()):
                self._refuse(observed)

    def _add(self, observed: _Observed) -> None:
        self._seen.append(observed)
        if len(self._seen) >= _PATIENCE.get(observed.delta.device.type, _MOST):
            self.check()

    def _refuse(self, observed: _Observed) -> None:
        values, problem = observed.finite.dim() == 2, observed.problem
        bad = ~observed.finite.all(dim=1) if values else ~observed.finite
        position = int(bad.nonzero()[0])
        row = problem.rows[position].item()
        if values:
            domains = (~observed.finite[position]).nonzero().flatten().tolist()
        else:
            one = torch.tensor([position], device=bad.device)
            domains = broken_gradients(
                problem.take(one),
                observed.delta[one],
                self._loss,
                stream=observed.stream,
                targeted=self._targeted,
            )
        named = ", ".join(f"domain {k} ({problem.names[k]})" for k in domains) or "all domains"
        where = f"in row {row}, {named}, " + (
            f"after {observed.step} steps" if observed.step else "at the start"
        )
        what = "logits and losses" if values else "gradients"
        asked = {problem.model_of(k) for k in domains or range(problem.num_domains)}
        low = {name for index in asked for name in self._precisions.names[index : index + 1]}
        if "float16" in low:
            raise ValueError(
                f"{what} must be finite, got NaN or inf {where}, in float16, and float16 ends at 65504; take "
                'precision="bfloat16", which has the range of float32.'
            )
        if names := sorted(low - {"float32"}):
            raise ValueError(
                f"{what} must be finite, got NaN or inf {where}, in {' and '.join(names)}, and rounding to "
                'fewer bits may be the reason; take precision="float32".'
            )
        if values:
            raise ValueError(
                f"{what} must be finite, got NaN or inf {where}; look at what the model and the "
                "loss make of this image."
            )
        raise ValueError(
            f"{what} must be finite, got NaN or inf {where}; look for a root, norm, logarithm or division "
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
    with torch.no_grad():
        again = problem.logits(delta)
        for k in range(problem.num_domains):
            if not bool((moved(logits[:, k], again[:, k]) <= TWICE).all()):
                gap = (again[:, k] - logits[:, k]).abs().max().item()
                raise ValueError(
                    f"domain {k} ({problem.names[k]}) must answer the same when asked twice, got logits that "
                    f"differ by {gap:.3g}; {_REMEDY}."
                )
        last = problem.take(torch.tensor([len(problem) - 1], device=delta.device))
        half = _any_half(problem.models)
        for k in range(problem.num_domains):
            tolerance = _tolerance(half, logits[:, k])
            alone = torch.cat([logits[:-1, k], _alone(last, delta[-1:], k)])
            if not bool((moved(logits[:, k], alone) <= tolerance).all()):
                gap = (alone - logits[:, k]).abs().max().item()
                raise ValueError(
                    f"domain {k} ({problem.names[k]}) must answer every image by itself, got logits that "
                    f"differ by {gap:.3g} when the image is alone; batch norm in training mode does that: "
                    "call model.eval() on the network inside."
                )


def check_again(problem: AbstractProblem, logits: Tensor, fooled: Tensor, again: Tensor) -> None:
    """Refuse verdicts that change when asked again, unless two classes are as good as equal.

    Args:
        problem: B rows, K domains.
        logits: When asked again, (B, K, C), finite.
        fooled: The verdicts on the way, (B, K), boolean.
        again: The verdicts on these logits, (B, K), boolean.

    Raises:
        ValueError: A verdict changed by more than rounding.
    """
    for k in (fooled != again).any(dim=0).nonzero().flatten().tolist():
        answers = logits[:, k]
        best = answers.double().topk(2, dim=1).values
        limit = alone_tolerance(problem.models, answers) * spread(answers)
        limit += 8 * torch.finfo(answers.dtype).eps * best[:, 0].abs()
        wrong = (fooled[:, k] != again[:, k]) & (best[:, 0] - best[:, 1] > limit)
        if bool(wrong.any()):
            row = problem.rows[wrong.nonzero()[0]].item()
            raise ValueError(
                f"domain {k} ({problem.names[k]}) must answer the same when asked again, got other verdicts on "
                f"{int(wrong.sum())} of {len(wrong)} rows, the first of them row {row}; {_REMEDY}."
            )


def moved(logits: Tensor, again: Tensor) -> Tensor:
    """How far answers to the same images lie apart, as a fraction of the differences among classes.

    Compared are the gaps from the largest logit to every other: neither a common offset nor a class that is
    hidden behind a huge negative number makes the classes that count look alike. A gap is held against itself
    and the row's `spread`; what rounding of the logits themselves explains is no move.

    Args:
        logits: (n, C).
        again: (n, C).

    Returns:
        (n,), float64; NaN where a logit is.

    Example:
        >>> moved(torch.tensor([[9.0, 5.0, 1.0, -1e9]]), torch.tensor([[9.0, 6.2, 1.0, -1e9]]))
        tensor([0.1000], dtype=torch.float64)
    """
    rounding = 8 * torch.finfo(logits.dtype).eps
    one, two = logits.double(), again.double()
    top = one.amax(dim=1, keepdim=True)
    gaps, gaps_again = top - one, two.amax(dim=1, keepdim=True) - two
    change = (gaps - gaps_again).abs() - rounding * (one.abs() + top.abs())
    scale = gaps + spread(logits).unsqueeze(1)
    return (change.clamp_min(0) / scale.clamp_min(1e-300)).amax(dim=1)


def spread(logits: Tensor) -> Tensor:
    """The usual gap between the largest logit and those of the other classes that count, (n,), float64.

    The (upper) median over the classes. Those that equal the row's smallest logit and are so far below that
    their probability is zero do not count: they are hidden. At least the median over the rows, since in one
    row the classes may happen to be close to each other.

    Example:
        >>> spread(torch.tensor([[9.0, 5.0, 1.0, -1e9, -1e9], [9.0, 9.0, 9.0, -1e9, -1e9]]))
        tensor([8., 4.], dtype=torch.float64)
    """
    ordered = logits.double().sort(dim=1, descending=True).values
    gaps = ordered[:, :1] - ordered[:, 1:]
    hidden = (gaps == gaps[:, -1:]) & (gaps > _HIDDEN)
    shown = (~hidden).sum(dim=1, keepdim=True)
    shown = torch.where(shown == 0, gaps.shape[1], shown)  # two classes, or all others alike
    own = gaps.gather(1, shown // 2).squeeze(1)
    return torch.maximum(own, own.quantile(0.5))


def alone_tolerance(models: Sequence[Model], logits: Tensor) -> float:
    """By how much an answer may move when the image is alone: what the precision of the models explains.

    Args:
        models: Those that answered.
        logits: Some of their answers, (n, C); 16 bits are recognised in them too.
    """
    return _tolerance(_any_half(models), logits)


def _any_half(models: Sequence[Model]) -> bool:
    modules = [module for model in models for module in modules_behind(model)]
    return any(tensor.dtype in _HALF for module in modules for tensor in module.parameters())


def _tolerance(half: bool, logits: Tensor) -> float:
    if half or any(torch.equal(logits, logits.to(dtype).to(logits)) for dtype in _HALF):
        return _ALONE_HALF
    return _ALONE if logits.device.type == "cpu" else _ALONE_SHORT


def _alone(problem: AbstractProblem, delta: Tensor, domain: int) -> Tensor:
    """The logits of one image by itself, (1, C); rows leave a batch, so that any number has to be taken."""
    try:
        return problem.domain_logits(delta, domain)
    except Exception as error:  # the user's model may raise anything
        raise ValueError(
            f"domain {domain} ({problem.names[domain]}) must take any number of images, got "
            f"{type(error).__name__} for a single one: {error}"
        ) from error
