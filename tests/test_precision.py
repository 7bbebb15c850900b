"""Models in fewer bits: faster searches, and verdicts that stay in full precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.calls import call
from saddlepoint.precision import How, Precisions, how_of
from saddlepoint.solver import attack_unchecked
from saddlepoint.solver.domain_losses import evaluate


class _Knife(nn.Module):
    """Right by 0.1 in float32, while 256 + 0.1 and 256 are one number in bfloat16, and class 0 loses ties."""

    def __init__(self, lead: float = 0.1) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.bias.copy_(torch.tensor([256.0, 256.0 + lead]))
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(images)


def _knife(rows: int = 3) -> tuple[_Knife, sp.Ensemble]:
    model = _Knife().eval()
    return model, sp.Ensemble([model], torch.full((rows, 2), 0.5), torch.ones(rows).long())


def test_a_row_that_only_looks_fooled_in_bfloat16_is_not_counted_and_goes_on() -> None:
    model, problem = _knife()
    delta = problem.zeros()
    precisions = Precisions((model,), ("bfloat16",))
    raw = evaluate(problem, delta, sp.cw_margin, precisions=precisions, confirm=False)
    assert raw.fooled.all()  # it does look so
    sure = evaluate(problem, delta, sp.cw_margin, precisions=precisions)
    assert not sure.fooled.any()
    assert torch.as_tensor(sure.spent).tolist() == [2, 2, 2]
    with pytest.warns(UserWarning, match="gradient is zero"):
        result = sp.attack(problem, sp.linf(0.1), steps=4, precision="bfloat16")
    assert not result.fooled.any()
    assert result.num_forwards.tolist() == [10, 10, 10]  # five iterates, each asked twice
    assert result.precision == ("bfloat16",)
    torch.testing.assert_close(result.losses, torch.full((3, 1), 0.1), rtol=0, atol=1e-4)


def test_the_best_iterate_of_apgda_is_not_chosen_by_what_only_looks_fooled() -> None:
    _, problem = _knife(1)
    with pytest.warns(UserWarning, match="gradient is zero"):
        result = sp.apgda(problem, sp.linf(0.1), steps=2, keep="best", precision="bfloat16")
    assert not result.fooled.any()
    assert result.num_forwards.tolist() == [6]


class _ByChance(nn.Module):
    """Answers by chance to bright images, and as its network does to others."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, images: Tensor) -> Tensor:
        answers: Tensor = self.network(images)
        bright = images.flatten(1).mean(dim=1, keepdim=True) > 0.5
        return answers + bright * 0.15 * torch.randn(answers.shape)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_model_that_answers_by_chance_is_refused_in_every_precision(
    precision: sp.Precision,
) -> None:
    """Else the search would report the best of many answers."""
    torch.manual_seed(0)
    model, x = _ByChance().eval(), 0.1 + 0.9 * torch.rand(200, 3, 4, 4)
    x[:4] *= 0.5  # those that are looked at before
    problem = sp.Ensemble([model], x, model.network(x).argmax(dim=1))
    with pytest.raises(ValueError, match="must answer the same when asked again"):
        sp.attack(problem, sp.linf(1e-6), steps=50, precision=precision)


def test_threads_leave_the_filters_of_a_model_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()
    x, own = torch.rand(16, 3, 8, 8), model[0].weight
    y = model(x).argmax(dim=1)

    def work() -> None:
        for _ in range(10):
            sp.attack(
                sp.Ensemble([model], x, y),
                sp.linf(0.01),
                steps=8,
                precision="float32+channels_last",
            )

    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model[0].weight is own


@pytest.mark.parametrize("word", ["float32+channels_last", "bfloat16+channels_last"])
def test_channels_last_work_inside_inference_mode(word: sp.Precision) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 4)).eval()
    x = torch.rand(4, 3, 8, 8)
    problem = sp.Ensemble([model], x, model(x).argmax(dim=1))
    outside = sp.attack(problem, sp.linf(0.03), steps=3, precision=word)
    with torch.inference_mode():
        inside = sp.attack(problem, sp.linf(0.03), steps=3, precision=word)
    assert torch.equal(inside.delta, outside.delta)


