"""Exact Euclidean projections: the simplex, and lp ball ∩ box for p = 0, 1, 2, inf (Proposition 1).

Every function works on rows: ``v`` is (B, D), each row is projected on its own, in a fixed number of
whole-tensor operations per pass and without a Python loop over rows. Boxes satisfy lower <= 0 <= upper,
so shrinking a point towards zero never leaves them; the last line of every projection relies on it.

Multipliers. With c_i the bound that entry i runs into (upper_i if v_i > 0, else -lower_i) the solutions are

    p = 1    |z_i| = min(max(|v_i| - lam, 0), c_i)     lam >= 0 the root of  sum_i |z_i| = eps
    p = 2    |z_i| = min(scale * |v_i|, c_i)           scale <= 1 the root of  sum_i z_i^2 = eps^2
    p = 0    z_i = clip(v_i) on the eps entries where clipping gains most, 0 elsewhere

and for p = inf the set is itself a box. A patch is such a ball in a smaller box: see `AbstractSet`.
"""

from saddlepoint.projections.arguments import NORMS, norm_name
from saddlepoint.projections.balls import AbstractSet, LpBall, l0, l1, l2, linf
from saddlepoint.projections.functions import project_lp_box, project_simplex
from saddlepoint.projections.patches import Patch

__all__ = [
    "NORMS",
    "AbstractSet",
    "LpBall",
    "Patch",
    "l0",
    "l1",
    "l2",
    "linf",
    "norm_name",
    "project_lp_box",
    "project_simplex",
]
