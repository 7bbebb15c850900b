"""Readers get typed metrics: JSON is for `run.json` alone. And what a run is made of is hashed once."""

from __future__ import annotations

import re
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
    a, c = sp.models.load("mnist-a"), sp.models.load("mnist-c")
    known: dict[int, tuple[object, str]] = {}
    one = build.hashes_of({"eps": 1}, x, y, {"A": a}, known=known)
    two = build.hashes_of({"eps": 2}, x, y, {"A": a, "C": c}, known=known)
    assert hashed == [a, c]
    assert one == build.hashes_of({"eps": 1}, x, y, {"A": a})
    assert two == build.hashes_of({"eps": 2}, x, y, {"A": a, "C": c})
    other = build.hashes_of({"eps": 2}, torch.zeros_like(x), y, {"A": a}, known=known)
    assert other.data != two.data
