"""Networks with trained parameters: those shipped with the package by name, the user's own from files.

Parameters are read as safetensors, or as a state dict with `weights_only=True`. Nothing is unpickled.
"""

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, final

import safetensors
import torch
from safetensors.torch import load as parse_safetensors
from torch import Tensor, nn

from saddlepoint.suffixes import EXPORTED, PARAMETERS, TORCHSCRIPT

from .architectures import build
from .cards import Card
from .packed import how_to_get, packed_files, unpack
from .paper_networks import check_name
from .programs import is_torchscript, load_exported, load_torchscript

__all__ = ["card", "channels_last", "inside", "load", "shipped"]

# Where training scripts put the state dict in a checkpoint, and what wrappers of torch put before all names.
_CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model", "net", "network")
_PREFIXES = ("module.", "_orig_mod.", "model.", "network.")
_SUFFIXES = (*PARAMETERS, EXPORTED, *TORCHSCRIPT)


def shipped() -> tuple[str, ...]:
    """Names of the networks whose parameters come with the package, or lie in `weights` of a checkout.

    `mnist-a` is by our fast recipe, `mnist-paper-a` by the paper's and without a shift of its input. Large
    networks are outside the wheel: in `weights` of a checkout, or in the folder that SADDLEPOINT_WEIGHTS names.

    Example:
        >>> shipped()[0], "mnist-d" in shipped()
        ('cifar10-a', True)
    """
    return tuple(sorted(inside() | set(packed_files())))


def inside() -> set[str]:
    """Names of the networks whose parameters are in the package, which go before others of the same name.

    Example:
        >>> "mnist-a" in inside()
        True
    """
    files = (file.name for file in _folder().iterdir())
    return {name.removesuffix(".json") for name in files if name.endswith(".json")}


def card(name: str) -> Card:
    """The card of a shipped network: data, recipe, accuracy, hash.

    Raises:
        ValueError: Unknown name, damaged card, or that of another network of the paper than the name says.

    Example:
        >>> card("mnist-b").data
        'mnist'
    """
    if name not in shipped():
        _refuse_untrained("name", name)
        raise ValueError(f"`name` must be one of {', '.join(shipped())}, got {name!r}.")
    file = _shipped_file(name, ".json")
    found = _card(file)
    check_name(name, found, file, str(Path(str(file)).parent))
    return found


def load(
    source: str | Path,
    *,
    architecture: str | None = None,
    channels: int | None = None,
    size: int | None = None,
    classes: int | None = None,
    trust: bool = False,
) -> nn.Module:
    """A network with trained parameters, in evaluation mode, on the CPU.

    Args:
        source: The name of a shipped network, such as "mnist-b", or a file:
            `.safetensors` (a card of the same name beside it, as `saddlepoint train` writes, names
            the architecture and is checked); `.pt` or `.pth`, a state dict, read with `weights_only=True`;
            `.pt2`, a `torch.export` program with a free batch size; `.ts` or `.torchscript`, a
            TorchScript program, which is code of its author and needs `trust`.
        architecture: Of the parameters in a file, as `build` takes it.
        channels: Of the images; with `size`, taken from the card or the parameters where not given.
        size: Height and width of the images.
        classes: Number of logits; taken from the card or the parameters where not given.
        trust: Whether code in the file may run; of TorchScript only.

    Raises:
        ValueError: Unknown name, missing or damaged file, wrong hash, or wrong architecture.

    Example:
        >>> load("mnist-a").training
        False
    """
    given = _Shape(architecture, channels, size, classes)
    if str(source) in shipped():
        if given != _Shape():
            raise ValueError(f"`architecture` and shape must not be given for {source!r}.")
        file = _shipped_file(str(source), ".safetensors")
        return _from_safetensors(str(source), file, card(str(source)), given)
    path = Path(source)
    _refuse_untrained("source", str(source))
    if path.suffix not in _SUFFIXES:
        raise ValueError(
            f"`source` must be one of {', '.join(shipped())}, or a file ending in "
            f"{', '.join(_SUFFIXES)}, got {str(source)!r}."
        )
    if not path.is_file():
        raise ValueError(f"`source` must be a file that exists, got {str(path)!r}.")
    if path.suffix == EXPORTED:
        return load_exported(path)
    if path.suffix in TORCHSCRIPT:
        return load_torchscript(path, trust=trust)
    if path.suffix == ".safetensors":
        beside = path.with_suffix(".json")
        known = _card(beside) if beside.is_file() else None
        return _from_safetensors(str(path), path, known, given)
    return _network(str(path), parameters(path), given)


