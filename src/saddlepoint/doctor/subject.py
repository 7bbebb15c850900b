"""The model that is examined, with its images, and the form of a finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, final

import torch
from torch import Tensor, nn

from saddlepoint.calls import call
from saddlepoint.display import html_table
from saddlepoint.evaluation import judge
from saddlepoint.losses import cw_margin, fooled
from saddlepoint.problems import Ensemble, Model
from saddlepoint.projections import LpBall
from saddlepoint.rules import Average
from saddlepoint.solver import AttackResult, attack_unchecked
from saddlepoint.solver.inspection import look

__all__ = [
    "NORMALISE",
    "WITHOUT_GRADIENTS",
    "Attacker",
    "Finding",
    "Findings",
    "Status",
    "Subject",
    "input_gradient",
    "worst",
]

Status = Literal["ok", "warn", "fail"]
"""Of a finding, from good to bad.

Example:
    >>> from typing import get_args
    >>> get_args(Status)
    ('ok', 'warn', 'fail')
"""
_ORDER: tuple[Status, ...] = ("ok", "warn", "fail")

# What several findings advise: the flag, and the same in Python.
NORMALISE = "--mean and --std normalise (in Python sp.models.wrap(network, mean=..., std=...))"
WITHOUT_GRADIENTS = (
    "without gradients: attack ensemble --gradient searched:queries=5000 (in Python sp.attack(..., "
    "gradient=sp.searched(queries=5000)))"
)


@final
@dataclass(frozen=True, repr=False)
class Finding:
    """The outcome of one check.

    Attributes:
        name: Of the check.
        status: "ok", "warn" (numbers are suspect) or "fail" (numbers are wrong).
        saw: What was measured.
        means: What that usually means.
        do: What to do about it; empty if nothing.

    Example:
        >>> Finding("outputs", "fail", "rows sum to one", "these are probabilities", "return logits").status
        'fail'
    """

    name: str
    status: Status
    saw: str
    means: str
    do: str = ""

    def __repr__(self) -> str:
        return f"Finding({self.name} {self.status}: {self.saw})"


@final
class Findings(list[Finding]):
    """What the checks found, in their order; a table in a notebook.

    Example:
        >>> Findings([Finding("mode", "ok", "", ""), Finding("outputs", "fail", "", "")])
        Findings(fail: 1 ok; fail: outputs)
    """

    def __repr__(self) -> str:
        parts = []
        for status in _ORDER:
            names = [each.name for each in self if each.status == status]
            told = f"{len(names)} ok" if status == "ok" else f"{status}: {', '.join(names)}"
            parts += [told] if names else []
        return f"Findings({worst(self)}: {'; '.join(parts) or 'nothing examined'})"

    def _repr_html_(self) -> str:
        rows = [(each.name, each.status, each.saw, each.do) for each in self]
        return html_table(["check", "status", "saw", "what to do"], rows)


def worst(findings: Iterable[Finding]) -> Status:
    """The most serious status; "ok" if there is none.

    Example:
        >>> worst([Finding("a", "ok", "", ""), Finding("b", "warn", "", "")])
        'warn'
    """
    return max((finding.status for finding in findings), key=_ORDER.index, default="ok")


@final
@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode with images, and what several checks need to know of it."""

    model: Model
    x: Tensor
    y: Tensor
    eps: float
    steps: int
    queries: int
    seed: int
    _robust: dict[float, Tensor] = field(default_factory=dict)

    @cached_property
    def logits(self) -> Tensor:
        """At the clean images, (B, C)."""
        return self.call(self.x)

    @cached_property
    def correct(self) -> Tensor:
        """Which clean images are classified correctly, (B,)."""
        return ~fooled(self.logits, self.y)

    @property
    def ball(self) -> LpBall:
        """Of the radius at which the model is supposed to be attackable."""
        return LpBall(float("inf"), self.eps)

    def call(self, images: Tensor) -> Tensor:
        """Logits without a graph."""
        with torch.no_grad():
            return call(self.model, images)

    def broken(self, candidates: Tensor, ball: LpBall) -> Tensor:
        """Which images the candidates break, (B,), by the judge of all evaluations."""
        return judge(self.model, self.x, self.y, candidates, ball).broken.to(self.x.device)

    def not_fooled(self, eps: float) -> Tensor:
        """Which images are still right after a white-box attack of linf radius eps, (B,); computed once."""
        if eps not in self._robust:
            ball = LpBall(float("inf"), eps)
            self._robust[eps] = ~self.broken(self._own.attack(ball).adversarial, ball)
        return self._robust[eps]

    @cached_property
    def _own(self) -> Attacker:
        return self.attacker(self.model)

    def attacker(self, model: Model) -> Attacker:
        """Attacks a model at these images; looks at it first, once.

        Raises:
            ValueError: The model cannot be attacked.
        """
        problem = Ensemble([model], self.x, self.y)
        rows = look(problem).rows(accumulate=False)
        return Attacker(problem, self.steps, self.seed, rows)


@final
@dataclass(frozen=True)
class Attacker:
    """A white-box attack on one model that was looked at, so many rows at a time."""

    problem: Ensemble
    steps: int
    seed: int
    batch_size: int

    def attack(self, ball: LpBall) -> AttackResult:
        """Attack all images in a ball."""
        return attack_unchecked(
            self.problem,
            ball,
            rule=Average(),
            steps=self.steps,
            seed=self.seed,
            batch_size=self.batch_size,
        )


def input_gradient(model: Model, x: Tensor, y: Tensor, loss: str) -> Tensor:
    """Gradient of a loss with respect to the images, (B, ...); zeros where the graph is cut."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        logits = call(model, leaf)
        if not logits.requires_grad:
            return torch.zeros_like(x)
        if loss == "margin":
            value = cw_margin(logits, y, kappa=float("inf")).sum()
        else:
            value = nn.functional.cross_entropy(logits, y, reduction="sum")
        (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
    return torch.zeros_like(x) if gradient is None else gradient.detach()
