"""Evaluations whose own attacks search in fewer bits: verdicts are those of full precision."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.evaluation.attacks import AbstractAttack, Target

LINF = {"linf": sp.linf(0.15)}
SUITE = {math.inf: [sp.evaluation.OurAttack(steps=4)]}


@pytest.fixture
def dtypes() -> Iterator[list[torch.dtype]]:
    """What linear layers computed in, call by call."""
    seen: list[torch.dtype] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Linear):
            seen.append(output.dtype)

    with torch.nn.modules.module.register_module_forward_hook(note):
        yield seen


def _right(model: nn.Module, images: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images).argmax(dim=1) == y


def test_what_bfloat16_breaks_is_broken_in_float32(dtypes: list[torch.dtype]) -> None:
    x, y = sp.data.sample("mnist", 12)
    model = sp.models.load("mnist-d")
    suite = {math.inf: [sp.evaluation.OurAttack(steps=10)]}
    full = sp.robust_accuracy(model, x, y, LINF, suite)
    assert set(dtypes) == {torch.float32}
    assert full.precision == ("float32",)
    dtypes.clear()
    low = sp.robust_accuracy(model, x, y, LINF, suite, precision="bfloat16")
    assert set(dtypes) == {torch.float32, torch.bfloat16}
    assert low.precision == ("bfloat16",)
    broken = low.outcomes[0].broken
    assert broken.any()
    assert low.nearest["linf"].dtype == torch.float32
    assert not _right(model, x + low.nearest["linf"], y)[broken].any()
    assert torch.equal(low.correct, full.correct)  # without attack: full precision too
    assert abs(low.union - full.union) <= 1 / 12
    assert low.outcomes[0].queries != full.outcomes[0].queries  # what looked fooled was asked again


class _Knife(nn.Module):
    """Right by 0.1 in float32, while 256 + 0.1 and 256 are one number in bfloat16, and class 0 loses ties."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[1, 1] = 1e-3  # so that there is a gradient
            self.linear.bias.copy_(torch.tensor([256.0, 256.1]))

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images)


def test_what_only_looks_broken_in_bfloat16_is_not() -> None:
    x, y = torch.full((3, 2), 0.5), torch.ones(3).long()
    robust = sp.robust_accuracy(_Knife().eval(), x, y, LINF, SUITE, precision="bfloat16")
    assert robust.union == 1.0
    # Five iterates asked twice, then the verdict.
    assert robust.outcomes[0].queries == 3 * (2 * 5 + 1)


@pytest.mark.parametrize("several", [False, True])
def test_auto_is_decided_on_the_first_part_of_a_loader(
    several: bool, monkeypatch: pytest.MonkeyPatch, dtypes: list[torch.dtype]
) -> None:
    from saddlepoint.solver import lowering

    network = sp.models.load("mnist-c")
    ways = iter(["bfloat16", "float32", "float32"])  # as noise may have it
    monkeypatch.setattr(lowering, "_fastest", lambda *_: next(ways))
    x, y = sp.data.sample("mnist", 12)
    parts = list(zip(x.split(4), y.split(4), strict=True))
    model = lambda images: network(images)  # noqa: E731  # a function, which is not remembered
    if several:
        problems = (sp.Ensemble([model], *part) for part in parts)
        found = sp.robust_domains(problems, LINF, SUITE, precision="auto")
    else:
        found = sp.robust_accuracy(model, parts, LINF, SUITE, batch_size=1, precision="auto")
    assert found.precision == ("bfloat16",)
    low = [number for number, dtype in enumerate(dtypes) if dtype == torch.bfloat16]
    assert low[-1] > len(dtypes) * 2 / 3  # the last part, too
    assert next(ways) == "float32"  # measured once


@pytest.mark.parametrize("several", [False, True])
def test_auto_is_decided_anew_where_a_loader_goes_on_in_float64(
    several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a tensor of such images, which never compute in fewer bits."""
    from saddlepoint.solver import lowering

    monkeypatch.setattr(lowering, "is_native", lambda _: True)
    monkeypatch.setattr(lowering, "_fastest", lambda problem, index, ways: ways[-1])
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval()
    x, y = sp.data.sample("mnist", 12)
    images = [x[:4], x[4:8].double(), x[8:]]
    parts = list(zip(images, y.split(4), strict=True))

    def evaluated(these: list[tuple[Tensor, Tensor]], precision: str):
        if several:
            problems = (sp.Ensemble([model], *part) for part in these)
            return sp.robust_domains(problems, LINF, SUITE, precision=precision)  # type: ignore[arg-type]
        return sp.robust_accuracy(model, these, LINF, SUITE, batch_size=1, precision=precision)  # type: ignore[arg-type]

    assert evaluated(parts[1:2], "auto").precision == ("float32",)
    found = evaluated(parts, "auto")
    assert found.precision == ("bfloat16 and float32",)
    single = [evaluated([part], "auto").union for part in parts]
    assert found.union == pytest.approx(sum(single) / 3)
    with pytest.raises(ValueError, match="must be float32 or auto for images or parameters of flo"):
        evaluated(parts, "bfloat16")


def test_attacks_of_others_see_float32(dtypes: list[torch.dtype]) -> None:
    class Foreign(AbstractAttack):
        name = "foreign"

        def run(self, target: Target) -> Tensor:
            target.model(target.x)
            return target.x

    x, y = sp.data.sample("mnist", 4)
    model = sp.models.load("mnist-a")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sp.robust_accuracy(model, x, y, LINF, {math.inf: [Foreign()]}, precision="bfloat16")
    assert set(dtypes) == {torch.float32}


def test_several_domains_are_searched_in_fewer_bits_and_judged_in_all(
    dtypes: list[torch.dtype],
) -> None:
    x, y = sp.data.sample("mnist", 6)
    models = [sp.models.load(f"mnist-{n}") for n in "cd"]
    problem = sp.Ensemble(models, x, y, names=["C", "D"])
    suite = {math.inf: [sp.evaluation.OurAttack(steps=8)]}
    options = {"steps": 8, "searches": 2}
    found = sp.evaluation.robust_domains(
        problem, LINF, suite, precision=("float32", "bfloat16"), **options
    )
    assert torch.bfloat16 in dtypes
    assert found.precision == ("float32", "bfloat16")
    every = found.fooled["linf"]
    assert every.any()
    for name, model in zip("CD", models, strict=True):
        assert not _right(model, x + found.nearest["linf"], y)[every].any()
        alone = found.per_domain[name]
        broken = alone.outcomes[0].broken
        assert not _right(model, x + alone.nearest["linf"], y)[broken].any()


def test_several_processes_take_what_the_first_one_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Shared:
        """The second of two processes."""

        def get(self, key: str) -> None: ...

        def put(self, key: str, page: object) -> None: ...

        def share(self, count: int) -> range:
            return range(count)

        def gather(self, value: object) -> list[object]:
            return [("bfloat16",) if value == ("float32",) else value, value]

    x, y = sp.data.sample("mnist", 2)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval()
    suite = {math.inf: [sp.evaluation.OurAttack(steps=1)]}
    found = sp.robust_accuracy(
        linear,
        x,
        y,
        LINF,
        suite,
        precision="auto",
        ledger=Shared(),  # type: ignore[arg-type]
    )
    assert found.precision == ("bfloat16",)


def test_unknown_words_are_refused() -> None:
    x, y = sp.data.sample("mnist", 2)
    with pytest.raises(ValueError, match="`precision` must be one of float32, bfloat16"):
        sp.robust_accuracy(sp.models.load("mnist-a"), x, y, LINF, precision="half")  # type: ignore[arg-type]
