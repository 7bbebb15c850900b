"""What is in the folder of an experiment: finished rows and measurements of every method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from saddlepoint.experiments.plan import AVERAGE, METHODS, Block, Experiment, Measurement, Row
from saddlepoint.report import TENSORS, Run, lift, read_tensors

__all__ = ["Attacked", "Measured", "Results", "collect"]


@final
@dataclass(frozen=True)
class Attacked:
    """A finished row.

    Attributes:
        block, row: What was run.
        method: How.
        run: Its record.
        folder: Where its tensors are.
    """

    block: Block
    row: Row
    method: str
    run: Run
    folder: Path

    @property
    def images(self) -> int:
        """How many images were attacked; a group counts all of its own."""
        images = self.run.rows
        return images * len(self.run.domains) if self.run.kind == "universal" else images

    def tensors(self) -> dict[str, Tensor]:
        """Weights, losses, verdicts and history, see `saddlepoint.report`."""
        return read_tensors(self.folder / TENSORS)


@final
@dataclass(frozen=True)
class Measured:
    """A finished measurement: its `result`, on so many `images`, grouped with `seed`."""

    measurement: Measurement
    method: str
    images: int
    seed: int
    result: dict[str, Any]


@final
@dataclass(frozen=True)
class Results:
    """Everything finished, in the order of the experiment; methods in turn within a row."""

    experiment: Experiment
    attacks: tuple[Attacked, ...]
    measured: tuple[Measured, ...]

    def one(self, block: Block, strategy: str, method: str) -> Attacked | None:
        """The finished row of a block, a strategy and a method."""
        for item in self.attacks:
            if (item.block.key, item.row.strategy.key, item.method) == (
                block.key,
                strategy,
                method,
            ):
                return item
        return None

    def lift(self, item: Attacked) -> float | None:
        """Relative gain in ASR_all, percent, over the average strategy of the same block and method."""
        base = self.one(item.block, AVERAGE.key, item.method)
        if base is None or base is item:
            return None
        return lift(item.run.metrics["asr_all"], base.run.metrics["asr_all"])

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of which there is anything."""
        found = {item.method for item in self.attacks} | {item.method for item in self.measured}
        return tuple(method for method in METHODS if method in found)


def collect(experiment: Experiment, folder: Path) -> Results:
    """Read everything that is finished.

    Args:
        experiment: Which one.
        folder: Where `reproduce` put it.
    """
    attacks = [
        Attacked(block, row, method, run, place)
        for block in experiment.blocks
        for row in block.rows
        for method in METHODS
        if (place := folder / method / block.key / row.strategy.key).joinpath("run.json").is_file()
        and (run := Run.read(place)).status == "complete"
    ]
    measured = []
    for measurement in experiment.measurements:
        for method in METHODS:
            path = folder / method / f"{measurement.key}.json"
            if path.is_file():
                content = json.loads(path.read_text(encoding="utf-8"))
                measured.append(
                    Measured(
                        measurement,
                        method,
                        content["images"],
                        content["seed"],
                        content["result"],
                    )
                )
    return Results(experiment, tuple(attacks), tuple(measured))
