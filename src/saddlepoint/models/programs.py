"""Compiled programs as victims: `torch.export` archives (.pt2) and TorchScript (.ts).

An archive may come from anybody: see `archives`. TorchScript is code of its author: it is loaded if the user
says that they trust it, and not before.
"""

import warnings
import zipfile
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from saddlepoint.calls import logits_of

from .archives import safe_archive

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
        return logits_of(self.program(x))


def load_exported(path: Path) -> Program:
    """Loads what `torch.export.save` wrote.

    Raises:
        ValueError: Not such a file, something inside that could run code, see `archives.safe_archive`, or a
            fixed number of images per batch.
    """
    content = safe_archive(path)
    try:
        exported = torch.export.load(content)
    except Exception as error:  # the reader raises assertion, runtime and its own errors
        raise ValueError(f"`{path}` must be a torch.export archive, got {error}.") from error
    if isinstance(_batch_size(exported), int):
        raise ValueError(
            f"`{path}` must accept any number of images, got one for {_batch_size(exported)}; "
            "export it with dynamic_shapes=({0: torch.export.Dim.AUTO},)."
        )
    return Program(exported.module())


def load_torchscript(path: Path, *, trust: bool) -> Program:
    """Loads what `torch.jit.save` wrote; raises ValueError for anything else, and where it is not trusted."""
    if not trust:
        raise ValueError(
            f"`trust` must be given for {str(path)!r}: a TorchScript program is code of its author, which runs "
            "with your rights; export it with torch.export, or trust it if you know where it comes from."
        )
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


def _batch_size(exported: torch.export.ExportedProgram) -> int | torch.SymInt:
    """Length of the first axis of the images: a number when the program was fixed to it."""
    (images,) = exported.graph_signature.user_inputs
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name == images:
            size: int | torch.SymInt = node.meta["val"].shape[0]
            return size
    raise ValueError(f"`program` must take one tensor of images, got {images}.")
