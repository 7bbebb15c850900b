"""A look at the first rows of a problem: would attacks on it mean anything, and what memory do they take?"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from saddlepoint.losses import Loss, cw_margin, finite
from saddlepoint.problems import AbstractProblem, check_eval_mode
from saddlepoint.problems.inputs import say_whose
from saddlepoint.rounding import full_precision
from saddlepoint.solver.domain_losses import Evaluation, evaluate, gradients_enabled, typed_loss
from saddlepoint.solver.watch import Watch, check_answers

__all__ = ["Look", "first_answers", "inspect", "look"]

_GRAPH_BYTES = 2**30  # what the graph of one batch may hold
_FEW = 16  # rows without which a batch is too small to be fast
_ROWS = 128  # the batch size at which the networks of the paper run fastest on a CPU
_KEPT = 4  # gradients of all rows that are kept at most where domains are differentiated one by one


@final
@dataclass(frozen=True)
class Look:
    """What a look at the first rows of a problem has shown.

    Attributes:
        num_domains: K.
        row_bytes: What the graph of a row takes, all domains together.
        faults: Why an attack on these models would say nothing about robustness; sentences.
        total: Rows in all.
    """

    num_domains: int
    row_bytes: float
    faults: tuple[str, ...]
    total: int = _FEW

    @property
    def accumulate(self) -> bool:
        """Whether even few rows, or the few there are, are too much for one graph of all domains."""
        return min(_FEW, self.total) * self.row_bytes > _GRAPH_BYTES

    def rows(self, accumulate: bool) -> int:
        """How many rows can be attacked at once within the memory a graph may hold; 128 at most.

        Args:
            accumulate: Whether there is one graph per domain, one at a time.
        """
        held = self.row_bytes / self.num_domains if accumulate else self.row_bytes
        rows = max(1, min(_ROWS, int(_GRAPH_BYTES / max(held, 1))))
        return self.at_once(rows) if accumulate else rows

    def at_once(self, rows: int) -> int:
        """How many of so many rows are differentiated domain by domain at a time: fewer for many domains.

        The gradients of all domains are kept until the weights are known. So that their memory does not grow
        with the number of domains, no more of them are kept than four domains of all rows would have.

        Example:
            >>> [Look(number, 0.0, ()).at_once(512) for number in (2, 8, 16, 1000)]
            [512, 256, 128, 2]
        """
        return max(1, rows * min(_KEPT, self.num_domains) // self.num_domains)


def inspect(
    problem: AbstractProblem,
    loss: Loss,
    targeted: bool,
    batch_size: int | None,
    accumulate: bool | None,
) -> tuple[int, bool]:
    """Look once, for a public function: warn of faults where it was called, and choose what was left open.

    Returns:
        Rows at a time, and whether to differentiate domain by domain.
    """
    seen = look(problem, loss, targeted)
    for fault in seen.faults:
        warnings.warn(fault, stacklevel=3)  # where the public function was called
    accumulate = seen.accumulate if accumulate is None else accumulate
    if batch_size is None:
        return seen.rows(accumulate), accumulate
    return seen.at_once(batch_size) if accumulate else batch_size, accumulate


@full_precision()
@gradients_enabled()
def look(problem: AbstractProblem, loss: Loss = cw_margin, targeted: bool = False) -> Look:
    """Look at the first rows, as before every attack: shapes, finiteness, logits, gradients, memory.

    Models are asked twice, and about one image alone: what depends on chance or on other images is refused.

    Raises:
        ValueError: The models or the loss cannot be attacked.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)).eval()
        >>> seen = look(Ensemble([model], torch.rand(5, 4), torch.zeros(5, dtype=torch.long)))
        >>> seen.rows(accumulate=False), [fault[-24:] for fault in seen.faults]
        (128, [' come out far too small.'])
    """
    few, logits = first_answers(problem, loss, targeted)
    delta = few.zeros()
    watch = Watch(loss, targeted=targeted)
    faults = list(_probabilities(few, logits))
    try:
        values = typed_loss(loss, targeted=targeted)(logits, few.labels)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        word = ", and the word `targeted`" if targeted else ""
        raise ValueError(
            f"`loss` must take logits (B, K, C) and labels (B, K){word}, and return (B, K), as "
            f"saddlepoint.cw_margin does, got {type(error).__name__}: {error}"
        ) from error
    if not values.dtype.is_floating_point or values.shape != few.labels.shape:
        raise ValueError(
            f"`loss` must return one number per row and domain, {tuple(few.labels.shape)}, "
            f"got {tuple(values.shape)}."
        )
    saved = _SavedBytes()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        # Domain by domain, so that this look does not itself run out of memory where one graph of all domains
        # is too large.
        point = evaluate(few, delta, loss, targeted=targeted, accumulate=True)
        watch.point(few, delta, point)
        gradient = point.gradient(torch.full_like(point.losses, 1.0))
        # Rows that are fooled already follow no gradient.
        left = (~point.fooled.all(dim=1)).nonzero().flatten()
        watch.gradient(few.take(left), delta[left], gradient[left])
        watch.check()
        faults += _blind(few, point.without) + _flat(few, point)
    return Look(few.num_domains, saved.total / len(few), tuple(faults), len(problem))


def first_answers(
    problem: AbstractProblem, loss: Loss = cw_margin, targeted: bool = False
) -> tuple[AbstractProblem, Tensor]:
    """The first rows (four at most) and what is answered to them, (n, K, C), if answers mean anything.

    Raises:
        ValueError: Training mode; logits of other shapes, of too few classes, or not finite; answers that
            depend on chance or on the other images.
    """
    check_eval_mode(problem.models)
    few = problem.take(torch.arange(min(4, len(problem)), device=problem.lower.device))
    delta = few.zeros()
    try:
        logits = _answers(few)
    except Exception as error:  # the user's model may raise anything
        _refuse_one_batch_size(problem, few, error)
        say_whose(few, error)
        raise
    if logits.dim() != 3 or logits.shape[:2] != few.labels.shape:
        raise ValueError(
            f"models must return logits (B, C), so that the problem has shape (B, K, C) = "
            f"({len(few)}, {few.num_domains}, C), got {tuple(logits.shape)}."
        )
    largest = int(torch.maximum(problem.labels.max(), problem.truth.max()))
    if largest >= logits.shape[-1]:
        raise ValueError(
            f"labels must be below the number of classes, {logits.shape[-1]}, got {largest}."
        )
    watch = Watch(loss, targeted=targeted)
    watch.values(few, delta, finite(logits))
    watch.check()
    check_answers(few, delta, logits)
    return few, logits


def _answers(problem: AbstractProblem) -> Tensor:
    """Logits without perturbation, (n, K, C), without a graph."""
    with torch.no_grad():
        return problem.logits(problem.zeros())


def _refuse_one_batch_size(
    problem: AbstractProblem, few: AbstractProblem, error: Exception
) -> None:
    """Say so if models that raised for a few rows answer another number of them; other errors are theirs."""
    one = few.take(torch.zeros(1, dtype=torch.long, device=few.lower.device))
    for other in (one, problem):
        if len(other) == len(few) or len(other) > _ROWS:
            continue
        try:
            _answers(other)
        except Exception:  # not for this number either
            continue
        raise ValueError(
            f"models must take any number of images, (n, ...), got an answer for {len(other)} and "
            f"{type(error).__name__} for {len(few)}: {' '.join(str(error).split())[:300]}"
        ) from error


class _SavedBytes:
    """Counts what autograd keeps for the backward pass, parameters aside."""

    def __init__(self) -> None:
        self.total = 0
        self._seen: dict[int, weakref.ref[Tensor]] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        known = self._seen.get(tensor.data_ptr())  # dead if the memory belonged to an earlier graph
        if not isinstance(tensor, nn.Parameter) and (known is None or known() is None):
            self._seen[tensor.data_ptr()] = weakref.ref(tensor)
            self.total += tensor.numel() * tensor.element_size()
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        return tensor


def _probabilities(problem: AbstractProblem, logits: Tensor) -> Iterator[str]:
    sums = logits.detach().sum(dim=-1)
    likely = (logits.detach() >= 0).all(dim=-1) & ((sums - 1).abs() < 1e-4)
    for k in likely.all(dim=0).nonzero().flatten().tolist():
        yield (
            f"domain {k} ({problem.names[k]}) returns values that look like probabilities; give logits, "
            "or margins and gradients come out far too small."
        )


def _blind(problem: AbstractProblem, without: Sequence[int]) -> list[str]:
    """A word about every domain that lets no gradient through and is not declared so."""
    return [
        f"domain {k} ({problem.names[k]}) lets no gradient through, so that attacks do not see where to go; "
        "declare it with saddlepoint.scores(model), and give attack a gradient, as in "
        "gradient=saddlepoint.estimated(queries=5000)."
        for k in without
        if k not in problem.without_gradient
    ]


def _flat(problem: AbstractProblem, point: Evaluation) -> list[str]:
    """A word about every other domain whose gradient is zero wherever it is not fooled yet."""
    assert point.steep is not None
    left = ~point.fooled  # a loss may be flat on purpose where its domain is fooled
    flat = left.any(dim=0) & ~(left & point.steep).any(dim=0)
    known = {*point.without, *problem.without_gradient}
    several = problem.num_domains > 1
    whose = [f" of domain {k} ({name})" if several else "" for k, name in enumerate(problem.names)]
    return [
        f"the gradient{whose[k]} is zero in all of the first {len(problem)} rows: the model may mask it "
        "(quantisation, argmax, saturation), and this attack then says nothing about its robustness."
        for k in flat.nonzero().flatten().tolist()
        if k not in known
    ]
