"""The shape of the package: import levels, public names, no printing."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import saddlepoint
import saddlepoint as sp

ROOT = Path(saddlepoint.__file__).parent
# A module imports only from lower levels; a folder counts as one room.
LEVELS = {
    # Below all: how a model is asked, and what a wrong answer is.
    "calls": -1,
    "precision": -2,  # what calls are made in
    "extras": -3,  # what to install
    "suffixes": -3,  # how files with models end
    "allocator": -3,  # memory of the process
    "counts": -3,  # whole numbers
    "behind": -3,  # networks behind callables
    "image_gradients": -3,  # of first layers
    "rounding": -3,  # of float32, by settings of the user's
    "display": -2,  # how things print
    "bars": -2,
    "plots": -2,
    "projections": 0,
    "score_models": -0.5,
    "losses": -1,
    "transforms": 0,
    "streams": 0,
    "directions": 0,
    "entries": -2,  # of rows, the largest
    "paper": 0,
    "models": 0,
    "data": 0,
    "files": -1,  # below everything: whole files
    "loaders": -1,  # and images batch by batch
    "rules": 1,
    "problems": 1,
    "solver": 2,
    "training": 3,
    "evaluation": 3,
    "experiments": 6,
    "report": 5,
    "runs": 4,
    "doctor": 3.5,  # above the evaluation, whose judge it asks; runs keep what it finds
    "cli": 7,
}
MATHEMATICS = [
    "allocator",
    "counts",
    "behind",
    "image_gradients",
    "rounding",
    "display",
    "precision",
    "calls",
    "loaders",
    "score_models",
    "projections",
    "losses",
    "transforms",
    "streams",
    "directions",
    "rules",
    "problems",
    "solver",
]
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in it; for "from a import b", both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
            base = package.rsplit(".", node.level)[0] + "." if node.level else ""
            name = (base + (node.module or "")).rstrip(".")
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def plain_imports(path: Path) -> Iterator[str]:
    """What a file imports as a whole, without "from"."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_from_lower_levels(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    assert room in LEVELS, f"{room} has no level: add it here and to the design"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "saddlepoint" or len(parts) < 2 or parts[1] == room:
            continue
        # A plain name (an attribute such as __version__) is no room.
        if parts[1] in LEVELS:
            assert LEVELS[parts[1]] < LEVELS[room], f"{room} imports {name}"


