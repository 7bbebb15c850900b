"""ONNX files as ONNX Runtime runs them, without gradients; `make models`."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import saddlepoint as sp
from saddlepoint.models.onnx_sessions import load_session
from saddlepoint.runs.hashing import hash_model
from saddlepoint.score_models import has_gradient

pytestmark = pytest.mark.zoo


def _export(network: torch.nn.Module, x: torch.Tensor, path: Path, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        torch.onnx.export(network, (x,), path, dynamo=True, verbose=False, **options)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path_factory.mktemp("onnx") / "a.onnx"
    x, _ = sp.data.sample("mnist", 3)
    network = sp.models.load("mnist-a").eval()
    _export(network, x, path, dynamic_shapes=({0: torch.export.Dim("batch")},))
    return path


def test_a_session_answers_what_the_network_does(exported: Path, tmp_path: Path) -> None:
    x, _ = sp.data.sample("mnist", 7)
    session = load_session(exported)
    assert not has_gradient(session)
    assert session.name == "a"
    with torch.no_grad():
        torch.testing.assert_close(session(x), sp.models.load("mnist-a")(x), rtol=1e-3, atol=1e-3)
    moved = tmp_path / exported.name
    for file in exported.parent.glob(f"{exported.name}*"):
        shutil.copy(file, tmp_path)
    assert hash_model(session) == hash_model(load_session(moved)) is not None


@pytest.mark.parametrize("gradient", [sp.estimated(900, search=0.3), sp.searched(900)], ids=str)
def test_a_session_is_attacked_beside_a_network(exported: Path, gradient: sp.Searched) -> None:
    x, y = sp.data.sample("mnist", 5)
    problem = sp.Ensemble([load_session(exported), sp.models.load("mnist-c")], x, y)
    assert problem.without_gradient == (0,)
    result = sp.attack(problem, sp.linf(0.25), gradient=gradient)
    assert result.success.sum() >= 2
    with torch.no_grad():  # the network that was exported is fooled too
        said = sp.models.load("mnist-a")(result.adversarial).argmax(dim=1)
    assert torch.equal(said != y, result.fooled[:, 0])


def test_a_quantised_network_has_no_gradient_and_is_attacked_all_the_same(exported: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    small = exported.with_name("small.onnx")
    kind = quantization.QuantType.QUInt8
    graph = pytest.importorskip("onnx").load(exported)
    del graph.graph.value_info[:]  # shapes that the exporter wrote and its own checker refuses
    quantization.quantize_dynamic(graph, small, weight_type=kind)
    x, y = sp.data.sample("mnist", 5)
    session = load_session(small)
    # Its steps are chosen from all images of a batch, so that an answer depends on the others.
    with pytest.raises(ValueError, match="must answer every image by itself"):
        sp.attack(sp.Ensemble([session], x, y), sp.linf(0.25), gradient=sp.searched(50))

    def one_by_one(images: np.ndarray) -> np.ndarray:
        return np.concatenate([session.model(image[None]) for image in images])

    result = sp.attack(
        sp.Ensemble([sp.scores(one_by_one)], x, y), sp.linf(0.25), gradient=sp.searched(600)
    )
    assert result.success.sum() >= 2


def test_of_several_outputs_the_scores_are_taken(tmp_path: Path) -> None:
    """Classifiers of scikit-learn are exported with the classes first, and the probabilities after them."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["x"], ["flat"]),
            helper.make_node("Softmax", ["flat"], ["probabilities"], axis=1),
            helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", kinds.FLOAT, ["n", 1, 2, 2])],
        [
            helper.make_tensor_value_info("label", kinds.INT64, ["n"]),
            helper.make_tensor_value_info("probabilities", kinds.FLOAT, ["n", 4]),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "two.onnx")
    x = torch.rand(3, 1, 2, 2)
    torch.testing.assert_close(load_session(tmp_path / "two.onnx")(x), x.flatten(1).softmax(dim=1))


def test_other_files_are_refused(exported: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(ValueError, match="must be an ONNX file that ONNX Runtime can run"):
        load_session(broken)
    fixed = tmp_path / "fixed.onnx"
    x, _ = sp.data.sample("mnist", 3)
    _export(sp.models.load("mnist-a").eval(), x, fixed)
    with pytest.raises(
        ValueError, match="must accept any number of images, got one that was exported for 3"
    ):
        load_session(fixed)
