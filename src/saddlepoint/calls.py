"""The one place where a model is called, and what has to be so before it is.

A model maps images in [0, 1] to logits. It gets a tensor of its own, on its device and in its dtype, whatever
autocast is around, unless `saddlepoint.precision` says otherwise for it. Asked without gradients, as for every
verdict, it answers in full precision: see `saddlepoint.rounding`. What it returns is taken apart; the logits
come back on the device of the images, in their dtype or a finer one that the model answers in. Whoever asks
a model, asks it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from saddlepoint.behind import modules_behind, parts_in_training
from saddlepoint.image_gradients import cheap_image_gradients
from saddlepoint.precision import How, how_of, scaled
from saddlepoint.rounding import UNROUNDED, autocast_is_on, without_autocast

__all__ = [
    "Model",
    "call",
    "check_eval_mode",
    "dtypes_of",
    "home",
    "how_to_declare",
    "logits_of",
]

Model = Callable[[Tensor], Tensor]
"""From images (n, ...) in [0, 1] to logits (n, C). Networks that return more than a tensor are taken as well.

Example:
    >>> import saddlepoint as sp
    >>> model: sp.Model = torch.nn.Flatten().eval()
    >>> model(torch.rand(5, 1, 2, 2)).shape
    torch.Size([5, 4])
