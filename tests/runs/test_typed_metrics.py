"""Readers get typed metrics: JSON is for `run.json` alone. And what a run is made of is hashed once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import saddlepoint
import saddlepoint as sp
from run_factory import make_evaluation, make_run
from saddlepoint import runs
from saddlepoint.doctor import Finding
from saddlepoint.experiments.measurements import Distances, Residuals
from saddlepoint.runs import build

ROOT = Path(saddlepoint.__file__).parent


@pytest.mark.parametrize("room", ["report", "cli", "experiments"])
def test_nobody_above_reads_the_json_of_a_record(room: str) -> None:
    odd = re.compile(r"\b(run|record|other)\.metrics\b")
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / room).rglob("*.py")}
    assert texts
    assert [name for name, text in texts.items() if odd.search(text)] == []


JSON = {
    # What is read from files and flags before it has a type, or is written to them.
    ("evaluation", "write_page"),  # what a template shows
    ("training", "write_checkpoint"),
    ("training", "read_checkpoint"),
    *(("training", name) for name in ("read_config", "check_config", "history_in")),
    ("runs", "check_alone"),
    ("runs", "load"),
    ("runs", "with_data"),
    ("runs", "parameters"),
    ("runs", "radius"),
    ("runs", "check_radius_given"),
    ("runs", "check_radius_of_file"),
    *(("runs", name) for name in ("usual", "with_usual", "said", "not_said", "as_begun")),
    # What `run.json` says.
    ("runs", "plain"),
    ("runs", "read"),
    ("runs", "record_of"),
    ("runs", "begun"),
    ("runs", "hashes_of"),
    ("runs", "hash_settings"),
    ("experiments", "describe"),
    # What a file of settings says.
    ("runs", "settings_in"),
    # What a stored summary says.
    ("experiments", "check_content"),
    ("experiments", "read_content"),
}


def _functions(room: str) -> Iterator[ast.FunctionDef]:
    """The functions of a room that others may call; what is inside of others is not."""
    for path in sorted((ROOT / room).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for node in (*tree.body, *(inner for each in classes for inner in each.body)):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield node


def _untyped(function: ast.FunctionDef) -> bool:
    taken = [*function.args.args, *function.args.kwonlyargs]
    said = [*(each.annotation for each in taken), function.returns]
    return any(re.search(r"(dict|Mapping)\[str, Any\]", ast.unparse(a)) for a in said if a)


def test_no_dictionaries_of_anything_go_from_room_to_room() -> None:
    rooms = ("evaluation", "training", "runs", "experiments")
    found = {(room, each.name) for room in rooms for each in _functions(room) if _untyped(each)}
    assert found == JSON
    assert not any(_untyped(each) for each in _functions("doctor"))
    example = "def f(a: Mapping[str, Any] | None, b: int) -> str: ..."
    assert _untyped(ast.parse(example).body[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("room", ["report", "cli", "experiments"])
def test_nobody_above_reads_the_json_of_settings(room: str) -> None:
    odd = re.compile(r"\b(run|record|other)\.settings(\.get\(|\[)")
    assert [p.name for p in (ROOT / room).rglob("*.py") if odd.search(p.read_text())] == []


def test_records_are_made_in_one_place_and_their_metrics_written_in_another() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    made = {
        name
        for name, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("Run", "runs.Run", "record.Run")
    }
    assert made == {"build.py"}
    written = {name for name, text in texts.items() if re.search(r"\bmetrics=.*plain\(\)", text)}
    assert written == {"metrics.py"}


def test_what_the_doctor_found_is_typed_before_and_after_the_attacks(tmp_path: Path) -> None:
    done = make_evaluation(tmp_path, rows=3)
    found = {"net 0": (Finding("gradients", "warn", "x < y", "net 0", "look"),)}
    assert runs.examined(done) == found
    assert runs.EvaluationMetrics.of(done).doctor == found
    begun = done.but(status="interrupted", metrics=runs.Examined(doctor=found).plain())
    assert runs.examined(runs.Run.from_json(begun.to_json())) == found
    assert runs.examined(begun.but(metrics={})) == {}
    plain = {"name": "a", "status": "ill", "saw": "", "means": "", "do": ""}
    odd = begun.but(metrics={"doctor": {"net 0": [plain]}})
    with pytest.raises(ValueError, match="must be those of an evaluation, got 'ill' as `doctor"):
        runs.examined(odd)


def test_the_metrics_of_a_record_are_those_of_its_kind(tmp_path: Path) -> None:
    attack = make_run(tmp_path / "a", rows=3, domains=1)
    evaluation = make_evaluation(tmp_path / "e", rows=3)
    assert isinstance(runs.metrics_of(attack), runs.AttackMetrics)
    assert isinstance(runs.metrics_of(evaluation), runs.EvaluationMetrics)
    for run in (attack, evaluation):
        assert runs.metrics_of(run).plain() == run.metrics


def test_measurements_are_read_as_they_were_written() -> None:
    table = ((0.5, None), (1.0, 2.0))
    one = Distances(labels=((3, 3), (4, 4)), distance=table, eps_min=table, note="")
    two = Residuals(steps=(1, 2), best=(2.0, 1.0), delta=(1.0, 0.5), weights=(1.0, 0.5), slope=None)
    assert one.plain()["distance"] == [[0.5, None], [1.0, 2.0]]
    assert two.plain()["slope"] is None
    assert Distances.read(one.plain()) == one
    assert Residuals.read(two.plain()) == two
    with pytest.raises(ValueError, match="must be those of a measurement, got no `labels`"):
        Distances.read(two.plain())


def test_models_and_images_that_runs_share_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[object] = []
    hash_model = build.hash_model
    monkeypatch.setattr(build, "hash_model", lambda m: hashed.append(m) or hash_model(m))
    x, y = sp.data.sample("mnist", 4)
    data = {"x": x, "y": y}
    a, c = sp.models.load("mnist-a"), sp.models.load("mnist-c")
    known: dict[int, tuple[object, str]] = {}
    one = build.hashes_of({"eps": 1}, data, {"A": a}, known=known)
    two = build.hashes_of({"eps": 2}, data, {"A": a, "C": c}, known=known)
    assert hashed == [a, c]
    assert one == build.hashes_of({"eps": 1}, data, {"A": a})
    assert two == build.hashes_of({"eps": 2}, data, {"A": a, "C": c})
    other = build.hashes_of({"eps": 2}, {"x": torch.zeros_like(x), "y": y}, {"A": a}, known=known)
    assert other.data != two.data
