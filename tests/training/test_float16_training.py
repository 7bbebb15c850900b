"""Training with models that compute in float16: gradients too small or too large for it are found too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import saddlepoint as sp
from children import Nursery
from commands import inside
from saddlepoint import runs, training
from saddlepoint.training import Batches, Recipe, avg_step, clean_step, stepping
from saddlepoint.training.loop import METHODS
from small_training import STEPS, assert_equal_bits, bits, network

THREATS = {"linf": sp.linf(0.1), "l2": sp.l2(0.5)}
TINY = {
    "linf": sp.linf(1e-4)
}  # where perturbations are found in float16, too, gradients differ by little else


class _Network(nn.Module):
    """Two layers in float16; what they answer is multiplied and shifted in float32, as are gradients."""

    def __init__(self, factor: float = 1.0, shift: float = 0.0, last: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)
            )
        with torch.no_grad():
            self.layers[3].weight *= last
            self.layers[3].bias *= last
        self.register_buffer("shift", torch.tensor([shift, 0.0, 0.0]))
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers(images).float() * self.factor + self.shift
        return out


SURE = {"shift": 18.0}  # of class 0: with such labels gradients are 1e-8
CASES = [{}, SURE, {"last": 1e-4}, {"factor": 1e-4}, {"factor": 1e4}]


def _images(options: dict[str, float], rows: int = 13) -> tuple[Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        x = torch.rand(rows, 1, 4, 4)
    return x, torch.zeros(rows).long() if options == SURE else torch.arange(rows) % 3


def _assert_near(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Each within a share of the length of what is expected, which is not zero."""
    for one, two in zip(found, expected, strict=True):
        assert two.norm() > 0
        assert (one - two).norm() <= tolerance * two.norm()


def _gradients(model: nn.Module) -> list[Tensor]:
    return [each.grad for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("options", CASES, ids=str)
def test_gradients_are_those_of_float32(
    step: Callable[..., Any], options: dict[str, float]
) -> None:
    """Also of a network that is sure, whose logits are tiny, and where they are too large at first."""
    x, y = _images(options)
    found = {}
    for precision in ("float32", "float16"):
        model = _Network(**options).train()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step(model, optimizer, x, y, TINY, iteration=0, steps=1, precision=precision)
        found[precision] = _gradients(model)
        assert all(each.dtype == torch.float32 for each in found[precision])
    _assert_near(found["float16"], found["float32"], 0.02)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("options", "rate"), [({}, 0.02), (SURE, 1e6)], ids=["plain", "sure"])
def test_training_moves_parameters_as_float32_does(
    method: str, options: dict[str, float], rate: float
) -> None:
    """By what they have moved in 10 steps; those of the sure one would not have moved at all."""
    x, y = _images(options)
    threats = None if method == "clean" else {**TINY, "l2": sp.l2(1e-4), "l1": sp.l1(1e-3)}
    recipe = Recipe("test", "sgd", rate, 2, schedule="constant")
    moved = []
    for precision in ("float32", "float16"):
        model = _Network(**options)
        loader = Batches(x, y, 3, numbered=True)
        kwargs: Any = {} if method == "clean" else {"steps": 2}
        training.train(
            model, loader, threats, method=method, recipe=recipe, precision=precision, **kwargs
        )
        pairs = zip(model.parameters(), _Network(**options).parameters(), strict=True)
        moved.append([(after - before).detach() for after, before in pairs])
    _assert_near(moved[1], moved[0], 0.03)


