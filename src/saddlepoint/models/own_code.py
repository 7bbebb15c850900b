"""Networks and data out of the user's own code, and where in it an error came from."""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from saddlepoint.calls import how_to_declare

__all__ = ["code_of", "from_code", "place_of", "reason_in", "takes"]

_PLACES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "scripts")]
_LIBRARIES = tuple(os.path.realpath(p) + os.sep for p in (*_PLACES, str(Path(__file__).parents[1])))
_loaded: set[str] = set()  # files and folders of the modules that users named


def code_of(
    spec: str,
    made: Callable[[Any], bool],
    options: Mapping[str, Any] | None = None,
    *,
    flag: str = "",
) -> Any:
    """What the user's code has under a name, or what comes out of it when it is called.

    The code is imported and run: the user named it.

    Args:
        spec: "package.module:name", which is looked for in the current folder too, after everything installed;
            or "folder/nets.py:name", whose neighbours it may import. A name may have dots.
        made: Whether a thing is what is looked for; if not, it is called.
        options: What to call it with, as far as it takes it.
        flag: The setting it comes from, for messages.

    Raises:
        ValueError: There is no such thing, or the code failed; says in which line of it.
    """
    with _told(spec, flag):
        found = _named(spec)
        return (
            found(**_taken(found, options or {})) if callable(found) and not made(found) else found
        )


def takes(spec: str, argument: str, *, flag: str = "") -> bool:
    """Whether what the user's code has under a name is called with an argument of this name."""
    with _told(spec, flag):
        found = _named(spec)
        return callable(found) and argument in _taken(found, {argument: None})


def from_code(module: str, factory: str) -> Callable[..., Any]:
    """A network out of the user's code, see `code_of`, in evaluation mode; or another function of images.

    Example:
        >>> from_code("torch.nn", "Flatten")
        Flatten(start_dim=1, end_dim=-1)
    """
    name = f"{module}:{factory}"
    found = code_of(name, lambda thing: isinstance(thing, nn.Module))
    if not callable(found):
        got = f"{type(found).__name__}{how_to_declare(found)}"
        raise ValueError(f"`{name}` must give a model, got {got}.")
    return found.eval() if isinstance(found, nn.Module) else found


def reason_in(error: BaseException) -> str:
    """An error in one line, with the place in the user's code where it was raised."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}".rstrip(": .") + f"{place_of(error)}."


def place_of(error: BaseException) -> str:
    """Where in the user's own code an error came from, as " (nets.py, line 12)"; empty if not from there.

    Example:
        >>> try:
        ...     exec(compile("1 / 0", "mine.py", "exec"))
        ... except ZeroDivisionError as error:
        ...     place_of(error)
        ' (mine.py, line 1)'
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SyntaxError) and cause.filename and cause.lineno:
            return f" ({_short(cause.filename)}, line {cause.lineno})"
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            if _is_users(frame.filename):
                return f" ({_short(frame.filename)}, line {frame.lineno})"
        cause = cause.__cause__ or cause.__context__
    return ""


@contextmanager
def _told(spec: str, flag: str) -> Iterator[None]:
    """The user's own code may raise anything, and is looked for in its own folder too."""
    module = spec.rpartition(":")[0]
    home = Path(module).parent if module.endswith(".py") else Path.cwd()
    with _at_the_end_of_the_path(home):
        try:
            yield
        except Exception as error:
            what = f"`{flag}` {spec}" if flag else f"`{spec}`"
            raise ValueError(
                f"{what} must be code that can be imported and called without arguments, got {reason_in(error)}"
            ) from error


def _named(spec: str) -> Any:
    module, _, name = spec.rpartition(":")
    found: Any = _imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [each for each in dir(found) if each[0] != "_"])
            meant = f", where the nearest name is {near[0]}" if near else ""
            raise AttributeError(f"there is no {part} in {module}{meant}")
        found = getattr(found, part)
    return found


def _imported(module: str) -> ModuleType:
    if not module.endswith(".py"):
        found = importlib.import_module(module)
        root = sys.modules[module.partition(".")[0]]
        _loaded.update(os.path.realpath(place) for place in getattr(root, "__path__", ()))
        return found
    path = Path(module).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {module}")
    name = path.stem
    if not _is_free(name, path):
        name = f"{name}_{path.parent.name}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[name]
        raise
    return made


def _is_free(name: str, path: Path) -> bool:
    """Whether a module of this name would be the file at the path, and none that is installed or loaded."""
    known = sys.modules.get(name)
    if known is not None:
        return getattr(known, "__file__", None) == str(path)
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    return found is None or found.origin == str(path)


@contextmanager
def _at_the_end_of_the_path(folder: Path) -> Iterator[None]:
    """Modules are looked for in this folder too, after all others: none of its files hides a library."""
    place = str(folder.resolve())
    added = place not in sys.path
    if added:
        sys.path.append(place)
    try:
        yield
    finally:
        if added and place in sys.path:
            sys.path.remove(place)


def _is_users(file: str) -> bool:
    """Whether a file is neither part of Python nor of a library, or of one that the user named."""
    if file.startswith("<"):
        return False
    path = os.path.realpath(file)
    if any(path.startswith(place + os.sep) for place in _loaded):
        return True
    installed = {"site-packages", "dist-packages"} & set(Path(path).parts)
    return not (installed or path.startswith(_LIBRARIES))


def _short(file: str) -> str:
    here = os.path.relpath(file)
    return file if here.startswith("..") else here


def _taken(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that a function has by name."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # made in C
        return {}
    return {key: value for key, value in options.items() if key in names}