def test_what_is_not_finite_in_full_precision_is_refused_though_it_looks_fooled() -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            low = torch.is_autocast_enabled("cpu")
            return images if low else torch.where(images > 0.6, torch.nan, images)

    model = Broken().eval()
    problem = sp.Ensemble([model], torch.tensor([[0.5, 0.55]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="logits and losses must be finite"):
        attack_unchecked(
            *(problem, sp.linf(0.2)),
            start=torch.tensor([[0.0, 0.2]]),
            batch_size=1,
            precisions=Precisions((model,), ("bfloat16",)),
        )


class _Exactly(nn.Module):
    """A network that notes the images it is asked about in full precision."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.asked = network, list[Tensor]()

    def forward(self, images: Tensor) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            self.asked.append(images.detach().clone())
        found: Tensor = self.network(images)
        return found


def test_random_transforms_are_judged_on_a_draw_of_their_own() -> None:
    x, y = sp.data.sample("mnist", 6)
    model = _Exactly(sp.models.load("mnist-a")).eval()
    problem = sp.Transformed(model, [sp.transforms.random_brightness(0.2)], x, y)
    precisions = Precisions((model,), ("bfloat16",))
    attack_unchecked(problem, sp.linf(0.3), steps=3, batch_size=6, precisions=precisions)
    assert len(model.asked[-1]) == 6  # all of them, whatever was confirmed on the way


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_models_see_float32_images_and_give_float32_logits(precision: str) -> None:
    seen: list[torch.dtype] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).eval()
    model[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    x = torch.rand(2, 4)
    exact = call(model, x)
    with Precisions((model,), (precision,)).applied():
        low = call(model, x)
        assert call(nn.Identity(), x).dtype == torch.float32
    assert seen == [torch.float32, getattr(torch, precision)]
    assert low.dtype == torch.float32
    assert not torch.equal(low, exact)
    torch.testing.assert_close(low, exact, rtol=0, atol=0.05)


def test_fewer_bits_reach_networks_through_every_problem_and_both_solvers() -> None:
    x, y = sp.data.sample("mnist", 8)
    model = sp.models.load("mnist-a")
    seen: list[torch.dtype] = []
    hook = next(m for m in model.modules() if isinstance(m, nn.Linear)).register_forward_hook(
        lambda _, inputs, output: seen.append(output.dtype)
    )
    groups, labels = sp.data.group(x, y, size=2)
    views = [sp.transforms.identity, sp.transforms.hflip]
    problems = [sp.Ensemble([model], x, y), sp.Universal(model, groups, labels)]
    problems.append(sp.Transformed(model, views, x, y))
    for problem in problems:
        for accumulate in (False, True):
            seen.clear()
            options = {"steps": 2, "accumulate": accumulate, "precision": "bfloat16"}
            sp.attack(problem, sp.linf(0.1), **options)
            assert torch.bfloat16 in seen
            assert seen[-1] == torch.float32  # the verdict
    hook.remove()


def test_shipped_networks_in_bfloat16_are_fooled_as_often_and_truly() -> None:
    x, y = sp.data.sample("mnist", 24)
    problem = sp.Ensemble([sp.models.load(f"mnist-{n}") for n in "acd"], x, y)
    full = sp.attack(problem, sp.linf(0.15), steps=15)
    low = sp.attack(problem, sp.linf(0.15), steps=15, precision=("float32", "bfloat16", "bfloat16"))
    rates = sp.success_rates(problem, low.delta)
    assert rates.all == low.success.double().mean().item()
    assert abs(rates.all - full.success.double().mean().item()) <= 0.1
    assert low.precision == ("float32", "bfloat16", "bfloat16")
    assert full.precision == ("float32",) * 3
    assert low.delta.dtype == low.history.losses.dtype == torch.float32
    with torch.no_grad():
        exact = sp.cw_margin(problem.logits(low.delta), problem.labels)
    torch.testing.assert_close(low.losses, exact, rtol=0, atol=1e-3)
    assert (low.num_forwards >= 1 + low.success.long()).all()


def _let_passes_take(
    seconds: Callable[[sp.Ensemble, int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes that "auto" measures are made, and take the seconds that are said for a problem and a domain."""
    from saddlepoint.solver import lowering

    made = lowering._pass

    def told(problem: sp.Ensemble, domain: int) -> Any:
        return made(problem, domain)._replace(seconds=seconds(problem, domain))

    monkeypatch.setattr(lowering, "_pass", told)


def _by_way(times: Sequence[float]) -> Callable[[sp.Ensemble, int], float]:
    """Seconds of the four ways, the one that rounds least first."""
    names = ("float32", "float32+channels_last", "bfloat16", "bfloat16+channels_last")

    def seconds(problem: sp.Ensemble, domain: int) -> float:
        how = how_of(problem.models[domain])
        return dict(zip(names, times, strict=True))["float32" if how is None else how.name]

    return seconds


def test_auto_takes_bfloat16_where_it_is_there_and_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    from saddlepoint.solver import lowering

    x, y = torch.rand(4, 8), torch.zeros(4).long()
    slow, fast = (nn.Linear(8, 3).eval() for _ in range(2))
    problem = sp.Ensemble([slow, fast], x, y)
    monkeypatch.setattr(lowering, "is_native", lambda device: True)

    def seconds(problem: sp.Ensemble, domain: int) -> float:
        low = how_of((slow, fast)[domain]) is not None
        return {(0, False): 1.0, (0, True): 0.5, (1, False): 1.0, (1, True): 0.95}[domain, low]

    _let_passes_take(seconds, monkeypatch)
    assert lowering.choose_precisions(problem, "auto").names == ("bfloat16", "float32")
    monkeypatch.setattr(lowering, "is_native", lambda device: False)
    assert lowering.choose_precisions(problem, "auto").names == ("float32", "float32")


def test_a_gpu_is_asked_whether_it_computes_in_bfloat16_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from saddlepoint import precision

    gpu = torch.device("cuda")
    for imitated in (True, False):
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True, imitated=imitated: including_emulation and imitated,
        )
        assert not precision.is_native(gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert precision.is_native(gpu)
    assert not precision.is_native(torch.device("meta"))


def test_auto_measures_again_once_there_are_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from saddlepoint.solver import lowering

    monkeypatch.setattr(lowering, "is_native", lambda device: True)
    seen: list[int] = []
    model = nn.Linear(8, 3).eval()

    def seconds(problem: sp.Ensemble, domain: int) -> float:
        # Parameters are converted once per batch, which pays for many rows and not for one.
        seen.append(len(problem))
        return 1e-3 * (2.0 + 0.1 * len(problem) if how_of(model) else 0.2 * len(problem))

    def chosen(rows: int) -> tuple[str, ...]:
        problem = sp.Ensemble([model], torch.rand(rows, 8), torch.zeros(rows).long())
        return lowering.choose_precisions(problem, "auto").names

    _let_passes_take(seconds, monkeypatch)
    assert chosen(1) == ("float32",)
    assert chosen(32) == ("bfloat16",)  # one row has not decided for good
    assert set(seen) == {1, 8, 16, 32}
    seen.clear()
    assert chosen(500) == chosen(7) == ("bfloat16",)  # nor are the last few rows of a batch asked
    assert seen == []


@pytest.mark.parametrize(("milliseconds", "rows"), [(4.0, [8]), (2.0, [8, 16]), (0.1, [8, 16, 32])])
def test_auto_measures_heavy_networks_on_few_rows_and_asks_nothing_else(
    monkeypatch: pytest.MonkeyPatch, milliseconds: float, rows: list[int]
) -> None:
    """What it compares answers by are those of the passes that it has timed."""
    from saddlepoint.solver import lowering

    monkeypatch.setattr(lowering, "is_native", lambda device: True)
    passes = list[int]()

    def seconds(problem: sp.Ensemble, domain: int) -> float:
        passes.append(len(problem))
        return 1e-3 * milliseconds * len(problem) * (0.5 if how_of(model) else 1.0)

    _let_passes_take(seconds, monkeypatch)
    model, asked = nn.Linear(8, 3).eval(), list[int]()
    model.register_forward_hook(lambda _, inputs, output: asked.append(len(output)))
    problem = sp.Ensemble([model], torch.rand(40, 8), torch.zeros(40).long())
    assert lowering.choose_precisions(problem, "auto").names == ("bfloat16",)
    assert sorted(set(asked)) == rows
    assert asked == passes
    heavy = milliseconds > 1
    assert len(asked) == 2 * len(rows) + (
        0 if heavy else 2 * 2
    )  # of two ways, one is soon hopeless


def test_small_networks_stay_in_float32_under_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    from saddlepoint.solver import lowering

    monkeypatch.setattr(lowering, "_ROUNDS", 20)  # the fastest of them counts
    x, y = sp.data.sample("mnist", 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval()
    result = sp.attack(sp.Ensemble([model], x, y), sp.linf(0.1), steps=2, precision="auto")
    same = sp.attack(sp.Ensemble([model], x, y), sp.linf(0.1), steps=2)
    assert result.precision == ("float32",)
    assert torch.equal(result.delta, same.delta)


@pytest.mark.parametrize("wide", ["images", "parameters"])
def test_float64_stays_float64(wide: str) -> None:
    model, x = nn.Linear(4, 3).eval(), torch.rand(2, 4)
    model, x = (model.double(), x) if wide == "parameters" else (model, x.double())
    problem = sp.Ensemble([model], x, torch.zeros(2).long())
    with pytest.raises(
        ValueError, match=r"`precision` must be float32 or auto for .* float64.*model\.float"
    ):
        sp.attack(problem, sp.linf(0.1), precision="bfloat16")
    if wide == "parameters":
        assert sp.attack(problem, sp.linf(0.1), steps=1, precision="auto").precision == ("float32",)


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("half", "must be one of float32, bfloat16"),
        (("auto",) * 3, "one for each of 1 models, got 3"),
    ],
)
def test_other_words_are_refused(precision: object, words: str) -> None:
    problem = sp.Ensemble([nn.Linear(4, 3).eval()], torch.rand(2, 4), torch.zeros(2).long())
    with pytest.raises(ValueError, match=words):
        sp.attack(problem, sp.linf(0.1), precision=precision)  # type: ignore[arg-type]


def test_one_model_has_one_precision_however_often_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from saddlepoint.solver import lowering

    model, other = nn.Linear(4, 3).eval(), nn.Linear(4, 3).eval()
    problem = sp.Ensemble([model, other, model], torch.rand(2, 4), torch.zeros(2).long())
    for words in (("float32", "float32", "bfloat16"), ("auto", "auto", "float32")):
        with pytest.raises(ValueError, match=rf"models\[0\] and models\[2\], .*'{words[2]}'"):
            sp.attack(problem, sp.linf(0.1), precision=words)
    result = sp.attack(
        problem, sp.linf(0.1), steps=1, precision=("bfloat16", "float32", "bfloat16")
    )
    assert result.precision == ("bfloat16", "float32", "bfloat16")
    # A function is not remembered, and two measurements of it may differ.
    ways = iter(("bfloat16", "float32"))
    monkeypatch.setattr(lowering, "_fastest", lambda *_: next(ways))
    both = sp.Ensemble([torch.neg, torch.neg], torch.rand(2, 4), torch.zeros(2).long())
    assert lowering.choose_precisions(both, "auto").names == ("bfloat16", "bfloat16")


class _Loud(nn.Module):
    """Logits, or only their gradients, that float16 cannot hold and bfloat16 can."""

    def __init__(self, *, backward: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.backward = backward
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images).float() * 1e6 if self.backward else self.linear(images * 1e6)


@pytest.mark.parametrize("solver", [sp.attack, sp.apgda])
@pytest.mark.parametrize("backward", [False, True])
def test_what_float16_cannot_hold_is_said_of_float16(backward: bool, solver: Any) -> None:
    quiet, loud = nn.Identity().eval(), _Loud(backward=backward).eval()
    x, y = torch.tensor([[0.9, 0.2], [0.8, 0.3]]), torch.zeros(2).long()  # right, so that rows stay
    problem = sp.Ensemble([quiet, loud], x, y)
    with pytest.raises(ValueError, match=r"float16 ends at 65504; take precision=.bfloat16."):
        solver(problem, sp.linf(0.1), steps=2, precision="float16")
    solver(problem, sp.linf(0.1), steps=2, precision="bfloat16")

    class Broken(_Loud):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) * torch.nan

    with pytest.raises(ValueError, match="look at what the model"):
        sp.attack(sp.Ensemble([Broken(backward=False).eval()], x, y), sp.linf(0.1), steps=2)


