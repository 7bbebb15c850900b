"""The networks behind a model, which may be any callable: their modes, buffers and random numbers."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor, nn

__all__ = [
    "keeping_buffers",
    "keeping_modes",
    "keeping_random",
    "modules_behind",
    "parts_in_training",
]

# How far, and among how many things, networks behind a function are looked for.
_REACH, _MANY = 6, 10_000
_OWN = frozenset(vars(nn.Module()))  # what every module has: registered parts, hooks
_LEAVES = (
    Tensor,
    str,
    bytes,
    int,
    float,
    complex,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
)


def modules_behind(model: object) -> list[nn.Module]:
    """The networks that a model is or calls, as far as that can be seen from outside.

    Looks into closures, defaults, the global names a function uses, partial functions, bound methods,
    attributes and slots of objects, also inside modules, and lists, tuples, sets and dictionaries of these.

    Example:
        >>> network = nn.Linear(2, 2)
        >>> modules_behind(functools.partial(lambda net, images: net(images), network)) == [network]
        True
    """
    found: list[nn.Module] = []
    seen: set[int] = set()
    todo: list[tuple[object, int]] = [(model, 0)]
    while todo and len(seen) < _MANY:
        thing, depth = todo.pop()
        if id(thing) in seen or isinstance(thing, _LEAVES) or depth > _REACH:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            found.append(thing)
            seen.update(map(id, thing.modules()))
        todo += [(part, depth + 1) for part in islice(_parts(thing), _MANY)]
    return found


def _parts(thing: object) -> Iterator[object]:
    """What a thing refers to in a way that it might call it."""
    if isinstance(thing, nn.Module):
        # Registered parts are known; a network kept in a list, an object or a function is not.
        for part in thing.modules():
            if not isinstance(part, torch.fx.GraphModule):  # a graph calls registered parts only
                yield from (value for name, value in vars(part).items() if name not in _OWN)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.FunctionType):
        yield from _captured(thing)
        yield from vars(thing).values()
    elif isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    else:
        yield from getattr(thing, "__dict__", {}).values()
        yield from _slots(thing)


def _slots(thing: object) -> Iterator[object]:
    """What an object keeps in `__slots__`."""
    for kind in type(thing).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield slot.__get__(thing)
                except AttributeError:  # not filled yet
                    continue


def _captured(function: types.FunctionType) -> Iterator[object]:
    """What a function takes from outside: closure, defaults and the globals that its code names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    # Functions of libraries name nothing of the user's.
    if function.__module__ is None or function.__module__.split(".")[0] in ("torch", "saddlepoint"):
        return
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]


def parts_in_training(module: nn.Module) -> list[nn.Module]:
    """The parts of a network that are in training mode.

    Shells have no mode, although they say otherwise: those of exported programs, and the bare modules that
    only hold parameters. What a traced network calls has one: its batch norm and dropout are modules as ever.

    Example:
        >>> parts_in_training(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Dropout())))
        [Linear(in_features=2, out_features=2, bias=True), Dropout(p=0.5, inplace=False)]
    """
    return [part for part in _with_modes([module]) if part.training and not _is_shell(part)]


def _with_modes(networks: Sequence[nn.Module]) -> list[nn.Module]:
    """All parts of networks that have a mode: frozen TorchScript was made for evaluation and has none."""
    return [part for net in networks for part in net.modules() if hasattr(part, "training")]


def _is_shell(part: nn.Module) -> bool:
    kind = type(part)
    graph = isinstance(part, torch.fx.GraphModule) or kind.__module__.startswith("torch.export.")
    return graph or kind is nn.Module


@contextmanager
def keeping_modes(networks: Sequence[nn.Module], mode: bool | None = None) -> Iterator[None]:
    """Afterwards every part of the networks is in the mode it had; inside it is in `mode`, if there is one.

    Example:
        >>> network = nn.Sequential(nn.Dropout())
        >>> with keeping_modes([network], False):
        ...     network[0].training
        False
        >>> network[0].training
        True
    """
    before = [(part, part.training) for part in _with_modes(networks)]
    try:
        if mode is not None:
            for part, _ in before:
                part.training = mode  # not by eval(), which an exported program refuses
        yield
    finally:
        for part, kept in before:
            part.training = kept


@contextmanager
def keeping_buffers(models: Sequence[object]) -> Iterator[None]:
    """Whatever models write into their buffers while they are asked is undone, as observers of ranges do.

    Example:
        >>> class Counting(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("asked", torch.zeros(()))
        ...     def forward(self, images):
        ...         self.asked += 1
        ...         return images
        >>> model = Counting().eval()
        >>> with keeping_buffers([model]):
        ...     _ = model(torch.rand(1, 2))
        >>> model.asked
        tensor(0.)
    """
    networks = (network for model in models for network in modules_behind(model))
    modules = dict.fromkeys(module for network in networks for module in network.modules())
    before = [
        (buffer, buffer.clone())
        for module in modules
        for _, buffer in module.named_buffers(recurse=False)
    ]
    # A script never gives the same object twice, and lets none be replaced.
    held = [
        (module, dict(module._buffers), set(module._non_persistent_buffers_set))
        for module in modules
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
        for module, buffers, passing in held:  # those that are None, and new ones, too
            module._buffers.clear()
            module._buffers.update(buffers)
            module._non_persistent_buffers_set.intersection_update(passing)
            module._non_persistent_buffers_set.update(passing)


@contextmanager
def keeping_random(models: Sequence[object], seed: int | None = None) -> Iterator[None]:
    """Afterwards the global generators are as they were: that of the CPU, and those of the GPUs in use.

    In use are the GPUs that the models are on, and the current one if any has been used. Others are not
    touched: on a shared machine every GPU that is asked loses memory to this process.

    Args:
        models: Any callables.
        seed: What numbers are drawn from inside; as it comes if None.

    Example:
        >>> before = torch.get_rng_state()
        >>> with keeping_random([], seed=0):
        ...     drawn = torch.rand(())
        >>> torch.equal(torch.get_rng_state(), before)
        True
    """
    gpus = _gpus(models)
    with torch.random.fork_rng(devices=gpus):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


def _gpus(models: Sequence[object]) -> list[int]:
    """Numbers of the GPUs that models are on, and of the current one if CUDA is in use."""
    networks = (network for model in models for network in modules_behind(model))
    tensors = (t for network in networks for t in (*network.parameters(), *network.buffers()))
    found = {tensor.device.index for tensor in tensors if tensor.device.type == "cuda"}
    return sorted(found | ({torch.cuda.current_device()} if torch.cuda.is_initialized() else set()))
