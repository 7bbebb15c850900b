"""Processes that work together: all of them speak by one backend, which no machine with GPUs has run yet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.distributed as dist

from saddlepoint.cli import cluster

MEETING = import_module("torch.distributed.rendezvous")  # by attribute it is the function


def stand_in(
    monkeypatch: pytest.MonkeyPatch, rank: int, gpus: int, others: dict[int, bool]
) -> list[Any]:
    """This process is `rank` on a machine with so many GPUs; the others have said whether they have one.

    Returns what is then done: devices that are chosen, and backends.
    """
    done: list[Any] = []
    store, size = dist.HashStore(), 1 + len(others)
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}.items():
        monkeypatch.setenv(name, str(value))
    for number, has in others.items():
        store.set(f"gpu of {number}", str(int(has)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: done.append(("device", number)))
    monkeypatch.setattr(MEETING, "rendezvous", lambda *_, **__: iter([(store, rank, size)]))
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **_: done.append(("backend", backend))
    )
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    return done


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_one_backend_for_all_processes_of_a_machine(
    rank: int, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With one GPU for two processes the first would take nccl, the second gloo, and both would wait forever.
    others = {1 - rank: gpus > 1 - rank}
    done = stand_in(monkeypatch, rank, gpus, others)
    with cluster.joined() as number:
        assert number == rank
    wanted = [("device", rank), ("backend", "nccl")] if gpus == 2 else [("backend", "gloo")]
    assert done == wanted


def test_a_machine_without_gpus_decides_for_those_that_have_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = {1: True, 2: False, 3: False}  # two of them on another machine
    done = stand_in(monkeypatch, 0, 2, others)
    with cluster.joined():
        pass
    assert done == [("backend", "gloo")]


@pytest.mark.parametrize("gpus", [(True, True, True), (True, False, True)])
def test_processes_that_meet_hear_each_other(gpus: tuple[bool, ...]) -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=20))

    def heard(rank: int) -> bool:
        return cluster._all_have(store, rank, 3, gpus[rank])

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(heard, range(3))) == 3 * [all(gpus)]
