"""A loader or a data set in place of images and labels: the same numbers, in memory that does not grow."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import saddlepoint as sp
from saddlepoint.evaluation import OurAttack, Target, robust_domains
from saddlepoint.loaders import batches, length
from stand_ins import Memory

THREATS = {"linf": sp.linf(0.1), "l2": sp.l2(1.0)}
SHORT = {math.inf: [OurAttack(steps=2)], 2.0: [OurAttack(steps=2)]}


class Nothing(OurAttack):
    """Leaves every image as it is."""

    def run(self, target: Target) -> Tensor:
        return target.x


class OneByOne(Dataset[tuple[Tensor, int]]):
    """A data set without an end of its own: it has a length, and gives an image for every number."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index % len(self.x)], int(self.y[index % len(self.y)])


class Endless(IterableDataset[tuple[Tensor, int]]):
    """A stream without a length."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.pairs = list(zip(x, y.tolist(), strict=True))

    def __iter__(self):
        return iter(self.pairs)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return sp.models.load("mnist-a")


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    return sp.data.sample("mnist", limit=20)


@pytest.fixture(scope="module")
def at_once(net, images) -> sp.RobustAccuracy:
    return sp.robust_accuracy(net, *images, THREATS, SHORT, batch_size=2)


FORMS = {
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
    "data set": OneByOne,
    "data set of tensors": TensorDataset,
    "stream": Endless,
    "loader of a stream": lambda x, y: DataLoader(Endless(x, y), batch_size=4),
    "arrays": lambda x, y: [(x.numpy()[:9], y.numpy()[:9]), (x.numpy()[9:], y.numpy()[9:])],
    "arrays one by one": lambda x, y: list(zip(x.numpy(), y.numpy(), strict=True)),
}


@pytest.mark.parametrize("form", FORMS)
def test_everything_that_gives_pairs_gives_the_same_images(form, images) -> None:
    x, y = (torch.cat(part) for part in zip(*batches(FORMS[form](*images), 6), strict=True))
    assert torch.equal(x, images[0])
    assert torch.equal(y, images[1])


@pytest.mark.parametrize("form", ["loader", "data set"])
def test_every_table_is_that_of_the_images_at_once(form, net, images, at_once) -> None:
    found = sp.robust_accuracy(net, FORMS[form](*images), THREATS, SHORT, batch_size=2)
    assert torch.equal(found.correct, at_once.correct)
    assert 0 < at_once.union < at_once.clean
    for one, other in zip(found.outcomes, at_once.outcomes, strict=True):
        assert (one.threat, one.attack, one.status) == (other.threat, other.attack, other.status)
        assert torch.equal(one.attacked, other.attacked)
        assert torch.equal(one.broken, other.broken)
        torch.testing.assert_close(one.distance, other.distance)
        assert one.queries == other.queries
    assert found.nearest == {}


def test_random_starts_depend_on_the_number_of_an_image_and_not_on_its_part() -> None:
    seen: list[int] = []

    class Notes(OurAttack):
        def run(self, target: Target) -> Tensor:
            seen.extend(target.rows.tolist())
            return target.x

    x, y = torch.rand(11, 3), torch.zeros(11).long()
    model = nn.Linear(3, 2).eval()
    model.bias.data = torch.tensor([9.0, 0.0])
    sp.robust_accuracy(
        model, TensorDataset(x, y), {"l": sp.linf(0.1)}, {math.inf: [Notes()]}, batch_size=1
    )
    assert seen == list(range(11))


def test_memory_does_not_grow_with_the_images() -> None:
    class Made(OneByOne):
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.full((3, 64, 64), 0.75), 0

    def bright(x: Tensor) -> Tensor:
        mean = x.mean(dim=(1, 2, 3))
        return torch.stack([mean, 0 * mean + 0.5], dim=1)

    def most(count: int) -> int:
        peak = 0

        def callback(state: sp.EvaluationProgress) -> None:
            nonlocal peak
            if state.done != 6:  # once for every part: it takes a while
                return
            found = (each for each in gc.get_objects() if type(each) is Tensor)
            alive = [
                each for each in found if each.layout == torch.strided
            ]  # others have no storage
            storages = {each.untyped_storage().data_ptr(): each.numel() for each in alive}
            peak = max(peak, sum(storages.values()))

        result = sp.robust_accuracy(
            bright,
            Made(count),
            {"linf": sp.linf(0.1)},
            {math.inf: [Nothing()]},
            batch_size=2,
            callback=callback,
        )
        assert (result.count, result.union) == (count, 1.0)
        return peak

    image = 3 * 64 * 64
    few, many = most(16), most(40)
    assert many - few < image  # 24 images more, and not one of them is kept


def test_budgets_are_shared_among_the_parts_and_need_a_length(net, images) -> None:
    loader = DataLoader(TensorDataset(*images), batch_size=8)
    found = sp.robust_accuracy(net, loader, THREATS, SHORT, batch_size=2, budget=1e-9)
    assert {each.status for each in found.outcomes} == {"cut short"}
    assert found.notes[0].startswith(
        "linf attack: images 1 to 8: cut short by the budget of 4e-10 s"
    )
    with pytest.raises(
        ValueError, match="`budget` must be None for data whose length is not known"
    ):
        sp.robust_accuracy(net, Endless(*images), THREATS, SHORT, budget=1.0)


def test_the_length_is_that_of_the_loader(images) -> None:
    data = TensorDataset(*images)  # 20 images
    many = RandomSampler(data, replacement=True, num_samples=128)
    assert length(DataLoader(data, batch_size=8)) == 20
    assert length(DataLoader(data, batch_size=8, drop_last=True)) == 16
    assert length(DataLoader(data, batch_size=8, sampler=many)) == 128
    assert length(DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(5)))) == 5
    assert length(DataLoader(data, batch_sampler=[[0, 1, 2], [3]])) == 4
    assert length(DataLoader(data, batch_sampler=BatchSampler(many, 50, drop_last=True))) == 100
    assert length(DataLoader(data, batch_size=None)) == 20
    assert length(DataLoader(Endless(*images), batch_size=8)) is None
    assert length(DataLoader(data, batch_sampler=Odd())) is None
    few = Subset(data, [0, 1, 2])
    assert (length(few), length(Subset(few, [1])), length(DataLoader(few, batch_size=2))) == (
        3,
        1,
        3,
    )
    assert length(Ahead(DataLoader(data, batch_size=8))) is None  # whose own length counts batches
    assert (
        repr(sp.Parts(lambda x, y: sp.Ensemble([nn.Flatten()], x, y), few)).count("3 images") == 1
    )


class Ahead:
    """Gives what a loader gives; some fetch it ahead, and have the length and data set of the loader."""

    def __init__(self, loader: DataLoader[tuple[Tensor, Tensor]]) -> None:
        self.loader, self.dataset = loader, loader.dataset

    def __iter__(self):
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class Odd(Sampler[list[int]]):
    """Batches of sizes that nobody knows beforehand."""

    def __iter__(self):
        return iter([[0], [1, 2]])

    def __len__(self) -> int:
        return 2


class Waits(OurAttack):
    """Takes a second for every image, on a clock of its own."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        object.__setattr__(self, "clock", clock)

    def run(self, target: Target) -> Tensor:
        for image in target.x:
            target.model(image.unsqueeze(0))
            self.clock[0] += 1.0
        return target.x


