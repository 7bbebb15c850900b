"""Verdicts on claims: what there is, and how much of it a verdict may rest on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

__all__ = ["Finding", "Verdict", "apart", "capped", "incomplete", "judged", "nothing"]

Verdict = Literal["holds", "holds in part", "does not hold", "not stored", "not measured"]


class Finding(NamedTuple):
    """Our numbers for a claim, what they say of it, and why, or on what they rest.

    `less` is whether they rest on less than the claim is about, so that it holds in part at most.
    """

    ours: str
    verdict: Verdict
    why: str
    less: bool = False


def nothing(why: str) -> Finding:
    """No stored run is about the claim."""
    return Finding("-", "not measured", why)


def judged(whole: bool, part: bool) -> Verdict:
    """The verdict on a claim that holds as a whole, or in part, or not.

    Example:
        >>> judged(False, True)
        'holds in part'
    """
    return "holds" if whole else "holds in part" if part else "does not hold"


def capped(verdict: Verdict, little: bool) -> Verdict:
    """At most in part, where there is too little to say more.

    Example:
        >>> capped("holds", True), capped("does not hold", True), capped("holds", False)
        ('holds in part', 'does not hold', 'holds')
    """
    return "holds in part" if verdict == "holds" and little else verdict


def incomplete(found: Finding, gone: Iterable[str]) -> Finding:
    """What is found, at most in part if something is gone that the claim is about: it might say otherwise.

    Example:
        >>> incomplete(Finding("1 %", "holds", "2 settings"), ["l0"])[1:]
        ('holds in part', '2 settings; not stored: l0, so in part at most', True)
    """
    if found.verdict == "not measured" or not (names := ", ".join(dict.fromkeys(gone))):
        return found
    why = f"{found.why}; not stored: {names}, so in part at most"
    return found._replace(verdict=capped(found.verdict, True), why=why, less=True)


def apart(more: float, less: float) -> float:
    """Points between two rates, in the four digits that stored ones have, so that ties are ties.

    Example:
        >>> 2.3 - 0.3 >= 2, apart(2.3, 0.3) >= 2
        (False, True)
    """
    return round(more - less, 4)
