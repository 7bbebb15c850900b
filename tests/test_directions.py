"""Step directions: unit length, row by row, and the steepest of their norm."""

from __future__ import annotations

import pytest
import torch

from saddlepoint import directions
from saddlepoint.directions import SparseL1
from saddlepoint.entries import largest

G = torch.tensor([[[3.0, -4.0], [0.0, 12.0]], [[0.5, 0.0], [0.0, -0.5]]])


def test_values_by_hand() -> None:
    assert torch.equal(directions.raw(G), G)
    assert torch.equal(directions.sign(G), G.sign())
    l2 = torch.stack([G[0] / 13, G[1] * 2**0.5])
    torch.testing.assert_close(directions.unit_l2(G), l2)
    torch.testing.assert_close(directions.unit_linf(G), torch.stack([G[0] / 12, G[1] * 2]))
    sparse = torch.tensor([[[0.0, -0.5], [0.0, 0.5]], [[0.5, 0.0], [0.0, -0.5]]])
    assert torch.equal(SparseL1(2)(G), sparse)
    one = torch.zeros(2, 2)
    one[1, 1] = 1.0
    assert torch.equal(SparseL1(1)(G)[0], one)


@pytest.mark.parametrize(
    ("direction", "p"),
    [(directions.sign, torch.inf), (directions.unit_l2, 2), (directions.unit_linf, torch.inf)],
)
def test_every_row_has_unit_length_at_any_scale(direction: directions.Direction, p: float) -> None:
    g = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    scaled = g * torch.tensor([1e-30, 1e-25, 1e-3, 1.0, 1e10, 1e25])[:, None, None]
    step = direction(scaled)
    length = torch.linalg.vector_norm(step.flatten(1), ord=p, dim=1)
    torch.testing.assert_close(length, torch.ones(6))
    for b in range(6):
        torch.testing.assert_close(direction(g[b : b + 1])[0], step[b])


@pytest.mark.parametrize("count", [1, 5, 12, 100])
def test_sparse_steps_have_unit_l1_length_and_few_entries(count: int) -> None:
    g = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1))
    step = SparseL1(count)(g)
    torch.testing.assert_close(step.abs().flatten(1).sum(dim=1), torch.ones(6))
    assert bool(((step != 0).flatten(1).sum(dim=1) == min(count, 12)).all())
    for b in range(6):
        smallest_moved = g[b].abs()[step[b] != 0].min()
        assert bool((g[b].abs()[step[b] == 0] <= smallest_moved).all())
        assert bool((step[b] * g[b] >= 0).all())


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100, 784, 787])
@pytest.mark.parametrize("count", [1, 6, 40])
def test_the_largest_entries_are_those_that_sorting_finds(size: int, count: int) -> None:
    count = min(count, size)
    rows = torch.randn(9, size, generator=torch.Generator().manual_seed(2))
    rows[0] = -rows[0].abs()  # of either sign
    rows[1, : size // 2] = 0.0  # ties
    rows[2] = torch.inf
    place = largest(rows, count)
    every = rows.sort(dim=1, descending=True).values
    assert torch.equal(rows.gather(1, place), every[:, :count])
    assert all(len(set(row.tolist())) == count for row in place)
    for row in range(9):
        assert torch.equal(largest(rows[row : row + 1], count)[0], place[row])


def test_what_is_not_a_number_is_largest() -> None:
    rows = torch.arange(64.0).reshape(1, 64)
    rows[0, 5] = torch.nan
    assert largest(rows, 2).tolist() == [[5, 63]]


def test_zero_gradients_give_zero_steps() -> None:
    zero = torch.zeros(2, 3)
    for direction in (directions.sign, directions.unit_l2, directions.unit_linf, SparseL1(2)):
        assert torch.equal(direction(zero), zero)


def test_a_sparse_step_needs_at_least_one_entry() -> None:
    with pytest.raises(ValueError, match="`count` must be >= 1"):
        SparseL1(0)
