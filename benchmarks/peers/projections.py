"""Projections onto l1 and l2 ball ∩ box beside those of other libraries: time, and how far from the optimum.

The optimum is that of a bisection in float64, and cvxpy's for a few rows.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

import saddlepoint as sp
from benchmarks.timing import ratios, seconds

from .measure import Cell
from .methods import OURS, load

CVXPY_ROWS = 3
_HALVINGS = 200
_DATA = {
    "mnist": {1.0: 20.0, 2.0: 3.0},
    "cifar10": {1.0: 12.0, 2.0: 2.0},
}


@dataclass(frozen=True)
class Onto:
    """Rows v, (B, D), to be projected onto {|z|_p <= eps, lower <= z <= upper}."""

    v: Tensor
    p: float
    eps: float
    lower: Tensor
    upper: Tensor

    def first(self, rows: int) -> Onto:
        return Onto(self.v[:rows], self.p, self.eps, self.lower[:rows], self.upper[:rows])


@dataclass(frozen=True)
class Projector:
    """One line of the table: whose, which norms, and whether it minds the box."""

    name: str
    library: str
    run: Callable[[Onto], Tensor]
    norms: tuple[float, ...]
    box: bool = True


def optimum(onto: Onto) -> Tensor:
    """The projection in float64 by bisection on the multiplier of the ball, (B, D).

    z(m) = clamp(soft(v, m)) for l1 and clamp(v / (1 + m)) for l2 shrink as m grows; at the optimum z(m) is on
    the ball, unless z(0) is inside.
    """
    v, lower, upper = (tensor.double() for tensor in (onto.v, onto.lower, onto.upper))

    def point(m: Tensor) -> Tensor:
        z = v.sign() * (v.abs() - m).clamp(min=0) if onto.p == 1 else v / (1 + m)
        return z.clamp(lower, upper)

    norm = torch.linalg.vector_norm(v, ord=onto.p, dim=1, keepdim=True)
    low = torch.zeros_like(norm)
    high = v.abs().amax(dim=1, keepdim=True) if onto.p == 1 else norm / onto.eps
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        large = torch.linalg.vector_norm(point(middle), ord=onto.p, dim=1, keepdim=True) > onto.eps
        low, high = torch.where(large, middle, low), torch.where(large, high, middle)
    inside = torch.linalg.vector_norm(point(low * 0), ord=onto.p, dim=1, keepdim=True) <= onto.eps
    return torch.where(inside, point(low * 0), point(high))


def _ours(onto: Onto) -> Tensor:
    return sp.LpBall(onto.p, onto.eps).project(onto.v, onto.lower, onto.upper)


def _autoattack(onto: Onto) -> Tensor:
    if onto.p == 1:
        step: Tensor = load("pyautoattack.autopgd_base").L1_projection(
            -onto.lower, onto.v, onto.eps
        )
        return onto.v + step
    # What its l2 APGD does in place of a projection: rescale onto the ball, then clamp into the box.
    length = onto.v.norm(dim=1, keepdim=True)
    scaled = onto.v / (length + 1e-12) * length.clamp(max=onto.eps)
    return scaled.clamp(onto.lower, onto.upper)


def _adv_lib(onto: Onto) -> Tensor:
    projections = load("adv_lib.utils.projections")
    point: Tensor = projections.l1_ball_euclidean_projection(onto.v, onto.eps)
    return point.clamp(onto.lower, onto.upper)


def _cvxpy(onto: Onto) -> Tensor:
    cvxpy = load("cvxpy")
    found = []
    for v, lower, upper in zip(
        *(t.double().numpy() for t in (onto.v, onto.lower, onto.upper)), strict=True
    ):
        z = cvxpy.Variable(len(v))
        ball = cvxpy.norm(z, int(onto.p)) <= onto.eps
        bounds = [ball] if np.isinf(lower).any() else [ball, z >= lower, z <= upper]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(z - v)), bounds).solve(
                solver=cvxpy.CLARABEL
            )
        found.append(torch.from_numpy(np.asarray(z.value)))
    return torch.stack(found)


PROJECTORS = (
    Projector("`LpBall.project`", OURS, _ours, (1.0, 2.0)),
    Projector("AutoAttack", "pyautoattack", _autoattack, (1.0, 2.0)),
    Projector("adv-lib, then clamped into the box", "adv_lib", _adv_lib, (1.0,)),
    Projector("adv-lib, no box", "adv_lib", _adv_lib, (1.0,), box=False),
    Projector("cvxpy (CLARABEL)", "cvxpy", _cvxpy, (1.0, 2.0)),
)


def problems() -> Iterator[tuple[str, str, float]]:
    """The cases: key, data and norm."""
    for data, radii in _DATA.items():
        for p, eps in radii.items():
            name = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[data]
            yield f"c: {name}, l{p:g} {eps:g}", data, p


def problem(data: str, p: float, count: int, seed: int, *, box: bool = True) -> Onto:
    """Images and normal perturbations of deviation 0.5."""
    x = sp.data.sample(data)[0][:count].flatten(1)
    generator = torch.Generator().manual_seed(seed)
    v = 0.5 * torch.randn(x.shape, generator=generator)
    far = torch.full_like(x, torch.inf)
    lower, upper = (-x, 1 - x) if box else (-far, far)
    return Onto(v, p, _DATA[data][p], lower, upper)


def compare(projector: Projector, onto: Onto) -> Cell:
    """Time over ours, interleaved, and the largest distance of an entry from the optimum, also ours."""
    slow = projector.library == "cvxpy"
    onto = onto.first(CVXPY_ROWS) if slow else onto
    best = optimum(onto)
    # The last is what it costs to take a point that is not the nearest: how much farther it is, relatively.
    z = projector.run(onto).double()
    far = ((z - onto.v).norm(dim=1) / (best - onto.v).norm(dim=1) - 1).max()
    return {
        "rows": len(onto.v),
        "entries": onto.v.shape[1],
        "ratio": median(
            ratios(
                lambda: projector.run(onto),
                lambda: _ours(onto),
                rounds=3 if slow else 31,
                clock=time.process_time,
            )
        ),
        "error": float((z - best).abs().max()),
        "farther": float(far),
        "ours": float((_ours(onto).double() - best).abs().max()),
        "seconds": seconds(lambda: projector.run(onto), time.process_time),
    }
