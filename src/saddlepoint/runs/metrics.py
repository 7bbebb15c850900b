"""The numbers of a run, typed: what `metrics` in `run.json` holds, in percent, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Self, final

from saddlepoint.doctor import Finding
from saddlepoint.evaluation import Failure
from saddlepoint.evaluation.ledger import Status
from saddlepoint.runs.metric_parts import (
    Epoch,
    Evaluations,
    HeldOut,
    Interval,
    Part,
    Share,
    Transfer,
    VictimMetrics,
)
from saddlepoint.runs.plain import read_plain
from saddlepoint.runs.record import Run

__all__ = [
    "Accuracies",
    "AccuracyIntervals",
    "AttackMetrics",
    "AttackOutcome",
    "DomainMetrics",
    "Epoch",
    "EvaluationMetrics",
    "Evaluations",
    "Examined",
    "Interval",
    "Metrics",
    "RateIntervals",
    "Rates",
    "Share",
    "TrainingMetrics",
    "Transfer",
    "VictimMetrics",
    "examined",
]


@dataclass(frozen=True, kw_only=True)
class Metrics(Part):
    """What a run came to; its subclasses are for attacks, evaluations and trainings.

    Example:
        >>> plain = {"rows": 200, "rows_attacked": 0, "accuracy": 97.5, "fgsm_accuracy": 40.0}
        >>> plain["history"] = [{"stats": {"loss": 0.1}}]
        >>> training = TrainingMetrics.read(plain)
        >>> training.accuracy, training.history[0].stats["loss"], training.plain() == plain
        (97.5, 0.1, True)
        >>> TrainingMetrics.read({"rows": 200, "rows_attacked": 0, "accuracy": 97.5, "history": []})
        Traceback (most recent call last):
        ...
        ValueError: `metrics` must be those of a training, got no `fgsm_accuracy`; repeat the run.
    """

    about: ClassVar[str]

    def plain(self) -> dict[str, Any]:
        """For `run.json`: dictionaries, lists, numbers and words."""
        found: dict[str, Any] = _plain(self)
        return found

    def noted(self, run: Run) -> Run:
        """The record with these metrics."""
        return run.but(metrics=self.plain())

    @classmethod
    def of(cls, run: Run) -> Self:
        """The metrics of a record, see `read`."""
        return cls.read(run.metrics)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """What `plain` gave.

        Raises:
            ValueError: A key is missing, unknown, or holds something else.
        """
        return read_plain(cls, plain, f"`metrics` must be those of {cls.about}")


@final
@dataclass(frozen=True, kw_only=True)
class RateIntervals(Part):
    """Of the rates of the same names."""

    asr_all: Interval
    asr_mean: Interval
    accuracy: Mapping[str, Interval]
    asr_all_among_correct: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Rates(Metrics):
    """What one weight rule achieved.

    Attributes:
        rows: How many there are.
        rows_correct: Those that every domain had right before the attack.
        asr_all: Success rate over all rows, as in the paper.
        asr_mean: Mean over rows and domains.
        accuracy: Per domain, under attack.
        evaluations: What it cost.
        weights: Mean final weight per domain.
        intervals: Wilson score intervals; of ASR_mean the normal interval of the row means.
        asr_all_among_correct: Success rate over `rows_correct`; None where there is no such row.
        reached: Per domain, how often it answers the class to reach; empty for attacks without one.
        held_out: What patches do on images that were held out; None for other attacks.
        transfer: What happened to victims; None where there are none.
    """

    about: ClassVar[str] = "an attack"

    rows: int
    rows_correct: int
    asr_all: float
    asr_mean: float
    accuracy: Mapping[str, float]
    evaluations: Evaluations
    weights: Mapping[str, float]
    intervals: RateIntervals
    asr_all_among_correct: float | None = None
    reached: Mapping[str, float] = field(default_factory=dict)
    held_out: HeldOut | None = None
    transfer: Transfer | None = None

    @property
    def rate(self) -> tuple[float, float, float] | None:
        """The rate that headlines and rankings are about, among rows that were right, with its interval."""
        pair = self.intervals.asr_all_among_correct
        if self.asr_all_among_correct is None or pair is None:
            return None
        return self.asr_all_among_correct, *pair


@final
@dataclass(frozen=True, kw_only=True)
class AttackMetrics(Rates):
    """An attack, and the baseline it is compared with.

    Attributes:
        clean_accuracy: Per domain, without attack.
        baseline: What the baseline achieved; None where none ran.
        lift: Relative gain in ASR_all over the baseline, as in the paper; None where there is no baseline or
            it never succeeds.
        lift_among_correct: The same for the other rate.
    """

    clean_accuracy: Mapping[str, float]
    baseline: Rates | None = None
    lift: float | None = None
    lift_among_correct: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class AccuracyIntervals(Part):
    """Of the accuracies of the same names."""

    clean: Interval
    union: Interval
    robust: Mapping[str, Interval]
    joint: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Accuracies(Metrics):
    """Accuracy under attack.

    Attributes:
        rows: Images.
        radii: Per threat.
        clean: Without attack.
        union: Under every attack of every threat.
        robust: Under every attack of a threat.
        intervals: Wilson score intervals.
        notes: What is to be known about the attacks.
        failures: Attacks that raised.
        at_most: Numbers that are upper bounds, since attacks failed or did not reach every image, such as
            "union" or "robust.linf".
        because: Why, one line each.
    """

    about: ClassVar[str] = "an evaluation"

    rows: int
    radii: Mapping[str, float]
    clean: float
    union: float
    robust: Mapping[str, float]
    intervals: AccuracyIntervals
    notes: tuple[str, ...]
    failures: tuple[Failure, ...]
    at_most: tuple[str, ...]
    because: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class AttackOutcome(Part):
    """One attack under one threat.

    Attributes:
        attacked: Images it ran on to the end.
        broken: Images it broke; `first` of them no attack before it had broken.
        after: Accuracy after it and all attacks before it.
        accuracy: Accuracy after it alone; None unless it ran on every image that was right.
        seconds: Time it took.
        queries: Images shown to the model.
        status: "complete", "not needed", "cut short", "failed".
        minimal: Whether it looks for the nearest wrong image.
    """

    threat: str
    attack: str
    attacked: int
    broken: int
    first: int
    after: float
    accuracy: float | None
    seconds: float
    queries: int
    status: Status
    minimal: bool
    notes: tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class DomainMetrics(Accuracies):
    """One domain, attack by attack, in the order they ran."""

    attacks: tuple[AttackOutcome, ...]


@final
@dataclass(frozen=True, kw_only=True)
class EvaluationMetrics(Accuracies):
    """An evaluation. Its own accuracies count images that every domain has right; one domain is no exception.

    Attributes:
        domains: Each alone.
        joint: Images that no single perturbation was found for that fools all domains, per threat; this and
            what follows is empty for one domain, for which nothing was searched.
        eps_min: Quantiles of the smallest radius at which all domains fall, per threat; None for infinity.
        weights: Mean weights of the domains in this search, per threat.
        doctor: What the doctor found, per model; empty where it was not asked.
    """

    domains: Mapping[str, DomainMetrics]
    joint: Mapping[str, float] = field(default_factory=dict)
    eps_min: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    doctor: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class Examined(Metrics):
    """What is known of an evaluation before its attacks: what `EvaluationMetrics.doctor` will be."""

    about: ClassVar[str] = "an evaluation"

    doctor: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class TrainingMetrics(Metrics):
    """A training.

    Attributes:
        rows: Test images; `rows_attacked` of them, the first ones, were attacked in the end.
        accuracy: On all test images.
        fgsm_accuracy: On all test images under FGSM, in the linf ball of radius `fgsm_eps`.
        robust_accuracy: On those that were attacked, under PGD: "clean", every threat, "union"; empty where
            there were no threats.
        rows_held_out: Images that `history` has the accuracy on; None where there were none.
        history: One entry per epoch.
    """

    about: ClassVar[str] = "a training"

    rows: int
    rows_attacked: int
    accuracy: float
    fgsm_accuracy: float
    fgsm_eps: float | None = None
    robust_accuracy: Mapping[str, float] = field(default_factory=dict)
    rows_held_out: int | None = None
    history: tuple[Epoch, ...]

    @property
    def clean(self) -> Share:
        """On all test images."""
        return Share(self.accuracy, self.rows)

    @property
    def fgsm(self) -> Share:
        """On all test images under FGSM."""
        return Share(self.fgsm_accuracy, self.rows)

    @property
    def attacked(self) -> dict[str, Share]:
        """On the images that were attacked in the end, as `robust_accuracy`."""
        return {name: Share(v, self.rows_attacked) for name, v in self.robust_accuracy.items()}

    @property
    def score(self) -> Share:
        """What headlines and rankings are about: the union of the threats, or without any what is clean."""
        return self.attacked.get("union", self.clean)

    @property
    def held_out(self) -> tuple[dict[str, Share], ...]:
        """On the images that were held out, for every epoch."""
        count = self.rows_held_out or 0
        return tuple(
            {n: Share(100 * v, count) for n, v in e.validation.items()} for e in self.history
        )


def examined(run: Run) -> Mapping[str, tuple[Finding, ...]]:
    """What the doctor found before the attacks of an evaluation, complete or not; empty if it was not asked."""
    return Examined.read({k: v for k, v in run.metrics.items() if k == "doctor"}).doctor


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        shown = ((item, getattr(value, item.name)) for item in fields(value))
        return {
            item.name: _plain(found)
            for item, found in shown
            if not (found is None and item.default is None)
            and not (item.default_factory is dict and not found)
        }
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
