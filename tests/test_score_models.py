"""Models that answer scores only: how they are declared, asked and recognised."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.calls import call
from saddlepoint.evaluation.ours import OurAttack
from saddlepoint.score_models import has_gradient


class TestAnswers:
    def test_arrays_lists_and_sessions_are_scores(self):
        x = torch.rand(3, 1, 2, 2)
        expected = torch.stack([x.flatten(1).sum(1), x.flatten(1).prod(1)], dim=1)

        def array(images: np.ndarray) -> np.ndarray:
            assert isinstance(images, np.ndarray)
            assert images.shape == (3, 1, 2, 2)
            flat = images.reshape(3, -1)
            return np.stack([flat.sum(1), flat.prod(1)], axis=1)

        for function in (
            array,
            lambda images: array(images).tolist(),
            lambda images: [array(images)],  # as a session of ONNX Runtime answers
            lambda images: (torch.from_numpy(array(images)), "more"),
            lambda images: {"logits": torch.from_numpy(array(images))},
            lambda images: {"logits": array(images).tolist()},
            lambda images: (array(images), "more"),
            lambda images: list(array(images)),  # a row for every image
            lambda images: array(images).astype(object),
        ):
            torch.testing.assert_close(call(sp.scores(function), x), expected)

    def test_modules_get_tensors_of_their_own_kind_and_no_graph(self):
        network = nn.Linear(4, 2).double().eval()
        x = torch.rand(3, 4, requires_grad=True)
        answer = call(sp.scores(network), x)
        assert not answer.requires_grad
        assert answer.dtype == torch.float32
        torch.testing.assert_close(answer, network(x.double()).float().detach())
        seen: list[object] = []
        call(
            sp.scores(lambda images: seen.append(images) or np.ones((3, 2)), flat=True),
            x[:, :, None],
        )
        call(sp.scores(lambda images: seen.append(images) or torch.ones(3, 2), numpy=False), x)
        assert [type(each) for each in seen] == [np.ndarray, Tensor]
        assert seen[0].shape == (3, 4)  # type: ignore[attr-defined]

    def test_probabilities_become_logarithms(self):
        def service(images: np.ndarray) -> list[list[float]]:
            return [[0.25, 0.75, 0.0] for _ in images]

        answer = call(sp.scores(service, probabilities=True), torch.rand(1, 1, 2, 2))
        expected = [math.log(0.25), math.log(0.75), math.log(1e-6)]
        torch.testing.assert_close(answer, torch.tensor([expected]))
        for wrong in ([[1.0, 2.0]], [[-1.0, 2.0]], [[math.nan, 1.0]]):
            with pytest.raises(ValueError, match="`probabilities` must be True only for"):
                call(
                    sp.scores(lambda images, wrong=wrong: wrong, probabilities=True),
                    torch.rand(1, 4),
                )

    @pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64])
    def test_whole_numbers_are_scores_where_every_class_has_one(self, kind):
        """As of quantised networks, and of votes that are counted."""
        votes = np.array([[3, 5, 120], [7, 0, 2]], dtype=kind)
        answer = call(sp.scores(lambda images: votes), torch.rand(2, 4))
        assert torch.equal(answer, torch.tensor([[3.0, 5.0, 120.0], [7.0, 0.0, 2.0]]))

    def test_probabilities_of_a_few_digits_are_probabilities(self):
        """Rounded to two digits those of ten classes miss one by up to five hundredths."""
        rounded = [[0.34, 0.33, *[0.04] * 8], [0.05, 0.91, *[0.0] * 8]]
        answer = call(sp.scores(lambda images: rounded, probabilities=True), torch.rand(2, 4))
        assert answer.argmax(dim=1).tolist() == [0, 1]
        far = [[0.5, 0.5], [0.5, 0.2]]
        with pytest.raises(ValueError, match=r"got a smallest number 0\.2 and a sum of 0\.7;"):
            call(sp.scores(lambda images: far, probabilities=True), torch.rand(2, 4))

    @pytest.mark.parametrize(
        "answer",
        [
            *("cat", None, [], [0, 2], np.array([0, 2]), torch.tensor([0, 2])),
            *(["cat", "dog"], [[1.0, 2.0], [3.0]], {"scores": np.ones((2, 3))}, ()),
            *(np.array([["a", "b"], ["c", "d"]]), np.ones((2, 3), dtype=complex)),
        ],
        ids=repr,
    )
    def test_other_answers_are_refused(self, answer):
        with pytest.raises(TypeError, match="models must return scores"):
            call(sp.scores(lambda images: answer), torch.rand(2, 4))

    def test_a_single_number_for_every_image_is_refused(self):
        with pytest.raises(ValueError, match=r"models must return logits \(B, C\).*got \(2,\)"):
            call(sp.scores(lambda images: np.array([0.2, 0.7])), torch.rand(2, 4))

    def test_what_cannot_be_called_or_is_declared_already_is_refused(self):
        with pytest.raises(
            TypeError, match=r"`model` must be callable, got LogisticRegression; .*predict_proba"
        ):
            sp.scores(LogisticRegression())  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match=r"`model` must not be declared twice, got Scores\(Linear\)"
        ):
            sp.scores(sp.scores(nn.Linear(2, 2)))


def test_what_is_declared_is_recognised_also_inside_a_wrapper():
    network = nn.Linear(2, 2)
    assert has_gradient(network)
    assert has_gradient(lambda images: images)
    assert not has_gradient(sp.scores(network))
    assert not has_gradient(sp.models.wrap(sp.scores(network), mean=0.5, std=0.5))
    assert has_gradient(sp.models.wrap(network, mean=0.5, std=0.5))


@pytest.mark.parametrize("suite", ["quick", "autoattack", {math.inf: [OurAttack()]}])
def test_no_suite_that_follows_gradients_calls_a_declared_model_robust(suite):
    x, y = sp.data.sample("mnist", limit=2)
    model = sp.scores(sp.models.load("mnist-a"))
    with pytest.raises(ValueError, match="models must have gradients"):
        sp.robust_accuracy(model, x, y, {"linf": sp.linf(0.2)}, suite)
    both = sp.Ensemble([sp.models.load("mnist-a"), model], x, y)
    with pytest.raises(ValueError, match="models must have gradients"):
        sp.robust_domains(both, {"linf": sp.linf(0.2)}, suite)


def test_training_mode_is_seen_through_the_declaration():
    problem = sp.Ensemble([sp.scores(nn.Dropout().train())], torch.rand(2, 4), [0, 1])
    with pytest.raises(
        ValueError, match=r"models\[0\] \(Scores around Dropout\) is in training mode"
    ):
        sp.attack(problem, sp.linf(0.1), gradient=sp.searched(20))


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


class TestScikitLearn:
    @pytest.mark.parametrize(
        "gradient", [sp.estimated(1200, search=0.4), sp.searched(1200)], ids=str
    )
    def test_a_forest_and_a_linear_model_are_fooled_at_once(self, digits, gradient):
        x, y = digits
        forest = RandomForestClassifier(60, random_state=0).fit(x[:1000], y[:1000])
        linear = LogisticRegression(max_iter=300).fit(x[:1000], y[:1000])
        few, truth = x[1000:1020], y[1000:1020]
        right = (forest.predict(few) == truth) & (linear.predict(few) == truth)
        few, truth = few[right], truth[right]
        assert len(few) >= 12
        models = [
            sp.scores(model.predict_proba, probabilities=True, flat=True)
            for model in (forest, linear)
        ]
        problem = sp.Ensemble(models, few.reshape(-1, 1, 8, 8), truth, names=["forest", "linear"])
        result = sp.attack(problem, sp.linf(0.3), gradient=gradient)
        assert result.success.double().mean() > 0.6
        images = result.adversarial.flatten(1).numpy()
        # The classifiers themselves say so.
        wrong = (forest.predict(images) != truth) & (linear.predict(images) != truth)
        assert wrong.tolist() == result.success.tolist()
        assert (np.abs(images - few) <= 0.3 + 1e-6).all()

    def test_beside_a_network_with_gradients(self, digits):
        x, y = digits
        linear = LogisticRegression(max_iter=300).fit(x[:1000], y[:1000])
        twin = nn.Linear(64, 10)
        with torch.no_grad():
            twin.weight.copy_(torch.from_numpy(linear.coef_))
            twin.bias.copy_(torch.from_numpy(linear.intercept_))
        twin.eval()
        few, truth = torch.from_numpy(x[1000:1010]), torch.from_numpy(y[1000:1010])
        api = sp.scores(linear.predict_proba, probabilities=True)
        white = sp.attack(sp.Ensemble([twin, twin], few, truth), sp.linf(0.08), steps=20)
        mixed = sp.Ensemble([twin, api], few, truth, names=["twin", "api"])
        result = sp.attack(mixed, sp.linf(0.08), gradient=sp.estimated(1500, search=0.0))
        assert torch.equal(result.fooled[:, 0], result.fooled[:, 1])  # it is the same model twice
        assert (result.success | ~white.success).all()
