"""The notebook among the examples runs from top to bottom, and its results are tables."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import saddlepoint as sp

NOTEBOOK = Path(__file__).parent.parent / "examples" / "results.ipynb"


def cells() -> dict[str, str]:
    """Code by the name of its cell."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in found if cell["cell_type"] == "code"}


def run(code: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, if that is an expression, as a notebook shows it."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
    return None


def test_the_cells_run_in_order_without_jupyter(capsys: pytest.CaptureFixture[str]) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    names: dict[str, Any] = {}
    shown = {name: run(code, names) for name, code in cells().items()}
    plt.close("all")
    assert repr(shown["problem"]) == "Ensemble(32 rows of 1x28x28, 3 domains: A, C, D)"
    assert "rows done" in capsys.readouterr().err
    fooled = int(shown["attack"].success.sum())
    assert fooled > 16
    assert f"<td>all at once</td><td>{fooled} of 32</td>" in shown["attack"]._repr_html_()
    assert shown["rates"].all == fooled / 32
    assert int(shown["files"].fooled.all(dim=1).sum()) == fooled
    assert "Ensemble attack on mnist-sample" in (names["folder"] / "attack.html").read_text("utf-8")
    assert "<td>union</td>" in shown["robust"]._repr_html_()


def test_the_notebook_is_stored_without_outputs() -> None:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not [cell["id"] for cell in found if cell.get("outputs") or cell.get("execution_count")]


def test_jupyter_executes_the_notebook(tmp_path: Path) -> None:
    reason = "needs nbclient and ipykernel, which are in the extra [dev]"
    for name in ("nbclient", "ipykernel"):
        if find_spec(name) is None:
            pytest.skip(reason)
    code = (
        "import nbclient, nbformat, sys\n"
        "notebook = nbformat.read(sys.argv[1], as_version=4)\n"
        "nbclient.NotebookClient(notebook, timeout=300, kernel_name='python3').execute()\n"
        "nbformat.write(notebook, sys.argv[2])"
    )
    done = tmp_path / "done.ipynb"
    # In a process of its own: what Jupyter warns of is not ours to mend.
    env = {**os.environ, "PYTHONPATH": str(Path(sp.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code, NOTEBOOK, done], check=True, env=env)
    shown: dict[str, set[str]] = {}
    for cell in json.loads(done.read_text(encoding="utf-8"))["cells"]:
        outputs = cell.get("outputs", [])
        shown[cell["id"]] = {kind for each in outputs for kind in each.get("data", ())}
    assert "text/html" in shown["attack"] & shown["rates"] & shown["robust"]
    assert "image/png" in shown["plot"]
