"""What an experiment is: plain data, so that one runner serves all of them.

An `Experiment` is a list of blocks; a `Block` has the settings of an attack; its rows are the strategies
compared there, each with what the paper reports. Nothing here loads or computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final, get_args

from saddlepoint.runs import rule_words
from saddlepoint.runs.settings import AttackSettings

__all__ = [
    "AVERAGE",
    "COMPUTING",
    "LABELS",
    "METHODS",
    "RESTARTS",
    "UNREPORTED",
    "Block",
    "Computing",
    "Experiment",
    "Labels",
    "Measurement",
    "Method",
    "Ordered",
    "Published",
    "Reported",
    "Row",
    "Static",
    "Step",
    "Strategy",
    "minmax",
    "settings",
]

Method = Literal["apgda", "attack", "attack-5"]
METHODS: tuple[Method, ...] = ("apgda", "attack", "attack-5")
"""`apgda` is Algorithm 1 with the paper's step sizes, beta and gamma; `attack` is `saddlepoint.attack` with as
many steps and its own defaults, `MinMax()` included; `attack-5` has up to five restarts: rows that are not
fooled yet begin again. Other weight rules are the row's in all of them."""

RESTARTS = {"apgda": 1, "attack": 1, "attack-5": 5}
"""The `restarts` of every method."""

Labels = Literal["true", "predicted"]
LABELS: tuple[Labels, ...] = ("true", "predicted")
"""The class that is attacked: the image's, as the paper's text says, or the one that each domain says without a
perturbation, as the authors' code does. Success is counted against the true class in both."""


Computing = Literal["float32", "bfloat16", "float32+channels_last", "bfloat16+channels_last"]
COMPUTING: tuple[Computing, ...] = get_args(Computing)
"""What networks compute in while an attack is under way, and in which memory layout; verdicts are in
float32. The networks are those of the experiment, so that nothing is measured and a table does not depend on
the machine."""


@final
@dataclass(frozen=True)
class Reported:
    """A row of the paper, in percent; None or empty where the paper gives nothing.

    Attributes:
        asr_all: Rows that fool every domain at once.
        lift: Relative gain in ASR_all over the average strategy.
        accuracy: Of every domain under attack.
        asr_avg: Mean success over rows and domains.
    """

    asr_all: float | None = None
    lift: float | None = None
    accuracy: tuple[float, ...] = ()
    asr_avg: float | None = None


UNREPORTED = Reported()
"""Where the paper gives no numbers."""


@final
@dataclass(frozen=True)
class Static:
    """Fixed weights: the mean of the weights another strategy of the block ends with."""

    strategy: str = "minmax"


@final
@dataclass(frozen=True)
class Ordered:
    """Fixed weights by hardness: `weights` are those of the hardest domain, the next one and so on.

    The order is that of the accuracies which another strategy of the block leaves; of equal ones the first
    domain counts as the harder.
    """

    weights: tuple[float, ...]
    strategy: str = "avg"

    def of(self, accuracy: Sequence[float]) -> tuple[float, ...]:
        """The weights of domains with these accuracies.

        Example:
            >>> Ordered((0.4, 0.3, 0.2, 0.1)).of((1.05, 0.07, 41.10, 35.03))
            (0.2, 0.1, 0.4, 0.3)
        """
        found = dict(zip(self.order(accuracy), self.weights, strict=True))
        return tuple(found[domain] for domain in range(len(accuracy)))

    @staticmethod
    def order(accuracy: Sequence[float]) -> list[int]:
        """Positions of the domains, hardest first."""
        return sorted(range(len(accuracy)), key=lambda domain: -accuracy[domain])


@final
@dataclass(frozen=True)
class Strategy:
    """How the domains are weighted.

    Attributes:
        key: Names the folder of its results.
        label: In tables.
        rule: A weight rule as settings have it, or how to find one from other strategies of the block.
        loss: As settings have it; "clipped:..." is the paper's w_clip.
    """

    key: str
    label: str
    rule: str | Static | Ordered
    loss: str = "cw"


AVERAGE = Strategy("avg", "avg.", "average")
"""The baseline: equal weights."""


def minmax(settings: AttackSettings) -> Strategy:
    """The paper's method with the numbers that the settings have.

    Example:
        >>> from saddlepoint.runs.settings import EnsembleSettings
        >>> minmax(EnsembleSettings.load({"models": "A", "method": "apgda"})).rule
        'minmax:gamma=3,step_size=0.02'
    """
    return Strategy("minmax", "min-max", settings.rule)


@final
@dataclass(frozen=True)
class Row:
    """A strategy in a block, and the paper's numbers for it."""

    strategy: Strategy
    paper: Reported = UNREPORTED


