"""Makes a network of the tables one that comes with the package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.stores import StoreError
from saddlepoint.models import Card

from . import networks
from .page import Line, line_of
from .plan import TABLES, Training
from .work import Store

PARAMETERS = Path("src/saddlepoint/models/parameters")


def ship(
    name: str,
    key: str,
    store: Store,
    runs: Path,
    into: Path = PARAMETERS,
    kept: Path = networks.KEPT,
) -> Card:
    """Copy parameters and card of a trained and judged network, with what the judges say.

    Args:
        name: To be loaded by, such as mnist-ampgd.
        key: Of the network in the store, such as race/AMPGD/0.
        store: With the verdicts.
        runs: Folder of the runs.
        into: Where shipped parameters are.
        kept: Folder of the networks that come with a checkout.

    Raises:
        StoreError: No such network, it was not judged, or the folders have another one.
    """
    training = _training(key)
    judged = store.networks.get(key, {}).get("suites", {})
    if "quick" not in judged:
        raise StoreError(f"`key` must be of a network that `quick` has judged, got {key!r}.")
    file, card = networks.of_store(training, store.networks, runs, kept)
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
    networks.copy(file, into / f"{name}.safetensors", card)
    return card


def _training(key: str) -> Training:
    for table in TABLES.values():
        for training in table.trainings():
            if training.key == key:
                return training
    raise StoreError(f"`key` must be TABLE/ROW/SEED, such as race/AMPGD/0, got {key!r}.")


def _numbers(line: Line) -> dict[str, float | int]:
    images = line.right["union"].shape[1]
    return {"images": images, **{name: round(line.share(name), 2) for name in line.right}}
