"""Victims: never asked while an attack runs, judged afterwards on what it has stored, and counted apart."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import saddlepoint as sp
from commands import inside
from saddlepoint import report, runs
from saddlepoint.runs.counting import transfer
from saddlepoint.runs.metric_parts import Transfer
from saddlepoint.runs.settings import EnsembleSettings

QUICK = [
    "--data",
    "mnist-sample",
    "--eps",
    "0.2",
    "--limit",
    "12",
    "--steps",
    "4",
    "--batch-size",
    "5",
]
# Every call of a model is a line in a file, which no hash sees.
NETS = """
import os
import zlib
import torch
import saddlepoint as sp

class Told(torch.nn.Module):
    def __init__(self, letter, word):
        super().__init__()
        self.network, self.word = sp.models.load(f"mnist-{letter}"), word
        self.eval()

    def forward(self, x):
        with open(os.environ["CALLS"], "a") as file:
            seen = " ".join(str(zlib.crc32(image.numpy().tobytes())) for image in x.detach())
            file.write(f"{self.word} {len(x)} {seen}\\n")
        return self.network(x)

def asked(): return Told("a", "asked")
def other(): return Told("c", "asked")
def stranger(): return Told(os.environ.get("VICTIM", "d"), "victim")
def second(): return Told("c", "victim")

class Odd(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("the victim's own words")

def flat(size, classes, channels=1):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * size * size, classes))

