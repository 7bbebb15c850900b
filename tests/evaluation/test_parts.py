"""Attacks on more images than fit into memory: the numbers of one attack, and one part in memory at a time."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import saddlepoint as sp
from saddlepoint.evaluation import OurAttack

BALL = sp.linf(0.12)


@pytest.fixture(scope="module")
def nets() -> list[nn.Module]:
    return [sp.models.load("mnist-a"), sp.models.load("mnist-c")]


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    return sp.data.sample("mnist", limit=14)


@pytest.fixture(scope="module")
def parts(nets, images) -> sp.Parts[sp.Ensemble]:
    loader = DataLoader(TensorDataset(*images), batch_size=4)
    return sp.Parts(lambda x, y: sp.Ensemble(nets, x, y, names=["A", "C"]), loader, size=5)


@pytest.fixture(scope="module")
def at_once(nets, images) -> sp.AttackResult:
    problem = sp.Ensemble(nets, *images, names=["A", "C"])
    return sp.attack(problem, BALL, steps=4, restarts=2, quantize=256)


def attacked(parts: sp.Parts[sp.Ensemble]):
    return (sp.attack(part, BALL, steps=4, restarts=2, quantize=256) for part in parts)


def test_rows_are_numbered_through_all_parts(parts) -> None:
    assert [part.rows.tolist() for part in parts] == [
        [*range(5)],
        [*range(5, 10)],
        [*range(10, 14)],
    ]
    assert repr(parts) == "Parts(14 images, 5 at a time)"
    assert repr(sp.Parts(parts.make, iter([]))) == "Parts(? images, 128 at a time)"


def test_rates_are_those_of_one_attack(parts, at_once) -> None:
    # Random starts are those of one attack too: the second restart begins at random points.
    expected = sp.success_rates(at_once)
    found = sp.success_rates(attacked(parts))
    assert 0 < int(at_once.success.sum()) < 14
    assert torch.equal(found.fooled, expected.fooled)
    assert torch.equal(found.correct, expected.correct)
    assert (found.names, found.count) == (("A", "C"), 14)
    again = sp.success_rates(at_once.asked.problem, at_once)
    assert torch.equal(again.fooled, expected.fooled)


def test_random_transforms_draw_as_in_one_problem(nets, images) -> None:
    views = [sp.transforms.identity, sp.transforms.paper_random_family()[-1]]

    def make(x: Tensor, y: Tensor) -> sp.Transformed:
        return sp.Transformed(nets[0], views, x, y)

    whole = make(*images)
    seen = [part.view(part.zeros(), 1) for part in sp.Parts(make, TensorDataset(*images), size=6)]
    torch.testing.assert_close(torch.cat(seen), whole.view(whole.zeros(), 1))


def test_images_of_all_parts_are_saved_in_one_folder(parts, at_once, tmp_path: Path) -> None:
    one = sp.save_images(at_once, tmp_path / "one")
    many = sp.save_images(attacked(parts), tmp_path / "many")
    assert [p.relative_to(many.folder) for (p,) in many.files] == [
        p.relative_to(one.folder) for (p,) in one.files
    ]
    for name in ("before", "fooled", "outside", "unperturbed"):
        assert torch.equal(getattr(many, name), getattr(one, name)), name
    for (mine,), (theirs,) in zip(many.files, one.files, strict=True):
        assert mine.read_bytes() == theirs.read_bytes()
    told = [json.loads((each.folder / "verdicts.json").read_text()) for each in (one, many)]
    assert told[0] == told[1]


def test_robust_domains_takes_parts_and_knows_how_many_images_there_are(images) -> None:
    torch.manual_seed(0)
    linear = [nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval() for _ in range(2)]
    x, y = images[0], linear[0](images[0]).argmax(dim=1)
    suite = {torch.inf: [OurAttack(steps=2)]}
    how = {"steps": 2, "searches": 1, "batch_size": 4}
    parts = sp.Parts(lambda x, y: sp.Ensemble(linear, x, y), TensorDataset(x, y), size=5)
    found = sp.robust_domains(parts, {"linf": sp.linf(0.01)}, suite, budget=1e9, **how)
    whole = sp.Ensemble(linear, x, y)
    expected = sp.robust_domains(whole, {"linf": sp.linf(0.01)}, suite, **how)
    assert 0 < int(expected.fooled["linf"].sum()) < 14
    assert torch.equal(found.fooled["linf"], expected.fooled["linf"])
    assert found.count == 14


def test_rows_of_one_number_would_overwrite_each_other(nets, images, tmp_path: Path) -> None:
    problem = sp.Ensemble(nets[:1], images[0][:2], images[1][:2])
    results = (sp.attack(problem, BALL, steps=1, quantize=256) for _ in range(2))
    with pytest.raises(
        ValueError, match=r"rows have different numbers.*got number 0 twice.*sp.Parts"
    ):
        sp.save_images(results, tmp_path)
    assert list(tmp_path.iterdir()) == []  # what the first left is gone
    result = sp.attack(problem, BALL, steps=1, quantize=256)
    with pytest.raises(ValueError, match=r"`problem` must give .* got number 0 twice.*sp.Parts"):
        sp.success_rates([result, result])
    twice = sp.attack(problem.take(torch.tensor([1, 1])), BALL, steps=1, quantize=256)
    with pytest.raises(ValueError, match="got number 1 twice"):
        sp.save_images(twice, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"models": [1, 0]},
            "the same models, got others from row 2 on; make them once, outside of",
        ),
        ({"models": [0]}, "the same domains, got model 1, model 2, then model 1"),
        ({"ball": sp.l2(3.0)}, "the same norm, got inf, then 2"),
        ({"ball": sp.linf(0.2)}, "the same radius, got 0.12, then 0.2"),
        ({"targeted": True}, "the same `targeted`, got False, then True"),
    ],
)
def test_results_of_different_problems_are_not_joined(
    nets, images, tmp_path: Path, change, message
) -> None:
    def result(first: int, models=(0, 1), ball=BALL, targeted=False) -> sp.AttackResult:
        problem = sp.Ensemble([nets[k] for k in models], *(each[: first + 2] for each in images))
        rows = torch.arange(first, first + 2)
        return sp.attack(problem.take(rows), ball, steps=1, targeted=targeted, quantize=256)

    both = [result(0), result(2, **change)]
    with pytest.raises(ValueError, match=f"`problem` must give results .* {message}"):
        sp.success_rates(both)
    with pytest.raises(ValueError, match=f"`result` must give results .* {message}"):
        sp.save_images(both, tmp_path)
    assert list(tmp_path.iterdir()) == []
    own = sp.linf(torch.tensor([0.1, 0.2]))
    joined = sp.success_rates([result(0, ball=own), result(2, ball=own)])
    assert joined.count == 4  # rows with a radius each


@pytest.mark.parametrize("new", [True, False])
def test_nothing_stays_of_images_that_were_not_all_saved(parts, tmp_path: Path, new: bool) -> None:
    folder = tmp_path / "images" if new else tmp_path

    def failing():
        for number, result in enumerate(attacked(parts)):
            if number == 1:
                raise RuntimeError("out of memory")
            yield result

    with pytest.raises(RuntimeError, match="out of memory") as failure:
        sp.save_images(failing(), folder)
    assert failure.value.__notes__ == [
        "nothing was saved: 5 images that were written before this are removed again."
    ]
    assert list(tmp_path.iterdir()) == []
    assert len(sp.save_images(attacked(parts), folder).files) == 14


def test_what_gives_no_results_is_refused(parts, at_once, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`problem` must give at least one result, got none"):
        sp.success_rates(iter([]))
    with pytest.raises(ValueError, match="`result` must give at least one result, got none"):
        sp.save_images(iter([]), tmp_path)
    for wrong, name in ((parts, "Ensemble"), ([3], "int"), (3, "int")):
        with pytest.raises(
            TypeError, match=f"`result` must be or give results of attacks, got {name}"
        ):
            sp.save_images(wrong, tmp_path)
    with pytest.raises(TypeError, match="`delta` must be left out for results"):
        sp.success_rates(at_once, at_once.delta)
    with pytest.raises(
        TypeError, match="`problem` must be or give results of attacks, got Ensemble"
    ):
        sp.success_rates(parts)
    with pytest.raises(TypeError, match="`delta` must be perturbations"):
        sp.success_rates(at_once.asked.problem)
    with pytest.raises(TypeError, match="`make` must be a function from images and labels"):
        sp.Parts(at_once, [])
    with pytest.raises(TypeError, match="`make` must return a problem, got int"):
        next(iter(sp.Parts(lambda x, y: 3, [(torch.rand(2, 3), [0, 1])])))
    other = sp.Ensemble(at_once.asked.problem.models[:1], *sp.data.sample("mnist", 1), names=["B"])
    other.rows = other.rows + 14
    with pytest.raises(ValueError, match=r"with the same domains, got A, C, then B\."):
        sp.success_rates([at_once, sp.attack(other, BALL, steps=1)])


# -------------------------------------------------------------------------------------------- memory


class Made(Dataset[tuple[Tensor, int]]):
    """Images that exist when they are asked for; with the last of them it measures what is alive."""

    shape = (3, 64, 64)

    def __init__(self, count: int) -> None:
        self.count, self.peak = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.count - 1:
            found = (each for each in gc.get_objects() if type(each) is Tensor)
            alive = [each for each in found if each.layout == torch.strided]
            sizes = {e.untyped_storage().data_ptr(): e.untyped_storage().nbytes() for e in alive}
            self.peak = sum(sizes.values())
        return torch.full(self.shape, 191 / 255), 0


def bright(x: Tensor) -> Tensor:
    mean = x.mean(dim=(1, 2, 3))
    return torch.stack([mean, 0 * mean + 0.5], dim=1)


def in_parts(data: Made):
    parts = sp.Parts(lambda x, y: sp.Ensemble([bright], x, y), data, size=6)
    return (sp.attack(part, sp.linf(8 / 255), steps=1, quantize=256) for part in parts)


def read_whole(data: Made):
    return [sp.attack(sp.Ensemble([bright], data), sp.linf(8 / 255), steps=1, quantize=256)]


def growth(use: Callable[[Made, int], object]) -> int:
    """Bytes that are alive in the end for 24 images more."""
    few, many = Made(24), Made(48)
    for data in (few, many):
        gc.collect()
        use(data, len(data))
    return many.peak - few.peak


IMAGE = 4 * 3 * 64 * 64


def test_rates_of_parts_need_the_memory_of_a_part() -> None:
    def use(data: Made, count: int) -> None:
        assert sp.success_rates(in_parts(data)).count == count

    assert growth(use) < IMAGE  # 24 images more, and not one of them is kept


def test_images_of_parts_are_saved_in_the_memory_of_a_part(tmp_path: Path) -> None:
    def use(data: Made, count: int) -> None:
        assert len(sp.save_images(in_parts(data), tmp_path / str(count)).files) == count

    assert growth(use) < IMAGE


def test_the_measure_sees_what_is_read_as_a_whole() -> None:
    def use(data: Made, count: int) -> None:
        assert sp.success_rates(read_whole(data)).count == count

    assert growth(use) > 12 * IMAGE


def test_the_doctor_reads_no_more_than_it_looks_at() -> None:
    asked: list[int] = []

    class Noted(Made):
        shape = (1, 4, 4)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            asked.append(index)
            return super().__getitem__(index)

    sp.doctor.examine(bright, Noted(500), steps=1, queries=1)
    assert asked == list(range(64))
