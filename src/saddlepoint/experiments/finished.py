"""What is in the folder of an experiment: finished rows and measurements of every method and label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar, final

from torch import Tensor

from saddlepoint.experiments.measurements import (
    RESULTS,
    Distances,
    MeasuredMetrics,
    MeasureSettings,
    NetworkAccuracy,
    Residuals,
    Times,
)
from saddlepoint.experiments.places import complete_in
from saddlepoint.experiments.plan import (
    AVERAGE,
    LABELS,
    METHODS,
    Block,
    Experiment,
    Measurement,
    Row,
)
from saddlepoint.report.tables import Cell
from saddlepoint.runs import AttackMetrics, Run, finished, lift, read_results, settings_of
from saddlepoint.runs.plain import read_plain
from saddlepoint.runs.settings import AttackSettings, UniversalSettings

__all__ = ["Attacked", "Measured", "Results", "Source", "collect", "lowered"]

Kind = TypeVar("Kind", bound=MeasuredMetrics)


class Source(NamedTuple):
    """Where a number of ours comes from: how it was attacked, and which class was.

    Example:
        >>> Source("attack-5").name, Source("apgda", "predicted").name
        ('attack, 5 restarts', 'apgda, predicted labels')
    """

    method: str
    labels: str = "true"

    @property
    def name(self) -> str:
        """In tables."""
        return self.method_name + (f", {self.labels} labels" if self.labels != "true" else "")

    @property
    def method_name(self) -> str:
        """The method in tables."""
        return "attack, 5 restarts" if self.method == "attack-5" else self.method


@final
@dataclass(frozen=True)
class Attacked:
    """A finished row.

    Attributes:
        block, row: What was run.
        source: How.
        images: How many images were attacked; a group counts all of its own.
        seed: Of groups, random transformations and random starts.
        domains: Names.
        rule: The weight rule as text; with the weights where they were found from other rows.
        asr_all: Success rate over all rows, percent, and `interval`, its 95 % interval.
        asr_mean: Mean over rows and domains, percent.
        accuracy: Per domain, percent.
        weights: Mean final weight per domain.
        evaluations: Of all domains, mean over rows.
        precision: What networks computed in during the attack.
        limit: How many images were asked for, of which groups are made.
        success: Of every row whether all domains were fooled, where a stored summary says so; see `verdicts`.
        settled: The step from which on weights stay near the final ones, where a stored summary says so; see
            `settles`.
        walked: The mean weights of every step, where a stored summary has them; see `path`.
        folder: Where its tensors are; None if it was read from a stored summary.
    """

    block: Block
    row: Row
    source: Source
    images: int
    seed: int
    domains: tuple[str, ...]
    rule: str
    asr_all: float
    interval: tuple[float, float]
    asr_mean: float
    accuracy: Mapping[str, float]
    weights: Mapping[str, float]
    evaluations: float
    precision: str = "float32"
    limit: int | None = None
    success: tuple[bool, ...] | None = field(default=None, compare=False)
    settled: int | None = field(default=None, compare=False)
    walked: Mapping[str, Sequence[float]] | None = field(default=None, compare=False)
    folder: Path | None = field(default=None, compare=False)

    def same_images(self, other: Attacked) -> bool:
        """Whether both were run on as many images with the same seed and precision: they can be compared.

        Groups are made in another way of every number of images that is asked for, left-over ones included.
        """
        mine, others = ((a.images, a.seed, a.precision) for a in (self, other))
        grouped = isinstance(self.block.settings, UniversalSettings)
        return mine == others and not (grouped and self.limit != other.limit)

    def verdicts(self) -> tuple[bool, ...] | None:
        """Of every row whether all domains were fooled; None if it is a summary without them."""
        if self.success is not None or self.folder is None:
            return self.success
        return tuple(self.tensors()["fooled"].all(dim=1).tolist())

    def settles(self) -> int | None:
        """The step from which on weights are less than 0.1 from their final ones, in the mean over rows.

        Distances are l1 norms. None if it is a summary without it.
        """
        if self.settled is not None or self.folder is None:
            return self.settled
        weights = self.tensors()["history.weights"].double()
        far = (weights - weights[-1]).abs().sum(dim=2).mean(dim=1) >= 0.1
        steps = far.nonzero().flatten()
        return int(steps[-1]) + 1 if len(steps) else 0

    def path(self) -> Mapping[str, Sequence[float]] | None:
        """Mean weight of every domain from the first step to the last; None if a summary is without it."""
        if self.walked is not None or self.folder is None:
            return self.walked
        means = self.tensors()["history.weights"].double().mean(dim=1).T.tolist()
        return dict(zip(self.domains, means, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Weights, losses, verdicts and history, see `saddlepoint.runs`."""
        if self.folder is None:
            raise ValueError("`tensors` must be read from the folder of a run, got a summary.")
        return read_results(self.folder)[1]