@pytest.mark.parametrize(
    ("loader", "count"),
    [
        # Eight images, drawn 32 times.
        (
            lambda d: DataLoader(d, 4, sampler=RandomSampler(d, replacement=True, num_samples=32)),
            32,
        ),
        (lambda d: DataLoader(d, 4, sampler=SubsetRandomSampler(range(4))), 4),
    ],
)
def test_all_parts_of_a_loader_have_the_budget_together(
    loader, count, net, images, monkeypatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    x, _ = images
    data = TensorDataset(x[:8], net(x[:8]).argmax(dim=1))
    threat, suite = {"linf": sp.linf(0.1)}, {math.inf: [Waits(clock)]}
    found = sp.robust_accuracy(net, loader(data), threat, suite, batch_size=1, budget=16.5)
    assert found.count == count
    (outcome,) = found.outcomes
    # An image takes a second, and the last one of a part may begin just before its time is over.
    assert abs(int(outcome.attacked.sum()) - min(count, 16)) <= 1
    assert outcome.seconds <= 17.5
    assert ("union" in found.at_most) == (count > 16)


def test_time_that_a_part_leaves_is_for_the_others(net, images, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    x, _ = images
    says = net(x).argmax(dim=1)
    wrong = (says + 1) % 10
    # The first half is wrong from the start, and takes no time at all.
    data = TensorDataset(x[:8], torch.cat([wrong[:4], says[4:8]]))
    threat, suite = {"linf": sp.linf(0.1)}, {math.inf: [Waits(clock)]}
    found = sp.robust_accuracy(net, data, threat, suite, batch_size=1, budget=4.5)
    assert found.outcomes[0].attacked.tolist() == [False] * 4 + [True] * 4
    assert found.at_most == frozenset()


def test_what_failed_is_counted_over_all_parts(net, images) -> None:
    class Fails(OurAttack):
        def run(self, target: Target) -> Tensor:
            if int(target.rows[0]) >= 8:
                raise RuntimeError("boom")
            return target.x

    suite = {math.inf: [Fails()]}
    threat = {"linf": sp.linf(0.1)}
    loader = DataLoader(TensorDataset(*images), batch_size=8)
    found = sp.robust_accuracy(net, loader, threat, suite, batch_size=2, on_failure="note")
    assert found.outcomes[0].status == "failed"
    assert found.failures[0].images == int(found.correct[8:].sum())
    assert found.at_most == {"union", "robust.linf"}
    with pytest.raises(sp.AttackFailedError, match="boom"):
        sp.robust_accuracy(net, loader, threat, suite, batch_size=2)


def test_a_ledger_has_every_part_and_is_not_asked_twice(net, images) -> None:
    memory, loader = Memory(), DataLoader(TensorDataset(*images), batch_size=8)
    first = sp.robust_accuracy(net, loader, THREATS, SHORT, batch_size=4, ledger=memory)
    assert {key.split("/")[0] for key in memory} == {"from 0", "from 16"}
    before = dict(memory)
    again = sp.robust_accuracy(net, loader, THREATS, SHORT, batch_size=4, ledger=memory)
    assert memory == before
    assert [each.seconds for each in again.outcomes] == [each.seconds for each in first.outcomes]


def test_a_warning_of_every_part_is_said_once(images) -> None:
    soft = nn.Sequential(sp.models.load("mnist-a"), nn.Softmax(-1)).eval()
    with pytest.warns(UserWarning, match="probabilities") as caught:
        sp.robust_accuracy(soft, TensorDataset(*images), THREATS, SHORT, batch_size=2)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ([{"image": torch.rand(3), "label": 1}], TypeError, "got dict; let the loader return"),
        (
            [(torch.rand(3), "cat")],
            TypeError,
            r"must give labels as .*, got str; .* class numbers from 0\.",
        ),
        (
            [(torch.rand(2, 3), torch.zeros(3).long())],
            ValueError,
            r"got shapes \(2, 3\) and \(3,\)",
        ),
        ([(torch.rand(3), 0), (torch.rand(4), 0)], ValueError, r"one shape, got \(3,\) and \(4,\)"),
        (7, TypeError, "must be images, or a DataLoader or data set .*, got int"),
        ([], ValueError, "at least one batch"),
    ],
)
def test_what_gives_no_pairs_is_refused(source, error, message) -> None:
    with pytest.raises(error, match=message):
        sp.robust_accuracy(nn.Linear(3, 2).eval(), source, {"linf": sp.linf(0.1)})


