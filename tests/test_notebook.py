"""The notebooks among the examples run from top to bottom, at sizes for a test, and show what they say."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import saddlepoint as sp
from folders import ROOT

EXAMPLES = ROOT / "examples"
NAMES = ["own_ensemble", "evaluate", "train", "table_1"]
# Cells that hold sizes, as a test has time for.
SMALL = {
    "own_ensemble": {"x[:8], y[:8]": "x[:3], y[:3]"},
    "evaluate": {"x[:12], y[:12]": "x[:3], y[:3]"},
    "table_1": {'"ABCD", 8, 50': '"AC", 4, 5'},
    "train": {
        "EPOCHS, SIZE = 6, 64": "EPOCHS, SIZE = 2, 128",
        "test_x[:24], test_y[:24]": "test_x[:3], test_y[:3]",
    },
}


def cells(name: str) -> dict[str, str]:
    """Code by the name of its cell, at the sizes of a test."""
    text = (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")
    found = json.loads(text)["cells"]
    code = {cell["id"]: "".join(cell["source"]) for cell in found if cell["cell_type"] == "code"}
    for written, small in SMALL[name].items():
        assert sum(written in each for each in code.values()) == 1
        code = {key: each.replace(written, small) for key, each in code.items()}
    return code


def run(code: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, if that is an expression, as a notebook shows it."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "notebook", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
    return None


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch):
    """Runs the cells of a notebook in order, without Jupyter: its names, and what each cell shows."""
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def whole(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        names: dict[str, Any] = {}
        return names, {key: run(code, names) for key, code in cells(name).items()}

    yield whole
    plt.close("all")


def test_own_ensemble(play, capsys: pytest.CaptureFixture[str]) -> None:
    names, shown = play("own_ensemble")
    assert (
        repr(shown["problem"]) == "Ensemble(32 rows of 1x28x28, 3 domains: narrow, wide, shipped)"
    )
    assert "rows done" in capsys.readouterr().err
    fooled = int(shown["attack"].success.sum())
    assert fooled > 16
    assert f"<td>all at once</td><td>{fooled} of 32</td>" in shown["attack"]._repr_html_()
    assert shown["rates"].all == fooled / 32
    assert int(shown["files"].fooled.all(dim=1).sum()) == fooled
    assert "Ensemble attack on mnist-sample" in (names["folder"] / "attack.html").read_text("utf-8")
    assert "<td>union</td>" in shown["robust"]._repr_html_()


def test_evaluate(play, capsys: pytest.CaptureFixture[str]) -> None:
    _, shown = play("evaluate")
    printed = capsys.readouterr().out
    missing = "skipped: transformers not installed" in printed
    assert missing == (find_spec("transformers") is None)
    assert missing or "torch.Size([24, 10])" in printed
    if find_spec("pyautoattack") and find_spec("h5py"):
        robust = shown["robust"]
        assert robust.clean > 0.9
        # It withstands what it was trained against, and little else.
        assert robust.per_threat["linf"] > robust.per_threat["l1"]
        assert "{'linf': inf" in printed


def test_train(play, capsys: pytest.CaptureFixture[str]) -> None:
    names, shown = play("train")
    assert len(names["history"]) == 2
    assert all(stats.weights.sum() == pytest.approx(1) for stats in names["history"])
    assert names["history"][1].loss < names["history"][0].loss
    assert "epoch 2: loss" in capsys.readouterr().out
    assert set(shown["robust"].per_threat) == {"linf", "l2", "l1"}


def test_table_1(play, capsys: pytest.CaptureFixture[str]) -> None:
    names, _ = play("table_1")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ASR_all,", "l0", "l1", "l2", "linf"]
    assert len(names["rates"]) == 16
    # With enough steps min-max is the stronger one; with five images and steps it is not weaker by much.
    assert all(0 <= rate <= 1 for rate in names["rates"].values())
    assert max(names["rates"].values()) > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    found = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    assert not [cell["id"] for cell in found if cell.get("outputs") or cell.get("execution_count")]


def test_every_notebook_is_tested() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == sorted(NAMES)


def test_lines_that_follow_each_other_are_one_piece_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    notebooks = importlib.import_module("notebooks")
    lines = [{"output_type": "stream", "name": "stdout", "text": f"{n}\n"} for n in (1, 2)]
    cell = {"cell_type": "code", "source": "1", "outputs": lines}
    assert "```text\n1\n2\n```" in notebooks.markdown({"cells": [cell]}, tmp_path / "x.md")


PLOTS = """
import torch
import matplotlib.pyplot as plt
import saddlepoint as sp
models = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
problem = sp.Ensemble(models, torch.rand(5, 4), torch.zeros(5).long())
result = sp.attack(problem, sp.linf(0.3), steps=5)
###
result.plot()
###
figure = result.plot()
###
result.plot()
print("more")
###
figure, axes = plt.subplots(1, 2)
result.plot(axes)
###
figure
###
print(len(plt.get_fignums()))
"""


def test_a_plot_is_shown_once_in_a_cell_wherever_it_stands(tmp_path: Path) -> None:
    for needed in ("nbclient", "ipykernel", "matplotlib"):
        if find_spec(needed) is None:
            pytest.skip("needs nbclient and ipykernel, which are in the extra [dev]")
    code = """
import json, sys
import nbclient, nbformat
cells = [nbformat.v4.new_code_cell(each.strip()) for each in sys.stdin.read().split("###")]
book = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(book, timeout=600, kernel_name="python3").execute()
print(json.dumps([[output.get("data", output.get("text")) for output in cell.outputs] for cell in cells]))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(sp.__file__).parents[1])}
    env.pop("MPLBACKEND", None)
    told = subprocess.run(
        [sys.executable, "-c", code],
        input=PLOTS,
        text=True,
        check=True,
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    ).stdout
    _, *shown, left = json.loads(told.splitlines()[-1])
    pictures = [sum("image/png" in output for output in cell) for cell in shown]
    assert pictures == [1] * 5
    assert left == ["0\n"]  # none is kept by pyplot, which warns of more than twenty


def test_jupyter_executes_a_notebook_and_the_site_shows_it(tmp_path: Path) -> None:
    for needed in ("nbclient", "ipykernel"):
        if find_spec(needed) is None:
            pytest.skip("needs nbclient and ipykernel, which are in the extra [dev]")
    code = (
        "import sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT / 'tools')!r})\n"
        "import notebooks\n"
        "notebooks.write(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    # In a process of its own: what Jupyter warns of is not ours to mend.
    env = {**os.environ, "PYTHONPATH": str(Path(sp.__file__).parents[1])}
    book = json.loads((EXAMPLES / "own_ensemble.ipynb").read_text(encoding="utf-8"))
    # Without the cells behind the picture, which run above: what is tested here is Jupyter and the page.
    last = [cell["id"] for cell in book["cells"]].index("plot")
    book["cells"] = book["cells"][: last + 1]
    (tmp_path / "own_ensemble.ipynb").write_text(json.dumps(book), encoding="utf-8")
    command = [sys.executable, "-c", code, tmp_path / "own_ensemble.ipynb", tmp_path]
    subprocess.run(command, check=True, env=env)
    page = (tmp_path / "own_ensemble.md").read_text(encoding="utf-8")
    assert "<td>all at once</td>" in page
    assert "Ensemble(32 rows of 1x28x28" in page
    (picture,) = tmp_path.glob("*.png")
    assert f"]({picture.name})" in page
    assert picture.stat().st_size > 5000
