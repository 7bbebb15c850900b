"""How models are called: what they get, what they may return, what is left as it was."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.behind import keeping_random, modules_behind
from saddlepoint.calls import call, check_eval_mode, logits_of
from saddlepoint.evaluation.attacks import sealed
from saddlepoint.rounding import full_precision
from saddlepoint.runs.training_task import TrainingTask
from saddlepoint.solver.search import random_search

BALL = sp.LpBall(math.inf, 0.1)
SOLVERS = [sp.attack, sp.apgda]


class Wrapped(nn.Module):
    """A network behind a function of images, as users write it."""

    def __init__(self, network: nn.Module, forward) -> None:
        super().__init__()
        self.network, self.function = network, forward
        self.eval()

    def forward(self, images):
        return self.function(self.network, images)


def in_place(network: nn.Module, images: Tensor) -> Tensor:
    return network(images.mul_(0.5).add_(0.1))


def out_of_place(network: nn.Module, images: Tensor) -> Tensor:
    return network(images * 0.5 + 0.1)


def same(result: sp.AttackResult, other: sp.AttackResult, tolerance: float = 0.0) -> None:
    for name in ("delta", "weights", "losses"):
        torch.testing.assert_close(
            getattr(result, name), getattr(other, name), rtol=0, atol=tolerance
        )
    assert torch.equal(result.fooled, other.fooled)


# --------------------------------------------------------------------------- a tensor of its own


class TestInPlace:
    def test_what_a_model_does_to_its_images_reaches_nobody(self, network, digits):
        x = digits[0].clone()
        for fresh in (False, True):
            given = x.clone() if fresh else x
            expected = out_of_place(network, x)
            torch.testing.assert_close(
                call(Wrapped(network, in_place), given, fresh=fresh), expected
            )
        assert torch.equal(x, digits[0])

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_attacks_on_models_that_write_into_their_images_are_the_same(
        self, solver, network, digits
    ):
        spoiled, plain = (
            solver(sp.Ensemble([Wrapped(network, f), network], *digits), BALL, steps=5)
            for f in (in_place, out_of_place)
        )
        same(spoiled, plain)
        assert spoiled.fooled.any()

    def test_so_are_groups_and_views_and_success_rates(self, network, digits):
        groups, labels = sp.data.group(*digits, size=3)
        views = [sp.transforms.identity, torch.sigmoid, sp.transforms.gamma(1.3)]
        makers = [
            lambda model: sp.Universal(model, groups, labels),
            lambda model: sp.Universal(model, groups, labels, box="clip"),
            lambda model: sp.Transformed(model, views, *digits),
        ]
        for make in makers:
            spoiled, plain = (make(Wrapped(network, f)) for f in (in_place, out_of_place))
            results = [sp.attack(problem, BALL, steps=3) for problem in (spoiled, plain)]
            same(*results)
            rates = [sp.success_rates(problem, results[1].delta) for problem in (spoiled, plain)]
            assert torch.equal(rates[0].fooled, rates[1].fooled)
            assert torch.equal(rates[0].correct, rates[1].correct)

    def test_so_is_random_search(self, network, digits):
        found = [
            random_search(
                Wrapped(network, f), *digits, 0.1, queries=20, seed=0, rows=torch.arange(12)
            )
            for f in (in_place, out_of_place)
        ]
        assert torch.equal(*found)

    def test_a_tensor_that_is_nobody_elses_is_not_copied(self):
        seen: list[int] = []

        def model(images: Tensor) -> Tensor:
            seen.append(images.data_ptr())
            return images

        x = torch.rand(2, 3)
        call(model, x, fresh=True)
        call(model, x)
        assert (seen[0] == x.data_ptr(), seen[1] == x.data_ptr()) == (True, False)

    def test_the_call_itself_costs_next_to_nothing(self, network, digits):
        x = digits[0].repeat(10, 1, 1, 1)

        def seconds(function) -> float:
            times = []
            for _ in range(7):
                start = time.process_time()
                function()
                times.append(time.process_time() - start)
            return min(times)

        with torch.no_grad():
            whole = seconds(lambda: network(x))
            around = seconds(lambda: call(lambda images: images.flatten(1), x, fresh=True))
        assert around < 0.1 * whole  # of a forward pass alone of a small network; measured: 0.03


# ------------------------------------------------------------------------------ what comes back

Output = namedtuple("Output", ["hidden", "logits"])


class TestOutputs:
    @pytest.mark.parametrize(
        "pack",
        [
            lambda logits: (logits, None),
            lambda logits: [logits],
            lambda logits: {"loss": None, "logits": logits},
            lambda logits: SimpleNamespace(loss=None, logits=logits),
            lambda logits: Output(torch.zeros(3), logits),
        ],
        ids=["tuple", "list", "dictionary", "object", "named tuple"],
    )
    def test_logits_are_found_in_what_models_return(self, network, digits, pack):
        plain = sp.attack(sp.Ensemble([network], *digits), BALL, steps=3)
        packed = sp.Ensemble([lambda images: pack(network(images))], *digits)
        same(sp.attack(packed, BALL, steps=3), plain)
        same(
            sp.apgda(packed, BALL, steps=0),
            sp.apgda(sp.Ensemble([network], *digits), BALL, steps=0),
        )

    @pytest.mark.parametrize(
        ("output", "match"),
        [
            (None, "got NoneType; wrap it in a function that returns the tensor alone"),
            ((), "got tuple"),
            (("logits",), "got tuple"),
            ({"out": torch.zeros(2, 3)}, r"got dict with keys \['out'\]; wrap it"),
            (np.zeros((2, 3)), "got ndarray"),
            (torch.zeros(2, 3).long(), "got int64; return scores of all classes"),
            (3.0, "got float"),
        ],
    )
    def test_anything_else_is_refused_in_one_sentence(self, output, match):
        with pytest.raises(TypeError, match=r"models must return logits \(B, C\).*" + match):
            logits_of(output)
        problem = sp.Ensemble([lambda images: output], torch.rand(2, 4), torch.tensor([0, 1]))
        for solver in SOLVERS:
            with pytest.raises(TypeError, match=match):
                solver(problem, BALL)
        with pytest.raises(TypeError, match=match):
            sp.success_rates(problem, problem.zeros())

    def test_logits_of_another_shape_are_refused(self):
        with pytest.raises(ValueError, match=r"one row for each of 2 images, got \(3,\)"):
            call(lambda images: images.sum(dim=0), torch.rand(2, 3))


# ------------------------------------------------------------------------------ precision


class TestPrecision:
    def test_float64_images_and_a_float32_model(self, network, digits):
        x, y = digits
        problem = sp.Ensemble([network], x.double(), y)
        logits = problem.logits(problem.zeros())
        assert logits.dtype == torch.float64
        torch.testing.assert_close(logits[:, 0].float(), network(x), rtol=0, atol=0)
        result = sp.attack(problem, BALL, steps=5)
        assert result.delta.dtype == result.losses.dtype == torch.float64
        single = sp.attack(sp.Ensemble([network], x, y), BALL, steps=5)
        assert torch.equal(result.fooled, single.fooled)
        assert torch.equal(sp.success_rates(problem, result.delta).fooled, result.fooled)

    def test_a_float64_model_and_float32_images(self, digits):
        x, y = digits
        network = sp.models.load("mnist-a").double()
        problem = sp.Ensemble([network], x, y)
        logits = problem.logits(problem.zeros())[:, 0]
        assert torch.equal(logits, network(x.double()))  # as fine as the model says it
        assert sp.attack(problem, BALL, steps=3).delta.dtype == torch.float32

    def test_half_precision_models_are_asked_in_their_own_dtype(self, digits):
        x, y = digits
        network = sp.models.load("mnist-a").to(torch.bfloat16)
        problem = sp.Ensemble([network], x, y)
        logits = problem.logits(problem.zeros())[:, 0]
        assert torch.equal(logits, network(x.bfloat16()).float())
        result = sp.attack(problem, BALL, steps=5)
        said = network((x + result.delta).bfloat16()).argmax(dim=1)
        assert torch.equal(result.fooled[:, 0], said != y)
        assert result.fooled.any()

    def test_a_module_that_converts_for_itself_is_left_to_it(self, digits):
        x, _ = digits

        class Normalised(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = sp.models.load("mnist-a").to(torch.bfloat16)
                self.register_buffer("mean", torch.tensor(0.1307))

            def forward(self, images: Tensor) -> Tensor:
                assert images.dtype == torch.float32
                return self.network((images - self.mean).bfloat16())

        model = Normalised().eval()
        assert torch.equal(call(model, x), model(x).float())

    @pytest.mark.parametrize("kind", ["half", "double", "autocast"])
    def test_verdicts_do_not_depend_on_the_dtype_of_the_logits(self, network, digits, kind):
        def rounded(images: Tensor) -> Tensor:
            if kind == "autocast":
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return network(images)
            logits = network(images)
            return logits.bfloat16() if kind == "half" else logits.double()

        problem = sp.Ensemble([rounded], *digits)
        result = sp.attack(problem, BALL, steps=10)
        assert result.losses.dtype == torch.float32
        said = rounded(digits[0] + result.delta).argmax(dim=1)
        assert torch.equal(result.fooled[:, 0], said != digits[1])
        plain = sp.attack(sp.Ensemble([network], *digits), BALL, steps=10)
        assert torch.equal(result.fooled, plain.fooled)

    def test_a_function_that_cannot_take_float64_says_so(self, network, digits):
        problem = sp.Ensemble([lambda images: network(images)], digits[0].double(), digits[1])
        with pytest.raises(ValueError, match=r"float64 images.*x\.float\(\)"):
            sp.attack(problem, BALL)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_errors_of_the_model_are_its_own(self, digits, dtype):
        def broken(images: Tensor) -> Tensor:
            raise RuntimeError("out of paper")

        with pytest.raises(RuntimeError, match="out of paper"):
            sp.attack(sp.Ensemble([broken], digits[0].to(dtype), digits[1]), BALL)


class TestAutocast:
    @pytest.mark.parametrize("solver", SOLVERS)
    def test_solvers_and_rates_work_inside_autocast_in_full_precision(
        self, solver, network, digits
    ):
        problem = sp.Ensemble([network, lambda images: network(images)], *digits)
        plain = solver(problem, BALL, steps=5)
        rates = sp.success_rates(problem, plain.delta)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = solver(problem, BALL, steps=5)
            again = sp.success_rates(problem, plain.delta)
            assert torch.is_autocast_enabled("cpu")
        same(inside, plain)
        assert torch.equal(rates.fooled, again.fooled)

    def test_problems_made_inside_autocast_predict_in_full_precision(self, network, digits):
        plain = sp.Ensemble([network], *digits, labels="predicted")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = sp.Ensemble([network], *digits, labels="predicted")
            logits = inside.logits(inside.zeros())
        assert torch.equal(inside.labels, plain.labels)
        assert torch.equal(logits, plain.logits(plain.zeros()))

    def test_full_precision_ends_where_it_began(self):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with full_precision():
                assert not torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_enabled("cpu")


# --------------------------------------------------------------------------------- what is given


class TestObviousInputs:
    @pytest.mark.parametrize("integers", [np.uint8, np.int16, np.int32, np.int64, np.uint16])
    def test_numpy_arrays_and_any_integers(self, network, digits, integers):
        x, y = (part.numpy() for part in digits)
        x.setflags(write=False)
        given = sp.Ensemble([network], x, y.astype(integers))
        expected = sp.Ensemble([network], *digits)
        assert torch.equal(given.x, expected.x)
        assert torch.equal(given.labels, expected.labels)
        assert given.labels.dtype == torch.int64
        same(sp.attack(given, BALL, steps=2), sp.attack(expected, BALL, steps=2))

    def test_lists_of_numbers_images_and_arrays(self, digits):
        x, y = digits
        model = nn.Flatten()
        for images in (x.tolist(), list(x), [image.numpy() for image in x], tuple(x)):
            problem = sp.Ensemble([model.eval()], images, y.tolist())
            assert torch.equal(problem.x, x)
            assert torch.equal(problem.labels[:, 0], y)
        groups = sp.Universal(model, [list(x[:3]), list(x[3:6])], [[0, 1, 2], [3, 4, 5]])
        assert torch.equal(groups.groups, x[:6].reshape(2, 3, 1, 28, 28))

    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize(
        ("arguments", "options", "match"),
        [
            (
                (0.2,),
                {},
                r"`ball` must be an LpBall or a Patch, got float 0.2; write ball=saddlepoint\.linf",
            ),
            (("linf",), {}, "`ball` must be an LpBall or a Patch, got str 'linf'"),
            ((BALL,), {"rule": "minmax"}, r"`rule` .* got str 'minmax'; write rule=.*MinMax\(\)"),
            ((BALL,), {"rule": sp.MinMax}, "`rule` .* got the class MinMax"),
            ((BALL,), {"rule": 0.5}, "`rule` .* got float 0.5"),
            ((BALL,), {"loss": "cw"}, "`loss` must be a function, got str 'cw'; write .*cw_margin"),
        ],
    )
    def test_names_and_numbers_are_refused_with_what_to_write(
        self, solver, arguments, options, match
    ):
        problem = sp.Ensemble([nn.Flatten().eval()], torch.rand(2, 4), torch.tensor([0, 1]))
        with pytest.raises(TypeError, match=match):
            solver(problem, *arguments, **options)

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_a_model_is_not_a_problem(self, solver, network):
        with pytest.raises(TypeError, match=r"`problem` .*Ensemble\(\[model\], x, y\)"):
            solver(network, BALL)


# --------------------------------------------------------------------- networks behind functions

GLOBAL = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def uses_a_global(images: Tensor) -> Tensor:
    return GLOBAL(images)


def uses_another_function(images: Tensor) -> Tensor:
    return uses_a_global(images)


def with_a_default(images: Tensor, network: nn.Module = GLOBAL) -> Tensor:
    return network(images)


class Predictor:
    def __init__(self, network: nn.Module) -> None:
        self.parts = {"network": network}

    def __call__(self, images: Tensor) -> Tensor:
        return self.parts["network"](images)

    def predict(self, images: Tensor) -> Tensor:
        return self(images)


class Hiding(nn.Module):
    """A list is not registered: .eval() does not reach what is in it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.networks = [network]

    def forward(self, images: Tensor) -> Tensor:
        return self.networks[0](images)


