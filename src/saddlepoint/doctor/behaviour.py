"""Checks that look at outputs and gradients, without attacking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.behind import parts_in_training
from saddlepoint.calls import call
from saddlepoint.doctor.scalings import normalisation
from saddlepoint.doctor.subject import (
    NORMALISE,
    WITHOUT_GRADIENTS,
    Finding,
    Subject,
    input_gradient,
)
from saddlepoint.evaluation.failures import reason
from saddlepoint.losses import fooled
from saddlepoint.models.own_code import place_of
from saddlepoint.problems import Model
from saddlepoint.score_models import has_gradient
from saddlepoint.solver.watch import TWICE, alone_tolerance, moved

__all__ = ["CHECKS", "inputs", "mode"]


def mode(model: Model) -> Finding:
    """Training or evaluation mode."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    loud = (
        [type(m).__name__ for m in parts_in_training(model)] if isinstance(model, nn.Module) else []
    )
    if not loud:
        return Finding("mode", "ok", "the model is in evaluation mode.", "its answers are its own.")
    special = sorted({n for n in loud if "Norm" in n or "Dropout" in n})
    return Finding(
        "mode",
        "fail",
        f"{len(loud)} of {len(modules)} modules are in training mode"
        + (f", among them {', '.join(special)}." if special else "."),
        "dropout and batch norm make answers depend on chance and on the other images of the batch.",
        "call model.eval() before evaluating, as the command line does; the checks below look at evaluation "
        "mode.",
    )


def inputs(model: Model, x: Tensor, y: Tensor) -> Finding:
    """Images in range, logits of the right shape, labels among the classes, everything finite."""
    low, high = float(x.min()), float(x.max())
    if not (low >= 0 and high <= 1):
        return Finding(
            "inputs",
            "fail",
            f"image values run from {low:.3g} to {high:.3g}.",
            "images are expected in [0, 1]; radii and boxes mean nothing otherwise.",
            f"undo normalisation and divide 8-bit values by 255; let the model normalise: {NORMALISE}.",
        )
    try:
        with torch.no_grad():
            logits = call(model, x)
    except Exception as error:  # the user's model may raise anything
        return Finding(
            "inputs",
            "fail",
            f"asking the model ended in {reason(error)}{place_of(error)}",
            f"it does not take images of shape {tuple(x.shape[1:])}, or does not return logits.",
            "check channels, data type and outputs, give other images with --data, or bring them to the size "
            "it wants with --size (in Python other `x`, or sp.models.wrap(network, size=...)).",
        )
    if not bool(logits.isfinite().all()) or int(y.max()) >= logits.shape[1]:
        return Finding(
            "inputs",
            "fail",
            f"logits have {logits.shape[1]} classes, are "
            + ("finite" if bool(logits.isfinite().all()) else "not finite")
            + f", and the largest label is {int(y.max())}.",
            "the model was made for other classes, or overflows.",
            "check the model's last layer, and the labels: --classes names them in the order of the logits (in "
            "Python sp.data.folder(path, classes=[...])).",
        )
    shape = "x".join(str(side) for side in x.shape[1:])
    return Finding(
        "inputs",
        "ok",
        f"{len(x)} images {shape} in [{low:.2g}, {high:.2g}], {logits.shape[1]} finite logits each.",
        "images, labels and outputs fit together.",
    )


