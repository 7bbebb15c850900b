"""Networks that are too large for the wheel: where their parameters lie, and how they are made small.

They lie as NAME.safetensors and NAME.json in the folder that `SADDLEPOINT_WEIGHTS` names, or in `weights` of a
checkout. Filters are kept with 16 bits per entry, or with 8 and a scale per channel; all else stays as it is.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from .paper_networks import PAPER_NETWORKS

__all__ = ["IN_A_CHECKOUT", "how_to_get", "pack", "packed_files", "unpack"]

VARIABLE = "SADDLEPOINT_WEIGHTS"
IN_A_CHECKOUT = frozenset(
    {"cifar10-e", "cifar10-f", "cifar10-h", "cifar10-paper-a", "cifar10-paper-c", "cifar10-paper-d"}
)
"""Names of the networks in `weights` of the repository, which a package without it cannot look up."""

_SCALE = ".scale"


def packed_files() -> dict[str, Path]:
    """Name -> file of parameters of all networks outside the package, where a card lies beside it."""
    found: dict[str, Path] = {}
    for folder in _folders():
        for file in sorted(folder.glob("*.safetensors")):
            if file.is_file() and file.with_suffix(".json").is_file():
                found.setdefault(file.stem, file)
    return found


def _folders() -> list[Path]:
    named = os.environ.get(VARIABLE)
    if named and not Path(named).expanduser().is_dir():
        raise ValueError(
            f"`{VARIABLE}` must name a folder, got {named!r}; unset it, or make the folder."
        )
    checkout = Path(__file__).resolve().parents[3]
    own = [checkout / "weights"] if (checkout / "pyproject.toml").is_file() else []
    return [
        folder for folder in ([Path(named).expanduser()] if named else []) + own if folder.is_dir()
    ]


def how_to_get(name: str) -> str:
    """What to do about a network of the paper that has no parameters here; empty for other names.

    Example:
        >>> how_to_get("cifar10-g").split("`")[1]
        'saddlepoint train --data cifar10 --model G --precision auto --out DIR'
    """
    found = PAPER_NETWORKS.get(name)
    if found is None or found.data != "cifar10":  # those on MNIST are inside
        return ""
    model = found.architecture + (" --recipe paper" if "-paper-" in name else "")
    there = (
        f"set {VARIABLE} to `weights` of a checkout, which has it, or "
        if name in IN_A_CHECKOUT
        else ""
    )
    return (
        f"{there}train it with `saddlepoint train --data cifar10 --model {model} --precision auto --out DIR`, "
        f"keep it with `saddlepoint models pack DIR {name} --out FOLDER`, and set {VARIABLE} to that folder"
    )


def pack(tensors: Mapping[str, Tensor], bits: Literal[8, 16]) -> dict[str, Tensor]:
    """Parameters with fewer bits per entry.

    Vectors, such as biases and the numbers of normalisations, stay as they are: they are few, and errors in
    them count for whole channels.

    Args:
        tensors: By name.
        bits: 16 is float16; 8 are whole numbers from -127 to 127 times a scale for every output channel.

    Example:
        >>> small = pack({"a": torch.tensor([[1.0, -2.0], [0.0, 0.0]])}, 8)
        >>> small["a"].tolist(), unpack(small)["a"].tolist()
        ([[64, -127], [0, 0]], [[1.0078740119934082, -2.0], [0.0, 0.0]])
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.ndim < 2:
            found[name] = tensor
        elif bits == 16:
            found[name] = tensor.half()
        else:
            scale = tensor.float().abs().flatten(1).amax(dim=1) / 127
            found[name + _SCALE] = scale
            steps = tensor.float() / _beside(scale.where(scale > 0, 1.0), tensor)
            found[name] = steps.round().to(torch.int8)
    return found


def unpack(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What `pack` was given, as near as its bits allow, in float32; other parameters are left alone.

    Raises:
        ValueError: A scale is not of one floating-point number for every channel.
    """
    packed = {n for n, t in tensors.items() if t.dtype == torch.int8 and n + _SCALE in tensors}
    if not packed:
        return tensors
    for name in packed:
        scale, wanted = tensors[name + _SCALE], tensors[name].shape[:1]
        if scale.shape != wanted or not scale.is_floating_point():
            raise ValueError(
                f"{name + _SCALE} must be of floating-point numbers, shape {tuple(wanted)}, got {scale.dtype}, "
                f"{tuple(scale.shape)}."
            )
    return {
        name: tensor.float() * _beside(tensors[name + _SCALE], tensor) if name in packed else tensor
        for name, tensor in tensors.items()
        if name.removesuffix(_SCALE) not in packed or name in packed
    }


def _beside(scale: Tensor, tensor: Tensor) -> Tensor:
    return scale.reshape(-1, *(1 for _ in range(tensor.ndim - 1)))
