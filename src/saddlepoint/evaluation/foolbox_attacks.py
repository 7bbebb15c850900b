"""Attacks of foolbox as part of a suite, with its traps kept out of the numbers.

Every image that foolbox shows to the model is looked at here, and what an adapter hands over is the nearest
misclassified one in the norm of the threat. So it does not matter that foolbox

- returns the last iterate of a restart, which need not be the one that was misclassified;
- returns a black image where its Carlini-Wagner attack fails, and forgets what it found in the last step;
- minimises the l2 norm of salt and pepper noise when the threat is l1.

Its l1 gradient descents rescale a perturbation that is too long instead of projecting it, which is far weaker;
they are refused. Its attacks that walk from a starting point raise for the whole batch if one image has none;
here that image is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from saddlepoint.evaluation.attacks import AbstractAttack, Target, sealed
from saddlepoint.evaluation.other_libraries import Isolated, library, seed_of
from saddlepoint.losses import fooled
from saddlepoint.projections import LpBall

__all__ = ["FoolboxAttack", "Seen"]

_RESCALING = (
    "L1ProjectedGradientDescentAttack",
    "L1PGD",
    "L1AdamProjectedGradientDescentAttack",
    "L1AdamPGD",
    "L1BasicIterativeAttack",
    "L1AdamBasicIterativeAttack",
    "L1MomentumIterativeFastGradientMethod",
    "L1FastGradientAttack",
    "L1FGM",
)
_SAFE_MARGIN = 1e-5  # of the largest logit: rounding differs between batches of different sizes
_BOX_ROUNDING = 1e-6
_UNSAFE = 1.001  # how much farther a candidate may be that is safe from rounding


@final
@dataclass(frozen=True)
class FoolboxAttack(AbstractAttack):
    """An attack of foolbox.

    Results depend on the other images of the batch, through foolbox's random numbers and stopping rules.

    Args:
        name: In tables.
        kind: Name of the class in ``foolbox.attacks``.
        options: What it is made with.
        restarts: How often it is started, each time for the images that are not fooled yet.
        minimal: Whether it looks for the nearest adversarial image (foolbox's minimisation attacks); else it
            is given the radius of the threat.
        start: Attack that finds starting points. Images for which it finds none start from the nearest image
            of the batch with another label; those that have none either are left as they are.

    Raises:
        ValueError: `kind` is an l1 gradient descent that rescales instead of projecting.

    Example:
        >>> FoolboxAttack("ddn", "DDNAttack", {"steps": 20}, minimal=True).name
        'ddn'
    """

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 1
    minimal: bool = False
    start: FoolboxAttack | None = None

    def __post_init__(self) -> None:
        if self.kind in _RESCALING:
            raise ValueError(
                f"`kind` must not be an l1 gradient descent of foolbox, got {self.kind}: it rescales "
                "perturbations instead of projecting them and overstates robustness; take "
                "SparseL1DescentAttack, or saddlepoint.evaluation.OurAttack."
            )
        if self.restarts < 1:
            raise ValueError(f"`restarts` must be >= 1, got {self.restarts}.")

    @property
    def calls(self) -> int:
        """One call for every restart."""
        return self.restarts

    def run(self, target: Target) -> Tensor:
        """The nearest misclassified image of all that foolbox tried, or the image itself."""
        seen = Seen(target.model, target.x, target.y, target.ball)
        with sealed(target.model, seed_of(target)):
            if self.start is None:
                self._call(seen, target.eps)
                return seen.nearest
            self.start._call(seen, target.eps)
            seen.offer_others()
            # Foolbox checks its starting points again, and raises for all of them if one fails.
            rows = seen.safe.nonzero().flatten()
            if len(rows):
                walk = Seen(target.model, seen.x[rows], seen.y[rows], target.ball)
                self._call(walk, target.eps, starting_points=seen.nearest[rows].clone())
                seen.merge(rows, walk)
        return seen.nearest

    def _call(self, seen: Seen, eps: float, **start: Tensor) -> None:
        foolbox = library("foolbox", f"attack {self.name!r}")
        attack = getattr(foolbox.attacks, self.kind)(**self.options)
        # Without a device, foolbox takes the first GPU it finds, wherever the images are.
        model = foolbox.PyTorchModel(seen, bounds=(0, 1), device=seen.x.device)
        attack(model, seen.x, seen.y, epsilons=None if self.minimal else eps, **start)


@final
class Seen(nn.Module):
    """A model that remembers, for each image of a batch, the nearest misclassified one it was shown.

    Distances are in the norm of the threat. One that is misclassified by so little that rounding could undo
    it loses to one that is safe and at most 0.1 % farther away.

    Args:
        model: From images in [0, 1] to logits.
        x: Images, (n, ...), in [0, 1], all of them classified correctly.
        y: Labels, (n,).
        ball: Of the threat.

    Attributes:
        nearest: The nearest ones so far, (n, ...), or the images themselves.
        distance: Their distances, (n,); inf where there is none.
        safe: Where there is one that rounding cannot undo, (n,), boolean.

    Example:
        >>> x, y = torch.tensor([[0.6, 0.5]]), torch.tensor([0])
        >>> seen = Seen(nn.Identity(), x, y, LpBall(1, 1.0))
        >>> for image in ([0.6, 0.9], [0.5, 0.6], [0.0, 1.0]):
        ...     _ = seen(torch.tensor([image]))
        >>> seen.nearest
        tensor([[0.5000, 0.6000]])
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, ball: LpBall) -> None:
        super().__init__()
        self._model = (Isolated(model, x),)  # in a tuple, out of the sight of nn.Module
        self.x = x.detach().contiguous()
        self.y = y
        self.ball = ball
        self.nearest = self.x.clone()
        self.distance = torch.full((len(x),), math.inf, dtype=torch.float64, device=x.device)
        self.safe = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (n, C)."""
        logits: Tensor = self._model[0](images)
        if images.shape == self.x.shape:
            with torch.no_grad():
                self._look(images.detach(), logits.detach())
        return logits

    def offer_others(self) -> None:
        """Show images that have nothing yet the nearest image of the batch with another label."""
        flat = self.x.flatten(1).float()
        apart = torch.cdist(flat, flat).masked_fill(self.y[:, None] == self.y, math.inf)
        found = self.distance.isfinite() | apart.isinf().all(dim=1)
        if not bool(found.all()):
            other = torch.where(
                found, torch.arange(len(found), device=found.device), apart.argmin(dim=1)
            )
            with torch.no_grad():
                self(self.x[other])

    def merge(self, rows: Tensor, part: Seen) -> None:
        """Take over what another one, about some of the images, found nearer."""
        better = part.distance < self.distance[rows]
        self.distance[rows[better]] = part.distance[better]
        self.nearest[rows[better]] = part.nearest[better]
        self.safe[rows[better]] = part.safe[better]

    def _look(self, images: Tensor, logits: Tensor) -> None:
        right = logits.gather(1, self.y[:, None]).squeeze(1)
        in_box = (images - images.clamp(0, 1)).abs().flatten(1).amax(dim=1) <= _BOX_ROUNDING
        usable = fooled(logits, self.y) & in_box
        if not bool(usable.any()):
            return
        top = logits.amax(dim=1)
        safe = top - right > _SAFE_MARGIN * logits.abs().amax(dim=1)
        distance = self.ball.norm(images - self.x)
        ahead = distance * torch.where(safe, 1.0, _UNSAFE)
        held = self.distance * torch.where(self.safe, 1.0, _UNSAFE)
        better = usable & (ahead < held)
        self.distance[better] = distance[better]
        self.nearest[better] = images[better].clamp(0, 1).to(self.nearest.dtype)
        self.safe[better] = safe[better]
