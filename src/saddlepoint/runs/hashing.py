"""Content hashes of settings, models and data: whether a run that is continued is the same run."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import json
import logging
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["hash_model", "hash_settings", "hash_tensors"]

# Code that is known by its name: Python's, and of libraries, whose versions are in the record.
_LIBRARIES = sys.stdlib_module_names | {
    *("torch", "saddlepoint", "numpy"),
    *(
        "einops",
        "kornia",
        "scipy",
        "PIL",
        "timm",
        "torchvision",
        "transformers",
        "huggingface_hub",
        "onnx",
        "onnx2pytorch",
    ),
}
_CACHED: Any = type(functools.cache(len))
_BUILT_IN = (types.BuiltinFunctionType, types.MethodWrapperType)
# Methods made in C, and fields of slots and named tuples: known by name.
_DESCRIBING: Any = (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.MemberDescriptorType),
    *(types.GetSetDescriptorType, type(namedtuple("_", "field").field)),  # type: ignore[attr-defined]
)
# Hooks that change what a module answers or its gradient, and what torch notes beside them under the same keys.
_HOOKS: Mapping[str, tuple[str, ...]] = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_backward_pre_hooks": (),
    "_backward_hooks": (),
}
# What torch keeps in the attributes of every module besides parameters, buffers and hooks, which are hashed.
_BOOKKEEPING = frozenset(nn.Module().__dict__) - {"training"}
# What Python keeps in every class about itself, which decides nothing of what it does.
_OF_CLASSES = frozenset(
    {
        *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__"),
        *("__annotate_func__", "__annotations_cache__", "__firstlineno__", "__static_attributes__"),
        *(
            "__orig_bases__",
            "__parameters__",
            "__type_params__",
            "__abstractmethods__",
            "_abc_impl",
        ),
        *("__dataclass_fields__", "__dataclass_params__"),  # a default is an attribute too
    }
)


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

    That is parameters, buffers, attributes, hooks, and the classes and functions of no library: all that is in
    a class, the code of functions, and the values that functions hold in closures, defaults and the globals
    they name, of modules those that they name.

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
        # Their places in the order of first sight; the objects are kept, so that no address is used twice.
        self._seen: dict[int, tuple[int, object]] = {}

    def text(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text};".encode())

    def tensor(self, value: Tensor) -> None:
        dense = value.detach() if value.layout == torch.strided else value.detach().to_dense()
        plain = dense.cpu().resolve_conj().resolve_neg().contiguous()
        self.text(f"{plain.dtype}{tuple(plain.shape)}")
        self.digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        self.text(f"{value.dtype.str}{value.shape}")
        if value.dtype.hasobject:
            self._each(*value.flat)
        else:
            self.digest.update(value.tobytes())

    def value(self, value: Any) -> None:
        if value is None or isinstance(
            value, bool | int | float | complex | str | bytes | type(...)
        ):
            self.text(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self._seen:
            self.text(f"again {self._seen[id(value)][0]}")
            return
        self._seen[id(value)] = len(self._seen), value
        self.text(type(value).__qualname__)
        for kinds, walk in self._kinds():
            if isinstance(value, kinds):
                try:
                    walk(value)
                except Exception:
                    # Objects of others may raise anything; then nobody can say what they are.
                    self.complete = False
                return
        if hasattr(value, "SerializeToString"):  # a message of protobuf, as in ONNX files
            self.digest.update(value.SerializeToString(deterministic=True))
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
            (np.generic, lambda number: self.text(repr(number))),
            (np.ndarray, self._array),
            (torch.fx.GraphModule, self._graph),
            (nn.Module, self._module),
            (types.ModuleType, self._whole_module),
            (type, self._class),
            (types.FunctionType, self._function),
            (types.MethodType, lambda method: self._each(method.__func__, method.__self__)),
            (property, lambda p: self._each(p.fget, p.fset, p.fdel)),
            (functools.cached_property, lambda p: self.value(p.func)),
            ((staticmethod, classmethod), lambda method: self.value(method.__func__)),
            (_CACHED, lambda function: self.value(function.__wrapped__)),
            (_BUILT_IN, self._built_in),
            (
                _DESCRIBING,
                lambda each: self.text(getattr(each, "__qualname__", repr(each.__doc__))),
            ),
            (logging.Logger, lambda logger: self.text(logger.name)),
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
        self._hooks(module)

    def _hooks(self, module: nn.Module) -> None:
        """Hooks in the order they run; the keys are numbers of this process."""
        for name, flags in _HOOKS.items():
            for key, hook in getattr(module, name).items():
                self.text(name)
                self._each(hook, *(key in getattr(module, flag) for flag in flags))

    def _class(self, kind: type) -> None:
        self.text(f"{kind.__module__}.{kind.__qualname__}")
        if _of_library(kind.__module__):
            return
        # Methods, as code: the source may not be at hand, and comments do not matter.
        own = {name: value for name, value in vars(kind).items() if name not in _OF_CLASSES}
        self._each(dict(sorted(own.items())))
        self._each(*(base for base in kind.__bases__ if base is not object))

    def _function(self, function: types.FunctionType) -> None:
        self.text(function.__qualname__)
        if _of_library(function.__module__):
            return
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        code = function.__code__
        self._each(code, function.__defaults__, function.__kwdefaults__, cells)
        names = _names(code)
        for name in names:
            if name in function.__globals__:
                self.text(name)
                self._global(function.__globals__[name], names)
        for name in _imported(code):
            # What a function imports when it is called is known only if that has happened before.
            if name in sys.modules:
                self._global(sys.modules[name], names)
            else:
                self.complete &= _of_library(name)

    def _global(self, value: Any, names: list[str]) -> None:
        """What a function knows as a global; of a module, what the function names of it."""
        if not isinstance(value, types.ModuleType):
            self.value(value)
            return
        self.text(value.__name__)
        if _of_library(value.__name__):
            return
        found = [name for name in names if name in vars(value)]
        if not found:  # handed on as it is
            self.value(value)
        for name in found:
            self.text(name)
            if vars(value)[name] is not value:
                self._global(vars(value)[name], names)

    def _whole_module(self, module: types.ModuleType) -> None:
        self.text(module.__name__)
        if not _of_library(module.__name__):
            own = {k: v for k, v in vars(module).items() if not k.startswith("__")}
            self._each(dict(sorted(own.items())))

    def _built_in(self, function: Any) -> None:
        self._each(function.__qualname__, function.__self__)

    def _code(self, code: types.CodeType) -> None:
        self._each(code.co_code, code.co_names, code.co_varnames)
        self._each(*code.co_consts)

    def _object(self, value: Any) -> None:
        self._class(type(value))
        slots = {
            name: getattr(value, name)
            for kind in type(value).__mro__
            for name, member in vars(kind).items()
            if isinstance(member, types.MemberDescriptorType) and hasattr(value, name)
        }
        self._each(dict(sorted({**slots, **vars(value)}.items())))

    def _graph(self, graph: torch.fx.GraphModule) -> None:
        self.text(str(graph.code))
        self._module(graph)


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _of_library(module: str | None) -> bool:
    return bool(module) and str(module).partition(".")[0] in _LIBRARIES


def _imported(code: types.CodeType) -> list[str]:
    """Modules that a function and the functions inside it import when they are called."""
    found = [each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"]
    inner = (_imported(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return [*found, *(name for part in inner for name in part)]


def _names(code: types.CodeType) -> list[str]:
    """Names a function and the functions inside it look up."""
    inner = [
        name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)
    ]
    return sorted({*code.co_names, *inner})
