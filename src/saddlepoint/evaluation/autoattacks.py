"""The attacks of AutoAttack (pyautoattack) as part of a suite, with their traps kept out of the numbers.

They are run one by one, with the parameters that AutoAttack sets for its versions "standard" and "plus". Their
own judgement of success is not asked.

What would go wrong, and does not: targeted attacks raise if there are fewer classes than their targets; the
targeted DLR loss needs four classes; `Square` raises for inputs that are not images, and for many image sizes
under l2 and l1; it writes into the logits, which for some models are the images; a seed that is not given is
the time of day; memory layouts other than the plain one raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from saddlepoint.evaluation.attacks import AbstractAttack, Target, sealed
from saddlepoint.evaluation.other_libraries import Isolated, library, seed_of

__all__ = ["APGD", "FAB", "Square", "TargetedAPGD"]

_NORMS = {math.inf: "Linf", 2.0: "L2", 1.0: "L1"}


@final
@dataclass(frozen=True)
class APGD(AbstractAttack):
    """Auto-PGD, untargeted (Croce and Hein 2020).

    Args:
        name: In tables.
        loss: Cross-entropy, or the difference of logits ratio, which needs three classes.
        steps: Per restart.
        restarts: From random points, for images that are not fooled yet.
        shrinking: For l1 only: start in a ball three times as large and shrink it, as the authors do.

    Example:
        >>> APGD("apgd-ce").steps
        100
    """

    name: str = "apgd-ce"
    loss: Literal["ce", "dlr"] = "ce"
    steps: int = 100
    restarts: int = 1
    shrinking: bool = False

    def __post_init__(self) -> None:
        _check_steps(self.steps, self.restarts)

    def run(self, target: Target) -> Tensor:
        """Misclassified images inside the ball, or the images themselves."""
        if self.loss == "dlr":
            _classes(target, 3, self.name, "take loss 'ce'")
        return _perturb(
            "autopgd_base.APGDAttack",
            target,
            loss=self.loss,
            n_iter=self.steps,
            n_restarts=self.restarts,
            use_largereps=self.shrinking and target.ball.p == 1,
        )


@final
@dataclass(frozen=True)
class TargetedAPGD(AbstractAttack):
    """Auto-PGD towards the most likely other classes, with the targeted DLR loss (Croce and Hein 2020).

    With three classes, one too few for this loss, the smallest logit takes the place of the fourth.

    Args:
        name: In tables.
        steps: Per target.
        targets: How many classes, at most all others.
        shrinking: For l1 only: start in a ball three times as large and shrink it, as the authors do.

    Example:
        >>> TargetedAPGD(targets=5).name
        'apgd-t'
    """

    name: str = "apgd-t"
    steps: int = 100
    targets: int = 9
    shrinking: bool = False

    def __post_init__(self) -> None:
        _check_steps(self.steps, self.targets)

    def run(self, target: Target) -> Tensor:
        """Misclassified images inside the ball, or the images themselves."""
        remedy = "its loss is constant for two; apgd-ce, fab-t and square do without"
        classes = _classes(target, 3, self.name, remedy)
        return _perturb(
            "autopgd_base.APGDAttack_targeted",
            target,
            _with_a_fourth if classes == 3 else _as_it_is,
            n_iter=self.steps,
            n_target_classes=min(self.targets, classes - 1),
            use_largereps=self.shrinking and target.ball.p == 1,
        )


@final
@dataclass(frozen=True)
class FAB(AbstractAttack):
    """Fast adaptive boundary attack (Croce and Hein 2020), which hands over what is inside the ball.

    Args:
        name: In tables.
        targeted: Whether one class after the other is aimed at, which is cheaper with many classes.
        steps: Per restart.
        restarts: The first from the image, the others from random points, for images that are not fooled yet.
        targets: How many classes, at most all others; if targeted.

    Example:
        >>> FAB().name, FAB("fab", targeted=False).restarts
        ('fab-t', 1)
    """

    name: str = "fab-t"
    targeted: bool = True
    steps: int = 100
    restarts: int = 1
    targets: int = 9

    def __post_init__(self) -> None:
        _check_steps(self.steps, min(self.restarts, self.targets))

    def run(self, target: Target) -> Tensor:
        """Misclassified images inside the ball, or the images themselves."""
        classes = _classes(target, 2, self.name, "a network with one class cannot be wrong")
        return _perturb(
            "fab_pt.FABAttack_PT",
            target,
            targeted=self.targeted,
            n_iter=self.steps,
            n_restarts=self.restarts,
            n_target_classes=min(self.targets, classes - 1),
        )


@final
@dataclass(frozen=True)
class Square(AbstractAttack):
    """Square attack (Andriushchenko et al. 2020): random squares, without gradients.

    Inputs that are not images (n, channels, height, width), or of a size at which it raises, are laid out on
    a larger square; what falls beside them is dropped, so there it is weaker than it could be.

    Args:
        name: In tables.
        queries: Images shown to the model, per image.

    Example:
        >>> Square(queries=100).name
        'square'
    """

    name: str = "square"
    queries: int = 5000

    def __post_init__(self) -> None:
        _check_steps(self.queries, 1)

    def run(self, target: Target) -> Tensor:
        """Misclassified images inside the ball, or the images themselves."""
        canvas = _Canvas.around(target.x, any_size=target.ball.p == math.inf)
        return _perturb(
            "square.SquareAttack",
            target,
            canvas=canvas,
            n_queries=self.queries,
            p_init=0.8,
            resc_schedule=False,
        )


@final
@dataclass(frozen=True)
class _Canvas:
    """Images as `Square` can take them, and back."""

    shape: tuple[int, ...]
    sides: tuple[int, int, int] | None

    @staticmethod
    def around(x: Tensor, *, any_size: bool) -> _Canvas:
        shape = tuple(x.shape[1:])
        image = len(shape) == 3
        if image and (any_size or _tiles(shape[1], shape[2])):
            return _Canvas(shape, None)
        side = max(shape[1:]) if image else math.isqrt(x[0].numel() - 1) + 1
        while not (any_size or _tiles(side, side)):
            side += 1
        return _Canvas(shape, (shape[0] if image else 1, side, side))

    def lay(self, x: Tensor) -> Tensor:
        if self.sides is None:
            return x
        room = x.new_full((len(x), *self.sides), 0.5)
        if len(self.shape) == 3:
            room[:, :, : self.shape[1], : self.shape[2]] = x
        else:
            room.flatten(1)[:, : x[0].numel()] = x.flatten(1)
        return room

    def take(self, room: Tensor) -> Tensor:
        if self.sides is None:
            return room
        if len(self.shape) == 3:
            return room[:, :, : self.shape[1], : self.shape[2]]
        count = torch.Size(self.shape).numel()
        return room.flatten(1)[:, :count].reshape(len(room), *self.shape)


def _tiles(height: int, width: int) -> bool:
    """Whether the tiles of Square's first guess, a fifth of the height, stay inside the image."""
    tile = height // 5
    if tile == 0:
        return False
    margin = (height - 5 * tile) // 2
    return all(margin + side // tile * tile <= side for side in (height, width))


def _perturb(
    path: str,
    target: Target,
    reshape_logits: Callable[[Tensor], Tensor] | None = None,
    canvas: _Canvas | None = None,
    **options: Any,
) -> Tensor:
    norm = _NORMS.get(target.ball.p)
    if norm is None:
        raise ValueError(
            f"`ball` must have p = 1, 2 or inf for the attacks of AutoAttack, got p = {target.ball.p:g}; take "
            "suite 'quick'."
        )
    module, _, kind = path.rpartition(".")
    attack_class = getattr(library(f"pyautoattack.{module}", "AutoAttack"), kind)
    model = _Between(
        Isolated(target.model, target.x),
        reshape_logits or _as_it_is,
        canvas.take if canvas else _as_it_is,
    )
    x = target.x.float().contiguous()
    x = canvas.lay(x) if canvas else x
    seed = seed_of(target)
    with sealed(target.model, seed):
        attack = attack_class(
            model, norm=norm, eps=target.eps, seed=seed, device=x.device, verbose=False, **options
        )
        found: Tensor = attack.perturb(x.clone(), target.y.clone()).detach()
    found = canvas.take(found) if canvas else found
    same = (found == target.x.float()).flatten(1).all(dim=1)
    # Where nothing was found the image itself, not what is left of it in float32.
    return torch.where(
        same.reshape(-1, *(1 for _ in target.x.shape[1:])), target.x, found.to(target.x)
    )


@final
class _Between(nn.Module):
    """A model behind a change of the images and of the logits."""

    def __init__(
        self,
        model: nn.Module,
        after: Callable[[Tensor], Tensor],
        before: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self._parts = (before, model, after)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        before, model, after = self._parts
        return after(model(before(images)))


def _as_it_is(values: Tensor) -> Tensor:
    return values


def _with_a_fourth(logits: Tensor) -> Tensor:
    return torch.cat([logits, logits.amin(dim=1, keepdim=True)], dim=1)


def _classes(target: Target, least: int, name: str, remedy: str) -> int:
    with torch.no_grad():
        classes = target.model(target.x[:1]).shape[1]
    if classes < least:
        raise ValueError(f"{name} needs at least {least} classes, got {classes}: {remedy}.")
    return int(classes)


def _check_steps(steps: int, repeats: int) -> None:
    if steps < 3:
        raise ValueError(f"the steps, or queries, of an attack must be >= 3, got {steps}.")
    if repeats < 1:
        raise ValueError(f"`restarts` and `targets` must be >= 1, got {repeats}.")