def test_the_page_on_the_design_lists_all_levels_in_their_order() -> None:
    page = (ROOT.parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    block = page.partition("    base ")[2].partition("\n\n")[0]
    words = re.findall(r"\w+", block)
    assert [room for room in LEVELS if room not in words] == []
    order = sorted(LEVELS, key=words.index)
    assert [LEVELS[room] for room in order] == sorted(LEVELS.values())


def test_only_the_reports_of_results_reach_up_through_the_package() -> None:
    """`import saddlepoint` inside a room could reach any other; the method `report` does, and says why."""
    bare = [path.name for path in FILES if "saddlepoint" in set(plain_imports(path))]
    assert sorted(bare) == ["html_tables.py", "result.py"]


@pytest.mark.parametrize("room", MATHEMATICS)
def test_the_mathematics_needs_torch_alone(room: str) -> None:
    files = [path for path in FILES if room_of(path) == room]
    assert files
    allowed = {"saddlepoint", "torch", *sys.stdlib_module_names}
    for path in files:
        assert {name.split(".")[0] for name in imports(path)} <= allowed


def test_importing_the_solver_imports_neither_data_nor_models_nor_extras() -> None:
    code = (
        "import sys, saddlepoint.solver, saddlepoint.problems, saddlepoint.rules\n"
        "heavy = {'kornia', 'rich', 'cyclopts', 'pydantic', 'pooch', 'matplotlib', 'jinja2',"
        " 'safetensors', 'saddlepoint.data', 'saddlepoint.models', 'saddlepoint.training'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_public_names_of_the_package_are_those_it_lists() -> None:
    listed = saddlepoint.__all__
    assert listed == sorted(set(listed))
    assert all(hasattr(saddlepoint, name) for name in listed)
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("saddlepoint")
        for alias in node.names
    }
    assert imported == set(listed)
    assert set(dir(saddlepoint)) - {"__version__"} == set(listed)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = saddlepoint.nonsense


def test_the_names_of_the_design_are_public() -> None:
    promised = (
        "project_simplex project_lp_box LpBall linf l2 l1 l0 cw_margin neg_cross_entropy dlr clipped Ensemble "
        "Universal Transformed Product MinMax Average Fixed WorstCase Entropic apgda attack "
        "success_rates models data transforms directions train"
    )
    assert set(promised.split()) <= set(saddlepoint.__all__)


def test_the_solvers_are_functions_wherever_they_are_reached() -> None:
    """The files are called after them; the room gives the functions, as the package does."""
    room = importlib.import_module("saddlepoint.solver")
    for name in ("apgda", "attack"):
        module = importlib.import_module(f"saddlepoint.solver.{name}")
        assert getattr(room, name) is getattr(saddlepoint, name) is getattr(module, name)


def test_one_function_judges_answers() -> None:
    """Nothing but `losses.fooled` compares the largest logit with a label."""
    odd = re.compile(r"argmax\(dim=-?1\)\s*[!=]=")
    found = [path.name for path in FILES if odd.search(path.read_text(encoding="utf-8"))]
    assert found == ["losses.py"]


def public_definitions(path: Path) -> set[str]:
    """Names a file defines at its top level that do not start with an underscore."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and "TypeVar(" not in ast.unparse(node.value):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("room", [*MATHEMATICS, "evaluation"])
def test_every_module_lists_its_public_names(room: str) -> None:
    for path in (path for path in FILES if room_of(path) == room and path.stem != "__init__"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        listed = importlib.import_module(name).__all__
        assert len(listed) == len(set(listed)), name
        assert set(listed) == public_definitions(path), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in ("print", "exit"))
            or ast.unparse(node.func) in ("sys.exit", "sys.stdout.write", "sys.stderr.write")
        )
    ]
    assert room_of(path) in ("cli", "__main__") or not calls, f"prints or exits in line {calls}"


def _classes(hint: object) -> Iterator[type]:
    """The classes in a type hint."""
    if isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        for each in part if isinstance(part, list) else [part]:
            yield from _classes(each)


def _signatures(value: object) -> Iterator[tuple[str, object]]:
    """What a public thing takes, returns and holds: names with type hints, for a class those of its members.

    What a board holds is for the page: it is handed from `rank_runs` to `write_comparison`.
    """
    things = [value] if inspect.isfunction(value) else []
    if inspect.isclass(value) and value.__module__.startswith("saddlepoint"):
        members = ((n, f) for n, f in vars(value).items() if n[0] != "_" or n == "__init__")
        things = [getattr(f, "fget", getattr(f, "__func__", f)) for _, f in members]
        if value is sp.report.Board:
            return
        if is_dataclass(value):
            hints = get_type_hints(value)
            named = (f.name for f in fields(value) if f.name[0] != "_")
            yield from ((f"{value.__name__}.{name}", hints[name]) for name in named)
    for function in filter(inspect.isfunction, things):
        yield from ((function.__qualname__, hint) for hint in get_type_hints(function).values())


def test_what_public_things_take_return_and_hold_is_public() -> None:
    rooms = [getattr(sp, name) for name in sp.__all__ if inspect.ismodule(getattr(sp, name))]
    public = [getattr(room, name) for room in [sp, *rooms] for name in room.__all__]
    hidden = {
        f"{name}: {each.__name__}"
        for value in public
        for name, hint in _signatures(value)
        for each in _classes(hint)
        if each.__module__.startswith("saddlepoint") and each not in public
    }
    assert hidden == set()


# Who writes files or makes folders besides `runs`, and what; none of it is a record, a page of tensors or a
# lock of a run. What `report` draws goes through `runs.drawn`, which knows what is ours.
WRITERS = {
    "files": "whole files, for all",
    "data/sources": "the user's cache of data sets",
    "evaluation/png_files": "pictures, for --save-images",
    "evaluation/saved_images": "what is told of them",
    "training/checkpoints": "checkpoints, which `sp.train(out=)` has too",
    "training/session": "the history beside them",
    "training/board": "scalars, for `runs.training_task` and whoever calls `sp.train`",
    "report/page": "page, tables and pictures of a complete run",
    "report/compare": "the page that compares runs",
    "report/doctor_page": "the page of the doctor",
    "report/result_page": "the page of a result in Python",
    "experiments/drawing": "tables and figures",
    "experiments/places": "the list of tables and figures",
    "experiments/stored": "summaries",
    "cli/reproduce": "documents with tables",
}
_WRITING = {"write_atomically", "write_tensors", "write_text", "write_bytes", "save_file", "unlink"}
_WRITING |= {
    "write_drawn",
    "TensorBoard",
    "SummaryWriter",
    "mkdir",
    "rmdir",
    "rmtree",
    "touch",
    "rename",
}


def test_run_folders_are_written_by_runs_alone() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        calls = (
            n.func for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)
        )
        names = {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls}
        if names & _WRITING:
            found.add(path.relative_to(ROOT).with_suffix("").as_posix())
    assert {name for name in found if not name.startswith("runs/")} == set(WRITERS)
    text = {name: (ROOT / f"{name}.py").read_text("utf-8") for name in WRITERS}
    ours = r"\b(RECORD|TENSORS|PAGES|LOCK)\b|run\.json|tensors\.safetensors"
    writing = [n for n in text if re.search(rf"write_(atomically|tensors)\([^)]*({ours})", text[n])]
    assert writing == []
