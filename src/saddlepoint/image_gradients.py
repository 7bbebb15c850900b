"""The gradient of a convolution with respect to images of one channel, at a fraction of its price.

Attacks differentiate with respect to the images, and so differentiate the first layer of a network where nobody
else does. On CPUs with AVX-512 oneDNN computes that gradient for whole blocks of sixteen channels, in the plain
layout, of which grey images have one. Here it is a product of matrices, whose columns are added up where the
windows of the convolution overlap: the same sum in another order. The answers are those of the model, bit for
bit.

    answers = W windows(x)        (B, O, L): L windows of height * width entries
    dx      = fold(W^T danswers)  fold is the adjoint of taking windows

A plain convolution of plain tensors in full precision is done so, and whatever else a model asks for is left to
torch. Two things look different from inside a model: `grad_fn` of the answers is a function of ours, and hooks
of the deprecated `register_backward_hook` on such a convolution see other gradients in other places; those of
`register_full_backward_hook` see what they always see.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, final
from weakref import ReferenceType, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

__all__ = ["cheap_image_gradients"]

_ENTRIES = 2**20  # of columns at a time: they stay in the cache, and need little memory
_DTYPES = (torch.float32, torch.float64)
# What torch tells about itself, without promising to go on doing so: without it everything is left to torch.
_TOLD = all(
    hasattr(part, name)
    for part, names in {
        torch._C: ("_len_torch_function_stack", "_len_torch_dispatch_stack"),
        torch._C._functorch: ("peek_interpreter_stack", "is_legacy_batchedtensor"),
        torch._C._autograd: ("_top_saved_tensors_default_hooks",),
        forward_ad: ("_current_level",),
    }.items()
    for name in names
)
# By the id of a module, which may compare in ways of its own, and is asked at every step.
_CONVOLVES: dict[int, tuple[ReferenceType[nn.Module], bool]] = {}


def cheap_image_gradients(model: object, images: Tensor) -> AbstractContextManager[object]:
    """The context in which to ask a model about images, (B, ...), whose gradient may be wanted.

    Convolutions of one channel are differentiated as above; what that brings to whole networks is measured by
    `python -m benchmarks image_gradients`. On the shipped networks of CIFAR-10, with three channels, nothing
    was gained. Nothing changes where no gradient is wanted, on other devices, for modules that are compiled or
    have no `nn.Conv2d`, and where somebody else looks at what is asked of torch.

    Example:
        >>> layer, x = nn.Conv2d(1, 64, 3), torch.rand(8, 1, 28, 28, requires_grad=True)
        >>> with cheap_image_gradients(layer, x):
        ...     answers = layer(x)
        >>> (found,), (usual,) = (torch.autograd.grad(each.sum(), x) for each in (answers, layer(x)))
        >>> torch.equal(answers, layer(x)), torch.allclose(found, usual, atol=1e-5)
        (True, True)
    """
    grey = _TOLD and images.dim() == 4 and images.shape[1] == 1
    if not (grey and images.requires_grad and images.device.type == "cpu" and _convolves(model)):
        return nullcontext()
    cpu: Any = torch.backends.mkldnn  # its products may be set to round where convolutions do not
    watched = torch._C._len_torch_function_stack() > 0
    if watched or cpu.matmul.fp32_precision not in ("ieee", "none"):
        return nullcontext()
    return _Cheaply()


def _convolves(model: object) -> bool:
    """Whether there may be something to gain; a module is looked at once, a function may do anything."""
    if not isinstance(model, nn.Module):
        return True
    known = _CONVOLVES.get(id(model))
    if known is None or known[0]() is not model:
        try:
            parts = list(model.modules())
        except Exception:  # a module of its own kind; asking it will tell
            parts = []
        some = any(isinstance(part, nn.Conv2d) for part in parts)
        number = id(model)
        gone = ref(model, lambda _: _CONVOLVES.pop(number, None))
        known = _CONVOLVES[number] = gone, some and not any(map(_is_compiled, parts))
    return known[1]


def _is_compiled(part: nn.Module) -> bool:
    """Whether torch compiles a module; it would do so once more for this context."""
    return hasattr(part, "_torchdynamo_orig_callable") or part._compiled_call_impl is not None


@final
class _Cheaply(TorchFunctionMode):
    """What the model asks of torch is done as it is, but for convolutions of one channel."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.conv2d and not kwargs and not _recorded():
            return _convolved(*args)
        return func(*args, **(kwargs or {}))


