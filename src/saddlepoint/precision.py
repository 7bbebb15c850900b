"""How models compute while something is searched for: in which precision, and in which memory layout.

Verdicts are always those of the model as it is, in full precision. Everything that is not a model
(perturbations, losses, weights, projections) keeps the dtype of the images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Literal, cast, final, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = [
    "FULL",
    "How",
    "Precision",
    "Precisions",
    "check_precision",
    "how_of",
    "is_native",
    "scaled",
]

Precision = Literal[
    "float32",
    "bfloat16",
    "float16",
    "float32+channels_last",
    "bfloat16+channels_last",
    "auto",
]
"""What models compute in. "float32" is the model as it is; "+channels_last" lays filters and images out with
channels last, which is faster for many convolutions and changes answers by rounding; "auto" is what is measured
to be faster.

Example:
    >>> import saddlepoint as sp
    >>> problem = sp.Ensemble([torch.nn.Flatten().eval()], torch.tensor([[0.2, 0.7]]), torch.tensor([1]))
    >>> sp.attack(problem, sp.linf(0.3), steps=5, precision="bfloat16").success  # judged in float32
    tensor([True])
"""

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@final
@dataclass(frozen=True)
class How:
    """How one model is asked.

    Attributes:
        name: The word for it.
        dtype: Of fewer bits, for autocast; None where it computes as it is.
        filters: Its four-dimensional parameters with channels last, in place of its own; empty where it has its
            own layout.
    """

    name: Precision
    dtype: torch.dtype | None
    filters: Mapping[str, Tensor]

    @staticmethod
    def of(model: object, name: Precision) -> How | None:
        """What a word means for a model; None if it is asked as it is."""
        number, _, layout = name.partition("+")
        filters = {}
        if layout:
            if not isinstance(model, nn.Module):
                raise ValueError(
                    f"`precision` must be {number} for {type(model).__name__}, which is no module and has no "
                    f"parameters to lay out, got {name!r}."
                )
            with torch.inference_mode(False):  # else no gradient could pass them
                filters = _filters_last(model)
        low = _DTYPES.get(number)
        return How(name, low, filters) if low is not None or filters else None

    def ask(self, model: Callable[[Tensor], object], images: Tensor) -> object:
        """What a model returns for images; it is left as it was."""
        low = self.dtype
        device = images.device.type
        # A cache of parameters in fewer bits would outlive an update of them inside a user's own autocast.
        with nullcontext() if low is None else torch.autocast(device, low, cache_enabled=False):
            if not self.filters:
                return model(images)
            assert isinstance(model, nn.Module)
            if images.dim() == 4:
                images = images.contiguous(memory_format=torch.channels_last)
            try:
                # Parameters are swapped in place meanwhile: another thread would take ours for the model's own.
                with _SWAPPED:
                    return functional_call(model, dict(self.filters), (images,), tie_weights=False)
            except RuntimeError as error:
                plain, do = self.name.partition("+")[0], ""
                if isinstance(model, torch.jit.ScriptModule):
                    why = "which is compiled and keeps its parameters in the layout that they have"
                elif "view size" in str(error):
                    why = "which takes a view that images with channels last do not have"
                    do = "; .reshape or .flatten in place of .view works too"
                else:
                    raise
                raise ValueError(
                    f'`precision` must be {plain} for {type(model).__name__}, {why}, or "auto", which does '
                    f"without this layout then, got {self.name!r}{do}."
                ) from error


_SWAPPED = RLock()


def _filters_last(model: nn.Module) -> dict[str, Tensor]:
    """Four-dimensional parameters with channels last, each under one name for every module that holds it.

    A module with two names has its parameters here once: `functional_call` would swap the same attribute
    twice, and put its own tensor back in place of the parameter. Modules that share a parameter share what is
    in its place.
    """
    filters: dict[str, Tensor] = {}
    laid_out: dict[nn.Parameter, Tensor] = {}
    for where, module in model.named_modules():  # each once
        for name, value in module.named_parameters(where, recurse=False, remove_duplicate=False):
            if value.dim() == 4 and value not in laid_out:
                # `contiguous` would leave filters of one channel as they are, and layers after them are slow.
                laid_out[value] = value.detach().clone(memory_format=torch.channels_last)
            if value.dim() == 4:
                filters[name] = laid_out[value]
    return filters


@final
class _Scale(torch.autograd.Function):
    """The logits as they are; their gradient, row by row, times a power of two that makes it about one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, scales: list[Tensor]) -> Tensor:
        ctx.scales = scales
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        largest = gradient.abs().flatten(1).amax(dim=1)
        exponent = torch.frexp(largest).exponent.clamp(-100, 100)
        ctx.scales[:] = [torch.ldexp(torch.ones_like(largest), -exponent)]
        return gradient * ctx.scales[0].unsqueeze(1), None