def test_labels_are_not_threats(images) -> None:
    with pytest.raises(TypeError, match="`y` must be labels, got a mapping and threats besides"):
        sp.robust_accuracy(nn.Identity().eval(), images[0], THREATS, THREATS)
    with pytest.raises(ValueError, match="`rows` must be None for a loader"):
        sp.robust_accuracy(nn.Identity().eval(), TensorDataset(*images), THREATS, rows=range(20))


def test_problems_take_a_loader_in_place_of_images_and_labels(net, images) -> None:
    x, y = images
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    views = [sp.transforms.identity, sp.transforms.hflip]
    for problem in (
        sp.Ensemble([net], loader),
        sp.Transformed(net, views, OneByOne(x, y)),
        sp.Product([net], views, loader),
    ):
        assert torch.equal(problem.x, x)
        assert torch.equal(problem.truth[:, 0], y)
    with pytest.raises(ValueError, match="`y` must be the labels of the images, got None"):
        sp.Ensemble([net], x)


def test_a_loop_over_batches_attacks_more_than_fits_into_memory(net, images) -> None:
    x, y = images
    fooled = []
    for part, labels in sp.data.batches(OneByOne(x, y), 8):
        problem = sp.Ensemble([net], part, labels)
        result = sp.attack(problem, sp.linf(0.1), steps=4)
        fooled.append(result.success)
    assert [len(each) for each in fooled] == [8, 8, 4]
    whole = sp.attack(sp.Ensemble([net], x, y), sp.linf(0.1), steps=4)
    assert torch.equal(torch.cat(fooled), whole.success)


