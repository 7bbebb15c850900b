"""Training with models that compute in bfloat16: parameters and verdicts stay in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.solver import lowering
from saddlepoint.training import (
    Batches,
    train,
)
from saddlepoint.training.checkpoints import read_checkpoint
from saddlepoint.training.session import CHECKPOINT
from small_training import STEPS
from stand_ins import passes_of

THREATS = {"linf": sp.linf(0.1), "l2": sp.l2(0.5)}


def _network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(676, 10),
        )


def _watch(model: nn.Sequential) -> tuple[list[torch.dtype], list[torch.dtype]]:
    """What the last layer computes in, in training mode and in evaluation mode."""
    training: list[torch.dtype] = []
    evaluating: list[torch.dtype] = []
    model[-1].register_forward_hook(
        lambda module, _, output: (training if module.training else evaluating).append(output.dtype)
    )
    return training, evaluating


def test_training_inside_a_users_autocast_is_training() -> None:
    """Autocast would keep the first copy of the parameters in fewer bits until the user's own one ends."""
    x, y = sp.data.sample("mnist", 8)
    states = []
    for around in (False, True):
        model, other = _network().train(), _network(1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
            for number in range(3):
                sp.ampgd_step(
                    model, optimizer, x, y, THREATS, iteration=number, steps=1, precision="bfloat16"
                )
            train(other, [(x, y)] * 2, THREATS, epochs=1, steps=1, precision="bfloat16")
            model.eval()
            answers = model(x)  # the user's own question is about the parameters as they are now
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(answers if around else model(x), model(x))
        states.append([*model.state_dict().values(), *other.state_dict().values()])
    assert all(torch.equal(one, two) for one, two in zip(*states, strict=True))


@pytest.mark.parametrize("step", STEPS)
def test_steps_compute_in_bfloat16_and_keep_parameters_in_float32(step: Callable[..., Any]) -> None:
    x, y = sp.data.sample("mnist", 8)
    found: dict[str, dict[str, Tensor]] = {}
    for precision in ("float32", "bfloat16"):
        model = _network().train()
        inside, attacked = _watch(model)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        step(model, optimizer, x, y, THREATS, iteration=0, steps=2, precision=precision)
        assert set(inside) == {getattr(torch, precision)}
        assert set(attacked) <= {getattr(torch, precision)}
        found[precision] = model.state_dict()
        state = [v for s in optimizer.state.values() for v in s.values()]
        gradients = [p.grad for p in model.parameters()]
        for tensor in (*model.state_dict().values(), *state, *gradients):
            assert not tensor.is_floating_point() or tensor.dtype == torch.float32
        assert model.training
    for name, value in found["float32"].items():
        if name.startswith("4."):
            assert not torch.equal(value, found["bfloat16"][name])
        torch.testing.assert_close(found["bfloat16"][name], value, rtol=0.05, atol=0.025)


@pytest.mark.parametrize("step", STEPS[:-1])  # `clean_step` tells two numbers
def test_steps_say_what_the_model_computed_in(
    step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = sp.data.sample("mnist", 4)
    monkeypatch.setattr(lowering, "_fastest", lambda *_: "bfloat16")
    for asked, told in (
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("auto", "bfloat16"),
    ):
        model = _network().train()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        stats = step(model, optimizer, x, y, THREATS, iteration=0, steps=1, precision=asked)
        assert stats.precision == told


def test_nothing_is_said_where_nothing_is_asked() -> None:
    x, y = sp.data.sample("mnist", 4)
    states = []
    for options in ({}, {"precision": "float32"}):
        model = _network().train()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            sp.ampgd_step(model, optimizer, x, y, THREATS, iteration=0, steps=1, **options)
        states.append(model.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("precision", "words"),
    [
        (
            "float32+channels_last",
            r"float32, bfloat16, float16 or auto in training, .*layout that they have.*channels_last\)",
        ),
        ("half", "`precision` must be one of float32, bfloat16"),
        (("bfloat16",), "`precision` must be one word in training"),
    ],
)
def test_other_words_are_refused_before_anything_moves(
    step: Callable[..., Any], precision: object, words: str
) -> None:
    x, y = sp.data.sample("mnist", 4)
    model = _network().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=words):
        step(model, optimizer, x, y, THREATS, iteration=0, steps=1, precision=precision)
    with pytest.raises(ValueError, match=words):
        train(model, [(x, y)], THREATS, epochs=1, precision=precision)  # type: ignore[arg-type]
    fresh = _network().state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in model.state_dict().items())


def test_float64_is_refused_and_auto_keeps_it() -> None:
    x, y = sp.data.sample("mnist", 4)
    model = _network().double().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=r"float64.*model\.float"):
        sp.ampgd_step(model, optimizer, x, y, THREATS, iteration=0, precision="bfloat16")
    sp.ampgd_step(model, optimizer, x, y, THREATS, iteration=0, steps=1, precision="auto")