@pytest.mark.parametrize("word", ["float32", "bfloat16"])
def test_models_that_cannot_have_channels_last_are_told_of_the_layout(word: str) -> None:
    class Viewing(_Plain):
        def forward(self, images: Tensor) -> Tensor:
            return self.first(images).view(len(images), -1)[:, :3]

    problem = sp.Ensemble([Viewing().eval()], torch.rand(2, 3, 9, 9), torch.zeros(2).long())
    remedy = rf'must be {word} for Viewing, .*view.*or "auto", .*, got .{word}\+channels_last.'
    with pytest.raises(ValueError, match=remedy):
        sp.attack(problem, sp.linf(0.1), steps=1, precision=f"{word}+channels_last")  # type: ignore[arg-type]


def test_fewer_bits_work_inside_a_users_autocast_and_no_grad() -> None:
    x, y = sp.data.sample("mnist", 6)
    problem = sp.Ensemble([sp.models.load("mnist-c")], x, y)
    plain = sp.attack(problem, sp.linf(0.1), steps=3, precision="bfloat16")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        inside = sp.attack(problem, sp.linf(0.1), steps=3, precision="bfloat16")
    assert torch.equal(plain.delta, inside.delta)
    assert torch.equal(plain.fooled, inside.fooled)


class _Plain(nn.Module):
    """Convolutions in the plain layout, with names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        last = torch.channels_last
        weight = self.second.weight
        self.seen.append((weight.is_contiguous(), images.is_contiguous(memory_format=last)))
        return self.second(self.first(images).relu()).mean(dim=(2, 3))


def test_parameters_and_images_are_laid_out_anew_and_the_model_is_left_alone() -> None:
    model = _Plain().eval()
    x = torch.rand(6, 3, 9, 9)
    with torch.no_grad():
        y = call(model, x).argmax(dim=1)
    problem = sp.Ensemble([model], x, y)
    before = {name: (id(p), p.stride()) for name, p in model.named_parameters()}
    model.seen.clear()
    exact = call(model, x)
    with Precisions((model,), ("float32+channels_last",)).applied():
        other = call(model, x)
    assert model.seen == [(True, False), (False, True)]
    torch.testing.assert_close(other, exact, rtol=1e-5, atol=1e-6)
    result = sp.attack(problem, sp.linf(0.3), steps=3, precision="float32+channels_last")
    assert result.precision == ("float32+channels_last",)
    assert model.seen[-1] == (True, False)  # the verdict is that of the model as it is
    assert {name: (id(p), p.stride()) for name, p in model.named_parameters()} == before
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    with torch.no_grad():
        assert torch.equal(result.fooled[:, 0], model(result.adversarial).argmax(dim=1) != y)


def _twice(shared: str) -> tuple[nn.Sequential, nn.Conv2d, nn.Conv2d]:
    """A network with one convolution under two names, or two that share their filters."""
    first = nn.Conv2d(3, 3, 3, padding=1)
    second = first if shared == "module" else nn.Conv2d(3, 3, 3, padding=1)
    second.weight = first.weight
    layers = [first, nn.ReLU(), second, nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers).eval(), first, second


@pytest.mark.parametrize("shared", ["module", "parameter"])
def test_what_a_model_uses_twice_is_laid_out_in_both_places_and_left_alone(shared: str) -> None:
    model, first, second = _twice(shared)
    own, x = first.weight, torch.rand(6, 3, 9, 9)
    seen = []
    for convolution in {first, second}:
        convolution.register_forward_pre_hook(lambda module, _: seen.append(module.weight.stride()))
    exact = call(model, x)
    assert seen == [own.stride()] * 2
    seen.clear()
    with Precisions((model,), ("float32+channels_last",)).applied():
        other = call(model, x)
    assert seen == [torch.empty(own.shape).to(memory_format=torch.channels_last).stride()] * 2
    torch.testing.assert_close(other, exact, rtol=1e-5, atol=1e-6)
    problem = sp.Ensemble([model], x, exact.argmax(dim=1))
    sp.attack(problem, sp.linf(0.05), steps=3, precision="bfloat16+channels_last")
    assert first.weight is second.weight is own
    assert isinstance(own, nn.Parameter)
    assert own.requires_grad
    model(x).sum().backward()
    assert own.grad is not None


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ((1.0, 0.95, 0.99, 0.92), "float32"),
        ((1.0, 0.8, 0.79, 0.78), "float32+channels_last"),
        ((1.0, 0.95, 0.5, 0.48), "bfloat16"),
        ((1.0, 0.95, 0.5, 0.47), "bfloat16+channels_last"),
        ((1.0, 0.8, 0.5, 0.4), "bfloat16+channels_last"),
    ],
)
def test_auto_takes_the_way_that_rounds_least_of_those_that_are_fast(
    monkeypatch: pytest.MonkeyPatch, times: tuple[float, ...], chosen: str
) -> None:
    from saddlepoint.solver import lowering

    monkeypatch.setattr(lowering, "is_native", lambda device: True)
    _let_passes_take(_by_way(times), monkeypatch)
    problem = sp.Ensemble([_Plain().eval()], torch.rand(2, 3, 9, 9), torch.zeros(2).long())
    assert lowering.choose_precisions(problem, "auto").names == (chosen,)


def test_auto_does_without_what_a_model_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from saddlepoint.solver import lowering

    class Viewing(_Plain):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.view(len(images), -1).view(images.shape))

    problem = sp.Ensemble([Viewing().eval()], torch.rand(2, 3, 9, 9), torch.zeros(2).long())
    monkeypatch.setattr(lowering, "_GAIN", 0.0)  # whatever works is taken, the last of all
    assert "channels_last" not in lowering.choose_precisions(problem, "auto").names[0]
    monkeypatch.setattr(lowering, "is_native", lambda device: False)
    plain = sp.Ensemble([_Plain().eval()], torch.rand(2, 3, 9, 9), torch.zeros(2).long())
    assert lowering.choose_precisions(plain, "auto").names == ("float32+channels_last",)


def test_filters_of_one_channel_are_laid_out_too() -> None:
    how = How.of(nn.Conv2d(1, 8, 3), "float32+channels_last")
    assert how is not None
    assert how.filters["weight"].stride() == (9, 1, 3, 1)
    assert How.of(nn.Linear(2, 2), "float32+channels_last") is None


def test_only_modules_can_be_laid_out() -> None:
    problem = sp.Ensemble([lambda images: images], torch.rand(2, 3), torch.zeros(2).long())
    with pytest.raises(
        ValueError, match="`precision` must be float32 for function, which is no module"
    ):
        sp.attack(problem, sp.linf(0.1), precision="float32+channels_last")


class _Odds(nn.Module):
    """Logarithms of odds, which are infinite once a probability is rounded to one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> Tensor:
        sure = torch.sigmoid(8 * self.linear(images))
        return torch.log(sure) - torch.log(1 - sure)


