"""Damaged stores of measurements: each is refused in one sentence, with exit code 2, and no page is written."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from benchmarks import ceiling
from benchmarks.peers import __main__ as command
from benchmarks.peers.page import render
from benchmarks.stores import StoreError, exit_with

from folders import ROOT

Change = Callable[[dict[str, Any]], object]


def _first(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(content["cases"].values()))
    return found


def _cell(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(_first(content)["cells"].values()))
    return found


def _refused(main: Callable[[list[str]], object], store: Path) -> str:
    """What is said of a store, in one sentence with exit code 2; the page stays."""
    out = store.with_name("page.md")
    out.write_text("as it is")
    said = io.StringIO()
    with redirect_stderr(said), pytest.raises(SystemExit) as stop:
        exit_with(lambda: main(["--render", "--store", str(store), "--out", str(out)]))
    assert stop.value.code == 2, said.getvalue()
    assert out.read_text() == "as it is"
    (line,) = said.getvalue().splitlines()
    assert str(store.parent) in line
    return line


_OF_ROWS: dict[str, Change] = {
    "fooled shorter": lambda c: _cell(c).update(fooled=_cell(c)["fooled"][:-3]),
    "fooled of letters": lambda c: _cell(c).update(fooled="x" * len(_cell(c)["fooled"])),
    "fooled a number": lambda c: _cell(c).update(fooled=3),
    "no fooled": lambda c: _cell(c).pop("fooled"),
    "evaluations negative": lambda c: _cell(c).update(
        evaluations=" ".join("-7" for _ in _cell(c)["fooled"])
    ),
    "evaluations too few": lambda c: _cell(c).update(evaluations="1 2 3"),
    "evaluations of words": lambda c: _cell(c).update(
        evaluations=" ".join("a" for _ in _cell(c)["fooled"])
    ),
    "a row without evaluations": lambda c: _cell(c).update(
        evaluations=" ".join("0" for _ in _cell(c)["fooled"])
    ),
    "both shorter": lambda c: [
        _cell(c).update(
            fooled=_cell(c)["fooled"][1:], evaluations=_cell(c)["evaluations"].partition(" ")[2]
        )
    ],
    "no begun": lambda c: _first(c).pop("begun"),
    "no cpu": lambda c: _first(c).pop("cpu"),
    "no code": lambda c: _first(c)["settings"].pop("code"),
    "no rows": lambda c: _first(c)["settings"].pop("rows"),
    "no networks of a case": lambda c: _first(c)["settings"].pop("networks"),
    "no networks": lambda c: c.pop("networks"),
    "a cell that is a number": lambda c: _first(c)["cells"].update({"default/0": 1, "now": 1}),
    "cells that have begun": lambda c: c.update(begun={"x": {"settings": {}, "cells": {"a": {}}}}),
}
_OF_CEILING: dict[str, Change] = {
    "seconds not a number": lambda c: _cell(c).update(seconds=math.nan),
    "seconds negative": lambda c: _cell(c).update(seconds=-1.0),
    "a cell of no rows": lambda c: _first(c)["cells"].update({"default/x": _cell(c)}),
    "a cell beyond the rows": lambda c: _first(c)["cells"].update({"default/9000": _cell(c)}),
}
_OF_PEERS: dict[str, Change] = {
    "fooled more than images": lambda c: _cell(c).update(fooled=10**6),
    "fooled negative": lambda c: _cell(c).update(fooled=-5),
    "fooled letters": lambda c: _cell(c).update(fooled="xxx"),
    "no images": lambda c: _cell(c).update(images=0),
    "no seconds": lambda c: _cell(c).update(seconds=0.0),
    "seconds negative": lambda c: _cell(c).update(seconds=-1.0),
    "seconds not a number": lambda c: _cell(c).update(seconds=math.nan),
    "seconds without end": lambda c: _cell(c).update(seconds=math.inf),
    "evaluations negative": lambda c: _cell(c).update(evaluations=-1.0),
    "wanted missing": lambda c: _first(c).pop("wanted"),
    "skipped missing": lambda c: c.pop("skipped"),
    "methods missing": lambda c: _first(c).pop("methods"),
    "no methods": lambda c: _first(c).update(methods=[]),
    "methods of other names": lambda c: _first(c).update(methods=["one"]),
    "no cells of the first": lambda c: _first(c).update(
        wanted=1, cells={n: e for n, e in _first(c)["cells"].items() if n.startswith("APGD")}
    ),
    "a seed of letters": lambda c: _first(c)["settings"].update(seed="x"),
    "a room that is none": lambda c: c["cases"].update(x=_first(c)),
    "a projection not a number": lambda c: next(
        iter(c["cases"]["c: MNIST, l2 3"]["cells"].values())
    ).update(error=math.nan),
}
_DAMAGED = [
    *(("ceiling.json", name, change) for name, change in {**_OF_ROWS, **_OF_CEILING}.items()),
    *(("one-domain.json", name, change) for name, change in _OF_ROWS.items()),
    *(("peers.json", name, change) for name, change in _OF_PEERS.items()),
]


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    for name in ("ceiling", "one-domain", "peers", "figures"):
        (tmp_path / f"{name}.json").write_bytes((ROOT / f"docs/results/{name}.json").read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("name", "change"), [pytest.param(n, c, id=f"{n[:-5]}, {t}") for n, t, c in _DAMAGED]
)
def test_a_damaged_store_is_refused_in_a_sentence(stores: Path, name: str, change: Change) -> None:
    path = stores / name
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content))
    main: Callable[[list[str]], object] = command.main if name == "peers.json" else ceiling.main
    said = _refused(main, stores / ("peers.json" if name == "peers.json" else "ceiling.json"))
    assert f"`{path}` must be a whole file of measurements (schema 1), got one that is not" in said


@pytest.mark.parametrize("main", [ceiling.main, command.main])
@pytest.mark.parametrize("content", ["[" * 100_000, "folder", "\0", b"\xff\xfe\x80"])
def test_what_is_no_json_at_all_is_refused_in_a_sentence(
    tmp_path: Path, main: Callable[[list[str]], object], content: str | bytes
) -> None:
    path = tmp_path / "store.json"
    if content == "folder":
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert "must be a whole file of measurements" in _refused(main, path)


def test_a_store_of_another_command_is_refused_in_a_sentence(stores: Path) -> None:
    assert "is damaged" in _refused(command.main, stores / "ceiling.json")
    assert "is damaged" in _refused(ceiling.main, stores / "peers.json")


def test_the_page_of_the_ceiling_is_written_in_any_folder_and_says_if_ideas_are_broken(
    stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / ceiling.PAGE).read_text(encoding="utf-8")
    monkeypatch.chdir(stores)
    ceiling.main(["--render", "--store", "ceiling.json", "--out", "page.md"])
    assert (stores / "page.md").read_text(encoding="utf-8") == page
    for content in (None, "{", "[]", '{"ideas": 1}', "[" * 100_000):
        ideas = stores / "ideas.json"
        ideas.unlink(missing_ok=True)
        if content is not None:
            ideas.write_text(content)
        with pytest.raises(StoreError, match=r"ideas\.json"):
            ceiling.page(stores / "ceiling.json", stores / "one-domain.json", ideas)


def test_cells_of_other_ways_are_no_line_of_one_domain(stores: Path) -> None:
    path = stores / "one-domain.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    case = content["cases"]["MNIST {A}, l1 8"]
    case["cells"] = {f"other {name}": cell for name, cell in case["cells"].items()}
    path.write_text(json.dumps(content))
    ceiling.main(["--render", "--store", str(stores / "ceiling.json"), "--out", str(path)])
    page = path.read_text(encoding="utf-8")
    assert "| MNIST {A}, l2 1.5 | 500 |" in page
    assert "| MNIST {A}, l1 8 | 500 |" not in page.partition("## What was tried")[0]


def test_a_method_that_asks_for_nothing_has_no_ratio_of_evaluations() -> None:
    content = json.loads((ROOT / "docs/results/peers.json").read_text(encoding="utf-8"))
    case = _first(content)
    for name, each in case["cells"].items():
        each["evaluations"] = 0.0 if name.startswith(case["methods"][0]) else each["evaluations"]
    assert "| inf | MNIST {A, C, D}, linf 0.2 |" in render(content, "peers.json")
