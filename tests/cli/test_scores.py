"""`saddlepoint attack --gradient`: models that answer scores only, on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import saddlepoint as sp
from commands import inside, run
from saddlepoint import data
from saddlepoint.runs.materials import Images, load_models
from saddlepoint.runs.model_words import parse
from saddlepoint.runs.settings import EnsembleSettings
from saddlepoint.score_models import has_gradient

LINE = ("attack", "ensemble", "--data", "mnist-sample", "--limit", "6", "--eps", "0.15")
NETS = """
from pathlib import Path

import torch
from saddlepoint import models, scores

network = models.load("mnist-a")


def service():
    def ask(images):  # NumPy in, probabilities out; after some answers it raises, if it is told to
        stop = Path("stop")
        if stop.exists():
            left, error = stop.read_text().split()
            stop.write_text(f"{int(left) - 1} {error}")
            if left == "1":
                raise {"Ctrl-C": KeyboardInterrupt, "429": RuntimeError("429 too many requests")}[error]
        with torch.no_grad():
            return torch.softmax(network(torch.from_numpy(images)), dim=1).numpy()

    return scores(ask, probabilities=True)
"""


@pytest.mark.parametrize(("error", "code"), [("Ctrl-C", 130), ("429", 1)])
def test_a_run_counts_queries_and_can_be_continued(tmp_path: Path, error: str, code: int) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    line = (*LINE, "--models", "nets.py:service,scores:C", "--batch-size", "2")
    line = (*line, "--gradient", "searched:queries=120")
    whole = run(*line, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert "queries" in whole.stdout
    (tmp_path / "stop").write_text(f"200 {error}")
    stopped = run(*line, "--out", "part", cwd=tmp_path)
    assert stopped.returncode == code, stopped.stdout + stopped.stderr
    assert re.search(r"[24] of 6 images are saved in part\n", stopped.stderr)
    assert re.search(r"continue with: saddlepoint .*--out part --resume", stopped.stderr)
    pages = len(list((tmp_path / "part").rglob("*.safetensors")))
    assert pages >= 1  # some rows are there already
    (tmp_path / "stop").unlink()
    again = run(*line, "--out", "part", "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    one, two = (load_file(tmp_path / name / "tensors.safetensors") for name in ("whole", "part"))
    for name in ("delta", "num_forwards", "fooled"):
        assert torch.equal(one[name], two[name]), name
    assert int(one["num_forwards"].max()) <= 120
    page = (tmp_path / "part" / "report.html").read_text()
    assert "queries per image" in page
    assert "evaluations" not in page.partition('id="reading"')[0]
    record = json.loads((tmp_path / "part" / "run.json").read_text())
    assert record["settings"]["gradient"] == "searched:queries=120"
    assert record["metrics"]["evaluations"]["per_row"] == pytest.approx(
        one["num_forwards"].double().mean().item()
    )


def test_models_are_declared_by_their_word() -> None:
    x, y = data.sample("mnist", 2)
    images = Images(x, y, tuple("0123456789"), "mnist")
    models = load_models(["A", "scores:A", "scores:mnist-c"], images)
    assert [has_gradient(model) for model in models.values()] == [True, False, False]
    word = parse("onnxruntime:exports/net.onnx")
    assert (word.kind, word.short, word.scores, word.risk) == ("onnxruntime", "net", True, "")
    assert parse("scores:nets.py:factory").risk == "runs code"
    for wrong in (
        "scores:scores:A",
        "scores:",
        "onnxruntime:net.pt",
        "scores:onnxruntime:net.onnx",
    ):
        with pytest.raises(ValueError, match="`--models` must be one of"):
            parse(wrong)


def test_onnx_runtime_is_named_where_it_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    (tmp_path / "net.onnx").write_bytes(b"")
    assert inside(*LINE, "--models", f"onnxruntime:{tmp_path / 'net.onnx'}") == 2
    assert "pip install 'saddlepoint[onnxruntime]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--models", "A,scores:C"),
            "`--gradient` must say how to do without gradients, which C has not",
        ),
        (("--models", "A", "--gradient", "guessed"), "`--gradient` must be estimated or searched"),
        (
            ("--models", "A", "--gradient", "searched:side=3"),
            "must have queries=..., objective=...",
        ),
        (
            ("--models", "A", "--gradient", "searched:queries=2"),
            "`gradient searched queries` must be >= 10",
        ),
        (
            ("--models", "A", "--gradient", "searched", "--steps", "20"),
            "`--steps` must be left out with --gr",
        ),
        (
            ("--models", "A", "--gradient", "searched", "--baseline", "average"),
            "`--baseline` must be left out with --gradient searched, got average; random search",
        ),
        (
            ("--models", "A", "--gradient", "searched", "--rule", "minmax"),
            "`--rule` must be left out with --gradient searched, got minmax; random search follows no weights",
        ),
        (
            ("--models", "A", "--gradient", "searched", "--method", "apgda"),
            "must be left out with --method",
        ),
        (
            ("--models", "A", "--gradient", "estimated:queries=50,side=1"),
            "`queries` must be enough for a step",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(*LINE, *words) in (1, 2)
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_line_that_repeats_a_run_has_the_gradient() -> None:
    flags = {"models": "scores:A", "eps": 0.1, "gradient": "estimated:queries=700,search=1/4"}
    settings = EnsembleSettings.load(flags)
    assert "--gradient estimated:queries=700,search=1/4" in settings.command()


SEARCHED = {
    "ensemble": (*LINE, "--models", "scores:A,scores:C"),
    "universal": (
        *("attack", "universal", "--data", "mnist-sample", "--limit", "6", "--eps", "0.15"),
        *("--models", "scores:A", "--group-size", "3"),
    ),
    "patch": (
        *("attack", "patch", "--data", "mnist-sample", "--limit", "8", "--models", "scores:A"),
        *("--patch", "9", "--views", "here,at:0/1", "--images-per-patch", "4", "--held-out", "4"),
    ),
}


@pytest.mark.parametrize("kind", SEARCHED)
def test_random_search_is_called_so_and_shows_no_weights(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It follows none: what is in the tensors was never used."""
    line = (*SEARCHED[kind], "--gradient", "searched:queries=20")
    assert inside(*line, "--out", tmp_path / "run") == 0
    page, said = (tmp_path / "run" / "report.html").read_text(), capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "--rule" not in record["command"]
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL).partition("<footer>")[0]
    for text in (said, body):
        assert "random search" in text
        assert "min-max" not in text
        assert "minmax" not in text
        assert not re.search("weight", text, flags=re.IGNORECASE)
    words = record["command"].split()[1:]
    assert inside(*words, "--out", tmp_path / "again", "--quiet") == 0  # the line repeats it
    one, two = (load_file(tmp_path / n / "tensors.safetensors") for n in ("run", "again"))
    assert torch.equal(one["delta"], two["delta"])


