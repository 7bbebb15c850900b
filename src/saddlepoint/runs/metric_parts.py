"""What metrics are made of: parts that may be left out, intervals, and what happened to victims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

__all__ = ["Interval", "Part", "Transfer", "VictimMetrics"]

Interval = tuple[float, float]
"""Low and high end, percent."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the metrics of a run. Fields that may be left out are None or empty then."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}


@final
@dataclass(frozen=True, kw_only=True)
class VictimMetrics(Part):
    """A model that the attack never asked, with the perturbations that were found for others.

    Attributes:
        rows_correct: Rows that it had right before the attack.
        clean_accuracy: Without attack.
        accuracy: Under attack, with its interval.
        asr_among_correct: Success rate over `rows_correct`, with its interval; None where there is no such row.
    """

    rows_correct: int
    clean_accuracy: float
    accuracy: float
    accuracy_interval: Interval
    asr_among_correct: float | None = None
    interval: Interval | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Transfer(Part):
    """Success on models that the attack never asked, which is another question than success on those it asked.

    Attributes:
        victims: Each alone, by name.
        rows_correct: Rows that every victim had right before the attack.
        asr_all_among_correct: Of these, those that fool every victim at once, with its interval; None where
            there is no such row.
    """

    victims: Mapping[str, VictimMetrics]
    rows_correct: int
    asr_all_among_correct: float | None = None
    interval: Interval | None = None

    @property
    def rate(self) -> tuple[float, float, float] | None:
        """The rate that transfer is ranked by, with its interval."""
        if self.asr_all_among_correct is None or self.interval is None:
            return None
        return self.asr_all_among_correct, *self.interval