@final
class _Unscale(torch.autograd.Function):
    """The images as they are; their gradient without the factor of `_Scale`."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, scales: list[Tensor]) -> Tensor:
        ctx.scales = scales
        return images.clone()  # a view could not be changed in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        wide = ctx.scales[0].to(gradient).reshape(-1, *(1 for _ in gradient.shape[1:]))
        return gradient / wide, None


def scaled(images: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """For models in float16, whose gradients vanish where they are small: what they see, and for their logits.

    Every row is answered by itself, so that its gradient may go through the model in any scale: it does in
    one that float16 can hold, and comes out as it is.

    Args:
        images: (n, ...), of a search: gradients of parameters would keep the scale, see `training.stepping`.

    Returns:
        The images, and a function for the logits (n, C), float32, of these images.

    Example:
        >>> leaf = torch.tensor([[1e-3, 2.0]], requires_grad=True)
        >>> images, ending = scaled(leaf)
        >>> (ending(images.half().float()) * 2**-40).sum().backward()
        >>> leaf.grad
        tensor([[9.0949e-13, 9.0949e-13]])
    """
    scales: list[Tensor] = []
    begin, end = cast(Any, _Unscale).apply, cast(Any, _Scale).apply  # torch has no types for them
    return begin(images, scales), lambda logits: end(logits, scales)


_now: ContextVar[Mapping[int, How | None] | None] = ContextVar("precision", default=None)


@final
@dataclass(frozen=True)
class Precisions:
    """What each model computes in while it is searched for perturbations that fool it.

    Args:
        models: Those that are asked.
        names: A `Precision` for each, not "auto".

    Example:
        >>> model = torch.nn.Linear(2, 2).eval()
        >>> with Precisions((model,), ("bfloat16",)).applied():
        ...     how_of(model).dtype, how_of(len)
        (torch.bfloat16, None)
    """

    models: tuple[object, ...] = ()
    names: tuple[Precision, ...] = ()
    _how: Mapping[int, How | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pairs = zip(self.models, self.names, strict=True)
        object.__setattr__(self, "_how", {id(model): How.of(model, name) for model, name in pairs})

    @staticmethod
    def full(models: Sequence[object]) -> Precisions:
        """All of these models compute as they are."""
        return Precisions(tuple(models), tuple("float32" for _ in models))

    def only(self, index: int) -> Precisions:
        """What one of the models computes in."""
        return Precisions((self.models[index],), (self.names[index],))

    @property
    def low(self) -> bool:
        """Whether the answers of any model differ from those of its verdicts, by rounding at least."""
        return any(self._how.values())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Where `saddlepoint.calls.call` asks these models so."""
        token = _now.set(self._how)
        try:
            yield
        finally:
            _now.reset(token)


FULL = Precisions()
"""All models compute as they are."""


def how_of(model: object) -> How | None:
    """How a model is asked here and now; None where it is asked as it is."""
    known = _now.get()
    return known.get(id(model)) if known else None


def check_precision(precision: object, models: int) -> tuple[Precision, ...]:
    """One word for each of so many models.

    Args:
        precision: A word for all of them, or as many words as there are models.
        models: Their number.

    Example:
        >>> check_precision("auto", 2)
        ('auto', 'auto')
    """
    words = [precision] * models if isinstance(precision, str) else precision
    known = get_args(Precision)
    if not isinstance(words, Sequence) or any(word not in known for word in words):
        raise ValueError(
            f"`precision` must be one of {', '.join(known)}, for all models or one for each, got {precision!r}."
        )
    if len(words) != models:
        raise ValueError(
            f"`precision` must be one word, or one for each of {models} models, got {len(words)}."
        )
    return tuple(words)


def is_native(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 by itself, and does not only imitate it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False
