"""Content hashes of settings, models and data."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["hash_config", "hash_model", "hash_tensors"]


def hash_config(config: Mapping[str, Any]) -> str:
    """SHA-256 of settings, whatever their order.

    Example:
        >>> hash_config({"a": 1, "b": 2}) == hash_config({"b": 2, "a": 1})
        True
    """
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes.

    Example:
        >>> zeros, ones = torch.zeros(2), torch.ones(2)
        >>> hash_tensors({"x": zeros}) == hash_tensors({"x": ones})
        False
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def hash_model(model: Callable[[Tensor], Tensor]) -> str:
    """SHA-256 of a module's structure, state and code; of the qualified name of any other callable.

    The code is that of the user's own classes as far as Python can find it, and of traced graphs; what those
    classes call is not part of it.

    Example:
        >>> with torch.random.fork_rng():
        ...     one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> hash_model(one) == hash_model(one), hash_model(one) == hash_model(other)
        (True, False)
    """
    if not isinstance(model, nn.Module):
        name = getattr(model, "__qualname__", type(model).__qualname__)
        return hashlib.sha256(f"{getattr(model, '__module__', '')}.{name}".encode()).hexdigest()
    state = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    return hashlib.sha256(f"{model!r}{hash_tensors(state)}{_code(model)}".encode()).hexdigest()


def _code(model: nn.Module) -> str:
    """Sources of all classes that are neither torch's nor ours, and of graphs."""
    found: dict[str, str] = {}
    for module in model.modules():
        kind = type(module)
        if isinstance(module, torch.fx.GraphModule):
            found[f"graph {len(found)}"] = str(module.code)
        elif kind.__module__.partition(".")[0] not in ("torch", "saddlepoint"):
            with suppress(OSError, TypeError):  # made in a notebook or by C code
                found[f"{kind.__module__}.{kind.__qualname__}"] = inspect.getsource(kind)
    return "".join(found[name] for name in sorted(found))
