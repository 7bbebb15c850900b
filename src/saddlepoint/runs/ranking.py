"""Runs side by side: ranked where they answer the same question, and only as far as the rows allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, final

from saddlepoint.runs.comparable import (
    QUESTIONS,
    Entry,
    Question,
    differences,
    differing,
    facts,
    find_runs,
    read_entry,
)

__all__ = [
    "Alone",
    "Board",
    "LeftOut",
    "Pair",
    "Place",
    "Ranking",
    "mcnemar",
    "quoted",
    "rank_runs",
]

LEVEL = 0.05
"""The chance that any pair of a ranking is called separable though it is not, at most."""


@final
@dataclass(frozen=True)
class Pair:
    """Two runs row by row, of the rows that count for both; rows are None where they are not stored.

    Attributes:
        first: The one with the better score.
        second: The other.
        rows: How many both have, only the first, only the second, neither.
        p: Of the exact McNemar test, two-sided; None without rows.
        separable: Whether the first is better by more than chance allows.
    """

    first: Entry
    second: Entry
    rows: tuple[int, int, int, int] | None
    p: float | None
    separable: bool


@final
@dataclass(frozen=True)
class Place:
    """A run in a ranking, at a rank between `best` and `worst`."""

    entry: Entry
    best: int
    worst: int

    @property
    def rank(self) -> str:
        """Such as "1" or "1-3"."""
        return str(self.best) if self.best == self.worst else f"{self.best}-{self.worst}"


@final
@dataclass(frozen=True)
class Ranking:
    """Runs that answer one question, the best score first."""

    question: Question
    places: tuple[Place, ...]
    pairs: tuple[Pair, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The runs, the best score first."""
        return tuple(place.entry for place in self.places)

    @property
    def first(self) -> tuple[Entry, ...]:
        """Those that may be the best: one, or several that are not separable."""
        return tuple(place.entry for place in self.places if place.best == 1)


@final
@dataclass(frozen=True)
class Alone:
    """A run that no other can be ranked with, and why."""

    entry: Entry
    reason: str


@final
@dataclass(frozen=True)
class LeftOut:
    """A run folder without results, and why."""

    folder: Path
    reason: str