@final
@dataclass(frozen=True)
class Block:
    """One setting, and the strategies compared in it.

    Attributes:
        key: Names the folder of its results.
        label: In tables.
        settings: Of the paper's attack, on networks of the paper.
        rows: Strategies, in the order of the table.
        limit: Images by default, where the experiment's own number does not suit.
        value: What varies from block to block, for figures.
        note: What has to be said about the setting.
    """

    key: str
    label: str
    settings: AttackSettings
    rows: tuple[Row, ...]
    limit: int | None = None
    value: float | None = None
    note: str = ""

    @property
    def networks(self) -> tuple[str, ...]:
        """Names as `saddlepoint.models.load` takes them."""
        return tuple(self.settings.models)

    @property
    def letters(self) -> tuple[str, ...]:
        """The paper's names of the networks."""
        return tuple(name.rpartition("-")[2].upper() for name in self.networks)

    def but(self, **changes: Any) -> Block:
        """The same block with other settings."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def row_settings(
        self, strategy: Strategy, rule: str, *, method: Method, **more: Any
    ) -> AttackSettings:
        """The settings of a row.

        Args:
            strategy: Of the row.
            rule: Its weight rule; it may have been found from other rows.
            method: With what it is attacked.
            more: Other settings, such as `labels`, `limit` and `seed`.
        """
        changes = {"rule": rule, "loss": strategy.loss, "restarts": RESTARTS[method], **more}
        if method != "apgda":
            changes |= {"method": "attack", "step_size": None}
            if strategy.key == "minmax":
                changes["rule"] = rule_words.full_rule("minmax", {})
        return self.settings.model_copy(update=changes)


@final
@dataclass(frozen=True)
class Measurement:
    """Something measured besides success rates, on the setting of a block.

    Attributes:
        key: Names the folder of its results.
        label: In tables.
        what: Which measurement: see `saddlepoint.experiments.measurements`.
        block: The setting; its rows say with which strategies.
        repeats: How often, where time is measured.
        searches: Binary searches of the Carlini-Wagner attack, where distances are measured.
        inner_steps: Its steps in each of them.
    """

    key: str
    label: str
    what: Literal["distances", "residuals", "times", "accuracy"]
    block: Block
    repeats: int = 1
    searches: int = 9
    inner_steps: int = 300


@final
@dataclass(frozen=True)
class Published:
    """What the tables of docs/RESULTS.md are made with.

    Attributes:
        images: Test images.
        precision: What networks compute in while they are attacked.
        labels: The classes that are attacked in turn.
        methods: With what; of these and the labels, those that the experiment has.
        blocks: The same for blocks that are made with other numbers, by their keys.
    """

    images: int
    precision: Computing = "float32"
    labels: tuple[Labels, ...] = ("true",)
    methods: tuple[Method, ...] = ("apgda", "attack")
    blocks: Mapping[tuple[str, ...], Published] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        name: For the command line.
        title: One line.
        source: Where in the paper.
        limit: Images by default; what that takes is in `reproduce --list`.
        blocks: Attacks to run.
        measurements: Other things to measure.
        figure: Which figure is drawn, if any.
        note: What has to be said about the whole.
        methods: What it can be run with; fewer where it is about one of them.
        labels: Which class can be attacked in it; the true one alone where more than success is measured.
        published: What its published tables are made with; the catalogue has it for every experiment.
    """

    name: str
    title: str
    source: str
    limit: int
    blocks: tuple[Block, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    figure: Literal["", "steps", "eps", "gamma", "beta", "alpha", "images", "convergence"] = ""
    note: str = ""
    methods: tuple[Method, ...] = METHODS
    labels: tuple[Labels, ...] = LABELS
    published: Published = Published(1000)

    def images(self, block: Block, limit: int | None = None) -> int:
        """How many images a block is run on, with `limit` if one is given."""
        return limit or block.limit or self.limit

    @property
    def every_block(self) -> tuple[Block, ...]:
        """Those that are attacked, and those of measurements."""
        return (*self.blocks, *(measurement.block for measurement in self.measurements))


def settings(experiment: Experiment, labels: Sequence[str]) -> Experiment:
    """The experiment with the settings of these labels only; with all of them if there is no label.

    Raises:
        ValueError: There is no such setting.

    Example:
        >>> from saddlepoint.experiments import find
        >>> [block.label for block in settings(find("transform"), ["A", "D"]).blocks]
        ['A', 'D']
    """
    there = [block.label for block in experiment.blocks]
    there += [measurement.label for measurement in experiment.measurements]
    for label in labels:
        if label not in there:
            raise ValueError(
                f"`only` must be a setting of {experiment.name}: {'; '.join(there)}; got {label!r}."
            )
    if not labels:
        return experiment
    return replace(
        experiment,
        blocks=tuple(each for each in experiment.blocks if each.label in labels),
        measurements=tuple(each for each in experiment.measurements if each.label in labels),
    )


@final
@dataclass(frozen=True)
class Step:
    """How far an experiment is: `done` of `total` rows are finished, and a `fraction` of `label`.

    If one has just been finished, it is `label`, and `there` says whether it was so before this run.
    """

    label: str
    done: int
    total: int
    fraction: float
    there: bool = False
