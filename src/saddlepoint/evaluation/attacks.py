"""What an attack of a suite is, and what it is given."""

from __future__ import annotations

import random
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from torch import Tensor, nn

from saddlepoint.behind import keeping_buffers, keeping_modes, keeping_random, modules_behind
from saddlepoint.calls import call
from saddlepoint.display import Brief
from saddlepoint.precision import FULL, Precisions
from saddlepoint.problems import Model
from saddlepoint.projections import LpBall
from saddlepoint.solver.domain_losses import gradients_enabled

__all__ = ["AbstractAttack", "OutOfTimeError", "Target", "Watched", "sealed"]


class OutOfTimeError(Exception):
    """The time an attack was given is over.

    Args:
        queries: Images it has shown to the model.
    """

    def __init__(self, queries: int = 0) -> None:
        super().__init__(f"the time is over after {queries} queries")
        self.queries = queries


@final
class Watched(nn.Module):
    """A model that counts how often images are shown to it, and stops the attack when its time is over.

    It has no parameters of its own, so that libraries which look for some find none to change.

    Args:
        model: From images in [0, 1] to logits.

    Example:
        >>> import torch
        >>> model = Watched(nn.Linear(2, 3).eval())
        >>> _ = model(torch.rand(4, 2))
        >>> model.queries
        4
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, out of the sight of nn.Module
        self.queries = 0
        self.deadline: float | None = None
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (n, C)."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError(self.queries)
        self.queries += len(images)
        return call(self._model[0], images).to(images.dtype)  # as other libraries expect


@final
@dataclass(frozen=True, repr=False)
class Target(Brief):
    """What an attack is asked to break: some images under one threat.

    Attributes:
        model: From images in [0, 1] to logits (n, C), in evaluation mode.
        x: Images, (n, ...), in [0, 1], all of them classified correctly.
        y: Labels, (n,).
        rows: Numbers of the images in the whole evaluation, (n,).
        ball: Where perturbations may be; one radius for all.
        seed: Of the whole evaluation; random numbers are to follow from it, `rows` and `restart`. The global
            random states are seeded already, differently for every batch, for libraries that draw from there.
        restart: Which restart, from 0.
        precisions: What the networks may compute in while an attack searches: within `precisions.applied()`
            they do, outside they answer in full precision.

    Example:
        >>> import torch
        >>> import saddlepoint as sp
        >>> x, y = torch.rand(2, 4), torch.tensor([0, 1])
        >>> target = sp.Target(nn.Identity(), x, y, rows=torch.arange(2), ball=sp.linf(0.1), seed=0)
        >>> target.eps, target.restart
        (0.1, 0)
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    rows: Tensor
    ball: LpBall
    seed: int
    restart: int = 0
    precisions: Precisions = FULL

    @property
    def eps(self) -> float:
        """The radius."""
        return float(self.ball.eps)


@contextmanager
def sealed(model: Model, seed: int) -> Iterator[None]:
    """Where an attack may do as it likes: afterwards the process and the model are as they were.

    Random states (torch, NumPy, Python) are seeded inside and put back; gradients are on; warnings are off. The
    model's modules, also those behind a function, keep their modes and buffers, its parameters their gradients
    and whether they want any.

    Args:
        model: What is attacked.
        seed: Of the random states, in [0, 2 ** 32).

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 2).eval()
        >>> with sealed(model, 0):
        ...     model.train()(torch.rand(1, 2)).sum().backward()
        >>> model.training, model.weight.grad
        (False, None)
    """
    networks = modules_behind(model)
    parameters = [parameter for network in networks for parameter in network.parameters()]
    gradients = [(parameter.grad, parameter.requires_grad) for parameter in parameters]
    states = random.getstate(), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other libraries', about what they import and call
            kept = keeping_modes(networks), keeping_buffers([model])
            with keeping_random([model], seed), gradients_enabled(), kept[0], kept[1]:
                for parameter in parameters:
                    parameter.grad = None  # so that nothing is added to what was there
                np.random.seed(seed)
                random.seed(seed)
                yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for parameter, (gradient, wanted) in zip(parameters, gradients, strict=True):
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
            parameter.grad = gradient


class AbstractAttack(ABC):
    """A way to look for adversarial images. What it returns is judged by `verdicts.judge`.

    Attributes:
        name: In tables, such as "pgd".
        minimal: Whether it looks for the nearest adversarial image, whatever the radius.
        independent: Whether a row's result does not depend on the batch it is in, so that batches may be
            divided evenly.
        at_once: How many times the batch size it is given: more than one where no graph is kept.

    Example:
        >>> import torch
        >>> import saddlepoint as sp
        >>> class Noise(sp.AbstractAttack):  # one random corner of the ball
        ...     name = "noise"
        ...     def run(self, target):
        ...         generator = torch.Generator().manual_seed(target.seed)
        ...         signs = torch.rand(target.x.shape, generator=generator).sub(0.5).sign()
        ...         return (target.x + target.eps * signs).clamp(0, 1)
        >>> model = nn.Sequential(nn.Flatten(), nn.Identity()).eval()
        >>> x, y = torch.tensor([[0.4, 0.5], [0.1, 0.8]]), torch.tensor([1, 1])
        >>> threats, suite = {"linf": sp.linf(0.2)}, {float("inf"): [Noise()]}  # attacks by norm
        >>> robust = sp.robust_accuracy(model, x, y, threats, suite=suite)
        >>> robust.per_threat["linf"] >= 0.5  # it can break the first image at most
        True
    """

    name: str
    minimal: bool = False
    independent: ClassVar[bool] = False
    at_once: ClassVar[int] = 1

    @property
    def calls(self) -> int:
        """How often `run` is called, each time with the images that are not fooled yet.

        Once, if a single call makes all restarts.
        """
        return 1

    @abstractmethod
    def run(self, target: Target) -> Tensor:
        """Candidates, (n, ...), one per image; the image itself where nothing was found."""
