"""Random numbers that belong to a row: a pure function of (seed, row, stream, position).

Batched code that draws from one generator gives a row different numbers in every batch composition. Here
the i-th number of row r in stream s is a hash of (seed, s, r, i), so that a row meets the same random
start and the same random transforms alone, in any batch, in any order, on any device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "CORNER",
    "JUDGE",
    "PROBE",
    "SEARCH",
    "START",
    "normal",
    "seed_of_torch",
    "uniform",
    "uniforms",
]

# Streams are numbered by step. These are out of reach of any step:
JUDGE = 1 << 40  # verdicts, on draws that no attack has seen
START = 1 << 41  # random starts, one stream per restart
PROBE = 1 << 42  # directions along which gradients are estimated, and
CORNER = 1 << 43  # where the squares of an estimate begin
SEARCH = 1 << 44  # random search

_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, rows: Tensor, stream: int, size: int, first: int = 0) -> Tensor:
    """Uniform numbers in [0, 1), one stream per row.

    Args:
        seed: Any integer.
        rows: Row numbers, (B,), int64: who the numbers are for, not where the row is in the batch.
        stream: Which draw (step, restart, purpose).
        size: How many numbers per row.
        first: The position of the first of them.

    Returns:
        (B, size), float32 with 24 random bits, on the device of `rows`.

    Example:
        >>> both = uniform(0, torch.tensor([3, 8]), 0, 2)
        >>> bool((uniform(0, torch.tensor([8]), 0, 2) == both[1]).all())
        True
    """
    return _numbers(rows + _key(seed, stream), size, first)


def uniforms(seed: int, rows: Tensor, streams: Sequence[int], size: int) -> Tensor:
    """What `uniform` gives for several streams, (S, B, size), at once: small draws cost little but their calls.

    Example:
        >>> rows = torch.tensor([3, 8])
        >>> torch.equal(uniforms(0, rows, [5, 1 << 44], 2)[1], uniform(0, rows, 1 << 44, 2))
        True
    """
    keys = torch.tensor([_key(seed, stream) for stream in streams], device=rows.device)
    return _numbers(rows + keys.unsqueeze(1), size)


def normal(seed: int, rows: Tensor, stream: int, size: int) -> Tensor:
    """Standard normal numbers, (B, size), float32, one stream per row (Box-Muller).

    Example:
        >>> normal(0, torch.tensor([5]), 1, 3).shape
        torch.Size([1, 3])
    """
    u = uniform(seed, rows, stream, 2 * size)
    radius = (-2.0 * torch.log1p(-u[:, :size])).sqrt()
    return radius * torch.cos(2.0 * torch.pi * u[:, size:])


def seed_of_torch(number: int) -> int:
    """A seed for a generator of torch, whose CPU takes no notice of all but the lowest 32 bits.

    Numbers that fit into them are as they are; into others the upper bits are mixed.

    Example:
        >>> seed_of_torch(7), seed_of_torch(2**32 + 7) == seed_of_torch(7)
        (7, False)
    """
    return (number ^ _mix_int(number >> 32) ^ _mix_int(0)) & 0xFFFFFFFF


def _key(seed: int, stream: int) -> int:
    return _signed(_mix_int(_mix_int(seed) + stream))


def _numbers(keys: Tensor, size: int, first: int = 0) -> Tensor:
    """Numbers (..., size) of keys (...)."""
    counter = torch.arange(first + 1, first + size + 1, device=keys.device) * _signed(_GOLDEN)
    bits = _mix(_mix(keys).unsqueeze(-1) + counter)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


# The finaliser of splitmix64 (Steele, Lea & Flood, 2014): every output bit depends on every input bit.


def _mix(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def _mix_int(x: int) -> int:
    x = (x + _GOLDEN) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
