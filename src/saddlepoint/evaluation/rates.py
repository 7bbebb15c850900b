"""How often an attack succeeds, counted on boolean tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from saddlepoint.behind import keeping_buffers
from saddlepoint.counts import check_count
from saddlepoint.display import counted, hardest, html_table, percent, percents
from saddlepoint.losses import cw_margin, finite
from saddlepoint.losses import fooled as is_fooled
from saddlepoint.problems import AbstractProblem, check_targets
from saddlepoint.problems.inputs import Array
from saddlepoint.rounding import full_precision
from saddlepoint.solver.inspection import first_answers
from saddlepoint.solver.result import Asked, AttackResult, asked_of
from saddlepoint.solver.watch import Watch
from saddlepoint.streams import JUDGE

__all__ = [
    "Z95",
    "SuccessRates",
    "numbered_results",
    "one_by_one",
    "share",
    "success_rates",
    "wilson",
]

T = TypeVar("T")

Z95 = NormalDist().inv_cdf(0.975)
"""Standard errors on either side of a mean that a 95 % interval reaches."""


@final
@dataclass(frozen=True)
class SuccessRates:
    """Success rates as fractions, from two tables of rows and domains.

    As in the paper every row counts: one that is misclassified from the start is a success at delta = 0.
    `clean_accuracy` is given beside it, and `among_correct` counts only rows that every domain had right.

    Attributes:
        fooled: Fooled at delta, (B, K), boolean.
        correct: Classified correctly at delta = 0, (B, K), boolean.
        names: Of the K domains; numbers if there are none.
        grouped: Whether domains are images of a group, whose places mean nothing: none of them is the hardest.

    Example:
        >>> fooled = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
        >>> rates = SuccessRates(fooled, torch.tensor([[True, True]]).expand(4, 2))
        >>> rates.all, rates.mean, rates.per_domain
        (0.5, 0.625, (0.75, 0.5))
        >>> rates
        SuccessRates(4 rows, 2 domains: among correct 50.0 %, all 50.0 %, mean 62.5 %)
    """

    fooled: Tensor
    correct: Tensor
    names: tuple[str, ...] = ()
    grouped: bool = False

    def __post_init__(self) -> None:
        for name in ("fooled", "correct"):
            table = getattr(self, name)
            if table.dim() != 2 or table.dtype != torch.bool or table.shape[0] == 0:
                raise ValueError(
                    f"`{name}` must be a boolean table (B, K) with B >= 1, "
                    f"got {table.dtype} of shape {tuple(table.shape)}."
                )
        if self.fooled.shape != self.correct.shape:
            raise ValueError(
                f"`fooled` and `correct` must have one shape, got {tuple(self.fooled.shape)} "
                f"and {tuple(self.correct.shape)}."
            )

    def __repr__(self) -> str:
        """What matters, in one line instead of all tensors."""
        shares = {"among correct": self.among_correct, "all": self.all, "mean": self.mean}
        told = ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
        return f"SuccessRates({self.count} rows, {counted(self.fooled.shape[1], 'domain')}: {told})"

    def _repr_html_(self) -> str:
        """The domains, all of them at once, and the hardest one, if that means anything, for a notebook."""
        rates = self.per_domain
        names = self.names or tuple(f"domain {k + 1}" for k in range(len(rates)))
        columns = (names, self.clean_accuracy, rates, self.intervals())
        rows = [
            (name, percent(clean), percent(rate), percents(ends))
            for name, clean, rate, ends in zip(*columns, strict=True)
        ]
        if self.grouped:
            rows = [("images of the groups", percent(share(self.correct)), percent(self.mean), "-")]
        every = share(self.correct.all(dim=1))
        rows.append(("all at once", percent(every), percent(self.all), percents(self.interval())))
        hard = None if self.grouped else hardest([-rate for rate in rates])
        note = f"among rows that every domain had right: {percent(self.among_correct)}"
        note += "" if hard is None else f"; hardest: {names[hard]}"
        return html_table(("domain", "right before", "fooled", "95 %"), rows, note)

    @property
    def count(self) -> int:
        """B, the number of rows."""
        return self.fooled.shape[0]

    @property
    def all(self) -> float:
        """ASR_all: rows that fool every domain at once."""
        return share(self.fooled.all(dim=1))

    @property
    def mean(self) -> float:
        """ASR_avg: mean over rows and domains."""
        return share(self.fooled)

    @property
    def per_domain(self) -> tuple[float, ...]:
        """Success rate of each domain, K numbers."""
        return tuple(share(column) for column in self.fooled.T)

    @property
    def clean_accuracy(self) -> tuple[float, ...]:
        """Accuracy of each domain without perturbation, K numbers."""
        return tuple(share(column) for column in self.correct.T)

    @property
    def among_correct(self) -> float:
        """ASR_all over the rows that every domain classified correctly; nan if there is none."""
        return share(self.fooled[self.correct.all(dim=1)].all(dim=1))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Wilson score interval of `all`."""
        return wilson(int(self.fooled.all(dim=1).sum()), self.count, level)

    def intervals(self, level: float = 0.95) -> tuple[tuple[float, float], ...]:
        """Wilson score interval of each domain's rate, K pairs."""
        return tuple(wilson(int(column.sum()), self.count, level) for column in self.fooled.T)


