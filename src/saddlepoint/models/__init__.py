"""The paper's networks A-H, two of the defence literature, and trained parameters for A-D.

`build` makes a network by name, `load` gives one with trained parameters: shipped ones by name, the user's own
from a file. All map images in [0, 1] to logits and normalise inside.
"""

from .architectures import ARCHITECTURES, build
from .cards import FGSM_EPS, Accuracy, Card, measure
from .loading import card, load, shipped

__all__ = [
    "ARCHITECTURES",
    "FGSM_EPS",
    "Accuracy",
    "Card",
    "build",
    "card",
    "load",
    "measure",
    "shipped",
]
