"""ONNX files as ONNX Runtime runs them: scores without gradients."""

import glob
import hashlib
from pathlib import Path
from typing import Any, final
from weakref import WeakKeyDictionary

from saddlepoint.score_models import Scores, scores

from .zoos import import_extra

__all__ = ["Session", "load_session"]

_TYPES = ("tensor(float)", "tensor(double)")
_SCORES = (*_TYPES, "tensor(float16)")
# Out of sight of whoever copies or hashes a model: a session is memory of another library.
_open: "WeakKeyDictionary[Session, Any]" = WeakKeyDictionary()


@final
class Session:
    """A file that ONNX Runtime runs on the CPU, recognised by what is in it.

    Args:
        path: Of the file. Parameters may be beside it, as in model.onnx.data.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.sha256 = [
            hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(path.parent.glob(f"{glob.escape(path.name)}*"))
        ]
        library = import_extra("onnxruntime", f"onnxruntime:{path.name}")
        options = library.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        _open[self] = library.InferenceSession(str(path), options, providers=providers)

    def __call__(self, images: Any) -> Any:
        """NumPy images (n, C, H, W) to the first output that holds numbers for classes, not classes."""
        session = _open[self]
        (given,) = session.get_inputs()
        outputs = session.get_outputs()
        named = next((each for each in outputs if each.type in _SCORES), outputs[0]).name
        wide = "double" in given.type
        return session.run([named], {given.name: images.astype("float64" if wide else "float32")})[
            0
        ]

    @property
    def inputs(self) -> Any:
        """What it takes, as ONNX Runtime says it."""
        return _open[self].get_inputs()


def load_session(path: Path) -> Scores:
    """A model without gradient out of an ONNX file, quantised ones included.

    Raises:
        ImportError: onnxruntime is not installed; names the extra.
        ValueError: ONNX Runtime cannot read the file, or it takes other things than images.
    """
    try:
        session = Session(path)
    except ImportError:
        raise
    except Exception as error:  # of the library, of several kinds
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"`{path}` must be an ONNX file that ONNX Runtime can run, got {type(error).__name__}: {reason}"
        ) from error
    inputs = session.inputs
    if len(inputs) != 1 or inputs[0].type not in _TYPES:
        got = ", ".join(f"{each.name} ({each.type})" for each in inputs)
        raise ValueError(f"`{path}` must take one tensor of images (B, C, H, W), got {got}.")
    if isinstance(inputs[0].shape[0], int):
        raise ValueError(
            f"`{path}` must accept any number of images, got one that was exported for {inputs[0].shape[0]}; "
            'export it with dynamic_shapes=({0: torch.export.Dim("batch")},).'
        )
    return scores(session)