def success_rates(
    problem: AbstractProblem | AttackResult | Iterable[AttackResult],
    delta: Tensor | Array | AttackResult | None = None,
    *,
    targeted: bool | None = None,
    batch_size: int = 256,
) -> SuccessRates:
    """Evaluate perturbations afresh and count.

    Random transforms are judged on one fresh draw per row and domain, which the attack has not seen. Success is
    counted against the true classes, `problem.truth`, also where the models' own answers were attacked.

    Args:
        problem: B rows, K domains. Or the result of an attack, or results one after the other, such as those of
            attacks on `Parts`, without `delta`: one of them is kept in memory at a time.
        delta: (B, ...), a tensor or an array; or the result of an attack on this problem.
        targeted: Whether labels are classes to reach; then success is reaching them, and `correct` means not
            being there already. None is what the attack was, if a result is given, else False.
        batch_size: Rows at a time; it changes no result.

    Returns:
        Rates over all rows.

    Raises:
        ValueError: The models do not answer for themselves, or not in numbers, at delta = 0; see `attack`. Or
            results have different domains, models, norms, radii or goals, or rows of the same number, do not
            know what was asked, or there is none.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> model = torch.nn.Linear(2, 2, bias=False).eval()
        >>> _ = torch.nn.init.eye_(model.weight)
        >>> problem = Ensemble([model], torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
        >>> success_rates(problem, torch.tensor([[-1.0, 0.5]])).all
        1.0
    """
    if not isinstance(problem, AbstractProblem):
        if delta is not None:
            raise TypeError(
                "`delta` must be left out for results of attacks, which have it, got both."
            )
        return _rates_of(problem, targeted=targeted, batch_size=batch_size)
    if delta is None:
        raise TypeError("`delta` must be perturbations, or the result of an attack, got none.")
    if isinstance(delta, AttackResult):
        asked, delta = delta.asked, delta.delta
        targeted = asked.targeted if targeted is None and asked is not None else targeted
    targeted = bool(targeted)
    check_targets(problem, targeted)
    check_count("batch_size", batch_size, 1)
    delta = torch.as_tensor(delta).to(problem.lower)
    if delta.shape != problem.lower.shape:
        raise ValueError(
            f"`delta` must have shape {tuple(problem.lower.shape)}, got {tuple(delta.shape)}."
        )
    # Not inside, which also catches NaN.
    outside = ~((delta >= problem.lower - 1e-6) & (delta <= problem.upper + 1e-6))
    if bool(outside.any()):
        raise ValueError(
            f"`delta` must keep images in [0, 1] (problem.lower <= delta <= problem.upper), "
            f"got {int(outside.sum())} entries outside or NaN."
        )
    tables: list[tuple[Tensor, Tensor]] = []
    watch = Watch(cw_margin, targeted=targeted)
    with torch.no_grad(), full_precision(), keeping_buffers(problem.models):
        few, _ = first_answers(problem, targeted=targeted)
        for rows in torch.arange(len(problem), device=delta.device).split(batch_size):
            part = problem.take(rows)
            goal = part.labels if targeted else part.truth
            clean = part.logits(part.zeros(), JUDGE)
            watch.values(part, part.zeros(), finite(clean))
            tables.append(
                (
                    is_fooled(part.logits(delta[rows], JUDGE), goal, targeted=targeted),
                    is_fooled(clean, goal, targeted=targeted),
                )
            )
    watch.check()
    fooled, before = (torch.cat(column) for column in zip(*tables, strict=True))
    grouped = few.unperturbed().dim() > few.lower.dim()
    return SuccessRates(fooled, ~before, problem.names, grouped)


