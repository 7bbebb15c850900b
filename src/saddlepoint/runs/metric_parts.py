"""What metrics are made of: shares, intervals, epochs, what happened to victims, what patches do elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from saddlepoint.evaluation import wilson
from saddlepoint.evaluation.held_out import PatchRates

__all__ = [
    "Epoch",
    "Evaluations",
    "HeatMap",
    "HeldOut",
    "Interval",
    "Part",
    "Share",
    "Transfer",
    "VictimMetrics",
    "ViewSuccess",
    "held_out_metrics",
    "percent",
    "percents",
]

Interval = tuple[float, float]
"""Low and high end, percent."""


def percent(fraction: float) -> float:
    """A fraction in percent, as metrics have it: four digits after the point.

    Example:
        >>> percent(1 / 3)
        33.3333
    """
    return round(100 * fraction, 4)


def percents(ends: tuple[float, float]) -> Interval:
    """An interval of fractions in percent."""
    return percent(ends[0]), percent(ends[1])


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the metrics of a run. Fields that may be left out are None or empty then."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}


@final
@dataclass(frozen=True, kw_only=True)
class Evaluations(Part):
    """Gradient evaluations of all domains, in all and per row."""

    total: int
    per_row: float


@final
@dataclass(frozen=True, kw_only=True)
class Epoch(Part):
    """Means over the images of an epoch, such as "loss" and "weight/linf", and held-out accuracy, fractions."""

    stats: Mapping[str, float]
    validation: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Share:
    """A share of so many images, in percent.

    Example:
        >>> Share(97.5, 200).right, Share(97.5, 200).interval
        (195, (94.2822, 98.9275))
    """

    percent: float
    count: int

    @property
    def right(self) -> int:
        """How many images it is."""
        return round(self.percent * self.count / 100)

    @property
    def interval(self) -> Interval:
        """The Wilson score interval, percent."""
        return percents(wilson(self.right, self.count))


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


@final
@dataclass(frozen=True, kw_only=True)
class ViewSuccess(Part):
    """One view.

    Attributes:
        success: Trials in which every model is fooled.
        interval: Its Wilson score interval.
        plain: The same for a patch of plain grey: what covering a part of the image does by itself.
        models: Trials in which a model is fooled, whatever the others say, by name.
    """

    success: float
    interval: Interval
    plain: float
    models: Mapping[str, float]


@final
@dataclass(frozen=True, kw_only=True)
class HeatMap(Part):
    """Success over two properties of a view.

    Attributes:
        title: What it shows.
        down: Names of the lines.
        across: Names of the columns.
        success: Line by line.
        intervals: Of the same.
    """

    title: str
    down: tuple[str, ...]
    across: tuple[str, ...]
    success: tuple[tuple[float, ...], ...]
    intervals: tuple[tuple[Interval, ...], ...]


@final
@dataclass(frozen=True, kw_only=True)
class HeldOut(Part):
    """Patches on images and looks that they were not made for.

    Attributes:
        images: Held out; `right` of them every model has right without a patch, and these count.
        trials: Per view: patches times `right`.
        mean: Success over the views that the patches were made for, each with fresh looks.
        worst: Success of the view in which it is lowest.
        worst_interval: Of that.
        worst_view: Its name.
        best_patch: The row whose lowest success over these views is highest.
        views: The views that the patches were made for.
        maps: Other views.
    """

    images: int
    right: int
    trials: int
    mean: float
    worst: float
    worst_interval: Interval
    worst_view: str
    best_patch: int
    views: Mapping[str, ViewSuccess]
    maps: tuple[HeatMap, ...]


def held_out_metrics(
    rates: PatchRates,
    models: tuple[str, ...],
    count: int,
    maps: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
) -> HeldOut:
    """Metrics of a table of views: `count` of the attack, then the cells of every map, line by line.

    Args:
        rates: All views.
        models: Names of the models.
        count: How many views the patches were made for.
        maps: Names of lines and columns, by title.

    Raises:
        ValueError: Every image is wrong without a patch.
    """
    if not rates.trials:
        raise ValueError(
            "`--held-out` must leave images that every model has right without a patch, got none; take more."
        )
    shares, ends = [percent(share) for share in rates.per_view], rates.intervals()
    intervals = [percents(pair) for pair in ends]
    plain = [percent(share) for share in rates.plain_per_view]
    views = {
        rates.views[v]: ViewSuccess(
            success=shares[v],
            interval=intervals[v],
            plain=plain[v],
            models=dict(zip(models, map(percent, rates.per_model(v)), strict=True)),
        )
        for v in range(count)
    }
    worst = min(views, key=lambda name: views[name].success)
    found, start = [], count
    for title, (down, across) in maps.items():
        lines = [
            range(start + len(across) * i, start + len(across) * (i + 1)) for i in range(len(down))
        ]
        found.append(
            HeatMap(
                title=title,
                down=down,
                across=across,
                success=tuple(tuple(shares[v] for v in line) for line in lines),
                intervals=tuple(tuple(intervals[v] for v in line) for line in lines),
            )
        )
        start += len(down) * len(across)
    return HeldOut(
        images=rates.right.shape[1],
        right=int(rates.right.all(dim=0).sum()),
        trials=rates.trials,
        mean=round(sum(shares[:count]) / count, 4),
        worst=views[worst].success,
        worst_interval=views[worst].interval,
        worst_view=worst,
        best_patch=int(rates.per_patch()[:, :count].amin(dim=1).argmax()),
        views=views,
        maps=tuple(found),
    )
