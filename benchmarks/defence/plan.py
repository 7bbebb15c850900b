"""Which trainings a table is made of, and what judges them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saddlepoint.runs.settings import EvaluateSettings, TrainSettings

MNIST = ("linf:0.3", "l2:2.0", "l1:10")
CIFAR10 = ("linf:0.03", "l2:0.5", "l1:12")
METHODS = {"AMPGD": "ampgd", "MSD": "msd", "E-AT": "eat", "MAX": "max", "AVG": "avg"}


@dataclass(frozen=True)
class Training:
    """One network: a row of a table with a seed; `kept` as of the table."""

    table: str
    row: str
    seed: int
    settings: TrainSettings
    kept: bool = False

    @property
    def row_key(self) -> str:
        return f"{self.table}/{self.row}"

    @property
    def key(self) -> str:
        return f"{self.row_key}/{self.seed}"

    def folder(self, runs: Path) -> Path:
        """Where its training and evaluations are."""
        return runs / self.table / f"{self.row.lower().replace(' ', '-')}-{self.seed}"

    def judged_by(self, suite: str, images: int, file: Path) -> EvaluateSettings:
        """The evaluation of the trained network in a file on the first test images."""
        return EvaluateSettings.load(
            {
                "models": [f"{file}:{self.settings.model}"],
                "data": self.settings.data,
                "threat": self.settings.threat,
                "suite": suite,
                "limit": images,
            }
        )


@dataclass(frozen=True)
class Table:
    """Rows that differ in few settings, trained with the same seeds and judged on the same images.

    Attributes:
        title: What the table says it is.
        shared: Settings of all trainings.
        rows: What each row changes; differences are to the first.
        seeds: How many of each row.
        more: Other numbers of seeds, by row.
        suites: Images that each suite judges; "unseen" is `quick` on training images that no row has seen,
            for what is chosen.
        weights: Whether it is about the mean weights of the last epoch, and not about accuracy: rows may then
            have threats of their own.
        kept: Whether its networks come with a checkout, so that they can be judged again without training.
        note: What has to be known beside the title: whole sentences.
        beside: The table with the same rows in which each may be better.
    """

    name: str
    title: str
    shared: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]]
    seeds: int = 3
    more: Mapping[str, int] = field(default_factory=dict)
    suites: Mapping[str, int] = field(default_factory=lambda: {"quick": 1000, "autoattack": 500})
    weights: bool = False
    kept: bool = False
    note: str = ""
    beside: str = ""

    def trainings(self) -> Iterator[Training]:
        """Seed by seed, so that what is there after a stop can be compared."""
        for seed in range(max(self.seeds, *self.more.values(), 1)):
            for row, changed in self.rows.items():
                if seed < self.more.get(row, self.seeds):
                    values = {**self.shared, **changed, "seed": seed}
                    yield Training(self.name, row, seed, TrainSettings.load(values), self.kept)


def _methods(**changed: Any) -> dict[str, dict[str, Any]]:
    return {row: {"method": method, **changed} for row, method in METHODS.items()}


_SMALL = {"data": "mnist", "model": "mnist_cnn_small", "threat": list(MNIST)}
_RACE = {**_SMALL, "limit": 20500, "held_out": 500, "ramp": 3}
_FEW = {
    **_SMALL,
    **{"limit": 5200, "held_out": 200, "epochs": 6, "ramp": 2, "steps": 15},
    **{"test_images": 100, "test_steps": 20, "test_restarts": 1},
}
_ALL = {**_SMALL, "recipe": "paper", "steps": 50, "held_out": 0}
_COLOUR = {
    **{"data": "cifar10", "model": "preact_resnet_small", "threat": list(CIFAR10)},
    **{"limit": 20500, "held_out": 500, "steps": 10, "precision": "bfloat16"},
}
_LITERAL = {"Algorithm 2 to the letter": {"method": "ampgd-paper", "steps": 30, "ramp": 0}}
# The default first, to which the others are compared.
_GRID = sorted(
    itertools.product((0.3, 1.0, 2.0), (0.02, 0.1, 0.5)), key=lambda each: each != (1.0, 0.5)
)


def _weighed(beta: float, gamma: float) -> dict[str, Any]:
    return {"method": "ampgd", "rule": f"minmax:step_size={beta:g},gamma={gamma:g}"}


TABLES = {
    table.name: table
    for table in (
        Table(
            "small",
            "5,000 images, 6 epochs, R = 15 steps for every perturbation of every method",
            _FEW,
            _methods(),
            suites={"quick": 500},
        ),
        Table(
            "small-l1-12",
            "5,000 images, 6 epochs, R = 15, trained with l1 radius 12 and tested with 10",
            {**_FEW, "train_radius": ["l1:12"]},
            _methods(),
            suites={"quick": 500},
            beside="small",
        ),
        Table(
            "race",
            "20,000 images, 8 epochs, R = 30 steps for every perturbation of every method",
            _RACE,
            {**_methods(steps=30), **_LITERAL},
            kept=True,
        ),
        Table(
            "race-l1-12",
            "20,000 images, 8 epochs, R = 30, trained with l1 radius 12 and tested with 10",
            {**_RACE, "train_radius": ["l1:12"]},
            _methods(steps=30),
            kept=True,
            beside="race",
        ),
        Table(
            "budget",
            "20,000 images, 8 epochs, 45 gradient evaluations of the attack per image and step",
            _RACE,
            {
                row: {"method": method, "steps": 45 if method in ("msd", "eat") else 15}
                for row, method in METHODS.items()
            },
            kept=True,
            note="That is no equal budget: MSD asks for 135 forward passes besides, and takes more than twice "
            "as long as the others.",
        ),
        Table(
            "grid",
            "AMPGD with other step sizes beta, at most 1/gamma, and gamma of the weights than its default, the "
            "first row; 5,000 images, 6 epochs, R = 15",
            _FEW,
            {
                **{
                    f"beta {beta:g}, gamma {gamma:g}": _weighed(beta, gamma)
                    for beta, gamma in _GRID
                },
                **{row: {"method": METHODS[row]} for row in ("MAX", "AVG")},
            },
            seeds=2,
            suites={"unseen": 500},
        ),
        Table(
            "weights",
            "mean weights of AMPGD in the last epoch, linf 0.2, over the radius of l2",
            {
                **{"data": "mnist", "model": "mnist_cnn_small", "method": "ampgd", "steps": 8},
                **{"limit": 6500, "held_out": 500, "test_steps": 10},
            },
            {f"l2 {eps}": {"threat": ["linf:0.2", f"l2:{eps}.0"]} for eps in (1, 2, 3, 4)},
            suites={"quick": 100},
            weights=True,
        ),
        Table(
            "full",
            "the paper's schedule: 60,000 images, 15 epochs, R = 50 steps for every perturbation",
            _ALL,
            {row: {"method": METHODS[row]} for row in ("AMPGD", "MSD", "MAX")},
            seeds=1,
            suites={"quick": 1000, "autoattack": 1000, "autoattack+": 1000, "paper": 500},
            kept=True,
            note="The paper's own network, `mnist_cnn`, has twelve times the work and was not trained here.",
        ),
        Table(
            "cifar10",
            "CIFAR-10, 20,000 images padded, cropped and mirrored, 15 epochs in bfloat16, radii that rise over "
            "the first quarter, R = 10 for every perturbation",
            _COLOUR,
            {**_methods(), **{norm: {"method": norm} for norm in ("linf", "l2", "l1")}},
            seeds=1,
            more={"AMPGD": 2, "MSD": 2},
            suites={"quick": 1000, "autoattack": 300},
            kept=True,
        ),
    )
}
"""Tables by name; the full recipe and CIFAR-10 take days of a core."""
