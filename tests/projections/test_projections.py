"""Projections by their definition, against a convex solver, and against brute force."""

from __future__ import annotations

import math
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import oracles
from saddlepoint import LpBall, project_lp_box, project_simplex
from saddlepoint.projections import solvers
from saddlepoint.projections.solvers import onto_ball

INF = math.inf
NORMS = [0, 1, 2, INF]
CONVEX = [1, 2, INF]
# How far the norm may exceed eps, relatively; checked in float64.
SLACK = {torch.float64: 1e-12, torch.float32: 1e-6}
ULP = {dtype: torch.finfo(dtype).eps for dtype in SLACK}


def norm(z: Tensor, p: float) -> Tensor:
    """||z||_p per row in float64, by its definition."""
    z = z.double().abs().flatten(1)
    if p == 0:
        return (z != 0).sum(dim=1).double()
    return z.amax(dim=1) if p == INF else (z**p).sum(dim=1) ** (1 / p)


def assert_feasible(z: Tensor, p: float, eps: float | Tensor, lower: Tensor, upper: Tensor) -> None:
    lower, upper = (torch.as_tensor(b, dtype=z.dtype) for b in (lower, upper))
    assert bool(((z >= lower) & (z <= upper)).all())
    eps = torch.as_tensor(eps, dtype=torch.float64)
    assert bool((norm(z, p) <= eps * (1 + SLACK.get(z.dtype, 0.0))).all()), (norm(z, p), eps)