def test_a_leaderboard_calls_random_search_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = SEARCHED["ensemble"]
    for name, how in (("one", "searched:queries=20"), ("two", "estimated:queries=40")):
        assert inside(*line, "--gradient", how, "--out", tmp_path / name, "--quiet") == 0
    capsys.readouterr()
    assert inside("report", tmp_path) == 0
    for shown in (capsys.readouterr().out, (tmp_path / "leaderboard.html").read_text()):
        assert shown.count("random search") == 1
        assert shown.count("min-max (") == 1  # the estimate follows weights


def test_a_file_of_settings_for_random_search_may_name_the_default_rule_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (*SEARCHED["ensemble"], "--gradient", "searched:queries=20")
    assert inside(*line, "--print-config") == 0
    text = capsys.readouterr().out
    assert re.search("^rule: minmax", text, flags=re.MULTILINE)
    (tmp_path / "same.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text(re.sub("(?m)^rule: .*$", "rule: average", text))
    again = ("attack", "ensemble", "--print-config", "--trust", "--config")
    assert inside(*again, tmp_path / "same.yaml") == 0
    assert inside(*again, tmp_path / "other.yaml") == 2
    assert "`--rule` must be left out with --gradient searched" in capsys.readouterr().err


UNDECLARED = """
import numpy as np

class Forest:
    def predict_proba(self, rows):
        return np.full((len(rows), 10), 0.1)

forest = Forest()

def arrays():
    return lambda images: np.zeros((len(images), 10), np.float32)
"""


@pytest.mark.parametrize("command", ["attack ensemble --eps 0.2", "evaluate --threat linf:0.2"])
def test_models_of_numpy_and_scikit_learn_are_told_how_they_are_declared(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("forests.py").write_text(UNDECLARED)
    line = (*command.split(), "--data", "mnist-sample", "--limit", "4")
    assert inside(*line, "--models", "forests.py:arrays") != 0
    said = capsys.readouterr().err
    assert "got ndarray: it has no gradients" in said
    assert "saddlepoint.scores(model)" in said
    assert "scores: before its word" in said
    assert inside(*line, "--models", "forests.py:forest") == 2
    said = capsys.readouterr().err
    assert "got Forest; declare a classifier of scikit-learn by saddlepoint.scores(" in said


def test_python_says_how_a_classifier_is_declared() -> None:
    class Forest:
        def predict_proba(self, rows: object) -> object:
            return rows

    x, y = data.sample("mnist", 2)
    for use in (lambda: sp.Ensemble([Forest()], x, y), lambda: sp.models.wrap(Forest())):
        with pytest.raises(TypeError, match=r"got Forest; .* saddlepoint.scores\(it.predict_proba"):
            use()


def test_the_doctor_knows_models_that_are_declared(capsys: pytest.CaptureFixture[str]) -> None:
    """They are told to be what they are, and not accused of masking what nobody asks them for."""
    line = ("--data", "mnist-sample", "--limit", "4")
    assert inside("doctor", "scores:mnist-a", *line) == 1
    said = capsys.readouterr().out
    assert "declared to answer scores only" in said
    assert "--gradient estimated:queries=5000" in said
    assert "masks" not in said
    assert "withstand" not in said
    assert (
        inside("evaluate", "scores:mnist-a", "--threat", "linf:0.2", *line, "--out", "never") == 1
    )
    said = capsys.readouterr().err
    assert "not fit to be evaluated" in said
    assert "declared to answer scores only" in said
