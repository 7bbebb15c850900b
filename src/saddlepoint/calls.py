"""The one place where a model is called, and what has to be so before it is.

A model maps images in [0, 1] to logits. It gets a tensor of its own, on its device and in its dtype, in full
precision whatever autocast is around, unless `saddlepoint.precision` says otherwise for it. What it returns is
taken apart, and the logits come back on the device and in the dtype of the images. Whoever asks a model, asks
it here.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice

import torch
from torch import Tensor, nn

from saddlepoint.precision import how_of

__all__ = [
    "Model",
    "call",
    "check_eval_mode",
    "dtypes_of",
    "full_precision",
    "home",
    "logits_of",
    "modules_behind",
    "parts_in_training",
]

Model = Callable[[Tensor], Tensor]
"""From images (n, ...) in [0, 1] to logits (n, C). Networks that return more than a tensor are taken as well.

Example:
    >>> import saddlepoint as sp
    >>> model: sp.Model = torch.nn.Flatten().eval()
    >>> model(torch.rand(5, 1, 2, 2)).shape
    torch.Size([5, 4])
"""

_DEVICES = ("cpu", "cuda", "mps", "xpu")  # that autocast may be on for
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


def call(model: Model, images: Tensor, *, fresh: bool = False) -> Tensor:
    """The logits of a model, as a tensor of the device and dtype of the images.

    Args:
        model: A callable from images to logits.
        images: (n, ...), float32 or float64. What the model does to them in place reaches nobody. A module
            whose parameters and buffers are of other dtypes gets them in the widest of these.
        fresh: Whether nobody else uses this tensor, so that it need not be copied.

    Returns:
        (n, C), in the dtype of the images.

    Raises:
        TypeError: The model returned something that holds no logits.
        ValueError: The logits are not (n, C), or the model cannot take images of this dtype.

    Example:
        >>> def in_place(images):
        ...     return (images.mul_(2).sub_(1),)
        >>> x = torch.tensor([[0.5, 1.0]])
        >>> call(in_place, x), x
        (tensor([[0., 1.]]), tensor([[0.5000, 1.0000]]))
    """
    device, dtype = home(model, images)
    how = how_of(model)
    own = images.to(device=device, dtype=dtype)
    if own is images and not fresh:
        own = images.clone()
    try:
        output: object
        if how is not None:
            with full_precision():
                output = how.ask(model, own)
        elif any(map(torch.is_autocast_enabled, _DEVICES)):
            with full_precision():
                output = model(own)
        else:
            output = model(own)
    except RuntimeError as error:
        remedy = _dtype_remedy(own.dtype, dtypes_of(modules_behind(model)), error)
        if remedy is None:
            raise
        raise ValueError(remedy) from error
    logits = logits_of(output)
    if logits.dim() != 2 or len(logits) != len(images):
        raise ValueError(
            f"models must return logits (B, C), one row for each of {len(images)} images, "
            f"got {tuple(logits.shape)}."
        )
    return logits.to(images)


def logits_of(output: object) -> Tensor:
    """The logits in what a model returned: itself, `.logits`, `["logits"]`, or the first of a tuple.

    Raises:
        TypeError: There are none.

    Example:
        >>> logits_of({"logits": torch.zeros(1, 2), "hidden": None}).shape
        torch.Size([1, 2])
    """
    if isinstance(output, Tensor):
        found: object = output
    elif getattr(output, "logits", None) is not None:
        found = output.logits  # type: ignore[attr-defined]
    elif isinstance(output, Mapping):
        found = output.get("logits")
    else:
        found = output[0] if isinstance(output, tuple | list) and output else None
    if isinstance(found, Tensor) and found.is_floating_point():
        return found
    if isinstance(found, Tensor):
        got = f"{_name(found.dtype)}; return scores of all classes, not classes"
    elif isinstance(output, Mapping):
        got = f"{type(output).__name__} with keys {list(output)}; wrap it to return one of them"
    else:
        got = f"{type(output).__name__}; wrap it in a function that returns the tensor alone"
    raise TypeError(
        'models must return logits (B, C) as a floating-point tensor, as `.logits` or ["logits"], or as the '
        f"first of a tuple, got {got}."
    )


@contextmanager
def full_precision() -> Iterator[None]:
    """Autocast off, also inside a user's `torch.autocast`: verdicts are made in full precision.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision():
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    with ExitStack() as stack:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def check_eval_mode(models: Sequence[Model]) -> None:
    """Refuse models in training mode, without calling them: asked, batch norm would change its statistics.

    Networks behind functions are found, see `modules_behind`.

    Example:
        >>> network = nn.Dropout()
        >>> check_eval_mode([network.eval(), lambda images: network(images)])
    """
    for index, model in enumerate(models):
        for module in modules_behind(model):
            if parts_in_training(module):
                what = type(model).__name__
                if module is not model:
                    what += f" around {type(module).__name__}"
                raise ValueError(
                    f"models[{index}] ({what}) is in training mode, which makes its answers depend on the "
                    "batch and on chance; call model.eval() first."
                )


def parts_in_training(module: nn.Module) -> list[nn.Module]:
    """The parts of a network that are in training mode.

    Shells have no mode, although they say otherwise: those of exported programs, and the bare modules that
    only hold parameters. What a traced network calls has one: its batch norm and dropout are modules as ever.

    Example:
        >>> parts_in_training(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Dropout())))
        [Linear(in_features=2, out_features=2, bias=True), Dropout(p=0.5, inplace=False)]
    """
    return [part for part in module.modules() if part.training and not _is_shell(part)]


def _is_shell(part: nn.Module) -> bool:
    kind = type(part)
    graph = isinstance(part, torch.fx.GraphModule) or kind.__module__.startswith("torch.export.")
    return graph or kind is nn.Module


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


def home(model: Model, images: Tensor) -> tuple[torch.device, torch.dtype]:
    """Where a module wants its images, and in which dtype; other callables take them as they are."""
    if not isinstance(model, nn.Module):
        return images.device, images.dtype
    first = next(model.parameters(), None)
    if first is None:
        return images.device, images.dtype
    if first.dtype != images.dtype:
        known = dtypes_of([model])
        # A module that holds the images' dtype too converts them itself.
        if known and images.dtype not in known:
            return first.device, max(known, key=lambda dtype: (dtype.itemsize, str(dtype)))
    return first.device, images.dtype


def dtypes_of(modules: Sequence[nn.Module]) -> set[torch.dtype]:
    """Of all parameters and buffers that are floating-point numbers."""
    tensors = (t for module in modules for t in chain(module.parameters(), module.buffers()))
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()}


def _dtype_remedy(given: torch.dtype, known: set[torch.dtype], error: RuntimeError) -> str | None:
    """What to say of a model that failed on images of this dtype; None if its dtypes are not the reason."""
    names = " and ".join(sorted(map(_name, known)))
    if known and given not in known:
        images = {torch.float32: "x.float()", torch.float64: "x.double()"}
        fitting = [how for dtype, how in images.items() if dtype in known]
        do = f"give it images of that dtype, such as {fitting[0]}" if fitting else ""
        do = do or "pass the module itself, which is asked in its own dtype, or write model.float()"
        return (
            f"the model must take {_name(given)} images, but its parameters are {names}, and it failed "
            f"({error}); {do}."
        )
    if len(known) > 1 and "type" in str(error):  # as all complaints about dtypes say
        return (
            f"a model must have parameters and buffers of one dtype, or convert between them, got {names}, and "
            f"it failed ({error}); write model.float(), with the wrapper around the network included."
        )
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