def test_other_parameters_get_their_gradient_added() -> None:
    """As by loss.backward(): those that another optimiser moves, or what the loss has of its own."""
    x, y = _images({})
    found = []
    for precision in ("float32", "float16"):
        model = _Network(factor=1e4).train()
        first, last = model.layers[1], model.layers[3]
        first.weight.grad = torch.full_like(first.weight, 1e3)
        optimizer = torch.optim.SGD(last.parameters(), 0.0)

        def loss(logits: Tensor, labels: Tensor, last: Any = last) -> Tensor:
            plain = nn.functional.cross_entropy(logits, labels, reduction="none")
            return plain + 1e3 * last.weight.square().sum()

        options: Any = {"iteration": 0, "steps": 1, "loss": loss, "precision": precision}
        sp.ampgd_step(model, optimizer, x, y, TINY, **options)
        assert not torch.equal(first.weight.grad, torch.full_like(first.weight, 1e3))
        found.append(_gradients(model))
    _assert_near(found[1], found[0], 0.01)


class _Accumulating(torch.optim.SGD):
    """Moves in every second step, on the gradients of both."""

    count = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.count % 2 == 0:
            super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure) if self.count % 2 == 0 else None


@pytest.mark.parametrize("factor", [1.0, 1e4])
def test_gradients_of_every_leaf_are_those_of_float32(factor: float) -> None:
    """Of what the loss alone has, of parameters that an optimiser has twice, and of one that accumulates."""
    x, y = _images({})
    found = []
    for precision in ("float32", "float16"):
        model = _Network(factor=factor).train()
        heat = torch.tensor(1.3, requires_grad=True)
        heat.grad = torch.tensor(0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says so
            optimizer = _Accumulating([*model.parameters(), *model.layers[3].parameters()], 0.0)

        def loss(logits: Tensor, labels: Tensor, heat: Tensor = heat) -> Tensor:
            return nn.functional.cross_entropy(logits * heat, labels, reduction="none")

        for n, part in enumerate((slice(0, 5), slice(5, 13))):
            options: Any = {"iteration": n, "steps": 1, "loss": loss, "precision": precision}
            sp.ampgd_step(model, optimizer, x[part], y[part], TINY, **options)
        assert heat.grad is not None
        found.append([heat.grad, *_gradients(model)])
    _assert_near(found[1], found[0], 0.02)


class _Loud(_Network):
    """Answers, or gradients only, that no scale brings into float16."""

    def __init__(self, *, forward: bool) -> None:
        super().__init__()
        self.loud = forward

    def forward(self, images: Tensor) -> Tensor:
        if self.loud:
            return super().forward(images * 1e6)
        hidden = self.layers[1](images.flatten(1)).half() * 1e-4
        # The root of something that is zero: its gradient is infinite, in whatever scale.
        return self.layers[3]((hidden - hidden.detach()).square().sqrt().float() + 1.0).float()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("forward", [True, False])
def test_what_does_not_fit_is_said_and_changes_nothing(
    step: Callable[..., Any], forward: bool
) -> None:
    x, y = _images({})
    model = _Loud(forward=forward).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    before = bits(model)
    with pytest.raises(
        FloatingPointError, match=r"float16 ends at 65504; take precision=.bfloat16."
    ):
        step(model, optimizer, x, y, TINY, iteration=0, steps=1, precision="float16")
    assert_equal_bits(bits(model), before)
    assert not optimizer.state
    assert not _gradients(model)


def test_a_resumed_training_equals_one_without_a_break(tmp_path: Path) -> None:
    x, y = sp.data.sample("mnist", 12)
    states = []
    for stops in (None, 4):

        def stop(progress: Any, at: int | None = stops) -> None:
            if at is not None and 3 * (progress.epoch - 1) + progress.step == at:
                raise KeyboardInterrupt

        out = tmp_path / str(stops)
        options: Any = {"epochs": 2, "steps": 1, "precision": "float16", "out": out}
        options |= {"checkpoint_every": 1, "start": "random"}
        model = network()
        loader = Batches(x, y, 4)
        if stops is not None:
            with pytest.raises(KeyboardInterrupt):
                training.train(model, loader, THREATS, callback=stop, **options)
            model = network(seed=5)
            options["resume"] = True
        training.train(model, loader, THREATS, **options)
        states.append(bits(model))
    assert_equal_bits(*states)


def work_in_a_process(wrapped: bool) -> None:
    """Steps of two processes; the gradients of the second one are too large at first, of the first not."""
    from saddlepoint.cli.cluster import joined

    x, y = _images({}, 8)
    model: nn.Module = _Network().train()
    with joined() as rank:
        size = dist.get_world_size() if dist.is_initialized() else 1
        if wrapped:
            model.factor = 1e4 if rank or size == 1 else 1.0
            inner, model = model, DistributedDataParallel(model) if size > 1 else model
            optimizer = torch.optim.SGD(model.parameters(), 1e-6)
            share = slice(4 * rank, 4 * rank + 4) if size > 1 else slice(4, 8)
            for n in range(2):
                options: Any = {"iteration": n, "steps": 1, "precision": "float16"}
                avg_step(model, optimizer, x[share], y[share], TINY, **options)
            model = inner
        else:
            recipe = Recipe("test", "sgd", 0.1, 2, schedule="constant")
            kwargs: Any = {"steps": 1, "recipe": recipe, "precision": "float16"}
            training.train(model, Batches(x, y, 4), TINY, **kwargs)
    training.checkpoints.write_checkpoint(
        Path(f"{rank} of {size}.safetensors"), model, None, {}, {}
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_processes_keep_the_same_parameters(
    nursery: Nursery, tmp_path: Path, wrapped: bool
) -> None:
    """By `train`, and wrapped in a DistributedDataParallel, where gradients of one process are too large."""
    here = str(Path(__file__).parent)
    work = f"import sys; sys.path.insert(0, {here!r})\n"
    work += f"from test_float16_training import work_in_a_process\nwork_in_a_process({wrapped})\nsys.exit(0)"
    for processes in (1, 2):
        ended = nursery.run(cwd=tmp_path, processes=processes, patch=work)
        assert [each.code for each in ended] == [0] * processes, ended[0].err
    names = ("0 of 1", "0 of 2", "1 of 2")
    alone, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in names)
    begun = _Network().state_dict()
    for key, value in first.items():
        name = key.removeprefix("model.")
        assert torch.equal(value, second[key])
        moved, expected = value - begun[name], alone[key] - begun[name]
        if wrapped:  # half of what the second process finds alone; the first adds a ten thousandth
            expected = expected / 2
        assert (moved - expected).norm() <= 0.02 * expected.norm()


def test_the_command_line_trains_in_float16(tmp_path: Path) -> None:
    words = ("train", "--data", "mnist-sample", "--model", "A", "--threat", "linf:0.1")
    few = ("--limit", 20, "--steps", 1, "--epochs", 1, "--held-out", 2)
    tests = ("--test-images", 2, "--test-steps", 1, "--out", tmp_path)
    assert inside(*words, *few, *tests, "--precision", "float16") == 0
    run = runs.Run.read(tmp_path)
    assert (run.status, run.settings["precision"]) == ("complete", "float16")
    assert "--precision float16" in run.command


def test_the_scale_is_exact() -> None:
    """A power of two: in float32 a scaled pass would give the same gradients bit for bit."""
    x, y = _images({})
    found = []
    for scaled in (False, True):
        model = _Network()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        moved = list(model.parameters())
        if scaled:
            assert stepping._backward_scaled(loss, moved, model, logits)
        else:
            loss.backward()
        found.append(dict(enumerate(_gradients(model))))
    assert_equal_bits(*[{str(key): value for key, value in each.items()} for each in found])


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_that_would_see_scaled_gradients_are_refused(register: str) -> None:
    model = _Network()
    handle = getattr(model.layers[1].weight, register)(lambda _: None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = bits(model)
    x, y = torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 2, 0])
    with pytest.raises(ValueError, match="hooks on 1 of 4 parameters"):
        clean_step(model, optimizer, x, y, precision="float16")
    assert_equal_bits(before, bits(model))
    handle.remove()
    clean_step(model, optimizer, x, y, precision="float16")