def channels_last(network: nn.Module) -> nn.Module:
    """The same network, its filters laid out with channels last; for networks that are ours to change.

    By torch alone gradients of networks C and D take less time on a CPU so (`python -m benchmarks precision`),
    those of A the same; in attacks on C the first layer is differentiated in a cheap way in both layouts.
    A network all of whose convolutions have a stride is left as it is: of those here that is `mnist_cnn_small`,
    whose gradients take more time in this layout. Values and hashes are the same; answers differ by rounding.
    `load` does not do it, because files of parameters and exported programs want the plain layout;
    `precision="auto"` measures it for the models of an attack.

    Example:
        >>> channels_last(load("mnist-c")).training
        False
    """
    convolutions = [each for each in network.modules() if isinstance(each, nn.Conv2d)]
    if convolutions and all(max(each.stride) > 1 for each in convolutions):
        return network
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def parameters(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file of parameters, by name, without running anything in it.

    A checkpoint that holds more than a state dict is searched for it.

    Raises:
        ValueError: Not such a file.

    Example:
        >>> sorted(parameters(Path(str(_folder() / "mnist-a.safetensors"))))[0]
        '2.bias'
    """
    if path.suffix == ".safetensors":
        return _parsed(str(path), path.read_bytes())
    return _state_dict(path)


def fill(
    name: str, model: nn.Module, tensors: Mapping[str, Tensor], file: str = "parameters"
) -> None:
    """Load parameters into a network, also where a wrapper of torch has put its word before all names.

    Args:
        name: Of the network, for messages.
        model: The network.
        tensors: By name.
        file: Where they come from, for messages.

    Raises:
        ValueError: They are not the parameters of this network; says which is the first that is not.
    """
    candidates = [tensors]
    for prefix in _PREFIXES:
        if tensors and all(key.startswith(prefix) for key in tensors):
            candidates.append({key.removeprefix(prefix): v for key, v in tensors.items()})
    problems = [_misfit(model, each) for each in candidates]
    if None not in problems:
        raise ValueError(f"`{file}` must hold the parameters of {name}, got: {problems[-1]}.")
    model.load_state_dict(candidates[problems.index(None)])


@final
@dataclass(frozen=True)
class _Shape:
    """What the caller said of the network; None is "find out"."""

    architecture: str | None = None
    channels: int | None = None
    size: int | None = None
    classes: int | None = None


def _folder() -> Traversable:
    return resources.files("saddlepoint.models") / "parameters"


def _refuse_untrained(argument: str, name: str) -> None:
    """Refuse a network of the paper that has no parameters here, with how to get them."""
    if remedy := how_to_get(name):
        raise ValueError(
            f"`{argument}` must have parameters, got {name!r}, which has none here: {remedy}."
        )


def _shipped_file(name: str, suffix: str) -> Traversable | Path:
    file = _folder() / f"{name}{suffix}"
    return file if file.is_file() else packed_files()[name].with_suffix(suffix)


def _card(file: Traversable | Path) -> Card:
    return Card.from_json(file.read_bytes().decode("utf-8", errors="replace"), str(file))


def _from_safetensors(
    name: str, file: Traversable | Path, known: Card | None, given: _Shape
) -> nn.Module:
    content = file.read_bytes()
    if known is not None:
        found = hashlib.sha256(content).hexdigest()
        if found != known.sha256:
            raise ValueError(
                f"SHA-256 of `{name}` must be {known.sha256}, as its card says, got {found}: it is damaged, or "
                "the card is of another file; get both again."
            )
        given = _Shape(
            given.architecture or known.architecture,
            given.channels or known.channels,
            given.size or known.size,
            given.classes or known.classes,
        )
    return _network(name, _parsed(name, content), given)


def _parsed(name: str, content: bytes) -> Mapping[str, Tensor]:
    try:
        tensors = parse_safetensors(content)
    except (safetensors.SafetensorError, KeyError) as error:  # a KeyError is a type torch lacks
        raise ValueError(
            f"`{name}` must be a safetensors file, got {error}: it is damaged or another kind of file; save or "
            "copy it again."
        ) from error
    try:
        return unpack(tensors)
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from error


def _state_dict(path: Path) -> Mapping[str, Tensor]:
    advice = "save it with torch.save(model.state_dict(), path)"
    if is_torchscript(path):
        raise ValueError(
            f"`{path}` must be a state dict; give a TorchScript program the ending .ts."
        )
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(f"`{path}` must be a state dict and nothing else; {advice}.") from error
    for key in _CHECKPOINT_KEYS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
            break
    if not (isinstance(state, Mapping) and all(isinstance(v, Tensor) for v in state.values())):
        got = f"keys {list(state)[:8]}" if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(f"`{path}` must map names to tensors, got {got}; {advice}.")
    return state


def _network(name: str, tensors: Mapping[str, Tensor], given: _Shape) -> nn.Module:
    if given.architecture is None:
        raise ValueError(f'`architecture` must be given for {name}, such as architecture="A".')
    if (given.channels is None) != (given.size is None):
        raise ValueError("`channels` and `size` must be given together.")
    shapes = [(1, 28), (3, 32)]
    if given.channels is not None and given.size is not None:
        shapes = [(given.channels, given.size)]
    problems: list[str] = []
    for channels, size in shapes:
        classes = given.classes or 10
        outline = _outline(given.architecture, channels, size, classes)
        # The last entry of a classifier's state dict is the bias of its logits.
        last = list(outline.state_dict())[-1]
        if given.classes is None and last in tensors and tensors[last].ndim == 1:
            classes = len(tensors[last])
            outline = _outline(given.architecture, channels, size, classes)
        problem = _misfit(outline, tensors)
        if problem is None:
            model = build(given.architecture, channels, size, classes)
            model.load_state_dict(tensors)
            return model.eval()
        problems.append(f"{channels}x{size}x{size} images: {problem}")
    raise ValueError(
        f"`{name}` must hold the parameters of network {given.architecture}, "
        f"got for {'; for '.join(problems)}."
    )


def _outline(architecture: str, channels: int, size: int, classes: int) -> nn.Module:
    """A network without memory: a card may ask for one that does not fit, nor its file."""
    with torch.device("meta"):
        return build(architecture, channels, size, classes)


def _misfit(model: nn.Module, tensors: Mapping[str, Tensor]) -> str | None:
    """The first reason why `tensors` are not the state of `model`, if there is one."""
    expected, learned = model.state_dict(), {name for name, _ in model.named_parameters()}
    for key, value in expected.items():
        if key not in tensors:
            return f"{key} is missing"
        found = tensors[key]
        if found.shape != value.shape:
            return f"{key} has shape {tuple(found.shape)}, not {tuple(value.shape)}"
        if not value.is_floating_point():  # such as the count of batches
            continue
        if not found.is_floating_point():
            return f"{key} is of {found.dtype}, not of floating-point numbers"
        entries = found.float()
        # Buffers may be infinite, as masks are.
        if entries.isnan().any() or (key in learned and entries.isinf().any()):
            return f"{key} has entries that are not finite"
    extra = next((key for key in tensors if key not in expected), None)
    return None if extra is None else f"{extra} is unknown"
