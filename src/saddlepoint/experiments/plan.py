"""What an experiment is: plain data, so that one runner serves all of them.

An `Experiment` is a list of blocks; a `Block` is one setting (domains, ball, steps); its rows are the
strategies compared there, each with what the paper reports. Nothing here loads or computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final

from saddlepoint.projections import LpBall
from saddlepoint.rules import AbstractWeightRule, Average, MinMax

__all__ = [
    "AVERAGE",
    "DESCENTS",
    "LABELS",
    "METHODS",
    "UNREPORTED",
    "Block",
    "Experiment",
    "Groups",
    "Labels",
    "Measurement",
    "Method",
    "Models",
    "Ordered",
    "Reported",
    "Row",
    "Static",
    "Strategy",
    "Views",
    "minmax",
    "norm_name",
    "settings",
]

Method = Literal["apgda", "attack", "attack-5"]
METHODS: tuple[Method, ...] = ("apgda", "attack", "attack-5")
"""`apgda` is Algorithm 1 with the paper's step sizes; `attack` is `saddlepoint.attack` with as many steps in
one descent, and `attack-5` in up to five: rows that are not fooled yet begin again. The weights move as the row
says, min-max with the paper's beta and gamma in all of them, so that rows differ in the attack alone."""

DESCENTS = {"attack": 1, "attack-5": 5}
"""The `restarts` of our methods."""

Labels = Literal["true", "predicted"]
LABELS: tuple[Labels, ...] = ("true", "predicted")
"""The class that is attacked: the image's, as the paper's text says, or the one that each domain says without a
perturbation, as the authors' code does. Success is counted against the true class in both."""

_NORMS: dict[float, str] = {0: "l0", 1: "l1", 2: "l2", math.inf: "linf"}


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
        rule: A weight rule, or how to find one from other strategies of the block.
        clip: Margins below this count as this: a domain that is fooled by enough stops pulling; the paper's
            w_clip.
    """

    key: str
    label: str
    rule: AbstractWeightRule | Static | Ordered
    clip: float | None = None


AVERAGE = Strategy("avg", "avg.", Average())
"""The baseline: equal weights."""


def minmax(beta: float, gamma: float) -> Strategy:
    """The paper's method with the paper's letters.

    Example:
        >>> minmax(beta=1 / 50, gamma=3).rule
        MinMax(step_size=0.02, gamma=3)
    """
    return Strategy("minmax", "min-max", MinMax(step_size=beta, gamma=gamma))


@final
@dataclass(frozen=True)
class Row:
    """A strategy in a block, and the paper's numbers for it."""

    strategy: Strategy
    paper: Reported = UNREPORTED


@final
@dataclass(frozen=True)
class Models:
    """Domains are networks, by letter."""

    networks: tuple[str, ...]
    kind: Literal["ensemble"] = field(default="ensemble", init=False)


@final
@dataclass(frozen=True)
class Groups:
    """Domains are the images of a group, attacked on one network; `box` is as in `Universal`."""

    network: str
    size: int
    by_class: bool = False
    box: Literal["intersection", "clip"] = "intersection"
    kind: Literal["universal"] = field(default="universal", init=False)

    @property
    def networks(self) -> tuple[str, ...]:
        """The one network."""
        return (self.network,)


@final
@dataclass(frozen=True)
class Views:
    """Domains are transformations of the image, seen by one network."""

    network: str
    family: Literal["paper", "paper+rotation", "paper-random"] = "paper"
    kind: Literal["transform"] = field(default="transform", init=False)

    @property
    def networks(self) -> tuple[str, ...]:
        """The one network."""
        return (self.network,)


@final
@dataclass(frozen=True)
class Block:
    """One setting, and the strategies compared in it.

    Attributes:
        key: Names the folder of its results.
        label: In tables.
        data: "mnist" or "cifar10".
        domains: What a domain is.
        ball: Where perturbations may be.
        steps: T.
        step_size: alpha, for the paper's method; the strong attack has none.
        rows: Strategies, in the order of the table.
        limit: Images by default, where the experiment's own number does not suit.
        value: What varies from block to block, for figures.
        note: What has to be said about the setting.
    """

    key: str
    label: str
    data: str
    domains: Models | Groups | Views
    ball: LpBall
    steps: int
    step_size: float
    rows: tuple[Row, ...]
    limit: int | None = None
    value: float | None = None
    note: str = ""

    @property
    def networks(self) -> tuple[str, ...]:
        """Names as `saddlepoint.models.load` takes them."""
        return tuple(f"{self.data}-{letter.lower()}" for letter in self.domains.networks)


@final
@dataclass(frozen=True)
class Measurement:
    """Something measured besides success rates, on the setting of a block.

    Attributes:
        key: Names the file of its results.
        label: In tables.
        what: Which measurement: see `saddlepoint.experiments.measurements`.
        block: The setting; its rows say with which strategies.
        repeats: How often, where time is measured.
        searches: Binary searches of the Carlini-Wagner attack, where distances are measured.
        inner_steps: Its steps in each of them.
    """

    key: str
    label: str
    what: Literal["distances", "residuals", "times"]
    block: Block
    repeats: int = 1
    searches: int = 9
    inner_steps: int = 300


@final
@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        name: For the command line.
        title: One line.
        source: Where in the paper.
        limit: Images by default: at most ten minutes on two cores with the paper's method.
        blocks: Attacks to run.
        measurements: Other things to measure.
        figure: Which figure is drawn, if any.
        note: What has to be said about the whole.
        methods: What it can be run with; fewer where it is about one of them.
        labels: Which class can be attacked in it; the true one alone where more than success is measured.
    """

    name: str
    title: str
    source: str
    limit: int
    blocks: tuple[Block, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    figure: Literal["", "steps", "eps", "gamma", "images", "convergence"] = ""
    note: str = ""
    methods: tuple[Method, ...] = METHODS
    labels: tuple[Labels, ...] = LABELS


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


def norm_name(p: float) -> str:
    """The name of a norm in files and tables.

    Example:
        >>> norm_name(math.inf), norm_name(2)
        ('linf', 'l2')
    """
    return _NORMS[p]