def _rates_of(
    results: AttackResult | Iterable[AttackResult], *, targeted: bool | None, batch_size: int
) -> SuccessRates:
    """Rates over the rows of all results."""
    parts: list[SuccessRates] = []
    for result in numbered_results("problem", results):
        asked = asked_of(result)
        how: dict[str, Any] = {"targeted": targeted, "batch_size": batch_size}
        parts.append(success_rates(asked.problem, result, **how))
        del result, asked  # as large as the images
    return _joined(parts)


def numbered_results(
    name: str, given: AttackResult | Iterable[AttackResult]
) -> Iterator[AttackResult]:
    """The result of an attack, or results one after the other of the same one, none of whose rows comes twice.

    Raises:
        TypeError: There is something else among them.
        ValueError: A result does not know what was asked, rows have the same number, or attacks differ.
    """
    seen: set[int] = set()
    first: dict[str, Any] = {}
    for result in one_by_one(name, given, AttackResult, "results of attacks"):
        first = first or _facts(asked_of(result))
        for fact, value in _facts(asked_of(result)).items():
            if value != first[fact] and None not in (value, first[fact]):
                got = f"{first[fact]}, then {value}"
                if fact == "models":
                    row = int(asked_of(result).problem.rows[0])
                    got = (
                        f"others from row {row} on; make them once, outside of the function that makes the "
                        "problems, as in `models = [...]` and "
                        "`sp.Parts(lambda x, y: sp.Ensemble(models, x, y), loader)`"
                    )
                raise ValueError(f"`{name}` must give results with the same {fact}, got {got}.")
        numbers = asked_of(result).problem.rows.tolist()
        for number in numbers:
            if number in seen:
                raise ValueError(
                    f"`{name}` must give results whose rows have different numbers, by which they are counted "
                    f"and saved, got number {number} twice; attack the problems of `sp.Parts`."
                )
            seen.add(number)
        yield result
        del result  # as large as the images


def _facts(asked: Asked) -> dict[str, Any]:
    """What results have in common that are counted together; None where each row has its own."""
    problem, ball, eps = asked.problem, asked.ball.ball, torch.as_tensor(asked.ball.ball.eps)
    return {
        "domains": ", ".join(problem.names),
        "models": tuple(problem.models),
        "`targeted`": asked.targeted,
        "norm": f"{ball.p:g}" + (" of pixels" if ball.unit == "pixel" else ""),
        "radius": None if eps.dim() else float(f"{float(eps):.7g}"),
    }


def one_by_one(name: str, given: T | Iterable[T], kind: type[T], what: str) -> Iterator[T]:
    """What was given, or what it gives one after the other, if all of it is of one kind.

    Raises:
        TypeError: It is not.

    Example:
        >>> list(one_by_one("n", 3, int, "numbers")), list(one_by_one("n", iter([4, 5]), int, "numbers"))
        ([3], [4, 5])
    """
    # What gives nothing is refused as what it is.
    for each in given if isinstance(given, Iterable) and not isinstance(given, kind) else [given]:
        if not isinstance(each, kind):
            raise TypeError(f"`{name}` must be or give {what}, got {type(each).__name__}.")
        yield each
        del each


def _joined(parts: Sequence[SuccessRates]) -> SuccessRates:
    if not parts:
        raise ValueError("`problem` must give at least one result, got none.")
    fooled, correct = (
        torch.cat([getattr(part, table) for part in parts]) for table in ("fooled", "correct")
    )
    return SuccessRates(fooled, correct, parts[0].names, parts[0].grouped)


def wilson(successes: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion; (0, 1) if nothing was counted.

    Example:
        >>> low, high = wilson(90, 100)
        >>> round(low, 3), round(high, 3)
        (0.826, 0.945)
    """
    if not 0 < level < 1:
        raise ValueError(f"`level` must be in (0, 1), got {level}.")
    if count == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = successes / count
    centre = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    # Where nothing or everything was counted, an end is exact, and rounding must not move it.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return low, 1.0 if successes == count else min(1.0, centre + half)


def share(table: Tensor) -> float:
    """Share of true entries in a boolean table; nan if it is empty.

    Example:
        >>> share(torch.tensor([True, False]))
        0.5
    """
    return table.double().mean().item() if table.numel() else math.nan
