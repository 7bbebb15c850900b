"""Makes a network of the tables one that comes with the package."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from saddlepoint.models import Card

from .page import Line, line_of
from .plan import TABLES, Training
from .work import Store

PARAMETERS = Path("src/saddlepoint/models/parameters")


def ship(name: str, key: str, store: Store, runs: Path, into: Path = PARAMETERS) -> Card:
    """Copy parameters and card of a trained and judged network, with what the judges say.

    Args:
        name: To be loaded by, such as mnist-ampgd.
        key: Of the network in the store, such as race/AMPGD/0.
        store: With the verdicts.
        runs: Folder of the runs.
        into: Where shipped parameters are.

    Raises:
        ValueError: No such network, it was not judged, or the folder has another one.
    """
    training = _training(key)
    judged = store.networks.get(key, {}).get("suites", {})
    if "quick" not in judged:
        raise ValueError(f"`key` must be of a network that `quick` has judged, got {key!r}.")
    folder = training.folder(runs) / "train"
    card = Card.from_json((folder / "model.json").read_text(encoding="utf-8"))
    if card.sha256 != store.networks[key]["sha256"]:
        raise ValueError(f"`runs` must have the network of the store, got another one in {folder}.")
    network = [(training.seed, store.networks[key])]
    lines = {
        suite: line_of(training.row, network, suite, verdict["images"])
        for suite, verdict in judged.items()
    }
    robust = {
        "threats": training.settings.threat,
        **{s: _numbers(line) for s, line in lines.items()},
    }
    card = replace(card, robust=robust)
    shutil.copyfile(folder / "model.safetensors", into / f"{name}.safetensors")
    (into / f"{name}.json").write_text(card.to_json(), encoding="utf-8")
    return card


def _training(key: str) -> Training:
    for table in TABLES.values():
        for training in table.trainings():
            if training.key == key:
                return training
    raise ValueError(f"`key` must be TABLE/ROW/SEED, such as race/AMPGD/0, got {key!r}.")


def _numbers(line: Line) -> dict[str, float | int]:
    images = line.right["union"].shape[1]
    return {"images": images, **{name: round(line.share(name), 2) for name in line.right}}
