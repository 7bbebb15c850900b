"""Checkpoints of training: one file, written atomically, tensors and JSON, never pickle.

The file is safetensors. Tensors are named `model.<key>`, `optimizer.<parameter>.<key>`, and `extra.<key>` for
what else training has to remember; all else is JSON in the single metadata entry `saddlepoint`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.files import DamagedFileError, read_tensors, write_tensors

__all__ = [
    "Checkpoint",
    "read_checkpoint",
    "read_config",
    "read_epochs",
    "read_model",
    "write_checkpoint",
]

KEY = "saddlepoint"


class Checkpoint(NamedTuple):
    """What a checkpoint holds besides model and optimiser."""

    record: dict[str, Any]
    tensors: dict[str, Tensor]

    def extra(self, prefix: str) -> dict[str, Tensor]:
        """The extra tensors whose names start with `prefix`, without it."""
        return _under(prefix, self.tensors)


def write_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    record: dict[str, Any],
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes the state of `model` and `optimizer`, a JSON `record` and `extra` tensors to `path`.

    Whatever stops the process in the middle, `path` holds the old checkpoint or the new one.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> path = Path(tempfile.mkdtemp()) / "checkpoint.safetensors"
        >>> write_checkpoint(path, model, optimizer, {"epoch": 3})
        >>> read_checkpoint(path, model, optimizer).record
        {'epoch': 3}
    """
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    states = optimizer.state_dict()["state"] if optimizer is not None else {}
    for parameter, state in states.items():
        for key, value in state.items():
            if value is not None:
                tensors[f"optimizer.{parameter}.{key}"] = torch.as_tensor(value)
    tensors |= {f"extra.{key}": value for key, value in (extra or {}).items()}
    write_tensors(path, tensors, {KEY: json.dumps(record)})


def read_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Restores `model` and `optimizer` in place and returns what was written with them.

    Args:
        path: The file.
        model: Of the architecture that was written.
        optimizer: Over its parameters.
        config: What the entry "config" of the record must say; checked before anything is restored.

    Raises:
        ValueError: The file is damaged, or belongs to another architecture or another run.
    """
    record, tensors = _read(path)
    before = record.get("config", {})
    for key, value in (config or {}).items():
        if before.get(key) != value:
            raise ValueError(f"`{key}` must be as in {path}, {before.get(key)}, got {value}.")
    try:
        model.load_state_dict(_under("model.", tensors))
    except RuntimeError as error:
        raise ValueError(f"`{path}` must fit the model being trained: {error}") from error
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _under("optimizer.", tensors).items():
        parameter, key = name.split(".", 1)
        state.setdefault(int(parameter), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return Checkpoint(record, _under("extra.", tensors))


def read_config(path: Path) -> dict[str, Any]:
    """What training was told when it began.

    Raises:
        ValueError: The file is damaged.
    """
    config: dict[str, Any] = _read(path)[0].get("config", {})
    return config


def read_epochs(path: Path) -> int:
    """How many epochs were finished when the checkpoint was written; 0 if there is none yet.

    Raises:
        ValueError: The file is damaged.
    """
    return len(_read(path)[0]["history"]) if path.is_file() else 0


def read_model(path: Path) -> dict[str, Tensor]:
    """The state of the model in a checkpoint.

    Raises:
        ValueError: The file is missing or damaged.
    """
    if not path.is_file():
        raise ValueError(f"`{path}` must be there to resume a validated run, got no such file.")
    return _under("model.", _read(path)[1])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    anew = "it cannot be continued: train anew, with --overwrite or into another --out"
    try:
        found = read_tensors(path)
        record: dict[str, Any] = json.loads(found.about[KEY])
    except DamagedFileError as error:
        raise ValueError(f"{str(error).removesuffix('.')}; {anew}.") from error
    except (KeyError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"`{path}` must be a checkpoint of this library, got {error}; {anew}."
        ) from error
    return record, found.tensors


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
