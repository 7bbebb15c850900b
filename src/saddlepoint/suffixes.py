"""How files with models end. Nothing is imported here, so that `--help` can know it too."""

__all__ = ["ONNX", "PARAMETERS", "PROGRAMS", "TORCHSCRIPT"]

PARAMETERS = (".safetensors", ".pt", ".pth")
"""Files with parameters."""

TORCHSCRIPT = (".ts", ".torchscript")
"""Files with a network and its parameters that run code when they are loaded."""

ONNX = ".onnx"
"""Files for ONNX Runtime, or to be converted."""

PROGRAMS = (".pt2", ONNX, *TORCHSCRIPT)
"""Files that hold a network and its parameters."""
