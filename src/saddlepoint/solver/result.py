"""What a solver returns, and how results of batches become one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from saddlepoint.display import Brief, counted, hardest, html_table
from saddlepoint.plots import plot_steps
from saddlepoint.problems import AbstractProblem
from saddlepoint.projections import AbstractSet
from saddlepoint.rules import AbstractWeightRule

__all__ = [
    "Asked",
    "AttackResult",
    "Callback",
    "History",
    "Progress",
    "asked_of",
    "concatenate",
    "keep_partial",
    "partial_of",
]


@final
@dataclass(frozen=True)
class History:
    """Weights and losses at every iterate: step 0 is the start, step t the iterate after t updates.

    Of several restarts it is the one that found `delta`, row by row.

    Attributes:
        weights: (steps + 1, B, K).
        losses: (steps + 1, B, K). A row that finished early keeps its last values.

    Example:
        >>> import saddlepoint as sp
        >>> problem = sp.Ensemble([torch.nn.Flatten().eval()], torch.tensor([[0.2, 0.7]]), torch.tensor([1]))
        >>> sp.apgda(problem, sp.linf(0.1), steps=3, step_size=0.1).history
        History(4 iterates, 1 row, 1 domain)
    """

    weights: Tensor
    losses: Tensor

    def __repr__(self) -> str:
        """How large it is."""
        iterates, rows, domains = self.weights.shape
        counts = {"iterate": iterates, "row": rows, "domain": domains}
        return f"History({', '.join(counted(count, noun) for noun, count in counts.items())})"


@final
@dataclass(frozen=True, repr=False)
class Asked(Brief):
    """What an attack was asked: all that a second look at its result needs.

    Attributes:
        problem: B rows, K domains; with `quantize`, of images of so many grey levels.
        ball: Where delta may be.
        rule: How the weights moved.
        steps: Updates per restart.
        targeted: Whether the labels were classes to reach.
        restarts: How often it began.
        from_zero: Whether every row was asked at delta = 0 first, and is still there if that fools all domains.

    Example:
        >>> import saddlepoint as sp
        >>> problem = sp.Ensemble([torch.nn.Flatten().eval()], torch.tensor([[0.2, 0.7]]), torch.tensor([1]))
        >>> asked = sp.attack(problem, sp.linf(0.1), steps=3).asked
        >>> asked.ball.eps, asked.steps, asked.targeted, asked.problem is problem
        (0.1, 3, False, True)
    """

    problem: AbstractProblem
    ball: AbstractSet
    rule: AbstractWeightRule
    steps: int
    targeted: bool
    restarts: int = 1
    from_zero: bool = False


@final
@dataclass(frozen=True)
class AttackResult:
    """Perturbations and what every domain makes of them.

    Attributes:
        delta: (B, ...), inside ball and box.
        adversarial: The perturbed images, (B, ...), or (B, K, ...) if the domains are images; in [0, 1], the
            thing to save. With `quantize` its values are those that are read back from the file.
        weights: Domain weights at delta, (B, K): which domain was hard.
        losses: F(delta), (B, K).
        fooled: Whether each domain is fooled at delta, (B, K), boolean: whether its answer, when asked
            again in full precision, is not `problem.labels` (targeted: is). `success_rates` counts against the
            truth.
        history: Weights and losses per step.
        num_forwards: Evaluations of the K domains spent on the search in each row, (B,), int64, those that
            confirm in full precision what looked fooled in less included; the verdict is one more.
        completed: Rows that are done, (B,), boolean: fooled, or attacked to the end; all but after Ctrl-C. Rows
            of which `apgda` keeps the last iterate are done at the end only.
        precision: What each model of the problem computed in during the search, such as "bfloat16"; empty where
            nobody has said.
        asked: What the attack was asked, with the problem, so that it can be asked again; None where nobody has
            said, and in results that were pickled, which leave the models behind.

    Example:
        >>> import saddlepoint as sp
        >>> x, y = torch.tensor([[0.2, 0.7], [0.0, 0.9]]), torch.tensor([1, 1])
        >>> result = sp.attack(sp.Ensemble([torch.nn.Flatten().eval()], x, y), sp.linf(0.3), steps=5)
        >>> result.success, result.weights
        (tensor([ True, False]), tensor([[1.],
                [1.]]))
    """

    delta: Tensor
    adversarial: Tensor
    weights: Tensor
    losses: Tensor
    fooled: Tensor
    history: History
    num_forwards: Tensor
    completed: Tensor
    precision: tuple[str, ...] = ()
    asked: Asked | None = None

    def __repr__(self) -> str:
        """What matters, in one line instead of all tensors."""
        rows, domains = self.fooled.shape
        every, spent = int(self.success.sum()), self.num_forwards.double().mean().item()
        left = int((~self.completed).sum())
        stopped = f", stopped with {left} rows to do" if left else ""
        whom = "the domain" if domains == 1 else f"all {domains} domains"
        free = "" if self._free is None else f", {self._free} without any perturbation"
        return (
            f"AttackResult({every} of {rows} rows fool {whom}{free}, "
            f"{spent:.1f} evaluations per row{stopped})"
        )

    def _repr_html_(self) -> str:
        """The domains, all of them at once, and the hardest one, for a notebook."""
        rows, names = len(self.fooled), self._names
        hits, weights = self.fooled.sum(dim=0).tolist(), self.weights.double().mean(dim=0).tolist()
        lines = [
            (name, f"{count} of {rows}", f"{weight:.2f}")
            for name, count, weight in zip(names, hits, weights, strict=True)
        ]
        lines.append(("all at once", f"{int(self.success.sum())} of {rows}", ""))
        # The place of an image in a group means nothing.
        grouped = self.adversarial.dim() > self.delta.dim()
        hard = None if grouped else hardest([-count for count in hits])
        free = "" if self._free is None else f"{self._free} of {rows}"
        told = {"all at once without any perturbation": free}
        told["hardest"] = "" if hard is None else names[hard]
        note = "; ".join(f"{name}: {value}" for name, value in told.items() if value)
        return html_table(("domain", "fooled", "mean weight"), lines, note)

    def plot(self, axes: Sequence[Any] | None = None) -> Any:
        """Draw mean weights and mean losses of every domain over the steps (needs matplotlib).

        Args:
            axes: Two of matplotlib, for weights and losses; new ones if None.

        Returns:
            The figure of matplotlib: `result.plot().savefig("weights.png")`; its two panels are `figure.axes`.
        """
        curves = {"mean weight": self.history.weights, "mean loss": self.history.losses}
        return plot_steps(curves, self._names, axes)

    def report(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write the page that the command line leaves as `report.html`; see `saddlepoint.report.write_result`.

        Args:
            path: The file, such as "attack.html".
            options: `data` and `classes`: what images and classes are called.
        """
        # Reports are drawn rooms above this one, which must not know them; the package knows all rooms.
        import saddlepoint

        return saddlepoint.report.write_result(self, path, **options)

    @property
    def _names(self) -> tuple[str, ...]:
        """Of the domains, or their numbers where nobody has said what was asked."""
        numbers = tuple(f"domain {k + 1}" for k in range(self.fooled.shape[1]))
        return numbers if self.asked is None else self.asked.problem.names

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "asked": None}  # models may be large, or functions nobody can pickle

    @property
    def success(self) -> Tensor:
        """Rows in which every domain is fooled, (B,), boolean; after Ctrl-C mind `completed`."""
        return self.fooled.all(dim=1)

    @property
    def _free(self) -> int | None:
        """Rows that fool every domain as they are; None where a perturbation says nothing about that."""
        if self.asked is None or not self.asked.from_zero or self.interrupted:
            return None
        return int((self.success & ~self.delta.flatten(1).any(dim=1)).sum())

    @property
    def interrupted(self) -> bool:
        """Whether the attack was stopped (Ctrl-C) before every row was done."""
        return not bool(self.completed.all())


