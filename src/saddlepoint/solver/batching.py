"""Before and around the loops: checks of the problem, and rows in batches that fit into memory."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import final

import torch
from torch import Tensor, nn

from saddlepoint.losses import Loss, cw_margin, finite
from saddlepoint.losses import fooled as is_fooled
from saddlepoint.problems import AbstractProblem, check_eval_mode, check_targets
from saddlepoint.projections import LpBall
from saddlepoint.rules import AbstractWeightRule
from saddlepoint.solver.evaluate import evaluate, gradients_enabled, typed_loss
from saddlepoint.solver.result import AttackResult, Callback, History, Progress, concatenate
from saddlepoint.solver.watch import Watch, check_again, check_answers
from saddlepoint.streams import JUDGE

__all__ = [
    "Interrupted",
    "Look",
    "Plan",
    "Solve",
    "check_count",
    "first_answers",
    "in_batches",
    "look",
    "plan",
]

_GRAPH_BYTES = 2**30  # what the graph of one batch may hold
_ROWS = 128  # the batch size at which the networks of the paper run fastest on a CPU


@final
@dataclass(frozen=True)
class Plan:
    """How the rows will be worked through."""

    rows: int
    steps: int
    targeted: bool
    batch_size: int
    accumulate: bool

    def progress(self, step: int, restart: int = 0) -> Progress:
        """Progress inside a batch; `in_batches` adds what was finished before."""
        return Progress(self.rows, 0, 0, step, self.steps, restart)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C inside a batch, with what its rows have reached."""

    def __init__(self, result: AttackResult) -> None:
        super().__init__()
        self.result = result


Solve = Callable[[AbstractProblem, LpBall, Tensor, Callback], AttackResult]


def plan(
    problem: AbstractProblem,
    ball: LpBall,
    rule: AbstractWeightRule,
    loss: Loss,
    steps: int,
    start: Tensor | None,
    targeted: bool,
    batch_size: int | None,
    accumulate: bool | None,
) -> Plan:
    """Check everything once, on a few rows, and choose batch size and differentiation by memory."""
    _check_kinds(problem, ball, rule, loss)
    check_count("steps", steps, 0)
    if batch_size is not None:
        check_count("batch_size", batch_size, 1)
    check_targets(problem, targeted)
    shape = tuple(problem.lower.shape)
    if start is not None and tuple(start.shape) != shape:
        raise ValueError(
            f"`start` must have the shape of delta, {shape}, got {tuple(start.shape)}."
        )
    if start is not None and not bool(torch.as_tensor(start).isfinite().all()):
        raise ValueError("`start` must be finite, got NaN or inf; leave it out to start at zero.")
    if isinstance(ball.eps, Tensor) and ball.eps.dim() == 1 and len(ball.eps) != len(problem):
        raise ValueError(
            f"`ball.eps` must have one radius per row, ({len(problem)},), got ({len(ball.eps)},)."
        )
    if bool((problem.lower >= -1).all() & (problem.upper <= 1).all()):  # images in [0, 1]
        ball.check(shape[1:], stacklevel=4)
    seen = look(problem, loss, targeted)
    for fault in seen.faults:
        warnings.warn(fault, stacklevel=3)  # where the solver was called
    accumulate = seen.accumulate if accumulate is None else accumulate
    batch_size = seen.rows(accumulate) if batch_size is None else batch_size
    return Plan(len(problem), steps, targeted, batch_size, accumulate)


def in_batches(
    problem: AbstractProblem,
    ball: LpBall,
    start: Tensor | None,
    loss: Loss,
    setup: Plan,
    solve: Solve,
    callback: Callback | None,
) -> AttackResult:
    """Solve batch after batch. Ctrl-C ends with what is done; the other rows are marked incomplete."""
    start = problem.zeros() if start is None else torch.as_tensor(start).detach().to(problem.lower)
    done, fooled = 0, 0
    parts: list[AttackResult] = []

    def report(progress: Progress) -> None:
        if callback is not None:
            callback(replace(progress, done=done + progress.done, fooled=fooled + progress.fooled))

    try:
        for rows in torch.arange(len(problem), device=start.device).split(setup.batch_size):
            part, part_ball = problem.take(rows), ball.take(rows)
            delta = part_ball.project(start[rows], part.lower, part.upper)
            result = solve(part, part_ball, delta, report)
            parts.append(_judge(part, result, loss, setup.targeted))
            done += len(part)
            fooled += int(parts[-1].fooled.all(dim=1).sum())
            report(Progress(setup.rows, 0, 0, setup.steps, setup.steps))
    except Interrupted as stop:
        parts.append(_judge(part, stop.result, loss, setup.targeted))
    except KeyboardInterrupt:
        pass  # the rows of this batch are among those left
    reached = sum(len(part.delta) for part in parts)
    if reached < len(problem):
        left = torch.arange(reached, len(problem), device=start.device)
        parts.append(_untouched(problem.take(left), setup.steps))
    return concatenate(parts)


