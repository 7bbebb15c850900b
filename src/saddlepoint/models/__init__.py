"""The paper's networks A-H, two of the defence literature, trained parameters for A-D, and anybody's networks.

`build` makes a network by name, `load` gives one with trained parameters: shipped ones by name, the user's own
from a file. `wrap` makes a model of any network. All map images in [0, 1] to logits and normalise inside.
"""

from .architectures import ARCHITECTURES, build
from .cards import FGSM_EPS, Accuracy, Card, measure
from .loading import card, channels_last, load, shipped
from .wrapping import NORMALISATIONS, Normalisation, Wrapped, wrap

__all__ = [
    "ARCHITECTURES",
    "FGSM_EPS",
    "NORMALISATIONS",
    "Accuracy",
    "Card",
    "Normalisation",
    "Wrapped",
    "build",
    "card",
    "channels_last",
    "load",
    "measure",
    "shipped",
    "wrap",
]