class _Strided(nn.Module):
    """Reads its filters' answers in the order of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv2d(2, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        found = self.filters(images)
        return torch.as_strided(found, (len(found), 3), (found[0].numel(), 1))


def test_auto_does_without_what_answers_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from saddlepoint.solver import lowering

    monkeypatch.setattr(lowering, "is_native", lambda device: True)
    _let_passes_take(_by_way((1.0, 0.8, 0.5, 0.25)), monkeypatch)
    x = torch.tensor([[0.2, 0.9], [0.9, 0.3]])
    odds = sp.Ensemble([_Odds().eval()], x, torch.tensor([1, 0]))
    assert sp.attack(odds, sp.linf(0.05), steps=2, precision="auto").precision == ("float32",)
    knife = _knife()[1]
    assert lowering.choose_precisions(knife, "auto").names == ("float32",)
    images = sp.Ensemble([_Strided().eval()], torch.rand(4, 2, 8, 8), torch.zeros(4).long())
    assert lowering.choose_precisions(images, "auto").names == ("bfloat16",)


def test_what_is_infinite_in_bfloat16_is_said_of_bfloat16() -> None:
    x = torch.tensor([[0.2, 0.9], [0.9, 0.3]])
    problem = sp.Ensemble([_Odds().eval()], x, torch.tensor([1, 0]))
    with pytest.raises(ValueError, match=r'in bfloat16, .*; take precision="float32"'):
        sp.attack(problem, sp.linf(0.05), steps=2, precision="bfloat16")


@pytest.mark.parametrize("word", ["float32+channels_last", "bfloat16+channels_last"])
def test_models_that_depend_on_the_layout_are_not_searched_in_another(word: Any) -> None:
    problem = sp.Ensemble([_Strided().eval()], torch.rand(8, 2, 8, 8), torch.zeros(8).long())
    plain = word.partition("+")[0]
    with pytest.raises(
        ValueError, match=rf"must be {plain} or auto for _Strided, which answers otherwise"
    ):
        sp.attack(problem, sp.linf(0.1), steps=1, precision=word)


def test_the_layout_is_compared_once_per_model() -> None:
    model = _Plain().eval()
    problem = sp.Ensemble([model], torch.rand(4, 3, 9, 9), torch.zeros(4).long())
    counts = []
    for _ in range(3):
        model.seen.clear()
        sp.attack(problem, sp.linf(0.01), steps=1, precision="float32+channels_last")
        counts.append(len(model.seen))
    assert counts[0] == counts[1] + 2 == counts[2] + 2


@pytest.mark.parametrize("word", ["float32", "bfloat16"])
def test_compiled_models_keep_their_layout(word: str) -> None:
    inside = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    x = torch.rand(2, 3, 9, 9)
    problem = sp.Ensemble([torch.jit.trace(inside, x)], x, torch.zeros(2).long())
    with pytest.raises(ValueError, match=rf'must be {word} for .*compiled.*or "auto"'):
        sp.attack(problem, sp.linf(0.1), steps=1, precision=f"{word}+channels_last")  # type: ignore[arg-type]


@pytest.mark.parametrize("sure", [1.0, 30.0])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_of_float16_are_those_of_float32(sure: float, accumulate: bool) -> None:
    """Where a network is sure, those of the cross-entropy are far below what float16 can hold."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)
        model = nn.Sequential(nn.ReLU(inplace=True), *layers).eval()
        x = torch.rand(6, 2, 2, 2)
    with torch.no_grad():
        y = call(model, x).argmax(dim=1)
        model[4].bias += sure * nn.functional.one_hot(y[0], 3)
        model[4].bias[model[4].bias < 1] = 0
    problem = sp.Ensemble([model], x, y[:1].expand(6))
    found = []
    for precisions in (Precisions((model,), ("float32",)), Precisions((model,), ("float16",))):
        point = evaluate(
            problem,
            problem.zeros(),
            sp.neg_cross_entropy,
            precisions=precisions,
            accumulate=accumulate,
        )
        found.append(point.gradient(torch.ones_like(point.losses)))
    assert found[0].flatten(1).any(dim=1).all()
    size = found[0].abs().flatten(1).amax(dim=1)
    gap = (found[0] - found[1]).abs().flatten(1).amax(dim=1)
    assert (gap <= 0.05 * size).all()
