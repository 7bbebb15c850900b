"""What training does on GPUs, as far as a CPU can tell: with stand-ins for the calls that need one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from saddlepoint import training
from saddlepoint.loaders import sent
from saddlepoint.training import session
from small_training import network

SECOND = torch.device("cuda", 1)


def test_the_generator_of_the_own_gpu_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # The default is the current device, which need not be the one that the model is on.
    drawn = {0: torch.tensor([10], dtype=torch.uint8), 1: torch.tensor([11], dtype=torch.uint8)}

    def number(device: Any = "cuda") -> int:
        return torch.device(device).index or 0

    def take_up(state: Tensor, device: Any = "cuda") -> None:
        drawn[number(device)] = state

    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device="cuda": drawn[number(device)])
    monkeypatch.setattr(torch.cuda, "set_rng_state", take_up)
    saved = session._random_state(SECOND)
    drawn[1] = torch.tensor([99], dtype=torch.uint8)
    session._set_random_state(saved, SECOND)
    assert {key: int(state) for key, state in drawn.items()} == {0: 10, 1: 11}
    session._set_random_state(saved, torch.device("cpu"))  # what a GPU began may go on without one
    session._set_random_state({"cpu": saved["cpu"]}, SECOND)  # and the other way round


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pinned copies and copies to a GPU, which are not made."""
    made: list[Any] = []
    as_it_is = Tensor.to

    def pinned(tensor: Tensor) -> Tensor:
        made.append("pinned")
        return tensor

    def to(tensor: Tensor, *where: Any, **how: Any) -> Tensor:
        if where and isinstance(where[0], torch.device):
            made.append((str(where[0]), how.get("non_blocking", False)))
            return tensor
        return as_it_is(tensor, *where, **how)

    monkeypatch.setattr(Tensor, "pin_memory", pinned)
    monkeypatch.setattr(Tensor, "to", to)
    return made


def test_nobody_waits_for_a_copy_to_a_gpu(copies: list[Any]) -> None:
    sent(torch.zeros(2), SECOND)
    assert copies == ["pinned", ("cuda:1", True)]


def test_a_copy_within_the_host_is_not_pinned(copies: list[Any]) -> None:
    sent(torch.zeros(2), torch.device("cpu"))
    sent(torch.zeros(2, device="meta"), SECOND)
    assert "pinned" not in copies


@pytest.mark.parametrize("validated", [False, True])
def test_images_and_labels_of_training_are_sent(
    validated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    went: list[int] = []

    def noted(tensor: Tensor, device: torch.device) -> Tensor:
        went.append(len(tensor))
        return sent(tensor, device)

    monkeypatch.setattr(session, "sent", noted)
    monkeypatch.setattr(training.validation, "sent", noted)
    x, y = torch.rand(5, 1, 28, 28), torch.arange(5) % 3
    if validated:
        training.validate(network(), x, y, {})
    else:
        training.train(network(), [(x, y)], epochs=1)
    assert went == [5, 5]
