"""Attacks that raise: what they did not attack is not robust, and no number may say so in silence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

__all__ = ["AttackFailedError", "Failure", "OnFailure", "check_on_failure", "reason"]

OnFailure = Literal["raise", "note"]
"""What becomes of an attack that raises: an error, or a note beside numbers that are upper bounds."""


@final
@dataclass(frozen=True)
class Failure:
    """An attack that raised under one threat.

    Attributes:
        threat: Name of the threat.
        attack: Name of the attack.
        images: How many images that are not fooled yet it did not attack to the end.
        error: What it raised, in one line.
        domain: Name of the domain; empty if there is but one, or all were attacked at once.

    Example:
        >>> failure = Failure("linf", "pgd", 12, "RuntimeError: boom")
        >>> print(failure)
        linf pgd failed on 12 images
        >>> print(failure.of("model 1"))
        model 1 linf pgd failed on 12 images
    """

    threat: str
    attack: str
    images: int
    error: str
    domain: str = ""

    def __str__(self) -> str:
        """Who failed, and on how many images."""
        who = " ".join(part for part in (self.domain, self.threat, self.attack) if part)
        return f"{who} {self.words}"

    @property
    def words(self) -> str:
        """What happened, without saying to whom."""
        return f"failed on {self.images} image{'' if self.images == 1 else 's'}"

    def of(self, domain: str) -> Failure:
        """The same failure, said of a domain."""
        return replace(self, domain=domain)


class AttackFailedError(RuntimeError):
    """An attack raised, so that there is no accuracy under it.

    Args:
        failure: What happened; `__cause__` is the error of the attack itself.

    Attributes:
        what: The message without the remedy.

    Example:
        >>> print(AttackFailedError(Failure("linf", "pgd", 12, "RuntimeError: boom")))
        linf pgd failed on 12 images (RuntimeError: boom), and what was not attacked is not robust; mend the \
cause, or take on_failure="note", under which numbers are upper bounds.
    """

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self.what = f"{failure} ({failure.error}), and what was not attacked is not robust"
        super().__init__(
            f'{self.what}; mend the cause, or take on_failure="note", under which numbers are upper bounds.'
        )


def check_on_failure(on_failure: str) -> None:
    """Refuse what is neither "raise" nor "note".

    Example:
        >>> check_on_failure("note")
    """
    if on_failure not in ("raise", "note"):
        raise ValueError(f'`on_failure` must be "raise" or "note", got {on_failure!r}.')


def reason(error: BaseException) -> str:
    r"""An error in one line that is not too long.

    Example:
        >>> reason(RuntimeError("boom\n  bang")), reason(AssertionError())
        ('RuntimeError: boom bang', 'AssertionError')
    """
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
