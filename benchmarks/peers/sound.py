"""Whether stored cases are as the commands write them: seen once, when a store is read, for every page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What a command stores.

    Attributes:
        see: Given key and case. Raises ValueError, KeyError, TypeError or AttributeError where a field is not
            there or not what it must be.
        beside: What else the content has, each a table of texts, as soon as there is a case.
    """

    see: Callable[[str, Mapping[str, Any]], None]
    beside: tuple[str, ...] = ()

    def doubt(self, key: str, case: Any) -> str:
        """What is wrong with a case; empty if nothing is."""
        try:
            for name in ("settings", "cells"):
                _see(isinstance(case[name], dict), name)
            _see(all(isinstance(cell, dict) for cell in case["cells"].values()), "cells")
            self.see(key, case)
        except KeyError as error:
            return f"no {error}"
        except ValueError as error:
            return str(error)
        except (TypeError, AttributeError, OverflowError):
            return "a field of another type"
        return ""


def rows(part: int | None) -> Kind:
    """Cells of marks and evaluations row by row.

    Args:
        part: Rows of a cell, whose name then ends in the number of the first; None for cells of all rows.
    """

    def see(key: str, case: Mapping[str, Any]) -> None:
        settings = case["settings"]
        _see(_texts(case["begun"], case["cpu"], settings["code"]), "begun, cpu and code")
        _see(_texts(*settings["networks"], *settings["networks"].values()), "networks")
        _see(_texts(*settings.get("precision", ())), "precision")
        _see(_count(settings["rows"], 1), "rows")
        _see(_count(case.get("wanted", 1), 1), "wanted")
        for name, cell in case["cells"].items():
            number = int(name.rpartition("/")[2]) if part else 0
            size = min(part or settings["rows"], settings["rows"] - number)
            marks, spent = cell["fooled"], cell["evaluations"].split()
            _see(number >= 0 and size >= 1, f"the rows of {name!r}")
            right = isinstance(marks, str) and len(marks) == size and set(marks) <= {"0", "1"}
            _see(right, f"fooled of {name!r}")
            right = len(spent) == size and all(each.isdecimal() and int(each) for each in spent)
            _see(right, f"evaluations of {name!r}")
            _see(_number(cell.get("seconds", 0)), f"seconds of {name!r}")

    return Kind(see)


def _compared(key: str, case: Mapping[str, Any]) -> None:
    settings, methods = case["settings"], case["methods"]
    _see(key[:3] in ("a: ", "b: ", "c: ", "d: "), "its room")
    _see(_texts(case["begun"], case["commit"], settings["cpu"], settings["code"]), "begun to code")
    _see(_count(case["wanted"]) and _count(case["cores"]), "wanted and cores")
    _see(_number(case["load"], -1), "load")
    _see(_count(settings["images"], 1) and _count(settings["threads"], 1), "images and threads")
    _see(_count(settings.get("evaluations", 0)), "evaluations")
    _see(isinstance(settings["seed"], int), "seed")
    for name in ("methods", "peers", "others"):
        each = case.get(name, []) if name == "others" else case[name]
        _see(isinstance(each, list) and _texts(*each), name)
    for name, table in [
        ("versions", settings["versions"]),
        *((n, case[n]) for n in ("rules", "missing")),
    ]:
        _see(_texts(*table.values()), name)
    _see(bool(methods), "methods")
    for name, cell in case["cells"].items():
        (_projected if key.startswith("c: ") else _attacked)(name, cell)
    if not key.startswith("c: "):
        there = [name.rpartition("/")[0] for name in case["cells"]]
        _see(set(there) <= set(methods), "methods of cells")
        _see(len(there) < case["wanted"] or methods[0] in there, f"cells of {methods[0]!r}")


def _attacked(name: str, cell: Mapping[str, Any]) -> None:
    images = cell["images"]
    _see(_count(images, 1), f"images of {name!r}")
    _see(_count(cell["fooled"]) and cell["fooled"] <= images, f"fooled of {name!r}")
    _see(_count(cell["outside"]) and _count(cell["unusable"]), f"what is not counted of {name!r}")
    _see(_number(cell["evaluations"]), f"evaluations of {name!r}")
    _see(_number(cell["seconds"]) and cell["seconds"] > 0, f"seconds of {name!r}")


def _projected(name: str, cell: Mapping[str, Any]) -> None:
    _see(_count(cell["rows"], 1) and _count(cell["entries"], 1), f"the shape of {name!r}")
    for field in ("error", "ours", "ratio", "seconds"):
        _see(_number(cell[field]), f"{field} of {name!r}")
    _see(_number(cell["farther"], -math.inf), f"farther of {name!r}")


COMPARED = Kind(_compared, beside=("skipped",))
"""Cells of `python -m benchmarks.peers`."""
ANY = Kind(lambda key, case: None)


def _see(right: bool, what: str) -> None:
    if not right:
        raise ValueError(what)


def _texts(*values: Any) -> bool:
    return all(isinstance(each, str) for each in values)


def _count(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any, least: float = 0.0) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= least
