"""How files with models end. Nothing is imported here, so that `--help` knows it too."""

__all__ = ["EXPORTED", "ONNX", "PARAMETERS", "PROGRAMS", "TORCHSCRIPT"]

PARAMETERS = (".safetensors", ".pt", ".pth")
EXPORTED = ".pt2"
ONNX = ".onnx"
TORCHSCRIPT = (".ts", ".torchscript")
PROGRAMS = (EXPORTED, ONNX, *TORCHSCRIPT)
"""Files that hold a network and its parameters."""
