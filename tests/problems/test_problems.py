"""What a domain is: logits, boxes and rows of the four kinds of problem."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from saddlepoint import Ensemble, Product, Transformed, Universal, linf, robust_accuracy
from saddlepoint import transforms as T
from saddlepoint.problems import AbstractProblem
from saddlepoint.problems.inputs import picked

B, K, CLASSES = 5, 3, 4


def linear(seed: int, size: int = 12) -> nn.Module:
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, CLASSES)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return model


def images(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=g, dtype=torch.float64)


X, Y = images(B, 1, 3, 4), torch.tensor([0, 3, 1, 2, 2])
GROUPS, LABELS = images(B, K, 1, 3, 4, seed=1), torch.arange(B * K).reshape(B, K) % CLASSES
MODELS = [linear(seed) for seed in range(K)]
RANDOM = [T.random_rotate(-30, 30), T.identity, T.random_crop_resize(0.5, 1.0)]


def all_problems() -> dict[str, AbstractProblem]:
    return {
        "ensemble": Ensemble(MODELS, X, Y),
        "universal": Universal(MODELS[0], GROUPS, LABELS),
        "universal, clipped": Universal(MODELS[0], GROUPS, LABELS, box="clip"),
        "transformed": Transformed(MODELS[0], [T.identity, T.hflip, T.rotate(30)], X, Y),
        "random": Transformed(MODELS[0], RANDOM, X, Y, samples=2, seed=5),
        "product": Product(MODELS[:2], [T.identity, T.vflip, T.random_hflip(0.5)], X, Y),
    }


PROBLEMS = all_problems()
DELTA = 0.2 * (images(B, 1, 3, 4, seed=2) - 0.5)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_contract_on_shapes_and_boxes(name: str) -> None:
    problem = PROBLEMS[name]
    k = problem.num_domains
    assert len(problem) == B
    assert problem.labels.shape == (B, k)
    assert len(problem.names) == k == len(set(problem.names))
    assert problem.logits(problem.zeros()).shape == (B, k, CLASSES)
    assert torch.equal(problem.zeros(), torch.zeros(B, 1, 3, 4).double())
    assert bool((problem.lower <= 0).all() & (problem.upper >= 0).all())
    assert problem.rows.tolist() == list(range(B))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("stream", [0, 3])
def test_one_domain_at_a_time_gives_the_same_logits(name: str, stream: int) -> None:
    problem = PROBLEMS[name]
    together = problem.logits(DELTA, stream)
    for k in range(problem.num_domains):
        alone = problem.domain_logits(DELTA, k, stream)
        torch.testing.assert_close(alone, together[:, k], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("stream", [0, 7])
def test_taking_rows_changes_no_row_and_keeps_its_number(name: str, stream: int) -> None:
    problem = PROBLEMS[name]
    together = problem.logits(DELTA, stream)
    part = problem.take(torch.tensor([4, 1, 2]))
    assert part.rows.tolist() == [4, 1, 2]
    twice = part.take(torch.tensor([2, 0]))
    assert twice.rows.tolist() == [2, 4]
    assert type(twice) is type(problem)
    assert twice.names == problem.names
    for field in ("labels", "lower", "upper"):
        assert torch.equal(getattr(twice, field), getattr(problem, field)[[2, 4]])
    logits = twice.logits(DELTA[[2, 4]], stream)
    torch.testing.assert_close(logits, together[[2, 4]], rtol=1e-12, atol=1e-12)
    assert torch.equal(twice.images(DELTA[[2, 4]]), problem.images(DELTA)[[2, 4]])
    assert len(problem) == B


def test_an_array_that_was_turned_round_is_an_array() -> None:
    x = images(B, 3, 2, 2)
    turned = Ensemble([linear(0)], x.numpy()[:, :, ::-1], torch.arange(B).numpy()[::-1] % 4)
    assert torch.equal(turned.x, x.flip(2))
    assert turned.labels[:, 0].tolist() == [0, 3, 2, 1, 0]


def test_labels_beside_a_loader_are_told_to_be_left_out() -> None:
    x, y = images(B, 3, 2, 2), torch.arange(B) % 4
    loader = DataLoader(TensorDataset(x, y))
    for source in (loader, loader.dataset):
        with pytest.raises(TypeError, match=r"`y` must be left out for \w+, which gives both"):
            Ensemble([linear(0)], source, y)
        with pytest.raises(TypeError, match=r"`y` must be left out for \w+, which gives both"):
            robust_accuracy(linear(0), source, y, {"linf": linf(0.1)})


def test_an_ensemble_is_its_models_side_by_side() -> None:
    problem = PROBLEMS["ensemble"]
    expected = torch.stack([model(X) for model in MODELS], dim=1)
    torch.testing.assert_close(problem.logits(problem.zeros()), expected)
    moved = torch.stack([model(X + DELTA) for model in MODELS], dim=1)
    torch.testing.assert_close(problem.logits(DELTA), moved)
    assert torch.equal(problem.labels, Y[:, None].expand(B, K))
    assert torch.equal(problem.lower, -X)
    torch.testing.assert_close(problem.upper, 1 - X, rtol=0, atol=2**-53)
    assert problem.names == ("model 1", "model 2", "model 3")


def test_a_universal_problem_asks_one_model_about_every_image_of_the_group() -> None:
    problem = PROBLEMS["universal"]
    for b in range(B):
        for k in range(K):
            expected = MODELS[0](GROUPS[b, k][None] + DELTA[b])[0]
            torch.testing.assert_close(problem.logits(DELTA)[b, k], expected)
    assert torch.equal(problem.labels, LABELS)


def test_the_universal_box_is_the_exact_intersection() -> None:
    problem = PROBLEMS["universal"]
    lower = torch.stack([-GROUPS[:, k] for k in range(K)]).amax(dim=0)
    upper = torch.stack([1 - GROUPS[:, k] for k in range(K)]).amin(dim=0)
    assert torch.equal(problem.lower, lower)
    torch.testing.assert_close(problem.upper, upper, rtol=0, atol=2**-53)
    for corner in (lower, upper):
        pictures = problem.images(corner)
        assert pictures.shape == GROUPS.shape
        assert bool(((pictures >= 0) & (pictures <= 1)).all())
        # and not smaller than necessary: every pixel touches 0 or 1 in one image of its group
        edge = (pictures.clamp(0, 1) - pictures.clamp(0, 1).round()).abs().amin(dim=1)
        torch.testing.assert_close(edge, torch.zeros_like(edge))


def test_clipping_lets_delta_reach_every_image_and_clips_each() -> None:
    problem = PROBLEMS["universal, clipped"]
    assert torch.equal(problem.lower, -GROUPS.amax(dim=1))
    torch.testing.assert_close(problem.upper, 1 - GROUPS.amin(dim=1), rtol=0, atol=2**-53)
    delta = problem.upper
    clipped = (GROUPS + delta[:, None]).clamp(0, 1)
    assert torch.equal(problem.images(delta), clipped)
    expected = torch.stack([MODELS[0](clipped[:, k]) for k in range(K)], dim=1)
    torch.testing.assert_close(problem.logits(delta), expected)


def test_transforms_act_on_the_perturbed_image() -> None:
    problem = PROBLEMS["transformed"]
    views = [X + DELTA, (X + DELTA).flip(-1), T.rotate(30)(X + DELTA)]
    expected = torch.stack([MODELS[0](view) for view in views], dim=1)
    torch.testing.assert_close(problem.logits(DELTA), expected)
    for k, view in enumerate(views):
        assert torch.equal(problem.view(DELTA, k), view)
    assert problem.names == ("ori", "flh", "rot")
    assert problem.random is False
    assert torch.equal(problem.images(DELTA), X + DELTA)


def test_plain_callables_serve_as_transforms_and_models() -> None:
    def negative(pictures: Tensor) -> Tensor:
        return 1 - pictures

    def model(pictures: Tensor) -> Tensor:
        return pictures.flatten(1)[:, :CLASSES]

    problem = Transformed(model, [negative], X, Y)
    assert torch.equal(problem.logits(DELTA)[:, 0], model(1 - (X + DELTA)))
    assert problem.names == ("negative",)


def test_a_product_runs_through_the_transforms_model_by_model() -> None:
    problem = Product(MODELS[:2], [T.identity, T.hflip, T.vflip], X, Y)
    moved = X + DELTA
    expected = [m(t) for m in MODELS[:2] for t in (moved, moved.flip(-1), moved.flip(-2))]
    torch.testing.assert_close(problem.logits(DELTA), torch.stack(expected, dim=1))
    assert problem.names == tuple(f"model {m}/{t}" for m in (1, 2) for t in ("ori", "flh", "flv"))
    assert problem.num_domains == 6


def test_random_transforms_depend_on_row_and_stream_but_on_nothing_else() -> None:
    problem = PROBLEMS["random"]
    assert problem.random is True
    assert problem.samples == 2
    first, again, later = (problem.logits(DELTA, stream) for stream in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first[:, 0], later[:, 0])
    assert torch.equal(first[:, 1], later[:, 1])  # the identity is not random
    twin = Transformed(MODELS[0], RANDOM, X[:1].expand(B, -1, -1, -1), Y, seed=5)
    same_image = twin.logits(torch.zeros_like(DELTA))[:, 0]
    assert same_image.unique(dim=0).shape[0] == B  # every row has its own draw
    other_seed = Transformed(MODELS[0], RANDOM, X, Y, seed=6).logits(DELTA)
    assert not torch.allclose(first[:, 0], other_seed[:, 0])


def test_samples_of_deterministic_transforms_are_not_drawn_twice() -> None:
    assert Transformed(MODELS[0], [T.hflip], X, Y, samples=9).samples == 1


def test_models_may_differ_in_input_size_share_layers_and_come_as_a_module_list() -> None:
    class Resizing(nn.Module):
        def __init__(self, head: nn.Module, size: tuple[int, int]) -> None:
            super().__init__()
            self.head, self.size = head, size

        def forward(self, pictures: Tensor) -> Tensor:
            return self.head(F.interpolate((pictures - 0.5) / 0.25, self.size))

    small, large = linear(7, 4), linear(8, 35)
    models = [Resizing(small, (2, 2)).eval(), Resizing(large, (5, 7)).eval(), small_twice(small)]
    for sequence in (models, tuple(models), nn.ModuleList(m for m in models)):
        problem = Ensemble(sequence, X, Y)
        expected = torch.stack([model(X + DELTA) for model in models], dim=1)
        torch.testing.assert_close(problem.logits(DELTA), expected)


def small_twice(layer: nn.Module) -> nn.Module:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, pictures: Tensor) -> Tensor:
            return 2 * self.layer(pictures[..., :2, :2])

    return Twice().eval()


def test_models_with_names_lend_them_to_the_domains() -> None:
    named = [linear(0), linear(1)]
    named[0].name, named[1].name = "first", "second"
    assert Ensemble(named, X, Y).names == ("first", "second")
    assert Ensemble([named[0], named[0]], X, Y).names == ("model 1", "model 2")
    assert Ensemble(named, X, Y, names=["a", "b"]).names == ("a", "b")
    assert Universal(MODELS[0], GROUPS, LABELS).names == ("image 1", "image 2", "image 3")


def test_images_a_hair_outside_are_taken_in_and_the_users_tensor_is_left() -> None:
    x = X.clone()
    x[0, 0, 0, 0], x[1, 0, 0, 0] = -5e-7, 1 + 5e-7
    before = x.clone()
    problem = Ensemble(MODELS, x.requires_grad_(), Y)
    assert torch.equal(x.detach(), before)
    assert problem.lower[0, 0, 0, 0] == 0
    assert problem.upper[1, 0, 0, 0] == 0
    assert not problem.images(problem.zeros()).requires_grad


def test_images_are_copied() -> None:
    x = X.clone()
    problem = Ensemble(MODELS, x, Y)
    x.zero_()
    torch.testing.assert_close(problem.logits(DELTA), PROBLEMS["ensemble"].logits(DELTA))


BAD_IMAGES = {
    "too dark": X - 0.5,
    "too bright": X + 1e-5 + (1 - X.max()),
    "NaN": torch.where(X.max() == X, math.nan, X),
    "infinite": torch.where(X.max() == X, math.inf, X),
    "no rows": X[:0],
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_images_out_of_range_are_refused(name: str) -> None:
    bad = BAD_IMAGES[name]
    y = Y[: len(bad)]
    with pytest.raises(ValueError, match="`x` must"):
        Ensemble(MODELS, bad, y)
    with pytest.raises(ValueError, match="`x` must"):
        Transformed(MODELS[0], [T.identity], bad, y)
    with pytest.raises(ValueError, match="`groups` must"):
        Universal(MODELS[0], bad.unsqueeze(1), y.unsqueeze(1))


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"divide 8-bit images by 255"):
        Ensemble(MODELS, (255 * X).to(torch.uint8), Y)
    with pytest.raises(ValueError, match=r"`y` must have shape \(5,\), got \(4,\)"):
        Ensemble(MODELS, X, Y[:4])
    with pytest.raises(ValueError, match=r"`y` must have shape"):
        Ensemble(MODELS, X, F.one_hot(Y, CLASSES))
    with pytest.raises(TypeError, match=r"`y` must be integer class numbers, .*; write y.long\(\)"):
        Ensemble(MODELS, X, Y.float())
    for half in (torch.float16, torch.bfloat16):
        with pytest.raises(TypeError, match=r"`x` must be float32 or float64.*; write x.float\(\)"):
            Ensemble(MODELS, X.to(half), Y)
    with pytest.raises(TypeError, match="`x` must be a tensor, an array or a list of numbers"):
        Ensemble(MODELS, "images", Y)
    with pytest.raises(ValueError, match="`y` must be >= 0"):
        Ensemble(MODELS, X, Y - 1)
    with pytest.raises(TypeError, match=r"write \[model\]"):
        Ensemble(MODELS[0], X, Y)
    with pytest.raises(ValueError, match="at least one model"):
        Ensemble([], X, Y)
    with pytest.raises(TypeError, match=r"`models\[1\]` must be callable"):
        Ensemble([MODELS[0], "resnet18"], X, Y)
    with pytest.raises(ValueError, match="`names` must have one entry per domain, 3, got 1"):
        Ensemble(MODELS, X, Y, names=["a"])
    with pytest.raises(
        ValueError, match="`names` must be different from each other, got 'b' twice"
    ):
        Ensemble(MODELS, X, Y, names=["a", "b", "b"])
    with pytest.raises(ValueError, match="at least one transform"):
        Transformed(MODELS[0], [], X, Y)
    with pytest.raises(ValueError, match="`samples` must be >= 1"):
        Transformed(MODELS[0], [T.hflip], X, Y, samples=0)
    with pytest.raises(ValueError, match="at least 4 axes"):
        Transformed(MODELS[0], [T.hflip], X.flatten(1), Y)
    with pytest.raises(ValueError, match="at least 4 axes"):
        Product(MODELS, [T.hflip], X.flatten(1), Y)
    with pytest.raises(ValueError, match="at least 2 axes"):
        Ensemble(MODELS, X[:, 0, 0, 0], Y)
    with pytest.raises(ValueError, match="at least 3 axes"):
        Universal(MODELS[0], X[:, 0, 0], LABELS)
    with pytest.raises(ValueError, match=r"`y` must have shape \(5, 3\)"):
        Universal(MODELS[0], GROUPS, Y)
    with pytest.raises(ValueError, match="`box` must be"):
        Universal(MODELS[0], GROUPS, LABELS, box="union")


class TestPredictedLabels:
    def test_labels_are_each_models_own_answer_and_the_truth_is_kept(self) -> None:
        problem = Ensemble(MODELS, X, Y, labels="predicted")
        answers = torch.stack([model(X).argmax(dim=1) for model in MODELS], dim=1)
        assert torch.equal(problem.labels, answers)
        assert not torch.equal(answers, Y[:, None].expand(B, K))
        assert torch.equal(problem.truth, Y[:, None].expand(B, K))
        assert problem.labels.dtype == torch.int64
        assert not problem.labels.requires_grad

    def test_every_image_of_a_group_has_its_own_answer(self) -> None:
        problem = Universal(MODELS[0], GROUPS, LABELS, labels="predicted")
        answers = MODELS[0](GROUPS.flatten(0, 1)).argmax(dim=1).reshape(B, K)
        assert torch.equal(problem.labels, answers)
        assert torch.equal(problem.truth, LABELS)

    def test_every_view_has_its_own_answer(self) -> None:
        problem = Product(MODELS[:2], [T.identity, T.hflip], X, Y, labels="predicted")
        answers = [model(view).argmax(dim=1) for model in MODELS[:2] for view in (X, X.flip(-1))]
        assert torch.equal(problem.labels, torch.stack(answers, dim=1))

    def test_a_random_view_has_the_answer_to_the_image_itself(self) -> None:
        problem = Transformed(MODELS[0], [T.random_hflip(0.5), T.hflip], X, Y, labels="predicted")
        assert torch.equal(problem.labels[:, 0], MODELS[0](X).argmax(dim=1))
        assert torch.equal(problem.labels[:, 1], MODELS[0](X.flip(-1)).argmax(dim=1))
        assert problem.random
        assert [t.num_draws for t in problem.transforms] == [1, 0]

    @pytest.mark.parametrize("kind", ["true", "predicted"])
    def test_rows_that_are_taken_keep_their_labels_and_truth(self, kind: str) -> None:
        for problem in (
            Ensemble(MODELS, X, Y, labels=kind),
            Universal(MODELS[0], GROUPS, LABELS, labels=kind),
        ):
            part = problem.take(torch.tensor([4, 1, 2])).take(torch.tensor([2, 0]))
            assert torch.equal(part.labels, problem.labels[[2, 4]])
            assert torch.equal(part.truth, problem.truth[[2, 4]])

    def test_true_labels_are_the_default(self) -> None:
        for problem in PROBLEMS.values():
            assert problem.truth is problem.labels

    def test_models_are_asked_once_in_batches_and_without_gradient(self) -> None:
        asked: list[tuple[int, bool]] = []

        def model(pictures: Tensor) -> Tensor:
            asked.append((len(pictures), torch.is_grad_enabled()))
            return pictures.flatten(1)[:, :CLASSES]

        x = images(300, 1, 3, 4)
        with torch.inference_mode():
            problem = Ensemble([model], x, torch.zeros(300, dtype=torch.long), labels="predicted")
        assert asked == [(128, False), (128, False), (44, False)]
        assert torch.equal(problem.labels[:, 0], x.flatten(1)[:, :CLASSES].argmax(dim=1))

    def test_a_model_in_training_mode_is_not_asked(self) -> None:
        norm = nn.BatchNorm2d(1).double()
        with pytest.raises(ValueError, match="training mode"):
            Ensemble([nn.Sequential(norm, nn.Flatten())], X, Y, labels="predicted")
        assert norm.num_batches_tracked == 0

    def test_other_words_and_class_numbers_are_refused(self) -> None:
        with pytest.raises(ValueError, match='`labels` must be "true" or "predicted", got \'own\''):
            Ensemble(MODELS, X, Y, labels="own")
        with pytest.raises(ValueError, match="got Tensor; class numbers are given as `y`"):
            Universal(MODELS[0], GROUPS, LABELS, labels=LABELS)


def test_groups_without_classes_say_where_both_come_from() -> None:
    with pytest.raises(TypeError, match=r"`y` must be the classes .* sp.data.group"):
        Universal(MODELS[0], GROUPS)


def test_names_that_are_there_twice_get_a_number() -> None:
    # Pages and records go by the name: of equal ones the last would stand for all.
    views = [lambda x: x, lambda x: 1 - x]
    problem = Transformed(MODELS[0], views, X, Y)
    assert problem.names == ("<lambda> (1)", "<lambda> (2)")
    assert Transformed(MODELS[0], views[:1], X, Y).names == ("<lambda>",)


@pytest.mark.parametrize(
    "rows",
    [
        torch.tensor([2, -3]),
        torch.tensor(1),
        torch.tensor([], dtype=torch.int64),
        [0, 2],
        slice(1, 3),
    ],
    ids=["from the end", "one", "none", "list", "slice"],
)
@pytest.mark.parametrize("shape", [(3, 4), (3, 0), (3, 2, 2), (3,)])
def test_rows_are_picked_as_torch_indexes_them(rows: object, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape)
    torch.testing.assert_close(picked(tensor, rows), tensor[rows])
    if tensor.numel():
        with pytest.raises(IndexError):
            picked(tensor, torch.tensor([3]))
