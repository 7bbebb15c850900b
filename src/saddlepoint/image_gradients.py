"""The gradient of a convolution with respect to images of one channel, at a fraction of its price.

Attacks differentiate with respect to the images, and so differentiate the first layer of a network where nobody
else does. On CPUs oneDNN computes that gradient for whole blocks of eight or sixteen channels, of which grey
images have one. Here it is a product of matrices, whose columns are added up where the windows of the
convolution overlap: the same sum in another order. The answers are those of the model, bit for bit.

    answers = W windows(x)        (B, O, L): L windows of height * width entries
    dx      = fold(W^T danswers)  fold is the adjoint of taking windows
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

__all__ = ["cheap_image_gradients"]

_ENTRIES = 2**20  # of columns at a time: they stay in the cache, and need little memory
_USUAL = (1, 0, 1, 1)  # stride, padding, dilation, groups of a call that leaves them out
_CONVOLVES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def cheap_image_gradients(model: object, images: Tensor) -> AbstractContextManager[object]:
    """The context in which to ask a model about images, (B, ...), whose gradient may be wanted.

    Convolutions of one channel are differentiated as above; what that brings to whole networks is measured by
    `python -m benchmarks image_gradients`. With three channels nothing was gained. Nothing changes where no
    gradient is wanted, on other devices, and for modules that are compiled or have no `nn.Conv2d`.

    Example:
        >>> layer, x = nn.Conv2d(1, 16, 3), torch.rand(2, 1, 8, 8, requires_grad=True)
        >>> with cheap_image_gradients(layer, x):
        ...     answers = layer(x)
        >>> (found,), (usual,) = (torch.autograd.grad(each.sum(), x) for each in (answers, layer(x)))
        >>> torch.equal(answers, layer(x)), torch.allclose(found, usual)
        (True, True)
    """
    grey = images.dim() == 4 and images.shape[1] == 1
    if grey and images.requires_grad and images.device.type == "cpu" and _convolves(model):
        return _Cheaply()
    return nullcontext()


def _convolves(model: object) -> bool:
    """Whether there may be something to gain; a module is looked at once, a function may do anything."""
    if not isinstance(model, nn.Module):
        return True
    if model not in _CONVOLVES:
        _CONVOLVES[model] = any(isinstance(part, nn.Conv2d) for part in model.modules())
    return _CONVOLVES[model]


@final
class _Cheaply(TorchFunctionMode):
    """What the model asks of torch is done as it is, but for convolutions of one channel."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.conv2d and not kwargs and not torch.compiler.is_compiling():
            return _convolved(*args)
        return func(*args, **(kwargs or {}))


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any) -> Tensor:
    """`torch.conv2d`, with the gradient of x by a product of matrices where it can be."""
    stride, padding, dilation, groups = how + _USUAL[len(how) :]
    plain = dilation in (1, (1, 1)) and groups == 1 and not isinstance(padding, str)
    if not (plain and _suits(x)):
        return torch.conv2d(x, weight, bias, *how)
    # The parameters get their gradients from the convolution, which is not differentiated where only that of
    # the images is asked for.
    answers = torch.conv2d(x.detach(), weight, bias, *how)
    found: Tensor = _WithImages.apply(answers, x, weight, stride, padding)  # type: ignore[no-untyped-call]
    return found


def _suits(x: Tensor) -> bool:
    """Whether these are plain images of one channel, (B, 1, height, width), whose gradient may be wanted."""
    if not (x.requires_grad and torch.is_grad_enabled() and type(x) is Tensor):
        return False
    if x.dim() != 4 or x.shape[1] != 1 or x.device.type != "cpu":
        return False
    # Transforms of functions, and derivatives that go forward, know nothing of the function below.
    if torch._C._functorch.is_functorch_wrapped_tensor(x) or forward_ad._current_level >= 0:
        return False
    return x.dtype in (torch.float32, torch.float64)


@final
class _WithImages(torch.autograd.Function):
    """The answers of a convolution, (B, O, h, w), with the gradient of the images that it was asked about."""

    @staticmethod
    def forward(
        ctx: Any,
        answers: Tensor,
        x: Tensor,
        weight: Tensor,
        stride: int | tuple[int, int],
        padding: int | tuple[int, int],
    ) -> Tensor:
        ctx.mark_dirty(answers)  # the same tensor, which the next layer may write into
        ctx.save_for_backward(weight)
        ctx.size, ctx.dtype, ctx.how = x.shape[-2:], x.dtype, {"stride": stride, "padding": padding}
        return answers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (weight,) = gradients, ctx.saved_tensors
        rows = weight.to(ctx.dtype).flatten(1).T.contiguous()
        outer = gradient.to(ctx.dtype).flatten(2)
        at_a_time = max(1, _ENTRIES // max(1, len(rows) * outer.shape[2]))
        parts = [
            F.fold(rows.expand(len(some), -1, -1) @ some, ctx.size, weight.shape[-2:], **ctx.how)
            for some in outer.split(at_a_time)
        ]
        return gradient, parts[0] if len(parts) == 1 else torch.cat(parts), None, None, None