WAYS = {
    "closure": lambda images: GLOBAL(images),
    "global": uses_a_global,
    "through another function": uses_another_function,
    "default": with_a_default,
    "partial": functools.partial(lambda network, images: network(images), GLOBAL),
    "bound method": GLOBAL.forward,
    "object": Predictor(GLOBAL),
    "method of an object": Predictor(GLOBAL).predict,
    "decorated": torch.no_grad()(uses_a_global),
    "comprehension": lambda images: sum(net(images) for net in [GLOBAL]),
    "list in a module": Hiding(GLOBAL).eval(),
}


class TestModulesBehind:
    @pytest.mark.parametrize("way", WAYS)
    def test_networks_are_found(self, way):
        assert any(module is GLOBAL for module in modules_behind(WAYS[way]))

    @pytest.mark.parametrize("way", WAYS)
    def test_training_mode_is_refused_before_anybody_is_asked(self, way):
        GLOBAL.train()
        x, y = torch.rand(5, 4), torch.zeros(5, dtype=torch.long)
        before = {name: value.clone() for name, value in GLOBAL.state_dict().items()}
        problem = sp.Ensemble([WAYS[way]], x, y)
        for solver in SOLVERS:
            with pytest.raises(ValueError, match=r"Sequential\).*training mode.*model\.eval\(\)"):
                solver(problem, BALL)
        with pytest.raises(ValueError, match="training mode"):
            sp.success_rates(problem, problem.zeros())
        for name, value in GLOBAL.state_dict().items():
            assert torch.equal(value, before[name])
        assert GLOBAL.training
        GLOBAL.eval()
        check_eval_mode([WAYS[way]])
        GLOBAL.train()

    def test_a_module_that_is_no_function_is_itself_and_not_its_parts(self):
        assert modules_behind(GLOBAL) == [GLOBAL]

    def test_what_a_function_does_not_name_does_not_matter(self):
        def unrelated(images: Tensor) -> Tensor:
            return images[:, :3]

        assert modules_behind(unrelated) == []
        assert modules_behind(torch.sigmoid) == []
        assert modules_behind(nn.functional.relu) == []

    def test_large_and_circular_data_is_not_walked_through(self):
        data: list = list(range(1_000_000))
        data.append(data)

        def model(images: Tensor) -> Tensor:
            return images + len(data)

        start = time.process_time()
        assert modules_behind(model) == []
        assert time.process_time() - start < 1.0


