"""A `torch.export` archive (.pt2) that cannot run code of its author, made of one that nobody has to trust.

torch's reader unpickles members by their names, loads compiled libraries, looks operators up by any path below
`torch`, hands sizes to a function that evaluates Python, and reads an archive by other rules than Python does.
So it never sees the file: what a program needs is read here, checked against what may be there, and written
into a new archive in memory.
"""

import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["safe_archive"]

_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_PROGRAM = "models/model.json"
_MARKS = ("archive_format", "archive_version", "byteorder", ".data/version")
# Known and left out: inputs it was exported with, which torch would unpickle, and a number of the file.
_UNUSED = ("data/sample_inputs/model.pt", ".data/serialization_id")
_TENSORS = {
    _WEIGHTS: re.compile(r"weight_[0-9]+", re.ASCII),
    _CONSTANTS: re.compile(r"tensor_[0-9]+", re.ASCII),
}
_CONFIGS = {
    _WEIGHTS: f"{_WEIGHTS}model_weights_config.json",
    _CONSTANTS: f"{_CONSTANTS}model_constants_config.json",
}

# Operators on tensors and numbers; those that open files are left out.
_OPERATOR = re.compile(
    r"torch\.ops\.aten\.(?!(?:from_file|save)\.)\w+\.\w+"
    r"|_operator\.(?:getitem|add|sub|mul|truediv|floordiv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|not_)"
    r"|torch\.sym_(?:max|min|float|int|not|sum|ite|sqrt)|math\.(?:ceil|floor|trunc)",
    re.ASCII,
)
# Sizes as torch writes them: Mul(Integer(2), Symbol('s31', positive=True, integer=True)).
_SIZE = re.compile(
    r"(?:(?:Symbol|Integer|Rational|Float|Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|"
    r"IntTrueDiv|ModularIndexing|positive|nonnegative|integer|True|False|precision)\b"
    r"|'[su][0-9]+'|[su][0-9]+\b|'?[0-9]+(?:\.[0-9]+)?'?|[(),=* +/-])*",
    re.ASCII,
)
_NAME = re.compile(r"[\w.+-]*", re.ASCII)
_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")