def feasible(u: Tensor, p: float, eps: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Some point of a convex set made from u: clipped, then shrunk (not a projection)."""
    z = torch.minimum(torch.maximum(u, lower), upper)
    length = norm(z, p).unsqueeze(1)
    return z * torch.where(length > eps, eps / length, torch.ones_like(length))


def instance(seed: int, rows: int, size: int, dtype: torch.dtype = torch.float64) -> dict:
    """Rows of different scales in boxes of which some are active, infinite or degenerate."""
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    v = (2 * uniform(rows, size) - 1) * 10 ** (2 * uniform(rows, 1) - 1)
    lower, upper = -2 * uniform(rows, size), 2 * uniform(rows, size)
    lower[uniform(rows, size) < 0.15], upper[uniform(rows, size) < 0.15] = -INF, INF
    degenerate = uniform(rows, size) < 0.15
    lower[degenerate], upper[degenerate] = 0.0, 0.0
    lower[uniform(rows, size) < 0.15] = 0.0
    eps = 0.2 + 2 * uniform(rows)
    return {
        "v": v.to(dtype),
        "eps": eps.to(dtype),
        "lower": lower.to(dtype),
        "upper": upper.to(dtype),
    }


# ------------------------------------------------------------------------------- by definition

special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e9, -1e9, 1e-9, -1e-9, 3e9])
entries = st.one_of(special, st.floats(-3, 3, width=32))
lowers = st.one_of(
    st.sampled_from([0.0, -0.5, -1.0, -1e-9, -1e9, -INF]), st.floats(-2, 0, width=32)
)
uppers = lowers.map(lambda bound: -bound)
radii = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e-9, 1e9, INF]), st.floats(0, 4, width=32))


@st.composite
def sets(draw: st.DrawFn) -> dict:
    rows, size = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))

    def table(values: st.SearchStrategy[float]) -> Tensor:
        row = st.lists(values, min_size=size, max_size=size)
        return torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=dtype)

    eps = torch.tensor(draw(st.lists(radii, min_size=rows, max_size=rows)), dtype=dtype)
    return {"v": table(entries), "eps": eps, "lower": table(lowers), "upper": table(uppers)}


@pytest.mark.parametrize("p", NORMS)
@given(sets())
def test_the_result_is_feasible(p: float, case: dict) -> None:
    z = project_lp_box(p=p, **case)
    assert z.dtype == case["v"].dtype
    assert_feasible(z, p, case["eps"], case["lower"], case["upper"])


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_radius_of_the_smallest_number_holds(p: float, dtype: torch.dtype) -> None:
    eps = torch.nextafter(torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype))
    v, half = torch.ones(1, 3, dtype=dtype), torch.full((1, 3), 0.5, dtype=dtype)
    z = project_lp_box(v, p, eps, torch.zeros_like(half), half)
    assert_feasible(z, p, eps, torch.zeros_like(half), half)


@pytest.mark.parametrize("p", NORMS)
@given(sets())
def test_projecting_twice_changes_nothing(p: float, case: dict) -> None:
    z = project_lp_box(p=p, **case)
    assert torch.equal(project_lp_box(p=p, **{**case, "v": z}), z)


@pytest.mark.parametrize("p", CONVEX)
@given(case=sets(), seed=st.integers(0, 2**16))
def test_the_variational_inequality_holds(p: float, case: dict, seed: int) -> None:
    v, eps, lower, upper = (case[k].double() for k in ("v", "eps", "lower", "upper"))
    z = project_lp_box(p=p, **case).double()
    g = torch.Generator().manual_seed(seed)
    # What one unit in the last place of v can do.
    blur = 16 * ULP[case["v"].dtype] * v.abs().amax(dim=1)
    for spread in (10.0, 1.0, 0.1, 1e-3):
        u = z + spread * torch.randn(v.shape, generator=g, dtype=torch.float64)
        other = feasible(u, p, eps.unsqueeze(1), lower, upper)
        inner = ((v - z) * (other - z)).sum(dim=1)
        limit = blur * ((other - z).norm(dim=1) + (v - z).norm(dim=1)) + 1e-30
        assert bool((inner <= limit).all())


@pytest.mark.parametrize("p", CONVEX)
@given(sets())
def test_the_result_agrees_with_bisection_in_80_bits(p: float, case: dict) -> None:
    z = project_lp_box(p=p, **case)
    for b in range(len(z)):
        v, lower, upper = (case[k][b].double().numpy() for k in ("v", "lower", "upper"))
        expected = oracles.project_by_bisection(v, p, case["eps"][b].item(), lower, upper)
        # Moving v by one unit in the last place moves the projection by no more than that.
        tolerance = 8 * ULP[z.dtype] * (np.abs(v).max() + np.abs(expected).max())
        assert np.abs(z[b].double().numpy() - expected).max() <= tolerance


@pytest.mark.parametrize("p", CONVEX)
def test_distances_never_grow(p: float) -> None:
    a, b = instance(1, 200, 7), instance(2, 200, 7)
    near = a["v"] + 1e-3 * b["v"]
    for other in (b["v"], near):
        first = project_lp_box(a["v"], p, a["eps"], a["lower"], a["upper"])
        second = project_lp_box(other, p, a["eps"], a["lower"], a["upper"])
        before, after = (a["v"] - other).norm(dim=1), (first - second).norm(dim=1)
        assert bool((after <= before * (1 + 1e-12)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", NORMS)
def test_rows_inside_the_set_come_back_bit_for_bit(p: float, dtype: torch.dtype) -> None:
    case = instance(3, 100, 9, dtype)
    eps = torch.full((100,), 4.0 if p == 0 else 1.0, dtype=dtype)
    inside = project_lp_box(case["v"] / 10, p, eps, case["lower"], case["upper"])
    inside[::2] *= 0.5
    # Rows outside are between them and must not disturb them.
    mixed = torch.stack([inside, 100 * case["v"]], dim=1).flatten(0, 1)
    lower, upper = (case[k].repeat_interleave(2, dim=0) for k in ("lower", "upper"))
    again = project_lp_box(mixed, p, eps.repeat_interleave(2), lower, upper)
    assert torch.equal(again[::2], inside)
    assert not torch.equal(again[1::2], mixed[1::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_on_the_boundary_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    boundary = {
        0: [[0.3, 0.0, -2.0, 0.0]],
        1: [[0.5, -0.25, 0.25, 0.0]],
        2: [[0.6, -0.8, 0.0, 0.0]],
        INF: [[1.0, -1.0, 0.2, 0.0]],
    }
    for p, point in boundary.items():
        eps = 2 if p == 0 else 1.0
        v = torch.tensor(point, dtype=dtype)
        assert torch.equal(project_lp_box(v, p, eps, -INF, INF), v)
        box = v.clamp_max(0), v.clamp_min(0)
        assert torch.equal(project_lp_box(v, p, eps, *box), v)
        assert torch.equal(project_lp_box(2 * v, p, eps, *box), v)


@pytest.mark.parametrize("p", NORMS)
def test_a_row_alone_equals_the_row_in_a_batch(p: float) -> None:
    case = instance(4, 40, 11)
    eps = case["eps"] * (3 if p == 0 else 1)
    together = project_lp_box(case["v"], p, eps, case["lower"], case["upper"])
    for b in range(40):
        row = slice(b, b + 1)
        alone = project_lp_box(case["v"][row], p, eps[row], case["lower"][row], case["upper"][row])
        torch.testing.assert_close(alone[0], together[b], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("p", NORMS)
def test_permuting_entries_and_flipping_signs_with_the_box_permutes_and_flips(p: float) -> None:
    case = instance(5, 30, 8)
    eps = case["eps"] * (3 if p == 0 else 1)
    z = project_lp_box(case["v"], p, eps, case["lower"], case["upper"])
    g = torch.Generator().manual_seed(0)
    order = torch.randperm(8, generator=g)
    permuted = [case[k][:, order] for k in ("v", "lower", "upper")]
    moved = project_lp_box(permuted[0], p, eps, *permuted[1:])
    torch.testing.assert_close(moved, z[:, order], rtol=1e-12, atol=1e-12)
    flip = torch.rand(8, generator=g) < 0.5
    lower, upper = (
        torch.where(flip, -case[a], case[b]) for a, b in (("upper", "lower"), ("lower", "upper"))
    )
    sign = torch.where(flip, -1.0, 1.0).double()
    flipped = project_lp_box(sign * case["v"], p, eps, lower, upper)
    torch.testing.assert_close(flipped, sign * z, rtol=1e-12, atol=1e-12)


# -------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("p", NORMS)
def test_an_infinite_radius_leaves_the_box(p: float) -> None:
    case = instance(6, 20, 5)
    expected = torch.minimum(torch.maximum(case["v"], case["lower"]), case["upper"])
    assert torch.equal(project_lp_box(case["v"], p, INF, case["lower"], case["upper"]), expected)


@pytest.mark.parametrize("p", NORMS)
def test_radius_zero_gives_zero(p: float) -> None:
    case = instance(7, 20, 5)
    z = project_lp_box(case["v"], p, 0.0, case["lower"], case["upper"])
    assert torch.equal(z, torch.zeros_like(z))


def test_an_infinite_box_leaves_the_plain_ball() -> None:
    v = torch.tensor([[3.0, -4.0, 0.0], [0.3, 0.4, 0.0]], dtype=torch.float64)
    l2 = project_lp_box(v, 2, 1.0, -INF, INF)
    torch.testing.assert_close(l2, torch.tensor([[0.6, -0.8, 0.0], [0.3, 0.4, 0.0]]).double())
    l1 = project_lp_box(v, 1, 2.0, -INF, INF)  # lam = 2.5
    torch.testing.assert_close(l1, torch.tensor([[0.5, -1.5, 0.0], [0.3, 0.4, 0.0]]).double())
    linf = project_lp_box(v, INF, 0.35, -INF, INF)
    torch.testing.assert_close(linf, torch.tensor([[0.35, -0.35, 0.0], [0.3, 0.35, 0.0]]).double())


def test_a_box_that_cuts_the_ball_moves_the_multiplier() -> None:
    # l1: entry 0 stops at 0.5, the other two share 1.0 with lam = 1.5; l2: sqrt(1 - 0.36) is left.
    l1 = project_lp_box(torch.tensor([[9.0, 2.0, -2.0]]), 1, 1.5, -1.0, torch.tensor([0.5, 1, 1]))
    torch.testing.assert_close(l1, torch.tensor([[0.5, 0.5, -0.5]]))
    l2 = project_lp_box(torch.tensor([[9.0, -2.0]]), 2, 1.0, -1.0, torch.tensor([0.6, 1.0]))
    torch.testing.assert_close(l2, torch.tensor([[0.6, -0.8]]))


def test_in_one_dimension_all_norms_agree() -> None:
    case = instance(8, 50, 1)
    results = [
        project_lp_box(case["v"], p, case["eps"], case["lower"], case["upper"]) for p in CONVEX
    ]
    for first, second in pairwise(results):
        torch.testing.assert_close(first, second, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("p", NORMS)
def test_ties_and_zeros_are_shared_equally_or_kept_in_number(p: float) -> None:
    v = torch.tensor([[2.0] * 6, [0.0] * 6, [2.0, -2.0, 0.0, 0.0, 2.0, 0.0]])
    z = project_lp_box(v, p, 2.0, -INF, INF)
    assert_feasible(z, p, 2.0, v.new_tensor(-INF), v.new_tensor(INF))
    assert torch.equal(z[1], v[1])
    if p in (1, 2):
        assert z[0].unique().numel() == 1
        torch.testing.assert_close(z[2].abs() > 0, v[2] != 0)
    if p == 0:
        assert (z[0] == 2).sum() == 2
        assert (z[2] != 0).sum() == 2


def test_no_rows_give_no_rows() -> None:
    for p in NORMS:
        assert project_lp_box(torch.zeros(0, 3), p, 1.0, -1.0, 1.0).shape == (0, 3)


def test_one_radius_per_row_is_used_row_by_row() -> None:
    v = torch.full((3, 4), 2.0, dtype=torch.float64)
    eps = torch.tensor([0.0, 1.0, 100.0], dtype=torch.float64)
    for p, length in ((1, 0.25), (2, 0.5), (INF, 1.0)):
        z = project_lp_box(v, p, eps, -INF, INF)
        expected = torch.tensor([0.0, length, 2.0]).double()
        torch.testing.assert_close(z, expected[:, None].expand(3, 4))
    assert (project_lp_box(v, 0, eps, -INF, INF) != 0).sum(dim=1).tolist() == [0, 1, 4]


# ----------------------------------------------------------------------- against other solvers


@pytest.mark.parametrize("p", CONVEX)
def test_the_result_agrees_with_a_convex_solver(p: float) -> None:
    case = instance(9, 14, 10)
    z = project_lp_box(case["v"], p, case["eps"], case["lower"], case["upper"]).numpy()
    for b in range(14):
        v, lower, upper = (case[k][b].numpy() for k in ("v", "lower", "upper"))
        expected = oracles.project_by_cvxpy(v, p, case["eps"][b].item(), lower, upper)
        np.testing.assert_allclose(z[b], expected, rtol=0, atol=1e-6 * max(1, np.abs(v).max()))


@given(
    v=st.lists(st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 0.7]), min_size=1, max_size=7),
    count=st.floats(0, 8),
    bounds=st.lists(
        st.sampled_from([(0.0, 0.0), (-0.5, 0.5), (-INF, INF), (0.0, 1.0), (-1.0, 0.0)]),
        min_size=7,
        max_size=7,
    ),
)
def test_l0_is_as_near_as_the_best_of_all_supports(
    v: list[float], count: float, bounds: list[tuple[float, float]]
) -> None:
    lower, upper = (np.array([bound[i] for bound in bounds[: len(v)]]) for i in (0, 1))
    rows = torch.tensor([v], dtype=torch.float64)
    z = project_lp_box(rows, 0, count, torch.from_numpy(lower), torch.from_numpy(upper))
    assert_feasible(z, 0, count, torch.from_numpy(lower), torch.from_numpy(upper))
    expected = oracles.smallest_l0_distance(rows.numpy(), int(count), lower, upper)
    assert ((z - rows) ** 2).sum().item() == pytest.approx(expected, abs=1e-12)


def test_pixels_are_kept_or_dropped_whole_and_as_well_as_possible() -> None:
    g = torch.Generator().manual_seed(0)
    delta = torch.randn(30, 3, 2, 3, generator=g, dtype=torch.float64)
    delta[:5, 1:] = 0.0
    delta[5:10] = delta[5:10].sign()
    lower = -torch.rand(30, 3, 2, 3, generator=g, dtype=torch.float64)
    upper = 1 + lower
    for count in (0, 1, 2, 5, 6, 9):
        z = LpBall(0, count, unit="pixel").project(delta, lower, upper)
        assert bool(((z >= lower) & (z <= upper)).all())
        assert bool(((z != 0).any(dim=1).flatten(1).sum(dim=1) <= count).all())
        for b in range(30):
            arrays = (t[b].flatten(1).numpy() for t in (delta, lower, upper))
            v, low, high = arrays
            expected = oracles.smallest_l0_distance(v, count, low, high)
            assert ((z[b] - delta[b]) ** 2).sum().item() == pytest.approx(expected, abs=1e-12)


# -------------------------------------------------------------------- precision, size, hardness


@pytest.mark.parametrize("size", [3072, 150528])
@pytest.mark.parametrize("p", NORMS)
def test_images_in_float32_end_inside_and_near_the_exact_point(p: float, size: int) -> None:
    g = torch.Generator().manual_seed(size)
    x = torch.rand(4, size, generator=g)
    v = torch.randn(4, size, generator=g) * torch.tensor([[0.01], [0.1], [1.0], [30.0]])
    eps = {0: 50, 1: 12.0, 2: 2.0, INF: 0.03}[p]
    z = project_lp_box(v, p, eps, -x, 1 - x)
    assert_feasible(z, p, eps, -x, 1 - x)
    exact = project_lp_box(v.double(), p, eps, -x.double(), (1 - x).double())
    torch.testing.assert_close(z.double(), exact, rtol=0, atol=2e-5)
    assert bool((norm(z, p) >= norm(exact, p) * (1 - 3e-6)).all())


def geometric(base: float, size: int) -> Tensor:
    return base ** -torch.arange(size, dtype=torch.float64)


HARD = {
    "powers of two": geometric(2.0, 40),
    "powers of ten": geometric(10.0, 30),
    "powers of 1.1": geometric(1.1, 200),
    "just below one": 1 - geometric(2.0, 50),
    "slowly below one": 1 - geometric(1.3, 90),
    "two clusters": torch.cat([1 + 1e-3 * geometric(1.5, 40), 1e-3 * geometric(1.5, 40)]),
    "staircase": torch.arange(1, 65).double().repeat_interleave(2),
    "one giant": torch.cat([torch.tensor([1e12]), geometric(1.2, 50)]).double(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("p", [1, 2])
def test_inputs_made_to_slow_newton_down_are_still_solved(
    p: float, name: str, dtype: torch.dtype
) -> None:
    base = HARD[name]
    g = torch.Generator().manual_seed(1)
    boxes = [
        torch.full_like(base, INF),
        base / 2,
        base.flip(0) / 3,
        geometric(1.4, len(base)),
        torch.rand(len(base), generator=g, dtype=torch.float64) ** 8,
    ]
    cap = torch.stack([box for box in boxes for _ in range(5)]).to(dtype)
    v = base.to(dtype).expand_as(cap)
    total = norm(torch.minimum(v, cap), p)
    eps = (total * torch.tensor([0.999, 0.5, 1e-2, 1e-4, 1e-7]).double().repeat(5)).to(dtype)
    z = project_lp_box(v, p, eps, -cap, cap)
    assert_feasible(z, p, eps, -cap, cap)
    for b in range(len(v)):
        bound = cap[b].double().numpy()
        values = v[b].double().numpy()
        expected = oracles.project_by_bisection(values, p, eps[b].item(), -bound, bound)
        error = np.linalg.norm((z[b].double().numpy() - expected).astype(float))
        blur = 4 * ULP[dtype] * float(np.linalg.norm(values))
        assert error <= blur + 1e-6 * eps[b].item()


def test_many_ties_at_the_threshold_do_not_stop_the_l1_iteration_early() -> None:
    # lam = 1 + d / 2 is just beyond 150,000 entries equal to one: z = (2 - d/2, 1 - d/2, 0, ...).
    d = 0.006
    v = torch.cat([torch.tensor([3.0, 2.0]), torch.ones(150_000)]).unsqueeze(0)
    z = project_lp_box(v, 1, 3 - d, -INF, INF)
    torch.testing.assert_close(
        z[0, :3], torch.tensor([2 - d / 2, 1 - d / 2, 0.0]), atol=2e-6, rtol=0
    )


def test_entries_far_larger_than_the_radius_share_it_exactly() -> None:
    # Floats next to 1e9 are 64 apart, yet the threshold 1e9 - 0.1 has to be met.
    z = project_lp_box(torch.full((1, 10), 1e9), 1, 1.0, -INF, INF)
    torch.testing.assert_close(z, torch.full((1, 10), 0.1), rtol=1e-6, atol=0)
    # Here the threshold, 3.5 steps of 2^-10 below 1e4, lies between two floats.
    unit = 2.0**-10
    z = project_lp_box(torch.tensor([[1e4, 1e4 - 2 * unit]]), 1, 5 * unit, -INF, INF)
    torch.testing.assert_close(z, torch.tensor([[3.5 * unit, 1.5 * unit]]), rtol=1e-6, atol=0)
    z = project_lp_box(torch.full((1, 25), -1e9), 2, 1.0, -INF, INF)
    torch.testing.assert_close(z, torch.full((1, 25), -0.2), rtol=1e-6, atol=0)


def test_l2_survives_ranges_whose_squares_underflow() -> None:
    z = project_lp_box(torch.tensor([[1e25, 1e25]]), 2, 1.0, -1.0, torch.tensor([0.1, 1.0]))
    torch.testing.assert_close(z, torch.tensor([[0.1, 0.99**0.5]]))
    z = project_lp_box(torch.tensor([[1e9, 1.0]]), 2, 1e-9, -1.0, torch.tensor([1e-10, 1.0]))
    torch.testing.assert_close(z * 1e9, torch.tensor([[0.1, 0.99**0.5]]))


def test_l0_compares_entries_whose_squares_overflow_or_underflow() -> None:
    for scale in (1e25, 1e-25):
        v = torch.tensor([[1.0, 3.0, -2.0]]) * scale
        z = project_lp_box(v, 0, 1, -INF, INF)
        assert torch.equal(z, v * torch.tensor([[0.0, 1.0, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", NORMS)
def test_half_precisions_stay_strictly_inside(p: float, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    v = torch.randn(5, 4000, generator=g).to(dtype)
    upper = torch.rand(5, 4000, generator=g)
    for eps in (0.2, 1.7, 259, 2051):
        z = project_lp_box(v, p, eps, -upper, upper)
        assert z.dtype == dtype
        assert bool((norm(z, p) <= eps).all())
        assert bool((z.float().abs() <= upper).all())
        exact = project_lp_box(v.double(), p, eps, -upper.double(), upper.double())
        coarse = torch.finfo(dtype).eps
        torch.testing.assert_close(z.double(), exact, rtol=2 * coarse, atol=coarse)
        assert torch.equal(project_lp_box(z, p, eps, -upper, upper), z)


def test_pixels_are_counted_exactly_in_half_precision() -> None:
    delta = torch.randn(1, 3, 20, 20, generator=torch.Generator().manual_seed(0)).bfloat16()
    z = LpBall(0, 259, unit="pixel").project(delta, torch.tensor(-1.0), torch.tensor(1.0))
    assert z.dtype == torch.bfloat16
    assert (z != 0).any(dim=1).sum() == 259


def test_inputs_are_not_modified_and_no_graph_is_kept() -> None:
    for p in NORMS:
        case = instance(10, 5, 6)
        copies = {name: value.clone() for name, value in case.items()}
        z = project_lp_box(p=p, **{**case, "v": case["v"].requires_grad_()})
        assert not z.requires_grad
        for name, value in copies.items():
            assert torch.equal(case[name].detach(), value)


def test_strided_and_expanded_inputs_give_the_same_result() -> None:
    case = instance(11, 6, 9)
    for p in NORMS:
        plain = project_lp_box(p=p, **case)
        strided = {k: case[k].T.contiguous().T for k in ("v", "lower", "upper")}
        again = project_lp_box(p=p, eps=case["eps"], **strided)
        torch.testing.assert_close(again, plain, rtol=1e-14, atol=1e-15)
        one = project_lp_box(case["v"], p, 1.0, case["lower"][:1], case["upper"][0])
        expanded = (case[k][:1].expand(6, 9) for k in ("lower", "upper"))
        torch.testing.assert_close(one, project_lp_box(case["v"], p, 1.0, *expanded))


def test_no_value_is_read_on_the_host_inside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # On an accelerator every bool(tensor) is a round trip: at most one per eight passes is allowed.
    asked: list[int] = []
    monkeypatch.setattr(
        "saddlepoint.projections.solvers._all_on_host",
        lambda done, index: asked.append(index) and False,
    )
    case = instance(12, 4, 5)

    def refuse(self: Tensor, *args: object) -> None:
        raise AssertionError("a value was read on the host")

    with monkeypatch.context() as patch:
        for name in ("__bool__", "item", "tolist", "cpu", "numpy"):
            patch.setattr(Tensor, name, refuse)
        for p in NORMS:
            onto_ball(case["v"], p, case["eps"][:, None], case["lower"], case["upper"])
    assert asked


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1, 2])
def test_an_accelerator_that_is_not_asked_finds_the_same_points(
    p: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(done: Tensor, index: int) -> bool:
        raise AssertionError("it was asked")

    for seed in range(20):
        case = instance(seed, 20, 50, dtype)
        exact = project_lp_box(p=p, **case)
        ball = LpBall(p, case["eps"])
        with monkeypatch.context() as patch:
            patch.setattr(solvers, "_PASSES", {})  # where a question costs nothing
            patch.setattr(solvers, "_all_on_host", refuse)
            brief = ball._project(case["v"], case["lower"], case["upper"], brief=True)
        error = 20 * torch.finfo(dtype).eps
        torch.testing.assert_close(brief, exact, rtol=error, atol=error)


@pytest.mark.parametrize("passes", [1, 2, 4])
@pytest.mark.parametrize("p", [1, 2])
def test_too_few_passes_end_in_ball_and_box(
    p: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers, "_PASSES", {})
    monkeypatch.setattr(solvers, "_BRIEF", passes)
    for seed in range(20):
        case = instance(seed, 20, 50, torch.float32)
        ball = LpBall(p, case["eps"])
        brief = ball._project(case["v"], case["lower"], case["upper"], brief=True)
        assert bool(((case["lower"] <= brief) & (brief <= case["upper"])).all())
        assert bool((ball.norm(brief) <= case["eps"].double() * (1 + 1e-6)).all())


def test_a_projection_that_is_not_brief_is_exact_on_an_accelerator_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries of very different sizes far outside the ball take Newton many more than sixteen passes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(8, 784, generator=generator)
    v = torch.randn(8, 784, generator=generator).exp() * 1e3
    ball = LpBall(1, 12.0)
    exact = ball.project(v, -x, 1 - x)
    monkeypatch.setattr(solvers, "_PASSES", {})
    torch.testing.assert_close(ball.project(v, -x, 1 - x), exact)
    torch.testing.assert_close(ball._project(v, -x, 1 - x), exact)
    assert not torch.allclose(ball._project(v, -x, 1 - x, brief=True), exact, atol=0.1)


# ------------------------------------------------------------------------------------- LpBall


@pytest.mark.parametrize("p", NORMS)
def test_the_ball_projects_images_like_their_flattened_rows(p: float) -> None:
    case = instance(13, 4, 12)
    eps = case["eps"] * (3 if p == 0 else 1)
    shape = (4, 3, 2, 2)
    ball = LpBall(p, eps)
    images = [case[k].reshape(shape) for k in ("v", "lower", "upper")]
    flat = project_lp_box(case["v"], p, eps, case["lower"], case["upper"])
    assert torch.equal(ball.project(*images), flat.reshape(shape))
    torch.testing.assert_close(ball.norm(flat.reshape(shape)), norm(flat, p))
    rows = torch.tensor([3, 1])
    part = ball.take(rows)
    assert torch.equal(part.project(*(t[rows] for t in images)), flat[rows].reshape(2, 3, 2, 2))
    scalar = LpBall(p, 1.5)
    assert scalar.take(rows) is scalar


def test_the_ball_accepts_a_box_of_one_channel_or_one_number() -> None:
    delta = torch.full((2, 3, 2, 2), 5.0)
    z = LpBall(INF, 1.0).project(
        delta, torch.tensor(-1.0), torch.tensor([0.1, 0.2, 3.0])[:, None, None]
    )
    torch.testing.assert_close(z[:, :, 0, 0], torch.tensor([[0.1, 0.2, 1.0]] * 2))


def test_the_norm_counts_pixels_once() -> None:
    delta = torch.zeros(1, 3, 2, 2)
    delta[0, :, 0, 0], delta[0, 1, 1, 1] = 0.5, -0.5
    assert LpBall(0, 1, unit="pixel").norm(delta).item() == 2
    assert LpBall(0, 1).norm(delta).item() == 4


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"v": torch.tensor([[math.nan, 0.0]])}, "`v` must be finite"),
        ({"v": torch.tensor([[INF, 0.0]])}, "`v` must be finite"),
        ({"v": torch.zeros(2)}, r"shape \(B, D\)"),
        ({"v": torch.zeros(1, 2, 2)}, r"shape \(B, D\)"),
        ({"v": torch.zeros(2, 0)}, r"shape \(B, D\)"),
        ({"p": 3}, "`p` must be"),
        ({"p": math.nan}, "`p` must be"),
        ({"eps": -0.1}, "`eps` must be >= 0"),
        ({"eps": math.nan}, "`eps` must be >= 0"),
        ({"eps": torch.tensor([-1.0])}, "`eps` must be >= 0"),
        ({"eps": torch.tensor([math.nan])}, "`eps` must be >= 0"),
        ({"eps": torch.ones(2)}, "`eps` must be a number or have shape"),
        ({"eps": torch.ones(1, 1)}, "`eps` must be a number or have shape"),
        ({"lower": 0.1}, "`lower` does not"),
        ({"upper": -0.1}, "`upper` does not"),
        ({"lower": 2.0, "upper": -2.0}, "lower <= 0 <= upper"),
        ({"lower": math.nan}, "`lower` does not"),
        ({"upper": torch.tensor([math.nan, 1.0])}, "`upper` does not"),
        ({"lower": torch.zeros(3)}, "`lower` must be broadcastable"),
        ({"upper": torch.zeros(5, 2)}, "`upper` must be broadcastable"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change: dict, match: str) -> None:
    good = {"v": torch.ones(1, 2), "p": 2, "eps": 1.0, "lower": -1.0, "upper": 1.0}
    project_lp_box(**good)
    with pytest.raises(ValueError, match=match):
        project_lp_box(**{**good, **change})
    if "p" in change or isinstance(change.get("eps"), float):
        with pytest.raises(ValueError, match=match):
            LpBall(change.get("p", 2), change.get("eps", 1.0))


def test_wrong_balls_and_deltas_are_refused_by_name() -> None:
    box = torch.tensor(-1.0), torch.tensor(1.0)
    with pytest.raises(ValueError, match="unit"):
        LpBall(0, 1, unit="colour")
    with pytest.raises(ValueError, match="needs p = 0"):
        LpBall(2, 1.0, unit="pixel")
    with pytest.raises(ValueError, match="shape"):
        LpBall(2, torch.ones(2, 2))
    with pytest.raises(ValueError, match="`delta` must have shape"):
        LpBall(2, 1.0).project(torch.zeros(3), *box)
    with pytest.raises(ValueError, match="must be finite"):
        LpBall(2, 1.0).project(torch.full((1, 3), math.nan), *box)
    with pytest.raises(ValueError, match=r"\(B,\) = \(3,\)"):
        LpBall(2, torch.ones(2)).project(torch.zeros(3, 2), *box)
    with pytest.raises(TypeError, match="floating-point"):
        project_lp_box(torch.ones(1, 2, dtype=torch.long), 2, 1.0, -1, 1)


# ------------------------------------------------------------------------------------- simplex

scores = st.one_of(st.floats(-3, 3, width=32), st.sampled_from([0.0, 1.0, 1e9, -1e9, 1e-9, 0.5]))


@given(st.lists(scores, min_size=1, max_size=8), st.sampled_from(list(SLACK)))
def test_the_simplex_projection_satisfies_its_optimality_conditions(
    values: list[float], dtype: torch.dtype
) -> None:
    v = torch.tensor(values, dtype=dtype)
    w = project_simplex(v)
    assert w.dtype == dtype
    assert bool((w >= 0).all())
    assert abs(w.double().sum().item() - 1) <= 4 * ULP[dtype]
    # w = max(v - mu, 0): one mu on the support, and nothing outside above it.
    gap = v.double() - w.double()
    mu = gap[w > 0]
    tolerance = 4 * ULP[dtype] * (1 + v.double().abs().max())
    assert bool((mu.max() - mu.min() <= tolerance) & (v[w == 0] <= mu.min() + tolerance).all())
    torch.testing.assert_close(project_simplex(w), w, rtol=2 * ULP[dtype], atol=0)


def test_points_on_the_simplex_come_back_bit_for_bit() -> None:
    for dtype in SLACK:
        w = torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7]], dtype=dtype)
        assert torch.equal(project_simplex(w), w)


def test_the_simplex_projection_agrees_with_a_convex_solver_and_treats_rows_alone() -> None:
    g = torch.Generator().manual_seed(0)
    v = torch.randn(3, 4, 6, generator=g, dtype=torch.float64)
    v[0] *= 5
    w = project_simplex(v)
    for i in range(3):
        for j in range(4):
            expected = oracles.project_simplex_by_cvxpy(v[i, j].numpy())
            np.testing.assert_allclose(w[i, j].numpy(), expected, atol=1e-6)
            torch.testing.assert_close(w[i, j], oracles.project_simplex_by_bisection(v[i, j]))
            assert torch.equal(project_simplex(v[i, j]), w[i, j])


def test_huge_scores_still_give_weights_that_sum_to_one() -> None:
    v = torch.tensor([[1e9, 1e9, 0.0], [1e9, -1e9, 3e8], [3e38, -3e38, 3e38]])
    expected = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    assert torch.equal(project_simplex(v), expected)


@settings(max_examples=20)
@given(st.integers(2, 300))
def test_half_precision_weights_sum_to_one_up_to_rounding(size: int) -> None:
    v = torch.randn(2, size, generator=torch.Generator().manual_seed(size)) / size
    exact = project_simplex(v.bfloat16().double())
    w = project_simplex(v.bfloat16())
    assert w.dtype == torch.bfloat16
    torch.testing.assert_close(w.double(), exact, rtol=2**-7, atol=2**-9 / size)


def test_wrong_simplex_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="last axis"):
        project_simplex(torch.zeros(3, 0))
    with pytest.raises(ValueError, match="last axis"):
        project_simplex(torch.tensor(1.0))
    with pytest.raises(ValueError, match="finite"):
        project_simplex(torch.tensor([math.nan, 1.0]))
    with pytest.raises(ValueError, match="finite"):
        project_simplex(torch.tensor([INF, 1.0]))
    with pytest.raises(TypeError, match="floating-point"):
        project_simplex(torch.tensor([1, 2]))


def test_rows_that_are_not_finite_end_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Training looks at gradients when its steps are over: a pass for every entry would take hours by then.
    passes: list[int] = []
    as_it_is = solvers._all_on_host

    def counted(done: torch.Tensor, index: int) -> bool:
        passes.append(index)
        return as_it_is(done, index)

    monkeypatch.setattr(solvers, "_all_on_host", counted)
    v, one = torch.full((2, 3000), 0.5), torch.ones(1, 3000)
    v[1, 7] = math.nan
    for p in (1, 2):
        passes.clear()
        LpBall(p, 1.0)._project(v, -one, one)
        assert 0 < len(passes) < 60