# ------------------------------------------------------------ networks in training mode, well hidden


class Plain:
    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, images: Tensor) -> Tensor:
        return self.network(images)


class Slotted:
    __slots__ = ("__network",)

    def __init__(self, network: nn.Module) -> None:
        self.__network = network

    def __call__(self, images: Tensor) -> Tensor:
        return self.__network(images)


class Holding(nn.Module):
    """An object is not registered: .eval() does not reach the network in it."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held

    def forward(self, images: Tensor) -> Tensor:
        return self.held(images)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


HIDDEN = {
    "object in a module": lambda network: Holding(Plain(network)).eval(),
    "slots": Slotted,
    "slots in a module": lambda network: Holding(Slotted(network)).eval(),
    "traced": torch.fx.symbolic_trace,
    "traced, then half switched": lambda network: switched(torch.fx.symbolic_trace(network)),
}


def switched(traced: nn.Module) -> nn.Module:
    traced.training = False
    return traced


@pytest.mark.parametrize("way", HIDDEN)
def test_training_mode_is_found_where_it_hides(way):
    network = small().train()
    model = HIDDEN[way](network)
    problem = sp.Ensemble([model], torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match="training mode"):
        sp.success_rates(problem, problem.zeros())
    assert not network[1].running_mean.any()
    check_eval_mode([HIDDEN[way](network.eval())])


def test_exported_programs_have_no_mode():
    network = nn.Sequential(small(), nn.Dropout()).eval()
    images = torch.rand(4, 4)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    exported = torch.export.export(network, (images,), dynamic_shapes=(batch,)).module()
    assert exported.training or any(part.training for part in exported.modules())
    check_eval_mode([exported, lambda images: exported(images)])
    problem = sp.Ensemble([exported], images, torch.zeros(4, dtype=torch.long))
    assert sp.success_rates(problem, problem.zeros()).count == 4


# -------------------------------------------------------------------------------- dtypes that do not fit


class Centred(nn.Module):
    """A wrapper with a buffer of its own, as most that normalise are."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.full((1, 1, 1), 0.1))

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images - self.mean)


