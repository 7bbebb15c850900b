"""What adapters around other libraries need: the library, a model it cannot harm, and a seed.

The libraries behind `foolbox_attacks` and `autoattacks` call ``backward``, which computes and keeps gradients
of the model's parameters; write into the logits they are given; and turn images into float32 whatever the
model is made of. None of it gets past `Isolated`. Their random numbers stay inside `attacks.sealed`.
"""

from __future__ import annotations

import importlib
import warnings
import zlib
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from saddlepoint.evaluation.attacks import Target
from saddlepoint.extras import install

__all__ = ["Isolated", "MissingLibraryError", "library", "seed_of"]


class MissingLibraryError(ImportError):
    """A library that brings attacks is not installed.

    Example:
        >>> print(MissingLibraryError("foolbox"))  # doctest: +ELLIPSIS
        this attack needs foolbox; install it with pip install 'saddlepoint[eval]' (in a checkout: ...
    """

    def __init__(self, name: str, user: str = "this attack") -> None:
        package = name.split(".")[0]
        super().__init__(f"{user} needs {package}; install it with {install('eval')}", name=package)


def library(name: str, user: str = "this attack") -> Any:
    """A module of another library, imported when it is needed.

    Args:
        name: Of the module.
        user: What needs it, for the message.

    Raises:
        MissingLibraryError: It cannot be imported.

    Example:
        >>> library("foolbox.attacks").LinfPGD().steps
        40
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what it imports itself
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingLibraryError(name, user) from error


@final
class Isolated(nn.Module):
    """A model as another library may see it: logits of its own, and gradients for images only.

    Args:
        model: From images in [0, 1] to logits.
        like: Images as the model takes them; others are converted to their type, and the logits back.

    Example:
        >>> linear = nn.Linear(2, 3).double().eval()
        >>> images = torch.rand(4, 2, requires_grad=True)  # float32, as libraries have them
        >>> Isolated(linear, torch.zeros(1, 2).double())(images).sum().backward()
        >>> images.grad is None, linear.weight.grad is None
        (False, True)
    """

    def __init__(self, model: nn.Module, like: Tensor) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, out of the sight of nn.Module
        self._dtype = like.dtype
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (n, C), in the type of the images."""
        if torch.is_grad_enabled() and images.requires_grad:
            logits: Tensor = _Logits.apply(images, self._plain)  # type: ignore[no-untyped-call]
            return logits
        with torch.no_grad():
            return self._plain(images).clone()  # the library may write into it

    def _plain(self, images: Tensor) -> Tensor:
        logits: Tensor = self._model[0](images.to(self._dtype))
        return logits.to(images.dtype)


class _Logits(torch.autograd.Function):
    """Logits whose graph ends at the images: ``backward`` does not reach the parameters."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, model: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            inside = images.detach().requires_grad_()
            logits = model(inside)
        ctx.inside, ctx.logits = inside, logits
        return logits.detach().clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # Some ask for one class after the other, so the graph is kept until the logits are forgotten.
        (gradient,) = torch.autograd.grad(ctx.logits, ctx.inside, gradients[0], retain_graph=True)
        # An attack that follows NaN does not move and says nothing, and its image would count as not fooled.
        finite = gradient.flatten(1).sum(dim=1).isfinite()
        if not bool(finite.all()) and bool(gradients[0].isfinite().all()):
            raise FloatingPointError(
                f"the gradient of the model must be finite, got NaN or inf for {int((~finite).sum())} of "
                f"{len(finite)} images"
            )
        return gradient.contiguous(), None


def seed_of(target: Target) -> int:
    """A seed in [0, 2 ** 32) that differs from batch to batch and from restart to restart.

    For libraries that take one; left to themselves they take the time of day.
    """
    first = int(target.rows[0]) if len(target.rows) else 0
    return zlib.crc32(f"{target.seed}/{target.restart}/{first}/{len(target.rows)}".encode())