def seven(): return flat(28, 7)
def twelve(): return flat(28, 12)
def large(): return flat(32, 10)
def colour(): return flat(28, 10, 3)
def raising(): return Odd()
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of calls, in the folder of the networks, which is the current one."""
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    yield tmp_path / "calls"
    sys.modules.pop("nets", None)  # other tests have files of this name


def attacked(folder: Path, *words: object, kind: str = "ensemble") -> runs.Run:
    """A quick attack by the command line, and its record."""
    assert inside("attack", kind, *QUICK, "--out", folder, "--quiet", *words) == 0
    return runs.finished(folder)


# ------------------------------------------------------------------------ never asked


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("ensemble", "--models nets.py:asked,nets.py:other --restarts 2 --baseline average"),
        ("ensemble", "--models nets.py:asked --targeted least-likely --precision bfloat16"),
        ("ensemble", "--models nets.py:asked --labels predicted --method apgda"),
        ("universal", "--models nets.py:asked --group-size 3 --baseline average"),
        ("transform", "--models nets.py:asked --transforms paper-random"),
    ],
)
def test_no_victim_sees_a_perturbation_before_the_last_row_is_attacked(
    calls: Path, kind: str, words: str
) -> None:
    attacked(Path("o"), *words.split(), "--victims", "nets.py:stranger", kind=kind)
    lines = [line.split() for line in calls.read_text().splitlines()]
    who = [line[0] for line in lines]
    assert who.count("asked") > 10
    last = len(who) - 1 - who[::-1].index("asked")
    assert "victim" in who[last:]
    # Before, it is shown a few images as they are, to be refused in time if it does not fit; neither the
    # baseline, nor the attack, nor the choice of a class to reach asks it anything.
    clean = {str(zlib.crc32(x.numpy().tobytes())) for x in sp.data.sample("mnist", 12)[0]}
    before = {image for word, _, *images in lines[:last] for image in images if word == "victim"}
    assert 0 < len(before) <= 12
    assert before <= clean


def test_a_run_that_goes_on_asks_victims_at_its_end_alone(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--models", "nets.py:asked", "--victims", "nets.py:stranger"]
    whole = attacked(Path("whole"), *words)
    real = runs.Store.put

    def stop(self, key, page):  # type: ignore[no-untyped-def]
        real(self, key, page)
        if key == "victims of rows 5 to 10":
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.Store, "put", stop)
    assert inside("attack", "ensemble", *QUICK, *words, "--out", "o", "--quiet") == 130
    monkeypatch.undo()
    monkeypatch.chdir(calls.parent)
    monkeypatch.setenv("CALLS", str(calls))
    stopped = runs.Run.read(Path("o"))
    assert (stopped.status, stopped.done) == ("interrupted", 12)
    calls.unlink()
    again = attacked(Path("o"), *words, "--resume")
    assert again.metrics == whole.metrics
    lines = [" ".join(line.split()[:2]) for line in calls.read_text().splitlines()]
    # The models answer for themselves (12 images, twice) and are looked at; no row is attacked again.
    assert "victim 2" in lines
    assert "victim 5" not in lines
    assert "asked 5" not in lines


@pytest.mark.parametrize(
    ("victim", "told"),
    [
        ("seven", "label 9 and 7 logits of seven of --victims"),
        ("large", "large of --victims, which takes 32x32; write --size 32, or wrap"),
        ("colour", "colour of --victims, which takes 3 (colour)"),
        ("raising", "the victim's own words; raised by domain 0 (raising), for"),
        ("raising", "asked as one of --victims, before the attack (nets.py, line 26)"),
        ("twelve,nets.py:stranger", "12"),
    ],
)
def test_a_victim_that_does_not_fit_is_refused_before_the_attack(
    calls: Path, capsys: pytest.CaptureFixture[str], victim: str, told: str
) -> None:
    words = ["--models", "nets.py:asked", "--victims", f"nets.py:{victim}", "--out", "o"]
    assert inside("attack", "ensemble", *QUICK, *words) in (1, 2)
    assert told in capsys.readouterr().err
    asked = [line for line in calls.read_text().splitlines() if line.startswith("asked")]
    assert len(asked) < 12  # the look at it; an attack asks more
    assert not Path("o").exists()


# ------------------------------------------------------------------------ judged


def test_victims_are_judged_on_the_perturbations_as_stored(tmp_path: Path) -> None:
    run = attacked(
        tmp_path / "o",
        *["--models", "A", "--victims", "C,D", "--baseline", "average", "--keep-going"],
    )
    _, tensors = runs.read_results(tmp_path / "o")
    metrics = runs.AttackMetrics.of(run)
    x, y = sp.data.sample("mnist", 12)
    victims = {name: sp.models.load(f"mnist-{name.lower()}") for name in "CD"}
    for prefix, found in (("", metrics.transfer), ("baseline.", metrics.baseline.transfer)):  # type: ignore[union-attr]
        assert isinstance(found, Transfer)
        delta = tensors[f"{prefix}delta"]
        rates = sp.success_rates(sp.Ensemble(list(victims.values()), x, y), delta)
        assert found.asr_all_among_correct == pytest.approx(100 * rates.among_correct, abs=1e-4)
        for name, model in victims.items():
            with torch.no_grad():  # by hand, without the library
                before, after = (model(images).argmax(dim=1) == y for images in (x, x + delta))
            each = found.victims[name]
            assert each.rows_correct == int(before.sum())
            assert each.clean_accuracy == pytest.approx(
                100 * before.float().mean().item(), abs=1e-3
            )
            assert each.accuracy == pytest.approx(100 * after.float().mean().item(), abs=1e-3)
            share = 100 * (~after)[before].float().mean().item()
            assert each.asr_among_correct == pytest.approx(share, abs=1e-3)
            assert each.interval is not None
            assert each.interval[0] <= share <= each.interval[1]
    assert "asr_all_among_correct" in run.metrics  # white box, on its own
    assert tensors["victims.predictions"].shape == (12, 2)


def test_a_victim_of_groups_has_to_be_wrong_about_all_of_a_group(tmp_path: Path) -> None:
    words = ["--models", "A", "--victims", "C,D", "--group-size", "3"]
    run = attacked(tmp_path / "o", *words, kind="universal")
    found = runs.AttackMetrics.of(run).transfer
    _, tensors = runs.read_results(tmp_path / "o")
    assert found is not None
    assert tensors["victims.fooled"].shape == (4, 6)
    x, y = sp.data.sample("mnist", 12)
    groups, labels = sp.data.group(x, y, 3)
    problem = sp.Universal(sp.models.load("mnist-d"), groups, labels)
    rates = sp.success_rates(problem, tensors["delta"])
    assert torch.equal(rates.fooled, tensors["victims.fooled"][:, 3:])
    assert found.victims["D"].asr_among_correct == pytest.approx(100 * rates.among_correct)


def test_victims_of_views_see_the_image_as_it_is(tmp_path: Path) -> None:
    words = ["--models", "A", "--victims", "D", "--transforms", "paper-random", "--quantize", "256"]
    attacked(tmp_path / "o", *words, kind="transform")
    _, tensors = runs.read_results(tmp_path / "o")
    x, y = sp.data.sample("mnist", 12)
    rates = sp.success_rates(sp.Ensemble([sp.models.load("mnist-d")], x, y), tensors["delta"])
    assert torch.equal(rates.fooled, tensors["victims.fooled"])


def test_a_targeted_attack_has_to_lead_victims_to_the_class_too(tmp_path: Path) -> None:
    run = attacked(tmp_path / "o", *["--models", "A", "--victims", "D", "--targeted", "7"])
    assert run.rows < 12  # images of the class to reach are left out
    _, tensors = runs.read_results(tmp_path / "o")
    reached = tensors["victims.predictions"] == 7
    assert torch.equal(tensors["victims.fooled"], reached)
    wrong = tensors["victims.predictions"] != tensors["labels"][:, :1]
    assert torch.equal(tensors["victims.wrong"], wrong)
    found = runs.AttackMetrics.of(run).transfer
    assert found is not None
    assert found.victims["D"].accuracy == pytest.approx(100 * (~wrong).float().mean().item())


def test_where_no_victim_was_right_there_is_no_rate() -> None:
    wrong = torch.ones(2, 1, dtype=torch.bool)
    found = transfer(["C"], {"victims.fooled": wrong, "victims.clean_fooled": wrong})
    assert (found.rate, found.rows_correct) == (None, 0)
    assert found.victims["C"].asr_among_correct is None
    assert found.victims["C"].clean_accuracy == 0.0


# ------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("attacked", "twin"),
    [("A,C", "A"), ("A,C", "mnist-a"), ("A,C", "scores:A"), ("C,scores:mnist-a", "A")],
)
def test_a_model_that_is_attacked_is_no_victim(
    attacked: str, twin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--gradient", "searched:queries=10"] if "scores" in attacked else ["--steps", "4"]
    words = ["--data", "mnist-sample", "--eps", "0.2", "--limit", "12", "--models", attacked, *how]
    words += ["--victims", f"D,{twin}", "--out", tmp_path / "o"]
    assert inside("attack", "ensemble", *words) == 2
    assert "`--victims` must be models that the attack does not ask" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.usefixtures("calls")
def test_other_victims_do_not_continue_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*QUICK, "--models", "nets.py:asked", "--out", "o", "--quiet"]
    assert inside("attack", "ensemble", *words, "--victims", "nets.py:stranger") == 0
    for other in ("nets.py:second", "nets.py:stranger,nets.py:second"):
        assert inside("attack", "ensemble", *words, "--victims", other, "--resume") == 2
        assert "victims: nets.py:stranger there" in capsys.readouterr().err
    monkeypatch.setenv("VICTIM", "b")  # by the same name
    assert inside("attack", "ensemble", *words, "--victims", "nets.py:stranger", "--resume") == 2
    assert "other parameters or code for stranger" in capsys.readouterr().err


def test_a_file_of_settings_may_not_name_victims_that_run_code(calls: Path, tmp_path: Path) -> None:
    settings = EnsembleSettings.load({"models": "A", "victims": "nets.py:stranger", "eps": 0.2})
    assert "--victims nets.py:stranger" in settings.command()
    file = tmp_path / "mine.yaml"
    file.write_text(settings.to_yaml())
    with pytest.raises(ValueError, match=r"its victims 'nets\.py:stranger' runs code"):
        EnsembleSettings.load({}, file)
    assert EnsembleSettings.load({}, file, trust=True) == settings
    assert not calls.exists()


def test_a_record_without_the_metrics_of_its_victims_is_refused(tmp_path: Path) -> None:
    run = attacked(tmp_path / "o", *["--models", "A", "--victims", "D"])
    metrics = {key: value for key, value in run.metrics.items() if key != "transfer"}
    with pytest.raises(ValueError, match="must have victims"):
        runs.metrics_of(run.but(metrics=metrics))


# ------------------------------------------------------------------------ shown


def test_transfer_is_ranked_on_its_own(tmp_path: Path) -> None:
    attacked(tmp_path / "r/one", *["--models", "A", "--victims", "D"])
    attacked(tmp_path / "r/two", *["--models", "C", "--victims", "mnist-d", "--rule", "average"])
    attacked(
        tmp_path / "r/views",
        *["--models", "A", "--victims", "D", "--transforms", "paper"],
        kind="transform",
    )
    attacked(tmp_path / "r/white", *["--models", "A"])
    attacked(tmp_path / "r/other", *["--models", "A", "--victims", "C"])
    board = runs.rank_runs([tmp_path / "r"])
    found = {
        ranking.question.title: {entry.name for entry in ranking.entries}
        for ranking in board.rankings
    }
    assert found == {
        "Which attack on these models is stronger?": {"one", "white", "other"},
        "Which attack fools these victims, which it never asked, more often?": {
            "one",
            "two",
            "views",
        },
    }
    for ranking in board.rankings:
        for entry in ranking.entries:
            metrics = entry.metrics
            assert isinstance(metrics, runs.AttackMetrics)
            own = metrics.transfer.rate if ranking.question.transfer else metrics.rate  # type: ignore[union-attr]
            assert entry.score == own
    page = report.write_comparison(board, tmp_path / "board.html").read_text()
    assert "victims D" in page
    assert "Accuracy under attack, victim by victim" in page


def test_page_tables_and_console_keep_white_box_and_transfer_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--models", "A", "--victims", "C,D", "--baseline", "average"]
    assert inside("attack", "ensemble", *QUICK, *words, "--out", tmp_path / "o") == 0
    run = runs.finished(tmp_path / "o")
    rate = run.metrics["transfer"]["asr_all_among_correct"]
    said = capsys.readouterr().out
    assert "Transfer to models that the attack never asked, percent:" in said
    assert "all at once" in said
    page = (tmp_path / "o/report.html").read_text()
    assert '<section id="transfer">' in page
    assert f"that both victims had right, {rate:.1f}\xa0%" in page
    lines = (tmp_path / "o/table.csv").read_text().splitlines()
    assert [line.split(",")[0].strip('"') for line in lines[1:]] == [
        "white box",
        *["transfer"] * 3,
    ] * 2
    assert json.loads((tmp_path / "o/run.json").read_text())["hashes"]["victims"].keys() == {
        "C",
        "D",
    }
    plain = attacked(tmp_path / "plain", "--models", "A")
    assert not (tmp_path / "plain/table.csv").exists()
    assert "transfer" not in plain.metrics
    assert 'id="transfer"' not in (tmp_path / "plain/report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--models A --victims D,D", "`--victims` must be different models, got D (2), which is D"),
        ("--models A --victims D,scores:D", "`--victims` must be different models, got D (2)"),
        ("--models A --victims Z", "`--victims` must be, for --data mnist, A, B, C, D, got 'Z'"),
        ("--models A,Z --victims D", "`--models` must be, for --data mnist, A, B, C, D, got 'Z'"),
        ("--models A --victims nonsuch", "`--victims` must be one of"),
        (
            "--models nets.py:asked --victims nets.py:second --mean own,mnist,mnist",
            "`--mean` must have one entry for all models or one for each, 2 with --victims, got 3",
        ),
        (
            "--models nets.py:asked,A --mean own,mnist,mnist",
            "`--mean` must have one entry for all models or one for each, 2, got 3",
        ),
    ],
)
def test_what_is_wrong_with_victims_is_said_of_victims(
    words: str, message: str, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside("attack", "ensemble", *words.split(), *QUICK, "--out", "r") == 2
    assert message in capsys.readouterr().err
    assert not Path("r").exists()
