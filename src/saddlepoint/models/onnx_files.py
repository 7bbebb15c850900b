"""ONNX files as networks with gradients."""

import warnings
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from saddlepoint.calls import logits_of

from .zoos import import_extra

__all__ = ["load_onnx"]


@final
class OnnxNetwork(nn.Module):
    """A converted graph that takes any number of images."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to logits (B, classes)."""
        return logits_of(self.graph(images))


def load_onnx(path: Path) -> nn.Module:
    """A network out of an ONNX file, in evaluation mode.

    onnx2pytorch reads the operators of opsets up to those that torch writes today, which onnx2torch does not
    (it ends at 17); what it cannot read of older exports is folded here.

    Raises:
        ImportError: onnx2pytorch is not installed.
        ValueError: The file cannot be read or converted, or is for one number of images.
    """
    library = import_extra("onnx2pytorch", f"`{path}`")
    onnx = import_extra("onnx", f"`{path}`")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            proto = onnx.load(path)
            onnx.checker.check_model(proto)
            _fold(proto.graph)
            shape = _image_shape(path, proto.graph)
            network = OnnxNetwork(library.ConvertModel(proto)).eval()
            _check_batches(path, network, shape)
    except ValueError:
        raise
    except Exception as error:  # of protobuf, of the checker, of operators that are not there
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"`{path}` must be an ONNX file that onnx2pytorch can convert, got {type(error).__name__}: "
            f"{reason}; export it with torch.onnx.export(model, (x,), path, dynamo=True)."
        ) from error
    return network


def _fold(graph: Any) -> None:
    """Parameters that are shared through Identity nodes get their own name back, which the reader needs."""
    constants = {each.name for each in graph.initializer}
    renamed: dict[str, str] = {}
    for node in list(graph.node):
        source = renamed.get(node.input[0], node.input[0]) if len(node.input) == 1 else ""
        if node.op_type == "Identity" and source in constants:
            renamed[node.output[0]] = source
            graph.node.remove(node)
        elif node.op_type == "BatchNormalization":
            for attribute in [a for a in node.attribute if a.name == "training_mode" and not a.i]:
                node.attribute.remove(attribute)  # zero, which is the default
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)


def _image_shape(path: Path, graph: Any) -> list[int]:
    """Channels, height and width of the one input; 1 where they are free."""
    constants = {each.name for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in constants]
    sides = [side.dim_value for side in inputs[0].type.tensor_type.shape.dim] if inputs else []
    if len(inputs) != 1 or len(sides) != 4:
        names = [each.name for each in inputs]
        raise ValueError(f"`{path}` must take one tensor of images (B, C, H, W), got {names}.")
    # Of a free side nothing is known but that it is large enough for the usual networks at 64.
    return [max(sides[1], 1), *(side or 64 for side in sides[2:])]


def _check_batches(path: Path, network: nn.Module, shape: list[int]) -> None:
    """Refuse graphs that were exported for one number of images: some fail, others mix them up."""
    images = torch.linspace(0, 1, 3).view(3, 1, 1, 1).expand(3, *shape)
    with torch.no_grad():
        one_by_one = torch.cat([network(image) for image in images.split(1)])
        try:
            together = network(images)
        except RuntimeError:
            together = one_by_one[:1]
    if together.shape != one_by_one.shape or not torch.allclose(together, one_by_one, atol=1e-3):
        raise ValueError(
            f"`{path}` must accept any number of images, got one that was exported for one number; export it "
            'with dynamic_shapes=({0: torch.export.Dim("batch")},).'
        )
