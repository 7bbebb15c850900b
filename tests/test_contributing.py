"""CONTRIBUTING is true: the names of its walk exist, and its limits are checked."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from folders import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = TEXT.partition("## The walk")[2].partition("\n## ")[0]
NAMES = re.findall(r"`([a-z_]+(?:\.\w+)+)`", WALK.replace("`run.json`", ""))


@pytest.mark.parametrize("name", NAMES)
def test_the_walk_names_what_exists(name: str) -> None:
    assert resolve_name(f"saddlepoint.{name}") is not None


def test_the_walk_has_ten_steps_down() -> None:
    assert [int(number) for number in re.findall(r"^(\d+)\. ", WALK, re.M)] == list(range(1, 11))
    rooms = [
        name.split(".")[0] for name in NAMES if name.split(".")[0] in ("cli", "runs", "report")
    ]
    assert rooms[0] == "cli"
    assert rooms.index("runs") < rooms.index("report")


@pytest.fixture
def limits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("limits", ROOT / "tools" / "limits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(lines: int) -> str:
    said = '    """One.\n\n    Two.\n    """\n'
    return "def f():\n" + said + "    x = 1\n" * lines


def test_long_functions_long_files_and_twins_are_found(limits: ModuleType, tmp_path: Path) -> None:
    for room, name, text in (
        ("a", "short.py", body(59)),  # and the line with its name; its docstring does not count
        ("a", "long.py", body(60)),
        ("a", "file.py", "x = 1\n" * 351),
        ("b", "short.py", "x = 1\n" * 350),
        ("cli", "long.py", ""),
        ("a", "__init__.py", ""),
        ("b", "__init__.py", ""),
    ):
        (tmp_path / room).mkdir(exist_ok=True)
        (tmp_path / room / name).write_text(text)
    found = [line.replace(f"{tmp_path}/", "") for line in limits.complaints(tmp_path)]
    assert found == [
        "a/file.py: has 351 lines, at most 350",
        "a/long.py:1: f has 61 lines, at most 60",
        "short.py exists 2 times: a/short.py, b/short.py",
    ]