def test_batches_are_of_one_size_whatever_comes() -> None:
    x, y = torch.arange(23.0).view(23, 1), torch.arange(23)
    for size in (1, 4, 7, 30):
        loader = DataLoader(TensorDataset(x, y), batch_size=5)
        found = list(batches(loader, size))
        assert [len(part) for part, _ in found[:-1]] == [size] * (len(found) - 1)
        assert torch.equal(torch.cat([part for part, _ in found]), x)
        assert torch.equal(torch.cat([labels for _, labels in found]), y)
    with pytest.raises(ValueError, match="`size` must be >= 1"):
        next(batches(loader, 0))


def test_groups_and_the_doctor_take_arrays(net, images) -> None:
    x, y = images
    groups, labels = sp.data.group(x.numpy(), y.numpy(), size=5)
    expected = sp.data.group(x, y, size=5)
    assert torch.equal(groups, expected[0])
    assert torch.equal(labels, expected[1])
    found = [
        [
            (each.name, each.status)
            for each in sp.doctor.examine(net, *given, eps=0.1, steps=2, queries=5)
        ]
        for given in ((x, y), (np.asarray(x), np.asarray(y)), (OneByOne(x, y),))
    ]
    assert found[0] == found[1] == found[2]


class TestDomains:
    """Problems one after the other, in place of one that holds all images."""

    @staticmethod
    def options(**more):
        return {"suite": SHORT, "batch_size": 4, "steps": 3, "searches": 2, **more}

    def test_every_table_is_that_of_one_problem(self, net, images) -> None:
        models = [net, sp.models.load("mnist-c")]
        x, y = (part[:9] for part in images)
        threat = {"linf": sp.linf(0.1)}
        whole = robust_domains(sp.Ensemble(models, x, y), threat, **self.options())
        stream = (sp.Ensemble(models, *part) for part in batches(TensorDataset(x, y), 4))
        found = robust_domains(stream, threat, **self.options())
        for name in ("fooled", "broken", "weights", "eps_min"):
            torch.testing.assert_close(getattr(found, name), dict(getattr(whole, name)))
        assert (found.clean, found.union, found.joint) == (whole.clean, whole.union, whole.joint)
        for name, each in whole.per_domain.items():
            other = found.per_domain[name].outcomes[0]
            assert torch.equal(other.broken, each.outcomes[0].broken)
            torch.testing.assert_close(other.distance, each.outcomes[0].distance)
        assert found.nearest == {}
        assert found.count == 9

    def test_failures_and_remarks_are_counted_over_all_parts(self, images) -> None:
        def moody(x: Tensor) -> Tensor:
            if x.requires_grad:
                raise RuntimeError("boom")
            return torch.stack([x.mean((1, 2, 3)) + 9, x.mean((1, 2, 3))], dim=1)

        x, y = images[0][:6], torch.zeros(6).long()
        problems = [sp.Ensemble([moody, moody], x[k : k + 3], y[k : k + 3]) for k in (0, 3)]
        threat, suite = {"linf": sp.linf(0.1)}, {math.inf: [Nothing()]}
        options = self.options(suite=suite, on_failure="note")
        found = robust_domains(problems, threat, **options)
        assert {(each.attack, each.images) for each in found.failed} == {
            ("min-max", 6),
            ("eps_min", 6),
        }
        assert "joint.linf" in found.at_most

    def test_what_gives_no_problems_is_refused(self, net, images) -> None:
        threat = {"linf": sp.linf(0.1)}
        with pytest.raises(ValueError, match="`problem` must give at least one problem"):
            robust_domains([], threat)
        stream = iter([sp.Ensemble([net], *images)])
        with pytest.raises(ValueError, match="`budget` must be None for data whose length"):
            robust_domains(stream, threat, budget=3.0)
        with pytest.raises(ValueError, match="`problem` must be an Ensemble"):
            robust_domains(7, threat)
        with pytest.raises(ValueError, match="`problem` must give problems, got Tensor"):
            robust_domains(images[0], threat)
