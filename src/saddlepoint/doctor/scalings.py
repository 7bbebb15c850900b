"""Whether a model wants images that are scaled differently."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from saddlepoint.doctor.subject import NORMALISE, Finding, Subject
from saddlepoint.losses import fooled
from saddlepoint.models import NORMALISATIONS, Wrapped

__all__ = ["normalisation"]

Scaling = tuple[str, str, str]  # in words, in flags, in Python

# Values 0 to 255, as a mean and a standard deviation.
_BYTES = "values 0 to 255", "--mean 0 --std 1/255", "mean=0, std=1 / 255"
_CHANCE = 0.01  # that any of the scalings is called better though the network knows nothing
_PLAIN = "values 0 to 1", "--mean 0 --std 1", "mean=0, std=1"


def normalisation(subject: Subject) -> Finding:
    """Whether the model does better on images that are scaled differently."""
    share, chance = float(subject.correct.double().mean()), 1 / subject.logits.shape[1]
    tried = _tried(subject)
    best = max(accuracy for _, accuracy, _ in tried)
    gain, slack = best - share, max(2.5 / len(subject.x), 0.03)
    if gain > slack and best > 2 * chance and _known(subject, best, len(tried)):
        # Several do about as well where they are nearly the same: the likeliest first.
        near = (each for each in tried if best - each[1] <= slack)
        alike = sorted(near, key=lambda each: (-each[1], each[2]))
        (how, shell, python), *others = (scaling for scaling, _, _ in alike)
        more = ", ".join(
            flags if name in flags else f"{flags} ({name})" for name, flags, _ in others
        )
        which = f"; {more} would do about as well" if more else ""
        own = _own(subject) is not None
        return Finding(
            "normalisation",
            "fail" if gain > 0.1 else "warn",
            f"accuracy is {share:.0%} {'as it is' if own else 'on images in [0, 1]'} and {best:.0%} with {how}"
            + (" in place of its mean and std." if own else "."),
            "the model was trained on images that were normalised otherwise."
            if own
            else "the model was trained on normalised images and does not normalise itself.",
            f"{'take' if own else 'add'} {shell} (in Python sp.models.wrap(network, {python})){which}, or the "
            "numbers it was trained with: --mean a,b,c --std d,e,f.",
        )
    if share <= max(1.5 * chance, 0.3):
        return Finding(
            "normalisation",
            "warn",
            f"accuracy is {share:.0%}, chance is {chance:.0%}.",
            "the model is untrained, its parameters or the labels are wrong, or inputs are scaled differently.",
            f"compare with the accuracy the model is known for before attacking it; {NORMALISE}.",
        )
    return Finding(
        "normalisation",
        "ok",
        f"accuracy is {share:.0%} on images in [0, 1], and no usual rescaling does clearly better.",
        "the model normalises its inputs itself.",
    )


def _known(subject: Subject, accuracy: float, tried: int) -> bool:
    """Whether the best of so many accuracies is more than a network without training would have by chance.

    Such a network gives all images one class or any: it is right as often as the most frequent class is there.
    """
    count, classes = len(subject.y), torch.bincount(subject.y)
    often = float(classes.max()) / count
    p = often if often < 1 else 1 / subject.logits.shape[1]
    least = round(accuracy * count)
    tail = sum(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(least, count + 1))
    return tail * tried < _CHANCE


def _scalings(x: Tensor, own: tuple[Tensor, Tensor] | None) -> dict[Scaling, Tensor]:
    """Ways of feeding images that models are commonly trained with, other than [0, 1].

    Args:
        x: The images.
        own: Standard deviation and mean that the model itself applies, which are undone here.
    """
    found: dict[Scaling, Tensor] = {_BYTES: x * 255}
    for name, constants in NORMALISATIONS.items():
        if len(constants.mean) == 1 or (x.dim() == 4 and x.shape[1] == len(constants.mean)):
            mean, std = (
                torch.tensor(v, dtype=x.dtype, device=x.device).view(-1, 1, 1) for v in constants
            )
            found[name, f"--mean {name}", f"mean={name!r}"] = (x - mean) / std
    if own is None:
        return found
    std, mean = (values.to(x) for values in own)
    return {how: images * std + mean for how, images in {_PLAIN: x, **found}.items()}


def _own(subject: Subject) -> tuple[Tensor, Tensor] | None:
    """Standard deviation and mean that the model was wrapped with, such as those of --mean and --std."""
    model = subject.model
    if not isinstance(model, Wrapped) or model.mean is None or model.std is None:
        return None
    return model.std, model.mean


def _tried(subject: Subject) -> list[tuple[Scaling, float, float]]:
    """Accuracy and mean cross-entropy of the model on images that are scaled differently."""
    found = []
    for scaling, images in _scalings(subject.x, _own(subject)).items():
        logits = subject.call(images)
        loss = nn.functional.cross_entropy(logits.double(), subject.y).item()
        found.append((scaling, float((~fooled(logits, subject.y)).double().mean()), loss))
    return found
