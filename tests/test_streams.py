"""Random numbers of a row: a pure function, uniform, independent."""

from __future__ import annotations

import math

import torch

from saddlepoint import streams


def test_a_row_meets_the_same_numbers_in_any_company() -> None:
    rows = torch.tensor([5, 0, 1_000_000, 17])
    for draw in (streams.uniform, streams.normal):
        together = draw(3, rows, 7, 6)
        assert together.shape == (4, 6)
        for i in range(4):
            assert torch.equal(draw(3, rows[i : i + 1], 7, 6)[0], together[i])
        assert torch.equal(draw(3, rows.flip(0), 7, 6), together.flip(0))


def test_a_longer_draw_begins_like_a_shorter_one() -> None:
    rows = torch.arange(3)
    assert torch.equal(streams.uniform(0, rows, 0, 4), streams.uniform(0, rows, 0, 9)[:, :4])


def test_seed_row_and_stream_each_change_everything() -> None:
    base = streams.uniform(0, torch.arange(50), 0, 40)
    others = [
        streams.uniform(1, torch.arange(50), 0, 40),
        streams.uniform(0, torch.arange(50), 1, 40),
        streams.uniform(0, torch.arange(50) + 50, 0, 40),
        streams.uniform(-1, torch.arange(50), 1 << 45, 40),
    ]
    for other in others:
        assert (other == base).float().mean() < 1e-3
    # Neither is it the neighbour's stream shifted by one.
    assert (base[1:, :-1] == base[:-1, 1:]).float().mean() < 1e-3
    assert (others[0][:-1] == base[1:]).float().mean() < 1e-3


def test_numbers_are_uniform_and_uncorrelated() -> None:
    u = streams.uniform(11, torch.arange(400), 2, 250).double()
    assert bool(((u >= 0) & (u < 1)).all())
    count = u.numel()
    bins = torch.histc(u, bins=20, min=0, max=1)
    chi_squared = ((bins - count / 20) ** 2 / (count / 20)).sum().item()
    assert 4 < chi_squared < 50  # 19 degrees of freedom
    for a, b in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:])):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(count)


def test_normal_numbers_have_the_moments_of_a_normal() -> None:
    z = streams.normal(4, torch.arange(400), 9, 250).double()
    assert bool(z.isfinite().all())
    spread = 5 / math.sqrt(z.numel())
    assert abs(z.mean()) < spread
    assert abs(z.var() - 1) < 2 * spread
    assert abs((z**3).mean()) < 4 * spread
    assert abs((z**4).mean() - 3) < 12 * spread


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    streams.normal(0, torch.arange(3), 0, 5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_several_streams_at_once_are_those_one_by_one():
    rows, numbers = torch.tensor([4, 0, 90]), [0, 7, streams.SEARCH + (3 << 32) + 5]
    one_by_one = [streams.uniform(-2, rows, number, 5) for number in numbers]
    assert torch.equal(streams.uniforms(-2, rows, numbers, 5), torch.stack(one_by_one))


def test_numbers_are_on_the_device_of_the_rows() -> None:
    rows = torch.zeros(3, dtype=torch.long, device="meta")
    found = (
        streams.uniform(0, rows, 1, 4),
        streams.uniforms(0, rows, [1, 2], 4),
        streams.normal(0, rows, 1, 4),
    )
    assert [each.device for each in found] == [rows.device] * 3


def test_a_seed_of_torch_is_as_it_is_or_has_the_upper_bits_mixed_in() -> None:
    for number in (0, 1, 4095 * 2**20 + 9, 2**32 - 1):
        assert streams.seed_of_torch(number) == number
    large = {streams.seed_of_torch(upper * 2**32 + 5) for upper in range(1000)}
    assert len(large) == 1000
    assert all(0 <= each < 2**32 for each in large)
    assert 0 <= streams.seed_of_torch(-1) < 2**32