def _judge(
    problem: AbstractProblem, result: AttackResult, loss: Loss, targeted: bool
) -> AttackResult:
    """Ask again, without gradient: what counts is the answer to the candidate itself.

    Random transforms are judged on a draw that the attack has not seen, others on the same images once more.
    """
    with torch.no_grad():
        logits = problem.logits(result.delta, JUDGE if problem.random else 0)
        losses = typed_loss(loss, targeted=targeted)(logits, problem.labels)
    watch = Watch(loss, targeted=targeted)
    numbers = finite(logits) & losses.isfinite()
    watch.values(problem, result.delta, numbers, step=len(result.history.losses) - 1)
    watch.check()
    verdict = is_fooled(logits, problem.labels, targeted=targeted)
    if problem.random:
        return replace(result, losses=losses, fooled=verdict)
    check_again(problem, logits, result.fooled, verdict)
    return replace(result, fooled=verdict)


def _untouched(problem: AbstractProblem, steps: int) -> AttackResult:
    """The result for rows that were not attacked: no perturbation, nothing claimed."""
    rows, domains = problem.labels.shape
    unknown = torch.full((rows, domains), float("nan"), dtype=problem.lower.dtype)
    unknown = unknown.to(problem.lower.device)
    return AttackResult(
        delta=problem.zeros(),
        adversarial=problem.images(problem.zeros()),
        weights=torch.full_like(unknown, 1.0 / domains),
        losses=unknown,
        fooled=torch.zeros_like(unknown, dtype=torch.bool),
        history=History(*(unknown.expand(steps + 1, -1, -1).clone() for _ in range(2))),
        num_forwards=torch.zeros_like(problem.rows),
        completed=torch.zeros_like(problem.rows, dtype=torch.bool),
    )


# ------------------------------------------------------------------------------------------------ checks


def check_count(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number, or too small a one."""
    if not isinstance(value, Integral):  # also NumPy's
        raise TypeError(
            f"`{name}` must be a whole number, got {type(value).__name__} {value!r}; write int({name})."
        )
    if int(value) < least:
        raise ValueError(f"`{name}` must be >= {least}, got {value}.")


def _check_kinds(problem: object, ball: object, rule: object, loss: object) -> None:
    """Refuse names and numbers in place of the things they mean."""
    kinds = "an Ensemble, Universal, Transformed or Product"
    fits = isinstance(problem, AbstractProblem)
    _check_kind("problem", problem, fits, kinds, "Ensemble([model], x, y)")
    _check_kind("ball", ball, isinstance(ball, LpBall), "an LpBall", "linf(0.2)")
    fits = isinstance(rule, AbstractWeightRule)
    _check_kind("rule", rule, fits, "a rule for the weights", "MinMax()")
    fits = callable(loss) and not isinstance(loss, type)
    _check_kind("loss", loss, fits, "a function", "cw_margin")


def _check_kind(name: str, value: object, fits: bool, needed: str, remedy: str) -> None:
    if not fits:
        kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        given = f" {value!r}" if isinstance(value, str | int | float) else ""
        raise TypeError(
            f"`{name}` must be {needed}, got {kind}{given}; write {name}=saddlepoint.{remedy}."
        )


@final
@dataclass(frozen=True)
class Look:
    """What a look at the first rows of a problem has shown.

    Attributes:
        num_domains: K.
        row_bytes: What the graph of a row takes, all domains together.
        faults: Why an attack on these models would say nothing about robustness; sentences.
    """

    num_domains: int
    row_bytes: float
    faults: tuple[str, ...]

    @property
    def accumulate(self) -> bool:
        """Whether even few rows are too much for one graph of all domains."""
        return 16 * self.row_bytes > _GRAPH_BYTES

    def rows(self, accumulate: bool) -> int:
        """How many rows can be attacked at once within the memory a graph may hold; 128 at most.

        Args:
            accumulate: Whether there is one graph per domain, one at a time.
        """
        held = self.row_bytes / self.num_domains if accumulate else self.row_bytes
        return max(1, min(_ROWS, int(_GRAPH_BYTES / max(held, 1))))


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
    saved = _SavedBytes()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        # Domain by domain: a look at a problem that is too large for one graph must not be the graph.
        point = evaluate(few, delta, loss, targeted=targeted, accumulate=True)
        if not point.losses.dtype.is_floating_point or point.losses.shape != few.labels.shape:
            raise ValueError(
                f"`loss` must return one number per row and domain, {tuple(few.labels.shape)}, "
                f"got {tuple(point.losses.shape)}."
            )
        watch.point(few, delta, point)
        gradient = point.gradient(torch.full_like(point.losses, 1.0))
        # Rows that are fooled already follow no gradient.
        stands = (~point.fooled.all(dim=1)).nonzero().flatten()
        watch.gradient(few.take(stands), delta[stands], gradient[stands])
        watch.check()
        faults += _zero_gradients(few, gradient)
    return Look(few.num_domains, saved.total / len(few), tuple(faults))


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
    with torch.no_grad():
        try:
            logits = few.logits(delta)
        except (RuntimeError, AssertionError) as error:
            # What a model raises is its own, unless it says that it wants another number of images.
            if not any(
                word in str(error) for word in ("is invalid for input of size", "Guard failed")
            ):
                raise
            raise ValueError(
                f"models must take any number of images, (n, ...), got an error for the first {len(few)}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
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


def _zero_gradients(problem: AbstractProblem, gradient: Tensor) -> Iterator[str]:
    if not bool(gradient.any()):
        yield (
            f"the gradient is zero in all of the first {len(problem)} rows: the model may hide it "
            "(quantisation, argmax, saturation), and this attack then says nothing about robustness."
        )