"""

_DECLARE = (
    "it has no gradients; declare a model that answers arrays by saddlepoint.scores(model), on the command "
    "line by scores: before its word, and give the attack a gradient"
)


def call(model: Model, images: Tensor, *, fresh: bool = False, training: bool = False) -> Tensor:
    """The logits of a model, as a tensor on the device of the images.

    Args:
        model: A callable from images to logits.
        images: (n, ...), float32 or float64. What the model does to them in place reaches nobody. A module
            whose parameters and buffers are of other dtypes gets them in the widest of these.
        fresh: Whether nobody else uses this tensor, so that it need not be copied.
        training: Whether it is asked for a step of training, which keeps the user's settings of what float32 is
            rounded to; otherwise questions without gradients do not.

    Returns:
        (n, C), in the dtype of the images, or in that of the model if it is finer: which class has the largest
        score is for the model to say, not for rounding.

    Raises:
        TypeError: The model returned something that holds no logits.
        ValueError: The logits are not (n, C), or the model cannot take images of this dtype.

    Example:
        >>> def in_place(images):
        ...     return (images.mul_(2).sub_(1),)
        >>> x = torch.tensor([[0.5, 1.0]])
        >>> call(in_place, x), x
        (tensor([[0., 1.]]), tensor([[0.5000, 1.0000]]))
    """
    device, dtype = home(model, images)
    how = how_of(model)
    own = images.to(device=device, dtype=dtype)
    if own is images and not fresh:
        own = images.clone()
    ending: Callable[[Tensor], Tensor] | None = None
    if how is not None and how.dtype == torch.float16 and own.requires_grad:
        own, ending = scaled(own)
    try:
        with cheap_image_gradients(model, own):
            output = _answer(model, own, how, training)
    except RuntimeError as error:
        remedy = _dtype_remedy(own.dtype, dtypes_of(modules_behind(model)), error)
        if remedy is None:
            raise
        raise ValueError(remedy) from error
    logits = logits_of(output)
    if logits.dim() != 2 or len(logits) != len(images):
        raise ValueError(
            f"models must return logits (B, C), one row for each of {len(images)} images, "
            f"got {tuple(logits.shape)}."
        )
    logits = logits.to(images.device, torch.promote_types(logits.dtype, images.dtype))
    return logits if ending is None else ending(logits)


def _answer(model: Model, images: Tensor, how: How | None, training: bool) -> object:
    """What a model returns, as said; in full precision where there is nothing to differentiate."""
    if how is not None:
        with without_autocast():
            return how.ask(model, images)
    if autocast_is_on():
        with without_autocast():
            return _answer(model, images, how, training)
    if training or torch.is_grad_enabled():
        return model(images)
    with UNROUNDED:
        return model(images)


def logits_of(output: object) -> Tensor:
    """The logits in what a model returned: itself, `.logits`, `["logits"]`, or the first of a tuple.

    Raises:
        TypeError: There are none.

    Example:
        >>> logits_of({"logits": torch.zeros(1, 2), "hidden": None}).shape
        torch.Size([1, 2])
    """
    if isinstance(output, Tensor):
        found: object = output
    elif getattr(output, "logits", None) is not None:
        found = output.logits  # type: ignore[attr-defined]
    elif isinstance(output, Mapping):
        found = output.get("logits")
    else:
        found = output[0] if isinstance(output, tuple | list) and output else None
    if isinstance(found, Tensor) and found.is_floating_point():
        return found
    if isinstance(found, Tensor):
        got = f"{_name(found.dtype)}; return scores of all classes, not classes"
    elif isinstance(output, Mapping):
        got = f"{type(output).__name__} with keys {list(output)}; wrap it to return one of them"
    elif _is_array(found) or _is_array(output):
        got = f"{type(output).__name__}: {_DECLARE}"
    else:
        got = f"{type(output).__name__}; wrap it in a function that returns the tensor alone"
    raise TypeError(
        'models must return logits (B, C) as a floating-point tensor, as `.logits` or ["logits"], or as the '
        f"first of a tuple, got {got}."
    )


def how_to_declare(thing: object) -> str:
    """How a classifier of scikit-learn's kind, which cannot be called, becomes a model; empty for other things.

    Example:
        >>> class Forest:
        ...     def predict_proba(self, rows): ...
        >>> how_to_declare(Forest())
        '; declare a classifier of scikit-learn by saddlepoint.scores(it.predict_proba, probabilities=True, \
flat=True)'
    """
    if not callable(getattr(thing, "predict_proba", None)):
        return ""
    return (
        "; declare a classifier of scikit-learn by saddlepoint.scores(it.predict_proba, probabilities=True, "
        "flat=True)"
    )


def check_eval_mode(models: Sequence[Model]) -> None:
    """Refuse models in training mode, without calling them: asked, batch norm would change its statistics.

    Networks behind functions are found, see `modules_behind`.

    Example:
        >>> network = nn.Dropout()
        >>> check_eval_mode([network.eval(), lambda images: network(images)])
    """
    for index, model in enumerate(models):
        for module in modules_behind(model):
            if parts_in_training(module):
                what = type(model).__name__
                if module is not model:
                    what += f" around {type(module).__name__}"
                raise ValueError(
                    f"models[{index}] ({what}) is in training mode, which makes its answers depend on the "
                    "batch and on chance; call model.eval() first."
                )


def home(model: Model, images: Tensor) -> tuple[torch.device, torch.dtype]:
    """Where a module wants its images, and in which dtype; other callables take them as they are."""
    if not isinstance(model, nn.Module):
        return images.device, images.dtype
    first = next(model.parameters(), None)
    if first is None:
        return images.device, images.dtype
    if first.dtype != images.dtype:
        known = dtypes_of([model])
        # A module that holds the images' dtype too converts them itself.
        if known and images.dtype not in known:
            return first.device, max(known, key=lambda dtype: (dtype.itemsize, str(dtype)))
    return first.device, images.dtype


def dtypes_of(modules: Sequence[nn.Module]) -> set[torch.dtype]:
    """Of all parameters and buffers that are floating-point numbers."""
    tensors = (t for module in modules for t in chain(module.parameters(), module.buffers()))
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()}


def _dtype_remedy(given: torch.dtype, known: set[torch.dtype], error: RuntimeError) -> str | None:
    """What to say of a model that failed on images of this dtype; None if its dtypes are not the reason."""
    names = " and ".join(sorted(map(_name, known)))
    if known and given not in known:
        images = {torch.float32: "x.float()", torch.float64: "x.double()"}
        fitting = [how for dtype, how in images.items() if dtype in known]
        do = f"give it images of that dtype, such as {fitting[0]}" if fitting else ""
        do = do or "pass the module itself, which is asked in its own dtype, or write model.float()"
        return (
            f"the model must take {_name(given)} images, but its parameters are {names}, and it failed "
            f"({error}); {do}."
        )
    if len(known) > 1 and "type" in str(error):  # as all complaints about dtypes say
        return (
            f"a model must have parameters and buffers of one dtype, or convert between them, got {names}, and "
            f"it failed ({error}); write model.float(), with the wrapper around the network included."
        )
    return None


def _is_array(found: object) -> bool:
    """Whether it is numbers of another library than torch."""
    return not isinstance(found, Tensor) and hasattr(found, "__array__")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
