"""Compiled programs as victims: `torch.export` archives (.pt2) and TorchScript (.ts).

A program brings its own code. Archives with pickled objects inside are refused, and neither kind
can call Python, but torch's operators themselves can touch files: load programs you trust.
"""

import io
import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

__all__ = ["Program", "is_torchscript", "load_exported", "load_torchscript"]


@final
class Program(nn.Module):
    """A compiled program behaving as a module in evaluation mode.

    What the program computes was fixed when it was compiled. `train()` and `eval()` only set the
    flag of this wrapper (an exported program refuses them).
    """

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program
        for module in self.modules():
            module.training = False  # not by eval(), which an exported program refuses

    def train(self, mode: bool = True) -> "Program":
        """Sets the flag `training` and nothing else."""
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] to logits (B, classes)."""
        logits: Tensor = self.program(x)
        return logits


def load_exported(path: Path) -> Program:
    """Loads what `torch.export.save` wrote.

    Raises:
        ValueError: Not such a file, pickled objects inside, or a fixed number of images per batch.
    """
    _refuse_pickles(path)
    try:
        exported = torch.export.load(path)
    except Exception as error:  # the reader raises assertion, runtime and its own errors
        raise ValueError(f"`{path}` must be a torch.export archive, got {error}.") from error
    if isinstance(_batch_size(exported), int):
        raise ValueError(
            f"`{path}` must accept any number of images, got one for {_batch_size(exported)}; "
            "export it with dynamic_shapes=({0: torch.export.Dim.AUTO},)."
        )
    return Program(exported.module())


def load_torchscript(path: Path) -> Program:
    """Loads what `torch.jit.save` wrote; raises ValueError for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            script = torch.jit.load(path, map_location="cpu")
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"`{path}` must be a TorchScript program, got {reason}") from error
    script.eval()
    return Program(script)


def is_torchscript(path: Path) -> bool:
    """Whether a file is an archive with TorchScript code in it, whatever its name."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _refuse_pickles(path: Path) -> None:
    """torch.export.load unpickles some members without restriction; such archives are refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith("_config.json"):
                    _check_payloads(path, json.loads(archive.read(name)))
                elif name.endswith(".pt"):
                    torch.load(io.BytesIO(archive.read(name)), weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"`{path}` must not hold pickled objects, got {error}.") from error
    except (zipfile.BadZipFile, json.JSONDecodeError) as error:
        raise ValueError(f"`{path}` must be a torch.export archive, got {error}.") from error


def _check_payloads(path: Path, payloads: dict[str, Any]) -> None:
    for name, payload in payloads.get("config", {}).items():
        if payload.get("use_pickle"):
            raise ValueError(f"`{path}` must not hold pickled objects, got {name}.")


def _batch_size(exported: torch.export.ExportedProgram) -> int | torch.SymInt:
    """Length of the first axis of the images: a number when the program was fixed to it."""
    (images,) = exported.graph_signature.user_inputs
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name == images:
            size: int | torch.SymInt = node.meta["val"].shape[0]
            return size
    raise ValueError(f"`program` must take one tensor of images, got {images}.")