def _recorded() -> bool:
    """Whether somebody compiles, traces or watches what is done."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return True
    return torch._C._len_torch_dispatch_stack() > 0


class _How(NamedTuple):
    """Of a convolution, as numbers for both axes."""

    stride: tuple[int, int]
    padding: tuple[int, int]


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any) -> Tensor:
    """`torch.conv2d`, with the gradient of x by a product of matrices where that is the same and pays."""
    plain = _plain(*how)
    if plain is None or not (_suits(x, weight, bias) and _pays(x, weight, plain)):
        return torch.conv2d(x, weight, bias, *how)
    # Two functions: the one of the parameters does not depend on x as autograd sees it, so that it is not
    # differentiated where only the gradient of the images is asked for.
    answers: Tensor = _OfParameters.apply(weight, bias, (x,), plain)  # type: ignore[no-untyped-call]
    found: Tensor = _OfImages.apply(answers, x, weight, plain)  # type: ignore[no-untyped-call]
    return found


def _plain(
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1, *more: Any
) -> _How | None:
    """Stride and padding of a convolution that has neither dilation nor groups; None for any other."""
    steps, border = _two(stride), _two(padding)
    if more or groups != 1 or _two(dilation) != (1, 1) or steps is None or border is None:
        return None
    return _How(steps, border)


def _two(number: Any) -> tuple[int, int] | None:
    """One number, or a pair of them, as a pair; None for any other word."""
    pair = (number, number) if type(number) is int else number
    pairs = isinstance(pair, tuple | list) and len(pair) == 2
    return (pair[0], pair[1]) if pairs and all(type(each) is int for each in pair) else None


def _suits(x: Any, weight: Any, bias: Any) -> bool:
    """Whether these are plain tensors and (B, 1, height, width) images whose gradient may be wanted."""
    parameters = [weight] if bias is None else [weight, bias]
    if type(x) is not Tensor or not all(
        type(each) in (Tensor, nn.Parameter) for each in parameters
    ):
        return False
    strided = all(each.layout is torch.strided for each in (x, *parameters))
    if torch.is_autocast_enabled("cpu"):  # in fewer bits nothing was gained
        return False
    grey = x.dim() == 4 and x.shape[1] == 1 and x.device.type == "cpu" and x.dtype in _DTYPES
    if not (strided and grey and x.requires_grad and torch.is_grad_enabled()):
        return False
    # Transforms of functions, derivatives that go forward, and whoever keeps what is saved for the backward
    # pass, as checkpointing does, know nothing of the functions below.
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    kept = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    return not (transformed or kept or forward_ad._current_level >= 0)


def _pays(x: Tensor, weight: Tensor, how: _How) -> bool:
    """Whether the columns of an image are few; the same for every batch, so that results are too.

    For a few images at a time, as few as take less than a millisecond, the calls cost more than they save.
    """
    windows = x.shape[2] * x.shape[3] // (how.stride[0] * how.stride[1])
    return weight.shape[2] * weight.shape[3] * windows <= _ENTRIES


@final
class _OfParameters(torch.autograd.Function):
    """The answers of a convolution, (B, O, h, w), with the gradients of its parameters.

    The images come in a tuple, where autograd does not look. They are kept as they are, so that the gradients
    of the parameters can be differentiated with respect to them.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, images: tuple[Tensor], how: _How
    ) -> Tensor:
        ctx.save_for_backward(images[0], weight)
        ctx.how, ctx.biased = how, bias is not None
        return torch.conv2d(images[0], weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            _, dweight, dbias = torch.ops.aten.convolution_backward(
                *(gradient, x, weight),
                [len(weight)] if ctx.biased else None,
                *(ctx.how.stride, ctx.how.padding, (1, 1), False, (0, 0), 1),
                [False, True, ctx.biased],
            )
        return dweight, dbias, None, None


@final
class _OfImages(torch.autograd.Function):
    """The answers of a convolution, (B, O, h, w), with the gradient of the images that it was asked about."""

    @staticmethod
    def forward(ctx: Any, answers: Tensor, x: Tensor, weight: Tensor, how: _How) -> Tensor:
        ctx.mark_dirty(answers)  # the same tensor, which the next layer may write into
        ctx.save_for_backward(weight)
        ctx.shape, ctx.how = x.shape, how
        return answers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (weight,) = gradients, ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            found = _folded(gradient, weight, ctx.shape, ctx.how)
        return gradient, found, None, None


def _folded(gradient: Tensor, weight: Tensor, shape: torch.Size, how: _How) -> Tensor:
    """dx, (B, 1, height, width), of danswers, (B, O, h, w), and W, (O, 1, ...)."""
    if torch._C._functorch.is_legacy_batchedtensor(
        gradient
    ):  # of `is_grads_batched`, which knows no fold
        images = gradient.new_empty(shape)
        last = (how.stride, how.padding, (1, 1), False, (0, 0), 1, [True, False, False])
        found: Tensor = torch.ops.aten.convolution_backward(gradient, images, weight, None, *last)[
            0
        ]
        return found
    rows, outer = weight.flatten(1).T.contiguous(), gradient.flatten(2)
    at_a_time = max(1, _ENTRIES // max(1, len(rows) * outer.shape[2]))
    parts = [
        F.fold(
            *(rows.expand(len(some), -1, -1) @ some, shape[2:], weight.shape[2:]),
            **how._asdict(),
        )
        for some in outer.split(at_a_time)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
