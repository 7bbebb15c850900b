"""What a model computes in during a training step."""

from __future__ import annotations

from torch import Tensor, nn

from saddlepoint.precision import FULL, Precision, Precisions, check_precision
from saddlepoint.problems import Ensemble
from saddlepoint.solver.lowering import choose_precisions

from .attack_and_update import check_batch, evaluating
from .distributed import World

__all__ = ["check_training_precision", "faster_precision", "precisions_of_step", "taken"]

_MEASURED = 64  # images that "auto" is decided with


def check_training_precision(precision: object) -> None:
    """Refuse what no training can compute in."""
    if not isinstance(precision, str):
        raise ValueError(
            f"`precision` must be one word in training, where there is one model, got {precision!r}."
        )
    check_precision(precision, 1)
    if precision.endswith("+channels_last"):
        raise ValueError(
            f"`precision` must be float32, bfloat16, float16 or auto in training, which moves parameters in "
            f"the layout that they have, got {precision!r}; write model.to(memory_format=torch.channels_last)."
        )


def precisions_of_step(model: nn.Module, x: Tensor, y: Tensor, precision: Precision) -> Precisions:
    """What a model computes in during a training step; "auto" is measured once per model, see there."""
    check_training_precision(precision)
    if precision == "float32":
        return FULL
    with evaluating(model) as module:
        names = choose_precisions(Ensemble([module], x, y), precision, training=True).names
    return Precisions((model, module), 2 * names)  # the attack asks the module inside


def taken(precisions: Precisions) -> Precision:
    """The word for what the model of a step computes in."""
    return precisions.names[0] if precisions.names else "float32"


def faster_precision(model: nn.Module, x: Tensor, y: Tensor) -> Precision:
    """What "auto" is for a model and such images, measured by process 0 for all processes.

    Args:
        model: Left as it was.
        x: Images in [0, 1], (N, ...), of which the first are used.
        y: Labels, (N,).
    """
    device = next(model.parameters()).device
    few = check_batch(x[:_MEASURED].to(device), y[:_MEASURED].to(device))
    found = taken(precisions_of_step(model, *few, "auto"))
    return World.current().gather(found)[0]
