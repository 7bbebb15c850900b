"""Projections onto ball ∩ box at (256, 3072): AutoAttack's exact l1 projection and a plain sort as rulers."""

from __future__ import annotations

import torch
from pyautoattack.autopgd_base import L1_projection

import saddlepoint as sp

from .timing import Figure, at_least, ratios


def figures() -> list[Figure]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(256, 3072, generator=generator)
    v = 0.5 * torch.randn(256, 3072, generator=generator)
    l1, l2 = sp.LpBall(1, 12.0), sp.LpBall(2, 2.0)
    return [
        at_least(
            "l1 ∩ box: AutoAttack's L1_projection over ours",
            ratios(lambda: L1_projection(x, v, 12.0), lambda: l1.project(v, -x, 1 - x)),
            4.0,
        ),
        at_least(
            "l2 ∩ box: torch.sort of the tensor over ours",
            ratios(lambda: v.sort(dim=1), lambda: l2.project(v, -x, 1 - x)),
            1.0,
        ),
    ]
