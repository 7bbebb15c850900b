"""How good a model is, in two numbers, and the card that is shipped beside its parameters.

The numbers are those of the paper's appendix (table of clean test accuracy): accuracy on clean
images, and under FGSM in the linf ball of radius 0.2.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saddlepoint.behind import parts_in_training
from saddlepoint.calls import call
from saddlepoint.display import counted
from saddlepoint.losses import fooled
from saddlepoint.rounding import full_precision

__all__ = ["FGSM_EPS", "Accuracy", "Card", "measure"]

FGSM_EPS = 0.2
"""The linf radius of the FGSM accuracies in cards.

Example:
    >>> FGSM_EPS
    0.2
"""

_ROWS = 50  # images at a time: 250 of GoogLeNet's size held 12 GB


class Accuracy(NamedTuple):
    """Fractions of images classified correctly: as they are, and after one FGSM step.

    Example:
        >>> Accuracy(clean=0.98, fgsm=0.25).fgsm
        0.25
    """

    clean: float
    fgsm: float


@full_precision()
def measure(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float = FGSM_EPS,
    attacked: Literal["true", "predicted"] = "true",
) -> Accuracy:
    """Clean and FGSM accuracy of a model in evaluation mode.

    FGSM moves every pixel by `eps` along the sign of the gradient of the cross-entropy and clips to
    [0, 1] (Goodfellow et al., 2015). Parameters' gradients are left alone; works under no_grad.

    Args:
        model: Maps images to logits (B, classes).
        x: Images in [0, 1], (N, C, H, W).
        y: Labels, (N,).
        eps: Radius of the linf ball.
        attacked: The class that FGSM moves away from: that of `y`, or the one that the model says without a
            perturbation, so that images which were wrong can become right. Counted is against `y` in both.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False)).eval()
        >>> _ = model[1].weight.data.copy_(torch.tensor([[0.0], [1.0]]))  # logits (0, x)
        >>> measure(model, torch.full((4, 1, 1, 1), 0.1), torch.ones(4, dtype=torch.long))
        Accuracy(clean=1.0, fgsm=0.0)
    """
    if parts_in_training(model):
        raise ValueError("`model` must be in evaluation mode; call model.eval() first.")
    clean = withstood = 0
    for images, labels in zip(x.detach().split(_ROWS), y.split(_ROWS), strict=True):
        with torch.enable_grad():
            images.requires_grad_()
            logits = call(model, images)
            away = labels if attacked == "true" else logits.argmax(dim=1)
            loss = F.cross_entropy(logits, away, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, images)
        with torch.no_grad():
            moved = (images + eps * gradient.sign()).clamp(0, 1)
            clean += int((~fooled(logits, labels)).sum())
            withstood += int((~fooled(call(model, moved), labels)).sum())
    return Accuracy(clean / len(y), withstood / len(y))


@final
@dataclass(frozen=True, repr=False)
class Card:
    """What is known of a set of parameters; the JSON file beside it.

    Attributes:
        architecture: A name `build` takes; with `channels`, `size` and `classes` it is the network.
        data: The data set that they were trained on; how much of it is in `command`.
        command: What trained them, and does so again with the same number of `threads`; `models pack` may have
            rounded the result.
        recipe: Optimiser and schedule of that command, in full.
        accuracy: Percent of the `test_images` classified correctly.
        fgsm_accuracy: The same after FGSM with linf radius `fgsm_eps`.
        sha256: Of the safetensors file.
        versions: Of the libraries used.
        mean: How the network wants images, as --mean said it; None for networks that normalise inside.
        std: The same for --std.
        robust: Of networks trained against threats what judged them: "threats", norm:radius each, and by suite
            "images" and the percent of them that are right: "clean", by norm, and under all at once, "union".

    Example:
        >>> from saddlepoint import models
        >>> models.card("mnist-a").architecture
        'A'
    """

    architecture: str
    channels: int
    size: int
    classes: int
    data: str
    command: str
    seed: int
    epochs: int
    threads: int
    recipe: Mapping[str, Any]
    accuracy: float
    fgsm_accuracy: float
    fgsm_eps: float
    test_images: int
    sha256: str
    versions: Mapping[str, str]
    mean: str | None = None
    std: str | None = None
    robust: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        # Others may have written the texts, of which a terminal is to make no commands.
        network, data = (repr(text)[1:-1] for text in (self.architecture, self.data))
        shape = f"{self.channels}x{self.size}x{self.size}"
        shares = (
            f"{self.accuracy:.1f} % right, {self.fgsm_accuracy:.1f} % under FGSM {self.fgsm_eps:g}"
        )
        classes = counted(self.classes, "class", "classes")
        return f"Card({network} for {data} {shape}, {classes}: {shares})"

    def to_json(self) -> str:
        """The card as indented JSON, ending in a newline."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str = "text") -> "Card":
        """Reads what `to_json` wrote.

        Args:
            text: JSON.
            name: What complaints call it, such as the path of the file.

        Raises:
            ValueError: It is no JSON, or fields are missing, unknown or of another type.
        """
        remedy = "write it again with the parameters, or remove it and name the architecture"
        try:
            found = cls(**json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`{name}` must be a model card, got {error}; {remedy}.") from error
        for field, what, fits in _FIELDS:
            value = getattr(found, field)
            if not fits(value):
                got = repr(value)[:100]
                raise ValueError(
                    f"`{name}` must be a model card with {what} as {field}, got {got}; {remedy}."
                )
        return found


_MOST = 65536  # channels, pixels of a side, classes


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MOST


def _is_positive(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 100  # type: ignore[operator]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_judged(value: object) -> bool:
    if value is None:
        return True
    quick = value.get("quick", ...) if isinstance(value, dict) else None
    if not isinstance(quick, dict):
        return quick is ...
    return _is_count(quick.get("images")) and _is_number(quick.get("union"))


# What a card is used for: the field, what it must be, and whether it is.
_FIELDS: tuple[tuple[str, str, Callable[[object], bool]], ...] = (
    *((name, f"a number in [1, {_MOST}]", _is_count) for name in ("channels", "size", "classes")),
    *((name, "a text", _is_text) for name in ("architecture", "data", "command", "sha256")),
    *((name, "a text or null", _is_text_or_none) for name in ("mean", "std")),
    *(
        (name, "a number in [0, 100]", _is_number)
        for name in ("accuracy", "fgsm_accuracy", "fgsm_eps")
    ),
    ("test_images", "a number above 0", _is_positive),
    ("robust", "null, or an object whose `quick` has `images` and `union`,", _is_judged),
)