@final
@dataclass(frozen=True)
class Measured:
    """A finished measurement: its `result`, on so many `images`, grouped with `seed`; `settings` is a hash."""

    measurement: Measurement
    method: str
    images: int
    seed: int
    result: MeasuredMetrics
    settings: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Results:
    """Everything finished, in the order of the experiment; sources in turn within a row.

    Of a stored summary, measurements are `lines` of their table; `versions` are of saddlepoint, which ran it.
    `networks` are hashes by name: as runs have them, or of the files of shipped ones in a stored summary.
    """

    experiment: Experiment
    attacks: tuple[Attacked, ...]
    measured: tuple[Measured, ...] = ()
    lines: tuple[tuple[Cell, ...], ...] = ()
    versions: tuple[str, ...] = ()
    networks: Mapping[str, str] = field(default_factory=dict)

    def one(self, block: Block, strategy: str, source: Source) -> Attacked | None:
        """The finished row of a block, a strategy and a source."""
        for item in self.attacks:
            if (item.block.key, item.row.strategy.key, item.source) == (
                block.key,
                strategy,
                source,
            ):
                return item
        return None

    def having(self, kind: type[Kind]) -> Iterator[tuple[Measured, Kind]]:
        """The finished measurements with results of a kind, and these results."""
        return ((m, m.result) for m in self.measured if isinstance(m.result, kind))

    def average(self, item: Attacked) -> Attacked | None:
        """The average strategy of the same block and source; None for itself, or if it had other images."""
        base = self.one(item.block, AVERAGE.key, item.source)
        return None if base is None or base is item or not base.same_images(item) else base

    def lift(self, item: Attacked) -> float | None:
        """Relative gain in ASR_all, percent, over the average of the same block, source and images."""
        base = self.average(item)
        return None if base is None else lift(item.asr_all, base.asr_all)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of which there is any row, method by method."""
        found = {item.source for item in self.attacks}
        return tuple(source for source in _SOURCES if source in found)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of which there is anything."""
        found = {item.source.method for item in self.attacks}
        found |= {item.method for item in self.measured}
        return tuple(method for method in METHODS if method in found)


_SOURCES = tuple(Source(method, labels) for method in METHODS for labels in LABELS)


def collect(experiment: Experiment, folder: Path) -> Results:
    """Read everything that is finished.

    Args:
        experiment: Which one.
        folder: Where `reproduce` put it.

    Raises:
        ValueError: Two of them are about different networks of the same name.
    """
    attacks, measured, networks = [], [], _Networks(folder)
    for block in experiment.blocks:
        for row in block.rows:
            for source in _SOURCES:
                place = _place(folder, source) / block.key / row.strategy.key
                if complete_in(place):
                    run = networks.those_of(finished(place), place)
                    attacks.append(_attacked(block, row, source, run, place))
    for measurement in experiment.measurements:
        for method in METHODS:
            place = _place(folder, Source(method)) / measurement.key
            if complete_in(place):
                run = networks.those_of(finished(place), place)
                measured.append(_measured(measurement, method, run, place))
    return Results(experiment, tuple(attacks), tuple(measured), networks=networks.found)


@final
class _Networks:
    """Hashes of the networks behind the runs of a folder, one for every name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, str] = {}
        self._places: dict[str, Path] = {}

    def those_of(self, run: Run, place: Path) -> Run:
        """The run, if its networks are those of the runs before it."""
        for name, value in run.hashes.models.items():
            first = self._places.setdefault(name, place)
            if self.found.setdefault(name, value) != value:
                one, other = (str(each.relative_to(self.folder)) for each in (place, first))
                raise ValueError(
                    f"`{self.folder}` must hold results of the same networks, got another {name} in {one!r} "
                    f"than in {other!r}; move one of them away, and run it into a folder of its own."
                )
        return run


def _place(folder: Path, source: Source) -> Path:
    return folder / source.labels / source.method


def _attacked(block: Block, row: Row, source: Source, run: Run, folder: Path) -> Attacked:
    metrics, settings = AttackMetrics.of(run), settings_of(run, AttackSettings)
    return Attacked(
        block=block,
        row=row,
        source=source,
        images=run.rows * len(run.domains) if run.kind == "universal" else run.rows,
        seed=run.seed,
        domains=run.domains,
        rule=settings.rule,
        asr_all=metrics.asr_all,
        interval=metrics.intervals.asr_all,
        asr_mean=metrics.asr_mean,
        accuracy=metrics.accuracy,
        weights=metrics.weights,
        evaluations=metrics.evaluations.per_row,
        precision=settings.precision[0],
        limit=settings.limit,
        folder=folder,
    )


def _measured(measurement: Measurement, method: str, run: Run, folder: Path) -> Measured:
    said = f"`{folder}` must have the settings of a measurement"
    images, result = (
        read_plain(MeasureSettings, run.settings, said).limit,
        RESULTS[measurement.what].of(run),
    )
    if not _fits(measurement, result):
        raise ValueError(
            f"`{folder}` must be a measurement of {measurement.what}, got numbers that do not fit each other; "
            "repeat the run."
        )
    return Measured(
        measurement, method, images, run.seed, result, run.hashes.fingerprint, run.versions
    )


def _fits(measurement: Measurement, found: MeasuredMetrics) -> bool:
    """Whether the lists of a measurement are of one length, and are about what was measured."""
    if isinstance(found, Distances):
        tables = (found.labels, found.distance, found.eps_min)
        return len({tuple(len(row) for row in table) for table in tables}) == 1
    if isinstance(found, Residuals):
        return len(found.steps) == len(found.best) > 0
    if isinstance(found, NetworkAccuracy):
        return True
    rows = measurement.block.rows
    return isinstance(found, Times) and list(found.microseconds) == [r.strategy.key for r in rows]


def lowered(results: Results) -> list[str]:
    """A sentence on every way of computing but float32, and the rows that were attacked with it."""
    ways = dict.fromkeys(item.precision for item in results.attacks)
    return [_lowered(results, way) for way in ways if way != "float32"]


def _lowered(results: Results, precision: str) -> str:
    low = [item for item in results.attacks if item.precision == precision]
    others = {item.source for item in results.attacks if item.precision != precision}
    some = (
        f"{item.block.label}, {item.row.strategy.label}, {item.source.name}"
        if item.source in others
        else f"all of {item.source.name}"
        for item in low
    )
    every = (
        "All of our rows"
        if len(low) == len(results.attacks)
        else f"Of our rows {'; '.join(dict.fromkeys(some))}"
    )
    return f"{every} were attacked with networks computing in {precision}; verdicts are in float32."