@final
@dataclass(frozen=True)
class Progress:
    """How far an attack has come; handed to `callback` after every iterate.

    Attributes:
        rows: Rows in all.
        done: Rows of finished batches.
        fooled: Rows that fool every domain so far, those of the current batch included; the verdict at the end
            of a batch asks them again.
        step, steps: Position inside the current batch.
        restart: Which restart of the current batch, from 0.
        fraction: How much of the work is done, at least: rows that are fooled early make it jump.

    Example:
        >>> import saddlepoint as sp
        >>> problem = sp.Ensemble([torch.nn.Flatten().eval()], torch.tensor([[0.0, 0.9]]), torch.tensor([1]))
        >>> seen = []
        >>> _ = sp.attack(problem, sp.linf(0.1), steps=3, callback=seen.append)
        >>> seen[-1].rows, seen[-1].step, seen[-1].steps, seen[-1].fooled
        (1, 3, 3, 0)
    """

    rows: int
    done: int
    fooled: int
    step: int
    steps: int
    restart: int = 0
    fraction: float = 0.0


Callback = Callable[[Progress], None]


def asked_of(result: AttackResult) -> Asked:
    """What was asked, for whoever has to ask again.

    Raises:
        ValueError: The result does not know, or was stopped on the way.
    """
    if result.asked is None:
        raise ValueError(
            "`result` must know what was asked (`result.asked`), got one without, as after pickling; take what "
            "`attack` returned."
        )
    if result.interrupted:
        raise ValueError(
            f"`result` must be of an attack that came to its end, got {int(result.completed.sum())} of "
            f"{len(result.completed)} rows; attack the others too."
        )
    return result.asked


def keep_partial(stop: KeyboardInterrupt, result: AttackResult) -> None:
    """Put what was found so far into Ctrl-C itself.

    A class of our own could not do it: Python ends a process by SIGINT, which tells the loop of a shell to end
    too, only for an uncaught exception that is exactly a KeyboardInterrupt.

    Example:
        >>> from saddlepoint import Ensemble, attack, linf
        >>> def impatient(progress):
        ...     raise KeyboardInterrupt
        >>> problem = Ensemble([torch.nn.Identity().eval()], 0.5 * torch.eye(3), torch.arange(3))
        >>> try:
        ...     result = attack(problem, linf(0.1), callback=impatient)
        ... except KeyboardInterrupt as stop:
        ...     result = stop.result
        >>> result.interrupted, result.completed
        (True, tensor([False, False, False]))
    """
    stop.result = result  # type: ignore[attr-defined]


def partial_of(stop: KeyboardInterrupt) -> AttackResult | None:
    """What a solver found in the batch that was stopped; None if nothing."""
    found = getattr(stop, "result", None)
    # A result that says what was asked is that of a whole attack, which a model or a callback has made.
    return found if isinstance(found, AttackResult) and found.asked is None else None


def concatenate(parts: Sequence[AttackResult]) -> AttackResult:
    """Results of consecutive rows as one result."""
    if len(parts) == 1:
        return parts[0]
    history = History(
        torch.cat([part.history.weights for part in parts], dim=1),
        torch.cat([part.history.losses for part in parts], dim=1),
    )
    others = ("history", "precision", "asked")
    names = [field.name for field in fields(AttackResult) if field.name not in others]
    tensors: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in names
    }
    return AttackResult(history=history, precision=parts[0].precision, **tensors)