@final
@dataclass(frozen=True)
class Board:
    """All runs: in rankings, on their own, or left out.

    Example:
        >>> Board(rankings=(), alone=(), left_out=()).entries
        ()
    """

    rankings: tuple[Ranking, ...]
    alone: tuple[Alone, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every run with results, once."""
        ranked = [entry for each in self.rankings for entry in each.entries]
        found = [*ranked, *(each.entry for each in self.alone)]
        return tuple({entry.folder: entry for entry in found}.values())

    def plain(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "runs": {entry.name: entry.metrics.plain() for entry in self.entries},
            "rankings": [
                {
                    "question": each.question.title,
                    "places": [
                        {"run": place.entry.name, "rank": [place.best, place.worst]}
                        | {"score": place.entry.score, "at_most": place.entry.bound}
                        for place in each.places
                    ],
                }
                for each in self.rankings
            ],
            "alone": {each.entry.name: each.reason for each in self.alone},
            "left_out": {str(each.folder): each.reason for each in self.left_out},
        }


def rank_runs(folders: Sequence[Path], *, strict: bool = False) -> Board:
    """Read runs and rank those that are comparable.

    Args:
        folders: Run folders, and folders that hold some at any depth; folders that are no runs are passed
            over.
        strict: Refuse damaged and unfinished runs that are named in `folders`; those found inside other
            folders are left out and named.

    Raises:
        ValueError: A folder holds no run, or one that is refused.

    Example:
        >>> rank_runs([])
        Board(rankings=(), alone=(), left_out=())
    """
    entries, left_out = [], []
    for name, folder in find_runs(folders):
        try:
            entries.append(read_entry(name, folder))
        except (OSError, ValueError) as error:
            if strict and folder in folders:
                raise
            named = "" if str(folder) in str(error) else f"`{folder}`: "
            left_out.append(LeftOut(folder, f"{named}{error}"))
    rankings = tuple(ranking for question in QUESTIONS for ranking in _rankings(question, entries))
    ranked = {entry.folder for each in rankings for entry in each.entries}
    alone = _alone([e for e in entries if e.folder not in ranked], entries)
    return Board(rankings, tuple(alone), tuple(left_out))


def mcnemar(one: int, other: int) -> float:
    """Two-sided p-value of the exact McNemar test: `one` rows speak for the first, `other` for the second.

    Example:
        >>> mcnemar(6, 0), mcnemar(3, 3)
        (0.03125, 1.0)
    """
    count, term, tail = one + other, 1, 0
    for k in range(min(one, other) + 1):
        tail += term
        term = term * (count - k) // (k + 1)
    # Integers as large as this have no float; their quotient has.
    return min(1.0, 2 * tail / (1 << count))


def quoted(name: str) -> str:
    """The name of a run in a sentence, which it may not disturb: runs are called "before" and "after".

    Example:
        >>> print(f"{quoted('after')} comes before {quoted('before')}")
        “after” comes before “before”
    """
    return f"“{name}”"


def _rankings(question: Question, entries: Sequence[Entry]) -> list[Ranking]:
    """One for every set of two or more runs that the question can be asked of."""
    groups: dict[tuple[tuple[str, str], ...], list[Entry]] = {}
    for entry in filter(None, map(question.seen, entries)):
        if entry.score is not None and not entry.guesses:
            groups.setdefault(tuple(sorted(facts(question, entry).items())), []).append(entry)
    return [
        _ranking(question, group)
        for group in groups.values()
        if len(group) > 1
        and not (question.models is False and len({_models(e) for e in group}) == 1)
    ]


def _models(entry: Entry) -> tuple[str, ...]:
    return tuple(sorted(entry.run.hashes.models.values()))


def _ranking(question: Question, group: Sequence[Entry]) -> Ranking:
    sign = 1 if question.higher else -1
    # What is but an upper bound comes last: not every image was attacked, so that nobody knows how high it is.
    order = sorted(group, key=lambda e: (e.bound, -sign * _value(e)))
    count = math.comb(len(order), 2)
    pairs = tuple(_pair(question, one, other, count) for one, other in combinations(order, 2))
    separable = [(pair.first.folder, pair.second.folder) for pair in pairs if pair.separable]
    places = tuple(
        Place(
            entry,
            1 + sum(second == entry.folder for _, second in separable),
            len(order) - sum(first == entry.folder for first, _ in separable),
        )
        for entry in order
    )
    return Ranking(question, places, pairs)


def _pair(question: Question, one: Entry, other: Entry, count: int) -> Pair:
    """Two of a ranking with `count` pairs, by rows where there are rows, by intervals otherwise."""
    sign = 1 if question.higher else -1
    ahead = sign * (_value(one) - _value(other)) > 0 and not one.bound
    tables = (one.counted, one.yes, other.counted, other.yes)
    there = [table for table in tables if table is not None]
    if len(there) < 4 or len({table.shape for table in there}) > 1:
        (_, low, high), (_, least, most) = _score(one), _score(other)
        apart = low > most if question.higher else high < least
        return Pair(one, other, None, None, ahead and apart)
    both = there[0] & there[2]
    mine, theirs = there[1][both], there[3][both]
    rows = [mine & theirs, mine & ~theirs, ~mine & theirs, ~mine & ~theirs]
    counts = tuple(int(table.sum()) for table in rows)
    p = mcnemar(counts[1], counts[2])
    # A score counts the rows that this run had right, which may be others than those of the other run. On the
    # rows that count for both, the same run has to be ahead as by the scores.
    agrees = sign * (counts[1] - counts[2]) > 0
    sure = p * count <= LEVEL  # so that the whole ranking is right with 95 % confidence
    return Pair(
        one, other, (counts[0], counts[1], counts[2], counts[3]), p, ahead and agrees and sure
    )


def _score(entry: Entry) -> tuple[float, float, float]:
    assert entry.score is not None  # runs without a score are in no ranking
    return entry.score


def _value(entry: Entry) -> float:
    return _score(entry)[0]


def _alone(lonely: Sequence[Entry], entries: Sequence[Entry]) -> list[Alone]:
    """Runs that no other can be ranked with; of two that are nearest to each other the first one says why."""
    found: list[Alone] = []
    nearest: dict[Path, Entry] = {}
    for entry in lonely:
        near = _nearest(entry, entries)
        if not any(entry.run.kind in question.kinds for question in QUESTIONS):
            reason = f"Runs of this kind ({entry.run.kind}) are not ranked."
        elif entry.guesses:
            reason = (
                "Not ranked: without attack it has no more right than guessing gives, so that what is left "
                "under attack says nothing."
            )
        elif entry.score is None:
            reason = "No row was right before the attack, so that there is no success rate."
        elif near is None:
            reason = f"There is no other run of this kind ({entry.run.kind}) that can be ranked."
        elif near.folder in nearest and nearest[near.folder].folder == entry.folder:
            reason = f"Not comparable with {quoted(near.name)}, as is said there."
        else:
            nearest[entry.folder] = near
            apart = "; ".join(differences(entry, near) or ())
            reason = f"Not comparable. The nearest is {quoted(near.name)}, from which it differs by: {apart}."
        found.append(Alone(entry, reason))
    return found


def _nearest(entry: Entry, entries: Sequence[Entry]) -> Entry | None:
    """The run of which least keeps this one apart; among equals the one that has most else in common."""
    found = [
        ((len(apart), len(differing([entry, other]))), other)
        for other in entries
        if other.folder != entry.folder
        and other.score is not None
        and not other.guesses
        and (apart := differences(entry, other)) is not None
    ]
    return min(found, key=lambda pair: pair[0])[1] if found else None
