"""Evaluations of more images than fit into memory: part by part, with the numbers of one."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ParamSpec, final

import torch

from saddlepoint.bars import telling
from saddlepoint.evaluation.domain_results import DomainAccuracy
from saddlepoint.evaluation.evaluation_bar import evaluation_bar
from saddlepoint.evaluation.ledger import Status, part_of
from saddlepoint.evaluation.results import Outcome, RobustAccuracy
from saddlepoint.loaders import batches, length
from saddlepoint.problems import AbstractProblem, Parts

__all__ = ["joined", "joined_domains", "streaming", "streaming_problems"]

_P = ParamSpec("_P")
_MOMENT = 1e-12  # seconds in which nothing is attacked, where the time is over
_BATCHES = 4  # of images that are in memory at a time: what an attack leaves still fills batches


def streaming(evaluate: Callable[_P, RobustAccuracy]) -> Callable[_P, RobustAccuracy]:
    """Let an evaluation of `model, x, y, threats, ...` take a loader or a data set in place of `x` and `y`.

    Every image is read once, a few batches are in memory at a time, and a few bytes of each image are kept.

    Args:
        evaluate: With the arguments `batch_size`, `budget`, `ledger`, `rows`, `precision`, `progress` and
            `callback` of `robust_accuracy`; the bar is shown here.
    """
    signature = inspect.signature(evaluate)

    @functools.wraps(evaluate)
    def either(*args: _P.args, **kwargs: _P.kwargs) -> RobustAccuracy:
        given = _arguments(signature, args, kwargs)
        with telling(given["progress"], given["callback"], evaluation_bar) as callback:
            return both(given | {"callback": callback})

    def both(given: dict[str, Any]) -> RobustAccuracy:
        source, size = given["x"], given["batch_size"]
        if given["y"] is not None or hasattr(source, "__array__"):
            return evaluate(**given)  # type: ignore[call-arg]
        if given["rows"] is not None:
            raise ValueError(
                "`rows` must be None for a loader, whose images are counted, got some."
            )
        budget = given["budget"]
        time = _Time(budget, None if budget is None else length(source))
        parts: list[RobustAccuracy] = []
        said: set[str] = set()
        decided: dict[torch.dtype, Any] = {}  # "auto", on the first part of such images
        # A batch of no image is refused by `evaluate`, as it is without a loader.
        for x, y in batches(source, _BATCHES * max(size, 1)):
            first = sum(part.count for part in parts)
            given |= {"x": x, "y": y, "rows": torch.arange(first, first + len(x))}
            more = {
                "ledger": part_of(given["ledger"], f"from {first}"),
                "budget": time.of(first, len(x)),
                "precision": decided.get(x.dtype, given["precision"]),
            }
            with _said_once(said):
                found = evaluate(**{**given, **more})  # type: ignore[call-arg]
            time.add("", found)
            decided[x.dtype] = found.precision
            parts.append(replace(found, nearest={}, problem=None))
            del found  # its perturbations are as large as the images
        if not parts:
            raise ValueError("`x` must give at least one batch of images and labels, got none.")
        return joined(parts)

    return either


def streaming_problems(evaluate: Callable[_P, DomainAccuracy]) -> Callable[_P, DomainAccuracy]:
    """Let an evaluation of `problem, threats, ...` take problems with the same domains, one after the other.

    Args:
        evaluate: With the arguments `budget`, `ledger`, `precision`, `progress` and `callback` of
            `robust_domains`; the bar is shown here.
    """
    signature = inspect.signature(evaluate)

    @functools.wraps(evaluate)
    def either(*args: _P.args, **kwargs: _P.kwargs) -> DomainAccuracy:
        given = _bound(signature, args, kwargs)
        with telling(given["progress"], given["callback"], evaluation_bar) as callback:
            return both(given | {"callback": callback})

    def both(given: dict[str, Any]) -> DomainAccuracy:
        source = given["problem"]
        if not isinstance(source, Iterable):
            return evaluate(**given)  # type: ignore[call-arg]
        total = sum(map(len, source)) if isinstance(source, list | tuple) else None
        total = source.images if isinstance(source, Parts) else total
        time = _Time(given["budget"], total)
        parts: list[DomainAccuracy] = []
        said: set[str] = set()
        decided: dict[torch.dtype, Any] = {}  # as above
        for problem in source:
            if not isinstance(problem, AbstractProblem):
                raise ValueError(f"`problem` must give problems, got {type(problem).__name__}.")
            first = sum(part.count for part in parts)
            given["problem"] = problem.take(torch.arange(len(problem), device=problem.lower.device))
            given["problem"].rows = torch.arange(first, first + len(problem)).to(problem.rows)
            more: dict[str, Any] = {"ledger": part_of(given["ledger"], f"from {first}")}
            more["budget"] = time.of(first, len(problem))
            more["precision"] = decided.get(problem.lower.dtype, given["precision"])
            with _said_once(said):
                found = evaluate(**{**given, **more})  # type: ignore[call-arg]
            decided[problem.lower.dtype] = found.precision
            for name, each in found.per_domain.items():
                time.add(name, each)
            single = {name: replace(each, nearest={}) for name, each in found.per_domain.items()}
            parts.append(replace(found, per_domain=single, nearest={}, problem=None))
            del found, problem  # as large as the images
            names = parts[0].per_domain
            if single.keys() != names.keys():
                raise ValueError(
                    f"`problem` must give problems with the same domains, got {', '.join(names)}, then "
                    f"{', '.join(single)}."
                )
        if not parts:
            raise ValueError("`problem` must give at least one problem, got none.")
        return joined_domains(parts)

    return either


def joined(parts: Sequence[RobustAccuracy]) -> RobustAccuracy:
    """One result of the results for parts of the images, in their order, under the same attacks.

    Example:
        >>> one = RobustAccuracy({}, torch.tensor([True, False]), ())
        >>> joined([one, one]).correct
        tensor([ True, False,  True, False])
    """
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.outcomes for part in parts), strict=True)
    correct = torch.cat([part.correct for part in parts])
    outcomes = tuple(_outcome(each) for each in columns)
    precision = _precision(parts)
    return replace(parts[0], correct=correct, outcomes=outcomes, nearest={}, precision=precision)


def joined_domains(parts: Sequence[DomainAccuracy]) -> DomainAccuracy:
    """One result of the results for parts of the images, in their order, under the same attacks."""
    if len(parts) == 1:
        return parts[0]
    tables: dict[str, Any] = {
        name: {
            threat: torch.cat([getattr(part, name)[threat] for part in parts])
            for threat in parts[0].balls
        }
        for name in ("fooled", "broken", "weights", "eps_min", "missed", "unsearched")
    }
    per_domain = {
        name: joined([part.per_domain[name] for part in parts]) for name in parts[0].per_domain
    }
    missed = Counter[tuple[str, str]]()
    for failure in (failure for part in parts for failure in part.failed):
        missed[failure.threat, failure.attack] += failure.images
    first = {(each.threat, each.attack): each for part in reversed(parts) for each in part.failed}
    failed = tuple(replace(first[key], images=count) for key, count in missed.items())
    remarks = _numbered([(part.count, part.remarks) for part in parts])
    more: dict[str, Any] = {"remarks": remarks, "failed": failed, "precision": _precision(parts)}
    return replace(parts[0], per_domain=per_domain, **tables, nearest={}, **more)


def _precision(parts: Sequence[RobustAccuracy | DomainAccuracy]) -> tuple[str, ...]:
    """What each model computed in: one word, or several where images of other dtypes came later."""
    words = zip(*(part.precision for part in parts), strict=True)
    return tuple(" and ".join(dict.fromkeys(each)) for each in words)


def _numbered(parts: Sequence[tuple[int, Sequence[str]]]) -> tuple[str, ...]:
    """Notes on parts of so many images, with the numbers of those images."""
    notes, first = [], 0
    for count, texts in parts:
        notes += [f"images {first + 1} to {first + count}: {text}" for text in texts]
        first += count
    return tuple(notes)


def _outcome(parts: tuple[Outcome, ...]) -> Outcome:
    """What one attack did to all parts."""
    tables: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("attacked", "broken", "distance")
    }
    failures = [part.failure for part in parts if part.failure is not None]
    missed = sum(failure.images for failure in failures)
    return replace(
        parts[0],
        **tables,
        seconds=sum(part.seconds for part in parts),
        queries=sum(part.queries for part in parts),
        status=_status({part.status for part in parts}),
        notes=_numbered([(len(part.broken), part.notes) for part in parts]),
        failure=replace(failures[0], images=missed) if failures else None,
    )


def _status(found: set[Status]) -> Status:
    order: tuple[Status, ...] = ("failed", "cut short", "complete", "not needed")
    return next(status for status in order if status in found)


def _arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name; threats behind a loader are where labels would be."""
    if len(args) > 2 and isinstance(args[2], Mapping):
        if "threats" in kwargs or _are_threats(*args[3:4]):
            raise TypeError("`y` must be labels, got a mapping and threats besides.")
        args = (*args[:2], None, *args[2:])
    return _bound(signature, args, kwargs)


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _are_threats(value: Any = None) -> bool:
    """Whether it maps names; a suite of one's own maps norms to attacks."""
    return isinstance(value, Mapping) and any(isinstance(name, str) for name in value)


