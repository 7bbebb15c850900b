"""Attacks through data transformations: Tables 7, A4 and A5, with the paper's parameters and numbers."""

from __future__ import annotations

from saddlepoint.experiments.plan import (
    AVERAGE,
    Block,
    Experiment,
    Reported,
    Row,
    minmax,
)
from saddlepoint.runs.settings import TransformSettings

__all__ = ["TRANSFORMATIONS"]

_LIMITS = {"A": 800, "B": 200, "C": 800, "D": 800}


def _blocks(family: str, reported: dict[str, tuple[Reported, Reported]]) -> tuple[Block, ...]:
    """A block for every network, with the paper's rows for equal weights and for min-max."""
    blocks = []
    for network, (average, worst) in reported.items():
        models = f"cifar10-{network.lower()}"
        settings = TransformSettings.load(
            {"data": "cifar10", "models": models, "transforms": family, "method": "apgda"}
        )
        rows = (Row(AVERAGE, average), Row(minmax(settings), worst))
        blocks.append(Block(network.lower(), network, settings, rows, limit=_LIMITS[network]))
    return tuple(blocks)


_PLAIN = Experiment(
    name="transform",
    title="Attack through six deterministic transformations on CIFAR-10: EOT against min-max",
    source="Table 7",
    limit=800,
    blocks=_blocks(
        "paper",
        {
            "A": (
                Reported(55.88, None, (10.80, 21.93, 14.75, 11.52, 10.66, 20.03)),
                Reported(60.03, 7.43, (12.14, 18.05, 13.61, 13.52, 11.99, 16.78)),
            ),
            "B": (
                Reported(72.21, None, (5.49, 11.56, 9.51, 5.43, 5.75, 15.89)),
                Reported(77.43, 7.23, (6.22, 8.61, 9.74, 6.35, 6.42, 11.99)),
            ),
            "C": (
                Reported(56.51, None, (7.66, 21.88, 15.50, 8.15, 7.87, 15.36)),
                Reported(63.58, 12.51, (8.51, 14.75, 13.88, 9.16, 8.58, 13.35)),
            ),
            "D": (
                Reported(61.13, None, (8.00, 20.47, 13.46, 7.73, 8.52, 15.90)),
                Reported(67.49, 10.40, (9.19, 13.18, 12.72, 8.79, 9.18, 13.11)),
            ),
        },
    ),
)

_ROTATION = Experiment(
    name="transform-rotation",
    title="Attack through seven deterministic transformations, with rotation, on CIFAR-10",
    source="Table A5",
    limit=800,
    blocks=_blocks(
        "paper+rotation",
        {
            "A": (
                Reported(49.24, None, (11.06, 22.37, 14.81, 12.32, 10.92, 20.40, 15.89), 84.60),
                Reported(52.31, 6.23, (13.51, 18.84, 14.03, 15.20, 13.00, 18.03, 14.79), 84.66),
            ),
            "B": (
                Reported(65.18, None, (5.55, 11.96, 9.97, 5.63, 5.94, 16.42, 11.47), 90.44),
                Reported(70.38, 7.98, (6.75, 9.13, 10.56, 6.72, 7.11, 12.23, 10.80), 90.96),
            ),
            "C": (
                Reported(49.67, None, (7.65, 22.30, 15.82, 8.17, 8.07, 15.44, 15.09), 86.78),
                Reported(55.37, 11.48, (9.05, 15.10, 14.57, 9.57, 9.31, 14.11, 14.23), 87.72),
            ),
            "D": (
                Reported(53.52, None, (8.22, 20.88, 13.49, 7.91, 8.71, 16.33, 14.98), 87.07),
                Reported(57.36, 7.17, (10.17, 14.65, 13.62, 10.03, 10.35, 14.36, 13.82), 87.57),
            ),
        },
    ),
)

_RANDOM = Experiment(
    name="transform-random",
    title="Attack through five transformations, four of them random, on CIFAR-10",
    source="Table A4",
    limit=800,
    blocks=_blocks(
        "paper-random",
        {
            "A": (
                Reported(55.97, None, (11.55, 21.60, 13.64, 12.30, 22.37), 83.71),
                Reported(59.17, 5.72, (13.06, 18.90, 13.43, 13.90, 20.27), 84.09),
            ),
            "B": (
                Reported(69.52, None, (6.74, 11.55, 10.33, 6.59, 18.21), 89.32),
                Reported(71.18, 2.39, (8.19, 11.13, 10.31, 8.31, 16.29), 89.15),
            ),
            "C": (
                Reported(58.85, None, (8.23, 17.47, 13.93, 8.54, 18.83), 86.60),
                Reported(61.63, 4.72, (9.68, 13.45, 13.41, 9.95, 18.23), 87.06),
            ),
            "D": (
                Reported(60.96, None, (8.67, 19.75, 11.60, 8.46, 19.35), 86.43),
                Reported(63.64, 4.40, (10.43, 16.41, 12.14, 10.15, 17.64), 86.65),
            ),
        },
    ),
    note="Every step sees one fresh draw; success is judged on a draw that the attack has not seen.",
)

TRANSFORMATIONS = (_PLAIN, _ROTATION, _RANDOM)
"""Tables 7, A5 and A4."""