class TestDtypesThatDoNotFit:
    def test_a_half_network_behind_a_function(self, digits):
        network = sp.models.load("mnist-a").half()
        problem = sp.Ensemble([lambda v: network(v)], *digits)
        with pytest.raises(ValueError, match=r"float16.*pass the module itself.*model\.float\(\)"):
            sp.attack(problem, BALL, steps=1)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
    def test_parts_of_two_dtypes(self, digits, dtype):
        model = Centred(sp.models.load("mnist-a").to(dtype)).eval()
        with pytest.raises(ValueError, match=r"float(16|32) and float(32|64).*model\.float\(\)"):
            sp.attack(sp.Ensemble([model], *digits), BALL, steps=1)
        assert sp.attack(sp.Ensemble([model.to(dtype)], *digits), BALL, steps=1).delta.any()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": 2.5}, "`steps` must be a whole number, got float 2.5"),
        ({"steps": "5"}, "`steps` must be a whole number, got str '5'"),
        ({"restarts": 1.5}, "`restarts` must be a whole number, got float 1.5"),
        ({"batch_size": 2.5}, "`batch_size` must be a whole number, got float 2.5"),
        ({"start": torch.full((12, 1, 28, 28), math.nan)}, "`start` must be finite"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(network, digits, options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        sp.attack(sp.Ensemble([network], *digits), BALL, **options)


def test_a_start_may_be_an_array(network, digits):
    problem, start = sp.Ensemble([network], *digits), torch.full((12, 1, 28, 28), 0.02)
    given = sp.attack(problem, BALL, steps=2, start=start.numpy())
    same(given, sp.attack(problem, BALL, steps=2, start=start))


class OnGpus(nn.Module):
    """Says that its parameters are on two GPUs, of which this machine may have none."""

    def parameters(self, recurse: bool = True):  # type: ignore[override]
        return iter(SimpleNamespace(device=torch.device("cuda", k)) for k in (3, 1, 3))


def test_random_numbers_are_kept_of_the_gpus_in_use_and_of_no_other(monkeypatch) -> None:
    touched = []

    def forked(devices=None, **_):
        touched.append(devices)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", forked)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with keeping_random([nn.Linear(2, 2), lambda x: x]), keeping_random([OnGpus()]):
        pass
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    with keeping_random([OnGpus()]):
        pass
    assert touched == [[], [1, 3], [1, 2, 3]]


@pytest.mark.parametrize("where", ["sealed", "doctor", "first answers", "auto"])
def test_gpus_that_are_not_in_use_are_not_asked(where: str, monkeypatch) -> None:
    # As `torch.random.fork_rng()` does of all that there are.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    asked = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *_: None)
    x, y = torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 0, 1])
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    if where == "sealed":
        with sealed(model, 0):
            model(x)
    elif where == "doctor":
        sp.doctor.examine(model, x, y, eps=0.1)
    elif where == "first answers":
        TrainingTask.ask(SimpleNamespace(train=(x, y), network=model))  # type: ignore[arg-type]
    else:
        sp.train(model, [(x, y)], {"linf": sp.linf(0.1)}, steps=1, epochs=1, precision="auto")
    assert asked == []


def test_numbers_from_a_seed_are_those_of_torch() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = torch.rand(3)
    before = torch.get_rng_state()
    with keeping_random([], seed=5):
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.get_rng_state(), before)