@final
class _Time:
    """The seconds of an evaluation, part by part: what no attack has used is for the parts that follow.

    Args:
        budget: Seconds for each attack under each threat, for all parts together; None for no limit.
        total: How many images there are in all, if that is known.
    """

    def __init__(self, budget: float | None, total: int | None) -> None:
        if budget is not None and total is None:
            raise ValueError(
                f"`budget` must be None for data whose length is not known before it is read, got {budget}; "
                "give a loader of a data set and a sampler that have a length."
            )
        self.budget, self.total = budget, total or 0
        self.spent = defaultdict[tuple[str, int], float](float)

    def of(self, first: int, count: int) -> float | None:
        """What `count` images from number `first` on may take; there may be more of them than was said."""
        if self.budget is None or not self.budget > 0:  # which is refused where it is used
            return self.budget
        left = self.budget - max(self.spent.values(), default=0.0)
        return max(_MOMENT, left * min(1.0, count / max(self.total - first, count)))

    def add(self, domain: str, found: RobustAccuracy) -> None:
        """Count what the attacks on a part took."""
        for number, each in enumerate(found.outcomes):
            self.spent[domain, number] += each.seconds


@contextmanager
def _said_once(said: set[str]) -> Iterator[None]:
    """What is warned of within, if it has not been said before; the caller of `either` hears it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        if str(each.message) not in said:
            said.add(str(each.message))
            warnings.warn(each.message, stacklevel=5)
