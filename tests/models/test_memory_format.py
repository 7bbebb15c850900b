"""Networks in the memory layout they are faster in are the same networks."""

from __future__ import annotations

import copy

import pytest
import torch

import saddlepoint as sp
from saddlepoint.runs import hash_model


@pytest.mark.parametrize("name", ["mnist-c", "cifar10-d"])
def test_channels_last_keeps_values_and_the_hash(name: str) -> None:
    network = sp.models.channels_last(sp.models.load(name))
    filters = [p for p in network.parameters() if p.dim() == 4]
    assert filters
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in filters)
    plain = copy.deepcopy(network).to(memory_format=torch.contiguous_format)
    assert any(not p.is_contiguous() for p in filters)
    assert all(p.is_contiguous() for p in plain.parameters())
    assert hash_model(network) == hash_model(plain)
    x, _ = sp.data.sample(name.partition("-")[0], 8)
    with torch.no_grad():
        torch.testing.assert_close(network(x), plain(x), rtol=1e-5, atol=1e-4)


def test_only_a_network_whose_convolutions_all_have_a_stride_stays_as_it_is() -> None:
    left = []
    for name in sp.models.ARCHITECTURES:
        network = sp.models.build(name, channels=3, size=32)
        if name.startswith("A"):  # no convolutions
            continue
        filters = [p for p in sp.models.channels_last(network).parameters() if p.dim() == 4]
        last = [p.is_contiguous(memory_format=torch.channels_last) for p in filters]
        plain = [p.is_contiguous() for p in filters]
        assert all(last) or all(plain)
        if all(plain):
            left.append(name)
    assert left == ["mnist_cnn_small"]
    shipped = sp.models.channels_last(sp.models.load("mnist-ampgd"))
    assert all(p.is_contiguous() for p in shipped.parameters())
