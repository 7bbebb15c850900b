"""Content hashes of settings, models and data: whether a run that is continued is the same run."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["hash_model", "hash_settings", "hash_tensors"]

_OURS = ("torch", "saddlepoint", "numpy", "builtins")
# What torch keeps in the attributes of every module besides parameters and buffers, which are hashed by name.
_BOOKKEEPING = frozenset(nn.Module().__dict__) - {"training"}


def hash_settings(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings, whatever their order.

    Example:
        >>> hash_settings({"a": 1, "b": 2}) == hash_settings({"b": 2, "a": 1})
        True
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes.

    Example:
        >>> zeros, ones = torch.zeros(2), torch.ones(2)
        >>> hash_tensors({"x": zeros}) == hash_tensors({"x": ones})
        False
    """
    walk = _Walk()
    for name in sorted(tensors):
        walk.text(name)
        walk.tensor(tensors[name])
    return walk.digest.hexdigest()


def hash_model(model: Callable[[Tensor], Tensor]) -> str | None:
    """SHA-256 of everything that decides a model's answers, as far as Python can see it.

    That is parameters, buffers, plain attributes and the code of classes and functions that are not torch's,
    with the values that functions hold in closures, defaults and the globals they name.

    Args:
        model: A module, a function, a partial, a bound method or an object with `__call__`.

    Returns:
        The hash; None if something in it cannot be hashed, so that nobody can say whether two are the same.

    Example:
        >>> with torch.random.fork_rng():
        ...     one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> hash_model(one) == hash_model(one), hash_model(one) == hash_model(other)
        (True, False)
        >>> hash_model(functools.partial(torch.mul, other=hash)) is None
        False
    """
    walk = _Walk()
    walk.value(model)
    return walk.digest.hexdigest() if walk.complete else None


@final
class _Walk:
    """Feeds a digest with everything reachable from a value, each object once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.complete = True
        self._seen: dict[int, object] = {}  # the objects are kept, so that no address is used twice

    def text(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text};".encode())

    def tensor(self, value: Tensor) -> None:
        plain = value.detach().cpu().contiguous()
        self.text(f"{plain.dtype}{tuple(plain.shape)}")
        self.digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)

    def value(self, value: Any) -> None:
        if value is None or isinstance(
            value, bool | int | float | complex | str | bytes | type(...)
        ):
            self.text(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self._seen:
            self.text("again")
            return
        self._seen[id(value)] = value
        self.text(type(value).__qualname__)
        for kinds, walk in self._kinds():
            if isinstance(value, kinds):
                walk(value)
                return
        # A class made in C has a constructor of its own, and state that Python does not show.
        new: Any = type(value).__new__
        if hasattr(value, "__dict__") and (new is object.__new__ or inspect.isfunction(new)):
            self._object(value)
        else:
            self.complete = False

    def _kinds(self) -> list[tuple[Any, Callable[[Any], None]]]:
        return [
            (Tensor, self.tensor),
            (np.ndarray, lambda array: self.tensor(torch.from_numpy(array.copy()))),
            (torch.fx.GraphModule, self._graph),
            (nn.Module, self._module),
            (types.ModuleType, lambda module: self.text(module.__name__)),
            (type, self._class),
            (types.FunctionType, self._function),
            (types.MethodType, lambda method: self._each(method.__func__, method.__self__)),
            (types.BuiltinFunctionType, lambda function: self.text(function.__qualname__)),
            (functools.partial, lambda p: self._each(p.func, p.args, p.keywords)),
            (types.CodeType, self._code),
            (Mapping, lambda mapping: self._each(*(x for item in mapping.items() for x in item))),
            ((list, tuple), lambda items: self._each(*items)),
            ((set, frozenset), lambda items: self._each(*sorted(items, key=repr))),
            ((torch.dtype, torch.device, PurePath, range, slice), lambda v: self.text(str(v))),
        ]

    def _each(self, *values: Any) -> None:
        for value in values:
            self.value(value)

    def _module(self, module: nn.Module) -> None:
        self._class(type(module))
        own = {k: v for k, v in vars(module).items() if k not in _BOOKKEEPING}
        parts = {**module._parameters, **module._buffers, **module._modules, **own}
        self._each(dict(sorted(parts.items())))

    def _class(self, kind: type) -> None:
        self.text(f"{kind.__module__}.{kind.__qualname__}")
        if kind.__module__.partition(".")[0] in _OURS:
            return
        # Methods, as code: the source may not be at hand, and comments do not matter.
        for name, value in sorted(vars(kind).items()):
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            if isinstance(value, types.FunctionType | bool | int | float | str | Tensor):
                self._each(name, value)
        self._each(*(base for base in kind.__bases__ if base is not object))

    def _function(self, function: types.FunctionType) -> None:
        self.text(function.__qualname__)
        if function.__module__ and function.__module__.partition(".")[0] in _OURS:
            return
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        found = {
            name: function.__globals__[name]
            for name in _names(function.__code__)
            if name in function.__globals__
        }
        self._each(function.__code__, function.__defaults__, function.__kwdefaults__, cells, found)

    def _code(self, code: types.CodeType) -> None:
        self._each(code.co_code, code.co_names, code.co_varnames)
        self._each(*code.co_consts)

    def _object(self, value: Any) -> None:
        self._class(type(value))
        self._each(dict(sorted(vars(value).items())))

    def _graph(self, graph: torch.fx.GraphModule) -> None:
        self.text(str(graph.code))
        self._module(graph)


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names(code: types.CodeType) -> list[str]:
    """Names a function and the functions inside it look up."""
    inner = [
        name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)
    ]
    return sorted({*code.co_names, *inner})
