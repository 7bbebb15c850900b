"""Radii of training at which the judge finds every threat as hard as the others.

``python -m benchmarks.defence.calibrate race AMPGD --rounds 4``: the min-max idea once more, at the level of
the data set. A round trains a row of a table with the radii so far, has `quick` judge the network on training
images that were neither trained nor validated on, and moves the radius of each threat by how far its accuracy
is below the mean. Rounds are kept below ``--runs``; the same line goes on after a stop.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.stores import StoreError, exit_with
from saddlepoint.files import write_atomically
from saddlepoint.runs import texts
from saddlepoint.runs.plain import quoted, read_json, read_plain

from . import unseen
from .plan import TABLES, Training
from .work import train_once


@dataclass(frozen=True)
class _Round:
    radii: dict[str, float]
    accuracy: dict[str, float]


Judge = Callable[[Path], Mapping[str, float]]
"""Accuracy under every threat, in [0, 1], of the network in a file."""


def moved(
    tested: Mapping[str, float],
    radii: Mapping[str, float],
    accuracy: Mapping[str, float],
    *,
    rate: float = 1.0,
    most: float = 1.5,
) -> dict[str, float]:
    """The radii of the next round: r_i times exp(rate (mean accuracy - accuracy_i)).

    No radius is below the tested one, and none above `most` times it.
    """
    mean = sum(accuracy.values()) / len(accuracy)
    found = {name: radii[name] * math.exp(rate * (mean - accuracy[name])) for name in tested}
    return {name: min(max(found[name], eps), most * eps) for name, eps in tested.items()}


def calibrate(training: Training, rounds: int, runs: Path, judge: Judge) -> list[dict[str, object]]:
    """Rounds of training and judging: the radii of each, and the accuracy that they led to.

    Args:
        training: The row, with its seed.
        rounds: How many there are to be in the end.
        runs: Folder of the runs.
        judge: Asked about the network of every round.
    """
    tested = {n: float(t.ball.eps) for n, t in texts.threats(training.settings.threat).items()}
    file = training.folder(runs / "calibrate").with_suffix(".json")
    done = _read(file, tested.keys()) if file.exists() else []
    while len(done) < rounds:
        radii = moved(tested, done[-1]["radii"], done[-1]["accuracy"]) if done else tested
        folder = file.with_suffix("") / f"round-{len(done)}"
        words = [f"{name}:{eps:.6g}" for name, eps in radii.items()]
        train_once(training.settings.model_copy(update={"train_radius": words}), folder)
        accuracy = dict(judge(folder / "model.safetensors"))
        done.append({"radii": radii, "accuracy": {name: accuracy[name] for name in tested}})
        write_atomically(file, (json.dumps(done, indent=1) + "\n").encode())
        print(f"{training.key}, round {len(done)}: {done[-1]}", flush=True)
    return done


def _read(file: Path, names: Collection[str]) -> list[dict[str, Any]]:
    """The rounds that are done.

    Raises:
        StoreError: They are not as they were written.
    """
    must = (
        f"`{file}` must be rounds of this command with radii and accuracies of {', '.join(names)}"
    )
    remedy = "move it away to begin anew"
    try:
        plain = read_json(file, must, remedy)
        done = read_plain(list[_Round], plain, must, remedy)
    except ValueError as error:
        raise StoreError(str(error)) from error
    for each in done:
        radii, shares = each.radii, each.accuracy
        if not (
            radii.keys() == shares.keys() == set(names)
            and all(0 < radius < math.inf for radius in radii.values())
            and all(0 <= share <= 1 for share in shares.values())
        ):
            raise StoreError(f"{must}, got {quoted(asdict(each))}; {remedy}.")
    return [asdict(each) for each in done]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.defence.calibrate", description=__doc__
    )
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("row", help="of the table, such as AMPGD or MAX")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--images", type=int, default=500, help="that `quick` judges in a round")
    parser.add_argument("--runs", type=Path, default=Path("runs/defence"))
    options = parser.parse_args(words)
    rows = [each for each in TABLES[options.table].trainings() if each.row == options.row]
    if not rows:
        parser.error(f"`row` must be one of {', '.join(TABLES[options.table].rows)}")
    settings = rows[0].settings
    try:
        unseen.images_behind(settings, options.images)  # before hours of training
    except ValueError as error:
        parser.error(str(error))

    def judge(file: Path) -> Mapping[str, float]:
        return unseen.judged(settings, options.images, file).per_threat

    calibrate(rows[0], options.rounds, options.runs, judge)
    return 0


if __name__ == "__main__":
    exit_with(main)