def test_auto_measures_float32_as_training_rounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And anew where the user sets something else; attacks and their measurements are in full float32."""
    monkeypatch.setattr(lowering, "is_native", lambda _: True)
    seen: list[str] = []
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    network.register_forward_pre_hook(
        lambda *_: seen.append(torch.backends.mkldnn.matmul.fp32_precision)
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x, y = sp.data.sample("mnist", 8)

    def words(measure: Callable[[], object]) -> tuple[set[str], int]:
        seen.clear()
        measure()
        return set(seen), len(seen)

    def step(precision: str) -> object:
        options: Any = {"iteration": 0, "steps": 1, "precision": precision}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return sp.ampgd_step(network, optimizer, x, y, THREATS, **options)

    def attacked() -> object:
        problem = sp.Ensemble([network.eval()], x, y)
        return sp.attack(problem, sp.linf(0.1), steps=1, precision="auto")

    try:
        _, plain = words(lambda: step("float32"))
        torch.set_float32_matmul_precision("medium")
        found, asked = words(lambda: step("auto"))
        assert found == {"bf16"}
        assert asked > plain  # measured
        assert words(lambda: step("auto")) == ({"bf16"}, plain)
        torch.set_float32_matmul_precision("highest")
        found, asked = words(lambda: step("auto"))
        assert found == {"ieee"}
        assert asked > plain
        torch.set_float32_matmul_precision("medium")
        assert words(attacked)[0] == {"ieee"}
    finally:
        torch.set_float32_matmul_precision("highest")


def test_auto_is_measured_once_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def times(problem: sp.AbstractProblem, index: int, ways: tuple[str, ...]) -> Any:
        asked.append(len(problem))
        return passes_of({way: 1.0 if way == "float32" else 0.5 for way in ways})

    monkeypatch.setattr(lowering, "is_native", lambda device: True)
    monkeypatch.setattr(lowering, "_passes", times)
    x, y = sp.data.sample("mnist", 4)
    model, other = _network().train(), _network().train()
    for network, calls in ((model, 1), (model, 1), (other, 2)):
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        inside, _ = _watch(network)
        sp.ampgd_step(network, optimizer, x, y, THREATS, iteration=0, steps=1, precision="auto")
        assert inside[-1] == torch.bfloat16
        assert len(asked) == calls
        assert network.training
    fresh = _network().train()
    sp.attack(sp.Ensemble([fresh.eval()], x, y), sp.linf(0.1), steps=1, precision="auto")
    sp.attack(sp.Ensemble([fresh], x, y), sp.linf(0.1), steps=1, precision="auto")
    assert len(asked) == 3


def test_training_validates_in_float32_and_remembers_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "is_native", lambda device: True)
    monkeypatch.setattr(
        lowering, "_passes", lambda *_: passes_of({"float32": 1.0, "bfloat16": 0.5})
    )
    x, y = sp.data.sample("mnist", 12)
    model = _network()
    inside, attacked = _watch(model)
    options: Any = {
        "steps": 1,
        "validation": (x[8:], y[8:]),
        "validation_steps": 1,
        "out": tmp_path,
    }
    loader = Batches(x[:8], y[:8], size=4)
    with pytest.raises(KeyboardInterrupt):
        train(
            model, loader, THREATS, epochs=2, precision="auto", callback=_stop_after(2), **options
        )
    assert set(inside) == {torch.bfloat16}
    assert attacked[0] == torch.float32  # a look at the validation set before the first step
    assert attacked[1:3] == [torch.bfloat16] * 2  # the inner attacks
    assert attacked[-1] == torch.float32  # the verdict
    optimizer = torch.optim.AdamW(model.parameters())
    record = read_checkpoint(tmp_path / CHECKPOINT, model, optimizer).record
    assert record["config"]["precision"] == "bfloat16"
    monkeypatch.setattr(
        lowering, "_passes", lambda *_: passes_of({"float32": 0.5, "bfloat16": 1.0})
    )
    inside.clear()
    train(model, loader, THREATS, epochs=2, precision="auto", resume=True, **options)
    assert set(inside) == {torch.bfloat16}  # as recorded, not as measured now
    with pytest.raises(ValueError, match=r"`precision` must be as in .*bfloat16, got float32"):
        train(model, loader, THREATS, epochs=2, resume=True, **options)


def _stop_after(steps: int) -> Callable[[object], None]:
    left = [steps]

    def stop(_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    return stop


def test_a_step_of_ones_own_computes_as_it_likes() -> None:
    x, y = sp.data.sample("mnist", 4)

    def step(model: nn.Module, optimizer: object, x: Tensor, y: Tensor, number: int) -> Any:
        raise AssertionError

    with pytest.raises(
        ValueError, match="`precision` must be float32 for a step function of your own"
    ):
        train(_network(), [(x, y)], method=step, epochs=1, precision="bfloat16")