def safe_archive(path: Path) -> io.BytesIO:
    """The program in a file, as an archive that torch can read without running code of its author.

    Raises:
        ValueError: Not such a file, or something in it that a program for images does not need: other members,
            two of one name, pickled objects, compiled parts, operators that are not on tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive)
        program = _clean_program(path, json.loads(members[_PROGRAM]))
        files = {_PROGRAM: json.dumps(program).encode()} | {n: members[n] for n in _MARKS}
        for folder, config in _CONFIGS.items():
            described = json.loads(members[config])
            _check(path, "", described)
            files[config] = json.dumps(described).encode()
            for name, numbers in _payloads(path, described, _TENSORS[folder]):
                files[folder + name] = content = members[folder + name]
                if numbers > len(content):
                    raise ValueError(
                        f"`{path}` must hold the tensors it lists, got {name} with more numbers than its "
                        f"{len(content)} bytes can hold; export tensors that are .contiguous()."
                    )
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"`{path}` must be a torch.export archive, got {error}.") from error
    except KeyError as error:
        raise ValueError(
            f"`{path}` must be a torch.export archive, got one without {error}; save it with "
            "torch.export.save of this version of torch."
        ) from error
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as target:
        for name, content in (files | {_UNUSED[0]: b""}).items():
            target.writestr(f"program/{name}", content)
    buffer.seek(0)
    return buffer


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, bytes]:
    """The content of all members by name below the one folder they are in."""
    found: dict[str, bytes] = {}
    for entry in archive.infolist():
        name = entry.filename.partition("/")[2]
        if not _is_known(name):
            raise ValueError(
                f"`{path}` must hold a program and its tensors only, got {entry.filename!r}: pickled objects, "
                "compiled parts and other files are not loaded; save it with torch.export.save(program, path)."
            )
        if name in found:
            raise ValueError(f"`{path}` must have one member of each name, got two {name!r}.")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"`{path}` must not be compressed, got {name!r}, which is.")
        found[name] = archive.read(entry)
    return found


def _is_known(name: str) -> bool:
    if name in (_PROGRAM, *_MARKS, *_UNUSED, *_CONFIGS.values()):
        return True
    return any(
        name.startswith(folder) and pattern.fullmatch(name[len(folder) :])
        for folder, pattern in _TENSORS.items()
    )


def _payloads(path: Path, described: Any, pattern: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """Members that a list of tensors refers to, none of them pickled, and how many numbers they claim."""
    entries = described.get("config") if isinstance(described, dict) else None
    if not isinstance(entries, dict):
        raise ValueError(f"`{path}` must be a torch.export archive, got one without its list.")
    for tensor, entry in entries.items():
        name = entry.get("path_name") if isinstance(entry, dict) else None
        plain = isinstance(name, str) and pattern.fullmatch(name)
        if not plain or entry.get("use_pickle") is not False or entry.get("tensor_meta") is None:
            raise ValueError(f"`{path}` must not hold pickled objects, got {tensor}.")
        yield str(name), _numbers(path, tensor, entry["tensor_meta"])


def _numbers(path: Path, tensor: str, about: Any) -> int:
    """How many numbers a tensor has by its sizes, all of which, and how it is laid out, are whole numbers."""
    places = about if isinstance(about, dict) else {}
    sizes, strides = places.get("sizes"), places.get("strides")
    if isinstance(sizes, list) and isinstance(strides, list):
        found: list[Any] = [
            each.get("as_int") if isinstance(each, dict) and len(each) == 1 else None
            for each in (*sizes, *strides, places.get("storage_offset"))
        ]
        if all(type(number) is int and number >= 0 for number in found):
            return math.prod(found[: len(sizes)])
    raise ValueError(
        f"`{path}` must list tensors with their sizes, got {tensor} with sizes that are no whole numbers."
    )


def _clean_program(path: Path, program: Any) -> Any:
    """The program without what torch would run as Python, if all that is left is harmless."""
    if not isinstance(program, dict):
        raise ValueError(f"`{path}` must be a torch.export archive, got no program in it.")
    kept = _without_metadata(program)
    kept["guards_code"] = []  # text that torch would execute
    _check(path, "", kept)
    return kept


def _without_metadata(value: Any) -> Any:
    """Where in their author's code things came from is not needed, and looked up by name."""
    if isinstance(value, dict):
        return {k: {} if k == "metadata" else _without_metadata(v) for k, v in value.items()}
    return [_without_metadata(each) for each in value] if isinstance(value, list) else value


def _check(path: Path, key: str, value: Any) -> None:
    """Refuse texts in a program that are no names: torch looks them up, evaluates them or runs them as code."""
    if isinstance(value, dict):
        for name, each in value.items():
            _check(path, "", name)
            _check(path, name, each)
    elif isinstance(value, list):
        for each in value:
            _check(path, key, each)
    elif isinstance(value, str) and not _CHECKS.get(key, _is_name)(value):
        what = {
            "target": "an operator that is not on tensors",
            "expr_str": "a size that is no size",
        }
        raise ValueError(
            f"`{path}` must be a program of operators on tensors, got {what.get(key, 'the text')} {value!r}."
        )


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _is_structure(text: str) -> bool:
    """Whether this is how arguments or results are nested, of plain containers."""
    try:
        return _plain(json.loads(text))
    except (json.JSONDecodeError, RecursionError):
        return False


def _plain(spec: Any) -> bool:
    if isinstance(spec, list):
        return all(map(_plain, spec))
    if isinstance(spec, dict):
        context = spec.get("context")
        known = spec.get("type") in _CONTAINERS and (
            context is None or (isinstance(context, str) and _plain(json.loads(context)))
        )
        return known and _plain(spec.get("children_spec"))
    return spec is None or isinstance(spec, int) or (isinstance(spec, str) and _is_name(spec))


_CHECKS: Mapping[str, Callable[[str], bool]] = {
    "target": lambda text: _OPERATOR.fullmatch(text) is not None,
    "expr_str": lambda text: len(text) < 1000 and _SIZE.fullmatch(text) is not None,
    "in_spec": _is_structure,
    "out_spec": _is_structure,
}