def outputs(subject: Subject) -> Finding:
    """Logits or probabilities."""
    values = subject.logits
    sums = values.sum(dim=-1)
    if bool((values >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()):
        return Finding(
            "outputs",
            "fail",
            "outputs are non-negative and sum to one.",
            "these are probabilities: losses saturate and gradients come out far too small.",
            "return logits: drop the last softmax."
            if has_gradient(subject.model)
            else "declare them: saddlepoint.scores(model, probabilities=True) takes their logarithm.",
        )
    spread = float((values.amax(dim=-1) - values.amin(dim=-1)).median())
    return Finding(
        "outputs",
        "ok",
        f"outputs do not sum to one; their range is {spread:.3g} in the median.",
        "the model returns logits.",
    )


def randomness(subject: Subject) -> Finding:
    """Whether the same images get the same answers, twice and alone."""
    again = subject.call(subject.x)
    change = float((again - subject.logits).abs().max())
    flips = int(fooled(again, subject.logits.argmax(dim=-1)).sum())
    if not bool((moved(subject.logits, again) <= TWICE).all()):
        return Finding(
            "randomness",
            "fail",
            f"the same images gave logits up to {change:.3g} apart, and {flips} other answers.",
            "the model is random: gradients are noisy and one success or failure proves little.",
            "make it deterministic; what it draws at random to change the image belongs into transformations, "
            "which are averaged over draws: attack transform --transforms paper-random --samples 20 (in Python "
            "sp.Transformed(model, transforms, x, y, samples=20)).",
        )
    few = min(4, len(subject.x))
    alone = torch.cat([subject.call(subject.x[i : i + 1]) for i in range(few)])
    gap = float((alone - subject.logits[:few]).abs().max())
    company = torch.cat([alone, subject.logits[few:]])
    tolerance = alone_tolerance([subject.model], subject.logits)
    if not bool((moved(subject.logits, company) <= tolerance).all()):
        return Finding(
            "randomness",
            "fail",
            f"an image alone and in a batch gave logits {gap:.3g} apart.",
            "answers depend on the other images, as with batch norm in training mode.",
            "use running statistics: call model.eval(), and make batch norms with track_running_stats=True.",
        )
    return Finding(
        "randomness",
        "ok",
        f"two calls differ by {change:.1g}, alone and in a batch by {gap:.1g}.",
        "the model is deterministic and treats every image on its own.",
    )


def gradients(subject: Subject) -> Finding:
    """Zero, vanishing, exploding or undefined gradients of the margin; or none, because the user says so."""
    if not has_gradient(subject.model):
        return Finding(
            "gradients",
            "fail",
            "the model is declared to answer scores only, so that it has no gradient.",
            "evaluations follow gradients: of their attacks random search alone is left, and what it leaves is "
            "called robust.",
            "attack it with `attack ensemble --models scores:WORD --gradient estimated:queries=5000` (in "
            "Python sp.attack(..., gradient=sp.estimated(queries=5000))); a network that has gradients is "
            "named without scores: (in Python without sp.scores).",
        )
    gradient = input_gradient(subject.model, subject.x, subject.y, "margin").flatten(1)
    norms = torch.linalg.vector_norm(gradient, dim=1)
    if not bool(norms.isfinite().all()):
        return Finding(
            "gradients",
            "fail",
            f"{int((~norms.isfinite()).sum())} of {len(norms)} gradients are NaN or infinite.",
            "a division by zero, the root or power of zero, or overflow inside the model.",
            "look for sqrt, pow and log at pixel 0 or 1 and clamp their arguments.",
        )
    zero, median, top = _share(norms == 0), float(norms.median()), float(norms.max())
    if zero > 0.02:
        return Finding(
            "gradients",
            "fail" if zero > 0.1 else "warn",
            f"the gradient is exactly zero for {zero:.0%} of the images.",
            "something masks it: rounding, argmax, a quantiser, saturation, or .detach().",
            f"attack a differentiable copy of that part (BPDA), or {WITHOUT_GRADIENTS}; do not call it robust.",
        )
    if median < 1e-6 or top > 1e6:
        return Finding(
            "gradients",
            "warn",
            f"gradient norms: median {median:.1g}, largest {top:.1g}.",
            "gradients vanish or explode; steps along them are dominated by rounding.",
            "rescale the logits, or attack with steps that ignore the size, as --method attack takes them (in "
            "Python sp.attack, not sp.apgda).",
        )
    return Finding(
        "gradients",
        "ok",
        f"gradient norms: median {median:.2g}, from {float(norms.min()):.1g} to {top:.2g}.",
        "gradients exist and have a sane size.",
    )


def saturation(subject: Subject) -> Finding:
    """Losses that are cut off, so that their gradient is exactly zero."""
    if not bool(subject.correct.any()):
        return Finding(
            "saturation", "ok", "no image is classified correctly.", "nothing to saturate."
        )
    x, y = subject.x[subject.correct], subject.y[subject.correct]
    entropy, margins = (
        input_gradient(subject.model, x, y, loss).flatten(1).any(dim=1)
        for loss in ("cross-entropy", "margin")
    )
    # Where the margin has no gradient either, something else masks it, and `gradients` says so.
    flat = _share(~entropy & margins)
    top = subject.logits[subject.correct].topk(2, dim=-1).values
    margin = float((top[:, 0] - top[:, 1]).median())
    if flat > 0.05:
        return Finding(
            "saturation",
            "fail" if flat > 0.3 else "warn",
            f"the cross-entropy has no gradient at all for {flat:.0%} of the images; "
            f"the median margin is {margin:.3g}.",
            "logits are so large that the softmax is exactly one: attacks on the cross-entropy fail.",
            "use margin losses, --loss cw or --loss dlr (in Python loss=sp.cw_margin or sp.dlr), or divide the "
            "logits by a temperature.",
        )
    if margin > 40:
        return Finding(
            "saturation",
            "warn",
            f"the median margin between the two largest logits is {margin:.3g}.",
            "the C&W margin is cut off at kappa = 50, which an attack may reach for many images.",
            "use --loss dlr (in Python loss=sp.dlr), which ignores the scale of the logits.",
        )
    return Finding(
        "saturation",
        "ok",
        f"the median margin between the two largest logits is {margin:.3g}.",
        "no loss is cut off at the clean images.",
    )


def dead_units(subject: Subject) -> Finding:
    """ReLU units that are zero for every image."""
    model = subject.model
    relus = (
        [m for m in model.modules() if isinstance(m, nn.ReLU | nn.ReLU6)]
        if isinstance(model, nn.Module)
        else []
    )
    alive: dict[int, Tensor] = {}

    def watch(key: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            del module, args
            # A channel of a feature map is one unit.
            used = (output > 0).flatten(2).any(dim=2) if output.dim() > 2 else output > 0
            used = used.any(dim=0)
            alive[key] = (
                used if key not in alive or alive[key].shape != used.shape else alive[key] | used
            )

        return hook

    handles = [relu.register_forward_hook(watch(i)) for i, relu in enumerate(relus)]
    try:
        subject.call(subject.x)
    finally:
        for handle in handles:
            handle.remove()
    if not alive:
        return Finding(
            "dead units", "ok", "no ReLU modules to look at.", "units of other kinds do not die."
        )
    shares = [1 - _share(used) for used in alive.values()]
    if max(shares) > 0.9:
        return Finding(
            "dead units",
            "warn" if max(shares) < 1 else "fail",
            f"in one layer {max(shares):.0%} of the ReLU units are zero for all {len(subject.x)} images.",
            "the layer passes almost no gradient: bad initialisation, collapsed training, or wrong inputs.",
            f"check accuracy and input scaling: {NORMALISE}; else retrain with a smaller learning rate.",
        )
    return Finding(
        "dead units",
        "ok",
        f"at most {max(shares):.0%} of the ReLU units of a layer are zero for all images.",
        "enough units are alive to carry gradients.",
    )


CHECKS: tuple[Callable[[Subject], Finding], ...] = (
    normalisation,
    outputs,
    randomness,
    gradients,
    saturation,
    dead_units,
)


def _share(table: Tensor) -> float:
    return float(table.double().mean()) if table.numel() else 0.0
