"""Training by several processes: the gradient of the whole batch, the result of one process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from children import Nursery
from saddlepoint import LpBall, ampgd_step, data, training
from saddlepoint.training import Batches, Recipe
from saddlepoint.training.distributed import World

THREATS = {"linf": LpBall(math.inf, 0.1), "l2": LpBall(2, 1.0)}


def double_network() -> nn.Module:
    """Without batch norm and dropout, which by their nature see the rows of one process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
        model = nn.Sequential(*layers)
    # No gradient ever reaches it, so that weight decay must not either.
    model.unused = nn.Parameter(torch.ones(3))
    return model.double()


def work_in_a_process(start: str) -> None:
    """What every process does; 65 images make a last batch of one row."""
    from saddlepoint.cli.cluster import joined

    x, y = data.sample("mnist", limit=65)
    held_x, held_y = (tensor[500:530] for tensor in data.sample("mnist"))
    model = double_network()
    with joined() as rank:
        history = training.train(
            model,
            Batches(x.double(), y, 32, numbered=True),
            THREATS,
            steps=2,
            seed=3,
            validation=(held_x.double(), held_y),
            start=start,
            recipe=Recipe("test", "adamw", 0.002, 2, weight_decay=0.01),
        )
        size = World.current().size
    results = {key: value.clone() for key, value in model.state_dict().items()}
    for index, each in enumerate(history):
        numbers = [*each.stats.values(), *(each.validation or {}).values()]
        results[f"history.{index}"] = torch.tensor(numbers, dtype=torch.float64)
    path = Path(f"{rank} of {size}.safetensors")
    training.checkpoints.write_checkpoint(path, nn.Module(), None, {}, results)


@pytest.mark.parametrize("start", ["random", "warm"])
def test_two_processes_equal_one(nursery: Nursery, tmp_path: Path, start: str) -> None:
    here = str(Path(__file__).parent)
    work = f"import sys; sys.path.insert(0, {here!r})\n"
    work += (
        f"from test_distributed import work_in_a_process\nwork_in_a_process({start!r})\nsys.exit(0)"
    )
    for processes in (1, 2):
        ended = nursery.run(cwd=tmp_path, processes=processes, patch=work)
        assert [each.code for each in ended] == [0] * processes, ended[0].err
    names = ("0 of 1", "0 of 2", "1 of 2")
    alone, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in names)
    for key, value in alone.items():
        torch.testing.assert_close(first[key], value, rtol=0, atol=1e-10)
        assert torch.equal(first[key], second[key])


def test_a_job_of_two_that_is_killed_is_finished_by_one(nursery: Nursery, tmp_path: Path) -> None:
    words = "train --data mnist-sample --model A --method avg --threat linf:0.1 --threat l2:1"
    words += " --limit 200 --held-out 20 --epochs 3 --steps 2"
    words += " --test-images 10 --test-steps 2 --test-restarts 1"
    (whole,) = nursery.run(*words.split(), "--out", "whole", cwd=tmp_path)
    lost = nursery.run(*words.split(), "--out", "lost", cwd=tmp_path, processes=2, die_at=6)
    assert (whole.code, lost[0].code) == (0, -9)
    # It has lost contact, or was told to end first, or was told when it had said so and was about to exit.
    assert lost[1].code in (1, 130) or (lost[1].code == -15 and "lost contact" in lost[1].err)
    assert (tmp_path / "lost" / "checkpoint.safetensors").is_file()
    assert not (tmp_path / "lost" / "model.safetensors").exists()
    (resumed,) = nursery.run(*words.split(), "--out", "lost", "--resume", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    found, expected = (load_file(tmp_path / d / "model.safetensors") for d in ("lost", "whole"))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-4)


def test_shares_of_a_batch() -> None:
    for count in (0, 1, 2, 5, 64):
        parts = [World(rank, 3).rows(count) for rank in range(3)]
        rows = [i for part in parts for i in range(count)[part]]
        assert rows == list(range(count))
        assert max(len(range(count)[p]) for p in parts) <= count // 3 + 1


def test_a_wrapped_model_is_attacked_unwrapped(tmp_path: Path) -> None:
    """DistributedDataParallel in a loop of one's own: its hooks see the update only."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        x, y = data.sample("mnist", limit=16)
        plain = double_network()
        wrapped = DistributedDataParallel(double_network(), find_unused_parameters=True)
        calls = []
        wrapped.register_forward_pre_hook(lambda *_: calls.append("wrapper"))
        for model in (plain, wrapped):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            ampgd_step(model, optimizer, x.double(), y, THREATS, steps=3, iteration=0)
        assert calls == ["wrapper"]
        for a, b in zip(plain.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(a, b)
    finally:
        dist.destroy_process_group()
