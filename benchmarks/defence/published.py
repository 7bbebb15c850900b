"""What the paper publishes of its own networks, trained for longer and larger than most of ours."""

from __future__ import annotations

__all__ = ["PUBLISHED", "Row"]

Row = tuple[float, float, float, float]
"""Accuracy in percent under linf, l2, l1, and under all three."""

PUBLISHED: dict[tuple[str, str], dict[str, Row]] = {
    ("mnist", "paper"): {
        "linf": (90.3, 13.6, 4.2, 3.7),
        "l2": (0.4, 69.2, 43.4, 0.4),
        "l1": (0.0, 38.5, 70.0, 0.0),
        "MAX": (51.0, 61.9, 52.6, 42.1),
        "AVG": (65.2, 60.1, 39.2, 34.9),
        "MSD": (62.7, 67.9, 65.0, 58.4),
        "AMPGD": (76.1, 70.2, 67.2, 64.1),
    },
    ("mnist", "autoattack"): {
        "linf": (89.5, 3.5, 2.4, 1.7),
        "l2": (0.0, 67.6, 60.1, 0.0),
        "l1": (0.0, 37.3, 71.9, 0.0),
        "MAX": (55.0, 56.9, 46.5, 36.9),
        "AVG": (52.8, 55.8, 40.7, 30.5),
        "MSD": (56.6, 68.1, 70.0, 55.9),
        "AMPGD": (74.4, 63.8, 60.5, 59.3),
    },
    ("mnist", "autoattack+"): {
        "linf": (89.6, 2.1, 1.8, 1.2),
        "l2": (0.0, 67.4, 60.4, 0.0),
        "l1": (0.0, 36.8, 71.4, 0.0),
        "MAX": (54.4, 55.9, 42.3, 34.3),
        "AVG": (52.4, 53.8, 36.7, 28.8),
        "MSD": (55.7, 67.3, 68.6, 54.8),
        "AMPGD": (74.3, 61.9, 59.8, 58.3),
    },
    ("cifar10", "autoattack"): {
        "linf": (47.8, 57.5, 13.7, 12.8),
        "l2": (22.7, 63.1, 23.6, 18.4),
        "l1": (0.0, 0.1, 1.4, 0.0),
        "MAX": (39.2, 62.0, 36.0, 30.8),
        "AVG": (40.7, 65.5, 58.8, 40.4),
        "MSD": (44.4, 64.9, 52.4, 44.1),
        "AMPGD": (46.9, 64.4, 52.3, 46.2),
    },
}
"""By data set and suite, then by method."""
