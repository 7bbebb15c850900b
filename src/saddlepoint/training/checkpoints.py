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
    "check_config",
    "check_state",
    "history_in",
    "not_whole",
    "read_checkpoint",
    "read_config",
    "read_epochs",
    "read_model",
    "write_checkpoint",
]

KEY = "saddlepoint"
_ANEW = "it cannot be continued: train anew, with --overwrite or into another --out"


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
    check_config(path, record, config or {})
    try:
        model.load_state_dict(_under("model.", tensors))
    except RuntimeError as error:
        raise ValueError(f"`{path}` must fit the model being trained: {error}") from error
    states = _states(path, tensors, optimizer)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    return Checkpoint(record, _under("extra.", tensors))


def check_config(path: Path, record: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse what was written under another configuration; the order of threats is a part of it.

    Raises:
        ValueError: An entry is another one.
    """
    before = record.get("config", {})
    for key, value in config.items():
        found = before.get(key)
        if found != value or (isinstance(value, dict) and list(found) != list(value)):
            raise ValueError(f"`{key}` must be as in {path}, {found}, got {value}.")


def check_state(model: nn.Module) -> None:
    """Refuse a model whose state a checkpoint cannot hold.

    Raises:
        ValueError: It has something else than tensors.
    """
    for key, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"`model` must have tensors only in its state_dict to be kept, got {type(value).__name__} as "
                f"{key}; make buffers of them, or train with neither `out` nor `validation`."
            )


def _states(
    path: Path, tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Tensor]]:
    """What the optimiser is to go on with, by the number of the parameter."""
    moved = [each for group in optimizer.param_groups for each in group["params"]]
    found: dict[int, dict[str, Tensor]] = {}
    for name, value in _under("optimizer.", tensors).items():
        number, _, key = name.partition(".")
        known = number.isdecimal() and int(number) < len(moved)
        if not known or value.shape not in ((), moved[int(number)].shape):
            raise not_whole(path, f"{name} of shape {list(value.shape)} for another optimiser")
        found.setdefault(int(number), {})[key] = value
    return found


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
    return len(history_in(path, _read(path)[0])) if path.is_file() else 0


def history_in(path: Path, record: Mapping[str, Any]) -> list[Any]:
    """What a record says of the epochs that were finished.

    Raises:
        ValueError: Nothing.
    """
    history = record.get("history")
    if not isinstance(history, list):
        raise not_whole(path, "no history of epochs")
    return history


def read_model(path: Path) -> Checkpoint:
    """The record of a checkpoint, and the state of the model.

    Raises:
        ValueError: The file is missing or damaged.
    """
    if not path.is_file():
        raise ValueError(f"`{path}` must be there to resume a validated run, got no such file.")
    record, tensors = _read(path)
    return Checkpoint(record, _under("model.", tensors))


def not_whole(path: Path, got: object) -> ValueError:
    """What is said of a file that is no checkpoint as it was written."""
    return ValueError(f"`{path}` must be a checkpoint of this library, got {got}; {_ANEW}.")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        found = read_tensors(path)
        record: dict[str, Any] = json.loads(found.about[KEY])
    except DamagedFileError as error:
        raise ValueError(f"{str(error).removesuffix('.')}; {_ANEW}.") from error
    except (KeyError, json.JSONDecodeError, RecursionError) as error:
        raise not_whole(path, error) from error
    if not (isinstance(record, dict) and isinstance(record.get("config", {}), dict)):
        raise not_whole(path, "a record of another form")
    return record, found.tensors


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
