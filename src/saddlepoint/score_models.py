"""Models that answer scores and have no gradient: an API, a session of ONNX Runtime, trees, quantised networks.

They are declared with `scores`, because nobody can tell from outside whether a gradient that does not come is
missing on purpose. What declares it also says how the model wants its images and what it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from saddlepoint.calls import Model, call

__all__ = ["Scores", "has_gradient", "scores"]

_FLOOR = 1e-6  # of probabilities: trees answer zero, which has no logarithm
_SUM = 0.05  # by how much probabilities may miss one: ten of them, rounded to two digits


@final
class Scores:
    """A model without gradient; made by `scores`.

    Attributes:
        model: What is asked.
        probabilities: Whether it answers probabilities, of which the logarithm is taken.
        flat: Whether it wants every image as one row of numbers.
        numpy: Whether it wants a NumPy array.
        name: For reports, where it has one.

    Example:
        >>> scores(nn.Linear(2, 3))
        Scores(Linear)
    """

    def __init__(
        self, model: Callable[..., Any], *, probabilities: bool, flat: bool, numpy: bool
    ) -> None:
        self.model, self.probabilities, self.flat, self.numpy = model, probabilities, flat, numpy
        if isinstance(name := getattr(model, "name", None), str):
            self.name = name

    def __repr__(self) -> str:
        """What it is around."""
        return f"Scores({type(self.model).__name__})"

    def __call__(self, images: Tensor) -> Tensor:
        """Images (n, ...) to scores (n, C), without a graph, on the device and in the dtype of the images.

        Raises:
            TypeError: The model answered something that holds no scores.
            ValueError: They are no probabilities where these are promised.
        """
        given = images.detach().flatten(1) if self.flat else images.detach()
        with torch.no_grad():
            if isinstance(self.model, nn.Module) and not self.numpy:
                answer = call(self.model, given)
            else:
                answer = _tensor(self.model(given.cpu().numpy() if self.numpy else given))
        found = answer.detach()
        return (_logarithm(found) if self.probabilities else found).to(images)


def scores(
    model: Callable[..., Any],
    *,
    probabilities: bool = False,
    flat: bool = False,
    numpy: bool | None = None,
) -> Scores:
    """Declare a model that answers scores only, so that its gradient is estimated or done without.

    The model is asked, never differentiated, also where it could be: `scores(network)` is the network as
    somebody sees it who can only ask. Use it as a model of any problem, beside others that have gradients, and
    give `attack` a `gradient`: `estimated(queries=5000)` or `searched(queries=5000)`.

    Args:
        model: A callable from images (n, ...) in [0, 1] to scores (n, C), larger = more likely: a tensor, a
            NumPy array or lists, as a function of a service, a session, or `predict_proba` of scikit-learn.
        probabilities: Whether it answers probabilities: their logarithm, not below that of 1e-6, is then the
            score. Margins of probabilities themselves are flat wherever a model is sure.
        flat: Whether it wants images as rows of numbers, (n, D), as scikit-learn does.
        numpy: Whether it wants NumPy arrays; modules get tensors and all else arrays by default.

    Raises:
        TypeError: `model` cannot be called.

    Example:
        >>> def service(images):  # knows nothing of torch
        ...     bright = images.mean(axis=(1, 2, 3))
        ...     return [[value, 1 - value] for value in bright]
        >>> scores(service, probabilities=True)(torch.full((1, 1, 2, 2), 0.5)).exp()
        tensor([[0.5000, 0.5000]])
    """
    if not callable(model):
        raise TypeError(
            f"`model` must be callable, got {type(model).__name__}; of a classifier of scikit-learn give the "
            "method, as in scores(forest.predict_proba, probabilities=True, flat=True)."
        )
    if isinstance(model, Scores):
        raise TypeError(f"`model` must not be declared twice, got {model!r}.")
    wants = not isinstance(model, nn.Module) if numpy is None else numpy
    return Scores(model, probabilities=probabilities, flat=flat, numpy=wants)


def has_gradient(model: Model) -> bool:
    """Whether a model can be differentiated as far as anybody has said: it is not declared by `scores`.

    What wraps a declared model, as `saddlepoint.models.wrap` does, has no gradient either.

    Example:
        >>> has_gradient(nn.Linear(2, 2)), has_gradient(scores(nn.Linear(2, 2)))
        (True, False)
    """
    inner: object = model
    while isinstance(inner, nn.Module) and hasattr(inner, "network"):
        inner = inner.network
    return not isinstance(inner, Scores)


def _tensor(answer: object) -> Tensor:
    """Scores as a tensor, from what a model of any library returns.

    Raises:
        TypeError: There are none in it.
    """
    found = answer
    if isinstance(answer, Mapping):
        found = answer.get("logits")
    elif isinstance(answer, tuple) and answer:
        found = answer[0]
    elif isinstance(answer, list) and answer and getattr(answer[0], "ndim", 0) == 2:
        found = answer[0]  # a session answers with a list of its outputs
    elif getattr(answer, "logits", None) is not None:
        found = answer.logits  # type: ignore[attr-defined]
    tensor = found if isinstance(found, Tensor) else _numbers(found)
    if tensor is not None and tensor.is_floating_point():
        return tensor
    # Whole numbers are scores where every class has one, as those of quantised networks; else they are classes.
    kinds = (torch.bool, torch.complex64, torch.complex128)
    if tensor is not None and tensor.dim() == 2 and tensor.dtype not in kinds:
        return tensor.double()
    got = type(answer).__name__
    if tensor is not None:
        got = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
    got += f" with keys {list(answer)}" if isinstance(answer, Mapping) else ""
    raise TypeError(
        "models must return scores (B, C), a number for every class and not classes: a tensor, an array or "
        f'lists, as `.logits` or ["logits"], or as the first of a tuple, got {got}.'
    )


def _numbers(found: Any) -> Tensor | None:
    """Arrays of any library and lists as a tensor; None of what holds no numbers, or as many in no two rows."""
    for listed in (False, True):  # arrays of Python's numbers are lists in disguise
        try:
            if isinstance(found, list):
                found = [row.tolist() if hasattr(row, "tolist") else row for row in found]
            tensor = torch.tensor(found.tolist()) if listed else torch.as_tensor(found)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            continue
        return tensor if tensor.dim() and tensor.numel() else None
    return None


def _logarithm(probabilities: Tensor) -> Tensor:
    low, sums = probabilities.amin(), probabilities.sum(dim=-1)
    worst = sums.flatten()[(sums - 1).abs().argmax()]  # NaN comes first
    if not bool((low >= -_FLOOR) & ((worst - 1).abs() <= _SUM + _FLOOR)):
        raise ValueError(
            f"`probabilities` must be True only for answers that are >= 0 and sum to one, got a smallest "
            f"number {float(low):.3g} and a sum of {float(worst):.3g}; leave it out for logits and other "
            "scores."
        )
    return probabilities.clamp_min(_FLOOR).log()
