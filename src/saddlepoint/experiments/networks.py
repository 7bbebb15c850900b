"""The networks themselves: Table A2, their accuracy on clean images and after one FGSM step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from saddlepoint.experiments.ensembles import PAPER_RECIPE, ensemble_block
from saddlepoint.experiments.plan import Experiment, Measurement

__all__ = ["NETWORKS", "REPORTED_NETWORKS"]

REPORTED_NETWORKS: Mapping[tuple[str, str], tuple[float, float]] = {
    ("mnist", "A"): (98.20, 18.92),
    ("mnist", "B"): (99.49, 50.95),
    ("mnist", "C"): (99.25, 63.23),
    ("mnist", "D"): (99.33, 56.36),
    ("cifar10", "A"): (55.36, 11.25),
    ("cifar10", "B"): (84.18, 9.89),
    ("cifar10", "C"): (64.95, 14.45),
    ("cifar10", "D"): (74.89, 9.77),
    ("cifar10", "E"): (87.57, 10.83),
    ("cifar10", "F"): (88.11, 10.73),
    ("cifar10", "G"): (91.67, 15.78),
    ("cifar10", "H"): (90.92, 9.91),
}
"""The paper's Table A2: clean accuracy and accuracy under FGSM (linf, 0.2), in percent."""


def _measurement(data: str, letter: str, family: str = "") -> Measurement:
    key = f"{family or data}-{letter.lower()}"
    block = replace(ensemble_block(data, (letter,), "linf", eps=0.2).but(models=[key]), key=key)
    return Measurement(key, key, "accuracy", block)


NETWORKS = Experiment(
    name="networks",
    title="Accuracy of the networks on clean images and after one FGSM step (linf, 0.2)",
    source="Table A2",
    limit=1000,
    measurements=(
        *(_measurement(data, letter) for data, letter in REPORTED_NETWORKS),
        *(_measurement("mnist", letter, PAPER_RECIPE) for letter in "ABCD"),
        *(_measurement("cifar10", letter, "cifar10-paper") for letter in "ACD"),
    ),
    note="FGSM moves every pixel along the sign of the gradient of the cross-entropy of a class: the true one, "
    "or the one that the network predicts, as in the authors' code. Accuracy is counted against the true class "
    "in both.",
    methods=("apgda",),
    labels=("true",),
)
"""Table A2, both label conventions."""
